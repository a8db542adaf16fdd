//! The server's side of the control socket: connections, requests with their descriptors, answers.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::control::{Answer, MAX_MESSAGE, Request};
use gantry_contract::files;
use gantry_model::ErrorKind;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::failure::{Attempt, Result, failure};
use crate::passing;

/// More connections than this wait in the socket's backlog.
pub(crate) const MAX_CONNECTIONS: usize = 128;

/// With one request.
const MAX_REQUEST_DESCRIPTORS: usize = 4;

/// A connection that has sent no request by then is closed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Makes the socket in the pod directory. A dead supervisor's is replaced: the lock says that it is dead.
pub(crate) fn listen() -> Result<OwnedFd> {
    let what = || "cannot make the control socket";
    let path = format!("/pod/{}", files::CONTROL);
    let _ = rustix::fs::unlink(&path);
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

/// A connection whose request has not come yet.
pub(crate) struct Connection {
    /// The socket, non-blocking.
    pub(crate) socket: OwnedFd,
    /// When it is given up.
    pub(crate) deadline: Instant,
}

impl Connection {
    /// Takes the next connection, if there is one. An error is that no descriptor is left to take it with.
    pub(crate) fn accept(listener: &OwnedFd) -> std::io::Result<Option<Self>> {
        match rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Self { socket, deadline: Instant::now() + REQUEST_TIMEOUT })),
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => Err(std::io::Error::other("no descriptor is left")),
            Err(_) => Ok(None),
        }
    }

    /// Reads the request and the descriptors that came with it. `None`: the client went away.
    pub(crate) fn request(&self) -> Option<Result<(Request, Vec<OwnedFd>)>> {
        receive_request(&self.socket)
    }
}

/// Reads a request and the descriptors that came with it. `None`: the client went away.
pub(crate) fn receive_request(socket: &OwnedFd) -> Option<Result<(Request, Vec<OwnedFd>)>> {
    let mut bytes = vec![0u8; MAX_MESSAGE];
    let received = match passing::receive(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Err(Errno::MFILE) => {
            let why = "the supervisor has no descriptor left for what came with the request";
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
            format!("a request has at most {MAX_MESSAGE} bytes and {MAX_REQUEST_DESCRIPTORS} descriptors"),
        )));
    }
    let request = serde_json::from_slice(&bytes[..received.bytes]);
    Some(request.map(|request| (request, received.fds)).map_err(|error| {
        failure(ErrorKind::Invalid, format!("the supervisor does not understand the request: {error}"))
    }))
}

/// Sends an answer, with a descriptor if there is one. A client that has gone or does not read gets none: it is not waited for.
pub(crate) fn answer(socket: &OwnedFd, answer: &Answer, fd: Option<&OwnedFd>) {
    let Ok(bytes) = serde_json::to_vec(answer) else { return };
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    let _ = passing::send(socket, &bytes, &fds, SendFlags::DONTWAIT);
}
