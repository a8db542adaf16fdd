//! Files of the host: List, DiskUsage, Read and Copy.
//!
//! [`access`] opens paths. In the data directory, readers get names only, operators also the contents of logs, and
//! administrators everything. [`walk`] visits a directory tree. A call runs on a thread of its own, which waits for its
//! client: a directory of a network file system may block for ever, and must not hold one of the bridge's threads.
//!
//! Files in the data directory belong to apps, which are hostile. Every file is opened with O_PATH first; devices,
//! FIFOs and sockets are never opened for reading, and links are followed only where a request names one.

mod access;
mod copy;
mod list;
mod read;
mod usage;
mod walk;

use std::time::Duration;

use rustix::io::Errno;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

pub(super) use self::access::{FileAccess, FileScope};
pub(super) use self::copy::copy;
pub(super) use self::list::ListSelection;
pub(super) use self::read::read;
pub(super) use self::usage::UsageSelection;
use crate::quota::QuotaPermit;
use crate::status;

/// Messages that wait for a client.
const QUEUE: usize = 16;
/// The time within which a client has to read a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a call ends early.
#[derive(Debug)]
pub(super) enum Interrupted {
    /// The client has gone away.
    ClientGone,
    /// The call failed.
    Failed(Status),
}

impl From<Status> for Interrupted {
    fn from(status: Status) -> Self {
        Self::Failed(status)
    }
}

/// Sends the messages of a call from its thread.
pub(super) struct FileSender<M> {
    runtime: Handle,
    sender: mpsc::Sender<Result<M, Status>>,
    draining: watch::Receiver<bool>,
}

impl<M: Send + 'static> FileSender<M> {
    /// Fails if the client has gone away or gantryd is ending.
    fn check(&self) -> Result<(), Interrupted> {
        if self.sender.is_closed() {
            return Err(Interrupted::ClientGone);
        }
        if *self.draining.borrow() {
            return Err(Interrupted::Failed(status::draining()));
        }
        Ok(())
    }

    /// Sends a message, and waits until the client has read earlier ones.
    fn send(&self, message: M) -> Result<(), Interrupted> {
        let message = match self.sender.try_send(Ok(message)) {
            Ok(()) => return Ok(()),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(Interrupted::ClientGone),
            Err(mpsc::error::TrySendError::Full(message)) => message,
        };
        let mut draining = self.draining.clone();
        self.runtime.block_on(async {
            tokio::select! {
                sent = self.sender.send_timeout(message, SEND_TIMEOUT) => match sent {
                    Ok(()) => Ok(()),
                    Err(mpsc::error::SendTimeoutError::Closed(_)) => Err(Interrupted::ClientGone),
                    Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                        let seconds = SEND_TIMEOUT.as_secs();
                        let text = format!("the client has read nothing for {seconds} s");
                        Err(Interrupted::Failed(Status::deadline_exceeded(text)))
                    }
                },
                // An error means that the server no longer exists.
                _ = draining.wait_for(|draining| *draining) => Err(Interrupted::Failed(status::draining())),
            }
        })
    }
}

/// Runs a call on a thread of its own.
///
/// # Errors
/// `RESOURCE_EXHAUSTED` if the process can start no more threads.
pub(super) fn spawn<M: Send + 'static>(
    draining: watch::Receiver<bool>,
    permits: [QuotaPermit; 2],
    job: impl FileJob<M>,
) -> Result<ReceiverStream<Result<M, Status>>, Status> {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let sender = FileSender { runtime: Handle::current(), sender, draining };
    let run = move || {
        let _permits = permits;
        if let Err(Interrupted::Failed(status)) = job.run(&sender) {
            // The queue is full if the client does not read: it has no use for the status then.
            let _client_may_not_read = sender.sender.try_send(Err(status));
        }
    };
    let failed = |error| Status::resource_exhausted(format!("cannot start a thread for this call: {error}"));
    std::thread::Builder::new().name("files".to_owned()).spawn(run).map_err(failed)?;
    Ok(ReceiverStream::new(receiver))
}

/// The work of a call.
pub(super) trait FileJob<M>: Send + 'static {
    /// Sends the messages of the call.
    fn run(self, sender: &FileSender<M>) -> Result<(), Interrupted>;
}

impl<M, F: FnOnce(&FileSender<M>) -> Result<(), Interrupted> + Send + 'static> FileJob<M> for F {
    fn run(self, sender: &FileSender<M>) -> Result<(), Interrupted> {
        self(sender)
    }
}

/// An error in the words of Go: `no such file or directory`.
fn error_text(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// The status of a path that cannot be opened or read: `stat /x: no such file or directory`.
fn status_of(operation: &str, path: &str, errno: Errno) -> Status {
    let code = match errno {
        Errno::NOENT => Code::NotFound,
        Errno::ACCESS | Errno::PERM => Code::PermissionDenied,
        Errno::NOTDIR | Errno::NAMETOOLONG | Errno::INVAL => Code::InvalidArgument,
        Errno::LOOP | Errno::XDEV | Errno::ISDIR => Code::FailedPrecondition,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM => Code::ResourceExhausted,
        _ => Code::Unknown,
    };
    Status::new(code, format!("{operation} {}: {}", gantry_model::id::shown(path), error_text(errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_texts_of_go() {
        let status = status_of("lstat", "/x", Errno::NOENT);
        assert_eq!((status.code(), status.message()), (Code::NotFound, "lstat /x: no such file or directory"));
        assert_eq!(error_text(Errno::ACCESS), "permission denied");
    }
}
