//! Sandboxes and containers that a kubelet made: the annotation by which all parts of this crate know the containers,
//! and the stop of a sandbox.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gantry_engine::{AppRow, Engine, PodError};
use gantry_model::{ErrorKind, Kind as _, Phase, PodId};
use tonic::Status;
use tracing::warn;

use crate::status;

/// The annotation with the name of a container in Kubernetes, which is the same for all its attempts.
pub(crate) const CONTAINER_NAME: &str = "gantry/container-name";

/// The sandboxes that this process is stopping.
static STOPPING: Mutex<BTreeSet<PodId>> = Mutex::new(BTreeSet::new());

/// The right to stop a sandbox, which one call has at a time.
struct StopRight(PodId);

impl StopRight {
    /// # Errors
    /// `UNAVAILABLE` if another call has it.
    fn take(id: PodId) -> Result<Self, Status> {
        match STOPPING.lock().unwrap_or_else(PoisonError::into_inner).insert(id) {
            true => Ok(Self(id)),
            false => Err(Status::unavailable(format!("sandbox {id} is already being stopped: try again later"))),
        }
    }
}

impl Drop for StopRight {
    fn drop(&mut self) {
        STOPPING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }
}

/// The name of a container in Kubernetes; `None`: no kubelet made the app.
pub(crate) fn container_name(app: &AppRow) -> Option<&str> {
    app.annotations.get(CONTAINER_NAME).map(String::as_str)
}

/// Stops a sandbox with SIGKILL, since kubelets stop its containers first, and releases its networks if it still has
/// them. Does nothing if it does not exist, or no longer.
///
/// # Errors
/// The engine's errors, also if a plugin fails to release the network, which the next call repeats. `UNAVAILABLE` if
/// another call is stopping the sandbox.
pub(crate) fn stop_sandbox(engine: &Engine, id: PodId) -> Result<(), Status> {
    // Kubelets repeat a call that takes long. The repetitions would take the threads that stop other pods.
    let _right = StopRight::take(id)?;
    match engine.stop(id, Duration::ZERO) {
        Ok(stopped) => {
            if let Some(why) = stopped.unwritten {
                warn!("the end of sandbox {id} is not recorded: {why}");
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(status::from_error(&error)),
    }
    match engine.release_networks(id) {
        Ok(()) => Ok(()),
        // Another call holds the lock. If it removes the sandbox, it releases the networks, too.
        Err(error) if error.kind() == ErrorKind::Busy && is_removed(engine, id)? => Ok(()),
        Err(error) => Err(status::from_error(&error)),
    }
}

/// Whether a sandbox is removed, or is being removed.
fn is_removed(engine: &Engine, id: PodId) -> Result<bool, Status> {
    match engine.status(id) {
        Ok(view) => Ok(matches!(view.row.phase, Phase::Garbage { deleting: Some(_), .. })),
        Err(PodError::NotFound(_)) => Ok(true),
        Err(error) => Err(status::from_error(&error)),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn one_call_stops_a_sandbox_at_a_time() {
        let id: PodId = "83d7258d-9b79-4920-b274-1ac732acba25".parse().unwrap();
        let first = StopRight::take(id).unwrap();
        assert_eq!(StopRight::take(id).map(drop).unwrap_err().code(), Code::Unavailable);
        drop(first);
        drop(StopRight::take(id).unwrap());
    }
}
