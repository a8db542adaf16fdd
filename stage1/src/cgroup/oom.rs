//! Kills of an app's processes by the OOM killer: how many, and because of which limit.
//!
//! The kernel counts the killed processes of a cgroup (`oom_kill`). On cgroup v2 it also counts how often each limit
//! made that necessary (`oom` of `memory.events.local`); on v1, a limit counts that was reached at all. The lowest
//! limit whose counter has risen is the one that was reached.
//!
//! A child that is killed while its app runs is found by a watch, which only apps with a memory limit of their own or
//! of their pod have. On v2 the kernel notifies of changes of `memory.events`, on v1 of each OOM of the cgroup or one
//! above it, by an eventfd, before it kills. Both may notify without a pause, so the counters are read at most every
//! [`CHECK_INTERVALS`].

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_host::cgroup::Cgroup;
use gantry_model::OomLevel;
use rustix::event::{EventfdFlags, PollFlags, eventfd};

/// The times after a notification at which the counters are read; the watch is not polled meanwhile.
const CHECK_INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(900)];

/// The counters of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OomCounters {
    /// Killed processes of the app.
    pub(crate) kills: u64,
    /// How often the app's limit could not be kept.
    pub(crate) app_failures: u64,
    /// How often the pod's limit could not be kept.
    pub(crate) pod_failures: u64,
}

impl OomCounters {
    /// The limit that was reached since `before`. Without a limit of their own, the pod and the app have reached none.
    pub(crate) fn level_since(&self, before: &Self, app_is_limited: bool, pod_is_limited: bool) -> OomLevel {
        if app_is_limited && self.app_failures > before.app_failures {
            OomLevel::App
        } else if pod_is_limited && self.pod_failures > before.pod_failures {
            OomLevel::Pod
        } else {
            OomLevel::Host
        }
    }
}

/// The kills of an app's processes so far.
#[derive(Default)]
pub(crate) struct OomTracker {
    /// Kills that were journaled, over all starts of the app.
    pub(crate) total: u64,
    /// The counters when they were last read, of the cgroup of the last start.
    pub(crate) seen: OomCounters,
    watch: Option<OomWatch>,
}

/// A descriptor that notifies of kills.
struct OomWatch {
    fd: OwnedFd,
    is_v2: bool,
    /// When the counters are read again, and the number of such reads since the notification.
    check: Option<(Instant, usize)>,
}

impl OomTracker {
    /// A tracker of an app of which so many kills were journaled in former runs of the pod.
    pub(crate) fn with_total(total: u64) -> Self {
        Self { total, ..Self::default() }
    }

    /// Begins to watch the memory cgroup of an app; without success, kills are found when the app exits.
    pub(crate) fn watch(&mut self, cgroup: Option<&Cgroup>) {
        self.watch = cgroup.and_then(|cgroup| OomWatch::new(cgroup).ok());
    }

    /// Whether it watches.
    pub(crate) fn is_watching(&self) -> bool {
        self.watch.is_some()
    }

    /// The descriptor to poll.
    pub(crate) fn watched(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        let watch = self.watch.as_ref().filter(|watch| watch.check.is_none())?;
        Some((watch.fd.as_fd(), if watch.is_v2 { PollFlags::PRI } else { PollFlags::IN }))
    }

    /// When [`Self::is_due`] becomes true.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        Some(self.watch.as_ref()?.check?.0)
    }

    /// The descriptor is ready: the counters are to be read twice, a moment later and at the end of the pause.
    pub(crate) fn handle_notification(&mut self, now: Instant) {
        if let Some(watch) = &mut self.watch {
            watch.rearm();
            watch.check = Some((now + CHECK_INTERVALS[0], 0));
        }
    }

    /// Whether the counters are to be read again; schedules the read after that.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let Some(watch) = &mut self.watch else { return false };
        let Some((_, checks)) = watch.check.filter(|(at, _)| *at <= now) else { return false };
        watch.check = CHECK_INTERVALS.get(checks + 1).map(|interval| (now + *interval, checks + 1));
        true
    }
}

impl OomWatch {
    fn new(cgroup: &Cgroup) -> std::io::Result<Self> {
        let is_v2 = cgroup.is_v2();
        let fd = match is_v2 {
            true => cgroup.open_file("memory.events")?,
            false => {
                let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let control = cgroup.open_file("memory.oom_control")?;
                cgroup.write("cgroup.event_control", &format!("{} {}", fd.as_raw_fd(), control.as_raw_fd()))?;
                fd
            }
        };
        let watch = Self { fd, is_v2, check: None };
        if is_v2 {
            watch.rearm();
        }
        Ok(watch)
    }

    /// Reads the descriptor: until then it stays ready.
    fn rearm(&self) {
        let mut buffer = [0; 256];
        // Only that it was read counts; the counters are read from the cgroup.
        let _read = match self.is_v2 {
            true => rustix::io::pread(&self.fd, &mut buffer[..], 0),
            false => rustix::io::read(&self.fd, &mut buffer[..8]),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_that_was_reached() {
        let counters = |app_failures, pod_failures| OomCounters { kills: 1, app_failures, pod_failures };
        let before = counters(5, 5);
        for (now, app, pod, want) in [
            (counters(6, 6), true, true, OomLevel::App),
            (counters(5, 6), true, true, OomLevel::Pod),
            (counters(5, 5), true, true, OomLevel::Host),
            (counters(6, 5), false, true, OomLevel::Host),
            (counters(6, 6), false, true, OomLevel::Pod),
            (counters(6, 6), false, false, OomLevel::Host),
        ] {
            assert_eq!(now.level_since(&before, app, pod), want, "{now:?}");
        }
    }
}
