//! The Talos node API: `machine.MachineService` of Talos 0.9 and later, `os.OSService` of Talos 0.6, and the services
//! around them. The contract is in `proto/talos`.
//!
//! Every call passes through `node`: `targets` reads the nodes that the call names, `own_names` decides which of them
//! are this node's, and `roles` decides whether the peer may make the call. `services` implements the generated traits
//! and forwards to `calls`, which has a module for each longer call. `names` maps ids to pods and apps, `pod_change`
//! changes pods, and `host` reads the host.

mod calls;
mod containers;
mod control;
mod daemon_logs;
mod events;
mod file_calls;
mod files;
mod host;
mod image_calls;
mod images;
mod logs;
mod names;
mod node;
mod own_names;
mod pod_change;
mod refusals;
#[cfg(test)]
mod request_tests;
mod resources;
mod restart;
mod roles;
mod service_calls;
mod service_control;
mod service_ids;
mod service_list;
mod service_states;
mod services;
mod stats;
mod targets;
mod xid;

use std::io;
use std::sync::Arc;

use gantry_engine::Engine;
use gantry_proto::talos::cluster::cluster_service_server::ClusterServiceServer;
use gantry_proto::talos::health::health_server::HealthServer;
use gantry_proto::talos::inspect::inspect_service_server::InspectServiceServer;
use gantry_proto::talos::machine::machine_service_server::MachineServiceServer;
use gantry_proto::talos::network::network_service_server::NetworkServiceServer;
use gantry_proto::talos::os::os_service_server::OsServiceServer;
use gantry_proto::talos::resource::resource_service_server::ResourceServiceServer;
use gantry_proto::talos::securityapi::security_service_server::SecurityServiceServer;
use gantry_proto::talos::storage::storage_service_server::StorageServiceServer;
use gantry_proto::talos::time::time_service_server::TimeServiceServer;
use tonic::Status;

pub use self::control::{MachineCommands, MachineControl};
use self::node::Node;
pub use self::own_names::NodeCertificate;
use self::services::{Clock, Machine, Network, NodeHealth, Os, Others, Resources, Storage};
use crate::audit::AuditedCall;
use crate::bridge::Bridge;
use crate::listen::{Listener, SocketAccess};
use crate::peer::{Caller, GROUP, Peer};
use crate::surface::{AccessRules, Endpoint, Security, Services, Surface, SurfaceStart};
use crate::tls::MutualTls;

/// Its socket files are open to their owner and to the group `gantry`, whose members may read.
pub const SOCKET_ACCESS: SocketAccess = SocketAccess { mode: 0o660, group: Some(GROUP) };

/// Maximum bytes of a request.
const MAX_REQUEST: usize = 1 << 20;

/// Serves the Talos node API on these sockets. TCP connections need mutual TLS. `control`: whether clients may reboot.
/// The names of `certificate` are names of this node.
#[must_use]
pub fn endpoint(
    listeners: Vec<Listener>,
    tls: Option<MutualTls>,
    control: MachineControl,
    certificate: NodeCertificate,
) -> Endpoint {
    Endpoint::new(TalosSurface { control, certificate }, listeners)
        .secured(tls.map_or(Security::Plain, Security::TlsOverTcp))
}

struct TalosSurface {
    control: MachineControl,
    certificate: NodeCertificate,
}

impl Surface for TalosSurface {
    fn descriptors(&self) -> &'static [u8] {
        gantry_proto::talos::DESCRIPTORS
    }

    fn start(self: Box<Self>, mut start: SurfaceStart<'_>) -> io::Result<Services> {
        let (context, writer) = (start.context(), start.writer()?);
        let node = Arc::new(Node::new(context, Arc::clone(&writer), self.control, self.certificate));
        let mut services = start.services(TalosRules { writer });
        services.add(MachineServiceServer::new(Machine(Arc::clone(&node))).max_decoding_message_size(MAX_REQUEST));
        services.add(OsServiceServer::new(Os(Arc::clone(&node))).max_decoding_message_size(MAX_REQUEST));
        services.add(ClusterServiceServer::new(Others));
        services.add(HealthServer::new(NodeHealth(Arc::clone(&node))));
        services.add(InspectServiceServer::new(Others));
        services.add(NetworkServiceServer::new(Network(Arc::clone(&node))));
        services.add(ResourceServiceServer::new(Resources(Arc::clone(&node))));
        services.add(SecurityServiceServer::new(Others));
        services.add(StorageServiceServer::new(Storage(Arc::clone(&node))));
        services.add(TimeServiceServer::new(Clock(node)));
        Ok(services)
    }
}

struct TalosRules {
    /// Records the audit.
    writer: Arc<Bridge<Engine>>,
}

impl AccessRules for TalosRules {
    /// A TCP client without a certificate has no identity, so it is not admitted.
    fn admits(&self, peer: Peer) -> bool {
        match peer {
            Peer::Root | Peer::User { .. } | Peer::Certificate { .. } => true,
            Peer::Network => false,
        }
    }

    fn authorize(&self, caller: &Caller, method: &str) -> Result<(), Status> {
        roles::authorize(caller, method)
    }

    fn audit(&self, caller: &Caller, method: &str) -> Option<AuditedCall> {
        let roles = || roles::Roles::of_caller(caller).to_string();
        roles::is_mutating(method).then(|| AuditedCall::new(caller, roles(), method, Arc::clone(&self.writer)))
    }
}
