//! The access rules of an API that only root may call.

use tonic::Status;

use crate::listen::SocketAccess;
use crate::peer::{Caller, GROUP, Peer};
use crate::surface::AccessRules;

/// See the module.
pub(crate) struct RootOnly {
    /// The API, in the answer to other users.
    pub(crate) api: &'static str,
}

impl RootOnly {
    /// Its socket files are open to their owner and to the group `gantry`, whose members learn that only root may call.
    pub(crate) const SOCKET_ACCESS: SocketAccess = SocketAccess { mode: 0o660, group: Some(GROUP) };
}

impl AccessRules for RootOnly {
    /// Other users are admitted, so that they receive PERMISSION_DENIED and not a closed connection.
    fn admits(&self, peer: Peer) -> bool {
        match peer {
            Peer::Root | Peer::User { .. } => true,
            Peer::Network | Peer::Certificate { .. } => false,
        }
    }

    fn authorize(&self, caller: &Caller, _method: &str) -> Result<(), Status> {
        match caller.peer {
            Peer::Root => Ok(()),
            Peer::User { .. } | Peer::Network | Peer::Certificate { .. } => {
                Err(Status::permission_denied(format!("only root may call {}", self.api)))
            }
        }
    }
}
