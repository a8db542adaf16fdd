//! A megabyte of disk space, released when the disk is full: opening a database and recording a removal need a few
//! pages, without which a full disk could not be emptied.
//!
//! `DIR/reserve` is created when there is room (by each opener, and after each removal) and deleted when there is none.
//! It has no content, so neither a crash nor its absence matters: without it, a removal deletes data before it is
//! recorded.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind::{AlreadyExists, NotFound, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rustix::fs::FallocateFlags;

use crate::tmp::{self, Scrap};
use crate::{Layout, StoreError};

const BYTES: u64 = 1 << 20;
/// The free space below which none is set aside, in bytes. Below it, hardly anything but a removal succeeds.
pub const MIN_ROOM: u64 = 2 * BYTES;

fn path(layout: &Layout) -> PathBuf {
    layout.root().join("reserve")
}

/// Sets the space aside unless it already is. Does nothing without [`MIN_ROOM`], or on a file system that
/// cannot allocate or is read-only.
pub(crate) fn fill(layout: &Layout) -> Result<(), StoreError> {
    let path = path(layout);
    if path.exists() {
        return Ok(());
    }
    let room =
        rustix::fs::statvfs(layout.root()).map_err(StoreError::io("examine the file system of", layout.root()))?;
    if room.f_bavail.saturating_mul(room.f_frsize) < MIN_ROOM {
        return Ok(());
    }
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), AlreadyExists | StorageFull | QuotaExceeded | ReadOnlyFilesystem) => {
            return Ok(());
        }
        Err(error) => return Err(StoreError::io("create", &path)(error)),
    };
    if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES).is_err() { spend(layout) } else { Ok(()) }
}

/// Whether not even a few pages can be written: the disk is full, or a quota is exhausted.
pub(crate) fn is_exhausted(layout: &Layout) -> bool {
    const PAGES: u64 = 64 << 10;
    let probe = || {
        let (mut file, path) = tmp::make_file(layout, "probe")?;
        let _scrap = Scrap::new(layout, path.clone());
        let written = io::copy(&mut io::repeat(0).take(PAGES), &mut file).and_then(|_| file.sync_data());
        written.map_err(StoreError::io("write", &path))
    };
    matches!(probe(), Err(StoreError::Io { source, .. }) if matches!(source.kind(), StorageFull | QuotaExceeded))
}

/// Gives the space back.
pub(crate) fn spend(layout: &Layout) -> Result<(), StoreError> {
    let path = path(layout);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != NotFound => Err(StoreError::io("delete", &path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probing_for_space_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let store = crate::Store::open(&home.path().join("data")).unwrap();
        assert!(!is_exhausted(store.layout()));
        assert_eq!(fs::read_dir(store.layout().tmp_dir()).unwrap().count(), 0);
    }
}
