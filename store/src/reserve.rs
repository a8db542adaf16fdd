//! A megabyte of disk space, released when the disk is full: opening a database and recording a removal need a few
//! pages, without which a full disk could not be emptied.
//!
//! `DIR/reserve` is created when there is room (by each opener, and after each removal) and deleted when there is none.
//! It has no content, so neither a crash nor its absence matters: without it, a removal deletes data before it is
//! recorded.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind::{AlreadyExists, NotFound, ReadOnlyFilesystem, StorageFull};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rustix::fs::FallocateFlags;

use crate::{Layout, StoreError};

const BYTES: u64 = 1 << 20;

fn path(layout: &Layout) -> PathBuf {
    layout.root().join("reserve")
}

/// Sets the space aside unless it already is. Does nothing without room for twice as much, or on a file system that
/// cannot allocate or is read-only.
pub(crate) fn fill(layout: &Layout) -> Result<(), StoreError> {
    let path = path(layout);
    if path.exists() {
        return Ok(());
    }
    let room =
        rustix::fs::statvfs(layout.root()).map_err(StoreError::io("examine the file system of", layout.root()))?;
    if room.f_bavail.saturating_mul(room.f_frsize) < 2 * BYTES {
        return Ok(());
    }
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), AlreadyExists | StorageFull | ReadOnlyFilesystem) => return Ok(()),
        Err(error) => return Err(StoreError::io("create", &path)(error)),
    };
    if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES).is_err() { spend(layout) } else { Ok(()) }
}

/// Gives the space back.
pub(crate) fn spend(layout: &Layout) -> Result<(), StoreError> {
    let path = path(layout);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != NotFound => Err(StoreError::io("delete", &path)(error)),
        _ => Ok(()),
    }
}
