//! The byte stream of a connection, over TCP or a unix socket, with or without TLS.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::peer::Peer;

/// The origin of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An address, over TCP.
    Address(SocketAddr),
    /// A process of this user, over a unix socket. `None`: the kernel gave no credentials.
    User(Option<u32>),
}

/// The connections that share a limit of handshakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum OriginKey {
    /// Those of an address.
    Address(IpAddr),
    /// Those of a user.
    User(Option<u32>),
}

impl Origin {
    /// The origin of a connection over a unix socket.
    pub(crate) fn of_unix(peer: Peer) -> Self {
        match peer {
            Peer::Root => Self::User(Some(0)),
            Peer::User { uid, .. } => Self::User(Some(uid)),
            Peer::Network | Peer::Certificate { .. } => Self::User(None),
        }
    }

    /// The limit that counts the connection.
    pub(crate) fn key(self) -> OriginKey {
        match self {
            Self::Address(address) => OriginKey::Address(address.ip()),
            Self::User(uid) => OriginKey::User(uid),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::User(Some(uid)) => write!(f, "uid={uid}"),
            Self::User(None) => f.write_str("unix"),
        }
    }
}

/// The stream of a socket.
pub(crate) enum SocketStream {
    /// TCP.
    Tcp(TcpStream),
    /// A unix socket.
    Unix(UnixStream),
}

/// The stream of a connection.
pub(crate) enum ConnectionStream {
    /// Without TLS.
    Plain(SocketStream),
    /// Mutual TLS.
    Tls(Box<TlsStream<SocketStream>>),
}

/// Delegates to the stream of each variant.
macro_rules! delegate {
    ($type:ty, $first:path, $second:path) => {
        impl AsyncRead for $type {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                match &mut *self {
                    $first(stream) => Pin::new(stream).poll_read(cx, buf),
                    $second(stream) => Pin::new(stream).poll_read(cx, buf),
                }
            }
        }

        impl AsyncWrite for $type {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                match &mut *self {
                    $first(stream) => Pin::new(stream).poll_write(cx, buf),
                    $second(stream) => Pin::new(stream).poll_write(cx, buf),
                }
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match &mut *self {
                    $first(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
                    $second(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
                }
            }

            fn is_write_vectored(&self) -> bool {
                match self {
                    $first(stream) => stream.is_write_vectored(),
                    $second(stream) => stream.is_write_vectored(),
                }
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match &mut *self {
                    $first(stream) => Pin::new(stream).poll_flush(cx),
                    $second(stream) => Pin::new(stream).poll_flush(cx),
                }
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match &mut *self {
                    $first(stream) => Pin::new(stream).poll_shutdown(cx),
                    $second(stream) => Pin::new(stream).poll_shutdown(cx),
                }
            }
        }
    };
}

delegate!(SocketStream, SocketStream::Tcp, SocketStream::Unix);
delegate!(ConnectionStream, ConnectionStream::Plain, ConnectionStream::Tls);
