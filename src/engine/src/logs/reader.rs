//! Reads logs piece by piece, for callers that do something else in between. All logs are read through it.
//!
//! A reader owns its files and does not refer to the engine, so it can move between threads. It takes no lock and
//! changes nothing.
//!
//! # Order
//!
//! Lines of several apps are merged by their timestamps, both those present when the reader is opened and later ones:
//! the supervisor writes in the order of time, so the reader returns a line only after it has read every exhausted log
//! again.
//!
//! # Bounds
//!
//! The reader finds bounds by bisection, then checks every line, so it never returns a line outside of them. Where the
//! clock was set back, a log crosses a bound several times; lines within the bounds may then be missing before the
//! position found for `since`, and after that for `until`. Without bounds the clock has no effect.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirEntryExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_contract::files;
use gantry_model::{AppName, BootId, Phase, PodId, PodPrefix, Timestamp};
use gantry_store::PodRow;

use crate::host::process::{self, Deadline};
use crate::logs::files::{LogDir, MAX_ATTEMPTS, Span};
use crate::logs::merge::{Merge, block_for};
use crate::logs::source::AppLog;
use crate::logs::start::{self, AppStart, StartState};
use crate::{Engine, LogQuery, LogsError, Observer, PodError};

/// What failed when the end of a supervisor cannot be observed.
const WATCH_SUPERVISOR: &str = "watch the supervisor of pod";

/// A supervisor stamps a line when it reads it, and writes it next: at most this long after `until`.
const WRITE_DELAY: Duration = Duration::from_millis(50);

/// A reader of a pod's logs. `Send`.
///
/// It holds a few descriptors for every app.
#[derive(Debug)]
pub struct LogReader {
    id: PodId,
    boot: BootId,
    merge: Merge,
    until: Option<Timestamp>,
    stage: Stage,
    /// The apps whose logs the reader follows, if it does.
    followed: Option<FollowedApps>,
    /// See [`LogReader::dir_changes`].
    changes: u64,
    /// The start of an app whose end is the end of the log.
    start: Option<AppStart>,
}

/// Finds the apps that are added to a pod, or removed from it, while its logs are followed. `logs/APP` exists
/// from the app's creation to its removal, also if its log has a chosen path.
#[derive(Debug)]
struct FollowedApps {
    /// The pod's directory.
    pod: PathBuf,
    /// These apps only; empty: all, also those that are added.
    requested: Vec<AppName>,
    /// The apps that the reader has, and the inode of the directory of each: it is new if the app is removed and
    /// another one of its name added. `None`: it did not exist yet.
    known: BTreeMap<AppName, Option<u64>>,
}

/// The changes of the apps of a pod.
#[derive(Debug, Default)]
struct FoundApps {
    /// Their logs.
    new: Vec<AppLog>,
    removed: Vec<AppName>,
}

impl FollowedApps {
    /// A reader has the logs of these apps, for this query.
    fn after(pod: &Path, apps: &[AppName], query: &LogQuery) -> Self {
        let dir = |app: &AppName| pod.join(files::LOGS).join(app.as_str());
        let inode = |app: &AppName| rustix::fs::lstat(dir(app)).ok().map(|dir| dir.st_ino);
        let known = apps.iter().map(|app| (app.clone(), inode(app))).collect();
        Self { pod: pod.to_owned(), requested: query.apps.clone(), known }
    }

    fn dir(&self) -> PathBuf {
        self.pod.join(files::LOGS)
    }

    /// Whether all apps of the query were removed: there will be no more lines.
    fn is_over(&self) -> bool {
        !self.requested.is_empty() && self.known.is_empty()
    }

    /// The apps that have directories, with the inode of each.
    fn list(&self) -> io::Result<BTreeMap<AppName, u64>> {
        let mut listed = BTreeMap::new();
        for entry in std::fs::read_dir(self.dir())? {
            let entry = entry?;
            let Some(app) = entry.file_name().to_str().and_then(|name| name.parse::<AppName>().ok()) else { continue };
            if self.requested.is_empty() || self.requested.contains(&app) {
                listed.insert(app, entry.ino());
            }
        }
        Ok(listed)
    }

    /// The apps that were added or removed since the last call. `row` returns the pod's row.
    fn find(&mut self, row: impl Fn() -> Result<Option<PodRow>, PodError>) -> Result<FoundApps, PodError> {
        let listed = match self.list() {
            Ok(listed) => listed,
            // The supervisor makes the directory. Without it there are no apps, or the pod was removed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(FoundApps::default()),
            Err(error) => return Err(PodError::io("list the logs in", self.dir())(error)),
        };
        let is_removed =
            |(app, inode): &(&AppName, &Option<u64>)| inode.is_some() && listed.get(*app) != inode.as_ref();
        let removed: Vec<AppName> = self.known.iter().filter(is_removed).map(|(app, _)| app.clone()).collect();
        self.known.retain(|app, _| !removed.contains(app));
        let mut new = Vec::new();
        for (app, inode) in listed {
            if self.known.insert(app.clone(), Some(inode)).is_none() {
                new.push(app);
            }
        }
        let mut found = FoundApps { new: Vec::new(), removed };
        if new.is_empty() {
            return Ok(found);
        }
        // An app has its row before its directory.
        let Some(row) = row()? else { return Ok(found) };
        let block = block_for(self.known.len());
        let log = |app: AppName| {
            let dir = LogDir::of_app(&self.pod, &row, &app);
            AppLog::new(app, dir, None, block)
        };
        found.new = new.into_iter().map(log).collect();
        Ok(found)
    }
}

/// The lines that may follow.
#[derive(Debug)]
enum Stage {
    /// The pod was not started yet.
    Waiting,
    /// Its supervisor (this one) may write.
    Running(OwnedFd),
    /// No further line will match.
    Over,
}

/// The state after a pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pulled {
    /// More can be read at once.
    More,
    /// Nothing more for now. Wait until a directory of [`LogReader::dirs`] changes, the supervisor ends, or
    /// [`LogReader::wait_at_most`] has passed; or for an event, if it [`LogReader::ends_with_process`].
    Drained,
    /// The pod was not started yet. Wait for its start (an event), or [`LogReader::wait_at_most`].
    Waiting,
    /// All lines were returned, and no more will follow.
    End,
}

/// A line, or a piece of one, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct LineRef<'a> {
    /// The app.
    pub app: &'a AppName,
    /// When the supervisor read it; the time of the line before if the file has none.
    pub at: Timestamp,
    /// Whether it came from stderr.
    pub stderr: bool,
    /// Whether the line continues in the next one of the same app and stream.
    pub piece: bool,
    /// Whether it ended without a newline, or `piece`.
    pub partial: bool,
    /// The bytes as written, without the newline.
    pub text: &'a [u8],
}

impl LogReader {
    /// The directories that change when there are more lines. They may not exist before the pod is started.
    #[must_use]
    pub fn dirs(&self) -> Vec<PathBuf> {
        self.merge.logs.iter().map(|log| log.dir().path()).chain(self.followed.iter().map(FollowedApps::dir)).collect()
    }

    /// How often apps were added or removed so far. A directory that replaces another has the same path, so that
    /// [`Self::dirs`] alone does not tell.
    #[must_use]
    pub fn dir_changes(&self) -> u64 {
        self.changes
    }

    /// The maximum time to wait for more; `None`: unlimited.
    #[must_use]
    pub fn wait_at_most(&self) -> Option<Duration> {
        // A little longer, so that the time has passed at the next check.
        let left = |until: Timestamp| until.since(gantry_store::now()) + WRITE_DELAY + Duration::from_millis(1);
        self.until.map(left)
    }

    /// Whether the log ends when a process does, which is known from the pod's row.
    #[must_use]
    pub fn ends_with_process(&self) -> bool {
        self.start.is_some()
    }

    /// The supervisor of the pod, while the reader waits for it.
    pub(crate) fn supervisor(&self) -> Option<BorrowedFd<'_>> {
        match &self.stage {
            Stage::Running(fd) => Some(fd.as_fd()),
            Stage::Waiting | Stage::Over => None,
        }
    }

    /// A reader of the pod in this row, with its directory.
    fn open(row: &PodRow, dir: &Path, boot: &BootId, query: &LogQuery) -> Result<Self, LogsError> {
        let id = row.id;
        let apps = chosen(row, &query.apps)?;
        let query = &start::within_start(row, query);
        let mut reader = Self {
            id,
            boot: boot.clone(),
            merge: Merge { id, logs: Vec::new(), stderr: query.stderr, since: query.since, until: query.until },
            until: query.until.filter(|_| query.follow),
            stage: if query.follow { stage_of(row, boot)? } else { Stage::Over },
            changes: 0,
            followed: query.follow.then(|| FollowedApps::after(dir, &apps, query)),
            start: AppStart::of_query(query),
        };
        // Check for the end first, then read: nothing is written after the end.
        reader.advance(|| Ok(Some(row.clone())))?;
        let mut opening = Opening { query, id, is_snapshot: matches!(reader.stage, Stage::Over), logs: Vec::new() };
        for app in &apps {
            opening.add(app, LogDir::of_app(dir, row, app))?;
        }
        reader.merge.logs = opening.finish()?;
        Ok(reader)
    }

    /// Determines which lines may still follow. `row` returns the pod's row (`None`: it was deleted) and is called only
    /// where it matters.
    fn advance(&mut self, row: impl FnOnce() -> Result<Option<PodRow>, PodError>) -> Result<(), PodError> {
        match (&self.stage, &self.start) {
            (Stage::Waiting, _) => self.stage = row()?.map_or(Ok(Stage::Over), |row| stage_of(&row, &self.boot))?,
            (Stage::Running(_), Some(start)) if self.until.is_none() => match start.state(row()?.as_ref()) {
                StartState::Running => {}
                StartState::Ended { last_line } => self.until = Some(last_line),
                StartState::Removed => self.stage = Stage::Over,
            },
            _ => {}
        }
        let ended = match &self.stage {
            Stage::Running(fd) => {
                let now = Deadline::after(Duration::ZERO);
                process::readable(&[fd.as_fd()], now)
                    .map_err(PodError::io(WATCH_SUPERVISOR, self.id.to_string()))?
                    .is_some()
            }
            Stage::Waiting | Stage::Over => false,
        };
        let written = gantry_store::now().before(WRITE_DELAY);
        if ended || self.until.is_some_and(|until| until <= written) {
            self.stage = Stage::Over;
        }
        Ok(())
    }

    /// Takes over the logs of apps that were added, and ends with the last app of the query.
    fn find_apps(&mut self, row: impl Fn() -> Result<Option<PodRow>, PodError>) -> Result<(), PodError> {
        let (Some(followed), Stage::Running(_) | Stage::Over) = (&mut self.followed, &self.stage) else {
            return Ok(());
        };
        let FoundApps { mut new, removed } = followed.find(row)?;
        self.changes += u64::from(!new.is_empty() || !removed.is_empty());
        for log in &mut self.merge.logs {
            log.is_removed |= removed.contains(&log.app) && !log.dir().has_chosen_path();
        }
        // An app that replaces another one may append to the same file, which is read already.
        new.retain(|new| !self.merge.logs.iter().any(|log| log.dir().has_path_of(new.dir())));
        self.merge.logs.extend(new);
        if followed.is_over() {
            self.stage = Stage::Over;
        }
        Ok(())
    }

    fn pull(
        &mut self,
        row: impl Fn() -> Result<Option<PodRow>, PodError>,
        max_bytes: usize,
        sink: &mut dyn FnMut(LineRef<'_>),
    ) -> Result<Pulled, LogsError> {
        self.advance(&row)?;
        self.find_apps(&row)?;
        let mut given = 0;
        let more = self.merge.merge_until(|_, line, size| {
            if let Some(line) = line {
                sink(line);
            }
            given += size;
            given < max_bytes
        })?;
        if !more {
            self.merge.logs.retain(|log| !log.is_removed);
        }
        Ok(match self.stage {
            _ if more => Pulled::More,
            Stage::Waiting => Pulled::Waiting,
            Stage::Running(_) => Pulled::Drained,
            Stage::Over => Pulled::End,
        })
    }
}

/// The lines that the apps of a pod in this row may still write.
fn stage_of(row: &PodRow, boot: &BootId) -> Result<Stage, PodError> {
    Ok(match &row.phase {
        Phase::Running { supervisor, .. } => process::open(supervisor, boot)
            .map_err(PodError::io(WATCH_SUPERVISOR, row.id.to_string()))?
            .map_or(Stage::Over, Stage::Running),
        phase if phase.is_final() => Stage::Over,
        // Not started yet.
        _ => Stage::Waiting,
    })
}

fn chosen(row: &PodRow, requested: &[AppName]) -> Result<Vec<AppName>, LogsError> {
    let all: Vec<&AppName> = row.apps.iter().map(|app| &app.name).collect();
    match requested.iter().find(|name| !all.contains(name)) {
        Some(app) => Err(LogsError::NoSuchApp { id: row.id, app: app.clone() }),
        // Each once, however often the query names it.
        None => Ok(all.into_iter().filter(|name| requested.is_empty() || requested.contains(name)).cloned().collect()),
    }
}

/// The logs of a reader that is being opened.
struct Opening<'a> {
    query: &'a LogQuery,
    id: PodId,
    /// Whether to read only what the log contains now.
    is_snapshot: bool,
    logs: Vec<Source>,
}

/// The log of one app, and the requested part of it.
struct Source {
    app: AppName,
    dir: LogDir,
    /// `None`: there are no files.
    span: Option<Span>,
    /// The number of whole lines, if they were counted.
    lines: usize,
}

impl Source {
    fn find(app: &AppName, dir: LogDir, query: &LogQuery, is_snapshot: bool) -> io::Result<Self> {
        let mut source = Self { app: app.clone(), dir: dir.of_attempt(query.attempt), span: None, lines: 0 };
        // Rotation may delete files before their lines are counted.
        for _ in 0..MAX_ATTEMPTS {
            if source.search(query, is_snapshot)? {
                break;
            }
        }
        Ok(source)
    }

    /// Finds the requested part. Returns false if files were deleted meanwhile.
    fn search(&mut self, query: &LogQuery, is_snapshot: bool) -> io::Result<bool> {
        let most = query.max_lines();
        // While lines may still follow, `until` is no position in the file yet, but one to count from.
        self.span = self.dir.span(query.since, query.until.filter(|_| is_snapshot || most.is_some()))?;
        self.lines = 0;
        most.map_or(Ok(true), |most| self.tail(most, query.stderr))
    }

    /// Keeps only the last `most` lines. Returns false if files were deleted meanwhile.
    fn tail(&mut self, most: usize, stderr: Option<bool>) -> io::Result<bool> {
        let Some(span) = &mut self.span else { return Ok(true) };
        let last = self.dir.tail(span, most, stderr)?;
        (self.lines, span.start) = (last.count, last.start);
        Ok(last.complete)
    }

    /// The log itself, from the span's start on or (if it is `over`) only within the span.
    fn log(&self, is_snapshot: bool, block: usize) -> io::Result<AppLog> {
        let before = self.span.as_ref().map(|span| self.dir.time_before(span)).transpose()?.flatten();
        let (start, end) = self.span.as_ref().map(|span| (span.start.clone(), span.end.clone())).unzip();
        let log = AppLog::new(self.app.clone(), self.dir.reopen(), start, block).after(before);
        Ok(if is_snapshot { log.ending(end) } else { log })
    }
}

impl Opening<'_> {
    fn add(&mut self, app: &AppName, dir: LogDir) -> Result<(), LogsError> {
        let source = Source::find(app, dir, self.query, self.is_snapshot);
        self.logs.push(source.map_err(|source| LogsError::Read { id: self.id, app: app.clone(), source })?);
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<AppLog>, LogsError> {
        let id = self.id;
        let lines: usize = self.logs.iter().map(|source| source.lines).sum();
        let surplus = self.query.tail_total.map_or(0, |most| lines.saturating_sub(most));
        if surplus > 0 {
            let older = self.older(surplus)?;
            for (log, older) in self.logs.iter_mut().zip(older) {
                let found = log.tail(log.lines.saturating_sub(older), self.query.stderr);
                // No retry: the lines of all apps together were counted in these files.
                let _complete = found.map_err(|source| LogsError::Read { id, app: log.app.clone(), source })?;
            }
        }
        self.open(self.is_snapshot)
    }

    fn open(&self, is_snapshot: bool) -> Result<Vec<AppLog>, LogsError> {
        let block = block_for(self.logs.len());
        let open = |log: &Source| {
            log.log(is_snapshot, block).map_err(|source| LogsError::Read { id: self.id, app: log.app.clone(), source })
        };
        self.logs.iter().map(open).collect()
    }

    /// How many lines of each app are among the `surplus` oldest of all. Reads them for that and does not keep them.
    fn older(&self, surplus: usize) -> Result<Vec<usize>, LogsError> {
        // Counted within the spans, which have the bounds already.
        let logs = self.open(true)?;
        let mut merge = Merge { id: self.id, logs, stderr: self.query.stderr, since: None, until: None };
        let mut older = vec![0; self.logs.len()];
        let mut left = surplus;
        merge.merge_until(|app, line, _| {
            if line.is_some_and(|line| !line.piece) {
                older[app] += 1;
                left -= 1;
            }
            left > 0
        })?;
        // Pieces without a last piece are the newest of all.
        for (older, log) in older.iter_mut().zip(&self.logs) {
            if left > 0 && log.lines > *older {
                *older += 1;
                left -= 1;
            }
        }
        Ok(older)
    }
}

impl Engine {
    /// A reader of a pod's logs, at the position that the query names.
    ///
    /// # Errors
    /// [`LogsError`], also when the pod or the app does not exist.
    pub fn open_logs(&self, id: PodId, query: &LogQuery) -> Result<LogReader, LogsError> {
        LogReader::open(&self.reconcile_pod(id)?, &self.pod_dir(id), self.store.boot(), query)
    }

    /// Passes lines to the sink until it has received about `most` bytes of the log, or there are no more.
    ///
    /// # Errors
    /// [`LogsError`].
    pub fn pull_logs(
        &self,
        reader: &mut LogReader,
        max_bytes: usize,
        sink: &mut dyn FnMut(LineRef<'_>),
    ) -> Result<Pulled, LogsError> {
        let id = reader.id;
        let row = || match self.reconcile_pod(id) {
            Err(PodError::NotFound(_)) => Ok(None),
            row => row.map(Some),
        };
        reader.pull(row, max_bytes, sink)
    }
}

impl Observer {
    /// A reader of a pod's logs, at the position that the query names.
    ///
    /// # Errors
    /// [`LogsError`], also when the pod or the app does not exist.
    pub fn open_logs(&self, id: PodId, query: &LogQuery) -> Result<LogReader, LogsError> {
        let engine = &self.engine;
        let row = engine.store.pod(id).map_err(PodError::store)?;
        let row = row.ok_or_else(|| PodError::NotFound(PodPrefix::from(id)))?;
        LogReader::open(&row, &engine.pod_dir(id), engine.store.boot(), query)
    }

    /// Passes lines to the sink until it has received about `most` bytes of the log, or there are no more.
    ///
    /// `most` counts the size of lines in the file: about 40 bytes more than their text. The sink receives at least one
    /// line if there is one; a line has at most a mebibyte.
    ///
    /// # Errors
    /// [`LogsError`].
    pub fn pull_logs(
        &self,
        reader: &mut LogReader,
        max_bytes: usize,
        sink: &mut dyn FnMut(LineRef<'_>),
    ) -> Result<Pulled, LogsError> {
        let id = reader.id;
        reader.pull(|| self.engine.store.pod(id).map_err(PodError::store), max_bytes, sink)
    }

    /// A descriptor that becomes readable when the pod's supervisor ends. `None` when no supervisor runs or the reader
    /// waits for none (ask again after [`Pulled::Waiting`]), or when the process is out of descriptors: then pull again
    /// after a while.
    #[must_use]
    pub fn supervisor_of(&self, reader: &LogReader) -> Option<OwnedFd> {
        reader.supervisor()?.try_clone_to_owned().ok()
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
