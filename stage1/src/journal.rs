//! Writes the journal: one `write` per fact, to a file opened for appending. What a full or failing disk does not take
//! is kept in memory, and written before the next fact, or after a while.
//!
//! A journal that has grown long is replaced by a shorter one of the same meaning ([`journal::compact`]), which is
//! written beside it and renamed. Nothing is appended meanwhile.
//!
//! | killed after | left behind | removed by |
//! |---|---|---|
//! | the new file was made | `journal.new`; the journal is whole | the engine, when it finalizes the pod |
//! | the rename | the new journal, which is whole | |
//!
//! Neither file is synced: a power cut may lose facts, and the pod has ended then. Its row has those that were
//! reconciled.
//!
//! The journal is locked (fcntl(2), a record lock) as long as this process lives, by which readers know that it does.
//! Children do not inherit the lock. Closing any descriptor of the file would release it.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use gantry_contract::files::{JOURNAL, NEW_JOURNAL};
use gantry_contract::journal::{self, Fact, Record, line};
use gantry_host::file::read_stream;
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::failure::{Attempt, Result};

/// Disk space reserved for the journal, in bytes.
const RESERVED: u64 = 16 << 10;

/// The size in bytes at which a journal is replaced: this one, or twice that of the last compaction.
const MIN_COMPACTED_SIZE: u64 = 512 << 10;

/// How many of the newest facts of each app stay: some 30 attempts.
const MAX_FACTS_PER_APP: usize = 128;

/// The maximum size of a journal that is compacted, in bytes. Compactions keep it far below.
const MAX_SIZE: u64 = 64 << 20;

/// How many bytes are kept that could not be written. Further facts are lost.
const MAX_UNWRITTEN: usize = 256 << 10;

/// How long after a failure the journal is written again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The open journal of this pod.
pub(crate) struct Journal {
    file: OwnedFd,
    /// What the disk has not taken yet. It may begin within a line.
    unwritten: RefCell<Vec<u8>>,
    /// When that is tried again.
    retry_at: Cell<Option<Instant>>,
    /// Its size in bytes.
    size: Cell<u64>,
    /// The size up to which disk space is reserved.
    reserved_to: Cell<u64>,
    /// The size at which it is replaced.
    compact_at: u64,
}

/// Nanoseconds since the epoch.
pub(crate) fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

impl Journal {
    /// Opens the journal of the pod directory, empty.
    pub(crate) fn create(pod_dir: &OwnedFd) -> Result<Self> {
        Self::create_file(pod_dir, JOURNAL).attempt(|| "cannot make the pod's journal")
    }

    fn create_file(pod_dir: &OwnedFd, name: &str) -> rustix::io::Result<Self> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(pod_dir, name, flags, Mode::from_raw_mode(0o600))?;
        let journal = Self::of_file(file);
        journal.reserve()?;
        journal.lock();
        Ok(journal)
    }

    /// The journal of an empty file.
    fn of_file(file: OwnedFd) -> Self {
        Self {
            file,
            unwritten: RefCell::default(),
            retry_at: Cell::new(None),
            size: Cell::new(0),
            reserved_to: Cell::new(0),
            compact_at: MIN_COMPACTED_SIZE,
        }
    }

    /// Reserves disk space after the last fact: the next ones must fit when the disk is full. File systems without
    /// fallocate do without the reserve.
    fn reserve(&self) -> rustix::io::Result<()> {
        let end = match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.size.get(), RESERVED) {
            Ok(()) => self.size.get() + RESERVED,
            Err(full @ (Errno::NOSPC | Errno::DQUOT)) => return Err(full),
            Err(_) => u64::MAX,
        };
        self.reserved_to.set(end);
        Ok(())
    }

    /// Reserves more disk space when half of the reserve is used.
    fn renew_reserve(&self) {
        if self.size.get() + RESERVED / 2 > self.reserved_to.get() {
            // On a full disk, the rest of the reserve is left; the next fact tries again.
            let _retried = self.reserve();
        }
    }

    /// Takes the lock by which readers know that this process lives.
    fn lock(&self) {
        // Without it they look at the process itself.
        let _best_effort = rustix::fs::fcntl_lock(&self.file, FlockOperation::NonBlockingLockExclusive);
    }

    /// Replaces the journal by a shorter one if it has grown long. Takes some milliseconds.
    pub(crate) fn compact_if_long(&mut self, pod_dir: &OwnedFd) {
        // The file may end within a line whose rest is unwritten.
        if self.size.get() < self.compact_at || !self.unwritten.borrow().is_empty() {
            return;
        }
        match self.compact(pod_dir) {
            Ok(shorter) => *self = shorter,
            Err(error) => {
                tracing::warn!("cannot shorten the journal: {error}");
                // Compacting opened and closed the file, which released the lock.
                self.lock();
                self.compact_at = self.size.get() + MIN_COMPACTED_SIZE;
                let _removed_by_the_engine = rustix::fs::unlinkat(pod_dir, NEW_JOURNAL, AtFlags::empty());
            }
        }
    }

    fn compact(&self, pod_dir: &OwnedFd) -> rustix::io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(pod_dir, JOURNAL, flags, Mode::empty())?);
        let bytes = read_stream(file, MAX_SIZE).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let bytes = journal::compact(&bytes, MAX_FACTS_PER_APP);
        let mut shorter = Self::create_file(pod_dir, NEW_JOURNAL)?;
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&shorter.file, rest))?;
            rest = rest.get(written..).unwrap_or_default();
        }
        rustix::fs::renameat(pod_dir, NEW_JOURNAL, pod_dir, JOURNAL)?;
        let size = bytes.len() as u64;
        shorter.size.set(size);
        shorter.renew_reserve();
        shorter.compact_at = MIN_COMPACTED_SIZE.max(size.saturating_mul(2));
        Ok(shorter)
    }

    /// Appends a fact. If the disk does not take it, the supervisor logs a warning, keeps the fact and the pod running,
    /// and [`Self::retry`] writes it later. Until then, the engine believes the row.
    pub(crate) fn append(&self, fact: Fact) {
        let Ok(bytes) = line(&Record { at: now(), fact }) else { return };
        let mut unwritten = self.unwritten.borrow_mut();
        self.write_kept(&mut unwritten);
        if unwritten.is_empty() {
            unwritten.extend_from_slice(self.write(&bytes));
        } else if unwritten.len() + bytes.len() <= MAX_UNWRITTEN {
            unwritten.extend_from_slice(&bytes);
        } else {
            tracing::warn!("a fact is lost, because the journal could not be written for long");
        }
    }

    /// When [`Self::retry`] is due.
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        self.retry_at.get()
    }

    /// Writes what was not written, if it is time.
    pub(crate) fn retry(&self, now: Instant) {
        if self.retry_at.get().is_some_and(|at| at <= now) {
            self.write_kept(&mut self.unwritten.borrow_mut());
        }
    }

    fn write_kept(&self, unwritten: &mut Vec<u8>) {
        if unwritten.is_empty() {
            return;
        }
        let rest = self.write(unwritten).len();
        unwritten.drain(..unwritten.len() - rest);
        // It is not needed again for long.
        unwritten.shrink_to_fit();
    }

    /// Writes bytes to the end of the file. Returns what the disk does not take.
    fn write<'a>(&self, mut bytes: &'a [u8]) -> &'a [u8] {
        while !bytes.is_empty() {
            match rustix::io::retry_on_intr(|| rustix::io::write(&self.file, bytes)) {
                // A part, if the disk becomes full: the next call has the error.
                Ok(written) if written > 0 => bytes = bytes.get(written..).unwrap_or_default(),
                Ok(_) => return self.postpone(bytes, Errno::NOSPC),
                Err(error) => return self.postpone(bytes, error),
            }
        }
        self.retry_at.set(None);
        // The file is opened for appending: its end.
        self.size.set(rustix::fs::tell(&self.file).unwrap_or(0));
        self.renew_reserve();
        bytes
    }

    fn postpone<'a>(&self, rest: &'a [u8], error: Errno) -> &'a [u8] {
        if self.retry_at.replace(Some(Instant::now() + RETRY_INTERVAL)).is_none() {
            tracing::warn!("cannot append to the journal, which is tried again: {error}");
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_contract::journal::StopReason;
    use rustix::pipe::PipeFlags;

    /// A pipe that takes a part of a record plays the disk that fills up.
    #[test]
    fn facts_are_kept_until_the_disk_takes_them() {
        let (reader, file) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK).unwrap();
        let journal = Journal::of_file(file);
        let stopping = |length| Fact::Stopping { reason: StopReason::Other("x".repeat(length)) };
        let mut bytes = Vec::new();
        let mut read = || {
            let mut part = vec![0; 1 << 20];
            let length = rustix::io::read(&reader, &mut part).unwrap_or(0);
            bytes.extend_from_slice(&part[..length]);
            gantry_contract::journal::parse(&bytes).records.into_iter().map(|r| r.fact).collect::<Vec<_>>()
        };
        journal.append(stopping(100_000));
        assert!(journal.retry_at().is_some());
        assert_eq!(read(), []);
        // In order, and the first one from where it was torn.
        journal.append(Fact::Ended);
        assert_eq!(read(), [stopping(100_000), Fact::Ended]);
        assert_eq!(journal.retry_at(), None);
        // The last one is lost.
        (0..4).for_each(|_| journal.append(stopping(100_000)));
        let kept = journal.unwritten.borrow().len();
        assert!(kept <= MAX_UNWRITTEN, "{kept}");
        while let Some(due) = journal.retry_at() {
            let _some = read();
            let before = journal.unwritten.borrow().len();
            journal.retry(due.checked_sub(RETRY_INTERVAL).unwrap());
            assert_eq!(journal.unwritten.borrow().len(), before, "it is not time yet");
            journal.retry(due);
        }
        assert_eq!(read().len(), 5);
        assert!(journal.unwritten.borrow().is_empty());
    }

    #[test]
    fn a_long_journal_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let dir = OwnedFd::from(File::open(temp.path()).unwrap());
        let mut journal = Journal::create(&dir).unwrap();
        let read = || gantry_contract::journal::parse(&std::fs::read(temp.path().join(JOURNAL)).unwrap());
        let mut compactions = 0;
        for attempt in 0..20_000 {
            journal.append(Fact::AppStopping { app: "a".into(), attempt, unhealthy: false });
            let before = journal.size.get();
            journal.compact_if_long(&dir);
            compactions += usize::from(journal.size.get() < before);
            assert!(journal.size.get() < 2 * MIN_COMPACTED_SIZE);
        }
        assert!(compactions >= 2, "{compactions}");
        assert_eq!(
            read().records.last().map(|r| &r.fact),
            Some(&Fact::AppStopping { app: "a".into(), attempt: 19_999, unhealthy: false })
        );
        // A directory in the place of the new file: the journal stays, and is tried again when it has grown.
        std::fs::create_dir(temp.path().join(NEW_JOURNAL)).unwrap();
        journal.compact_at = 0;
        journal.compact_if_long(&dir);
        assert_eq!(journal.compact_at, journal.size.get() + MIN_COMPACTED_SIZE);
        journal.append(Fact::Ended);
        assert_eq!(read().records.last().map(|r| &r.fact), Some(&Fact::Ended));
    }
}
