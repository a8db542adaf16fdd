//! Limits against hostile images. Each is checked while bytes stream by, so a decompression bomb is stopped early and
//! costs no more than its limit.
//!
//! The ratio of compression has no limit: honest layers of zeros reach the 1032 of deflate, and 30,000 with zstd. What
//! comes out is limited.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::unpack::UnpackError;

/// Limits of one layer, and of the layers of an image together. [`Caps::default`] accepts every legitimate image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caps {
    /// Maximum length of one layer after decompression in bytes.
    pub max_layer_bytes: u64,
    /// Maximum length of the layers that are unpacked for one image together, after decompression in bytes.
    pub max_image_bytes: u64,
    /// Maximum number of files, directories, links and whiteouts of one layer, including implicit parents.
    pub max_entries: u64,
    /// Maximum length of one file in bytes, including the holes of a sparse file.
    pub max_file: u64,
    /// Maximum memory in bytes for names that are kept until the end: those of a layer's directories, with their
    /// attributes, and of its hard links to lower layers; or those of an archive's files.
    pub max_names: u64,
    /// Maximum length of one extension header (PAX records, sparse map) in bytes.
    pub max_pax: u64,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_layer_bytes: 64 << 30,
            max_image_bytes: 128 << 30,
            max_entries: 2_000_000,
            max_file: 64 << 30,
            max_names: 256 << 20,
            max_pax: 1 << 20,
        }
    }
}

/// Counts the bytes of an image's layers, which several threads unpack, against their limit.
#[derive(Debug)]
pub struct ImageBytes {
    most: u64,
    unpacked: AtomicU64,
}

impl ImageBytes {
    /// Nothing is unpacked yet.
    #[must_use]
    pub fn new(caps: &Caps) -> Self {
        Self { most: caps.max_image_bytes, unpacked: AtomicU64::new(0) }
    }

    /// Counts bytes of a layer.
    ///
    /// # Errors
    /// [`UnpackError::ImageTooLarge`].
    pub(crate) fn count(&self, bytes: u64) -> Result<(), UnpackError> {
        let before = self.unpacked.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > self.most {
            return Err(UnpackError::ImageTooLarge { most: self.most });
        }
        Ok(())
    }
}
