//! Fetches of images for calls. A fetch may take minutes, so each has a thread of its own.

use std::sync::Arc;

use gantry_engine::{Note, Progress};
use tokio::sync::{Semaphore, oneshot};
use tonic::Status;
use tracing::{Span, debug, info};

use crate::status;

/// Runs a fetch on a thread of its own, with the span of the call, when one of the permits is free. It finishes also if
/// the call is dropped.
///
/// # Errors
/// The fetch's errors, and `RESOURCE_EXHAUSTED` if no thread can be started.
pub(crate) async fn run_fetch<T: Send + 'static>(
    permits: &Arc<Semaphore>,
    fetch: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    // Fails only if the semaphore is closed, which does not happen.
    let permit = Arc::clone(permits).acquire_owned().await.map_err(|_| status::draining())?;
    let (reply, replied) = oneshot::channel();
    let span = Span::current();
    let run = move || {
        let _permit = permit;
        let result = span.in_scope(fetch);
        let _caller_may_have_gone = reply.send(result);
    };
    let failed = |error| Status::resource_exhausted(format!("cannot start a thread for this call: {error}"));
    std::thread::Builder::new().name("pull".to_owned()).spawn(run).map_err(failed)?;
    replied.await.unwrap_or_else(|_| Err(Status::internal("this call failed inside gantryd; its log says more")))
}

/// Logs the progress of a fetch: the replies of the calls have none.
pub(crate) struct ProgressLog;

impl Progress for ProgressLog {
    fn notify(&self, note: Note) {
        match note {
            Note::Bytes { .. } => {}
            Note::MirrorFailed { mirror, why } => info!("mirror {mirror} failed: {why}; trying the next"),
            note => debug!("{note:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::Code;

    #[test]
    fn fetches_that_panic_release_their_permits() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let permits = Arc::new(Semaphore::new(1));
        assert_eq!(runtime.block_on(run_fetch(&permits, || Ok(7))).unwrap(), 7);
        let failed = runtime.block_on(run_fetch(&permits, || -> Result<(), Status> { panic!("on purpose") }));
        assert_eq!(failed.unwrap_err().code(), Code::Internal);
        let again = runtime.block_on(run_fetch(&permits, || Err::<(), _>(Status::not_found("no image"))));
        assert_eq!(again.unwrap_err().code(), Code::NotFound);
    }
}
