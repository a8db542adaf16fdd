//! What a fetch tells while it works. Nothing here decides anything: a progress bar or a log line reads it.

use std::time::Duration;

use gantry_model::Digest;

/// Hears the notes of a fetch, from several threads at once; must return quickly.
pub trait Progress: Sync {
    /// Something happened.
    fn notify(&self, note: Note);
}

/// Hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn notify(&self, _note: Note) {}
}

/// Something that happened. A layer is named by the digest of its blob as it comes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The source is being asked what this name means.
    Resolving {
        /// The canonical name, or a path.
        name: String,
    },
    /// A layer begins.
    Layer {
        /// The layer.
        layer: Digest,
        /// Its compressed size in bytes.
        total: Option<u64>,
    },
    /// Bytes of a layer have come; at most one note per 256 KiB.
    Bytes {
        /// The layer.
        layer: Digest,
        /// Compressed bytes so far.
        done: u64,
    },
    /// A layer is in the store already.
    LayerExists {
        /// The layer.
        layer: Digest,
    },
    /// A layer is verified and unpacked.
    LayerDone {
        /// The layer.
        layer: Digest,
    },
    /// Somebody else is fetching this layer; we wait for them.
    Waiting {
        /// The layer.
        layer: Digest,
    },
    /// A request failed and will be tried again.
    Retrying {
        /// What failed (safe to print).
        why: String,
        /// The wait.
        after: Duration,
    },
    /// The registry could not be asked for something newer; the image in the store is used.
    Offline {
        /// The canonical name.
        name: String,
        /// Why (safe to print).
        why: String,
    },
    /// A volume that an image declares is left out: it would cover what every app gets.
    VolumeIgnored {
        /// Where the image wants it.
        path: String,
    },
    /// A name now belongs to the image that is being imported.
    NameMoved {
        /// The canonical name.
        name: String,
        /// The image it belonged to.
        from: Digest,
    },
    /// The image is in the store.
    Done {
        /// Its name.
        name: String,
    },
}
