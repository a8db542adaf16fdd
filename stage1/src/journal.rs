//! Writes the journal: one `write` per fact to a file opened for appending.

use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use gantry_contract::journal::{Fact, Record, line};
use rustix::fs::{FallocateFlags, Mode, OFlags};

use crate::failure::{Attempt, Result};

/// Bytes of disk set aside for the journal.
const RESERVED: u64 = 16 << 10;

/// The open journal of this pod.
pub(crate) struct Journal {
    file: OwnedFd,
}

/// Nanoseconds since the epoch.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Journal {
    /// Opens the journal of the pod directory, empty.
    pub(crate) fn create(pod_dir: &OwnedFd) -> Result<Self> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(pod_dir, gantry_contract::files::JOURNAL, flags, Mode::from_raw_mode(0o600))
            .attempt(|| "cannot make the pod's journal")?;
        // Room for the last facts even when the disk is full by then. A file system that cannot do it is no reason to stop.
        let _ = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVED);
        Ok(Self { file })
    }

    /// Appends a fact. A full disk loses it: the supervisor's stderr says so, and the engine then tells of a lost app
    /// rather than the supervisor ending the pod for want of space.
    pub(crate) fn append(&self, fact: Fact) {
        let Ok(bytes) = line(&Record { at: now(), fact }) else { return };
        if let Err(error) = rustix::io::write(&self.file, &bytes) {
            eprintln!("gantry-stage1: cannot append to the journal: {error}");
        }
    }
}
