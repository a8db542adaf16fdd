//! Events: pages of the store's history, and waiting for more.
//!
//! A reader has only a cursor: it reads events with higher numbers, and waits when there are none. So a slow reader
//! costs nothing and loses nothing, and events deleted before it read them show as a numbered gap.
//!
//! ```text
//! commits = watch             before the first read, or a commit in between would be missed
//! cursor = events_start(query)
//! loop: page = events_after(cursor); cursor = page.cursor; if the page is empty, commits.wait
//! ```

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use gantry_host::inotify::{DirChange, Inotify};
use gantry_model::query::EventQuery;
use gantry_model::{Event, Timestamp};
use gantry_store::Layout;

use crate::host::process::{self, Deadline};
use crate::{Engine, Observer, PodError};

/// After a wake-up the database is polled after these milliseconds each. Soon at first, since most commits take no
/// longer; for a third of a second in all, since a synced commit takes as long as the disk.
const POLL_BACKOFF_MS: [u64; 14] = [1, 2, 4, 8, 16, 32, 32, 32, 32, 32, 32, 32, 32, 32];
/// Poll interval between wake-ups.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Poll interval without inotify.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An event that is noticed at once is committed within this time after its timestamp. To get all events until a time,
/// read this much later.
pub const COMMIT_TIMEOUT: Duration = Duration::from_millis(30);

/// Some events, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventPage {
    /// All events between the cursors, whether they match the query or not.
    pub events: Vec<Event>,
    /// The cursor for the next page: the number of the last event, or the given cursor.
    pub cursor: u64,
    /// The highest number of an event after the given cursor that was deleted. `None` if none was deleted; a jump of
    /// the sequence at a boot loses nothing.
    pub trimmed: Option<u64>,
}

/// Waits for commits to the database by any process.
///
/// Writes to the WAL wake it (inotify on the data directory, since the file is replaced now and then). SQLite writes
/// the WAL a moment before the commit becomes visible: it publishes the commit in shared memory, for which inotify has
/// no event, and syncs before that where it must. So a wake-up is followed by some polls.
#[derive(Debug)]
pub struct Commits {
    /// `None` where inotify is not available.
    inotify: Option<Inotify>,
    /// The name of the WAL.
    wal: OsString,
    /// The number of polls since the last wake-up.
    polls: usize,
}

impl Commits {
    /// Begins to watch: a commit from now on wakes the next [`Self::wait`].
    ///
    /// # Errors
    /// Currently none: without inotify the database is polled every 50 ms.
    pub fn watch(observer: &Observer) -> io::Result<Self> {
        observer.engine.commits()
    }

    fn from_layout(layout: &Layout) -> Self {
        let watched = || -> io::Result<Inotify> {
            let inotify = Inotify::new()?;
            inotify.watch(layout.root())?;
            Ok(inotify)
        };
        let wal = layout.wal().file_name().map(OsStr::to_owned).unwrap_or_default();
        // As after a wake-up: a writer may have written to the WAL already and not published it yet.
        Self { inotify: watched().ok(), wal, polls: 0 }
    }

    /// Waits for new events, at most this long. It may wake too often, but never too late.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn wait(&mut self, most: Duration) -> io::Result<()> {
        let pause = self.pause();
        let deadline = Deadline::after(most.min(pause));
        loop {
            let fds: Vec<_> = self.inotify.iter().map(AsFd::as_fd).collect();
            if process::readable(&fds, deadline)?.is_none() {
                if pause <= most {
                    self.polls = self.polls.saturating_add(1);
                }
                return Ok(());
            }
            if self.drain_inotify() {
                self.polls = 0;
                return Ok(());
            }
        }
    }

    fn pause(&self) -> Duration {
        match &self.inotify {
            Some(_) => POLL_BACKOFF_MS.get(self.polls).map_or(MAX_POLL_INTERVAL, |ms| Duration::from_millis(*ms)),
            None => POLL_INTERVAL,
        }
    }

    /// Reads all inotify events; returns whether one may be about a commit.
    fn drain_inotify(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return true };
        let (mut may_be_commit, mut ended) = (false, false);
        let result = inotify.read_changes(|change| match change {
            DirChange::File { name, .. } => may_be_commit |= name == self.wal,
            DirChange::Lost => may_be_commit = true,
            DirChange::Ended(_) => ended = true,
        });
        if ended || result.is_err() {
            self.inotify = None;
            return true;
        }
        may_be_commit
    }
}

impl Engine {
    /// Watches for commits; see [`Commits`].
    ///
    /// # Errors
    /// See [`Commits::watch`].
    pub fn commits(&self) -> io::Result<Commits> {
        Ok(Commits::from_layout(self.store.layout()))
    }

    /// The cursor from which to read so that no event of this query is missed:
    ///
    /// * with `since`: from that time. If events of that time may have been deleted, the first page reports a gap.
    /// * with an `until` not after `now`: from the oldest kept event, without reporting a gap.
    /// * else from now on.
    ///
    /// The pages have all events after the cursor: the caller applies the query to each of them.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_start(&self, query: &EventQuery, now: Timestamp) -> Result<u64, PodError> {
        let start = match (query.since, query.until) {
            (Some(since), _) => self.store.seq_before(since),
            (None, Some(until)) if until <= now => self.store.trimmed_seq(),
            (None, _) => self.store.last_seq(),
        };
        start.map_err(PodError::store)
    }

    /// At most `most` events with numbers above `cursor`.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_after(&self, cursor: u64, most: usize) -> Result<EventPage, PodError> {
        let (events, trimmed) = self.store.events_page(cursor, most).map_err(PodError::store)?;
        let last = events.last().map_or(cursor, |event| event.seq);
        Ok(EventPage { events, cursor: last, trimmed })
    }
}

impl Observer {
    /// See [`Engine::events_start`].
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_start(&self, query: &EventQuery, now: Timestamp) -> Result<u64, PodError> {
        self.engine.events_start(query, now)
    }

    /// See [`Engine::events_after`].
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_after(&self, cursor: u64, most: usize) -> Result<EventPage, PodError> {
        self.engine.events_after(cursor, most)
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
