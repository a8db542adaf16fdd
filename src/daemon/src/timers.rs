//! When the keeper has work without a wake-up.

use std::time::{Duration, Instant};

use gantry_engine::KeeperSettings;

use crate::collector::DueWork;

/// Poll interval for missed wake-ups, and delay before a retry.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two reads of the rows, however many commits there are.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum time from a commit to its sync.
const SYNC_DELAY: Duration = Duration::from_secs(1);
/// Maximum time between two checks whether a backup is due: after a restart the last backup can be of any age.
const BACKUP_INTERVAL: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Time of the first commit that is not synced.
    unsynced: Option<Instant>,
    /// Time of the next read of the rows.
    read: Option<Instant>,
    last_read: Instant,
    poll: Instant,
    collection: Instant,
    backup: Instant,
}

impl Timers {
    /// All is due, also the sync of commits from before this start, but no read.
    pub(crate) const fn new(now: Instant) -> Self {
        Self { unsynced: Some(now), read: None, last_read: now, poll: now, collection: now, backup: now }
    }

    /// The first time at which something is due.
    pub(crate) fn next(&self, settings: &KeeperSettings) -> Instant {
        let sync = self.unsynced.map(|since| since + SYNC_DELAY);
        let backup = (!settings.backup.is_zero()).then_some(self.backup);
        [sync, self.read, backup].into_iter().flatten().fold(self.poll.min(self.collection), Instant::min)
    }

    /// Whether a poll is due, which is the only one within the interval.
    pub(crate) fn take_poll(&mut self, now: Instant) -> bool {
        let is_due = now >= self.poll;
        if is_due {
            self.poll = now + POLL_INTERVAL;
        }
        is_due
    }

    /// Something was committed: it is to be read and synced.
    pub(crate) fn note_commit(&mut self, now: Instant) {
        self.unsynced.get_or_insert(now);
        self.read.get_or_insert(now.max(self.last_read + MIN_READ_INTERVAL));
    }

    /// The rows are to be read at once.
    pub(crate) fn read_at_once(&mut self, now: Instant) {
        self.read.get_or_insert(now);
    }

    /// Whether the rows are to be read.
    pub(crate) fn is_read_due(&self, now: Instant) -> bool {
        self.read.is_some_and(|due| now >= due)
    }

    /// The rows are read now.
    pub(crate) fn begin_read(&mut self, now: Instant) {
        (self.read, self.last_read) = (None, now);
    }

    /// Whether commits are to be synced, at the end at once. A later commit is to be synced again.
    pub(crate) fn take_sync(&mut self, at_once: bool) -> bool {
        let after = if at_once { Duration::ZERO } else { SYNC_DELAY };
        self.unsynced.take_if(|since| since.elapsed() >= after).is_some()
    }

    /// The sync failed, and is to be tried again.
    pub(crate) fn retry_sync(&mut self, now: Instant) {
        self.unsynced = Some(now);
    }

    /// The work of the collector that is due.
    pub(crate) fn due_work(&self, now: Instant, settings: &KeeperSettings) -> DueWork {
        DueWork { collect: now >= self.collection, back_up: now >= self.backup && !settings.backup.is_zero() }
    }

    /// The collector has started this work, or is busy and gets it in a second.
    pub(crate) fn repeat_work(&mut self, due: DueWork, started: bool, now: Instant, settings: &KeeperSettings) {
        let after = |interval: Duration| if started { interval } else { POLL_INTERVAL.min(interval) };
        if due.collect {
            self.collection = now + after(settings.interval);
        }
        if due.back_up {
            self.backup = now + after(settings.backup.min(BACKUP_INTERVAL));
        }
    }

    /// Follows changed intervals.
    pub(crate) fn follow(&mut self, settings: &KeeperSettings, now: Instant) {
        self.collection = self.collection.min(now + settings.interval);
        self.backup = self.backup.min(now + settings.backup);
    }
}
