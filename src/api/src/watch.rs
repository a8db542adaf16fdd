//! Which log directories changed: one inotify descriptor for all who follow logs.
//!
//! A subscription is woken once for any number of changes since it last looked, so that nothing is queued for one that
//! is slow. A directory that several follow is watched once, and let go of when the last one leaves.

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

/// How long it is waited at most for a directory that cannot be watched: it is not there yet, or the kernel has no
/// watches left.
const LOOK: Duration = Duration::from_millis(50);
/// How long it is waited at most for one that is watched.
const REST: Duration = Duration::from_secs(1);

/// See the module. Its task ends when it is dropped.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    task: Option<tokio::task::JoinHandle<()>>,
}

struct Shared {
    /// None where the kernel had none left: then it is looked every [`LOOK`].
    fd: Option<AsyncFd<OwnedFd>>,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    /// By the kernel's number of the watch.
    watches: HashMap<i32, HashMap<u64, Arc<Notify>>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Begins; to be called inside the runtime. Where the kernel has no more of this, those who follow look by themselves.
    pub(crate) fn new() -> Self {
        let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map_err(io::Error::from);
        Self::of(fd.and_then(readable).ok())
    }

    fn of(fd: Option<AsyncFd<OwnedFd>>) -> Self {
        let shared = Arc::new(Shared { fd, table: Mutex::default() });
        let task = shared.fd.is_some().then(|| tokio::spawn(wake(Arc::clone(&shared))));
        Self { shared, task }
    }

    /// Watches directories from now on.
    pub(crate) fn subscribe(&self, dirs: Vec<PathBuf>) -> Subscription {
        let mut table = self.shared.lock();
        table.next += 1;
        let mut subscription = Subscription {
            shared: Arc::clone(&self.shared),
            number: table.next,
            changed: Arc::new(Notify::new()),
            dirs,
            watches: Vec::new(),
        };
        for dir in &subscription.dirs {
            // Under the lock: nobody lets go of a watch between its making and its entry here.
            if let Some(Ok(watch)) = self.shared.fd.as_ref().map(|fd| add(fd, dir)) {
                let changed = Arc::clone(&subscription.changed);
                table.watches.entry(watch).or_default().insert(subscription.number, changed);
                subscription.watches.push(watch);
            }
        }
        subscription
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// A descriptor as something whose readiness can be waited for; to be called inside the runtime.
///
/// # Errors
/// The kernel has no more of this.
pub(crate) fn readable(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for the sake of types whose descriptor changes; that of an OwnedFd does not"
    )]
    AsyncFd::with_interest(fd, Interest::READABLE)
}

fn add(fd: &AsyncFd<OwnedFd>, dir: &Path) -> rustix::io::Result<i32> {
    let what = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
    inotify::add_watch(fd.get_ref(), dir, what)
}

/// Directories that somebody follows, until it is dropped.
pub(crate) struct Subscription {
    shared: Arc<Shared>,
    number: u64,
    changed: Arc<Notify>,
    dirs: Vec<PathBuf>,
    watches: Vec<i32>,
}

impl Subscription {
    /// Whether it is one to these directories, all of which are still watched.
    pub(crate) fn covers(&self, dirs: &[PathBuf]) -> bool {
        let table = self.shared.lock();
        let watched = |watch: &i32| table.watches.get(watch).is_some_and(|all| all.contains_key(&self.number));
        self.dirs == dirs && self.watches.len() == dirs.len() && self.watches.iter().all(watched)
    }

    /// Returns when something changed since the last return, or when it is time to look.
    pub(crate) async fn changed(&self) {
        let most = if self.covers(&self.dirs) { REST } else { LOOK };
        // Having waited long enough is no failure.
        let _ = tokio::time::timeout(most, self.changed.notified()).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut table = self.shared.lock();
        for watch in &self.watches {
            let Some(all) = table.watches.get_mut(watch) else { continue };
            all.remove(&self.number);
            if all.is_empty() {
                table.watches.remove(watch);
                // Fails when the directory is gone, and its watch with it.
                let _ = self.shared.fd.as_ref().map(|fd| inotify::remove_watch(fd.get_ref(), *watch));
            }
        }
    }
}

/// The task: wakes whoever follows what changed.
async fn wake(shared: Arc<Shared>) {
    let Some(fd) = &shared.fd else { return };
    loop {
        let Ok(mut ready) = fd.readable().await else { return };
        let done = ready.try_io(|fd| read(&shared, fd.get_ref()));
        // Reading fails when nothing is left, which clears the readiness. Another failure has no other remedy than to
        // try again: those who wait look by themselves after a while.
        if let Ok(Err(_)) = done {
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Reads all there is; ends with "would block".
fn read(shared: &Shared, fd: &OwnedFd) -> io::Result<()> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    let mut events = inotify::Reader::new(fd, &mut buffer);
    loop {
        let event = events.next()?;
        let mut table = shared.lock();
        if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
            table.watches.values().flat_map(HashMap::values).for_each(|changed| changed.notify_one());
        } else if event.events().contains(ReadFlags::IGNORED) {
            // The directory is gone, or we let go of it ourselves.
            let gone = table.watches.remove(&event.wd());
            gone.iter().flat_map(HashMap::values).for_each(|changed| changed.notify_one());
        } else if let Some(all) = table.watches.get(&event.wd()) {
            all.values().for_each(|changed| changed.notify_one());
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
