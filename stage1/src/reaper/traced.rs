//! Zombies that another process traces (ptrace(2)).
//!
//! The kernel shows the exit of such a process only to its tracer, which may never wait for it: the supervisor cannot
//! reap it, although its pidfd is readable. Polled, that would keep the event loop busy. So the pidfd is left out of
//! polls, and polled again by a timer. The zombie can be reaped when its tracer has waited for it, or has ended.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::has_visible_exit;

/// How long a pidfd is left out of polls.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The pidfds of such zombies, and when each is polled again.
#[derive(Default)]
pub(super) struct TracedZombies(BTreeMap<RawFd, Instant>);

impl TracedZombies {
    /// Leaves out the pidfd of a process that could not be reaped, if it is such a zombie; returns whether it was left
    /// out before.
    pub(super) fn hold_if_traced(&mut self, pidfd: BorrowedFd<'_>) -> bool {
        is_traced(pidfd) && self.hold(pidfd)
    }

    fn hold(&mut self, pidfd: BorrowedFd<'_>) -> bool {
        self.0.insert(pidfd.as_raw_fd(), Instant::now() + RETRY_INTERVAL).is_some()
    }

    /// Whether a pidfd is left out now.
    pub(super) fn holds(&self, pidfd: BorrowedFd<'_>, now: Instant) -> bool {
        self.0.get(&pidfd.as_raw_fd()).is_some_and(|until| *until > now)
    }

    /// Forgets those that were not left out again after they were polled: they were reaped, and their numbers may be
    /// those of other descriptors by now.
    pub(super) fn forget_reaped(&mut self, now: Instant) {
        self.0.retain(|_, until| *until + RETRY_INTERVAL > now);
    }

    /// When pidfds are polled again.
    pub(super) fn deadlines(&self, now: Instant) -> impl Iterator<Item = Instant> {
        self.0.values().copied().filter(move |until| *until > now)
    }
}

/// Whether a process has exited, and only another process sees that. The order matters: it may exit in between.
fn is_traced(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let has_exited = poll(&mut [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)], Some(&now)) == Ok(1);
    has_exited && !has_visible_exit(pidfd)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn pidfds_are_left_out_for_a_while() {
        let mut zombies = TracedZombies::default();
        let (pidfd, other) = rustix::pipe::pipe().unwrap();
        let before = Instant::now();
        assert!(!zombies.hold(pidfd.as_fd()), "for the first time");
        assert!(zombies.holds(pidfd.as_fd(), before) && !zombies.holds(other.as_fd(), before));
        let due = zombies.deadlines(before).next().unwrap();
        assert!(due >= before + RETRY_INTERVAL && !zombies.holds(pidfd.as_fd(), due));
        assert_eq!(zombies.deadlines(due).count(), 0);
        zombies.forget_reaped(due);
        assert!(zombies.hold(pidfd.as_fd()), "again");
        zombies.forget_reaped(Instant::now() + RETRY_INTERVAL * 2);
        assert!(!zombies.hold(pidfd.as_fd()), "it was forgotten");
    }

    #[test]
    fn other_processes_are_not_left_out() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).unwrap();
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        assert!(!is_traced(pidfd.as_fd()), "it runs");
        drop(child.stdin.take());
        poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], None).unwrap();
        assert!(!is_traced(pidfd.as_fd()), "it can be reaped");
        child.wait().unwrap();
        assert!(!is_traced(pidfd.as_fd()), "it was reaped");
    }
}
