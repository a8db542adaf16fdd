//! `logs`: the output of a pod's apps, merged by time, and following while the pod runs.
//!
//! [`crate::logs::reader`] reads. This module blocks: until inotify reports a change in a log directory, or the
//! supervisor ends.

pub(crate) mod chosen;
pub(crate) mod files;
pub(crate) mod line;
pub(crate) mod merge;
pub(crate) mod names;
pub(crate) mod reader;
pub(crate) mod repair;
pub(crate) mod source;
pub(crate) mod start;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use gantry_host::inotify::{DirChange, Inotify};
use gantry_model::{AppName, AppState, ErrorKind, Kind, PodId, Timestamp};
use thiserror::Error;

use crate::host::process::{self, Deadline};
use crate::logs::reader::{LineRef, LogReader, Pulled};
use crate::{Engine, PodError};

/// Poll interval without inotify (no instances left, or a directory that does not exist yet).
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The back-off before an inotify watch is added, doubled each time: 63 ms in all.
const MIN_BACKOFF: Duration = Duration::from_millis(1);
const MAX_BACKOFF: Duration = Duration::from_millis(32);

/// How many bytes to read before checking for errors of the sink.
const MAX_READ: usize = 1 << 20;

/// The lines to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// The apps; empty: all.
    pub apps: Vec<AppName>,
    /// Only stderr (true) or only stdout (false). A line that is not in the log format counts as stdout.
    pub stderr: Option<bool>,
    /// From this time on. Lines that are not in the log format have the time of the line before.
    pub since: Option<Timestamp>,
    /// Before this time.
    pub until: Option<Timestamp>,
    /// Only the lines of this start of each app, counted from 0.
    pub attempt: Option<u32>,
    /// At most this many lines of each app, the last ones within the bounds. A line in several pieces counts once, at
    /// its last piece. Where pieces are interleaved with lines of the app's other stream, the first may be missing.
    pub tail: Option<usize>,
    /// At most this many lines of all apps together, the last ones.
    pub tail_total: Option<usize>,
    /// Continue while the pod runs; with apps, until all of them are removed; with `attempt` and one app, until its
    /// process has ended.
    pub follow: bool,
}

impl LogQuery {
    /// The most lines that any app can contribute at first.
    pub(crate) fn max_lines(&self) -> Option<usize> {
        self.tail.into_iter().chain(self.tail_total).min()
    }
}

/// Receives the lines of [`Engine::logs`].
pub trait LogSink {
    /// Receives a line, or a piece of one.
    ///
    /// # Errors
    /// The sink failed; it receives nothing further.
    fn line(&mut self, line: LineRef<'_>) -> io::Result<()>;

    /// The sink has received all lines so far: a sink that buffers must write now.
    ///
    /// # Errors
    /// The sink failed; it receives nothing further.
    fn flush(&mut self) -> io::Result<()>;
}

/// Logs could not be read or written.
#[derive(Debug, Error)]
pub enum LogsError {
    /// The pod has no app of this name.
    #[error("pod {id} has no app '{app}'")]
    NoSuchApp {
        /// The pod.
        id: PodId,
        /// The app.
        app: AppName,
    },
    /// No app of a pod has this main process.
    #[error("process {pid} is not the main process of an app")]
    NoSuchProcess {
        /// The process, in the host's PID namespace.
        pid: u32,
    },
    /// A file could not be read.
    #[error("cannot read the log of app '{app}' of pod {id}")]
    Read {
        /// The pod.
        id: PodId,
        /// The app.
        app: AppName,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The sink failed.
    #[error("cannot write the log of pod {id}")]
    Write {
        /// The pod.
        id: PodId,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The pod could not be read.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for LogsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchApp { .. } | Self::NoSuchProcess { .. } => ErrorKind::NotFound,
            Self::Read { source, .. } | Self::Write { source, .. } => ErrorKind::of_io(source),
            Self::Pod(error) => error.kind(),
        }
    }
}

impl Engine {
    /// Passes every matching line to the sink, until the sink fails. With `follow`, waits for a pod that was not
    /// started yet.
    ///
    /// # Errors
    /// [`LogsError`].
    pub fn logs(&self, id: PodId, query: &LogQuery, sink: &mut dyn LogSink) -> Result<(), LogsError> {
        let mut reader = self.open_logs(id, query)?;
        let mut waiting = Waiting { watch: None, backoff: MIN_BACKOFF };
        loop {
            let mut taken = Ok(());
            let pulled = self.pull_logs(&mut reader, MAX_READ, &mut |line| {
                if taken.is_ok() {
                    taken = sink.line(line);
                }
            });
            if taken.is_ok() && !matches!(pulled, Ok(Pulled::More)) {
                taken = sink.flush();
            }
            // A read error comes before a write error: the write would have come after the read.
            let pulled = pulled?;
            taken.map_err(|source| LogsError::Write { id, source })?;
            match pulled {
                Pulled::More => {}
                Pulled::End => return Ok(()),
                Pulled::Drained => waiting
                    .more(&reader, || self.writers(id))
                    .map_err(PodError::io("wait for changes in", self.pod_dir(id)))?,
                Pulled::Waiting => match self.pod_wait(id).running(reader.wait_at_most()) {
                    // Removed before it ran: the reader will notice.
                    Ok(_) | Err(PodError::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// The main processes of the pod's running apps, except unwatchable ones.
    fn writers(&self, id: PodId) -> Vec<OwnedFd> {
        let apps = self.store.pod(id).ok().flatten().map(|row| row.apps).unwrap_or_default();
        // The pid may be reused. Then the wait is for another process, until the supervisor ends.
        let pid = |state: &AppState| match state {
            AppState::Started { pid, .. } => Some(*pid),
            AppState::Waiting | AppState::Creating | AppState::Created | AppState::Exited { .. } => None,
        };
        apps.iter().filter_map(|app| process::open_pid(pid(&app.state)?).ok()).collect()
    }
}

/// Waits for more.
///
/// Closing an inotify watch waits for an SRCU grace period of some 10 ms, at the very end of a `run`. So the log of an
/// app that ends soon is polled a few times instead, and the watch is closed when the last app ends, while the
/// supervisor detaches the pod's networks.
struct Waiting {
    watch: Option<Watch>,
    backoff: Duration,
}

impl Waiting {
    /// Waits until more lines may exist. `writers` are the processes that may write.
    fn more(&mut self, reader: &LogReader, writers: impl FnOnce() -> Vec<OwnedFd>) -> io::Result<()> {
        // The last read found directories that are not watched: another watch follows.
        self.watch.take_if(|watch| watch.changes != reader.dir_changes());
        let fds = reader.supervisor().into_iter().chain(self.watch.iter().flat_map(Watch::fds));
        let fds: Vec<BorrowedFd<'_>> = fds.collect();
        let deadline = Deadline::from(reader.wait_at_most());
        let deadline = match &self.watch {
            Some(watch) if watch.complete => deadline,
            Some(_) => deadline.at_most(POLL_INTERVAL),
            None => deadline.at_most(self.backoff),
        };
        process::readable(&fds, deadline)?;
        match &mut self.watch {
            Some(watch) => {
                let has_ended = watch.forget();
                self.watch.take_if(|watch| has_ended || !watch.has_writers());
            }
            None if self.backoff >= MAX_BACKOFF => {
                self.watch = Watch::new(writers(), &reader.dirs(), reader.dir_changes())
            }
            None => self.backoff *= 2,
        }
        Ok(())
    }
}

/// An inotify watch on log directories.
struct Watch {
    inotify: Option<Inotify>,
    /// [`LogReader::dir_changes`] when it was made.
    changes: u64,
    /// Whether it covers every directory.
    complete: bool,
    /// The running processes that may write.
    writers: Vec<OwnedFd>,
}

impl Watch {
    /// `None` when no process may write any longer.
    fn new(writers: Vec<OwnedFd>, dirs: &[PathBuf], changes: u64) -> Option<Self> {
        let mut watch = Self { inotify: None, changes, complete: false, writers };
        if !watch.has_writers() {
            return None;
        }
        let Ok(inotify) = Inotify::new() else { return Some(watch) };
        watch.complete = dirs.iter().filter(|dir| inotify.watch(dir).is_err()).count() == 0;
        watch.inotify = Some(inotify);
        Some(watch)
    }

    /// The descriptors to wait for: inotify, and a writer's pidfd.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.inotify.as_ref().map(AsFd::as_fd).into_iter().chain(self.writers.first().map(AsFd::as_fd))
    }

    /// Whether a writer still runs.
    fn has_writers(&mut self) -> bool {
        let now = Deadline::after(Duration::ZERO);
        self.writers.retain(|writer| matches!(process::readable(&[writer.as_fd()], now), Ok(None)));
        !self.writers.is_empty()
    }

    /// Drains the events: the reader finds the changes itself. Returns whether a directory was deleted: it is no longer
    /// watched, and another one may have its path, and even its inode.
    fn forget(&self) -> bool {
        let mut has_ended = false;
        let read =
            |inotify: &Inotify| inotify.read_changes(|change| has_ended |= matches!(change, DirChange::Ended(_)));
        // A failure leaves the descriptor readable, and the next wait returns at once.
        let _read_again_after_a_failure = self.inotify.as_ref().map(read);
        has_ended
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(inotify) = self.inotify.take() else { return };
        // close(2) of inotify waits for an SRCU grace period: close it in a thread, if one can be started, so that the
        // caller does not wait.
        let _closed_here_without_a_thread =
            std::thread::Builder::new().name("unwatch".to_owned()).spawn(move || drop(inotify));
    }
}

#[cfg(test)]
mod tests;
