//! An app of the running pod: what it was made with, its process, its output.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::How;
use gantry_contract::plan;
use rustix::process::Pid;

use crate::cgroup::AppCgroup;
use crate::confine::Confinement;
use crate::foreground::Foregrounds;
use crate::journal::now;
use crate::logs::{Log, Pending, Stream};
use crate::pace::Pace;
use crate::user::Ids;

/// How long the beginning of a line waits for the rest before the log gets it as a piece of its own.
const PARTIAL_LINE_DELAY: Duration = Duration::from_millis(200);

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
    /// When the log gets the beginnings of lines that are not complete yet.
    pub(crate) flush_at: Option<Instant>,
    /// Keeps the work of reading it within the app's cpu limit.
    pub(crate) pace: Pace,
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
    /// Reads what is there from source `index` of app number `app`, for the foregrounds and the log; whether the source
    /// has ended. At most some reads at a time, so that one app that floods cannot keep the loop from everything else, and
    /// none while a foreground has to take what was read before.
    pub(crate) fn pump(&mut self, app: usize, index: usize, foregrounds: &mut Foregrounds, buffer: &mut [u8]) -> bool {
        // An app with a cpu limit may have used up its share after a few lines.
        let (turns, most) = if self.pace.is_limited() { (1, 8 << 10) } else { (16, buffer.len()) };
        let buffer = &mut buffer[..most];
        let Some(source) = self.sources.get_mut(index) else { return true };
        let mut has_ended = false;
        for _ in 0..turns {
            if foregrounds.are_blocked() {
                break;
            }
            match rustix::io::read(&source.fd, &mut *buffer) {
                Ok(0) | Err(rustix::io::Errno::IO) => {
                    self.log.end(source.stream, &mut source.pending, now());
                    has_ended = true;
                    break;
                }
                Ok(n) => {
                    foregrounds.send(app, source.stream, &buffer[..n]);
                    self.log.take(source.stream, &mut source.pending, &buffer[..n], now(), self.eager);
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        self.flush_at = match self.sources.iter().any(|source| source.pending.is_waiting()) {
            true => self.flush_at.or_else(|| Some(Instant::now() + PARTIAL_LINE_DELAY)),
            false => None,
        };
        has_ended
    }

    /// Gives the log the beginnings of lines that have waited long enough: who follows the log sees prompts and progress.
    pub(crate) fn flush_late_lines(&mut self, at: Instant) {
        if self.flush_at.is_some_and(|flush_at| flush_at <= at) {
            self.flush_at = None;
            for source in &mut self.sources {
                self.log.take(source.stream, &mut source.pending, &[], now(), true);
            }
        }
    }

    /// Takes what is there and closes every source: nothing that could write to them runs any more, or it is stuck.
    pub(crate) fn close(&mut self, app: usize, foregrounds: &mut Foregrounds, buffer: &mut [u8]) {
        for index in 0..self.sources.len() {
            self.pump(app, index, foregrounds, buffer);
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
    let status = match waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG) {
        Ok(status) => status?,
        // Its status was collected elsewhere. It has ended all the same: its descriptor would be readable for ever.
        Err(rustix::io::Errno::CHILD) => return Some(How::Signal(9)),
        Err(_) => return None,
    };
    let small = |number: i32| u8::try_from(number & 0xff).unwrap_or(0);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Some(How::Code(small(code))),
        (None, Some(signal)) => Some(How::Signal(small(signal))),
        (None, None) => Some(How::Signal(9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::PidfdFlags;

    fn spawn(script: &str) -> (std::process::Child, OwnedFd) {
        let child = std::process::Command::new("sh").args(["-c", script]).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        (child, rustix::process::pidfd_open(pid, PidfdFlags::empty()).unwrap())
    }

    fn wait_readable(pidfd: &OwnedFd) {
        use rustix::event::{PollFd, PollFlags, poll};
        assert_eq!(poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None).unwrap(), 1);
    }

    #[test]
    fn exit_codes_and_signals_are_reaped_once() {
        for (script, end) in [("exit 7", How::Code(7)), ("kill -TERM $$", How::Signal(15))] {
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
    fn a_process_that_was_reaped_elsewhere_has_ended() {
        let (mut child, pidfd) = spawn("exit 7");
        child.wait().unwrap();
        wait_readable(&pidfd);
        assert_eq!(reap(&pidfd), Some(How::Signal(9)));
    }
}
