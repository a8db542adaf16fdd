//! Advisory locks (flock(2)) with a deadline. The kernel releases a lock when its holder dies. Two open file
//! descriptions of one file exclude each other also within one process, so threads are covered.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::StoreError;

/// Takes a lock, polling until the deadline, because flock(2) has no timeout. `waiting` is called once when another
/// process holds it. `how` is one of the non-blocking operations.
pub(crate) fn lock_within(
    file: impl AsFd,
    how: FlockOperation,
    path: &Path,
    deadline: Duration,
    waiting: &mut dyn FnMut(),
) -> Result<(), StoreError> {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    let mut told = false;
    while !try_lock(&file, how).map_err(StoreError::io("lock", path))? {
        if !told {
            waiting();
            told = true;
        }
        let left = deadline.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Err(StoreError::Locked { path: path.to_owned(), seconds: deadline.as_secs() });
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(Duration::from_millis(100));
    }
    Ok(())
}

/// Takes a lock if it is free. `how` is one of the non-blocking operations.
pub(crate) fn try_lock(file: impl AsFd, how: FlockOperation) -> rustix::io::Result<bool> {
    match rustix::io::retry_on_intr(|| rustix::fs::flock(&file, how)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Opens a lock file, creating it if it is absent.
pub(crate) fn open_lock_file(path: &Path) -> Result<OwnedFd, StoreError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(StoreError::io("open the lock", path))
}

/// Opens a directory (never through a symbolic link as its last element).
pub(crate) fn open_dir(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Whether the opened file is still the one that the path names: a lock on a file that was removed or renamed in
/// between protects nothing.
pub(crate) fn still_named(file: impl AsFd, path: &Path) -> rustix::io::Result<bool> {
    let ours = rustix::fs::fstat(file)?;
    match rustix::fs::lstat(path) {
        Ok(named) => Ok((ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Makes the names in a directory durable.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    let dir = open_dir(path).map_err(StoreError::io("open", path))?;
    rustix::fs::fsync(dir).map_err(StoreError::io("sync", path))
}
