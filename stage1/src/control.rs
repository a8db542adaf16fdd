//! The server side of the control socket: connections, requests with their descriptors, replies.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use gantry_contract::control::{MAX_LONG_REQUEST, MAX_MESSAGE, Reply, Request};
use gantry_contract::{Failure, files};
use gantry_model::ErrorKind;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::failure::{Attempt, Result, failure};
use crate::passing;
use crate::table::{Table, Token};

/// Maximum number of connections whose request has not been received; further ones wait in the socket's backlog.
const MAX_CONNECTIONS: usize = 128;

/// Maximum number of descriptors with one request.
const MAX_REQUEST_DESCRIPTORS: usize = passing::MAX_DESCRIPTORS;

/// Timeout of receiving the request of a connection.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before the next connection is accepted after the process ran out of descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(200);

/// The control socket of the pod, with the connections whose requests have not been received.
pub(crate) struct ControlSocket {
    /// `None`: the pod has ended, and takes no more requests.
    listener: Option<OwnedFd>,
    connections: Table<Connection>,
    /// When connections are accepted again.
    accept_after: Option<Instant>,
}

impl ControlSocket {
    /// Makes the socket in the pod directory.
    pub(crate) fn listen() -> Result<Self> {
        Ok(Self { listener: Some(listen()?), connections: Table::default(), accept_after: None })
    }

    /// The listening socket to poll, while connections are accepted.
    pub(crate) fn watched_listener(&self) -> Option<BorrowedFd<'_>> {
        let is_accepting = self.connections.len() < MAX_CONNECTIONS && self.accept_after.is_none();
        self.listener.as_ref().filter(|_| is_accepting).map(OwnedFd::as_fd)
    }

    /// The connections to poll.
    pub(crate) fn watched_connections(&self) -> impl Iterator<Item = (Token<Connection>, BorrowedFd<'_>)> {
        self.connections.iter().map(|(token, connection)| (token, connection.socket.as_fd()))
    }

    /// When [`Self::check`] has work.
    pub(crate) fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.connections.values().map(|connection| connection.deadline).chain(self.accept_after)
    }

    /// Accepts a connection. Without a free descriptor it stays in the backlog. The back-off keeps the event loop from
    /// spinning until other connections have been closed.
    pub(crate) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        match Connection::accept(listener) {
            Ok(Some(connection)) => drop(self.connections.insert(connection)),
            Ok(None) => {}
            Err(_) => self.accept_after = Some(Instant::now() + ACCEPT_BACKOFF),
        }
    }

    /// Removes a connection that has sent its request, or was closed.
    pub(crate) fn take(&mut self, token: Token<Connection>) -> Option<Connection> {
        self.connections.remove(token)
    }

    /// Closes connections that are late with their request, and ends a back-off.
    pub(crate) fn check(&mut self, now: Instant) {
        self.connections.retain(|connection| connection.deadline > now);
        self.accept_after = self.accept_after.filter(|at| *at > now);
    }

    /// Takes no more requests.
    pub(crate) fn close(&mut self, pod_dir: &OwnedFd) {
        // A stale socket does no harm: the next supervisor replaces it, and `rm` removes the directory.
        let _left_for_rm = rustix::fs::unlinkat(pod_dir, files::CONTROL, AtFlags::empty());
        self.listener = None;
        self.connections.clear();
    }
}

/// Makes the socket. It replaces a stale one: this process has the pod's lock, so its owner is dead.
fn listen() -> Result<OwnedFd> {
    let what = || "cannot make the control socket";
    let path = format!("/pod/{}", files::CONTROL);
    // If it cannot be removed, bind fails.
    let _stale_or_missing = rustix::fs::unlink(&path);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).attempt(what)?;
    let address = SocketAddrUnix::new(path.as_str()).attempt(what)?;
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&socket, &address);
    rustix::process::umask(mask);
    bound.attempt(what)?;
    rustix::net::listen(&socket, 64).attempt(what)?;
    Ok(socket)
}

/// A connection whose request has not been received.
pub(crate) struct Connection {
    /// The socket, non-blocking.
    pub(crate) socket: OwnedFd,
    /// When it is closed without a request.
    deadline: Instant,
}

impl Connection {
    /// Accepts a connection if one is waiting. An error means that this process or the host is out of descriptors.
    fn accept(listener: &OwnedFd) -> std::io::Result<Option<Self>> {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Self { socket, deadline: Instant::now() + REQUEST_TIMEOUT })),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(std::io::Error::other("no descriptor is left")),
            Err(_) => Ok(None),
        }
    }

    /// Receives the request and its descriptors; `None` if the client has closed the connection.
    pub(crate) fn receive_request(&self) -> Option<Result<(Request, Vec<OwnedFd>)>> {
        receive_request(&self.socket)
    }
}

/// Receives a request and its descriptors; `None` if the client has closed the connection.
pub(crate) fn receive_request(socket: &OwnedFd) -> Option<Result<(Request, Vec<OwnedFd>)>> {
    let mut bytes = vec![0u8; MAX_MESSAGE];
    let received = match passing::receive(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Err(Errno::MFILE) => {
            let why = "the supervisor is out of descriptors and cannot receive those of the request";
            return Some(Err(failure(ErrorKind::Exhausted, why)));
        }
        other => other.ok()?,
    };
    if received.bytes == 0 {
        return None;
    }
    if received.is_truncated || received.fds.len() > MAX_REQUEST_DESCRIPTORS {
        return Some(Err(failure(
            ErrorKind::Invalid,
            format!("a message has at most {MAX_MESSAGE} bytes and {MAX_REQUEST_DESCRIPTORS} descriptors"),
        )));
    }
    let mut fds = received.fds;
    Some(match parse(&bytes[..received.bytes]) {
        Ok(Request::Long { bytes }) => read_long_request(bytes, &mut fds).map(|request| (request, fds)),
        parsed => parsed.map(|request| (request, fds)),
    })
}

fn parse(request: &[u8]) -> Result<Request> {
    serde_json::from_slice(request).map_err(|error| parse_failure(request, &error))
}

/// Reads a [`Request::Long`] from the first of its descriptors, which is removed from them.
fn read_long_request(length: usize, fds: &mut Vec<OwnedFd>) -> Result<Request> {
    let what = || "cannot read a long request";
    if fds.is_empty() || length > MAX_LONG_REQUEST {
        let why = format!("a long request has a descriptor and at most {MAX_LONG_REQUEST} bytes");
        return Err(failure(ErrorKind::Invalid, why));
    }
    let mut document = vec![0; length];
    File::from(fds.remove(0)).read_exact_at(&mut document, 0).attempt(what)?;
    match parse(&document)? {
        Request::Long { .. } => Err(failure(ErrorKind::Invalid, "a long request is not one itself")),
        request => Ok(request),
    }
}

/// The failure of a request that cannot be parsed, possibly because the client is newer than this supervisor.
fn parse_failure(request: &[u8], error: &serde_json::Error) -> Failure {
    let why = error.to_string();
    let value = serde_json::from_slice(request).unwrap_or_default();
    let name = match &value {
        serde_json::Value::String(name) => Some(name),
        serde_json::Value::Object(object) => object.keys().next(),
        _ => None,
    };
    match name {
        Some(name) if why.starts_with(&format!("unknown variant `{name}`")) => {
            let version = env!("CARGO_PKG_VERSION");
            let why = format!(
                "the pod's supervisor (gantry-stage1 {version}) does not know the request '{}': it is older than the \
                 client; start the pod again to use it",
                gantry_model::id::shown(name)
            );
            failure(ErrorKind::Unavailable, why)
        }
        _ => failure(ErrorKind::Invalid, format!("the supervisor cannot parse the request: {why}")),
    }
}

/// Sends a reply, with a descriptor if there is one. It does not block: a client that does not read gets no reply.
pub(crate) fn reply(socket: &OwnedFd, answer: &Reply, fd: Option<&OwnedFd>) {
    let Ok(bytes) = serde_json::to_vec(answer) else { return };
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    let _client_has_gone = passing::send(socket, &bytes, &fds, SendFlags::DONTWAIT);
}
