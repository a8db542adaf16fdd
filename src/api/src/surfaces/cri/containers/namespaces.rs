//! The namespaces of a container: its PID namespace. The others are those of its sandbox.

use gantry_engine::{Engine, PodRow};
use gantry_model::AppName;
use gantry_model::id::shown;
use gantry_model::namespaces::PidMode;
use gantry_model::spec::AppSpec;
use gantry_proto::cri::v1::{NamespaceMode, NamespaceOption};
use tonic::Status;

use super::find_running;
use crate::status::invalid_field;

const FIELD: &str = "config.linux.security_context.namespace_options";

/// Sets the PID namespace. Kubelets repeat the options of the sandbox, whose network and IPC namespaces the container
/// has in any case.
///
/// # Errors
/// `INVALID_ARGUMENT` for a field, and `NOT_FOUND` or `FAILED_PRECONDITION` for the target.
pub(super) fn translate(
    engine: &Engine,
    sandbox: &PodRow,
    options: Option<&NamespaceOption>,
    app: &mut AppSpec,
) -> Result<(), Status> {
    let Some(options) = options else { return Ok(()) };
    app.options.pid = match NamespaceMode::try_from(options.pid) {
        Ok(NamespaceMode::Pod) => PidMode::Pod,
        Ok(NamespaceMode::Container) => PidMode::App,
        Ok(NamespaceMode::Node) => PidMode::Host,
        Ok(NamespaceMode::Target) => {
            app.options.pid_target = Some(target(engine, sandbox, &options.target_id)?);
            PidMode::Pod
        }
        Err(_) => {
            return Err(invalid_field(&format!("{FIELD}.pid"), "expected POD, CONTAINER, NODE or TARGET"));
        }
    };
    Ok(())
}

/// The app of a running container of the same sandbox.
fn target(engine: &Engine, sandbox: &PodRow, id: &str) -> Result<AppName, Status> {
    if id.is_empty() {
        return Err(invalid_field(&format!("{FIELD}.target_id"), "it is empty"));
    }
    let found = find_running(engine, id)?;
    match found.sandbox.id == sandbox.id {
        true => Ok(found.app.name),
        false => {
            let why = format!("container '{}' is not of sandbox {}", shown(id), sandbox.id);
            Err(invalid_field(&format!("{FIELD}.target_id"), &why))
        }
    }
}
