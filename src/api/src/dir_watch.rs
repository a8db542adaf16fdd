//! Changes of log directories: one inotify descriptor for all streams of logs.
//!
//! A subscription wakes once for any number of changes since its last wake-up, so nothing is queued for a slow one. A
//! directory with several subscriptions is watched once, until the last of them is dropped.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
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
    fd: Option<AsyncFd<OwnedFd>>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By watch descriptor.
    watches: HashMap<i32, HashMap<u64, Arc<Notify>>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DirWatch {
    /// Starts the task; call it inside the runtime. Without an inotify instance, subscriptions poll.
    pub(crate) fn new() -> Self {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(io::Error::from);
        Self::with(fd.and_then(readable).ok())
    }

    fn with(fd: Option<AsyncFd<OwnedFd>>) -> Self {
        let shared = Arc::new(Shared { fd, table: Mutex::default() });
        let task = shared.fd.is_some().then(|| tokio::spawn(notify_subscriptions(Arc::clone(&shared))));
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
            if let Some(Ok(watch)) = self.shared.fd.as_ref().map(|fd| add(fd, dir)) {
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
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for the sake of types whose descriptor changes; that of an OwnedFd does not"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

fn add(fd: &AsyncFd<OwnedFd>, dir: &Path) -> rustix::io::Result<i32> {
    let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
    inotify::add_watch(fd.get_ref(), dir, flags)
}

/// A subscription to changes of directories, until it is dropped.
pub(crate) struct DirSubscription {
    shared: Arc<Shared>,
    number: u64,
    changed: Arc<Notify>,
    dirs: Vec<PathBuf>,
    watches: Vec<i32>,
}

impl DirSubscription {
    /// Whether it is for exactly these directories, and all of them are still watched.
    pub(crate) fn covers(&self, dirs: &[PathBuf]) -> bool {
        let table = self.shared.lock();
        let watched = |watch: &i32| table.watches.get(watch).is_some_and(|all| all.contains_key(&self.number));
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
                    self.shared.fd.as_ref().map(|fd| inotify::remove_watch(fd.get_ref(), *watch));
            }
        }
    }
}

/// The task: wakes the subscriptions of changed directories.
async fn notify_subscriptions(shared: Arc<Shared>) {
    let Some(fd) = &shared.fd else { return };
    loop {
        let Ok(mut ready) = fd.readable().await else { return };
        let done = ready.try_io(|fd| read_events(&shared, fd.get_ref()));
        // "Would block" clears the readiness. Other failures are retried; subscriptions poll in the meantime.
        if let Ok(Err(_)) = done {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Reads all pending events; ends with "would block".
fn read_events(shared: &Shared, fd: &OwnedFd) -> io::Result<()> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut events = inotify::Reader::new(fd, &mut buffer);
    loop {
        let event = events.next()?;
        let mut table = shared.lock();
        if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
            table.watches.values().flat_map(HashMap::values).for_each(|changed| changed.notify_one());
        } else if event.events().contains(ReadFlags::IGNORED) {
            // The directory was deleted, or its watch was removed.
            let gone = table.watches.remove(&event.wd());
            gone.iter().flat_map(HashMap::values).for_each(|changed| changed.notify_one());
        } else if let Some(all) = table.watches.get(&event.wd()) {
            all.values().for_each(|changed| changed.notify_one());
        }
    }
}

#[cfg(test)]
#[path = "dir_watch_tests.rs"]
mod tests;
