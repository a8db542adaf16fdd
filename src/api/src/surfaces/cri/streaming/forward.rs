//! `PortForward`: connections to servers in the network of a pod. Each is a pair of SPDY streams of the same
//! `requestid`: one for the bytes, one for an error.
//!
//! Clients end the whole session on any text of an error stream, so there is one only when a server cannot be reached.
//! They close their own end of a connection only after the data and then the error stream have ended, so both streams
//! of a pair end whatever becomes of the connection. A client that resets either stream ends the connection.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gantry_engine::{Engine, PodSockets};
use gantry_model::PodId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{AbortHandle, JoinSet};
use tracing::debug;

use super::server::StreamContext;
use super::session::{CREATION_LIMIT, SessionError};
use super::spdy::{RST_CANCEL, RST_REFUSED, SpdyEvent, SpdyReader, encode_data, encode_goaway, encode_rst_stream};
use super::wire::{ByteReader, FrameWriter};
use crate::bridge::Weight;
use crate::status::from_error;

/// Maximum connections of a session at a time.
const MAX_FORWARDS: usize = 256;
/// Maximum streams that the client has open: pairs, of which one half may be missing.
const MAX_STREAMS: usize = 2 * MAX_FORWARDS;
/// The time to reach a server.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// The time that the client has to finish sending after the server has closed the connection.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a read from a server.
const READ: usize = 32 << 10;
/// Maximum pieces of data, each at most a read of the connection, that wait for a server.
const MAX_WAITING: usize = 8;

/// The session that a URL of `PortForward` begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ForwardSession {
    /// The pod.
    pub(super) pod: PodId,
}

/// A pair of streams that is not complete.
struct HalfPair {
    stream: u32,
    is_error: bool,
    port: u16,
    /// Resets the stream after [`CREATION_LIMIT`].
    timeout: AbortHandle,
}

/// Connects to a server. The error is for the client.
pub(super) trait Connecting: Future<Output = Result<TcpStream, String>> + Send + 'static {}

impl<F: Future<Output = Result<TcpStream, String>> + Send + 'static> Connecting for F {}

/// The pairs that are not complete, by `requestid`.
type HalfPairs = Arc<Mutex<HashMap<String, HalfPair>>>;

/// A connection of the session.
struct Forward {
    error: u32,
    /// `None`: the client sends no more.
    to_server: Option<mpsc::Sender<Bytes>>,
    /// Signals to the task that the client has reset a stream; `None`: sent already. The value is the other stream of
    /// the pair, which the task still has to end.
    reset: Option<oneshot::Sender<u32>>,
    task: AbortHandle,
}

/// A complete pair.
#[derive(Debug, Clone, Copy)]
struct Pair {
    data: u32,
    error: u32,
    pod: PodId,
    port: u16,
}

/// The state of a session.
struct Session<C> {
    /// Connects to a port of the pod. The error is for the client.
    connect: C,
    pod: PodId,
    writer: FrameWriter,
    halves: HalfPairs,
    /// By the data stream.
    forwards: HashMap<u32, Forward>,
    tasks: JoinSet<()>,
}

impl ForwardSession {
    /// Serves a client until it has gone.
    ///
    /// # Errors
    /// The client violates the protocol.
    pub(super) async fn serve(
        self,
        context: Arc<StreamContext>,
        source: ByteReader,
        writer: FrameWriter,
    ) -> Result<(), SessionError> {
        let connect = move |port| connect(Arc::clone(&context), self.pod, port);
        self.serve_with(connect, source, writer).await
    }

    /// The same with another way to connect to a port.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub(super) async fn serve_with<F: Connecting>(
        self,
        connect: impl Fn(u16) -> F,
        source: ByteReader,
        writer: FrameWriter,
    ) -> Result<(), SessionError> {
        let mut reader = SpdyReader::new(source, writer.clone(), MAX_STREAMS);
        let mut session = Session {
            connect,
            pod: self.pod,
            writer,
            halves: HalfPairs::default(),
            forwards: HashMap::new(),
            tasks: JoinSet::new(),
        };
        while let Some(event) = reader.next().await? {
            match event {
                SpdyEvent::Open { stream, headers } => {
                    session.forget_ended(&mut reader);
                    let text = |name: &str| headers.get(name).unwrap_or_default().to_owned();
                    session.open(stream, &text("streamtype"), &text("port"), text("requestid")).await?;
                }
                SpdyEvent::Data { stream, bytes } => {
                    if session.send(stream, bytes, &reader).await.is_err() {
                        return Err(SessionError::ClientGone);
                    }
                }
                SpdyEvent::End { stream } => {
                    if let Some(forward) = session.forwards.get_mut(&stream) {
                        forward.to_server = None;
                    }
                }
                SpdyEvent::Reset { stream } => session.reset(stream),
            }
        }
        // The client has closed its end. A GOAWAY is for clients that only half-closed it.
        let last = reader.last_stream();
        session.writer.write(&encode_goaway(last, 0)).await?;
        Ok(session.writer.close(super::websocket::CLOSE_NORMAL).await?)
    }
}

impl<F: Connecting, C: Fn(u16) -> F> Session<C> {
    /// Forgets connections that have ended, and what their clients still send.
    fn forget_ended(&mut self, reader: &mut SpdyReader) {
        while self.tasks.try_join_next().is_some() {}
        self.forwards.retain(|stream, forward| {
            if forward.task.is_finished() {
                reader.forget(*stream);
            }
            !forward.task.is_finished()
        });
    }

    /// A stream was opened: one half of a pair.
    async fn open(&mut self, stream: u32, kind: &str, port: &str, request: String) -> Result<(), SessionError> {
        let is_error = match kind {
            "error" => true,
            "data" => false,
            _ => return self.refuse(&[stream]).await,
        };
        let Some(port) = port.parse().ok().filter(|port| *port > 0) else { return self.refuse(&[stream]).await };
        let half = lock(&self.halves).remove(&request);
        let Some(half) = half else {
            let timeout =
                self.tasks.spawn(reset_late(Arc::clone(&self.halves), request.clone(), stream, self.writer.clone()));
            lock(&self.halves).insert(request, HalfPair { stream, is_error, port, timeout });
            return Ok(());
        };
        half.timeout.abort();
        let (data, error) = if is_error { (half.stream, stream) } else { (stream, half.stream) };
        if half.is_error == is_error || half.port != port || self.forwards.len() >= MAX_FORWARDS {
            return self.refuse(&[data, error]).await;
        }
        let (to_server, from_client) = mpsc::channel(MAX_WAITING);
        let (reset, has_reset) = oneshot::channel();
        let (connecting, writer, pod) = ((self.connect)(port), self.writer.clone(), self.pod);
        let pair = Pair { data, error, pod, port };
        let task = self.tasks.spawn(async move {
            if let Err(error) = forward(connecting, pair, &writer, from_client, has_reset).await {
                debug!("a forwarded connection to port {port} of pod {pod} ended: {error}");
            }
        });
        self.forwards.insert(data, Forward { error, to_server: Some(to_server), reset: Some(reset), task });
        Ok(())
    }

    async fn refuse(&self, streams: &[u32]) -> Result<(), SessionError> {
        let frames: Vec<u8> = streams.iter().flat_map(|stream| encode_rst_stream(*stream, RST_REFUSED)).collect();
        Ok(self.writer.write(&frames).await?)
    }

    /// Passes data on to its connection; waits while its server does not read. An error: the client has gone.
    async fn send(&self, stream: u32, bytes: Bytes, reader: &SpdyReader) -> Result<(), ()> {
        // Data of an error stream, of half a pair, or of a connection that has ended is discarded.
        let Some(to_server) = self.forwards.get(&stream).and_then(|forward| forward.to_server.as_ref()) else {
            return Ok(());
        };
        tokio::select! {
            _sent_or_ended = to_server.send(bytes) => Ok(()),
            () = reader.wire().gone() => Err(()),
        }
    }

    fn reset(&mut self, stream: u32) {
        // It stays one of the session's connections until its task has ended.
        let mut forwards = self.forwards.iter_mut();
        if let Some((&data, forward)) = forwards.find(|(data, forward)| **data == stream || forward.error == stream) {
            forward.to_server = None;
            if let Some(reset) = forward.reset.take() {
                let _task_may_have_ended = reset.send(if stream == data { forward.error } else { data });
            }
        }
        lock(&self.halves).retain(|_, half| {
            if half.stream == stream {
                half.timeout.abort();
            }
            half.stream != stream
        });
    }
}

fn lock(halves: &HalfPairs) -> std::sync::MutexGuard<'_, HashMap<String, HalfPair>> {
    halves.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Resets a stream whose other half was not opened in time.
async fn reset_late(halves: HalfPairs, request: String, stream: u32, writer: FrameWriter) {
    tokio::time::sleep(CREATION_LIMIT).await;
    let is_late = {
        let mut halves = lock(&halves);
        let is_half = halves.get(&request).is_some_and(|half| half.stream == stream);
        is_half && halves.remove(&request).is_some()
    };
    if is_late && let Err(error) = writer.write(&encode_rst_stream(stream, RST_CANCEL)).await {
        debug!("the client of a session has gone: {error}");
    }
}

/// Serves one connection, and ends both streams of its pair. A reset of one ends the connection; the other is still
/// open.
///
/// # Errors
/// The client has gone, or the connection to the server broke.
async fn forward(
    connecting: impl Connecting,
    pair: Pair,
    writer: &FrameWriter,
    from_client: mpsc::Receiver<Bytes>,
    reset: oneshot::Receiver<u32>,
) -> io::Result<()> {
    let Pair { data, error, pod, port } = pair;
    let reset = async {
        match reset.await {
            Ok(other) => other,
            // The session has ended, and this task is about to be aborted.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::pin!(reset);
    let connected = tokio::select! {
        connected = connecting => Ok(connected),
        other = &mut reset => Err(other),
    };
    let open = match connected {
        Err(other) => Some(other),
        Ok(Ok(stream)) => relay(stream, pair, writer, from_client, reset).await?,
        Ok(Err(why)) => {
            let text = format!("error forwarding port {port} to pod {pod}: {why}");
            // Clients read the text only after the end of the data.
            let end = encode_data(data, &[], true);
            let frames = [end, encode_data(error, text.as_bytes(), false), encode_rst_stream(error, RST_CANCEL)];
            writer.write(&frames.concat()).await?;
            None
        }
    };
    // The connection to the server is already closed, so that a slow client does not keep it open.
    match open {
        Some(stream) => writer.write(&encode_data(stream, &[], true)).await,
        None => Ok(()),
    }
}

/// Passes the bytes of a connection on in both directions until the server ends it, and ends both streams of its pair.
/// Returns the stream that is still open, because the client has reset the other one before.
///
/// # Errors
/// As [`forward`].
async fn relay(
    stream: TcpStream,
    pair: Pair,
    writer: &FrameWriter,
    mut from_client: mpsc::Receiver<Bytes>,
    mut reset: Pin<&mut impl Future<Output = u32>>,
) -> io::Result<Option<u32>> {
    let Pair { data, error, .. } = pair;
    let (mut from_server, mut to_server) = stream.into_split();
    let up = async {
        while let Some(bytes) = from_client.recv().await {
            to_server.write_all(&bytes).await?;
        }
        to_server.shutdown().await
    };
    let down = async {
        let mut buffer = vec![0; READ];
        loop {
            // A reset ends the stream as the end of the data does.
            let count = from_server.read(&mut buffer).await.unwrap_or(0);
            match buffer.get(..count) {
                Some(bytes) if !bytes.is_empty() => writer.write(&encode_data(data, bytes, false)).await?,
                _ => return Ok::<_, io::Error>(()),
            }
        }
    };
    tokio::pin!(up, down);
    let until_server_ends = async {
        tokio::select! {
            received = &mut down => received.map(|()| None),
            // What the server sent before it stopped reading is still passed on.
            sent = &mut up => down.await.map(|()| Some(sent)),
        }
    };
    let sent = tokio::select! {
        ended = until_server_ends => ended?,
        other = &mut reset => return Ok(Some(other)),
    };
    writer.write(&[encode_data(data, &[], true), encode_data(error, &[], true)].concat()).await?;
    let sent = match sent {
        Some(sent) => sent,
        // Clients do not end their half of a stream whose other half has ended.
        None => tokio::select! {
            sent = tokio::time::timeout(CLOSE_LIMIT, up) => sent.unwrap_or(Ok(())),
            _reset = reset => Ok(()),
        },
    };
    sent.map(|()| None)
}

/// Connects to a server in the pod. The error is for the client.
async fn connect(context: Arc<StreamContext>, pod: PodId, port: u16) -> Result<TcpStream, String> {
    let open = move |engine: &Engine| engine.pod_sockets(pod).map_err(|error| from_error(&error));
    let opened = context.writer.call_for_stream(Weight::Light, open).await;
    let PodSockets { v4, v6 } = opened.map_err(|status| status.message().to_owned())?;
    let attempt = async |socket, address: SocketAddr| {
        let socket = TcpSocket::from_std_stream(std::net::TcpStream::from(socket));
        let failed = |error: &dyn std::fmt::Display| format!("cannot connect to {address}: {error}");
        match tokio::time::timeout(CONNECT_LIMIT, socket.connect(address)).await {
            Ok(connected) => connected.map_err(|error: io::Error| failed(&error)),
            Err(_) => Err(failed(&format!("no answer within {} s", CONNECT_LIMIT.as_secs()))),
        }
    };
    let first = match attempt(v4, (Ipv4Addr::LOCALHOST, port).into()).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    let Some(v6) = v6 else { return Err(first) };
    attempt(v6, (Ipv6Addr::LOCALHOST, port).into()).await.map_err(|second| format!("{first}; {second}"))
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
