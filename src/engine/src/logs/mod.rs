//! `logs`: what the apps of a pod wrote, merged in the order of time, and onwards while it runs.
//!
//! Reading is [`crate::logs::reader`]'s. Here is the waiting, for callers that do nothing else meanwhile: it sleeps until
//! the kernel says that a log directory changed or that the supervisor is gone.

pub(crate) mod files;
pub(crate) mod line;
pub(crate) mod merge;
pub(crate) mod reader;
pub(crate) mod repair;
pub(crate) mod source;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use gantry_model::{AppName, AppState, ErrorKind, Kind, PodId, Timestamp};
use rustix::fs::inotify;
use thiserror::Error;

use crate::host::process::{self, Deadline};
use crate::logs::reader::{LineRef, LogReader, Pulled};
use crate::{Engine, PodError};

/// How often files are looked at where the kernel cannot tell (no inotify left, or a directory that is not there yet).
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The pauses before the kernel is asked to tell, each twice as long as the one before: 63 ms in all.
const MIN_BACKOFF: Duration = Duration::from_millis(1);
const MAX_BACKOFF: Duration = Duration::from_millis(32);

/// How much is read between two looks at whether the receiver still takes it.
const MAX_READ: usize = 1 << 20;

/// Which lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Of these apps; empty: of all.
    pub apps: Vec<AppName>,
    /// Only what came from stderr (true) or from stdout (false). A line that is not in the format counts as stdout.
    pub stderr: Option<bool>,
    /// Not older than this. Lines that are not in the format have the time of the one before.
    pub since: Option<Timestamp>,
    /// Older than this.
    pub until: Option<Timestamp>,
    /// Only so many lines of each app, the last ones of those within the bounds. A line written in pieces is one; it counts
    /// where its last piece is. Where the pieces are mixed with lines of the app's other stream, the first may be missing.
    pub tail: Option<usize>,
    /// Only so many lines of all apps together, the last ones.
    pub tail_total: Option<usize>,
    /// Go on while the pod runs.
    pub follow: bool,
}

impl LogQuery {
    /// No app gives more whole lines than this at first.
    pub(crate) fn max_lines(&self) -> Option<usize> {
        self.tail.into_iter().chain(self.tail_total).min()
    }
}

/// Takes what [`Engine::logs`] gives.
pub trait LogSink {
    /// Takes a line, or a piece of one.
    ///
    /// # Errors
    /// It could not be taken; no more will be given.
    fn line(&mut self, line: LineRef<'_>) -> io::Result<()>;

    /// All that is there was given: what was held back to be written at once has to be written now.
    ///
    /// # Errors
    /// It could not be written; no more will be given.
    fn flush(&mut self) -> io::Result<()>;
}

/// Logs could not be read or given out.
#[derive(Debug, Error)]
pub enum LogsError {
    /// The pod has no such app.
    #[error("pod {id} has no app '{app}'")]
    NoSuchApp {
        /// Which pod.
        id: PodId,
        /// Which app.
        app: AppName,
    },
    /// A file could not be read.
    #[error("cannot read the log of app '{app}' of pod {id}")]
    Read {
        /// Which pod.
        id: PodId,
        /// Which app.
        app: AppName,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The receiver could not take a line.
    #[error("cannot write the log of pod {id}")]
    Write {
        /// Which pod.
        id: PodId,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The pod could not be looked at.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for LogsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSuchApp { .. } => ErrorKind::NotFound,
            Self::Read { source, .. } | Self::Write { source, .. } => ErrorKind::of_io(source),
            Self::Pod(error) => error.kind(),
        }
    }
}

impl Engine {
    /// Gives the sink every line asked for, until it fails. With `follow`, a pod that was not started yet is waited for.
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
            // What could not be read is told before what could not be written: that comes after it.
            let pulled = pulled?;
            taken.map_err(|source| LogsError::Write { id, source })?;
            match pulled {
                Pulled::More => {}
                Pulled::End => return Ok(()),
                Pulled::Dry => waiting
                    .more(&reader, || self.writers(id))
                    .map_err(PodError::io("wait for changes in", self.pod_dir(id)))?,
                Pulled::Waiting => match self.wait_ready(id, reader.wait_at_most()) {
                    // Removed without having run: the reader will see.
                    Ok(_) | Err(PodError::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                },
            }
        }
    }

    /// The main processes of the pod's apps that run. One that cannot be watched is missing.
    fn writers(&self, id: PodId) -> Vec<OwnedFd> {
        let apps = self.store.pod(id).ok().flatten().map(|row| row.apps).unwrap_or_default();
        // Its number may be another's by now. Then that is waited for, and the end of the supervisor ends it.
        let pid = |state: &AppState| match state {
            AppState::Started { pid, .. } => Some(*pid),
            _ => None,
        };
        apps.iter().filter_map(|app| process::open_pid(pid(&app.state)?)).collect()
    }
}

/// Waiting for more.
///
/// Letting go of a watch costs the kernel's grace period of some 10 ms, at the very end of a `run`: an app that is soon over
/// is looked at a few times instead. After the last app's end there is no watch either: it is let go of while the supervisor
/// takes the pod's networks away.
struct Waiting {
    watch: Option<Watch>,
    backoff: Duration,
}

impl Waiting {
    /// Waits until there may be more. `writers`: the processes that may write.
    fn more(&mut self, reader: &LogReader, writers: impl FnOnce() -> Vec<OwnedFd>) -> io::Result<()> {
        let fds = reader.supervisor().into_iter().chain(self.watch.iter().flat_map(Watch::fds));
        let fds: Vec<BorrowedFd<'_>> = fds.collect();
        let deadline = Deadline::maybe(reader.wait_at_most());
        let deadline = match &self.watch {
            Some(watch) if watch.complete => deadline,
            Some(_) => deadline.at_most(POLL_INTERVAL),
            None => deadline.at_most(self.backoff),
        };
        process::readable(&fds, deadline)?;
        match &mut self.watch {
            Some(watch) => {
                watch.forget();
                self.watch.take_if(|watch| !watch.has_writers());
            }
            None if self.backoff >= MAX_BACKOFF => self.watch = Watch::new(writers(), &reader.dirs()),
            None => self.backoff *= 2,
        }
        Ok(())
    }
}

/// The kernel's word on changes in log directories.
struct Watch {
    fd: Option<OwnedFd>,
    /// Whether it covers every directory.
    complete: bool,
    /// Who may write, as long as any of them runs.
    writers: Vec<OwnedFd>,
}

impl Watch {
    /// `None` where nobody writes any more.
    fn new(writers: Vec<OwnedFd>, dirs: &[PathBuf]) -> Option<Self> {
        let mut watch = Self { fd: None, complete: false, writers };
        if !watch.has_writers() {
            return None;
        }
        let Ok(fd) = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK) else {
            return Some(watch);
        };
        let what = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        let watched = |dir: &PathBuf| inotify::add_watch(&fd, dir, what).is_ok();
        watch.complete = dirs.iter().filter(|dir| !watched(dir)).count() == 0;
        watch.fd = Some(fd);
        Some(watch)
    }

    /// What is to be waited for: the kernel's word, and the end of a writer.
    fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.fd.as_ref().into_iter().chain(self.writers.first()).map(AsFd::as_fd)
    }

    /// Whether anybody is left who writes.
    fn has_writers(&mut self) -> bool {
        let now = Deadline::after(Duration::ZERO);
        self.writers.retain(|writer| matches!(process::readable(&[writer.as_fd()], now), Ok(None)));
        !self.writers.is_empty()
    }

    /// Takes the events away: what changed is found by looking.
    fn forget(&self) {
        let Some(fd) = &self.fd else { return };
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut events = inotify::Reader::new(fd, &mut buffer);
        // Ends with "would block"; an error here would show as one when waiting.
        while events.next().is_ok() {}
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        // Without a thread the caller waits.
        let _ = std::thread::Builder::new().name("unwatch".to_owned()).spawn(move || drop(fd));
    }
}

#[cfg(test)]
mod tests;
