//! TLS handshakes of new connections: their deadline, their limits, and the identity of the client.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gantry_engine::pki::CertificateSubject;
use rustls::pki_types::CertificateDer;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::peer::{ADMINISTRATORS, Peer};
use crate::stream::{Origin, OriginKey, SocketStream};
use crate::tls::MutualTls;

/// The time that a client has for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum handshakes of one address, or of one local user, at a time. One more is closed.
const MAX_HANDSHAKES_PER_ORIGIN: usize = 256;

/// A client that a certificate identifies.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    /// The subject of its certificate.
    pub(crate) subject: CertificateSubject,
    /// The origin of its connection.
    pub(crate) origin: Origin,
    /// A hash of the certificate: clients with the same one share their limits.
    pub(crate) hash: u64,
}

impl ClientCertificate {
    /// The client as a peer.
    pub(crate) fn peer(&self) -> Peer {
        let administrator = self.subject.organizations.iter().any(|organization| organization == ADMINISTRATORS);
        Peer::Certificate { hash: self.hash, administrator }
    }
}

/// A connection after its handshake.
pub(crate) struct Authenticated {
    pub(crate) stream: TlsStream<SocketStream>,
    pub(crate) client: Arc<ClientCertificate>,
    /// The client's certificate and its intermediate authorities.
    pub(crate) chain: Vec<CertificateDer<'static>>,
}

/// Performs the handshake.
///
/// # Errors
/// No client is accepted now, the client is late, or its certificate is not accepted.
pub(crate) async fn authenticate(tls: &MutualTls, stream: SocketStream, origin: Origin) -> io::Result<Authenticated> {
    let config = tls.server_config().ok_or_else(|| io::Error::other("there is no authority"))?;
    let handshake = TlsAcceptor::from(config).accept(stream);
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await??;
    let chain: Vec<CertificateDer<'static>> =
        stream.get_ref().1.peer_certificates().unwrap_or_default().iter().map(|one| one.clone().into_owned()).collect();
    let subject = chain.first().and_then(|certificate| CertificateSubject::from_certificate(certificate));
    let subject = subject.ok_or_else(|| io::Error::other("the subject of the client's certificate cannot be read"))?;
    let mut hasher = DefaultHasher::new();
    chain.first().hash(&mut hasher);
    let client = ClientCertificate { subject, origin, hash: hasher.finish() };
    Ok(Authenticated { stream, client: Arc::new(client), chain })
}

/// The handshakes that are in progress, by origin.
#[derive(Debug, Default, Clone)]
pub(crate) struct HandshakeCounts(Arc<Mutex<HashMap<OriginKey, usize>>>);

/// One handshake in progress, until it is dropped.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    counts: HandshakeCounts,
    origin: OriginKey,
}

impl HandshakeCounts {
    /// Counts a handshake. `None`: its origin has too many.
    pub(crate) fn acquire(&self, origin: OriginKey) -> Option<HandshakePermit> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(origin).or_default();
        if *count >= MAX_HANDSHAKES_PER_ORIGIN {
            return None;
        }
        *count += 1;
        Some(HandshakePermit { counts: self.clone(), origin })
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.origin) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_has_a_limit_of_handshakes() {
        let counts = HandshakeCounts::default();
        let [one, other] = [OriginKey::Address([192, 0, 2, 1].into()), OriginKey::User(Some(7))];
        let permits: Vec<_> = (0..1000).filter_map(|_| counts.acquire(one)).collect();
        assert_eq!(permits.len(), MAX_HANDSHAKES_PER_ORIGIN);
        assert!(counts.acquire(other).is_some());
        drop(permits);
        assert!(counts.0.lock().unwrap().is_empty());
    }
}
