//! Where the bytes of an image come from: the one seam between the orchestration ([`crate::pull`]) and a
//! registry, an OCI layout directory or an archive.
//!
//! A source answers three questions: what is at the top (an index or a manifest), what is behind a descriptor
//! (small documents, whole), and what is behind a descriptor (layers, as a stream). It need not verify digests
//! or sizes: the caller does, for every source alike, so a new source cannot forget it. A source must respect
//! its caps ([`MAX_DOCUMENT`]) and must never hand out bytes for another digest on purpose.

use std::collections::BTreeMap;
use std::io::Read;

use gantry_model::{Digest, ErrorKind, Kind, id::shown};
use sha2::Digest as _;
use thiserror::Error;

/// Most bytes of a manifest, an index or an image configuration.
pub const MAX_DOCUMENT: u64 = 8 << 20;

/// A small JSON document as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The media type the source says it has; empty where the source does not say.
    pub media_type: String,
    /// The bytes, exactly as their digest covers them; at most [`MAX_DOCUMENT`].
    pub bytes: Vec<u8>,
    /// The digest the source claims, or the sha256 of the bytes where it claims none.
    pub digest: Digest,
}

/// A reference to content (OCI image specification, descriptor.md). `urls` and `data` are ignored on purpose:
/// content comes from the source that was named and from nowhere else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Media type of the content; empty where the document does not say.
    pub media_type: String,
    /// Digest of the content as it comes (compressed).
    pub digest: Digest,
    /// Its exact length in bytes.
    pub size: u64,
    /// What it runs on (entries of an index only).
    pub platform: Option<crate::config::Platform>,
    /// Annotations, such as `org.opencontainers.image.ref.name`.
    pub annotations: BTreeMap<String, String>,
}

/// Something that has the parts of one image. Used by several threads at once.
pub trait Source: Sync {
    /// The index or manifest that was asked for by name; the caller picks the platform.
    ///
    /// # Errors
    /// [`SourceError`]: not there, not readable, larger than [`MAX_DOCUMENT`].
    fn root(&self) -> Result<Document, SourceError>;

    /// The document behind a descriptor (a manifest, or an image configuration), whole. The caller verifies
    /// digest and size; the source reads at most `d.size + 1` bytes and refuses `d.size` above [`MAX_DOCUMENT`].
    ///
    /// # Errors
    /// [`SourceError`]: as for [`Source::root`].
    fn document(&self, d: &Descriptor) -> Result<Vec<u8>, SourceError>;

    /// The stream behind a descriptor (a layer), from byte `offset` on, as it came (compressed). The caller
    /// counts and hashes.
    ///
    /// # Errors
    /// [`SourceError`]: as for [`Source::root`]. Failures while reading come as [`std::io::Error`].
    fn open(&self, d: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError>;

    /// The names this source knows for the image, as written there (`alpine:3.20`, `registry.example/app:1`,
    /// or a bare tag); the caller makes them canonical. Empty where it knows none.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    /// The format the image is reported with, where its manifest does not tell (a docker-save archive has none).
    fn format(&self) -> Option<gantry_store::ImageFormat> {
        None
    }

    /// Makes every read in flight, and every later one, fail soon. Called once, when another layer has failed.
    fn cancel(&self) {}
}

/// A source could not deliver.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source lacks what was asked for.
    #[error("{what} is not in {place}")]
    NotFound {
        /// What was asked for.
        what: String,
        /// Where: a path, or a registry and repository.
        place: String,
    },
    /// What is there breaks its format.
    #[error("{what} is damaged or not what it claims to be: {why}")]
    Invalid {
        /// What was read.
        what: String,
        /// Why it is refused.
        why: String,
    },
    /// A limit of ours was reached.
    #[error("{what} is larger than {most} bytes, the most gantry takes")]
    TooLarge {
        /// What was read.
        what: String,
        /// The limit in bytes.
        most: u64,
    },
    /// More than one image is there and none was named.
    #[error("{place} holds several images; name one of them after a colon: {}", .names.join(", "))]
    Ambiguous {
        /// The archive or layout.
        place: String,
        /// The names it has (escaped, at most ten).
        names: Vec<String>,
    },
    /// The file system failed.
    #[error("cannot read {what}")]
    Io {
        /// What was read: a path.
        what: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The registry failed.
    #[error(transparent)]
    Registry(#[from] crate::registry::RegistryError),
}

impl Kind for SourceError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Invalid { .. } => ErrorKind::Damaged,
            Self::TooLarge { .. } => ErrorKind::Exhausted,
            Self::Ambiguous { .. } => ErrorKind::Invalid,
            Self::Io { source, .. } => ErrorKind::of_io(source),
            Self::Registry(error) => error.kind(),
        }
    }
}

/// Bytes that are not what their descriptor says.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The length differs.
    #[error("{digest} has {got} bytes, its descriptor says {want}")]
    Size {
        /// Digest of the descriptor.
        digest: Digest,
        /// Bytes that came (at least).
        got: u64,
        /// Bytes the descriptor names.
        want: u64,
    },
    /// The digest differs.
    #[error("the content that came for {want} has the digest {got}")]
    Digest {
        /// The digest asked for.
        want: Digest,
        /// The digest of what came.
        got: Digest,
    },
}

impl Kind for Mismatch {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Damaged
    }
}

/// A running hash for either algorithm of a [`Digest`].
pub struct Hasher(Inner);

enum Inner {
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl Hasher {
    /// A hash of the kind `algorithm` names.
    #[must_use]
    pub fn new(algorithm: gantry_model::id::Algorithm) -> Self {
        use gantry_model::id::Algorithm;
        Self(match algorithm {
            Algorithm::Sha256 => Inner::Sha256(sha2::Sha256::new()),
            Algorithm::Sha512 => Inner::Sha512(sha2::Sha512::new()),
        })
    }

    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            Inner::Sha256(hash) => hash.update(bytes),
            Inner::Sha512(hash) => hash.update(bytes),
        }
    }

    /// The digest of everything added.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the hash functions return exactly the bytes their algorithm has")]
    pub fn finish(self) -> Digest {
        use gantry_model::id::Algorithm;
        match self.0 {
            Inner::Sha256(hash) => Digest::from_hash(Algorithm::Sha256, &hash.finalize()),
            Inner::Sha512(hash) => Digest::from_hash(Algorithm::Sha512, &hash.finalize()),
        }
        .expect("a sha2 hash has the length of its algorithm")
    }
}

/// The digest of some bytes.
#[must_use]
pub fn digest_of(algorithm: gantry_model::id::Algorithm, bytes: &[u8]) -> Digest {
    let mut hash = Hasher::new(algorithm);
    hash.update(bytes);
    hash.finish()
}

/// Checks bytes against the descriptor they came for.
///
/// # Errors
/// [`Mismatch`] when length or digest differ.
pub fn verify(d: &Descriptor, bytes: &[u8]) -> Result<(), Mismatch> {
    if bytes.len() as u64 != d.size {
        return Err(Mismatch::Size { digest: d.digest.clone(), got: bytes.len() as u64, want: d.size });
    }
    let got = digest_of(d.digest.algorithm(), bytes);
    if got == d.digest { Ok(()) } else { Err(Mismatch::Digest { want: d.digest.clone(), got }) }
}

/// A hostile media type as it may stand in a message.
pub(crate) fn media(text: &str) -> String {
    if text.is_empty() { "no media type".to_owned() } else { shown(text) }
}
