//! The running containers and sandboxes that sessions enter.

use gantry_engine::model::id::shown;
use gantry_engine::model::{AppName, Phase, PodId};
use gantry_engine::{Engine, Observer};
use tonic::Status;

use super::super::{containers, sandbox};

/// A container that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RunningContainer {
    /// Its pod.
    pub(super) pod: PodId,
    /// Its app.
    pub(super) app: AppName,
    /// Whether its stdin ends with the first client that attaches to it.
    pub(super) stdin_once: bool,
}

impl RunningContainer {
    /// The running container with this id, or beginning of it.
    ///
    /// # Errors
    /// As [`containers::find_running`].
    pub(super) fn find(observer: &Observer, id: &str) -> Result<Self, Status> {
        let found = containers::find_running(observer, id)?;
        let stdin_once = found.stdin_once();
        Ok(Self { pod: found.sandbox.id, app: found.app.name, stdin_once })
    }
}

/// The pod of the sandbox with this id, or beginning of it, which is ready.
///
/// # Errors
/// NOT_FOUND; FAILED_PRECONDITION: it is not ready; those of the engine.
pub(super) fn running_sandbox(engine: &Engine, id: &str) -> Result<PodId, Status> {
    let pod = sandbox::find(engine, id)?;
    let pod = pod.ok_or_else(|| Status::not_found(format!("there is no sandbox '{}'", shown(id))))?;
    match pod.row.phase {
        Phase::Running { .. } => Ok(pod.row.id),
        _ => Err(Status::failed_precondition(format!("sandbox {} is not ready", pod.row.id))),
    }
}
