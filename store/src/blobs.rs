//! Blobs: manifests and configurations, as files named by their digest. (Layers are stored unpacked only: `trees.rs`.)
//!
//! A blob is written to `tmp/`, synced, renamed, and its directory synced: a file with its final name is complete and
//! durable. A `kill -9` before the rename leaves an unlocked file in `tmp/`, after it an unreferenced blob. Both are
//! garbage-collected.
//!
//! Between its rename and the row of its image, nothing refers to a blob. So an importer holds `locks/blobs` shared
//! until its image is committed (or the [`Store`] is dropped), and the garbage collector takes the lock exclusively.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use gantry_host::file::read_truncated;
use gantry_model::id::Algorithm;
use gantry_model::{Digest, ErrorKind, Kind};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sha2::Digest as _;
use thiserror::Error;

use crate::db::BUSY_TIMEOUT;
use crate::lock::{LockMode, lock_within, open_lock_file, sync_dir};
use crate::tmp::{self, Scrap};
use crate::{Store, StoreError};

/// A blob could not be put or read.
#[derive(Debug, Error)]
pub enum BlobError {
    /// The new content has another digest.
    #[error("the content of blob {wanted} has the digest {found}")]
    Mismatch {
        /// The expected digest.
        wanted: Digest,
        /// The actual digest.
        found: Digest,
    },
    /// The stored content has another digest.
    #[error("{} is damaged: its digest is {found}; fetch the image again", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The digest of its content.
        found: Digest,
    },
    /// Larger than the reader's limit.
    #[error("blob {digest} has {size} bytes and at most {most} are taken")]
    TooLarge {
        /// The blob.
        digest: Digest,
        /// How large it is.
        size: u64,
        /// How large it may be.
        most: u64,
    },
    /// The disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for BlobError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Mismatch { .. } | Self::Damaged { .. } => ErrorKind::Damaged,
            Self::TooLarge { .. } => ErrorKind::Exhausted,
            Self::Store(error) => error.kind(),
        }
    }
}

impl Store {
    /// Puts a blob, durably. Verifies an existing one, and replaces it when it is damaged.
    ///
    /// # Errors
    /// [`BlobError`].
    pub fn put_blob(&self, digest: &Digest, bytes: &[u8]) -> Result<(), BlobError> {
        let found = digest_of(digest.algorithm(), bytes);
        if found != *digest {
            return Err(BlobError::Mismatch { wanted: digest.clone(), found });
        }
        self.lease_blobs()?;
        let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        if matches!(self.blob(digest, size), Ok(Some(_))) {
            return Ok(());
        }
        let path = self.layout.blob(digest);
        let (mut file, temporary) = tmp::make_file(&self.layout, "blob")?;
        let scrap = Scrap::new(&self.layout, temporary.clone());
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(StoreError::io("write", &temporary))?;
        rustix::fs::rename(&temporary, &path).map_err(StoreError::io("rename a blob to", &path))?;
        scrap.keep();
        Ok(sync_dir(path.parent().unwrap_or(self.layout.root()))?)
    }

    /// The whole of a blob, verified; `None` when it does not exist.
    ///
    /// # Errors
    /// [`BlobError`]; [`BlobError::TooLarge`] when it has more than `most` bytes.
    pub fn blob(&self, digest: &Digest, most: u64) -> Result<Option<Vec<u8>>, BlobError> {
        let path = self.layout.blob(digest);
        let Some(bytes) = read_capped(&path, digest, most)? else { return Ok(None) };
        let found = digest_of(digest.algorithm(), &bytes);
        if found == *digest { Ok(Some(bytes)) } else { Err(BlobError::Damaged { path, found }) }
    }

    /// Whether a file of this name exists.
    pub(crate) fn has_blob(&self, digest: &Digest) -> Result<bool, StoreError> {
        let path = self.layout.blob(digest);
        match rustix::fs::lstat(&path) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(StoreError::io("examine", &path)(errno)),
        }
    }

    /// Keeps the garbage collector away from blobs until [`Self::end_blob_lease`], or until this store is dropped.
    pub(crate) fn lease_blobs(&self) -> Result<(), StoreError> {
        let mut lease = self.blob_lease.borrow_mut();
        if lease.is_none() {
            let path = self.layout.blobs_lock();
            let file = open_lock_file(&path)?;
            lock_within(&file, LockMode::Shared, &path, BUSY_TIMEOUT, &mut || {})?;
            *lease = Some(file);
        }
        Ok(())
    }

    pub(crate) fn end_blob_lease(&self) {
        self.blob_lease.borrow_mut().take();
    }
}

fn read_capped(path: &Path, digest: &Digest, most: u64) -> Result<Option<Vec<u8>>, BlobError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(StoreError::io("open", path)(errno).into()),
    };
    let size = file.metadata().map_err(StoreError::io("examine", path))?.len();
    if size > most {
        return Err(BlobError::TooLarge { digest: digest.clone(), size, most });
    }
    Ok(Some(read_truncated(file, most).map_err(StoreError::io("read", path))?))
}

fn digest_of(algorithm: Algorithm, bytes: &[u8]) -> Digest {
    let found = match algorithm {
        Algorithm::Sha256 => Digest::from_hash(algorithm, &sha2::Sha256::digest(bytes)),
        Algorithm::Sha512 => Digest::from_hash(algorithm, &sha2::Sha512::digest(bytes)),
    };
    #[expect(clippy::expect_used, reason = "the length of a hash is fixed by its algorithm")]
    found.expect("a hash function returns as many bytes as its algorithm has")
}
