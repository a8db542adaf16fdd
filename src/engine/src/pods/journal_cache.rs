//! Caches journals that were read: the next read parses only the lines appended since.
//!
//! A call that changes a running pod reconciles its row several times, and a long-lived pod has a long journal. A
//! thread takes an entry out of the cache while it reads. Another one does not wait then: it reads the whole journal.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_contract::journal::{self, Parsed};
use gantry_host::file::read_from;
use gantry_host::file_id::FileId;
use gantry_model::PodId;

use super::pod_dir::MAX_JOURNAL;
use super::wait::has_end;

/// The journals of the pods that were changed last. Its clones are the same cache. By default, none is kept.
#[derive(Debug, Clone, Default)]
pub(crate) struct JournalCache(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    limits: CacheLimits,
    /// The one that was read last comes last.
    kept: Mutex<Vec<CachedJournal>>,
}

/// The most that a cache keeps.
#[derive(Debug, Clone, Copy)]
struct CacheLimits {
    /// Journals, each with an open file.
    journals: usize,
    /// The bytes of their files. The parsed facts take about three times as many.
    bytes: u64,
}

/// Of a command, which has one pod.
const COMMAND: CacheLimits = CacheLimits { journals: 1, bytes: MAX_JOURNAL };
/// Of all engines of a daemon. Few supervisors let a journal grow as long before they replace it.
const DAEMON: CacheLimits = CacheLimits { journals: 16, bytes: 1 << 20 };

#[derive(Debug)]
struct CachedJournal {
    pod: PodId,
    /// Kept open so that its inode number is not reused. Supervisors append to a journal or rename a new file over it;
    /// they never rewrite it in place, and the engine removes it before a pod is started again.
    file: File,
    id: FileId,
    /// The bytes parsed so far: complete lines only.
    length: u64,
    parsed: Arc<Parsed>,
}

impl JournalCache {
    /// A cache of the last journal that a command has read.
    pub(crate) fn of_command() -> Self {
        Self::within(COMMAND)
    }

    /// A cache that the threads of a daemon share.
    pub(crate) fn of_daemon() -> Self {
        Self::within(DAEMON)
    }

    fn within(limits: CacheLimits) -> Self {
        Self(Some(Arc::new(Shared { limits, kept: Mutex::default() })))
    }

    /// Drops the journal of a pod, and closes its file. Called before a pod is removed: closing the last descriptor of
    /// a deleted file frees its blocks, which may wait for the disk.
    pub(crate) fn forget(&self, pod: PodId) {
        drop(self.0.as_ref().and_then(|shared| shared.take(pod)));
    }

    /// Reads the open journal of a pod. One with the end of the pod is not kept.
    ///
    /// # Errors
    /// Those of read(2); [`ErrorKind::InvalidData`] if it is not a regular file, or too long.
    pub(crate) fn read(&self, pod: PodId, file: File) -> io::Result<Arc<Parsed>> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidData, "it is not a regular file"));
        }
        let cached = self.0.as_ref().and_then(|shared| shared.take(pod));
        let cached = cached.filter(|cached| cached.is_beginning_of(&metadata));
        let mut cached = cached.unwrap_or_else(|| CachedJournal::new(pod, file, &metadata));
        cached.read_appended(metadata.len())?;
        let parsed = Arc::clone(&cached.parsed);
        if let Some(shared) = self.0.as_ref().filter(|_| !has_end(&parsed)) {
            shared.keep(cached);
        }
        Ok(parsed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Vec<CachedJournal>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, pod: PodId) -> Option<CachedJournal> {
        let mut kept = self.lock();
        let place = kept.iter().position(|cached| cached.pod == pod)?;
        Some(kept.remove(place))
    }

    /// Keeps a journal in place of another thread's of this pod, and of the oldest ones beyond the limits; one that is
    /// beyond them alone is not kept.
    fn keep(&self, cached: CachedJournal) {
        let CacheLimits { journals, bytes } = self.limits;
        if cached.length > bytes {
            return;
        }
        let mut kept = self.lock();
        // The files of the dropped ones are closed when the lock has been released.
        let mut dropped: Vec<_> = kept.extract_if(.., |other| other.pod == cached.pod).collect();
        kept.push(cached);
        let is_over = |kept: &[CachedJournal]| {
            kept.len() > journals || kept.iter().map(|cached| cached.length).sum::<u64>() > bytes
        };
        while is_over(&kept) {
            dropped.push(kept.remove(0));
        }
        drop(kept);
    }
}

impl CachedJournal {
    fn new(pod: PodId, file: File, metadata: &Metadata) -> Self {
        Self { pod, file, id: FileId::from(metadata), length: 0, parsed: Arc::default() }
    }

    fn is_beginning_of(&self, metadata: &Metadata) -> bool {
        self.id == FileId::from(metadata) && self.length <= metadata.len()
    }

    /// Parses the complete lines after those that were parsed; `size` is the file's, in bytes.
    fn read_appended(&mut self, size: u64) -> io::Result<()> {
        let limit = MAX_JOURNAL.saturating_sub(self.length);
        let bytes = read_from(&self.file, self.length, size, limit).map_err(|error| match error.kind() {
            ErrorKind::FileTooLarge => {
                io::Error::new(ErrorKind::InvalidData, format!("it is longer than {MAX_JOURNAL} bytes"))
            }
            _ => error,
        })?;
        // The supervisor may be writing the last line.
        let whole = bytes.iter().rposition(|&c| c == b'\n').map_or(0, |last| last + 1);
        if whole > 0 {
            Arc::make_mut(&mut self.parsed).extend(journal::parse(bytes.get(..whole).unwrap_or_default()));
            self.length += whole as u64;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "journal_cache_tests.rs"]
mod tests;
