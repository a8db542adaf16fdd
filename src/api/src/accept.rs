//! Connections as they come, from all listeners, and how many of them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use crate::listen::{Listener, Socket, SocketFile};

/// How many connections there may be. Further ones wait in the kernel until one ends.
const MOST: usize = 1024;
/// How long nothing is accepted after the kernel had no descriptor or memory left.
const BREATH: Duration = Duration::from_millis(100);

/// One connection. It counts until it is dropped.
pub(crate) struct Connection {
    stream: Stream,
    _place: OwnedSemaphorePermit,
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
        let places = Arc::new(Semaphore::new(MOST));
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

    async fn accept(&self) -> io::Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // Small answers are not to wait for more; where that cannot be had it is only slower.
                let _ = stream.set_nodelay(true);
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(listener) => Ok(Stream::Unix(listener.accept().await?.0)),
        }
    }
}

async fn accept(listening: Listening, places: Arc<Semaphore>, sender: mpsc::Sender<io::Result<Connection>>) {
    loop {
        // A place first: who cannot be served yet stays in the kernel's queue.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listening.accept().await {
            Ok(stream) => {
                if sender.send(Ok(Connection { stream, _place: place })).await.is_err() {
                    return;
                }
            }
            // The client gave up before it was accepted.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
            // No descriptors or no memory left: until some are free again there is nothing to be done.
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
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
