//! What a fetch can fail with.

use std::time::Duration;

use gantry_model::id::shown;
use gantry_model::{Digest, ErrorKind, Kind};
use gantry_store::{BlobError, CommitImageError, CommitLayersError, StoreError};
use thiserror::Error;

use crate::config::ConfigError;
use crate::manifest::ManifestError;
use crate::platform::Platform;
use crate::source::{Mismatch, SourceError};
use crate::unpack::UnpackError;

/// An image could not be fetched. Nothing of it is visible; layers that were complete stay until the next sweep.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The image is not in the store, and nothing else was to be asked.
    #[error("image '{}' is not in the store, and it may not be fetched (pull policy 'never')", shown(.name))]
    NotInStore {
        /// What was asked for.
        name: String,
    },
    /// No image has an id that begins so.
    #[error("no image in the store has an id that begins with {prefix}")]
    NoSuchId {
        /// The digits given.
        prefix: String,
    },
    /// Several images have an id that begins so.
    #[error("several images have an id that begins with {prefix}: {}; give more digits", .ids.join(", "))]
    AmbiguousId {
        /// The digits given.
        prefix: String,
        /// Some of the ids.
        ids: Vec<String>,
    },
    /// A short name that nothing completes.
    #[error(
        "'{}' names no registry, and no image in the store is called so; write docker://{name} for Docker Hub, \
         HOST/{name} for another registry, or set default-registry in /etc/gantry/config.toml",
        shown(.name)
    )]
    NoRegistry {
        /// The short name.
        name: String,
    },
    /// A short name that several images in the store have.
    #[error("'{}' may be any of {}; write the whole name", shown(.name), .names.join(", "))]
    AmbiguousName {
        /// The short name.
        name: String,
        /// The whole names.
        names: Vec<String>,
    },
    /// An archive claims the name of another image.
    #[error("{} is the name of another image in the store, {}: 'gantry fetch --force' gives it to the archive's image", shown(.name), .owner.short())]
    NameTaken {
        /// The name.
        name: String,
        /// The image that has it.
        owner: Digest,
    },
    /// The archive was to come on standard input, and there is none.
    #[error("the image is to be read from standard input, which this call has not got")]
    NoStdin,
    /// The source did not deliver.
    #[error("cannot fetch {}", shown(.name))]
    Source {
        /// The image.
        name: String,
        /// Why.
        #[source]
        source: Box<SourceError>,
    },
    /// The manifest or index is refused.
    #[error("cannot use {}", shown(.name))]
    Manifest {
        /// The image.
        name: String,
        /// Why.
        #[source]
        source: ManifestError,
    },
    /// The image configuration is refused.
    #[error("cannot use {}", shown(.name))]
    Config {
        /// The image.
        name: String,
        /// Why.
        #[source]
        source: ConfigError,
    },
    /// The image configuration and the manifest contradict each other.
    #[error("{} is damaged: its manifest has {layers} layers, its configuration {diff_ids}", shown(.name))]
    LayerCount {
        /// The image.
        name: String,
        /// Layers of the manifest.
        layers: usize,
        /// Layers of the configuration.
        diff_ids: usize,
    },
    /// The image does not run here.
    #[error("{} is for {has}, and this host runs {want}", shown(.name))]
    Platform {
        /// The image.
        name: String,
        /// What the image is for.
        has: Box<Platform>,
        /// What was looked for.
        want: Box<Platform>,
    },
    /// Bytes are not what their digest says. They are not kept.
    #[error("{what} of {} is damaged or was tampered with", shown(.name))]
    Mismatch {
        /// The image.
        name: String,
        /// Which part.
        what: &'static str,
        /// How they differ.
        #[source]
        source: Box<Mismatch>,
    },
    /// A layer's stream failed.
    #[error("cannot fetch layer {}", .layer.short())]
    LayerSource {
        /// The layer.
        layer: Digest,
        /// Why.
        #[source]
        source: Box<SourceError>,
    },
    /// A layer's bytes are not what its descriptor says. They are not kept.
    #[error("layer {} is damaged or was tampered with", .layer.short())]
    LayerMismatch {
        /// The layer.
        layer: Digest,
        /// How they differ.
        #[source]
        source: Box<Mismatch>,
    },
    /// A layer cannot be unpacked.
    #[error("cannot unpack layer {}", .layer.short())]
    Layer {
        /// The layer.
        layer: Digest,
        /// Why.
        #[source]
        source: UnpackError,
    },
    /// A layer's content is not what the image configuration says.
    #[error("layer {} unpacks to {got}, but the image configuration says {want}", .layer.short())]
    DiffId {
        /// The layer.
        layer: Digest,
        /// What the configuration says.
        want: Digest,
        /// What it is.
        got: Digest,
    },
    /// A configuration names its layers in a way that cannot be checked.
    #[error("{} names its layers by {}; only sha256 can be checked", shown(.name), .algorithm)]
    DiffAlgorithm {
        /// The image.
        name: String,
        /// The algorithm.
        algorithm: &'static str,
    },
    /// Somebody else has been fetching a layer for too long.
    #[error("somebody else has been fetching layer {} for more than {} minutes; try again later", .layer.short(), .waited.as_secs() / 60)]
    LayerBusy {
        /// The layer.
        layer: Digest,
        /// How long we waited.
        waited: Duration,
    },
    /// Layers were removed by a collection while they were needed, again and again.
    #[error("layer {} was removed from the store while the image was fetched; try again", .layer.short())]
    LayerGone {
        /// The layer.
        layer: Digest,
    },
    /// Another layer failed first.
    #[error("the fetch of layer {} was cancelled", .layer.short())]
    Cancelled {
        /// The layer.
        layer: Digest,
    },
    /// The store failed.
    #[error("cannot {doing}")]
    Store {
        /// What was attempted.
        doing: &'static str,
        /// Why it failed.
        #[source]
        source: StoreError,
    },
    /// The store refused the layers.
    #[error("cannot commit the layers of the image")]
    CommitLayers(#[source] CommitLayersError),
    /// The store refused the manifest or the image configuration.
    #[error("cannot store {what}")]
    Blob {
        /// Which of the two.
        what: &'static str,
        /// Why.
        #[source]
        source: BlobError,
    },
    /// The store refused the image.
    #[error("cannot commit {}", shown(.name))]
    Commit {
        /// The image.
        name: String,
        /// Why.
        #[source]
        source: CommitImageError,
    },
    /// A bug: the threads of a fetch lost each other.
    #[error("the threads of the fetch lost each other; this is a bug in gantry")]
    Lost,
}

impl FetchError {
    /// For `map_err` on what the store returns.
    pub(crate) fn store(doing: &'static str) -> impl FnOnce(StoreError) -> Self {
        move |source| Self::Store { doing, source }
    }

    /// For `map_err` on what a source returns for the image `name`.
    pub(crate) fn source(name: &str) -> impl Fn(SourceError) -> Self {
        move |source| Self::Source { name: name.to_owned(), source: Box::new(source) }
    }

    /// Whether a collection took a layer on which another one was to stand.
    pub(crate) fn is_layer_gone(&self) -> bool {
        matches!(self, Self::LayerGone { .. } | Self::CommitLayers(CommitLayersError::NoParent { .. }))
    }

    /// Whether the registry could not be asked at all (and not: it gave an answer that is refused).
    #[must_use]
    pub fn is_offline(&self) -> bool {
        match self {
            Self::Source { source, .. } | Self::LayerSource { source, .. } => {
                matches!(&**source, SourceError::Registry(error) if error.is_offline())
            }
            _ => false,
        }
    }
}

impl Kind for FetchError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotInStore { .. } | Self::NoSuchId { .. } => ErrorKind::NotFound,
            Self::NameTaken { .. } => ErrorKind::Refused,
            Self::AmbiguousId { .. }
            | Self::NoRegistry { .. }
            | Self::AmbiguousName { .. }
            | Self::NoStdin
            | Self::DiffAlgorithm { .. }
            | Self::Platform { .. } => ErrorKind::Invalid,
            Self::Source { source, .. } | Self::LayerSource { source, .. } => source.kind(),
            Self::Manifest { source, .. } => source.kind(),
            Self::Config { source, .. } => source.kind(),
            Self::LayerCount { .. } | Self::Mismatch { .. } | Self::LayerMismatch { .. } | Self::DiffId { .. } => {
                ErrorKind::Damaged
            }
            Self::Layer { source, .. } => source.kind(),
            Self::LayerBusy { .. } => ErrorKind::Busy,
            Self::LayerGone { .. } | Self::Cancelled { .. } => ErrorKind::Unavailable,
            Self::Store { source, .. } => source.kind(),
            Self::Commit { source, .. } => source.kind(),
            Self::CommitLayers(source) => source.kind(),
            Self::Blob { source, .. } => source.kind(),
            Self::Lost => ErrorKind::Internal,
        }
    }
}
