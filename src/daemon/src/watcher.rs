//! The keeper's wake-ups behind one epoll descriptor: signals, commits of any process (a [`CommitSubscription`]), ends
//! of supervisors (pidfds), and inotify on the directories of running pods (journals).
//!
//! A wake-up only names what to reconcile; a spurious one is harmless. Without inotify the keeper polls.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use gantry_engine::{CommitSubscription, CommitWatcher};
use gantry_host::inotify::{DirChange, Inotify, WatchId};
use gantry_model::PodId;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use tracing::warn;

use crate::signals::Signals;

const SIGNALS: u64 = 0;
const COMMITS: u64 = 1;
const INOTIFY: u64 = 2;
const FIRST_POD: u64 = 3;

/// The pods to reconcile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct WakeUps {
    /// The database may have changed.
    pub(crate) database: bool,
    /// Running pods whose supervisor ended or wrote to its journal.
    pub(crate) pods: BTreeSet<PodId>,
}

/// A running pod that is watched.
#[derive(Debug)]
struct WatchedPod {
    pidfd: OwnedFd,
    token: u64,
    /// The inotify watch on its directory, if the kernel had one left.
    watch: Option<WatchId>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Watcher {
    epoll: OwnedFd,
    commits: CommitSubscription,
    /// `None` if the kernel had no instance left.
    inotify: Option<Inotify>,
    pods: HashMap<PodId, WatchedPod>,
    by_token: HashMap<u64, PodId>,
    by_watch: HashMap<WatchId, PodId>,
    next_token: u64,
}

impl Watcher {
    /// Watches the signals and subscribes to commits.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn new(signals: &Signals, commits: &CommitWatcher) -> io::Result<Self> {
        let inotify = Inotify::new().inspect_err(|error| {
            let why = "polling once a second instead (sysctl fs.inotify.max_user_instances)";
            warn!("cannot watch the directories of pods: {error}; {why}");
        });
        Self::with(signals, commits.subscribe()?, inotify.ok())
    }

    fn with(signals: &Signals, commits: CommitSubscription, inotify: Option<Inotify>) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, signals, epoll::EventData::new_u64(SIGNALS), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &commits, epoll::EventData::new_u64(COMMITS), epoll::EventFlags::IN)?;
        if let Some(inotify) = &inotify {
            epoll::add(&epoll, inotify, epoll::EventData::new_u64(INOTIFY), epoll::EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            commits,
            inotify,
            pods: HashMap::new(),
            by_token: HashMap::new(),
            by_watch: HashMap::new(),
            next_token: FIRST_POD,
        })
    }

    /// Whether this pod is watched.
    pub(crate) fn has(&self, id: PodId) -> bool {
        self.pods.contains_key(&id)
    }

    /// The number of watched pods.
    pub(crate) fn count(&self) -> usize {
        self.pods.len()
    }

    /// The watched pods without an inotify watch: only their end causes a wake-up.
    pub(crate) fn without_inotify(&self) -> impl Iterator<Item = PodId> {
        self.pods.iter().filter(|(_, pod)| pod.watch.is_none()).map(|(&id, _)| id)
    }

    /// Watches a running pod by its supervisor's pidfd and its directory.
    ///
    /// # Errors
    /// The kernel has no memory or epoll watches left.
    pub(crate) fn watch(&mut self, id: PodId, pidfd: OwnedFd, dir: &Path) -> io::Result<()> {
        self.forget(id);
        let token = self.next_token;
        self.next_token += 1;
        epoll::add(&self.epoll, &pidfd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        let watch = self.add_watch(dir);
        self.by_token.insert(token, id);
        self.by_watch.extend(watch.map(|watch| (watch, id)));
        self.pods.insert(id, WatchedPod { pidfd, token, watch });
        Ok(())
    }

    /// Stops watching a pod.
    pub(crate) fn forget(&mut self, id: PodId) {
        let Some(pod) = self.pods.remove(&id) else { return };
        self.by_token.remove(&pod.token);
        // Closing the descriptor removes it from epoll as well: it has no duplicates.
        let _closed_next = epoll::delete(&self.epoll, &pod.pidfd);
        if let Some(watch) = pod.watch {
            self.by_watch.remove(&watch);
            // Fails if the directory was deleted, and the watch with it.
            let _gone_with_its_directory = self.inotify.as_ref().map(|inotify| inotify.unwatch(watch));
        }
    }

    /// Waits for wake-ups, at most this long. A pod is no longer watched once its supervisor has ended.
    ///
    /// # Errors
    /// epoll failed.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<WakeUps> {
        let seconds = i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: timeout.subsec_nanos().into() };
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let mut wake_ups = WakeUps::default();
        let mut ended = Vec::new();
        for event in events {
            match event.data.u64() {
                // The keeper reads signals after every wait.
                SIGNALS => {}
                COMMITS => {
                    self.commits.clear();
                    wake_ups.database = true;
                }
                INOTIFY => self.read_inotify(&mut wake_ups)?,
                token => ended.extend(self.by_token.get(&token).copied()),
            }
        }
        // The pidfd of a supervisor that ended stays readable, and the pod may run again with another supervisor.
        ended.iter().for_each(|&id| self.forget(id));
        wake_ups.pods.extend(ended);
        Ok(wake_ups)
    }

    fn read_inotify(&self, wake_ups: &mut WakeUps) -> io::Result<()> {
        let Some(inotify) = &self.inotify else { return Ok(()) };
        inotify.read_changes(|change| match change {
            DirChange::File { watch, .. } | DirChange::Ended(watch) => wake_ups.pods.extend(self.by_watch.get(&watch)),
            // Reconcile every watched pod.
            DirChange::Lost => wake_ups.pods.extend(self.pods.keys()),
        })
    }

    /// Watches the files of a directory. `None` if the directory is gone, or, with a warning, if no watches are left.
    fn add_watch(&self, dir: &Path) -> Option<WatchId> {
        let watched = self.inotify.as_ref()?.watch(dir).inspect_err(|error| {
            // Deleted in the meantime; the end of its supervisor still causes a wake-up.
            if error.kind() == io::ErrorKind::NotFound {
                return;
            }
            let why = "polling once a second instead (sysctl fs.inotify.max_user_watches)";
            warn!("cannot watch {}: {error}; {why}", dir.display());
        });
        watched.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use gantry_engine::Options;

    use super::*;

    fn pod(n: u8) -> PodId {
        PodId::from_random([n; 16])
    }

    #[test]
    fn without_inotify_pods_are_polled() {
        let temp = tempfile::tempdir().unwrap();
        let commits = CommitWatcher::start(&Options::new(temp.path().join("data"))).unwrap();
        let signals = Signals::catch().unwrap();
        let (dir, absent) = (temp.path(), temp.path().join("absent"));
        let mut watching = Watcher::new(&signals, &commits).unwrap();
        // As if the kernel had no inotify instance left.
        let mut polling = Watcher::with(&signals, commits.subscribe().unwrap(), None).unwrap();
        let mut ends = Vec::new();
        for (watcher, want) in [(&mut watching, vec![pod(2)]), (&mut polling, vec![pod(1), pod(2)])] {
            for (n, dir) in [(1, dir), (2, &absent)] {
                let (watched, end) = UnixStream::pair().unwrap();
                watcher.watch(pod(n), watched.into(), dir).unwrap();
                ends.push(end);
            }
            let mut listed: Vec<PodId> = watcher.without_inotify().collect();
            listed.sort();
            assert_eq!(listed, want);
        }
        // Without inotify its end causes a wake-up, a file in its directory does not.
        std::fs::write(dir.join("journal"), "x").unwrap();
        assert_eq!(watching.wait(Duration::from_secs(10)).unwrap().pods, [pod(1)].into());
        ends[3].write_all(b"x").unwrap();
        assert_eq!(polling.wait(Duration::from_secs(10)).unwrap().pods, [pod(2)].into());
        assert_eq!(polling.without_inotify().collect::<Vec<_>>(), [pod(1)]);
    }
}
