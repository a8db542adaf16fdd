//! A gRPC client with mutual TLS, for certificates that Python's gRPC cannot use: BoringSSL refuses Ed25519.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};

/// The PEM files of a client.
#[derive(Debug, Clone, Copy)]
pub struct ClientFiles<'a> {
    /// The authority of the server.
    pub authority: &'a Path,
    /// The client's certificate.
    pub certificate: &'a Path,
    /// Its key.
    pub key: &'a Path,
}

/// The rate at which a client reads from its connection after the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadRate {
    /// As fast as the server sends.
    Unlimited,
    /// A byte a second.
    BytePerSecond,
    /// The client never reads.
    Nothing,
}

/// A channel to `ADDRESS:PORT` that connects with the first call. Enter a runtime of tokio before.
///
/// # Panics
/// When a file cannot be used.
#[track_caller]
#[must_use]
pub fn connect(address: &str, files: ClientFiles<'_>) -> Channel {
    connect_with_rate(address, files, ReadRate::Unlimited)
}

/// Like [`connect`], with a client that reads at this rate.
///
/// # Panics
/// When a file cannot be used.
#[track_caller]
#[must_use]
pub fn connect_with_rate(address: &str, files: ClientFiles<'_>, rate: ReadRate) -> Channel {
    let unusable =
        |path: &Path, error: &dyn std::fmt::Display| -> ! { panic!("cannot use {}: {error}", path.display()) };
    let certificates = |path: &Path| -> Vec<CertificateDer<'static>> {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        read.unwrap_or_else(|error| unusable(path, &error))
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates(files.authority) {
        roots.add(certificate).unwrap_or_else(|error| unusable(files.authority, &error));
    }
    let key = PrivateKeyDer::from_pem_file(files.key).unwrap_or_else(|error| unusable(files.key, &error));
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap_or_else(|error| panic!("cannot configure TLS: {error}"))
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates(files.certificate), key)
        .unwrap_or_else(|error| unusable(files.certificate, &error));
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = Connector { tls: TlsConnector::from(Arc::new(config)), address: address.to_owned(), rate };
    Endpoint::from_static("http://node").connect_with_connector_lazy(connector)
}

/// Calls a unary method, `/package.Service/Method`.
///
/// # Errors
/// The status of the call.
pub async fn call<Q, R>(channel: Channel, path: &'static str, request: Q) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<Q, R>::default();
    grpc.unary(Request::new(request), PathAndQuery::from_static(path), codec).await.map(Response::into_inner)
}

/// Calls a method with a server stream, `/package.Service/Method`; returns when the server has sent its headers.
///
/// # Errors
/// The status of the call.
pub async fn open_stream<Q, R>(channel: Channel, path: &'static str, request: Q) -> Result<Streaming<R>, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<Q, R>::default();
    grpc.server_streaming(Request::new(request), PathAndQuery::from_static(path), codec).await.map(Response::into_inner)
}

/// A TCP stream that is read at a rate.
struct ThrottledStream {
    stream: TcpStream,
    rate: ReadRate,
    /// Time of the next read.
    next: Pin<Box<Sleep>>,
}

impl AsyncRead for ThrottledStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.rate {
            ReadRate::Unlimited => Pin::new(&mut self.stream).poll_read(cx, buf),
            ReadRate::Nothing => Poll::Pending,
            ReadRate::BytePerSecond => {
                ready!(self.next.as_mut().poll(cx));
                let mut byte = [0];
                let mut one = ReadBuf::new(&mut byte);
                ready!(Pin::new(&mut self.stream).poll_read(cx, &mut one))?;
                buf.put_slice(one.filled());
                self.next.as_mut().reset(Instant::now() + Duration::from_secs(1));
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for ThrottledStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

struct Connector {
    tls: TlsConnector,
    address: String,
    rate: ReadRate,
}

/// The receive buffer of a client that does not read as fast as the server sends, in bytes. A small one is full soon.
const SMALL_BUFFER: u32 = 4096;

impl Connector {
    async fn open(&self) -> io::Result<TcpStream> {
        if self.rate == ReadRate::Unlimited {
            return TcpStream::connect(&self.address).await;
        }
        let address: SocketAddr = self.address.parse().map_err(io::Error::other)?;
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
        socket.connect(address).await
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<ThrottledStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let connector = Self { tls: self.tls.clone(), address: self.address.clone(), rate: self.rate };
        Box::pin(async move {
            let address = &connector.address;
            let host = address.rsplit_once(':').map_or(&address[..], |(host, _)| host).to_owned();
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            let next = Box::pin(sleep_until(Instant::now()));
            let stream = ThrottledStream { stream: connector.open().await?, rate: ReadRate::Unlimited, next };
            let mut stream = connector.tls.connect(name, stream).await?;
            stream.get_mut().0.rate = connector.rate;
            Ok(TokioIo::new(stream))
        })
    }
}
