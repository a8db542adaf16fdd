//! A gRPC client with mutual TLS, for certificates that Python's gRPC cannot use: BoringSSL refuses Ed25519.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use prost::Message;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

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

/// A channel to `ADDRESS:PORT` that connects with the first call. Enter a runtime of tokio before.
///
/// # Panics
/// When a file cannot be used.
#[track_caller]
#[must_use]
pub fn connect(address: &str, files: ClientFiles<'_>) -> Channel {
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
    let connector = Connector { tls: TlsConnector::from(Arc::new(config)), address: address.to_owned() };
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

struct Connector {
    tls: TlsConnector,
    address: String,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut std::task::Context<'_>) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let (tls, address) = (self.tls.clone(), self.address.clone());
        Box::pin(async move {
            let host = address.rsplit_once(':').map_or(&address[..], |(host, _)| host).to_owned();
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            let stream = TcpStream::connect(&address).await?;
            tls.connect(name, stream).await.map(TokioIo::new)
        })
    }
}
