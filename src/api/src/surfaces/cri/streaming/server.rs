//! The requests of the CRI that begin sessions, and the server that serves the URLs of their responses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use gantry_engine::{Engine, Observer};
use gantry_model::id::shown;
use gantry_proto::cri::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use tokio::sync::Semaphore;
use tonic::Status;
use tracing::warn;

use super::super::sandbox;
use super::attach::AttachSession;
use super::channels::RequestedChannels;
use super::container::RunningContainer;
use super::exec::ExecSession;
use super::forward::ForwardSession;
use super::http;
use super::tokens::Tokens;
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::listen::{Listener, Socket};
use crate::peer::Peer;
use crate::status::invalid_field;

/// Maximum sessions at a time. Each has a few descriptors and a few buffers.
const MAX_SESSIONS: usize = 1000;

/// The session that a token begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Session {
    /// A program in a container.
    Exec(ExecSession),
    /// The main process of a container.
    Attach(AttachSession),
    /// Connections to a pod.
    PortForward(ForwardSession),
}

impl Session {
    /// Its part of the URL.
    pub(super) fn path(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Attach(_) => "attach",
            Self::PortForward(_) => "portforward",
        }
    }
}

/// What the sessions of a server share.
pub(super) struct StreamContext {
    /// The context of all surfaces.
    pub(super) context: Arc<Context>,
    /// Read-write access to the engine.
    pub(super) writer: Arc<Bridge<Engine>>,
    /// The tokens of sessions that have not begun.
    pub(super) tokens: Tokens<Session>,
    /// One permit for each session.
    pub(super) sessions: Arc<Semaphore>,
}

/// See the module. It serves until the runtime ends.
pub(in super::super) struct StreamingServer {
    shared: Arc<StreamContext>,
    /// The beginning of URLs; `None`: nothing listens.
    base: Option<String>,
}

impl StreamingServer {
    /// Serves on these TCP sockets. Call it inside the runtime.
    pub(in super::super) fn start(
        context: Arc<Context>,
        writer: Arc<Bridge<Engine>>,
        listeners: Vec<Listener>,
    ) -> Self {
        let sessions = Arc::new(Semaphore::new(MAX_SESSIONS));
        let shared = Arc::new(StreamContext { context, writer, tokens: Tokens::default(), sessions });
        let mut base = None;
        for listener in listeners {
            let Socket::Tcp(socket) = listener.socket else { continue };
            let serving = socket.set_nonblocking(true).and_then(|()| {
                let address = socket.local_addr()?;
                let socket = tokio::net::TcpListener::from_std(socket)?;
                tokio::spawn(http::accept(Arc::clone(&shared), socket));
                Ok(address)
            });
            match serving {
                Ok(address) => base = base.or_else(|| Some(format!("http://{}", reachable(address)))),
                Err(error) => warn!("cannot serve exec, attach and port-forward of the CRI: {error}"),
            }
        }
        Self { shared, base }
    }

    /// `Exec`: the URL of a session.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for the request, `NOT_FOUND` if there is no such container, `FAILED_PRECONDITION` if it is
    /// not running, and `RESOURCE_EXHAUSTED` if too many tokens are valid.
    pub(in super::super) async fn exec(&self, peer: Peer, request: ExecRequest) -> Result<String, Status> {
        let ExecRequest { container_id, cmd, tty, stdin, stdout, stderr } = request;
        let channels = requested(RequestedChannels { stdin, stdout, stderr, tty })?;
        if cmd.first().is_none_or(String::is_empty) {
            return Err(invalid_field("cmd", "it names no program"));
        }
        let container = self.container(peer, container_id).await?;
        self.issue(Session::Exec(ExecSession { container, command: cmd, channels }))
    }

    /// `Attach`: the URL of a session.
    ///
    /// # Errors
    /// The same as those of [`Self::exec`].
    pub(in super::super) async fn attach(&self, peer: Peer, request: AttachRequest) -> Result<String, Status> {
        let AttachRequest { container_id, stdin, tty, stdout, stderr } = request;
        let channels = requested(RequestedChannels { stdin, stdout, stderr, tty })?;
        let container = self.container(peer, container_id).await?;
        self.issue(Session::Attach(AttachSession { container, channels }))
    }

    /// `PortForward`: the URL of a session. The client names the ports when it connects.
    ///
    /// # Errors
    /// The same as those of [`Self::exec`].
    pub(in super::super) async fn port_forward(
        &self,
        peer: Peer,
        request: PortForwardRequest,
    ) -> Result<String, Status> {
        let PortForwardRequest { pod_sandbox_id, port } = request;
        if let Some(port) = port.iter().find(|port| !u16::try_from(**port).is_ok_and(|port| port > 0)) {
            return Err(invalid_field("port", &format!("{port} is not a port")));
        }
        let find = move |engine: &Engine| sandbox::find_ready(engine, &pod_sandbox_id).map(|row| row.id);
        let pod = self.shared.writer.call(peer, Weight::Light, find).await?;
        self.issue(Session::PortForward(ForwardSession { pod }))
    }

    async fn container(&self, peer: Peer, id: String) -> Result<RunningContainer, Status> {
        let find = move |observer: &Observer| RunningContainer::find(observer, &id);
        self.shared.context.reader.call(peer, Weight::Light, find).await
    }

    fn issue(&self, session: Session) -> Result<String, Status> {
        let nothing = "no streaming server: 'cri-stream-listen' is 'none', or gantryd could not listen (see its log)";
        let base = self.base.as_ref().ok_or_else(|| Status::unavailable(nothing))?;
        let path = session.path();
        let token = self.shared.tokens.issue(session, Instant::now())?;
        Ok(format!("{base}/{path}/{token}"))
    }
}

/// Checks the channels of a request.
fn requested(channels: RequestedChannels) -> Result<RequestedChannels, Status> {
    let RequestedChannels { stdin, stdout, stderr, tty } = channels;
    if !(stdin || stdout || stderr) {
        return Err(Status::invalid_argument("one of stdin, stdout and stderr must be true"));
    }
    if tty && stderr {
        return Err(invalid_field("stderr", "a terminal has only stdout"));
    }
    Ok(channels)
}

/// The address at which clients on this host reach a socket.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// A path or a token of a request, for logs.
pub(super) fn shown_path(path: &str) -> String {
    // Not the token: whoever reads the log could use it.
    shown(path.split('/').nth(1).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_checked() {
        let check = |stdin, stdout, stderr, tty| requested(RequestedChannels { stdin, stdout, stderr, tty }).is_ok();
        assert!(check(true, false, false, false) && check(false, true, true, false) && check(true, true, false, true));
        assert!(!check(false, false, false, false) && !check(false, false, false, true));
        assert!(!check(true, true, true, true));
    }

    #[test]
    fn urls_have_addresses_that_clients_reach() {
        for (address, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1"),
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:1", "[::1]:1"),
            ("[::2]:1", "[::2]:1"),
        ] {
            assert_eq!(reachable(address.parse().unwrap()).to_string(), expected);
        }
    }
}
