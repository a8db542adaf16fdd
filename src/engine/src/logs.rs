//! `logs`: what the apps of a pod wrote, merged in the order of time, and onwards while it runs.
//!
//! Following sleeps until the kernel says that a log directory changed or that the supervisor is gone. It ends when the
//! pod has ended and all was given out. `tail` counts for each app by itself, as it does for containers elsewhere.

use std::io;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use gantry_contract::files;
use gantry_model::{AppName, ErrorKind, Kind, Phase, PodId, Timestamp};
use gantry_store::PodRow;
use rustix::fs::inotify;
use thiserror::Error;

use crate::log_line::LogLine;
use crate::log_source::AppLog;
use crate::process::{self, Deadline};
use crate::{Engine, PodError};

/// How often files are looked at where the kernel cannot tell (no inotify left, or a directory that is not there yet).
const LOOK: Duration = Duration::from_millis(50);

/// The pauses before the kernel is asked to tell, each twice as long as the one before: 63 ms in all.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LAST_PAUSE: Duration = Duration::from_millis(32);

/// Which lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Of these apps; empty: of all.
    pub apps: Vec<AppName>,
    /// Not older than this.
    pub since: Option<Timestamp>,
    /// Not younger than this.
    pub until: Option<Timestamp>,
    /// Only so many lines of each app, the last ones.
    pub tail: Option<usize>,
    /// Go on while the pod runs.
    pub follow: bool,
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

type Sink<'a> = dyn FnMut(LogLine) -> io::Result<ControlFlow<()>> + 'a;

impl Engine {
    /// Gives the sink every line asked for, until it breaks off. With `follow`, a pod that was not started yet is
    /// waited for.
    ///
    /// # Errors
    /// [`LogsError`].
    pub fn logs(&self, id: PodId, query: &LogQuery, sink: &mut Sink<'_>) -> Result<(), LogsError> {
        let mut row = self.current(id)?;
        let names = chosen(&row, &query.apps)?;
        let dir = self.pod_dir(id).join(files::LOGS);
        let mut merge = Merge { id, logs: Vec::new(), until: query.until };
        for name in names {
            let mut log = AppLog::new(name.clone(), dir.join(name.as_str()));
            let started = query.since.map_or(Ok(()), |since| log.since(since));
            started
                .and_then(|()| query.tail.map_or(Ok(()), |lines| log.tail(lines)))
                .map_err(|source| LogsError::Read { id, app: name.clone(), source })?;
            merge.logs.push((name, log));
        }
        if query.follow && !row.phase.is_final() {
            if let Some(view) = self.wait_ready(id, None)? {
                row = view.row;
            }
            self.follow(&row, &dir, &mut merge, sink)
        } else {
            merge.drain(sink).map(drop)
        }
    }

    fn follow(&self, row: &PodRow, dir: &Path, merge: &mut Merge, sink: &mut Sink<'_>) -> Result<(), LogsError> {
        let supervisor = match &row.phase {
            Phase::Running { supervisor, .. } => process::open(supervisor, self.store.boot()),
            _ => None,
        };
        // Letting go of a watch costs the kernel's grace period of some 10 ms, at the very end of a `run`: an app that
        // is soon over is looked at a few times instead.
        let mut watch: Option<Watch> = None;
        let mut pause = FIRST_PAUSE;
        loop {
            // First whether it is over, then what it wrote: nothing is written after.
            let over = match &supervisor {
                Some(fd) => is_readable(fd.as_fd()).map_err(PodError::io("watch the supervisor of", dir))?,
                None => true,
            };
            if merge.drain(sink)?.is_break() || over || merge.is_past() {
                return Ok(());
            }
            let fds = supervisor.iter().chain(watch.as_ref().and_then(|watch| watch.fd.as_ref()));
            let fds: Vec<BorrowedFd<'_>> = fds.map(AsFd::as_fd).collect();
            let deadline = match &watch {
                Some(watch) => merge.deadline(watch.complete),
                None => merge.deadline(true).at_most(pause),
            };
            process::readable(&fds, deadline).map_err(PodError::io("wait for changes in", dir))?;
            match &watch {
                Some(watch) => watch.forget(),
                None if pause >= LAST_PAUSE => watch = Some(Watch::new(dir, merge.logs.iter().map(|(name, _)| name))),
                None => pause *= 2,
            }
        }
    }
}

fn chosen(row: &PodRow, asked: &[AppName]) -> Result<Vec<AppName>, LogsError> {
    let has = |name: &AppName| row.apps.iter().any(|app| app.name == *name);
    match asked.iter().find(|name| !has(name)) {
        Some(app) => Err(LogsError::NoSuchApp { id: row.id, app: app.clone() }),
        None if asked.is_empty() => Ok(row.apps.iter().map(|app| app.name.clone()).collect()),
        None => Ok(asked.to_vec()),
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(process::readable(&[fd], Deadline::after(Duration::ZERO))?.is_some())
}

/// Several logs as one, in the order of time.
struct Merge {
    id: PodId,
    logs: Vec<(AppName, AppLog)>,
    until: Option<Timestamp>,
}

impl Merge {
    /// Gives out all that is there. Breaks when the sink does.
    fn drain(&mut self, sink: &mut Sink<'_>) -> Result<ControlFlow<()>, LogsError> {
        let id = self.id;
        while let Some(line) = self.next()? {
            if sink(line).map_err(|source| LogsError::Write { id, source })?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn next(&mut self) -> Result<Option<LogLine>, LogsError> {
        let mut first: Option<(usize, Timestamp)> = None;
        for (i, (name, log)) in self.logs.iter_mut().enumerate() {
            let peeked = log.peek();
            let peeked = peeked.map_err(|source| LogsError::Read { id: self.id, app: name.clone(), source })?;
            let Some(at) = peeked.map(|line| line.at) else { continue };
            if self.until.is_some_and(|until| at > until) {
                continue;
            }
            if first.is_none_or(|(_, earliest)| at < earliest) {
                first = Some((i, at));
            }
        }
        Ok(first.and_then(|(i, _)| self.logs[i].1.take()))
    }

    /// Whether no line that is written from now on is wanted.
    fn is_past(&self) -> bool {
        self.until.is_some_and(|until| gantry_store::now() > until)
    }

    fn deadline(&self, watched: bool) -> Deadline {
        let end = Deadline::maybe(self.until.map(|until| until.since(gantry_store::now()) + Duration::from_millis(1)));
        if watched { end } else { end.at_most(LOOK) }
    }
}

/// The kernel's word on changes in log directories.
struct Watch {
    fd: Option<OwnedFd>,
    /// Whether it covers every directory.
    complete: bool,
}

impl Watch {
    fn new<'a>(dir: &Path, apps: impl Iterator<Item = &'a AppName>) -> Self {
        let Ok(fd) = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK) else {
            return Self { fd: None, complete: false };
        };
        let what = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        let mut complete = true;
        for app in apps {
            complete &= inotify::add_watch(&fd, dir.join(app.as_str()), what).is_ok();
        }
        Self { fd: Some(fd), complete }
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

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
