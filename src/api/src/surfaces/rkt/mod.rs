//! rkt's PublicAPI, package `v1alpha`. The contract is `proto/rkt/v1alpha/api.proto`.
//!
//! `service` has the methods; `filters` and `convert` translate requests and enums; `pods`, `images`, `events` and
//! `logs` make the responses; `pod_cache` keeps those of InspectPod.

mod convert;
mod detail;
mod events;
mod filters;
mod images;
mod log_lines;
mod logs;
mod pod_cache;
mod pods;
mod service;

use std::io;

use gantry_proto::rkt::server::public_api_server::PublicApiServer;
use tonic::Status;

use crate::listen::{Listener, SocketAccess};
use crate::peer::{Caller, GROUP, Peer};
use crate::surface::{AccessRules, Endpoint, Services, Surface, SurfaceStart};

/// Its socket files are open to their owner and to the group `gantry`.
pub const SOCKET_ACCESS: SocketAccess = SocketAccess { mode: 0o660, group: Some(GROUP) };

/// Maximum bytes of a request.
const MAX_REQUEST: usize = 1 << 20;

/// Serves rkt's PublicAPI on these sockets.
#[must_use]
pub fn endpoint(listeners: Vec<Listener>) -> Endpoint {
    Endpoint::new(RktSurface, listeners)
}

struct RktSurface;

impl Surface for RktSurface {
    fn descriptors(&self) -> &'static [u8] {
        gantry_proto::rkt::DESCRIPTORS
    }

    fn start(self: Box<Self>, start: SurfaceStart<'_>) -> io::Result<Services> {
        let service = service::Service::new(start.context());
        let mut services = start.services(RktRules);
        services.add(PublicApiServer::new(service).max_decoding_message_size(MAX_REQUEST));
        Ok(services)
    }
}

struct RktRules;

impl AccessRules for RktRules {
    /// Every client that can connect may read; the permissions of the socket decide who can. Values of environment
    /// variables are hidden from some clients, see [`detail`].
    fn admits(&self, _peer: Peer) -> bool {
        true
    }

    fn authorize(&self, _caller: &Caller, _method: &str) -> Result<(), Status> {
        Ok(())
    }
}
