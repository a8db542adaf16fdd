//! Writes the journal: one `write` per fact, to a file opened for appending.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use gantry_contract::journal::{Fact, Record, line};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Attempt, Result};

/// Disk space reserved for the journal, in bytes.
const RESERVED: u64 = 16 << 10;

/// The open journal of this pod.
pub(crate) struct Journal {
    file: OwnedFd,
    /// Whether the file ends within a line because the disk was full.
    is_torn: Cell<bool>,
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
        // The last facts must fit when the disk is full. File systems without fallocate do without the reserve.
        let reserved = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVED);
        if let Err(full @ (Errno::NOSPC | Errno::DQUOT)) = reserved {
            return Err(full).attempt(|| "cannot reserve disk space for the pod's journal");
        }
        Ok(Self { file, is_torn: Cell::new(false) })
    }

    /// Appends a fact. On a full disk it is lost: the supervisor logs a warning and keeps the pod running, and the
    /// engine reports the app as lost.
    pub(crate) fn append(&self, fact: Fact) {
        let Ok(mut bytes) = line(&Record { at: now(), fact }) else { return };
        if self.is_torn.get() {
            // Ends the torn line, which readers skip. Otherwise this fact would be part of it.
            bytes.insert(0, b'\n');
        }
        let why = match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, &bytes)) {
            Ok(written) if written == bytes.len() => return self.is_torn.set(false),
            Ok(written) => {
                self.is_torn.set(written > 0 || self.is_torn.get());
                "the disk is full".to_owned()
            }
            Err(error) => error.to_string(),
        };
        tracing::warn!("cannot append to the journal: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::PipeFlags;

    /// A pipe that takes half a record plays the disk that fills up.
    #[test]
    fn a_torn_record_does_not_damage_the_next() {
        let (reader, file) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
        let journal = Journal { file, is_torn: Cell::new(false) };
        let long = Fact::Stopping { reason: "x".repeat(100_000) };
        journal.append(long);
        assert!(journal.is_torn.get());
        let mut bytes = vec![0; 1 << 20];
        let torn = rustix::io::read(&reader, &mut bytes).unwrap();
        journal.append(Fact::Ended);
        let rest = rustix::io::read(&reader, &mut bytes[torn..]).unwrap();
        let parsed = gantry_contract::journal::parse(&bytes[..torn + rest]);
        assert_eq!(parsed.records.iter().map(|r| &r.fact).collect::<Vec<_>>(), [&Fact::Ended]);
        assert!(!journal.is_torn.get());
    }
}
