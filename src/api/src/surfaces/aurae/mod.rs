//! Aurae v0: the services Runtime, Observe, Schedule and ScheduleExecutable. The contract is in `proto/aurae`.
//!
//! An executable is a pod of the engine with one app in the host's file system (`gantry run --stage1=host`), and an
//! enabled one is a schedule (`gantry schedule`), so that all other surfaces and commands see both.

mod observe;
mod outcome;
mod process_log;
mod runtime;
mod schedule;

use std::io;
use std::sync::Arc;

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
use crate::listen::{Listener, SocketAccess};
use crate::peer::{Caller, Peer};
use crate::root_only::RootOnly;
use crate::surface::{AccessRules, Endpoint, Security, Services, Surface, SurfaceStart};
use crate::tls::MutualTls;

/// The access of its socket files.
pub const SOCKET_ACCESS: SocketAccess = RootOnly::SOCKET_ACCESS;

/// Maximum bytes of a request.
const MAX_REQUEST: usize = 1 << 20;

/// The services whose calls change something.
const MUTATING: [&str; 2] = ["runtime.Runtime/", "schedule.ScheduleExecutable/"];

/// Serves Aurae's API on these sockets, with mutual TLS if there are certificates.
#[must_use]
pub fn endpoint(listeners: Vec<Listener>, tls: Option<MutualTls>) -> Endpoint {
    Endpoint::new(AuraeSurface, listeners).secured(tls.map_or(Security::Plain, Security::Tls))
}

struct AuraeSurface;

impl Surface for AuraeSurface {
    fn descriptors(&self) -> &'static [u8] {
        gantry_proto::aurae::DESCRIPTORS
    }

    fn start(self: Box<Self>, mut start: SurfaceStart<'_>) -> io::Result<Services> {
        let (context, writer) = (start.context(), start.writer()?);
        let observe = ObserveService::new(Arc::clone(&context));
        let runtime = RuntimeService::new(Arc::clone(&context), Arc::clone(&writer));
        let schedule = ScheduleService::new(context, Arc::clone(&writer));
        let mut services = start.services(AuraeRules { root_only: RootOnly { api: "Aurae's API" }, writer });
        services.add(ObserveServer::new(observe).max_decoding_message_size(MAX_REQUEST));
        services.add(RuntimeServer::new(runtime).max_decoding_message_size(MAX_REQUEST));
        services.add(ScheduleServer::new(schedule.clone()).max_decoding_message_size(MAX_REQUEST));
        services.add(ScheduleExecutableServer::new(schedule).max_decoding_message_size(MAX_REQUEST));
        Ok(services)
    }
}

/// Only root may call, with or without a certificate: it only shows which of root's programs calls.
struct AuraeRules {
    root_only: RootOnly,
    /// Records the audit.
    writer: Arc<Bridge<Engine>>,
}

impl AccessRules for AuraeRules {
    fn admits(&self, peer: Peer) -> bool {
        self.root_only.admits(peer)
    }

    fn authorize(&self, caller: &Caller, method: &str) -> Result<(), Status> {
        self.root_only.authorize(caller, method)
    }

    fn audit(&self, caller: &Caller, method: &str) -> Option<AuditedCall> {
        let is_mutating = MUTATING.iter().any(|service| method.starts_with(service));
        is_mutating.then(|| AuditedCall::new(caller, String::new(), method, Arc::clone(&self.writer)))
    }
}
