//! Caught signals as a pollable descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGIO, SIGPROF, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGVTALRM,
};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::SignalOnly;

/// Signals that ask a process to end.
pub(crate) const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// SIGPWR and the real-time signals, for which signal-hook has no constants. musl reserves one more than glibc.
const SIGPWR: i32 = 30;
const SIGRTMIN: i32 = if cfg!(target_env = "musl") { 35 } else { 34 };
const SIGRTMAX: i32 = 64;

/// Signals without a meaning for this process, which are forwarded to apps.
pub(crate) fn proxied() -> impl Iterator<Item = i32> {
    let named = [SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGCONT, SIGIO, SIGPWR];
    named.into_iter().chain(SIGRTMIN..=SIGRTMAX)
}

/// Caught signals. They stay caught until the process ends.
pub(crate) struct Signals {
    delivery: SignalDelivery<UnixStream, SignalOnly>,
}

impl Signals {
    /// Catches these signals, except those that are ignored, as by `nohup` or in a background job of a shell.
    ///
    /// # Errors
    /// No file descriptors are left.
    pub(crate) fn catch(signals: impl IntoIterator<Item = i32>) -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        let ignored = ignored();
        let caught = signals.into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0);
        Ok(Self { delivery: SignalDelivery::with_pipe(reader, writer, SignalOnly, caught)? })
    }

    /// The signals caught since the last call. Several of the same number may be reported once.
    pub(crate) fn pending(&mut self) -> Vec<i32> {
        self.delivery.pending().collect()
    }

    /// Waits for at least one signal.
    pub(crate) fn wait(&mut self) -> Vec<i32> {
        loop {
            let caught = self.pending();
            if !caught.is_empty() {
                return caught;
            }
            let mut fds = [rustix::event::PollFd::from_borrowed_fd(self.as_fd(), rustix::event::PollFlags::IN)];
            // Interrupted by the signal, or readable: either way it is pending now.
            let _pending_now = rustix::event::poll(&mut fds, None);
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.delivery.get_read().as_fd()
    }
}

/// The mask of ignored signals (`SigIgn` of proc_pid_status(5)); empty if it cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_reported_once() {
        let mut signals = Signals::catch([signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2]).unwrap();
        assert!(signals.pending().is_empty());
        signal_hook::low_level::raise(signal_hook::consts::SIGUSR1).unwrap();
        assert_eq!(signals.wait(), [signal_hook::consts::SIGUSR1]);
        assert!(signals.pending().is_empty());
    }
}
