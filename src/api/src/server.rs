//! The server: tonic with its limits, on its own runtime; start and drain.
//!
//! Two threads carry all connections and streams; what asks the engine does so on the threads of the [`crate::bridge`].
//! Whatever a client does, memory stays bounded: so many connections, so many streams on each and in all, a request of
//! so many bytes, and for each stream the few messages that are on their way.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::Options;
use gantry_engine::model::{ErrorKind, Kind};
use thiserror::Error;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::accept::Acceptors;
use crate::bridge::{Bridge, Source};
use crate::deadline::Deadline;
use crate::health::Health;
use crate::hub::Hub;
use crate::listen::Listener;
use crate::rkt;
use crate::watch::Watch;

/// Threads of the runtime.
const THREADS: usize = 2;
/// What one of them may put on its stack.
const STACK: usize = 1 << 20;
/// Streams that one connection may have open.
const STREAMS: u32 = 256;
/// Bytes of all headers of a request.
const HEADERS: u32 = 16 << 10;
/// How many streams of a connection may be open and reset at a time before the server has accepted them: a burst of calls
/// that time out together while this process stands still, four times over. One more ends the connection.
const MAX_PENDING_RESETS: usize = 4 * STREAMS as usize;
/// How many streams of a connection the server may refuse or reset, as long as it lives. A client that opens more streams
/// than [`STREAMS`] before it has read the settings is refused each of them and asks again, which is no offence; the
/// limit is for clients that do nothing else.
const MAX_REFUSED_STREAMS: usize = 16 << 10;
/// A client that is silent for so long is asked whether it is still there,
const ASK_AFTER: Duration = Duration::from_secs(30);
/// and has so long to answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// What is served.
#[derive(Debug, Clone)]
pub struct Config {
    /// For the engine.
    pub options: Options,
    /// The directory of the configuration file, as GetInfo tells it.
    pub config_dir: PathBuf,
    /// Whether rows are kept true; health tells it as `gantry.keeper`.
    pub keeps: bool,
}

/// It cannot be served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// No threads, descriptors or memory left.
    #[error("cannot {attempt}")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The contract that is built in cannot be read.
    #[error("cannot describe the API: {0}")]
    Describe(String),
    /// The server failed.
    #[error("the API server failed: {0}")]
    Server(String),
}

impl Kind for ServeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::System { source, .. } => ErrorKind::of_io(source),
            Self::Describe(_) | Self::Server(_) => ErrorKind::Internal,
        }
    }
}

impl ServeError {
    fn system(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { attempt, source }
    }
}

/// What surfaces work with.
pub(crate) struct Shared {
    /// To the engine.
    pub(crate) bridge: Bridge,
    /// To the events.
    pub(crate) hub: Hub,
    /// To the log directories.
    pub(crate) watch: Watch,
    /// Becomes true when streams are to end.
    pub(crate) ending: watch::Receiver<bool>,
}

impl Shared {
    /// Returns when streams are to end.
    pub(crate) async fn ended(&self) {
        let mut ending = self.ending.clone();
        // Fails when the server is gone altogether.
        let _ = ending.wait_for(|ending| *ending).await;
    }
}

/// A server that runs until it is drained or dropped.
pub struct Running {
    runtime: Runtime,
    health: Health,
    ending: watch::Sender<bool>,
    stop: oneshot::Sender<()>,
    acceptors: Acceptors,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

/// Serves all surfaces on all listeners, from the return of this call on.
///
/// # Errors
/// [`ServeError`].
pub fn serve(config: Config, listeners: Vec<Listener>) -> Result<Running, ServeError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_stack_size(STACK)
        .thread_name("api")
        .enable_all()
        .build()
        .map_err(ServeError::system("start the threads of the API server"))?;
    let source = Source { options: config.options.clone() };
    let (ending, is_ending) = watch::channel(false);
    // What registers with the runtime's poller needs to be inside it.
    let inside = runtime.enter();
    let shared = Arc::new(Shared {
        bridge: Bridge::start(source.clone()).map_err(ServeError::system("start the threads that ask the engine"))?,
        hub: Hub::start(source, rkt::encode_event).map_err(ServeError::system("start the thread that reads events"))?,
        watch: Watch::new(),
        ending: is_ending,
    });
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let health = runtime.block_on(Health::new(reporter, &[rkt::NAME], config.keeps));
    let (acceptors, incoming) =
        Acceptors::start(listeners).map_err(ServeError::system("take the listening sockets into use"))?;
    let reflection = |()| {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(gantry_proto::rkt::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let describe = |error: tonic_reflection::server::Error| ServeError::Describe(error.to_string());
    let router = limited()
        .add_service(health_service)
        .add_service(reflection(()).build_v1().map_err(describe)?)
        .add_service(reflection(()).build_v1alpha().map_err(describe)?)
        .add_service(Deadline(rkt::service(shared, &config)));
    let (stop, stopped) = oneshot::channel();
    let server = runtime.spawn(router.serve_with_incoming_shutdown(incoming, async {
        // An error means that the one who could say so is gone.
        let _ = stopped.await;
    }));
    drop(inside);
    Ok(Running { runtime, health, ending, stop, acceptors, server })
}

fn limited() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADERS)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_max_local_error_reset_streams(Some(MAX_REFUSED_STREAMS))
        .http2_keepalive_interval(Some(ASK_AFTER))
        .http2_keepalive_timeout(Some(ANSWER_WITHIN))
}

impl Running {
    /// Tells by health whether rows are kept true.
    pub fn set_keeps(&self, keeps: bool) {
        self.runtime.block_on(self.health.set_keeper(keeps));
    }

    /// Ends: no new connections, streams that follow are told so, other calls may finish within this time.
    ///
    /// # Errors
    /// [`ServeError`]: what could not be tidied up. It has ended all the same.
    pub fn drain(self, most: Duration) -> Result<(), ServeError> {
        let Self { runtime, health, ending, stop, acceptors, server } = self;
        let result = runtime.block_on(async {
            health.end().await;
            // Both fail only when nobody is left to be told.
            let _ = ending.send(true);
            let removed = acceptors.end().await.map_err(ServeError::system("remove the socket file"));
            let _ = stop.send(());
            match tokio::time::timeout(most, server).await {
                Ok(Ok(Err(error))) => Err(ServeError::Server(error.to_string())),
                Ok(Err(error)) => Err(ServeError::Server(error.to_string())),
                // What is not done by then is cut off.
                Ok(Ok(Ok(()))) | Err(_) => removed,
            }
        });
        runtime.shutdown_background();
        result
    }
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
