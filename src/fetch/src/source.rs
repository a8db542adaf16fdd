//! The interface between the fetch ([`crate::pull`]) and the sources of images: registries, OCI layout directories and
//! archives.
//!
//! A source returns the top document (an index or a manifest), the documents that descriptors name, and the layers that
//! descriptors name, as streams. The caller verifies digests and sizes for every source alike, so that a new source
//! cannot forget it. A source must respect [`MAX_DOCUMENT`] and must not knowingly return bytes for another digest.

use std::collections::BTreeMap;
use std::io::Read;

use gantry_model::{Digest, ErrorKind, Kind, id::shown};
use sha2::Digest as _;
use thiserror::Error;

/// Maximum length of a manifest, an index or an image configuration in bytes.
pub const MAX_DOCUMENT: u64 = 8 << 20;

/// A small JSON document as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootDocument {
    /// The media type that the source reports; empty if it reports none.
    pub media_type: String,
    /// The bytes as covered by the digest; at most [`MAX_DOCUMENT`].
    pub bytes: Vec<u8>,
    /// The digest that the source claims, or the sha256 of the bytes if it claims none.
    pub digest: Digest,
}

/// A reference to content (OCI image specification, descriptor.md). `urls` and `data` are ignored on purpose: content
/// comes only from the named source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Descriptor {
    /// Media type of the content; empty if there is none.
    pub media_type: String,
    /// Digest of the (compressed) content.
    pub digest: Digest,
    /// Exact length of the content in bytes.
    pub size: u64,
    /// The platform (entries of an index only).
    pub platform: Option<crate::config::Platform>,
    /// Annotations, such as `org.opencontainers.image.ref.name`.
    pub annotations: BTreeMap<String, String>,
}

/// A source of one image. Used by several threads at once.
pub trait Source: Sync {
    /// The index or manifest of the image; the caller selects the platform.
    ///
    /// # Errors
    /// [`SourceError`]: not found, not readable, larger than [`MAX_DOCUMENT`].
    fn root(&self) -> Result<RootDocument, SourceError>;

    /// The document of a descriptor (a manifest, or an image configuration). The caller verifies digest and size; the
    /// source reads at most `d.size + 1` bytes and refuses `d.size` above [`MAX_DOCUMENT`].
    ///
    /// # Errors
    /// [`SourceError`]: as for [`Source::root`].
    fn document(&self, d: &Descriptor) -> Result<Vec<u8>, SourceError>;

    /// The stream of a descriptor (a layer) from byte `offset` on, still compressed. The caller counts and hashes.
    ///
    /// # Errors
    /// [`SourceError`]: as for [`Source::root`]. Failures while reading come as [`std::io::Error`].
    fn open(&self, d: &Descriptor, offset: u64) -> Result<Box<dyn Read + Send + '_>, SourceError>;

    /// The names of the image in this source (`alpine:3.20`, `registry.example/app:1`, or a bare tag); the caller makes
    /// them canonical. Empty if there are none.
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether a name without a registry is one of Docker Hub's, as in archives of `docker save`.
    fn omits_docker_hub(&self) -> bool {
        false
    }

    /// The format to report if the manifest does not tell (a docker-save archive has none).
    fn format(&self) -> Option<gantry_store::ImageFormat> {
        None
    }

    /// Makes every read in flight, and every later one, fail soon. Called once, after another layer has failed.
    fn cancel(&self) {}
}

/// Reading from a source failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourceError {
    /// The source does not have the object.
    #[error("{what} is not in {place}")]
    NotFound {
        /// The requested object.
        what: String,
        /// The location: a path, or a registry and repository.
        place: String,
    },
    /// The object is malformed.
    #[error("{what} is damaged or not what it claims to be: {why}")]
    Invalid {
        /// The object that was read.
        what: String,
        /// The reason for the refusal.
        why: String,
    },
    /// The object exceeds a limit.
    #[error("{what} is larger than {most} bytes, the most gantry takes")]
    TooLarge {
        /// The object that was read.
        what: String,
        /// The limit in bytes.
        most: u64,
    },
    /// There are several images and none was named.
    #[error(
        "{place} holds several images{}; name one as in {scheme}:PATH:NAME, or import all with 'gantry image load'",
        listed(.names)
    )]
    Ambiguous {
        /// The archive or layout.
        place: String,
        /// The names it has (escaped, at most ten).
        names: Vec<String>,
        /// The scheme of a reference to one of them.
        scheme: &'static str,
    },
    /// Reading a file failed.
    #[error("cannot read {what}")]
    Io {
        /// The path.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The registry failed.
    #[error(transparent)]
    Registry(#[from] crate::registry::RegistryError),
}

/// The names in an error message, after a colon.
fn listed(names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!(": {}", names.join(", ")) }
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

/// Bytes do not match their descriptor.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// The length differs.
    #[error("{digest} has {got} bytes, its descriptor says {want}")]
    Size {
        /// Digest of the descriptor.
        digest: Digest,
        /// Bytes received (at least).
        got: u64,
        /// Bytes the descriptor names.
        want: u64,
    },
    /// The digest differs.
    #[error("the content that came for {want} has the digest {got}")]
    Digest {
        /// The requested digest.
        want: Digest,
        /// The digest of the received bytes.
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
    /// Starts a hash with `algorithm`.
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

    /// The digest of all bytes added.
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

/// Computes the digest of `bytes`.
#[must_use]
pub fn digest_of(algorithm: gantry_model::id::Algorithm, bytes: &[u8]) -> Digest {
    let mut hash = Hasher::new(algorithm);
    hash.update(bytes);
    hash.finish()
}

/// Verifies bytes against their descriptor.
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

/// A media type for a message, escaped.
pub(crate) fn media(text: &str) -> String {
    if text.is_empty() { "no media type".to_owned() } else { shown(text) }
}
