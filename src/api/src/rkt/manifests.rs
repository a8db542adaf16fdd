//! Manifests of pods and images, as far as a client may see them.

use gantry_engine::Secrets;

use crate::peer::Peer;

/// Parts of an answer that are not in the database rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shows {
    /// How to write manifests; `None` omits them.
    pub(super) manifest: Option<Secrets>,
}

impl Shows {
    /// The parts that this client may see, with or without manifests.
    pub(super) fn to(peer: Peer, detail: bool) -> Self {
        let secrets = if peer.sees_secrets() { Secrets::Shown } else { Secrets::Hidden };
        Self { manifest: detail.then_some(secrets) }
    }
}
