//! Progress events of a fetch, for a progress bar or a log. They influence nothing.

use std::time::Duration;

use gantry_model::Digest;

/// Receives the events of a fetch, from several threads at once. Must return quickly.
pub trait Progress: Sync {
    /// Handles an event.
    fn notify(&self, note: Note);
}

/// Ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn notify(&self, _note: Note) {}
}

/// An event. Layers are named by the digest of their compressed blob.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// The source is asked to resolve a name.
    Resolving {
        /// The canonical name, or a path.
        name: String,
    },
    /// The download of a layer starts.
    Layer {
        /// The layer.
        layer: Digest,
        /// Its compressed size in bytes.
        total: Option<u64>,
    },
    /// Part of a layer has been received; at most one event per 256 KiB.
    Bytes {
        /// The layer.
        layer: Digest,
        /// Compressed bytes so far.
        done: u64,
    },
    /// A layer is already in the store.
    LayerExists {
        /// The layer.
        layer: Digest,
    },
    /// A layer has been verified and unpacked.
    LayerDone {
        /// The layer.
        layer: Digest,
    },
    /// Another process fetches this layer; this one waits.
    Waiting {
        /// The layer.
        layer: Digest,
    },
    /// A request failed and will be retried.
    Retrying {
        /// The failure (safe to print).
        why: String,
        /// The wait.
        after: Duration,
    },
    /// A mirror failed; the next one, or the registry itself, is asked.
    MirrorFailed {
        /// The mirror.
        mirror: String,
        /// The reason (safe to print).
        why: String,
    },
    /// The registry could not be reached for a newer image; the one in the store is used.
    Offline {
        /// The canonical name.
        name: String,
        /// The reason (safe to print).
        why: String,
    },
    /// A volume that an image declares is omitted: it would hide gantry's own mounts.
    VolumeIgnored {
        /// The path that the image asks for.
        path: String,
    },
    /// A name moves to the image that is being imported.
    NameMoved {
        /// The canonical name.
        name: String,
        /// The image it belonged to.
        from: Digest,
    },
    /// The image does not get the name of its file or directory, which is another image's.
    NameTaken {
        /// The canonical name.
        name: String,
        /// The image that is being imported.
        image: Digest,
        /// The image that keeps the name.
        owner: Digest,
    },
    /// A name in an archive or layout is left out, because no image can have it.
    NameInvalid {
        /// The name (not checked).
        name: String,
    },
    /// The image is in the store.
    Done {
        /// Its name.
        name: String,
    },
}
