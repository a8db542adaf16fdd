//! Serves `/metrics` over HTTP/1.1 (RFC 9112), on sockets of its own.
//!
//! Clients are not trusted: connections, the size of a request and the time of a connection are bounded. A connection
//! serves one request. The text is made on a thread of the bridge, by one client at a time.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use gantry_engine::{Engine, Observer};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_stream::{Stream, StreamExt as _};
use tonic::Status;
use tracing::debug;

use super::exposition::Exposition;
use super::{Operation, containers, operations};
use crate::bridge::{Bridge, QueueDepth, Weight};
use crate::context::Context;
use crate::listen::{Listener, Socket, SocketAccess, SocketFile};
use crate::peer::{GROUP, Peer};
use crate::status;
use crate::text_body::TextBody;

/// Socket files are open to their owner and to the group `gantry`.
pub const METRICS_SOCKET_ACCESS: SocketAccess = SocketAccess { mode: 0o660, group: Some(GROUP) };

/// Maximum connections. Further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 8;
/// Maximum bytes of the head of a request.
const MAX_HEAD: usize = 8 << 10;
/// Maximum headers of a request.
const MAX_HEADERS: usize = 64;
/// The time that a client has to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time of a connection, reading the response included.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after the kernel ran out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");
const EXPOSITION: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Renders the metrics of a server.
pub(crate) struct MetricsSource {
    context: Arc<Context>,
    /// The read-write bridges of the surfaces, which end with their surfaces.
    writers: Vec<Weak<Bridge<Engine>>>,
    /// One text is made at a time.
    rendering: Semaphore,
}

impl MetricsSource {
    /// The metrics of this server.
    pub(crate) fn new(context: Arc<Context>, writers: Vec<Weak<Bridge<Engine>>>) -> Self {
        Self { context, writers, rendering: Semaphore::new(1) }
    }

    async fn render(self: Arc<Self>) -> Result<String, Status> {
        // Fails only if the semaphore is closed, which does not happen.
        let _permit = self.rendering.acquire().await.map_err(|_| status::draining())?;
        let source = Arc::clone(&self);
        // Connections bound these calls, so they need no place in the queue of network clients.
        self.context.reader.call(Peer::Root, Weight::Heavy, move |observer| source.write(observer)).await
    }

    fn write(&self, observer: &Observer) -> Result<String, Status> {
        let metrics = &self.context.config.metrics;
        let begun = Instant::now();
        let written = self.write_all(observer);
        metrics.record(Operation::Scrape, begun.elapsed(), written.is_ok());
        written
    }

    fn write_all(&self, observer: &Observer) -> Result<String, Status> {
        let mut out = Exposition::default();
        let counts = observer.count_pods().map_err(|error| status::from_error(&error))?;
        operations::write_pods(&mut out, &counts);
        let samples = self.context.sample(observer, self.context.config.settings.current().sample_interval)?;
        operations::write_sampler(&mut out, &samples);
        containers::write(&mut out, &samples.pods);
        containers::write_volumes(&mut out, &samples.volumes);
        let (mut reads, mut writes) = (QueueDepth::default(), None);
        self.context.reader.add_depth(&mut reads);
        for writer in self.writers.iter().filter_map(Weak::upgrade) {
            writer.add_depth(writes.get_or_insert_default());
        }
        let queues: Vec<_> = [("read", Some(reads)), ("write", writes)]
            .into_iter()
            .filter_map(|(name, depth)| depth.map(|depth| (name, depth)))
            .collect();
        operations::write_queues(&mut out, &queues);
        self.context.config.metrics.write(&mut out);
        operations::write_process(&mut out);
        Ok(out.into_text())
    }
}

/// The accepting tasks. Dropping this ends them and closes the sockets.
pub(crate) struct MetricsServer {
    tasks: tokio::task::JoinSet<()>,
    files: Vec<SocketFile>,
}

impl MetricsServer {
    /// Starts to accept connections.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn start(listeners: Vec<Listener>, source: MetricsSource) -> io::Result<Self> {
        let (source, limit) = (Arc::new(source), Arc::new(Semaphore::new(MAX_CONNECTIONS)));
        let mut server = Self { tasks: tokio::task::JoinSet::new(), files: Vec::new() };
        for listener in listeners {
            server.files.extend(listener.file);
            let (source, limit) = (Arc::clone(&source), Arc::clone(&limit));
            match listener.socket {
                Socket::Tcp(socket) => {
                    socket.set_nonblocking(true)?;
                    let incoming = TcpListenerStream::new(TcpListener::from_std(socket)?);
                    server.tasks.spawn(accept(limit, source, incoming));
                }
                Socket::Unix(socket) => {
                    socket.set_nonblocking(true)?;
                    let incoming = UnixListenerStream::new(UnixListener::from_std(socket)?);
                    server.tasks.spawn(accept(limit, source, incoming));
                }
            }
        }
        Ok(server)
    }

    /// Removes the socket files that this process made, then closes the sockets.
    ///
    /// # Errors
    /// A file could not be removed.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        let removed: Vec<_> = self.files.iter().map(SocketFile::remove).collect();
        self.tasks.shutdown().await;
        removed.into_iter().collect()
    }
}

async fn accept<S>(
    limit: Arc<Semaphore>,
    source: Arc<MetricsSource>,
    mut incoming: impl Stream<Item = io::Result<S>> + Send + Unpin,
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    // Fails only if the semaphore is closed, which does not happen. The permit first: a client that cannot be served
    // yet stays in the kernel's queue.
    while let Ok(permit) = Arc::clone(&limit).acquire_owned().await {
        match incoming.next().await {
            Some(Ok(stream)) => {
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    serve_connection(stream, source).await;
                    drop(permit);
                });
            }
            Some(Err(error)) => {
                debug!("cannot accept a connection for metrics: {error}");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
            // These streams have no end.
            None => return,
        }
    }
}

async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, source: Arc<MetricsSource>) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .keep_alive(false)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .serve_connection(TokioIo::new(stream), service_fn(|request| respond(Arc::clone(&source), request)));
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("a connection for metrics failed: {error}"),
        Err(_) => debug!("a connection for metrics took longer than {CONNECTION_TIMEOUT:?}"),
    }
}

async fn respond(source: Arc<MetricsSource>, request: Request<Incoming>) -> Result<Response<TextBody>, Infallible> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD are served\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Ok(response);
    }
    if request.uri().path() != "/metrics" {
        return Ok(text_response(StatusCode::NOT_FOUND, TEXT, "the metrics are at /metrics\n"));
    }
    Ok(match source.render().await {
        Ok(text) => text_response(StatusCode::OK, EXPOSITION, text),
        Err(status) => {
            text_response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("no metrics: {}\n", status.message()))
        }
    })
}

fn text_response(code: StatusCode, content_type: HeaderValue, text: impl Into<Bytes>) -> Response<TextBody> {
    let mut response = Response::new(TextBody::from(text.into()));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
