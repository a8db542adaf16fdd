//! Unpacks the stream of one layer into a directory that overlayfs can use as a lower directory.
//!
//! Read in this order: `pipeline` (decompresses, hashes and writes in parallel), `entries` (the tar format, composed of
//! `header`, `pax` and `sparse`), `tree` (creates the file of each entry), `dirs` (opens parents without leaving the
//! layer), `finish` (the parts that need lower layers).
//!
//! The conversion:
//!
//! | in the archive | in the directory |
//! |---|---|
//! | file, directory, symbolic and hard link, device, FIFO | the same; a FIFO or device is never opened |
//! | `.wh.NAME`, `.wh..wh..opq` | character device 0:0; `trusted.overlay.opaque=y` |
//! | `.wh..wh.*` otherwise | nothing: book-keeping of AUFS |
//! | 64 KiB and more of zeros in a file | a hole |
//! | owner, mode with setuid, modification time | the same; times clamped to 1901…2446 |
//! | extended attributes | `security.capability`, `user.*` (not `user.overlay.*`), access control lists; others dropped |
//! | absolute name | taken from the layer's root |
//! | `..` in a name | refused |
//! | one name twice | the last one wins, also between file and directory |
//! | parent that is a link | followed inside the layer's root |
//! | parent that is a file | refused |
//! | end of the stream with fewer than two blocks of zeros | the end of the archive: the caller compares the digest |
//! | bytes after the end of the archive | part of the digest, otherwise ignored |
//! | bytes after the gzip stream | zeros are ignored, others refused |
//!
//! Nothing is synced here: the store syncs once, when it commits the layers.

pub(crate) mod dirs;
pub(crate) mod entries;
mod error;
mod finish;
pub(crate) mod header;
pub(crate) mod inflate;
pub(crate) mod meta;
pub(crate) mod names;
mod pax;
mod pipeline;
mod remove;
mod sparse;
mod tree;

#[cfg(test)]
pub(crate) mod tests;

use std::io::Read;
use std::os::fd::OwnedFd;

use gantry_model::Digest;
use gantry_store::Sums;

pub use error::UnpackError;
pub use finish::{Deferred, finish};
pub use inflate::Compression;

use crate::caps::{Caps, ImageBytes};

/// One layer, written.
#[derive(Debug)]
pub struct Unpacked {
    /// The sha256 of the whole uncompressed stream, to be compared with the image's configuration by the caller.
    pub diff_id: Digest,
    /// Bytes of the files' data, without the holes of sparse files in the archive.
    pub size: u64,
    /// Files, directories, links and whiteouts.
    pub entries: u64,
    /// The work left for [`finish`].
    pub deferred: Deferred,
    /// The CRC-32 of the files' data, by inode number.
    pub sums: Sums,
}

/// Unpacks one layer from `stream`, as it came, into the empty directory `into`. `image_bytes` counts the bytes of all
/// layers of the image. The calling thread writes; two more decompress and hash, and are joined before this returns, so
/// `stream` must have deadlines of its own.
///
/// # Errors
/// [`UnpackError`]; `into` then holds a part of the layer, which the caller removes.
pub fn layer(
    stream: &mut (dyn Read + Send),
    media: Compression,
    into: &OwnedFd,
    caps: &Caps,
    image_bytes: &ImageBytes,
) -> Result<Unpacked, UnpackError> {
    let (written, diff_id) =
        pipeline::run(stream, media, (caps, image_bytes), |chunks| tree::write(chunks, into, caps))?;
    let tree::Written { size, entries, deferred, sums } = written;
    Ok(Unpacked { diff_id, size, entries, deferred, sums })
}
