//! StopContainer. The supervisor sends the stop signal once, and SIGKILL after the grace period; a further call can
//! only shorten it. No thread waits for the exit, since grace periods may be hours.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use gantry_engine::{AppRow, AppStop, Engine, EngineError, PodError, PodRow};
use gantry_model::{ErrorKind, Kind as _, Phase};
use gantry_proto::cri::v1::StopContainerRequest;
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status};

use super::{FoundContainer, find};
use crate::bridge::{Bridge, Weight};
use crate::dir_watch::readable;
use crate::peer::Peer;
use crate::status::from_error;

/// The time that the end of a container may take after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(15);
/// The delay before a stop that collided with another change of the container is retried.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);

/// Stops a container; returns when it has exited. Does nothing if it does not run, or does not exist.
///
/// # Errors
/// `DEADLINE_EXCEEDED` if it does not end after SIGKILL, and the engine's errors.
pub(in super::super) async fn stop(
    writer: &Bridge<Engine>,
    peer: Peer,
    request: StopContainerRequest,
) -> Result<(), Status> {
    let StopContainerRequest { container_id, timeout } = request;
    let grace = Duration::from_secs(u64::try_from(timeout).unwrap_or(0));
    let begun = Instant::now();
    let deadline = begun.checked_add(grace.saturating_add(KILL_TIMEOUT));
    let is_late = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
    loop {
        let (id, left) = (container_id.clone(), grace.saturating_sub(begun.elapsed()));
        let begin = move |engine: &Engine| begin(engine, &id, left);
        let Some(stop) = writer.call(peer, Weight::Heavy, begin).await? else { return Ok(()) };
        wait(&stop, deadline).await?;
        let finish = move |engine: &Engine| engine.finish_app_stop(stop).map_err(|error| from_error(&error));
        match writer.call(peer, Weight::Heavy, finish).await {
            // It is being started or removed, or its supervisor has just ended.
            Err(status) if status.code() == Code::Unavailable && !is_late() => sleep(BUSY_INTERVAL).await,
            Err(status) if status.code() == Code::Unavailable => {
                return Err(Status::deadline_exceeded(format!("the container does not end: {}", status.message())));
            }
            finished => return finished,
        }
    }
}

fn begin(engine: &Engine, id: &str, grace: Duration) -> Result<Option<AppStop>, Status> {
    let Some(FoundContainer { sandbox, app }) = find(engine, id)? else { return Ok(None) };
    if !runs(&sandbox, &app) {
        return Ok(None);
    }
    match engine.begin_app_stop(sandbox.id, &app.name, grace) {
        Err(error) if has_gone(engine, &sandbox, &error) => Ok(None),
        begun => begun.map_err(|error| from_error(&error)),
    }
}

/// Waits for the result of a stop, or for the deadline.
async fn wait(stop: &AppStop, deadline: Option<Instant>) -> Result<(), Status> {
    let failed = |error: std::io::Error| Status::internal(format!("cannot wait for the container: {error}"));
    let fd: OwnedFd = stop.as_fd().try_clone_to_owned().map_err(failed)?;
    let fd = readable(fd).map_err(failed)?;
    let ready = match deadline {
        None => fd.readable().await.map(drop),
        Some(deadline) => timeout_at(deadline, fd.readable()).await.map_or(Ok(()), |ready| ready.map(drop)),
    };
    ready.map_err(failed)
}

/// Kills a container, and waits for its end. Does nothing if it does not run.
///
/// # Errors
/// The engine's errors.
pub(super) fn kill(engine: &Engine, sandbox: &PodRow, app: &AppRow) -> Result<(), Status> {
    if !runs(sandbox, app) {
        return Ok(());
    }
    match engine.stop_app(sandbox.id, &app.name, Duration::ZERO) {
        Err(error) if !has_gone(engine, sandbox, &error) => Err(from_error(&error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn runs(sandbox: &PodRow, app: &AppRow) -> bool {
    app.state.is_running() && matches!(sandbox.phase, Phase::Running { .. })
}

/// Whether a stop has failed because the container has gone, or has ended with its sandbox.
fn has_gone(engine: &Engine, sandbox: &PodRow, error: &EngineError) -> bool {
    let has_ended = match engine.status(sandbox.id) {
        Ok(view) => !matches!(view.row.phase, Phase::Running { .. }),
        Err(PodError::NotFound(_)) => true,
        Err(_) => false,
    };
    has_ended || error.kind() == ErrorKind::NotFound
}
