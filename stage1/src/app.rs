//! An app of the running pod: what it was made with, its process, its output.

use std::os::fd::{AsFd, OwnedFd};

use gantry_contract::How;
use gantry_contract::plan;
use rustix::process::Pid;

use crate::cgroup::AppCgroup;
use crate::confine::Confinement;
use crate::journal::now;
use crate::logs::{Log, Pending, Stream};
use crate::user::Ids;

/// An app whose program was executed.
pub(crate) struct App {
    /// What the plan says of it.
    pub(crate) plan: plan::App,
    /// Its root, as mounted in the supervisor's tree (without the volumes).
    pub(crate) root: OwnedFd,
    /// Its `/dev/null`, opened before it ran: it may remove it, or put something else there.
    pub(crate) null: OwnedFd,
    /// Who it runs as.
    pub(crate) ids: Ids,
    /// What confines it.
    pub(crate) confinement: Confinement,
    /// Its cgroups.
    pub(crate) cgroup: AppCgroup,
    /// Its main process, on the host. The number may be another's once it has ended: only for telling.
    pub(crate) pid: Pid,
    /// Its main process while it runs.
    pub(crate) running: Option<OwnedFd>,
    /// When it was started, in nanoseconds since the epoch.
    pub(crate) started: i64,
    /// Its output.
    pub(crate) output: Output,
    /// What a client may attach to.
    pub(crate) input: Input,
}

/// The end of an app's stdin that is ours.
pub(crate) enum Input {
    /// It has none: /dev/null.
    None,
    /// The writing end of a pipe, until a client takes it.
    Pipe(Option<OwnedFd>),
    /// The master of its terminal.
    Terminal(OwnedFd),
}

/// Where an app's output comes from and where it goes.
pub(crate) struct Output {
    /// The log file.
    pub(crate) log: Log,
    /// What is still open.
    pub(crate) sources: Vec<Source>,
    /// Whether the beginning of a line is written at once.
    pub(crate) eager: bool,
}

/// One open output.
pub(crate) struct Source {
    /// The reading end, non-blocking.
    pub(crate) fd: OwnedFd,
    /// Which output.
    pub(crate) stream: Stream,
    /// The line that is not complete yet.
    pub(crate) pending: Pending,
}

impl Output {
    /// Reads what is there from source `index`, into the log; whether the source has ended. At most some reads at a
    /// time, so that one app that floods cannot keep the loop from everybody else.
    pub(crate) fn pump(&mut self, index: usize, buffer: &mut [u8]) -> bool {
        const TURNS: usize = 16;
        let Some(source) = self.sources.get_mut(index) else { return true };
        for _ in 0..TURNS {
            match rustix::io::read(&source.fd, &mut *buffer) {
                Ok(0) | Err(rustix::io::Errno::IO) => {
                    self.log.end(source.stream, &mut source.pending, now());
                    return true;
                }
                Ok(n) => self.log.take(source.stream, &mut source.pending, &buffer[..n], now(), self.eager),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Takes what is there and closes every source: nothing that could write to them runs any more, or it is stuck.
    pub(crate) fn close(&mut self, buffer: &mut [u8]) {
        for index in 0..self.sources.len() {
            self.pump(index, buffer);
            if let Some(source) = self.sources.get_mut(index) {
                self.log.end(source.stream, &mut source.pending, now());
            }
        }
        self.sources.clear();
    }
}

impl App {
    /// Sends a signal, by its number, to the main process; whether it runs.
    pub(crate) fn signal(&self, number: u8) -> bool {
        self.running.as_ref().is_some_and(|pidfd| crate::sys::send_signal(pidfd.as_fd(), number).is_ok())
    }
}

/// How a process that has ended did; takes its exit status. `None` when it has not.
pub(crate) fn reap(pidfd: &OwnedFd) -> Option<How> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    let status = waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG).ok().flatten()?;
    let small = |number: i32| u8::try_from(number & 0xff).unwrap_or(0);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(How::Code(small(code))),
        (None, Some(signal)) => Some(How::Signal(small(signal))),
        (None, None) => Some(How::Signal(9)),
    }
}
