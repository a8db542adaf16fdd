//! What wakes the keeper, behind one epoll descriptor: signals, the ends of supervisors (pidfds), and an inotify
//! descriptor for the database's WAL (every commit of any process) and for the directories of running pods (journals).
//!
//! Everything here only says where to look: what is so is read from the rows and the facts. Waking too often costs a
//! look; what inotify cannot be had for is found by the keeper's regular looks.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use gantry_engine::Store;
use gantry_model::PodId;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::inotify;
use rustix::io::Errno;
use tracing::warn;

use crate::signals::Signals;

const SIGNALS: u64 = 0;
const INOTIFY: u64 = 1;
const FIRST_POD: u64 = 2;

/// Where to look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Woken {
    /// Somebody has written to the database.
    pub(crate) database: bool,
    /// Running pods with news: their supervisor ended, or wrote to its journal.
    pub(crate) pods: BTreeSet<PodId>,
}

/// A running pod that is watched.
#[derive(Debug)]
struct Pod {
    pidfd: OwnedFd,
    token: u64,
    /// The inotify watch on its directory, where there could be one.
    watch: Option<i32>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Watcher {
    epoll: OwnedFd,
    /// Where there could be one.
    inotify: Option<OwnedFd>,
    /// The watch on the data directory, where there could be one.
    database: Option<i32>,
    wal: std::ffi::OsString,
    pods: HashMap<PodId, Pod>,
    by_token: HashMap<u64, PodId>,
    by_watch: HashMap<i32, PodId>,
    next_token: u64,
}

impl Watcher {
    /// Watches the signals and the database of this store.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new(signals: &Signals, store: &Store) -> std::io::Result<Self> {
        let inotify = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
        let inotify = inotify.inspect_err(|errno| {
            let why = "looking once a second instead (sysctl fs.inotify.max_user_instances)";
            warn!("cannot watch directories: {errno}; {why}");
        });
        Self::with(signals, store, inotify.ok())
    }

    fn with(signals: &Signals, store: &Store, inotify: Option<OwnedFd>) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, signals, epoll::EventData::new_u64(SIGNALS), epoll::EventFlags::IN)?;
        if let Some(inotify) = &inotify {
            epoll::add(&epoll, inotify, epoll::EventData::new_u64(INOTIFY), epoll::EventFlags::IN)?;
        }
        let wal = store.layout().wal().file_name().map(OsStr::to_owned).unwrap_or_default();
        let mut watcher = Self {
            epoll,
            inotify,
            database: None,
            wal,
            pods: HashMap::new(),
            by_token: HashMap::new(),
            by_watch: HashMap::new(),
            next_token: FIRST_POD,
        };
        // The directory and not the file: the file is another one after the last user of the database has gone.
        watcher.database = watcher.add_watch(store.layout().root());
        Ok(watcher)
    }

    /// Whether this pod is watched.
    pub(crate) fn has(&self, id: PodId) -> bool {
        self.pods.contains_key(&id)
    }

    /// How many pods are.
    pub(crate) fn count(&self) -> usize {
        self.pods.len()
    }

    /// The watched pods of which only the end wakes us: there could be no watch on their directories.
    pub(crate) fn blind(&self) -> impl Iterator<Item = PodId> {
        self.pods.iter().filter(|(_, pod)| pod.watch.is_none()).map(|(&id, _)| id)
    }

    /// Watches a running pod by its supervisor's pidfd and its directory.
    ///
    /// # Errors
    /// No room for it in the kernel.
    pub(crate) fn watch(&mut self, id: PodId, pidfd: OwnedFd, dir: &Path) -> std::io::Result<()> {
        self.forget(id);
        let token = self.next_token;
        self.next_token += 1;
        epoll::add(&self.epoll, &pidfd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        let watch = self.add_watch(dir);
        self.by_token.insert(token, id);
        self.by_watch.extend(watch.map(|watch| (watch, id)));
        self.pods.insert(id, Pod { pidfd, token, watch });
        Ok(())
    }

    /// Does not watch this pod any more.
    pub(crate) fn forget(&mut self, id: PodId) {
        let Some(pod) = self.pods.remove(&id) else { return };
        self.by_token.remove(&pod.token);
        // Closing the descriptor would do, for nobody else has it; a failure is made good by that.
        let _closed_next = epoll::delete(&self.epoll, &pod.pidfd);
        if let Some(watch) = pod.watch {
            self.by_watch.remove(&watch);
            // The kernel has removed it already when the directory is gone.
            let _gone_with_its_directory = self.inotify.as_ref().map(|inotify| inotify::remove_watch(inotify, watch));
        }
    }

    /// Waits until something wakes us, or this long.
    ///
    /// # Errors
    /// What epoll says; there is no reason it should.
    pub(crate) fn wait(&mut self, most: Duration) -> std::io::Result<Woken> {
        let timeout =
            Timespec { tv_sec: i64::try_from(most.as_secs()).unwrap_or(i64::MAX), tv_nsec: most.subsec_nanos().into() };
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut woken = Woken::default();
        for event in events {
            match event.data.u64() {
                // The keeper asks for them after every wait.
                SIGNALS => {}
                INOTIFY => self.read_inotify(&mut woken)?,
                token => woken.pods.extend(self.by_token.get(&token)),
            }
        }
        Ok(woken)
    }

    fn read_inotify(&mut self, woken: &mut Woken) -> std::io::Result<()> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            };
            if event.events().contains(inotify::ReadFlags::QUEUE_OVERFLOW) {
                // Something was lost, so look everywhere.
                woken.database = true;
                woken.pods.extend(self.pods.keys());
            } else if Some(event.wd()) == self.database {
                let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
                woken.database |= name == Some(&self.wal);
            } else {
                woken.pods.extend(self.by_watch.get(&event.wd()));
            }
        }
    }

    /// Watches a directory for changes of its files; `None` when it is gone; or, with a line, when there are no
    /// watches left.
    fn add_watch(&self, dir: &Path) -> Option<i32> {
        let flags = inotify::WatchFlags::MODIFY | inotify::WatchFlags::CREATE | inotify::WatchFlags::ONLYDIR;
        inotify::add_watch(self.inotify.as_ref()?, dir, flags)
            .inspect_err(|errno| {
                // Deleted since; the end of whatever runs there wakes us all the same.
                if *errno == Errno::NOENT {
                    return;
                }
                let why = "looking once a second instead (sysctl fs.inotify.max_user_watches)";
                warn!("cannot watch {}: {errno}; {why}", dir.display());
            })
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pod(n: u8) -> PodId {
        PodId::from_random([n; 16])
    }

    #[test]
    fn pods_that_cannot_be_watched_are_told() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::open(&temp.path().join("data")).unwrap();
        let signals = Signals::catch().unwrap();
        let (dir, absent) = (temp.path(), temp.path().join("absent"));
        let mut seeing = Watcher::new(&signals, &store).unwrap();
        // As where the user has no inotify instance left.
        let mut blind = Watcher::with(&signals, &store, None).unwrap();
        let mut ends = Vec::new();
        for (watcher, want) in [(&mut seeing, vec![pod(2)]), (&mut blind, vec![pod(1), pod(2)])] {
            for (n, dir) in [(1, dir), (2, &absent)] {
                let (ours, theirs) = UnixStream::pair().unwrap();
                watcher.watch(pod(n), ours.into(), dir).unwrap();
                ends.push(theirs);
            }
            let mut told: Vec<PodId> = watcher.blind().collect();
            told.sort();
            assert_eq!(told, want);
        }
        // Its end wakes all the same, where a file in its directory does not.
        std::fs::write(dir.join("journal"), "x").unwrap();
        assert_eq!(seeing.wait(Duration::from_secs(10)).unwrap().pods, [pod(1)].into());
        ends[3].write_all(b"x").unwrap();
        assert_eq!(blind.wait(Duration::from_secs(10)).unwrap().pods, [pod(2)].into());
        blind.forget(pod(2));
        assert_eq!(blind.blind().collect::<Vec<_>>(), [pod(1)]);
    }
}
