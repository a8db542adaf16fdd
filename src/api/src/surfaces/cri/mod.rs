//! The Kubernetes Container Runtime Interface, v1: `RuntimeService` and `ImageService`. The contract is in `proto/cri`.
//!
//! A sandbox is a pod of the engine that is made without apps (`gantry app sandbox`), so that all other surfaces and
//! commands see it. The calls of checkpoints answer UNIMPLEMENTED.

mod call;
mod containers;
mod images;
mod node_status;
mod observe;
mod reply;
mod runtime;
mod sandbox;
mod streaming;

use std::io;
use std::sync::Arc;

use gantry_proto::cri::v1::image_service_server::ImageServiceServer;
use gantry_proto::cri::v1::runtime_service_server::RuntimeServiceServer;

use self::images::CriImages;
use self::runtime::CriRuntime;
use self::streaming::StreamingServer;
use crate::listen::{Listener, SocketAccess};
use crate::root_only::RootOnly;
use crate::surface::{Endpoint, Services, Surface, SurfaceStart};

/// The access of its socket files.
pub const SOCKET_ACCESS: SocketAccess = RootOnly::SOCKET_ACCESS;

/// Maximum bytes of a request: what a kubelet accepts of a response.
const MAX_REQUEST: usize = 16 << 20;

/// Serves the CRI on these sockets, and exec, attach and port-forward on these TCP sockets.
#[must_use]
pub fn endpoint(listeners: Vec<Listener>, streaming: Vec<Listener>) -> Endpoint {
    Endpoint::new(CriSurface { streaming }, listeners)
}

struct CriSurface {
    /// The sockets of the streaming server.
    streaming: Vec<Listener>,
}

impl Surface for CriSurface {
    fn descriptors(&self) -> &'static [u8] {
        gantry_proto::cri::DESCRIPTORS
    }

    fn start(self: Box<Self>, mut start: SurfaceStart<'_>) -> io::Result<Services> {
        let (context, writer) = (start.context(), start.writer()?);
        let images = CriImages::new(Arc::clone(&context), Arc::clone(&writer));
        let streaming = StreamingServer::start(Arc::clone(&context), Arc::clone(&writer), self.streaming);
        let runtime = CriRuntime::new(context, writer, streaming);
        let mut services = start.services(RootOnly { api: "the CRI" });
        services.add(ImageServiceServer::new(images).max_decoding_message_size(MAX_REQUEST));
        services.add(RuntimeServiceServer::new(runtime).max_decoding_message_size(MAX_REQUEST));
        Ok(services)
    }
}
