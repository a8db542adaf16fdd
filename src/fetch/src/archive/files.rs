//! Named files of an archive or a directory, for [`crate::layout`] and `docker`.

use std::io::Read;

use gantry_host::file::read_truncated;
use gantry_model::id::shown;

use crate::source::SourceError;

/// A container of files by clean relative paths (`blobs/sha256/…`). Several threads use it at once.
pub(crate) trait Files: Send + Sync {
    /// The scheme of a reference that names one image of these files, if they are an OCI layout.
    const SCHEME: &str;

    /// The name in messages.
    fn place(&self) -> String;

    /// Whether a file exists.
    fn has(&self, path: &str) -> Result<bool, SourceError>;

    /// Opens a file: its length, and its bytes from `offset` on.
    fn open(&self, path: &str, offset: u64) -> Result<(u64, Box<dyn Read + Send>), SourceError>;

    /// Reads a small file.
    fn small(&self, path: &str, most: u64) -> Result<Vec<u8>, SourceError> {
        let (size, file) = self.open(path, 0)?;
        let what = || format!("{} in {}", shown(path), self.place());
        if size > most {
            return Err(SourceError::TooLarge { what: what(), most });
        }
        // The file may have grown since.
        read_truncated(file, most).map_err(|source| SourceError::Io { what: what(), source })
    }

    /// The error for a missing file.
    fn missing(&self, path: &str) -> SourceError {
        SourceError::NotFound { what: format!("'{}'", shown(path)), place: self.place() }
    }
}
