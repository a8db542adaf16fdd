//! A surface: one API with its own services, sockets and access rules. Each surface is a folder below `surfaces` and
//! implements [`Surface`]; nothing outside that folder imports it.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as TaskContext, Poll};
use std::time::{Duration, Instant};

use gantry_engine::Engine;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic::{Code, Status};
use tracing::{Instrument as _, debug, info_span};

use crate::audit::AuditedCall;
use crate::bridge::{Bridge, WRITERS};
use crate::client_fault::{ClientFault, correct_code};
use crate::context::Context;
use crate::deadline::Deadline;
use crate::listen::Listener;
use crate::metrics::Metrics;
use crate::peer::{Caller, Peer};
use crate::responses::HoldPermits;
use crate::tls::MutualTls;
use crate::warnings::WarningLimit;

/// See the module. It does not serve yet.
pub(crate) trait Surface: Send + 'static {
    /// Its contracts as a `google.protobuf.FileDescriptorSet`, for reflection on its sockets.
    fn descriptors(&self) -> &'static [u8];

    /// Makes its access rules, and its gRPC services behind them. Called inside the runtime.
    ///
    /// # Errors
    /// A thread cannot be started.
    fn start(self: Box<Self>, start: SurfaceStart<'_>) -> io::Result<Services>;
}

/// Which peers may call what on the sockets of a surface.
pub(crate) trait AccessRules: Send + Sync + 'static {
    /// Whether this peer may connect. The connection of another peer is closed at once.
    fn admits(&self, peer: Peer) -> bool;

    /// Whether this caller may call a method (`package.Service/Method`). All methods on the surface's sockets pass
    /// here, those of `grpc.health.v1.Health` and `grpc.reflection` too.
    ///
    /// # Errors
    /// `PERMISSION_DENIED` or `UNAUTHENTICATED`, which is the answer to the call.
    fn authorize(&self, caller: &Caller, method: &str) -> Result<(), Status>;

    /// Begins to audit a call of this method. `None`: it changes nothing, or the surface has no audit.
    fn audit(&self, _caller: &Caller, _method: &str) -> Option<AuditedCall> {
        None
    }
}

/// A surface and the sockets that serve it.
pub struct Endpoint {
    pub(crate) surface: Box<dyn Surface>,
    pub(crate) listeners: Vec<Listener>,
    pub(crate) security: Security,
}

/// The connections of an endpoint that use mutual TLS.
#[derive(Debug, Clone)]
pub(crate) enum Security {
    /// None.
    Plain,
    /// Those over TCP.
    TlsOverTcp(MutualTls),
    /// All.
    Tls(MutualTls),
}

impl Security {
    /// The certificates.
    pub(crate) fn tls(&self) -> Option<&MutualTls> {
        match self {
            Self::Plain => None,
            Self::TlsOverTcp(tls) | Self::Tls(tls) => Some(tls),
        }
    }
}

impl Endpoint {
    /// Serves a surface on these sockets.
    pub(crate) fn new(surface: impl Surface, listeners: Vec<Listener>) -> Self {
        Self { surface: Box::new(surface), listeners, security: Security::Plain }
    }

    /// Requires mutual TLS of connections.
    pub(crate) fn secured(self, security: Security) -> Self {
        Self { security, ..self }
    }

    /// The addresses of its sockets, as logged: `tcp:127.0.0.1:15441`, `unix:/run/gantry/api.sock`.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.listeners.iter().map(Listener::name)
    }
}

/// What a surface makes its services of.
pub(crate) struct SurfaceStart<'a> {
    context: &'a Arc<Context>,
    /// `None`: the surface only reads.
    writer: Option<Arc<Bridge<Engine>>>,
}

impl<'a> SurfaceStart<'a> {
    /// For one surface.
    pub(crate) const fn new(context: &'a Arc<Context>) -> Self {
        Self { context, writer: None }
    }

    /// What all surfaces work with. It has no write access to the engine.
    pub(crate) fn context(&self) -> Arc<Context> {
        Arc::clone(self.context)
    }

    /// Write access to the engine: starts the threads of the surface's own bridge at the first call.
    ///
    /// # Errors
    /// The process can start no more threads.
    pub(crate) fn writer(&mut self) -> io::Result<Arc<Bridge<Engine>>> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => Arc::new(Bridge::start(self.context.config.settings.clone(), WRITERS)?),
        };
        Ok(Arc::clone(self.writer.insert(writer)))
    }

    /// The surface's services, none yet, behind these rules.
    pub(crate) fn services(self, rules: impl AccessRules) -> Services {
        Services {
            rules: Arc::new(rules),
            metrics: Arc::clone(&self.context.config.metrics),
            writer: self.writer,
            routes: Routes::builder(),
            names: Vec::new(),
        }
    }
}

/// The services of one surface, and its access rules.
pub(crate) struct Services {
    /// Its access rules.
    pub(crate) rules: Arc<dyn AccessRules>,
    metrics: Arc<Metrics>,
    /// Its write access to the engine.
    pub(crate) writer: Option<Arc<Bridge<Engine>>>,
    /// The routes.
    pub(crate) routes: RoutesBuilder,
    /// The names of the services.
    pub(crate) names: Vec<&'static str>,
}

impl Services {
    /// Adds a service: behind the surface's access rules, the client's deadline and a span, and known to health by its
    /// name.
    pub(crate) fn add<S>(&mut self, service: S)
    where
        S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
        S: NamedService + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        let service = Deadline(HoldPermits(service));
        self.routes.add_service(Gate::new(&self.rules, &self.metrics, service));
    }
}

/// A service behind its surface's access rules. Each call has a span with its number, its method and its peer.
#[derive(Clone)]
pub(crate) struct Gate<S> {
    rules: Arc<dyn AccessRules>,
    metrics: Arc<Metrics>,
    service: S,
}

impl<S> Gate<S> {
    /// Puts a service behind the access rules of this surface, and counts its calls.
    pub(crate) fn new(rules: &Arc<dyn AccessRules>, metrics: &Arc<Metrics>, service: S) -> Self {
        Self { rules: Arc::clone(rules), metrics: Arc::clone(metrics), service }
    }
}

/// The limit on warnings about failed calls, of all surfaces together.
static WARNING_LIMIT: WarningLimit = WarningLimit::new();

/// The number of the next call.
static NEXT_REQUEST: AtomicU64 = AtomicU64::new(1);

impl<S> Service<http::Request<Body>> for Gate<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut TaskContext<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let caller = Caller::of_http(request.extensions());
        let method = request.uri().path().trim_start_matches('/');
        let number = NEXT_REQUEST.fetch_add(1, Ordering::Relaxed);
        let span = info_span!("request", request = number, method, peer = %caller);
        let audited = self.rules.audit(&caller, method);
        if let Err(status) = self.rules.authorize(&caller, method) {
            span.in_scope(|| {
                debug!("call refused: {}", status.message());
                if let Some(audited) = audited {
                    audited.refuse(&status);
                }
            });
            self.metrics.record_call(method, status.code(), Duration::ZERO);
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        let (method, metrics, begun) = (method.to_owned(), Arc::clone(&self.metrics), Instant::now());
        if let Some(audited) = &audited {
            request.extensions_mut().insert(audited.notes());
        }
        let response = span.in_scope(|| self.service.call(request));
        let logged = async move {
            let response = correct_code(response.await?);
            let code = log_response(&response);
            metrics.record_call(&method, code, begun.elapsed());
            if let Some(audited) = audited {
                audited.finish(code).await;
            }
            Ok(response)
        };
        Box::pin(logged.instrument(span))
    }
}

/// Logs a failure of the server as a warning, within [`WARNING_LIMIT`]; everything else is for debugging, also a
/// [`ClientFault`]. The status of
/// a stream that failed later is not in its first headers. Returns the status code.
fn log_response(response: &http::Response<Body>) -> Code {
    let Some(status) = Status::from_header_map(response.headers()) else {
        debug!("call answered");
        return Code::Ok;
    };
    match status.code() {
        Code::Ok => debug!("call answered"),
        _ if ClientFault::is_in(response) => debug!("call refused: {}", status.message()),
        Code::Internal | Code::DataLoss | Code::Unknown => WARNING_LIMIT.log_failure(status.message()),
        _ => debug!("call refused: {}", status.message()),
    }
    status.code()
}

impl<S: NamedService> NamedService for Gate<S> {
    const NAME: &'static str = S::NAME;
}
