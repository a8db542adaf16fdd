//! The servers: one tonic server per surface, with limits, on one runtime; start and drain.
//!
//! Two threads serve all connections and streams; calls to the engine run on the threads of the [`crate::bridge`]. The
//! memory that clients can use is bounded: connections, streams per connection and in all, bytes of a request, and a
//! few messages in flight per stream.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use gantry_model::{ErrorKind, Kind};
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health as HealthService, HealthServer};

use crate::accept::Acceptors;
use crate::bridge::{Bridge, READERS};
use crate::context::{Config, Context};
use crate::dir_watch::DirWatch;
use crate::health::Health;
use crate::hub::Hub;
use crate::listen::Listener;
use crate::metrics::Metrics;
use crate::metrics::http::{MetricsServer, MetricsSource};
use crate::surface::{AccessRules, Endpoint, Gate, Security, Services, SurfaceStart};

/// Threads of the runtime.
const THREADS: usize = 2;
/// Stack size of each thread.
const STACK: usize = 1 << 20;
/// Maximum open streams of a connection.
const MAX_STREAMS: u32 = 256;
/// Maximum bytes of all headers of a request.
const MAX_HEADERS: u32 = 16 << 10;
/// Maximum streams of a connection that the client has opened and reset before the server accepted them: four times a
/// burst of calls that time out together while this process is stopped. One more ends the connection.
const MAX_PENDING_RESETS: usize = 4 * MAX_STREAMS as usize;
/// Maximum streams that the server refuses or resets during the life of a connection. A client that opens more than
/// [`MAX_STREAMS`] before it has read the settings is refused each of them and retries, which is legitimate; this limit
/// is for clients that do nothing else.
const MAX_REFUSED_STREAMS: usize = 16 << 10;
/// Interval of HTTP/2 keep-alive pings to a silent client.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// The time that a client has to answer a ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// The server cannot start, or has failed.
#[derive(Debug, Error)]
pub enum ServeError {
    /// A system call failed.
    #[error("cannot {attempt}")]
    System {
        /// The attempted operation.
        attempt: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A built-in contract cannot be read.
    #[error("cannot describe the API")]
    Describe(#[source] tonic_reflection::server::Error),
    /// The server failed.
    #[error("the API server failed")]
    Server(#[source] tonic::transport::Error),
    /// The task of the server panicked.
    #[error("the API server panicked")]
    Panicked(#[source] JoinError),
}

impl Kind for ServeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::System { source, .. } => ErrorKind::of_io(source),
            Self::Describe(_) | Self::Server(_) | Self::Panicked(_) => ErrorKind::Internal,
        }
    }
}

impl ServeError {
    fn system(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { attempt, source }
    }
}

/// A server that runs until it is drained or dropped.
pub struct Running {
    runtime: Runtime,
    health: Health,
    draining: watch::Sender<bool>,
    stopping: watch::Sender<bool>,
    surfaces: Vec<RunningSurface>,
    metrics: MetricsServer,
}

/// A surface whose services are made, and what serves them.
struct StartedSurface {
    descriptors: &'static [u8],
    rules: Arc<dyn AccessRules>,
    routes: Routes,
    listeners: Vec<Listener>,
    security: Security,
}

/// The server of one surface.
struct RunningSurface {
    acceptors: Acceptors,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

/// Serves each surface on its own sockets, and the metrics on these, from the return of this call on.
///
/// # Errors
/// [`ServeError`].
pub fn serve(
    config: Config,
    endpoints: Vec<Endpoint>,
    metrics_listeners: Vec<Listener>,
) -> Result<Running, ServeError> {
    let runtime = start_runtime().map_err(ServeError::system("start the threads of the API server"))?;
    let (draining, is_draining) = watch::channel(false);
    let (stopping, is_stopping) = watch::channel(false);
    // Sockets and inotify register with the runtime's poller.
    let inside = runtime.enter();
    let reconciles = config.reconciles;
    let metrics = Arc::clone(&config.metrics);
    let contracts = endpoints.iter().map(|endpoint| endpoint.surface.descriptors());
    metrics.register_methods(contracts.chain([tonic_health::pb::FILE_DESCRIPTOR_SET]));
    let context = Arc::new(start_context(config, is_draining)?);
    let (mut started, mut names, mut writers) = (Vec::new(), Vec::new(), Vec::new());
    for Endpoint { surface, listeners, security } in endpoints {
        let descriptors = surface.descriptors();
        let services = surface
            .start(SurfaceStart::new(&context))
            .map_err(ServeError::system("start the threads that write to the engine"))?;
        let Services { rules, writer, routes, names: added, .. } = services;
        writers.extend(writer.as_ref().map(Arc::downgrade));
        names.extend(added);
        started.push(StartedSurface { descriptors, rules, routes: routes.routes(), listeners, security });
    }
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let health = runtime.block_on(Health::new(reporter, names, reconciles));
    let serve = |surface| serve_surface(&runtime, surface, &metrics, health_service.clone(), is_stopping.clone());
    let surfaces = started.into_iter().map(serve).collect::<Result<_, _>>()?;
    let metrics = MetricsServer::start(metrics_listeners, MetricsSource::new(context, writers))
        .map_err(ServeError::system("register the listening sockets of metrics"))?;
    drop(inside);
    Ok(Running { runtime, health, draining, stopping, surfaces, metrics })
}

fn start_runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_stack_size(STACK)
        .thread_name("api")
        .enable_all()
        .build()
}

/// Starts the threads that all surfaces share.
fn start_context(config: Config, draining: watch::Receiver<bool>) -> Result<Context, ServeError> {
    let reader = Bridge::start(config.settings.clone(), READERS)
        .map_err(ServeError::system("start the threads that read the engine"))?;
    // It only reads events, which no setting changes.
    let options = config.settings.current().options.clone();
    let hub = Hub::start(options, config.commits.clone(), Arc::clone(&config.metrics))
        .map_err(ServeError::system("start the thread that reads events"))?;
    Ok(Context { config, reader: Arc::new(reader), hub, dir_watch: DirWatch::new(), draining })
}

/// Serves a surface on its sockets, with health and reflection beside it.
fn serve_surface(
    runtime: &Runtime,
    surface: StartedSurface,
    metrics: &Arc<Metrics>,
    health: HealthServer<impl HealthService>,
    mut stopping: watch::Receiver<bool>,
) -> Result<RunningSurface, ServeError> {
    let StartedSurface { descriptors, rules, routes, listeners, security } = surface;
    if let Some(tls) = security.tls() {
        runtime.spawn(tls.clone().watch_files());
    }
    let (acceptors, incoming) =
        Acceptors::start(listeners, &rules, &security).map_err(ServeError::system("register the listening sockets"))?;
    let v1 = reflection(descriptors).build_v1().map_err(ServeError::Describe)?;
    let v1alpha = reflection(descriptors).build_v1alpha().map_err(ServeError::Describe)?;
    let router = limited()
        .add_routes(routes)
        .add_service(Gate::new(&rules, metrics, health))
        .add_service(Gate::new(&rules, metrics, v1))
        .add_service(Gate::new(&rules, metrics, v1alpha));
    let server = runtime.spawn(router.serve_with_incoming_shutdown(incoming, async move {
        // An error means that the sender was dropped without draining: stop as well.
        let _stop_either_way = stopping.wait_for(|stopping| *stopping).await;
    }));
    Ok(RunningSurface { acceptors, server })
}

/// Server reflection on the sockets of one surface: its contracts and health.
fn reflection(descriptors: &'static [u8]) -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(descriptors)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

fn limited() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_header_list_size(MAX_HEADERS)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_max_local_error_reset_streams(Some(MAX_REFUSED_STREAMS))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
}

impl Running {
    /// Drains: accepts no more connections, ends streams with UNAVAILABLE, and lets other calls finish within
    /// `timeout`.
    ///
    /// # Errors
    /// [`ServeError`]: a socket file could not be removed, or a server had failed. All servers have ended.
    pub fn drain(self, timeout: Duration) -> Result<(), ServeError> {
        let Self { runtime, health, draining, stopping, surfaces, metrics } = self;
        let result = runtime.block_on(async {
            let deadline = tokio::time::Instant::now() + timeout;
            health.end().await;
            let _no_stream_may_be_open = draining.send(true);
            let mut result = metrics.end().await.map_err(ServeError::system("remove the socket file"));
            let mut servers = Vec::new();
            for RunningSurface { acceptors, server } in surfaces {
                let removed = acceptors.end().await.map_err(ServeError::system("remove the socket file"));
                result = result.and(removed);
                servers.push(server);
            }
            let _servers_may_have_ended = stopping.send(true);
            for server in servers {
                // Calls that are not finished at the deadline are cut off.
                result = match tokio::time::timeout_at(deadline, server).await {
                    Ok(Ok(Err(error))) => result.and(Err(ServeError::Server(error))),
                    Ok(Err(error)) => result.and(Err(ServeError::Panicked(error))),
                    Ok(Ok(Ok(()))) | Err(_) => result,
                };
            }
            result
        });
        runtime.shutdown_background();
        result
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
