//! The parts of pods and images that depend on the request and its peer.

use gantry_engine::Secrets;

use crate::peer::Peer;

/// The parts of a pod or an image that a response includes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Detail {
    /// How to write manifests; `None` omits them.
    pub(super) manifest: Option<Secrets>,
}

impl Detail {
    /// The detail for this peer, with or without manifests.
    pub(super) fn for_peer(peer: Peer, manifests: bool) -> Self {
        let secrets = if peer.sees_secrets() { Secrets::Shown } else { Secrets::Hidden };
        Self { manifest: manifests.then_some(secrets) }
    }
}
