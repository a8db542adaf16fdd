//! The running containers that sessions enter.

use gantry_engine::Observer;
use gantry_model::{AppName, PodId};
use tonic::Status;

use super::super::containers;

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
    /// The errors of [`containers::find_running`].
    pub(super) fn find(observer: &Observer, id: &str) -> Result<Self, Status> {
        let found = containers::find_running(observer, id)?;
        let stdin_once = found.stdin_once();
        Ok(Self { pod: found.sandbox.id, app: found.app.name, stdin_once })
    }
}
