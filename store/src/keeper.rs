//! The keeper's lock, which makes gantryd the only keeper of a data directory, and the sync of commits to disk.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use gantry_model::ErrorKind;

use crate::db::{Sync, read_counters};
use crate::lock::{LockMode, open_lock_file, try_lock};
use crate::{Layout, Store, StoreError, reserve};

/// The name of the lock below `locks/`. Never collected.
pub(crate) const KEEPER_LOCK: &str = "gantryd.lock";

/// The keeper of a data directory.
#[derive(Debug)]
pub enum Keeper {
    /// The caller, from now on.
    Ours(KeeperLock),
    /// Another process.
    Other {
        /// Its process id as it recorded it; for people only.
        pid: Option<u32>,
    },
}

/// The right to keep a data directory; ends when this is dropped or its holder dies.
#[derive(Debug)]
pub struct KeeperLock {
    _file: OwnedFd,
}

/// [`Store::lock_keeper`], before the store is opened.
pub(crate) fn lock(layout: &Layout) -> Result<Keeper, StoreError> {
    let path = layout.locks_dir().join(KEEPER_LOCK);
    let fd = match open_lock_file(&path) {
        // It is created with the data directory; if it was lost, the reserve gives space for its name as well.
        Err(error) if error.is_full() => {
            reserve::spend(layout)?;
            open_lock_file(&path)?
        }
        other => other?,
    };
    let ours = try_lock(&fd, LockMode::Exclusive).map_err(StoreError::io("lock", &path))?;
    let file = File::from(fd);
    if !ours {
        let mut text = String::new();
        // The pid is for display only, and has far fewer digits.
        let read = (&file).take(32).read_to_string(&mut text);
        return Ok(Keeper::Other { pid: read.ok().and_then(|_| text.trim().parse().ok()) });
    }
    // Written in place with a fixed length: on a full disk an allocated block can be written, but none can be
    // allocated. The pid is for display only, so a full disk is no error.
    match file.write_all_at(format!("{:<10}\n", std::process::id()).as_bytes(), 0) {
        Err(error) if ErrorKind::of_io(&error) != ErrorKind::Exhausted => {
            return Err(StoreError::io("write", &path)(error));
        }
        _ => {}
    }
    Ok(Keeper::Ours(KeeperLock { _file: file.into() }))
}

impl Store {
    /// Takes the keeper's lock, if it is free.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn lock_keeper(&self) -> Result<Keeper, StoreError> {
        lock(&self.layout)
    }

    /// Whether a process has the keeper's lock, without taking it: a gantryd that starts meanwhile must get it.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn is_kept(&self) -> Result<bool, StoreError> {
        // Each line of proc_locks(5) has the inode at the end of its sixth field, `MAJOR:MINOR:INODE`.
        const LOCKS: &str = "/proc/locks";
        let path = self.layout.locks_dir().join(KEEPER_LOCK);
        let inode = format!(":{}", std::fs::metadata(&path).map_err(StoreError::io("examine", &path))?.ino());
        let locks = std::fs::read_to_string(LOCKS).map_err(StoreError::io("read", std::path::Path::new(LOCKS)))?;
        Ok(locks.lines().any(|line| line.contains("FLOCK") && line.split(' ').any(|field| field.ends_with(&inode))))
    }

    /// Makes all commits of all processes so far survive a power cut.
    ///
    /// Syncs the WAL and copies nothing: its frames carry checksums, and recovery reads synced frames. A checkpoint
    /// would do more, and make the next command that writes pay for a sync of the WAL's new header.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn make_durable(&self) -> Result<(), StoreError> {
        // Before the sync, which may miss commits made during it.
        let counters = read_counters(&self.conn).map_err(StoreError::sql("sync the database"))?;
        let path = self.layout.wal();
        // Closing this drops the process's POSIX locks on the file (fcntl(2)); SQLite takes none on the WAL.
        match File::open(&path) {
            Ok(wal) => wal.sync_data().map_err(StoreError::io("sync", &path))?,
            // No WAL: everything is in the database file, synced before the WAL was removed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(StoreError::io("open", &path)(error)),
        }
        if let Some(counters) = counters {
            self.raise_high_water(counters, Sync::Now);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keeper_lock_is_exclusive_and_survives_collection() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        let Keeper::Ours(lock) = store.lock_keeper().unwrap() else { panic!("the lock is free") };
        store.sweep_images().unwrap();
        let second = store.lock_keeper().unwrap();
        assert!(matches!(second, Keeper::Other { pid } if pid == Some(std::process::id())), "{second:?}");
        drop(lock);
        store.sweep_images().unwrap();
        assert!(store.layout().locks_dir().join(KEEPER_LOCK).exists());
        assert!(matches!(store.lock_keeper().unwrap(), Keeper::Ours(_)));
    }

    #[test]
    fn durability_with_and_without_a_wal() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        assert!(store.layout().wal().exists(), "the test sees a WAL");
        store.make_durable().unwrap();
        std::fs::rename(store.layout().wal(), home.path().join("aside")).unwrap();
        store.make_durable().unwrap();
    }
}
