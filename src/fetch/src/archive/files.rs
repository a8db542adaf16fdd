//! Named files in a place: an archive or a directory. What [`crate::layout`] and `docker` read from.

use std::io::Read;

use gantry_model::id::shown;

use crate::source::SourceError;

/// A place with files in it, by their clean relative paths (`blobs/sha256/…`). Used by several threads at once.
pub(crate) trait Files: Sync {
    /// What messages call the place.
    fn place(&self) -> String;

    /// Whether there is such a file.
    fn has(&self, path: &str) -> Result<bool, SourceError>;

    /// The length of a file and its bytes from `offset` on.
    fn open(&self, path: &str, offset: u64) -> Result<(u64, Box<dyn Read + Send>), SourceError>;

    /// A small file, whole.
    fn small(&self, path: &str, most: u64) -> Result<Vec<u8>, SourceError> {
        let (size, file) = self.open(path, 0)?;
        let what = || format!("{} in {}", shown(path), self.place());
        if size > most {
            return Err(SourceError::TooLarge { what: what(), most });
        }
        let mut bytes = Vec::new();
        // The file may be longer by now.
        file.take(most).read_to_end(&mut bytes).map_err(|source| SourceError::Io { what: what(), source })?;
        Ok(bytes)
    }

    /// The error for a file that is not there.
    fn missing(&self, path: &str) -> SourceError {
        SourceError::NotFound { what: format!("'{}'", shown(path)), place: self.place() }
    }
}
