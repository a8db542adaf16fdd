//! Accepts the connections of one surface on all of its sockets.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;
use tracing::debug;

use crate::handshake::{Authenticated, HandshakeCounts, authenticate};
use crate::listen::{Listener, Socket, SocketFile};
use crate::peer::{Caller, ConnectionInfo, Peer};
use crate::quota::{Quota, QuotaPermit};
use crate::stream::{ConnectionStream, Origin, SocketStream};
use crate::surface::{AccessRules, Security};
use crate::tls::MutualTls;

/// Maximum connections of a surface, without those of root; [`crate::peer`] has the shares. A TCP connection beyond its
/// share waits in the kernel's queue until another one ends. A user's connection beyond its share is closed, because it
/// would block the other users of the same socket.
const MAX_CONNECTIONS: usize = 1024;
/// Delay after the kernel ran out of descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Bytes of the client connection preface (RFC 9113 section 3.4).
const PREFACE: usize = 24;
/// The time that a client has to send the preface. HTTP/2 keep-alive starts only after it.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection. It holds its permit until it is dropped.
pub(crate) struct Connection {
    stream: ConnectionStream,
    preface: Option<Preface>,
    caller: Caller,
    /// Completes when the client's certificate is no longer accepted. The connection then fails.
    refused: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _permit: QuotaPermit,
}

/// A preface that is not complete.
struct Preface {
    received: usize,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

impl Connection {
    fn new(stream: ConnectionStream, caller: impl Into<Caller>, permit: QuotaPermit) -> Self {
        let preface = Preface { received: 0, deadline: Box::pin(tokio::time::sleep(PREFACE_TIMEOUT)) };
        Self { stream, preface: Some(preface), caller: caller.into(), refused: None, _permit: permit }
    }

    /// A connection after its handshake. The certificate identifies a TCP client; a local user keeps its share and its
    /// rights. `None`: the surface does not admit the client, or its share is used up.
    fn with_tls(
        tls: &MutualTls,
        authenticated: Authenticated,
        local: Option<(Peer, QuotaPermit)>,
        quota: &Quota,
        rules: &dyn AccessRules,
    ) -> Option<Self> {
        let Authenticated { stream, client, chain } = authenticated;
        let (peer, permit) = match local {
            Some(local) => local,
            None => (client.peer(), quota.acquire(client.peer()).ok()?),
        };
        if !rules.admits(peer) {
            return None;
        }
        let caller = Caller { peer, certificate: Some(client) };
        let connection = Self::new(ConnectionStream::Tls(Box::new(stream)), caller, permit);
        Some(Self { refused: Some(Box::pin(tls.wait_until_refused(chain))), ..connection })
    }

    /// Fails if the client's certificate is no longer accepted.
    fn check_certificate(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(refused) = &mut self.refused else { return Ok(()) };
        if refused.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        // A completed future must not be polled again, and the connection must fail again.
        self.refused = Some(Box::pin(std::future::poll_fn(|_| Poll::Ready(()))));
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "the client's certificate is no longer accepted"))
    }

    /// Counts bytes of the preface, and fails if it is late.
    fn check_preface(&mut self, read: usize, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(preface) = &mut self.preface else { return Ok(()) };
        preface.received += read;
        if preface.received >= PREFACE {
            self.preface = None;
        } else if preface.deadline.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

/// The accepting tasks of one surface. Dropping this ends them and closes the sockets.
pub(crate) struct Acceptors {
    tasks: JoinSet<()>,
    files: Vec<SocketFile>,
}

impl Acceptors {
    /// Starts to accept connections that the surface admits.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn start(
        listeners: Vec<Listener>,
        rules: &Arc<dyn AccessRules>,
        security: &Security,
    ) -> io::Result<(Self, ReceiverStream<Result<Connection, io::Error>>)> {
        let quota = Arc::new(Quota::new(MAX_CONNECTIONS));
        let (sender, connections) = mpsc::channel(1);
        let mut acceptors = Self { tasks: JoinSet::new(), files: Vec::new() };
        let handshakes = HandshakeCounts::default();
        for listener in listeners {
            acceptors.files.extend(listener.file);
            let (quota, rules, sender) = (Arc::clone(&quota), Arc::clone(rules), sender.clone());
            let socket = AcceptSocket::new(listener.socket)?;
            let tls = match (&socket, security) {
                (_, Security::Plain) | (AcceptSocket::Unix(_), Security::TlsOverTcp(_)) => None,
                (AcceptSocket::Tcp(_), Security::TlsOverTcp(tls)) | (_, Security::Tls(tls)) => Some(tls.clone()),
            };
            match tls {
                Some(tls) => {
                    let socket = TlsListener { socket, tls, handshakes: handshakes.clone() };
                    acceptors.tasks.spawn(accept_tls(socket, quota, rules, sender))
                }
                None => acceptors.tasks.spawn(accept(socket, quota, rules, sender)),
            };
        }
        Ok((acceptors, ReceiverStream::new(connections)))
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

enum AcceptSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AcceptSocket {
    fn new(socket: Socket) -> io::Result<Self> {
        match socket {
            Socket::Tcp(socket) => {
                socket.set_nonblocking(true)?;
                TcpListener::from_std(socket).map(Self::Tcp)
            }
            Socket::Unix(socket) => {
                socket.set_nonblocking(true)?;
                UnixListener::from_std(socket).map(Self::Unix)
            }
        }
    }

    /// The next connection. `None`: it was closed, because its user's share is used up.
    async fn accept(&self, quota: &Quota) -> io::Result<Option<Accepted>> {
        match self {
            Self::Tcp(listener) => {
                // The permit first: a client that cannot be served yet stays in the kernel's queue.
                let permit = quota.acquire_when_free(Peer::Network).await;
                let (stream, address) = listener.accept().await?;
                // Without it, Nagle's algorithm delays small responses.
                let _only_slower = stream.set_nodelay(true);
                let (stream, origin) = (SocketStream::Tcp(stream), Origin::Address(address));
                Ok(Some(Accepted { stream, peer: Peer::Network, origin, permit }))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::of_unix(&stream);
                let (stream, origin) = (SocketStream::Unix(stream), Origin::of_unix(peer));
                Ok(quota.acquire(peer).ok().map(|permit| Accepted { stream, peer, origin, permit }))
            }
        }
    }
}

/// A connection without a handshake.
struct Accepted {
    stream: SocketStream,
    peer: Peer,
    origin: Origin,
    /// Of the peer's share.
    permit: QuotaPermit,
}

async fn accept(
    socket: AcceptSocket,
    quota: Arc<Quota>,
    rules: Arc<dyn AccessRules>,
    sender: mpsc::Sender<io::Result<Connection>>,
) {
    loop {
        match socket.accept(&quota).await {
            Ok(Some(Accepted { stream, peer, permit, .. })) => {
                if !rules.admits(peer) {
                    continue;
                }
                let connection = Connection::new(ConnectionStream::Plain(stream), peer, permit);
                if sender.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            Ok(None) => {}
            Err(error) => wait_after(&error).await,
        }
    }
}

/// A listening socket whose connections need a certificate.
struct TlsListener {
    socket: AcceptSocket,
    tls: MutualTls,
    handshakes: HandshakeCounts,
}

/// Accepts connections, each with a task for its handshake: a slow client delays no other.
async fn accept_tls(
    listener: TlsListener,
    quota: Arc<Quota>,
    rules: Arc<dyn AccessRules>,
    sender: mpsc::Sender<io::Result<Connection>>,
) {
    let mut tasks = JoinSet::new();
    while !sender.is_closed() {
        while tasks.try_join_next().is_some() {}
        // The share of clients without a certificate limits the handshakes in progress.
        let Accepted { stream, peer, origin, permit } = match listener.socket.accept(&quota).await {
            Ok(Some(accepted)) => accepted,
            Ok(None) => continue,
            Err(error) => {
                wait_after(&error).await;
                continue;
            }
        };
        let Some(handshake) = listener.handshakes.acquire(origin.key()) else { continue };
        let (tls, quota, rules, sender) = (listener.tls.clone(), quota.clone(), rules.clone(), sender.clone());
        tasks.spawn(async move {
            let authenticated = authenticate(&tls, stream, origin).await;
            drop(handshake);
            let local = match origin {
                Origin::Address(_) => {
                    drop(permit);
                    None
                }
                Origin::User(_) => Some((peer, permit)),
            };
            match authenticated {
                Ok(authenticated) => {
                    let connection = Connection::with_tls(&tls, authenticated, local, &quota, rules.as_ref());
                    if let Some(connection) = connection {
                        let _server_may_have_ended = sender.send(Ok(connection)).await;
                    }
                }
                Err(error) => debug!("TLS handshake with {origin} failed: {error}"),
            }
        });
    }
}

/// Waits after accept(2) failed for lack of descriptors or memory.
async fn wait_after(error: &io::Error) {
    // Otherwise the client gave up before it was accepted.
    if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) {
        tokio::time::sleep(ACCEPT_BACKOFF).await;
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        ConnectionInfo::new(self.caller.clone())
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check_certificate(cx)?;
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.check_preface(buf.filled().len() - before, cx)?;
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;

    #[test]
    fn a_client_without_a_preface_is_disconnected() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let plain = |stream| ConnectionStream::Plain(SocketStream::Unix(stream));
            let permit = || Quota::new(2).acquire(Peer::Network).unwrap();
            let mut bytes = [0; PREFACE];
            let (mut client, ours) = UnixStream::pair().unwrap();
            let mut silent = Connection::new(plain(ours), Peer::Network, permit());
            client.write_all(b"PRI").await.unwrap();
            assert_eq!(silent.read_exact(&mut bytes).await.unwrap_err().kind(), io::ErrorKind::TimedOut);

            let (mut client, ours) = UnixStream::pair().unwrap();
            let mut polite = Connection::new(plain(ours), Peer::Network, permit());
            client.write_all(&[0; PREFACE]).await.unwrap();
            polite.read_exact(&mut bytes).await.unwrap();
            let more = tokio::time::timeout(2 * PREFACE_TIMEOUT, polite.read(&mut bytes)).await;
            assert!(more.is_err(), "a client may be silent after the preface");
        });
    }
}
