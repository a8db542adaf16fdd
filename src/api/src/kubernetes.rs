//! Sandboxes and containers that a kubelet made: the names of containers in Kubernetes, and the stop of a sandbox.

use std::time::Duration;

use gantry_engine::{AppRow, CONTAINER_NAME, Engine, PodError};
use gantry_model::{ErrorKind, Kind as _, Phase, PodId};
use tokio::sync::watch;
use tonic::Status;
use tracing::warn;

use crate::claims::{Claim, Claims};
use crate::status;

/// The sandboxes that this process is stopping.
static STOPPING: Claims<PodId> = Claims::new();

/// The right to stop a sandbox, which one call has at a time: kubelets repeat a call that takes long, and the
/// repetitions would take the threads that stop other pods.
pub(crate) struct StopRight(Claim<PodId>);

impl StopRight {
    /// # Errors
    /// Another call has the right.
    pub(crate) fn take(id: PodId) -> Result<Self, StopUnderWay> {
        STOPPING.claim(id).map(Self).map_err(|end| StopUnderWay { id, end })
    }
}

/// A stop of a sandbox by another call.
#[derive(Debug)]
pub(crate) struct StopUnderWay {
    id: PodId,
    end: watch::Receiver<()>,
}

impl StopUnderWay {
    /// Waits for its end, whether it succeeds or fails.
    pub(crate) async fn wait(mut self) {
        // Nothing is sent: this returns when the sender is dropped.
        let _closed = self.end.changed().await;
    }
}

impl From<StopUnderWay> for Status {
    fn from(StopUnderWay { id, end: _ }: StopUnderWay) -> Self {
        Status::unavailable(format!("sandbox {id} is already being stopped: try again later"))
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
/// The engine's errors, also if a plugin fails to release the network, which the next call repeats.
pub(crate) fn stop_sandbox(engine: &Engine, right: &StopRight) -> Result<(), Status> {
    let id = right.0.key;
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
    use super::*;

    #[tokio::test]
    async fn one_call_stops_a_sandbox_at_a_time() {
        let id: PodId = "83d7258d-9b79-4920-b274-1ac732acba25".parse().unwrap();
        let first = StopRight::take(id).unwrap();
        let under_way = StopRight::take(id).map(drop).unwrap_err();
        let waiter = tokio::spawn(under_way.wait());
        tokio::task::yield_now().await;
        assert!(!waiter.is_finished());
        drop(first);
        waiter.await.unwrap();
        drop(StopRight::take(id).unwrap());
    }
}
