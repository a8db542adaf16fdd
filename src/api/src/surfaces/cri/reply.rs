//! Replies of supervisors. No thread waits for one, because a supervisor may have hung.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use gantry_engine::SentRequest;
use tokio::time::timeout;
use tonic::Status;

use crate::dir_watch::readable;

/// Waits until a request to a supervisor has its reply, or until the time limit. The request's `finish` then returns
/// without waiting, after the time limit with its error.
///
/// # Errors
/// The kernel has no memory or descriptor left.
pub(super) async fn wait_for_reply(request: BorrowedFd<'_>, limit: Duration) -> Result<(), Status> {
    let failed = |error: io::Error| Status::internal(format!("cannot wait for the supervisor of the pod: {error}"));
    let reply = request.try_clone_to_owned().and_then(readable).map_err(failed)?;
    match timeout(limit, reply.readable()).await {
        Ok(ready) => ready.map(drop).map_err(failed),
        Err(_) => Ok(()),
    }
}

/// The result of a request to a supervisor.
///
/// # Errors
/// Those of [`wait_for_reply`].
pub(super) async fn finish<T>(request: SentRequest<T>) -> Result<T, Status> {
    wait_for_reply(request.as_fd(), SentRequest::<T>::TIMEOUT).await?;
    Ok(request.finish())
}
