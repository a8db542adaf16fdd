//! Caches the last journal that was read: the next read parses only the lines appended since.
//!
//! A command that changes a running pod reconciles its row before and after the request, and a long-lived pod has a
//! long journal.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use gantry_contract::journal::{self, Parsed};
use gantry_host::file::read_from;

use super::pod_dir::MAX_JOURNAL;
use super::wait::has_end;

/// The last journal that was read. Disabled by default: a daemon with many engines would keep one journal per engine in
/// memory.
#[derive(Debug, Default)]
pub(crate) struct JournalCache {
    is_enabled: bool,
    last: RefCell<Option<CachedJournal>>,
}

#[derive(Debug)]
struct CachedJournal {
    /// Kept open so that its inode number is not reused. Supervisors append to a journal or rename a new file over it;
    /// they never rewrite it in place, and the engine removes it before a pod is started again.
    file: File,
    dev: u64,
    ino: u64,
    /// The bytes parsed so far: complete lines only.
    length: u64,
    parsed: Arc<Parsed>,
}

impl JournalCache {
    /// From now on, keeps the last journal that was read.
    pub(crate) fn enable(&mut self) {
        self.is_enabled = true;
    }

    /// Closes the file. Called before a pod is removed: closing the last descriptor of a deleted file frees its blocks,
    /// which may wait for the disk.
    pub(crate) fn forget(&self) {
        self.last.take();
    }

    /// Reads an open journal. One with the end of the pod is not kept.
    ///
    /// # Errors
    /// Those of read(2); [`ErrorKind::InvalidData`] if it is not a regular file, or too long.
    pub(crate) fn read(&self, file: File) -> io::Result<Arc<Parsed>> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(ErrorKind::InvalidData, "it is not a regular file"));
        }
        let cached = self.last.take().filter(|cached| cached.is_beginning_of(&metadata));
        let mut cached = cached.unwrap_or_else(|| CachedJournal::new(file, &metadata));
        cached.read_appended(metadata.len())?;
        let parsed = Arc::clone(&cached.parsed);
        if self.is_enabled && !has_end(&parsed) {
            self.last.replace(Some(cached));
        }
        Ok(parsed)
    }
}

impl CachedJournal {
    fn new(file: File, metadata: &Metadata) -> Self {
        Self { file, dev: metadata.dev(), ino: metadata.ino(), length: 0, parsed: Arc::default() }
    }

    fn is_beginning_of(&self, metadata: &Metadata) -> bool {
        (self.dev, self.ino) == (metadata.dev(), metadata.ino()) && self.length <= metadata.len()
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
