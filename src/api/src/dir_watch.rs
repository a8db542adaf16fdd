//! Changes of log directories: one inotify descriptor for all streams of logs.
//!
//! A subscription wakes once for any number of changes since its last wake-up, so nothing is queued for a slow one. A
//! directory with several subscriptions is watched once, until the last of them is dropped.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gantry_host::inotify::{DirChange, Inotify, WatchId};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

/// Poll interval for a directory that cannot be watched: it does not exist yet, or the kernel has no watches left.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum time between two wake-ups for a watched directory.
const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// See the module. Its task ends when it is dropped.
pub(crate) struct DirWatch {
    shared: Arc<Shared>,
    task: Option<tokio::task::JoinHandle<()>>,
}

struct Shared {
    /// `None` if the kernel has no inotify instances left: subscriptions poll instead.
    inotify: Option<AsyncFd<Inotify>>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// The subscriptions of each watched directory, by number.
    watches: HashMap<WatchId, HashMap<u64, Arc<Notify>>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirWatch {
    /// Starts the task; call it inside the runtime. Without an inotify instance, subscriptions poll.
    pub(crate) fn new() -> Self {
        Self::with(Inotify::new().and_then(readable).ok())
    }

    fn with(inotify: Option<AsyncFd<Inotify>>) -> Self {
        let shared = Arc::new(Shared { inotify, table: Mutex::default() });
        let task = shared.inotify.is_some().then(|| tokio::spawn(notify_subscriptions(Arc::clone(&shared))));
        Self { shared, task }
    }

    /// Watches directories from now on.
    pub(crate) fn subscribe(&self, dirs: Vec<PathBuf>) -> DirSubscription {
        let mut table = self.shared.lock();
        table.next += 1;
        let mut subscription = DirSubscription {
            shared: Arc::clone(&self.shared),
            number: table.next,
            changed: Arc::new(Notify::new()),
            dirs,
            watches: Vec::new(),
        };
        for dir in &subscription.dirs {
            // Under the lock, so that no other subscription removes the watch before it is entered here.
            if let Some(Ok(watch)) = self.shared.inotify.as_ref().map(|inotify| inotify.get_ref().watch(dir)) {
                let changed = Arc::clone(&subscription.changed);
                table.watches.entry(watch).or_default().insert(subscription.number, changed);
                subscription.watches.push(watch);
            }
        }
        subscription
    }
}

impl Drop for DirWatch {
    fn drop(&mut self) {
        self.task.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Registers a descriptor with the runtime's poller; call it inside the runtime.
///
/// # Errors
/// The kernel has no memory left.
pub(crate) fn readable<T: AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    watch_fd(fd, Interest::READABLE)
}

/// As [`readable`], also for other events.
///
/// # Errors
/// The kernel has no memory left.
pub(crate) fn watch_fd<T: AsRawFd>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for the sake of types whose descriptor changes; no type here does that"
    )]
    AsyncFd::with_interest(fd, interest)
}

/// A subscription to changes of directories, until it is dropped.
pub(crate) struct DirSubscription {
    shared: Arc<Shared>,
    number: u64,
    changed: Arc<Notify>,
    dirs: Vec<PathBuf>,
    watches: Vec<WatchId>,
}

impl DirSubscription {
    /// Whether it is for exactly these directories, and all of them are still watched.
    pub(crate) fn covers(&self, dirs: &[PathBuf]) -> bool {
        let table = self.shared.lock();
        let watched = |watch: &WatchId| table.watches.get(watch).is_some_and(|all| all.contains_key(&self.number));
        self.dirs == dirs && self.watches.len() == dirs.len() && self.watches.iter().all(watched)
    }

    /// Returns after a change since the last return, or when it is time to poll.
    pub(crate) async fn changed(&self) {
        let timeout = if self.covers(&self.dirs) { MAX_INTERVAL } else { POLL_INTERVAL };
        let _either_way = tokio::time::timeout(timeout, self.changed.notified()).await;
    }
}

impl Drop for DirSubscription {
    fn drop(&mut self) {
        let mut table = self.shared.lock();
        for watch in &self.watches {
            let Some(all) = table.watches.get_mut(watch) else { continue };
            all.remove(&self.number);
            if all.is_empty() {
                table.watches.remove(watch);
                let _removed_with_its_directory =
                    self.shared.inotify.as_ref().map(|inotify| inotify.get_ref().unwatch(*watch));
            }
        }
    }
}

/// The task: wakes the subscriptions of changed directories.
async fn notify_subscriptions(shared: Arc<Shared>) {
    let Some(inotify) = &shared.inotify else { return };
    loop {
        let Ok(mut ready) = inotify.readable().await else { return };
        let done = ready.try_io(|inotify| notify_of_changes(&shared, inotify.get_ref()));
        // "Would block" clears the readiness. Other failures are retried; subscriptions poll in the meantime.
        if let Ok(Err(_)) = done {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Wakes the subscriptions of all pending changes; ends with "would block".
fn notify_of_changes(shared: &Shared, inotify: &Inotify) -> io::Result<()> {
    let notify_all = |subscriptions: &HashMap<u64, Arc<Notify>>| {
        subscriptions.values().for_each(|changed| changed.notify_one());
    };
    inotify.read_changes(|change| {
        let mut table = shared.lock();
        match change {
            DirChange::File { watch, .. } => table.watches.get(&watch).into_iter().for_each(notify_all),
            // The directory was deleted, or its watch was removed.
            DirChange::Ended(watch) => table.watches.remove(&watch).iter().for_each(notify_all),
            DirChange::Lost => table.watches.values().for_each(notify_all),
        }
    })?;
    Err(io::ErrorKind::WouldBlock.into())
}

#[cfg(test)]
#[path = "dir_watch_tests.rs"]
mod tests;
