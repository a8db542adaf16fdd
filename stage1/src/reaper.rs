//! Reaps the processes that the supervisor has started. The event loop polls their pidfds ([`crate::supervise`]).

mod traced;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::ProcessExit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, WaitId, WaitIdOptions, WaitOptions, waitid};

use self::traced::TracedZombies;

/// Timeout of the exit of processes that were killed at the end of the pod.
const END_TIMEOUT: Duration = Duration::from_millis(900);

/// The processes that have to be reaped, besides those that have an owner: main processes of apps, programs of execs
/// and probes.
#[derive(Default)]
pub(crate) struct Reaper {
    /// Processes that were killed or are about to exit.
    ending: Vec<OwnedFd>,
    /// Processes, of any owner, that have exited but cannot be reaped yet.
    traced: TracedZombies,
}

impl Reaper {
    /// Has a process reaped that was killed or is about to exit.
    pub(crate) fn add(&mut self, process: OwnedFd) {
        self.ending.push(process);
    }

    /// Has processes reaped that were killed or are about to exit.
    pub(crate) fn add_all(&mut self, processes: impl IntoIterator<Item = OwnedFd>) {
        self.ending.extend(processes);
    }

    /// Kills a process, and has it reaped.
    pub(crate) fn kill(&mut self, process: OwnedFd) {
        // It fails only if the process has exited.
        let _already_ended = rustix::process::pidfd_send_signal(&process, Signal::KILL);
        self.ending.push(process);
    }

    /// The processes to poll, each with its index, which stays valid until they are reaped after the poll: until then,
    /// processes are only added.
    pub(crate) fn watched(&self) -> impl Iterator<Item = (usize, BorrowedFd<'_>)> {
        self.ending.iter().enumerate().map(|(index, process)| (index, process.as_fd()))
    }

    /// Leaves out the process with this index, if another process traces it, until it can be reaped.
    pub(crate) fn leave_out_ending(&mut self, index: usize) {
        if let Some(process) = self.ending.get(index) {
            self.traced.hold_if_traced(process.as_fd());
        }
    }

    /// Leaves out of polls a process of any owner that could not be reaped, if another process traces it. Returns
    /// whether it was left out before.
    pub(crate) fn leave_out_if_traced(&mut self, pidfd: BorrowedFd<'_>) -> bool {
        self.traced.hold_if_traced(pidfd)
    }

    /// Whether a process is left out of polls now.
    pub(crate) fn leaves_out(&self, pidfd: BorrowedFd<'_>, now: Instant) -> bool {
        self.traced.holds(pidfd, now)
    }

    /// When processes that were left out are polled again.
    pub(crate) fn deadlines(&self, now: Instant) -> impl Iterator<Item = Instant> {
        self.traced.deadlines(now)
    }

    /// Reaps those that have exited.
    pub(crate) fn reap_ended(&mut self, now: Instant) {
        self.ending.retain(|process| reap(process).is_none());
        self.traced.forget_reaped(now);
    }

    /// Kills and reaps all at the end of the pod. The helpers among them, which delete files of removed apps, are
    /// outside the pod's PID namespace; while they run, their cgroup cannot be removed.
    pub(crate) fn kill_all(&mut self) {
        let deadline = Instant::now() + END_TIMEOUT;
        for process in self.ending.drain(..) {
            // It fails if the process was reaped already.
            let _already_reaped = rustix::process::pidfd_send_signal(&process, Signal::KILL);
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ended_or_late = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout));
        }
        reap_all();
    }
}

/// Reaps every child that has ended.
pub(crate) fn reap_all() {
    while let Ok(Some(_)) = rustix::process::wait(WaitOptions::NOHANG) {}
}

/// Reaps a process that has ended; `None` if it runs, or is a zombie that another process traces: only its tracer sees
/// its exit ([`traced`]).
pub(crate) fn reap(pidfd: &OwnedFd) -> Option<ProcessExit> {
    let status = match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        Ok(status) => status?,
        // It was reaped elsewhere. Without this the event loop would spin: the pidfd stays readable.
        Err(rustix::io::Errno::CHILD) => return Some(ProcessExit::KILLED),
        Err(_) => return None,
    };
    let small = |number: i32| u8::try_from(number & 0xff).unwrap_or(0);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(ProcessExit::Code(small(code))),
        (None, Some(signal)) => Some(ProcessExit::Signal(small(signal))),
        (None, None) => Some(ProcessExit::KILLED),
    }
}

/// Whether a process is a zombie whose exit this process sees. It stays one until it is reaped.
pub(crate) fn has_visible_exit(pidfd: BorrowedFd<'_>) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    // ECHILD: it was reaped elsewhere.
    !matches!(waitid(WaitId::PidFd(pidfd), options), Ok(None))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Pid, PidfdFlags};

    use super::*;

    fn spawn(script: &str) -> (std::process::Child, OwnedFd) {
        let child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        (child, rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    fn wait_readable(pidfd: &OwnedFd) {
        assert_eq!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None).unwrap(), 1);
    }

    #[test]
    fn exit_codes_and_signals_are_reaped_once() {
        for (script, end) in [("exit 7", ProcessExit::Code(7)), ("kill -TERM $$", ProcessExit::Signal(15))] {
            let (_child, pidfd) = spawn(script);
            wait_readable(&pidfd);
            assert_eq!(reap(&pidfd), Some(end), "{script}");
        }
        let (mut child, pidfd) = spawn("exec sleep 1000");
        assert_eq!(reap(&pidfd), None, "it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// `waitid` fails with ECHILD. Taken for "it runs", the readable pidfd would keep the event loop busy for ever.
    #[test]
    fn processes_reaped_elsewhere_have_ended() {
        let (mut child, pidfd) = spawn("exit 7");
        child.wait().unwrap();
        wait_readable(&pidfd);
        assert_eq!(reap(&pidfd), Some(ProcessExit::Signal(9)));
    }
}
