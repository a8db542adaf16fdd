//! The Kubernetes Container Runtime Interface, v1: `RuntimeService` and `ImageService`. The contract is in `proto/cri`.
//!
//! A sandbox is a pod of the engine that is made without apps (`gantry app sandbox`), so that all other surfaces and
//! commands see it. The calls of checkpoints answer UNIMPLEMENTED.

mod containers;
mod images;
mod node_status;
mod observe;
mod runtime;
mod sandbox;
mod streaming;

use std::sync::{Arc, Mutex, PoisonError};

use gantry_proto::cri::v1::image_service_server::ImageServiceServer;
use gantry_proto::cri::v1::runtime_service_server::RuntimeServiceServer;
use tonic::Status;

use self::images::CriImages;
use self::runtime::CriRuntime;
use self::streaming::StreamingServer;
use crate::context::Context;
use crate::listen::{Listener, SocketAccess};
use crate::peer::{Caller, GROUP, Peer};
use crate::surface::{Access, Endpoint, Services, Surface};

/// Its socket files are open to their owner and to the group `gantry`, whose members learn that only root may call.
pub const SOCKET_ACCESS: SocketAccess = SocketAccess { mode: 0o660, group: Some(GROUP) };

/// Maximum bytes of a request: what a kubelet accepts of a response.
const MAX_REQUEST: usize = 16 << 20;

/// Serves the CRI on these sockets, and exec, attach and port-forward on these TCP sockets.
#[must_use]
pub fn endpoint(listeners: Vec<Listener>, streaming: Vec<Listener>) -> Endpoint {
    Endpoint::new(CriSurface { streaming: Mutex::new(streaming) }, listeners)
}

struct CriSurface {
    /// The sockets of the streaming server, until it serves.
    streaming: Mutex<Vec<Listener>>,
}

impl Surface for CriSurface {
    fn descriptors(&self) -> &'static [u8] {
        gantry_proto::cri::DESCRIPTORS
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

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
                Err(Status::permission_denied("only root may call the CRI"))
            }
        }
    }

    fn add_services(&self, context: &Arc<Context>, services: &mut Services) {
        // The surface's access is read-write, so a writer exists.
        let Some(writer) = services.writer() else { return };
        let images = CriImages::new(Arc::clone(context), Arc::clone(&writer));
        services.add(ImageServiceServer::new(images).max_decoding_message_size(MAX_REQUEST));
        let listeners = std::mem::take(&mut *self.streaming.lock().unwrap_or_else(PoisonError::into_inner));
        let streaming = StreamingServer::start(Arc::clone(context), Arc::clone(&writer), listeners);
        let runtime = CriRuntime::new(Arc::clone(context), writer, streaming);
        services.add(RuntimeServiceServer::new(runtime).max_decoding_message_size(MAX_REQUEST));
    }
}
