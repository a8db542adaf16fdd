//! Aurae v0: the services Runtime, Observe, Schedule and ScheduleExecutable. The contract is in `proto/aurae`.
//!
//! An executable is a pod of the engine with one app in the host's file system (`gantry run --stage1=host`), and an
//! enabled one is a schedule (`gantry schedule`), so that all other surfaces and commands see both.

mod observe;
mod outcome;
mod process_log;
mod runtime;
mod schedule;

use std::sync::{Arc, OnceLock};

use gantry_engine::Engine;
use gantry_proto::aurae::observe::observe_server::ObserveServer;
use gantry_proto::aurae::runtime::runtime_server::RuntimeServer;
use gantry_proto::aurae::schedule::schedule_executable_server::ScheduleExecutableServer;
use gantry_proto::aurae::schedule::schedule_server::ScheduleServer;
use tonic::Status;

use self::observe::ObserveService;
use self::runtime::RuntimeService;
use self::schedule::ScheduleService;
use crate::audit::AuditedCall;
use crate::bridge::Bridge;
use crate::context::Context;
use crate::listen::{Listener, SocketAccess};
use crate::peer::{Caller, GROUP, Peer};
use crate::surface::{Access, Endpoint, Security, Services, Surface};
use crate::tls::MutualTls;

/// Its socket files are open to their owner and to the group `gantry`, whose members learn that only root may call.
pub const SOCKET_ACCESS: SocketAccess = SocketAccess { mode: 0o660, group: Some(GROUP) };

/// Maximum bytes of a request.
const MAX_REQUEST: usize = 1 << 20;

/// The services whose calls change something.
const MUTATING: [&str; 2] = ["runtime.Runtime/", "schedule.ScheduleExecutable/"];

/// Serves Aurae's API on these sockets, with mutual TLS if there are certificates.
#[must_use]
pub fn endpoint(listeners: Vec<Listener>, tls: Option<MutualTls>) -> Endpoint {
    Endpoint::new(AuraeSurface::default(), listeners).secured(tls.map_or(Security::Plain, Security::Tls))
}

#[derive(Default)]
struct AuraeSurface {
    /// Set when the services are added.
    writer: OnceLock<Arc<Bridge<Engine>>>,
}

impl Surface for AuraeSurface {
    fn descriptors(&self) -> &'static [u8] {
        gantry_proto::aurae::DESCRIPTORS
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

    /// A certificate does not replace root: it only shows which of root's programs calls.
    fn authorize(&self, caller: &Caller, _method: &str) -> Result<(), Status> {
        match caller.peer {
            Peer::Root => Ok(()),
            Peer::User { .. } | Peer::Network | Peer::Certificate { .. } => {
                Err(Status::permission_denied("only root may call Aurae's API"))
            }
        }
    }

    fn audit(&self, caller: &Caller, method: &str) -> Option<AuditedCall> {
        let writer = self.writer.get().filter(|_| MUTATING.iter().any(|service| method.starts_with(service)))?;
        Some(AuditedCall::new(caller, String::new(), method, Arc::clone(writer)))
    }

    fn add_services(&self, context: &Arc<Context>, services: &mut Services) {
        // The surface's access is read-write, so a writer exists.
        let Some(writer) = services.writer() else { return };
        self.writer.get_or_init(|| Arc::clone(&writer));
        let observe = ObserveService::new(Arc::clone(context));
        let runtime = RuntimeService::new(Arc::clone(context), Arc::clone(&writer));
        let schedule = ScheduleService::new(Arc::clone(context), writer);
        services.add(ObserveServer::new(observe).max_decoding_message_size(MAX_REQUEST));
        services.add(RuntimeServer::new(runtime).max_decoding_message_size(MAX_REQUEST));
        services.add(ScheduleServer::new(schedule.clone()).max_decoding_message_size(MAX_REQUEST));
        services.add(ScheduleExecutableServer::new(schedule).max_decoding_message_size(MAX_REQUEST));
    }
}
