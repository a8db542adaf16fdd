//! Locks (flock(2)) of the store's files, and the directories that they are in.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use gantry_host::file_id::FileId;
pub(crate) use gantry_host::lock::{LockMode, try_lock};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::StoreError;

/// Locks a file; `waiting` is called once if another process holds the lock. Closing the file releases the lock.
pub(crate) fn lock_within(
    file: impl AsFd,
    mode: LockMode,
    path: &Path,
    timeout: Duration,
    waiting: &mut dyn FnMut(),
) -> Result<(), StoreError> {
    let mut is_first = true;
    let locked = gantry_host::lock::lock_within(file, mode, timeout, |_| {
        if std::mem::take(&mut is_first) {
            waiting();
        }
        Ok(())
    });
    match locked.map_err(StoreError::io("lock", path))? {
        true => Ok(()),
        false => Err(StoreError::Locked { path: path.to_owned(), seconds: timeout.as_secs() }),
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
    let ours = FileId::from(&rustix::fs::fstat(file)?);
    match rustix::fs::lstat(path) {
        Ok(named) => Ok(FileId::from(&named) == ours),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Makes the names in a directory durable. Follows a link, as the creation of these names did.
pub(crate) fn sync_dir(path: &Path) -> Result<(), StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(StoreError::io("open", path))?;
    gantry_host::file::sync_dir(dir).map_err(StoreError::io("sync", path))
}
