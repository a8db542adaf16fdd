//! File locks (flock(2)) with a timeout.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::{Errno, FdFlags};

/// The back-off between two attempts, doubled each time.
const MIN_BACKOFF: Duration = Duration::from_micros(200);
const MAX_BACKOFF: Duration = Duration::from_millis(10);

/// A lock, held until dropped.
#[derive(Debug)]
pub(crate) struct Flock<F: AsFd>(F);

impl<F: AsFd> Drop for Flock<F> {
    fn drop(&mut self) {
        // Unlocks inherited descriptors as well. It cannot fail: the descriptor is open.
        let _cannot_fail = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl<F: AsFd> Flock<F> {
    /// Lets programs that are executed from now on inherit the lock: it is held until it is dropped, or, if this
    /// process is killed, until they end.
    pub(crate) fn inherit(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.0, FdFlags::empty())?)
    }
}

/// Takes a shared or exclusive lock; `None` after the timeout `wait`. `meanwhile` is called before each back-off, with
/// the elapsed time.
pub(crate) fn lock<F: AsFd>(
    file: F,
    shared: bool,
    wait: Duration,
    mut meanwhile: impl FnMut(&F, Duration) -> io::Result<()>,
) -> io::Result<Option<Flock<F>>> {
    let how = if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    let begun = Instant::now();
    let mut backoff = MIN_BACKOFF;
    loop {
        match rustix::fs::flock(&file, how) {
            Ok(()) => return Ok(Some(Flock(file))),
            Err(Errno::INTR) => continue,
            Err(Errno::WOULDBLOCK) => {}
            Err(errno) => return Err(errno.into()),
        }
        let elapsed = begun.elapsed();
        if elapsed >= wait {
            return Ok(None);
        }
        meanwhile(&file, elapsed)?;
        std::thread::sleep(backoff);
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
}
