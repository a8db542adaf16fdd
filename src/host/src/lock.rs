//! Advisory file locks (flock(2)) with a timeout.
//!
//! The kernel releases a lock when the last descriptor of its open file description is closed, so also when its holder
//! dies. Two open file descriptions of one file exclude each other within a process as well, so threads are covered.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::{Errno, FdFlags};

/// The back-off between two attempts, doubled each time: flock(2) has no timeout.
const MIN_BACKOFF: Duration = Duration::from_micros(200);
const MAX_BACKOFF: Duration = Duration::from_millis(10);

/// The mode of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockMode {
    /// Several processes can hold it at once.
    Shared,
    /// A single process holds it, and no other holds it shared.
    Exclusive,
}

/// Locks the file if that is possible at once; returns whether it is locked. Closing the file releases the lock.
///
/// # Errors
/// Of flock(2).
pub fn try_lock(file: impl AsFd, mode: LockMode) -> io::Result<bool> {
    let operation = match mode {
        LockMode::Shared => FlockOperation::NonBlockingLockShared,
        LockMode::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, operation)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Locks the file; returns whether it is locked: `false` after the timeout. Before each back-off, calls `while_waiting`
/// with the time elapsed. Closing the file releases the lock.
///
/// # Errors
/// Of flock(2), or of `while_waiting`.
pub fn lock_within(
    file: impl AsFd,
    mode: LockMode,
    timeout: Duration,
    mut while_waiting: impl FnMut(Duration) -> io::Result<()>,
) -> io::Result<bool> {
    let begin = Instant::now();
    let mut backoff = MIN_BACKOFF;
    while !try_lock(&file, mode)? {
        let elapsed = begin.elapsed();
        let Some(left) = timeout.checked_sub(elapsed).filter(|left| !left.is_zero()) else { return Ok(false) };
        while_waiting(elapsed)?;
        std::thread::sleep(backoff.min(left));
        backoff = (backoff * 2).min(MAX_BACKOFF);
    }
    Ok(true)
}

/// A locked file, unlocked when it is dropped: also for the processes that have inherited its descriptor.
#[derive(Debug)]
pub struct LockedFile<F: AsFd>(F);

impl<F: AsFd> Drop for LockedFile<F> {
    fn drop(&mut self) {
        // It cannot fail: the descriptor is open.
        let _cannot_fail = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

impl<F: AsFd> LockedFile<F> {
    /// Locks the file, as [`lock_within`]; `None` after the timeout.
    ///
    /// # Errors
    /// As [`lock_within`].
    pub fn lock_within(
        file: F,
        mode: LockMode,
        timeout: Duration,
        mut while_waiting: impl FnMut(&F, Duration) -> io::Result<()>,
    ) -> io::Result<Option<Self>> {
        let is_locked = lock_within(&file, mode, timeout, |elapsed| while_waiting(&file, elapsed))?;
        Ok(is_locked.then(|| Self(file)))
    }

    /// Lets programs that are executed from now on inherit the lock: it is held until it is dropped, or, if this
    /// process is killed, until they end.
    ///
    /// # Errors
    /// Of fcntl(2).
    pub fn make_inheritable(&self) -> io::Result<()> {
        Ok(rustix::io::fcntl_setfd(&self.0, FdFlags::empty())?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(5);

    #[test]
    fn locks_exclude_each_other_by_mode() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(temp.path()).unwrap();
        let (one, other) = (open(), open());
        assert!(try_lock(&one, LockMode::Shared).unwrap());
        assert!(try_lock(&other, LockMode::Shared).unwrap());
        assert!(!try_lock(&one, LockMode::Exclusive).unwrap());
        drop(other);
        assert!(try_lock(&one, LockMode::Exclusive).unwrap());
        assert!(!lock_within(open(), LockMode::Shared, TIMEOUT, |_| Ok(())).unwrap());
    }

    #[test]
    fn waiters_get_a_released_lock() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        let open = || File::open(temp.path()).unwrap();
        let far = Duration::from_secs(60);
        let mut held = LockedFile::lock_within(open(), LockMode::Exclusive, TIMEOUT, |_, _| Ok(())).unwrap();
        let mut last = None;
        let locked = LockedFile::lock_within(open(), LockMode::Exclusive, far, |_, elapsed| {
            assert!(last < Some(elapsed));
            if last.replace(elapsed).is_some() {
                held = None;
            }
            Ok(())
        });
        assert!(locked.unwrap().is_some() && last.is_some());
        let failed = |_: &File, _| Err(io::ErrorKind::Other.into());
        let held = LockedFile::lock_within(open(), LockMode::Exclusive, TIMEOUT, |_, _| Ok(())).unwrap();
        assert!(LockedFile::lock_within(open(), LockMode::Exclusive, far, failed).is_err());
        drop(held);
    }

    #[test]
    fn dropping_unlocks_inherited_descriptors() {
        let temp = tempfile::NamedTempFile::new().unwrap();
        let file = File::open(temp.path()).unwrap();
        let inherited = file.try_clone().unwrap();
        let locked = LockedFile::lock_within(file, LockMode::Exclusive, TIMEOUT, |_, _| Ok(())).unwrap().unwrap();
        let is_inheritable = |locked: &LockedFile<File>| rustix::io::fcntl_getfd(&locked.0).unwrap().is_empty();
        assert!(!is_inheritable(&locked));
        locked.make_inheritable().unwrap();
        assert!(is_inheritable(&locked));
        drop(locked);
        assert!(try_lock(File::open(temp.path()).unwrap(), LockMode::Exclusive).unwrap());
        drop(inherited);
    }
}
