//! Manifests of pods and images, as far as a client may see them.

use gantry_engine::Secrets;

use crate::peer::Peer;

/// What an answer has beyond rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shows {
    /// How manifests are written; none: without them.
    pub(super) manifest: Option<Secrets>,
}

impl Shows {
    /// What this client may see, with manifests or without.
    pub(super) fn to(peer: Peer, detail: bool) -> Self {
        let secrets = if peer.sees_secrets() { Secrets::Shown } else { Secrets::Hidden };
        Self { manifest: detail.then_some(secrets) }
    }
}
