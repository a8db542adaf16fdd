//! Writes the journal: one `write` per fact to a file opened for appending.

use std::cell::Cell;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::time::{SystemTime, UNIX_EPOCH};

use gantry_contract::journal::{Fact, Record, line};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Attempt, Result};

/// Bytes of disk set aside for the journal.
const RESERVED: u64 = 16 << 10;

/// The open journal of this pod.
pub(crate) struct Journal {
    file: OwnedFd,
    /// Whether the file ends within a line: the disk was full.
    torn: Cell<bool>,
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
        // Room for the last facts even when the disk is full by then: without it a pod that ended well could not say so.
        // A file system that cannot set space aside is no reason to stop.
        let set_aside = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, RESERVED);
        if let Err(full @ (Errno::NOSPC | Errno::DQUOT)) = set_aside {
            return Err(full).attempt(|| "cannot set space aside for the pod's journal");
        }
        Ok(Self { file, torn: Cell::new(false) })
    }

    /// Appends a fact. A full disk loses it: the supervisor's stderr says so, and the engine then tells of a lost app
    /// rather than the supervisor ending the pod for want of space.
    pub(crate) fn append(&self, fact: Fact) {
        let Ok(mut bytes) = line(&Record { at: now(), fact }) else { return };
        if self.torn.get() {
            // The torn line ends here and is passed over; without this it would take the next fact with it.
            bytes.insert(0, b'\n');
        }
        let why = match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, &bytes)) {
            Ok(written) if written == bytes.len() => return self.torn.set(false),
            Ok(written) => {
                self.torn.set(written > 0 || self.torn.get());
                "the disk is full".to_owned()
            }
            Err(error) => error.to_string(),
        };
        // Not eprintln!, which panics when stderr, a file on the same full disk, cannot be written.
        let _ = writeln!(std::io::stderr(), "gantry-stage1: cannot append to the journal: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::PipeFlags;

    /// A pipe that takes half a record stands for the disk that is full within one.
    #[test]
    fn a_torn_record_does_not_take_the_next_one_with_it() {
        let (reader, file) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
        let journal = Journal { file, torn: Cell::new(false) };
        let long = Fact::Stopping { reason: "x".repeat(100_000) };
        journal.append(long);
        assert!(journal.torn.get());
        let mut bytes = vec![0; 1 << 20];
        let torn = rustix::io::read(&reader, &mut bytes).unwrap();
        journal.append(Fact::Ended);
        let rest = rustix::io::read(&reader, &mut bytes[torn..]).unwrap();
        let parsed = gantry_contract::journal::parse(&bytes[..torn + rest]);
        assert_eq!(parsed.records.iter().map(|r| &r.fact).collect::<Vec<_>>(), [&Fact::Ended]);
        assert!(!journal.torn.get());
    }
}
