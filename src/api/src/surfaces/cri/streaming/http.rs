//! The HTTP/1.1 server of the sessions: redeems the token of a URL and upgrades the connection.
//!
//! Any user of the host can connect. A connection without a token lives for seconds and has little memory; when there
//! are too many of them, the oldest is closed, so that clients that send their requests at once are always served.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderName, HeaderValue, UPGRADE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::{AbortHandle, JoinSet};
use tracing::{Instrument as _, debug, info_span};

use super::channels::ChannelConnection;
use super::negotiation::{
    ACCEPTED_PROTOCOLS, CommandProtocol, SPDY, STREAM_PROTOCOL, Upgrade, WEBSOCKET_PROTOCOL, forward_protocol, list,
};
use super::server::{Session, StreamContext, shown_path};
use super::session::{IDLE_LIMIT, SessionError};
use super::websocket::{MessageReader, accept_key};
use super::wire::{ByteReader, FrameWriter, split};
use crate::text_body::TextBody;

/// Maximum connections that are not upgraded.
const MAX_PENDING: usize = 256;
/// Maximum bytes of the head of a request.
const MAX_HEAD: usize = 16 << 10;
/// Maximum headers of a request.
const MAX_HEADERS: usize = 64;
/// The time that a client has to send the head of its request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time of a connection that is not upgraded.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Delay after the kernel ran out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// The interval of TCP's probes of a silent client.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The version of WebSocket.
const WEBSOCKET_VERSION: &str = "13";
const SEC_WEBSOCKET_KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const SEC_WEBSOCKET_ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const SEC_WEBSOCKET_VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");

/// Accepts connections until the runtime ends.
pub(super) async fn accept(context: Arc<StreamContext>, listener: TcpListener) {
    let mut pending = PendingConnections::default();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => pending.add(serve_connection(Arc::clone(&context), stream)),
            Err(error) => {
                debug!("cannot accept a connection of a streaming session: {error}");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// The connections that are not upgraded.
#[derive(Default)]
struct PendingConnections {
    tasks: JoinSet<()>,
    /// Oldest first.
    handles: VecDeque<AbortHandle>,
}

impl PendingConnections {
    fn add(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        while self.tasks.try_join_next().is_some() {}
        self.handles.retain(|handle| !handle.is_finished());
        if self.handles.len() >= MAX_PENDING
            && let Some(oldest) = self.handles.pop_front()
        {
            oldest.abort();
        }
        self.handles.push_back(self.tasks.spawn(connection));
    }
}

async fn serve_connection(context: Arc<StreamContext>, stream: TcpStream) {
    if let Err(error) = configure(&stream) {
        debug!("cannot configure a connection of a streaming session: {error}");
        return;
    }
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .max_headers(MAX_HEADERS)
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service_fn(|request| respond(Arc::clone(&context), request)))
        .with_upgrades();
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("a connection of a streaming session failed: {error}"),
        Err(_) => debug!("a connection was not upgraded within {CONNECTION_TIMEOUT:?}"),
    }
}

fn configure(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    Ok(rustix::net::sockopt::set_tcp_keepintvl(stream, KEEPALIVE)?)
}

/// A response that is not an upgrade.
struct Refusal {
    code: StatusCode,
    text: String,
    headers: Vec<(HeaderName, HeaderValue)>,
}

impl Refusal {
    fn new(code: StatusCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into(), headers: Vec::new() }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.headers.push((name, HeaderValue::from_static(value)));
        self
    }

    fn into_response(self) -> Response<TextBody> {
        let mut response = Response::new(TextBody::from(Bytes::from(self.text + "\n")));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        for (name, value) in self.headers {
            headers.append(name, value);
        }
        response
    }
}

async fn respond(context: Arc<StreamContext>, request: Request<Incoming>) -> Result<Response<TextBody>, Infallible> {
    let path = shown_path(request.uri().path());
    Ok(begin(&context, request).unwrap_or_else(|refusal| {
        debug!("a request for a session of {path} was refused: {}", refusal.text);
        refusal.into_response()
    }))
}

/// Answers a request, and serves the session once the connection is upgraded.
fn begin(context: &Arc<StreamContext>, mut request: Request<Incoming>) -> Result<Response<TextBody>, Refusal> {
    if request.method() != Method::GET && request.method() != Method::POST {
        let refusal = Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "only GET and POST are served");
        return Err(refusal.with(ALLOW, "GET, POST"));
    }
    let session = redeem(context, request.uri().path())?;
    let permit = Arc::clone(&context.sessions).try_acquire_owned();
    let permit = permit.map_err(|_| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too many sessions at once"))?;
    let accepted = AcceptedUpgrade::negotiate(&session, request.headers())?;
    let response = accepted.response()?;
    let span = info_span!("session", kind = session.path());
    let upgrade = hyper::upgrade::on(&mut request);
    let served = serve_upgraded(Arc::clone(context), session, accepted, upgrade, permit);
    tokio::spawn(served.instrument(span));
    Ok(response)
}

/// The session of a path. Its token is invalid from now on, whatever the rest of the request.
fn redeem(context: &StreamContext, path: &str) -> Result<Session, Refusal> {
    let mut parts = path.strip_prefix('/').unwrap_or(path).splitn(2, '/');
    let (kind, token) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let wanted = |session: &Session| session.path() == kind;
    let session = context.tokens.redeem(token, wanted, Instant::now());
    session.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, "no such session: a URL is valid once and for a minute"))
}

/// The upgrade of a connection, and the protocol that was chosen.
#[derive(Debug, Clone)]
struct AcceptedUpgrade {
    upgrade: Upgrade,
    /// `None`: port-forward, which has one protocol.
    command: Option<CommandProtocol>,
    protocol: &'static str,
    /// The key of a WebSocket's handshake.
    key: Option<String>,
}

impl AcceptedUpgrade {
    /// Chooses the first of the client's protocols that the server knows.
    fn negotiate(session: &Session, headers: &hyper::HeaderMap) -> Result<Self, Refusal> {
        let Some(upgrade) = Upgrade::requested(headers) else {
            let text = "the request must upgrade the connection to SPDY/3.1 or to a WebSocket";
            return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
        };
        let key = match upgrade {
            Upgrade::Spdy => None,
            Upgrade::WebSocket => Some(websocket_key(headers)?),
        };
        let offered: Vec<&str> = list(headers, upgrade.protocol_header()).collect();
        if offered.is_empty() {
            let text = format!("the header {} is missing", upgrade.protocol_header());
            return Err(Refusal::new(StatusCode::BAD_REQUEST, text));
        }
        let known = match session {
            Session::Exec(_) | Session::Attach(_) => {
                let commands = CommandProtocol::all(upgrade);
                let find = |name: &&str| commands.iter().find(|command| command.name == *name);
                if let Some(command) = offered.iter().find_map(find) {
                    return Ok(Self { upgrade, command: Some(*command), protocol: command.name, key });
                }
                commands.iter().map(|command| command.name).collect()
            }
            Session::PortForward(_) => {
                let protocol = forward_protocol(upgrade);
                if offered.contains(&protocol) {
                    return Ok(Self { upgrade, command: None, protocol, key });
                }
                vec![protocol]
            }
        };
        let text = format!("the client speaks none of the protocols of the server: {}", known.join(", "));
        let refusal = Refusal::new(StatusCode::FORBIDDEN, text);
        Err(known.into_iter().fold(refusal, |refusal, name| refusal.with(ACCEPTED_PROTOCOLS.clone(), name)))
    }

    fn response(&self) -> Result<Response<TextBody>, Refusal> {
        let mut response = Response::new(TextBody::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        let protocol = HeaderValue::from_static(self.protocol);
        match &self.key {
            None => {
                headers.insert(UPGRADE, HeaderValue::from_static(SPDY));
                headers.insert(&STREAM_PROTOCOL, protocol);
            }
            Some(key) => {
                let accept = HeaderValue::try_from(accept_key(key));
                let invalid = |_| Refusal::new(StatusCode::BAD_REQUEST, "Sec-WebSocket-Key is invalid");
                headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
                headers.insert(SEC_WEBSOCKET_ACCEPT, accept.map_err(invalid)?);
                headers.insert(&WEBSOCKET_PROTOCOL, protocol);
            }
        }
        Ok(response)
    }
}

fn websocket_key(headers: &hyper::HeaderMap) -> Result<String, Refusal> {
    if !list(headers, &SEC_WEBSOCKET_VERSION).any(|version| version == WEBSOCKET_VERSION) {
        let refusal = Refusal::new(StatusCode::UPGRADE_REQUIRED, "only version 13 of WebSocket is served");
        return Err(refusal.with(SEC_WEBSOCKET_VERSION, WEBSOCKET_VERSION));
    }
    let key = headers.get(&SEC_WEBSOCKET_KEY).and_then(|key| key.to_str().ok()).map(str::to_owned);
    key.ok_or_else(|| Refusal::new(StatusCode::BAD_REQUEST, "the header Sec-WebSocket-Key is missing"))
}

async fn serve_upgraded(
    context: Arc<StreamContext>,
    session: Session,
    accepted: AcceptedUpgrade,
    upgrade: hyper::upgrade::OnUpgrade,
    permit: OwnedSemaphorePermit,
) {
    let stream = match upgrade.await.map(hyper::upgrade::Upgraded::downcast::<TokioIo<TcpStream>>) {
        Ok(Ok(parts)) => (parts.io.into_inner(), parts.read_buf),
        Ok(Err(_)) => return debug!("the connection has another type than the server gave it"),
        Err(error) => return debug!("the connection was not upgraded: {error}"),
    };
    match serve_session(context, session, accepted, stream).await {
        Ok(()) => debug!("the session ended"),
        Err(error) => {
            debug!("the session ended: {}", gantry_model::error::messages(&error).join(": "));
        }
    }
    drop(permit);
}

async fn serve_session(
    context: Arc<StreamContext>,
    session: Session,
    accepted: AcceptedUpgrade,
    (stream, early): (TcpStream, Bytes),
) -> Result<(), SessionError> {
    let (reader, writer, activity) = split(stream, early);
    let shared = Arc::clone(&context);
    let serve = async {
        let AcceptedUpgrade { upgrade, command, .. } = accepted;
        match (session, command) {
            (Session::Exec(session), Some(protocol)) => {
                session.serve(&context, ChannelConnection { reader, writer, upgrade, protocol }).await
            }
            (Session::Attach(session), Some(protocol)) => {
                session.serve(&context, ChannelConnection { reader, writer, upgrade, protocol }).await
            }
            (Session::PortForward(session), None) => {
                let frames = FrameWriter::new(Arc::clone(&writer), upgrade == Upgrade::WebSocket);
                let source = match upgrade {
                    Upgrade::Spdy => ByteReader::Plain(reader),
                    Upgrade::WebSocket => {
                        ByteReader::WebSocket { wire: reader, messages: MessageReader::default(), writer }
                    }
                };
                session.serve(Arc::clone(&context), source, frames).await
            }
            // The negotiation chooses a protocol of the session.
            (Session::Exec(_) | Session::Attach(_), None) | (Session::PortForward(_), Some(_)) => Ok(()),
        }
    };
    tokio::select! {
        served = serve => served,
        () = activity.idle(IDLE_LIMIT) => Err(SessionError::Idle),
        () = shared.context.drained() => Err(SessionError::Draining),
    }
}
