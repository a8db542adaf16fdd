//! Locks of files (flock(2)), waited for with a deadline, which the call by itself has not.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::{Errno, FdFlags};

/// The pauses between two tries: each is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
const LAST_PAUSE: Duration = Duration::from_millis(10);

/// A lock, held until dropped.
#[derive(Debug)]
pub(crate) struct Flock<F: AsFd>(F);

impl<F: AsFd> Drop for Flock<F> {
    fn drop(&mut self) {
        // Also for those who inherited it. Fails for a descriptor that is not open only, and this one is.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl<F: AsFd> Flock<F> {
    /// From here on, whatever is executed has the lock too, until it is dropped. Without that, as long as it runs.
    pub(crate) fn inherit(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.0, FdFlags::empty())?)
    }
}

/// Waits for a lock, together with others (`shared`) or alone; `None`: others had it until the end. `meanwhile` is called
/// before each pause, with how long it has been.
pub(crate) fn lock<F: AsFd>(
    file: F,
    shared: bool,
    wait: Duration,
    mut meanwhile: impl FnMut(&F, Duration) -> io::Result<()>,
) -> io::Result<Option<Flock<F>>> {
    let how = if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    let begun = Instant::now();
    let mut pause = FIRST_PAUSE;
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
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
    }
}
