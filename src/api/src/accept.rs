//! Connections as they come, from all listeners, and how many of them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::answers::OfConnection;
use crate::listen::{Listener, Socket, SocketFile};
use crate::peer::Peer;
use crate::places::{Place, Places};

/// How many connections there may be, without those of root; [`crate::peer`] has the shares. A TCP connection beyond its
/// share waits in the kernel until one ends. One of a user beyond its share is closed: it would keep those of other users,
/// which come by the same socket, waiting.
const MAX_CONNECTIONS: usize = 1024;
/// How long nothing is accepted after the kernel had no descriptor or memory left.
const BREATH: Duration = Duration::from_millis(100);

/// The first bytes of every client (RFC 9113 section 3.4),
const GREETING: usize = 24;
/// and how long it may take to send them: until then nobody asks it whether it is still there.
const GREET_WITHIN: Duration = Duration::from_secs(10);

/// One connection. It counts until it is dropped.
pub(crate) struct Connection {
    stream: Stream,
    greeting: Option<Greeting>,
    peer: Peer,
    _place: Place,
}

/// A client that has not said all of its first words yet.
struct Greeting {
    heard: usize,
    deadline: Pin<Box<tokio::time::Sleep>>,
}

impl Connection {
    fn new(stream: Stream, peer: Peer, place: Place) -> Self {
        let greeting = Greeting { heard: 0, deadline: Box::pin(tokio::time::sleep(GREET_WITHIN)) };
        Self { stream, greeting: Some(greeting), peer, _place: place }
    }

    /// After so many bytes were read: whether the client has greeted in time.
    fn greet(&mut self, read: usize, cx: &mut Context<'_>) -> io::Result<()> {
        let Some(greeting) = &mut self.greeting else { return Ok(()) };
        greeting.heard += read;
        if greeting.heard >= GREETING {
            self.greeting = None;
        } else if greeting.deadline.as_mut().poll(cx).is_ready() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The tasks that accept. They end when this is dropped, and the sockets are closed.
pub(crate) struct Acceptors {
    tasks: tokio::task::JoinSet<()>,
    files: Vec<SocketFile>,
}

impl Acceptors {
    /// Begins to accept.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn start(listeners: Vec<Listener>) -> io::Result<(Self, ReceiverStream<Result<Connection, io::Error>>)> {
        let places = Arc::new(Places::new(MAX_CONNECTIONS));
        let (sender, connections) = mpsc::channel(1);
        let mut acceptors = Self { tasks: tokio::task::JoinSet::new(), files: Vec::new() };
        for listener in listeners {
            let (places, sender) = (Arc::clone(&places), sender.clone());
            acceptors.files.extend(listener.file);
            let listening = Listening::new(listener.socket)?;
            acceptors.tasks.spawn(accept(listening, places, sender));
        }
        Ok((acceptors, ReceiverStream::new(connections)))
    }

    /// Removes the socket files that are ours, then listens no more.
    ///
    /// # Errors
    /// A file could not be removed.
    pub(crate) async fn end(mut self) -> io::Result<()> {
        let removed: Vec<_> = self.files.iter().map(SocketFile::remove).collect();
        self.tasks.shutdown().await;
        removed.into_iter().collect()
    }
}

enum Listening {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listening {
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

    /// The next connection. None: its user has too many already, and it was closed.
    async fn accept(&self, places: &Places) -> io::Result<Option<Connection>> {
        match self {
            Self::Tcp(listener) => {
                // A place first: who cannot be served yet stays in the kernel's queue.
                let place = places.wait(Peer::Network).await;
                let (stream, _) = listener.accept().await?;
                // Small answers are not to wait for more; where that cannot be had it is only slower.
                let _ = stream.set_nodelay(true);
                Ok(Some(Connection::new(Stream::Tcp(stream), Peer::Network, place)))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let peer = Peer::of_unix(&stream);
                Ok(places.take(peer).ok().map(|place| Connection::new(Stream::Unix(stream), peer, place)))
            }
        }
    }
}

async fn accept(listening: Listening, places: Arc<Places>, sender: mpsc::Sender<io::Result<Connection>>) {
    loop {
        match listening.accept(&places).await {
            Ok(Some(connection)) => {
                if sender.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            Ok(None) => {}
            // The client gave up before it was accepted.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
            // No descriptors or no memory left: until some are free again there is nothing to be done.
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = OfConnection;

    fn connect_info(&self) -> OfConnection {
        OfConnection::new(self.peer)
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        self.greet(buf.filled().len() - before, cx)?;
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn a_client_that_says_nothing_is_left_in_time() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let place = || Places::new(2).take(Peer::Network).unwrap();
            let mut bytes = [0; GREETING];
            let (mut client, ours) = UnixStream::pair().unwrap();
            let mut silent = Connection::new(Stream::Unix(ours), Peer::Network, place());
            client.write_all(b"PRI").await.unwrap();
            assert_eq!(silent.read_exact(&mut bytes).await.unwrap_err().kind(), io::ErrorKind::TimedOut);

            let (mut client, ours) = UnixStream::pair().unwrap();
            let mut polite = Connection::new(Stream::Unix(ours), Peer::Network, place());
            client.write_all(&[0; GREETING]).await.unwrap();
            polite.read_exact(&mut bytes).await.unwrap();
            let more = tokio::time::timeout(2 * GREET_WITHIN, polite.read(&mut bytes)).await;
            assert!(more.is_err(), "it may be silent after that");
        });
    }
}
