//! Waiting for commits to the database by any process.
//!
//! Writes to the WAL wake a reader: inotify on the data directory, because SQLite deletes the file and creates it
//! again. SQLite writes the WAL a moment before the commit becomes visible: it publishes the commit in shared memory,
//! for which inotify has no event, and syncs before that where it must. So a wake-up is followed by some polls
//! ([`POLL_BACKOFF_MS`]). Without inotify, a reader polls every [`POLL_INTERVAL`].
//!
//! | type | user | inotify |
//! |---|---|---|
//! | [`Commits`] | a command, which has one reader | an instance of its own |
//! | [`CommitWatcher`], [`CommitSubscription`] | gantryd, which has several | one instance and one thread for all |

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gantry_host::inotify::{DirChange, Inotify, WatchId};
use gantry_store::Layout;
use rustix::event::{EventfdFlags, eventfd};

use crate::host::process::{self, Deadline};
use crate::{Engine, Options};

/// After a wake-up the database is polled after these milliseconds each. Soon at first, since most commits take no
/// longer; for a third of a second in all, since a synced commit takes as long as the disk.
const POLL_BACKOFF_MS: [u64; 14] = [1, 2, 4, 8, 16, 32, 32, 32, 32, 32, 32, 32, 32, 32];
/// Poll interval between wake-ups.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Poll interval without inotify.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which a [`CommitWatcher`] checks that it watches the directory that the path names now.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);

/// The polls after a wake-up.
#[derive(Debug, Default)]
struct Backoff {
    /// The number of polls since the last wake-up.
    polls: usize,
}

impl Backoff {
    /// The time until the next poll.
    fn interval(&self, is_watched: bool) -> Duration {
        if !is_watched {
            return POLL_INTERVAL;
        }
        POLL_BACKOFF_MS.get(self.polls).map_or(MAX_POLL_INTERVAL, |ms| Duration::from_millis(*ms))
    }

    fn count_poll(&mut self) {
        self.polls = self.polls.saturating_add(1);
    }

    fn wake(&mut self) {
        self.polls = 0;
    }
}

/// The changes of a watched data directory that are pending.
#[derive(Debug, Default)]
struct Pending {
    /// The WAL was written, or may have been.
    may_be_commit: bool,
    /// Watches that have ended.
    ended: Vec<WatchId>,
}

impl Pending {
    fn read(inotify: &Inotify, wal: &OsStr) -> io::Result<Self> {
        let mut pending = Self::default();
        inotify.read_changes(|change| match change {
            DirChange::File { name, .. } => pending.may_be_commit |= name == wal,
            DirChange::Lost => pending.may_be_commit = true,
            DirChange::Ended(watch) => pending.ended.push(watch),
        })?;
        Ok(pending)
    }
}

fn wal_name(layout: &Layout) -> OsString {
    layout.wal().file_name().map(OsStr::to_owned).unwrap_or_default()
}

/// Waits for commits, for one reader. Made by [`Engine::commits`].
#[derive(Debug)]
pub struct Commits {
    /// `None` where inotify is not available.
    inotify: Option<Inotify>,
    /// The name of the WAL.
    wal: OsString,
    backoff: Backoff,
}

impl Engine {
    /// Watches for commits: one from now on wakes the next [`Commits::wait`].
    #[must_use]
    pub fn commits(&self) -> Commits {
        let layout = self.store.layout();
        let watched = || -> io::Result<Inotify> {
            let inotify = Inotify::new()?;
            inotify.watch(layout.root())?;
            Ok(inotify)
        };
        // With the back-off of a wake-up: a writer may have written to the WAL already and not published it yet.
        Commits { inotify: watched().ok(), wal: wal_name(layout), backoff: Backoff::default() }
    }
}

impl Commits {
    /// Waits for a commit, at most this long. It may return early, but never misses a commit.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        let interval = self.interval();
        let deadline = Deadline::after(at_most.min(interval));
        loop {
            let fds: Vec<_> = self.inotify.iter().map(AsFd::as_fd).collect();
            if process::readable(&fds, deadline)?.is_none() {
                if interval <= at_most {
                    self.backoff.count_poll();
                }
                return Ok(());
            }
            if self.read_changes() {
                self.backoff.wake();
                return Ok(());
            }
        }
    }

    fn interval(&self) -> Duration {
        self.backoff.interval(self.inotify.is_some())
    }

    /// Reads all pending changes; returns whether one may be a commit. Polls from now on if the watch has ended.
    fn read_changes(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return true };
        match Pending::read(inotify, &self.wal) {
            Ok(pending) if pending.ended.is_empty() => pending.may_be_commit,
            Ok(_) | Err(_) => {
                self.inotify = None;
                true
            }
        }
    }
}

/// Watches the commits to a data directory for any number of readers, in one thread and with one inotify instance. A
/// handle: clones share the thread, which ends with the last clone and subscription.
///
/// The directory need not exist yet, and may be replaced: within [`RENEW_INTERVAL`], or at the next
/// [`CommitWatcher::subscribe`], the watch follows its path. While nothing can be watched, subscriptions poll.
#[derive(Debug, Clone)]
pub struct CommitWatcher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    dir: PathBuf,
    /// The name of the WAL.
    wal: OsString,
    state: Mutex<WatchState>,
}

#[derive(Debug, Default)]
struct WatchState {
    /// `None` if the kernel has no instance left. Created by the thread, which waits for it.
    inotify: Option<Arc<Inotify>>,
    /// The watch on the directory. `None`: subscriptions poll.
    watch: Option<WatchId>,
    /// The eventfd of each subscription.
    subscriptions: Vec<Weak<OwnedFd>>,
}

impl WatchState {
    /// Wakes all subscriptions.
    fn wake(&mut self) {
        self.subscriptions.retain(|subscription| {
            let Some(eventfd) = subscription.upgrade() else { return false };
            // Fails only while the counter is at its maximum. Then the subscription is awake already.
            let _is_readable = rustix::io::write(&eventfd, &1_u64.to_ne_bytes());
            true
        });
    }

    /// Watches the directory that this path names now. If that is another one than before, wakes all subscriptions:
    /// its commits until now were not seen.
    fn renew(&mut self, dir: &Path) -> io::Result<()> {
        let Some(inotify) = &self.inotify else { return Err(rustix::io::Errno::MFILE.into()) };
        let result = inotify.watch(dir);
        let watch = result.as_ref().ok().copied();
        if watch != self.watch {
            if let Some(old) = self.watch {
                let _ended_with_its_directory = inotify.unwatch(old);
            }
            self.watch = watch;
            self.wake();
        }
        result.map(drop)
    }
}

impl CommitWatcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// The process can start no more threads.
    pub fn start(options: &Options) -> io::Result<Self> {
        let layout = Layout::new(&options.dir);
        let state = Mutex::default();
        let shared = Arc::new(Shared { dir: layout.root().to_owned(), wal: wal_name(&layout), state });
        // Here and not in the thread, so that the first subscriptions do not poll.
        drop(shared.renew());
        let weak = Arc::downgrade(&shared);
        std::thread::Builder::new().name("commits".to_owned()).spawn(move || watch_commits(&weak))?;
        Ok(Self { shared })
    }

    /// Watches again what is not watched.
    ///
    /// # Errors
    /// The reason why the directory cannot be watched and subscriptions poll instead.
    pub fn check(&self) -> io::Result<()> {
        self.shared.lock().renew(&self.shared.dir)
    }

    /// Subscribes to commits: one from now on wakes the subscription.
    ///
    /// # Errors
    /// The process has no descriptors left.
    pub fn subscribe(&self) -> io::Result<CommitSubscription> {
        let eventfd = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let mut state = self.shared.lock();
        state.subscriptions.retain(|subscription| subscription.strong_count() > 0);
        state.subscriptions.push(Arc::downgrade(&eventfd));
        // A reader subscribes again when it finds the database replaced, possibly with its directory.
        let _polls_without_a_watch = state.renew(&self.shared.dir);
        drop(state);
        Ok(CommitSubscription { shared: Arc::clone(&self.shared), eventfd, backoff: Backoff::default() })
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, WatchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the instance if there is none, and watches the directory. Returns the instance.
    fn renew(&self) -> Option<Arc<Inotify>> {
        let mut state = self.lock();
        if state.inotify.is_none() {
            state.inotify = Inotify::new().ok().map(Arc::new);
        }
        let _polls_without_a_watch = state.renew(&self.dir);
        state.inotify.clone()
    }

    /// Wakes the subscriptions if one of the pending changes may be a commit. Returns whether the directory is still
    /// watched.
    fn read_changes(&self, inotify: &Inotify) -> bool {
        let pending = Pending::read(inotify, &self.wal);
        let mut state = self.lock();
        match pending {
            Ok(pending) => {
                let has_ended = state.watch.is_some_and(|watch| pending.ended.contains(&watch));
                if has_ended {
                    state.watch = None;
                }
                if pending.may_be_commit || has_ended {
                    state.wake();
                }
            }
            Err(_) => {
                (state.inotify, state.watch) = (None, None);
                state.wake();
            }
        }
        state.watch.is_some()
    }
}

/// The thread.
fn watch_commits(shared: &Weak<Shared>) {
    let mut inotify: Option<Arc<Inotify>> = None;
    let mut is_renewal_due = true;
    // The state is not held during the wait, so that it ends with the last handle.
    while let Some(state) = shared.upgrade() {
        if is_renewal_due {
            inotify = state.renew();
        }
        drop(state);
        let fds: Vec<_> = inotify.iter().map(AsFd::as_fd).collect();
        is_renewal_due = match process::readable(&fds, Deadline::after(RENEW_INTERVAL)) {
            Ok(Some(_)) => match (shared.upgrade(), &inotify) {
                (Some(state), Some(inotify)) => !state.read_changes(inotify),
                (None, _) | (_, None) => return,
            },
            Ok(None) => true,
            // The kernel has no memory left.
            Err(_) => {
                std::thread::sleep(RENEW_INTERVAL);
                true
            }
        };
    }
}

/// A subscription to commits, until it is dropped. For synchronous readers [`Self::wait`]; for others its descriptor,
/// which becomes readable at a wake-up, and [`Self::clear`].
#[derive(Debug)]
pub struct CommitSubscription {
    shared: Arc<Shared>,
    eventfd: Arc<OwnedFd>,
    backoff: Backoff,
}

impl CommitSubscription {
    /// Waits for a commit, at most this long. It may return early, but never misses a commit.
    ///
    /// # Errors
    /// The error of poll(2).
    pub fn wait(&mut self, at_most: Duration) -> io::Result<()> {
        // If the watch ends after this, the subscription is woken.
        let interval = self.interval();
        if process::readable(&[self.eventfd.as_fd()], Deadline::after(at_most.min(interval)))?.is_some() {
            self.clear();
            self.backoff.wake();
        } else if interval <= at_most {
            self.backoff.count_poll();
        }
        Ok(())
    }

    fn interval(&self) -> Duration {
        self.backoff.interval(self.shared.lock().watch.is_some())
    }

    /// Makes the descriptor unreadable until the next wake-up. Call it before reading the database.
    pub fn clear(&self) {
        // Fails only if there was no wake-up.
        let _was_woken = rustix::io::read(&self.eventfd, &mut [0; 8]);
    }
}

impl AsFd for CommitSubscription {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

#[cfg(test)]
#[path = "commits_tests.rs"]
mod tests;
