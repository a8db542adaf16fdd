//! Signals as a descriptor to poll: the handlers only set flags and write to a pipe.

use std::io::{self, Read as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The actions that signals have requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SignalRequests {
    /// To end.
    pub(crate) end: bool,
    /// To read the configuration again.
    pub(crate) reload: bool,
}

/// SIGTERM, SIGINT and SIGHUP, caught until the process ends.
pub(crate) struct Signals {
    pipe: UnixStream,
    end: Arc<AtomicBool>,
    end_signal: EndSignal,
    reload: Arc<AtomicBool>,
}

/// The signal that has requested the end.
#[derive(Clone, Default)]
pub(crate) struct EndSignal(Arc<AtomicUsize>);

impl EndSignal {
    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        let number = i32::try_from(self.0.load(Ordering::SeqCst)).ok();
        number.and_then(signal_hook::low_level::signal_name).unwrap_or("a signal")
    }
}

impl Signals {
    /// Installs the handlers. A second SIGTERM or SIGINT ends the process at once, with 0 as the first would have.
    ///
    /// # Errors
    /// No descriptors left.
    pub(crate) fn catch() -> io::Result<Self> {
        let (pipe, writer) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        let (end, reload) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let end_signal = EndSignal::default();
        for signal in [SIGTERM, SIGINT] {
            let number = usize::try_from(signal).unwrap_or_default();
            // In this order: the first signal finds the flag unset, and the flag is set before the pipe is readable.
            signal_hook::flag::register_conditional_shutdown(signal, 0, Arc::clone(&end))?;
            signal_hook::flag::register_usize(signal, Arc::clone(&end_signal.0), number)?;
            signal_hook::flag::register(signal, Arc::clone(&end))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        signal_hook::flag::register(SIGHUP, Arc::clone(&reload))?;
        signal_hook::low_level::pipe::register(SIGHUP, writer)?;
        Ok(Self { pipe, end, end_signal, reload })
    }

    /// The signal that has requested the end, or will.
    pub(crate) fn end_signal(&self) -> EndSignal {
        self.end_signal.clone()
    }

    /// Whether a signal has requested the end.
    pub(crate) fn end(&self) -> bool {
        self.end.load(Ordering::SeqCst)
    }

    /// The requests since the last call.
    pub(crate) fn take_requests(&self) -> SignalRequests {
        let mut bytes = [0; 64];
        // Until it would block. Other failures do not matter: the flags count.
        while matches!((&self.pipe).read(&mut bytes), Ok(count) if count > 0) {}
        SignalRequests { end: self.end(), reload: self.reload.swap(false, Ordering::SeqCst) }
    }
}

impl AsFd for Signals {
    /// Readable after a signal.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reload_is_consumed_and_termination_is_permanent() {
        let signals = Signals::catch().unwrap();
        assert_eq!(signals.take_requests(), SignalRequests { end: false, reload: false });
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert_eq!(signals.take_requests(), SignalRequests { end: false, reload: true });
        assert_eq!(signals.take_requests(), SignalRequests { end: false, reload: false });
        signal_hook::low_level::raise(SIGTERM).unwrap();
        assert_eq!(signals.take_requests(), SignalRequests { end: true, reload: false });
        assert_eq!(signals.end_signal().name(), "SIGTERM");
        assert!(signals.end());
    }
}
