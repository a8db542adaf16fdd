//! The namespaces of a container: its PID namespace. The others are those of its sandbox.

use gantry_engine::model::namespaces::PidMode;
use gantry_engine::model::spec::AppSpec;
use gantry_engine::{Engine, PodRow};
use gantry_proto::cri::v1::{NamespaceMode, NamespaceOption};
use tonic::Status;

use super::config::unsupported;
use crate::status::invalid_field;

const FIELD: &str = "config.linux.security_context.namespace_options";

/// Sets the PID namespace. Kubelets repeat the options of the sandbox, whose network and IPC namespaces the container
/// has in any case.
///
/// # Errors
/// INVALID_ARGUMENT, UNIMPLEMENTED: the field.
pub(super) fn translate(
    _engine: &Engine,
    _sandbox: &PodRow,
    options: Option<&NamespaceOption>,
    app: &mut AppSpec,
) -> Result<(), Status> {
    let Some(options) = options else { return Ok(()) };
    let pid = NamespaceMode::try_from(options.pid);
    app.options.pid = match pid {
        Ok(NamespaceMode::Pod) => PidMode::Pod,
        Ok(NamespaceMode::Container) => PidMode::App,
        Ok(NamespaceMode::Node) => PidMode::Host,
        Ok(NamespaceMode::Target) => {
            return Err(unsupported(&format!("{FIELD}.pid"), "a container cannot join the one of another"));
        }
        Err(_) => {
            return Err(invalid_field(&format!("{FIELD}.pid"), "expected POD, CONTAINER, NODE or TARGET"));
        }
    };
    Ok(())
}
