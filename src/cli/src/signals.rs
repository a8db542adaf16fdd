//! Signals as something to poll: handlers that only write to a pipe.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// What asks a program to end.
pub(crate) const ENDING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Caught signals. They stay caught until the process ends.
pub(crate) struct Signals {
    pipe: UnixStream,
    seen: Vec<(i32, Arc<AtomicBool>)>,
}

impl Signals {
    /// Catches these, but for those that are ignored already: `nohup` and background jobs of a shell mean it.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn catch(signals: &[i32]) -> io::Result<Self> {
        let (pipe, writer) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let ignored = ignored();
        let mut seen = Vec::with_capacity(signals.len());
        for &signal in signals.iter().filter(|&&signal| ignored & (1 << (signal - 1)) == 0) {
            let flag = Arc::new(AtomicBool::new(false));
            // The flag first: whoever is woken by the pipe finds it set.
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
            seen.push((signal, flag));
        }
        Ok(Self { pipe, seen })
    }

    /// Those that came since the last call. Two of one sort may show as one.
    pub(crate) fn take(&self) -> Vec<i32> {
        let mut bytes = [0; 64];
        // Drained until it would block; any other failure leaves the flags, which are what counts.
        while matches!((&self.pipe).read(&mut bytes), Ok(count) if count > 0) {}
        let came = self.seen.iter().filter(|(_, flag)| flag.swap(false, Ordering::SeqCst));
        came.map(|(signal, _)| *signal).collect()
    }

    /// Waits for one or more.
    pub(crate) fn wait(&self) -> Vec<i32> {
        loop {
            let came = self.take();
            if !came.is_empty() {
                return came;
            }
            let mut fds = [rustix::event::PollFd::new(&self.pipe, rustix::event::PollFlags::IN)];
            // Interrupted by the very signal, or readable: look again either way.
            let _ = rustix::event::poll(&mut fds, None);
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// The mask of ignored signals (`SigIgn` of proc_pid_status(5)); none when it cannot be read.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_seen_once() {
        let signals = Signals::catch(&[signal_hook::consts::SIGUSR1, signal_hook::consts::SIGUSR2]).unwrap();
        assert!(signals.take().is_empty());
        signal_hook::low_level::raise(signal_hook::consts::SIGUSR1).unwrap();
        assert_eq!(signals.wait(), [signal_hook::consts::SIGUSR1]);
        assert!(signals.take().is_empty());
    }
}
