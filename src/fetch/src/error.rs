//! Errors of a fetch.

use std::error::Error;

use gantry_model::id::shown;
use gantry_model::{Digest, ErrorKind, Kind};
use gantry_store::{CommitImageError, CommitLayersError, StoreError};
use thiserror::Error;

use crate::platform::Platform;
use crate::settings::Config;
use crate::source::{Mismatch, SourceError};

/// An image could not be fetched. Nothing of it is visible; complete layers stay until the next garbage collection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The reference names no image, or the image is refused.
    #[error("{message}")]
    Refused {
        /// The problem, and its remedy. Escaped.
        message: String,
        /// The kind of error.
        kind: ErrorKind,
    },
    /// A step failed.
    #[error("{attempt}")]
    Failed {
        /// The attempted operation and its object. Escaped.
        attempt: String,
        /// The kind of the cause.
        kind: ErrorKind,
        /// The cause.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The source of an image failed.
    #[error("cannot fetch {subject}")]
    Source {
        /// The image or the layer. Escaped.
        subject: String,
        /// The cause.
        source: Box<SourceError>,
    },
    /// The archive or layout of `image load` failed.
    #[error("cannot load {place}")]
    Load {
        /// The archive or layout. Escaped.
        place: String,
        /// The cause.
        source: Box<SourceError>,
    },
    /// The registry failed, and so did its mirrors.
    #[error("cannot fetch {name}: its mirrors failed ({}), and so did the registry itself", .mirrors.join("; "))]
    Mirrors {
        /// The image. Escaped.
        name: String,
        /// Each mirror and its failure. Escaped.
        mirrors: Vec<String>,
        /// The failure of the registry itself.
        source: Box<FetchError>,
    },
    /// A layer's bytes do not match its descriptor. They are not kept.
    #[error("layer {} is damaged or was tampered with", .layer.short())]
    LayerMismatch {
        /// The layer.
        layer: Digest,
        /// The difference.
        source: Box<Mismatch>,
    },
    /// Garbage collection removed a layer during the fetch, repeatedly.
    #[error("layer {} was removed from the store while the image was fetched; try again", .layer.short())]
    LayerGone {
        /// The layer.
        layer: Digest,
    },
    /// Another layer failed first, or the caller cancelled the fetch.
    #[error("the fetch of layer {} was cancelled", .layer.short())]
    Cancelled {
        /// The layer.
        layer: Digest,
    },
    /// The store refused the layers.
    #[error("cannot commit the layers of the image")]
    CommitLayers(#[source] CommitLayersError),
    /// The store refused the image.
    #[error("cannot commit {}", shown(.name))]
    Commit {
        /// The image.
        name: String,
        /// The cause.
        source: CommitImageError,
    },
}

impl FetchError {
    /// The reference or the image is refused.
    pub(crate) fn refused(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::Refused { message: message.into(), kind }
    }

    /// A step failed because of `source`.
    pub(crate) fn failed(attempt: impl Into<String>, source: impl Kind + Error + Send + Sync + 'static) -> Self {
        Self::Failed { attempt: attempt.into(), kind: source.kind(), source: Box::new(source) }
    }

    /// The image is not in the store, and the pull policy forbids fetching it.
    pub(crate) fn not_in_store(name: &str) -> Self {
        let name = shown(name);
        let message = format!("image '{name}' is not in the store, and it may not be fetched (pull policy 'never')");
        Self::refused(ErrorKind::NotFound, message)
    }

    /// The image is for a platform other than the requested one or, without a request, for one that this host lacks.
    pub(crate) fn other_platform(name: &str, platform: &Platform, config: &Config) -> Self {
        let name = shown(name);
        let message = match &config.platform {
            Some(wanted) => format!("{name} is for {platform}, not for {wanted}, which was requested"),
            None => format!("{name} is for {platform}, and this host runs {}", Platform::host()),
        };
        Self::refused(ErrorKind::Invalid, message)
    }

    /// The configuration names hosts, none of which may serve content.
    pub(crate) fn no_endpoint(name: &str) -> Self {
        let message = format!("no host of the configured ones may serve {}: see their capabilities", shown(name));
        Self::refused(ErrorKind::Invalid, message)
    }

    /// A bug: a thread of the fetch ended without its result.
    pub(crate) fn lost_thread() -> Self {
        Self::refused(ErrorKind::Internal, "a thread of the fetch ended without a result; this is a bug in gantry")
    }

    /// For `map_err` on results of the store.
    pub(crate) fn store(doing: &'static str) -> impl FnOnce(StoreError) -> Self {
        move |source| Self::failed(format!("cannot {doing}"), source)
    }

    /// For `map_err` on results of a source for the image `name`.
    pub(crate) fn source(name: &str) -> impl Fn(SourceError) -> Self {
        move |source| Self::Source { subject: shown(name), source: Box::new(source) }
    }

    /// For `map_err` on results of an archive or layout of which all images are imported.
    pub(crate) fn load(place: &str) -> impl Fn(SourceError) -> Self {
        move |source| Self::Load { place: shown(place), source: Box::new(source) }
    }

    /// For `map_err` on results of a source for a layer.
    pub(crate) fn layer_source(layer: &Digest, source: SourceError) -> Self {
        Self::Source { subject: format!("layer {}", layer.short()), source: Box::new(source) }
    }

    /// Whether another endpoint may serve what one failed to serve. A failure of this host is not one of the endpoint.
    pub(crate) fn is_of_endpoint(&self) -> bool {
        match self {
            Self::Source { .. } | Self::Load { .. } | Self::LayerMismatch { .. } => true,
            // Documents and layers that are malformed.
            Self::Failed { kind, .. } | Self::Refused { kind, .. } => {
                matches!(kind, ErrorKind::Damaged | ErrorKind::NotFound)
            }
            Self::Mirrors { .. }
            | Self::LayerGone { .. }
            | Self::Cancelled { .. }
            | Self::CommitLayers(_)
            | Self::Commit { .. } => false,
        }
    }

    /// Whether garbage collection removed a layer that another layer is based on.
    pub(crate) fn is_layer_gone(&self) -> bool {
        matches!(self, Self::LayerGone { .. } | Self::CommitLayers(CommitLayersError::NoParent { .. }))
    }

    /// Whether the registry could not be reached (as opposed to a response that is refused).
    #[must_use]
    pub fn is_offline(&self) -> bool {
        match self {
            Self::Source { source, .. } => matches!(&**source, SourceError::Registry(error) if error.is_offline()),
            Self::Mirrors { source, .. } => source.is_offline(),
            _ => false,
        }
    }
}

impl Kind for FetchError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Refused { kind, .. } | Self::Failed { kind, .. } => *kind,
            Self::Source { source, .. } | Self::Load { source, .. } => source.kind(),
            Self::Mirrors { source, .. } => source.kind(),
            Self::LayerMismatch { .. } => ErrorKind::Damaged,
            Self::LayerGone { .. } | Self::Cancelled { .. } => ErrorKind::Unavailable,
            Self::CommitLayers(source) => source.kind(),
            Self::Commit { source, .. } => source.kind(),
        }
    }
}
