//! Errors of unpacking a layer.

use gantry_model::{ErrorKind, Kind, id::shown};
use thiserror::Error;

/// A layer (or an archive) could not be unpacked. The caller removes what was written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UnpackError {
    /// The compressed stream could not be read (a registry or a disk failed).
    #[error("cannot read the layer")]
    Read(#[source] std::io::Error),
    /// The stream does not decompress.
    #[error("the layer's compressed data is damaged: {why}")]
    Corrupt {
        /// The error of the decompressor.
        why: String,
    },
    /// The stream is truncated.
    #[error("the layer's tar stream ends early, {at}")]
    Truncated {
        /// The position in the archive.
        at: &'static str,
    },
    /// The tar stream breaks the format.
    #[error("the layer is not a valid tar archive: {why}")]
    Format {
        /// The violated rule.
        why: &'static str,
    },
    /// An entry is refused.
    #[error("entry '{}' of the layer is refused: {why}", shown(.path))]
    Entry {
        /// The entry's name.
        path: String,
        /// The violated rule.
        why: &'static str,
    },
    /// A hard link names a file that neither this layer nor one below it has.
    #[error("hard link '{}' of the layer names '{}', which no layer has", shown(.path), shown(.target))]
    LinkTarget {
        /// The link.
        path: String,
        /// The link's target.
        target: String,
    },
    /// A limit is exceeded.
    #[error("the layer has {what} above the limit of {most}")]
    TooMuch {
        /// The counted quantity.
        what: &'static str,
        /// The limit.
        most: u64,
    },
    /// The layers of an image exceed their common limit.
    #[error(
        "the image is too large: its layers unpack to more than {}, gantry's limit for one image; keep large data in a \
         volume, or divide it among several images",
        length(*.most)
    )]
    ImageTooLarge {
        /// The limit in bytes.
        most: u64,
    },
    /// The caller cancelled the work.
    #[error("unpacking the layer was cancelled")]
    Cancelled,
    /// The file system reported an error.
    #[error("cannot {doing} '{}' of the layer", shown(.path))]
    Write {
        /// The attempted operation.
        doing: &'static str,
        /// The path in the layer.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl UnpackError {
    /// An entry is refused.
    pub(crate) fn entry(path: &[u8], why: &'static str) -> Self {
        Self::Entry { path: lossy(path), why }
    }

    /// A system call that failed on a path of the layer.
    pub(crate) fn write(doing: &'static str, path: &[u8], errno: rustix::io::Errno) -> Self {
        Self::Write { doing, path: lossy(path), source: errno.into() }
    }
}

impl Kind for UnpackError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Read(source) | Self::Write { source, .. } => ErrorKind::of_io(source),
            Self::Corrupt { .. } | Self::Truncated { .. } | Self::Format { .. } => ErrorKind::Damaged,
            Self::Entry { .. } | Self::LinkTarget { .. } => ErrorKind::Invalid,
            Self::TooMuch { .. } | Self::ImageTooLarge { .. } => ErrorKind::Exhausted,
            Self::Cancelled => ErrorKind::Unavailable,
        }
    }
}

/// A number of bytes, in GiB if that is exact.
fn length(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    if bytes >= GIB && bytes.is_multiple_of(GIB) { format!("{} GiB", bytes / GIB) } else { format!("{bytes} bytes") }
}

/// A name as text for a message, in which `shown` escapes it.
pub(crate) fn lossy(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}
