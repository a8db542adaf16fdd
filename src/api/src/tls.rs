//! Mutual TLS: the server's certificate, and the authorities whose client certificates are accepted.
//!
//! The files are read again when they change, and when the configuration names others. A connection whose certificate
//! is no longer accepted ends, with all of its calls: because its authority was removed, or because it expired.
//!
//! | files | effect |
//! |---|---|
//! | the file of the authorities is gone, or empty | no client is accepted |
//! | any file is invalid or unreadable, or the key is not that of the certificate | the previous contents stay in effect |
//! | the configuration has no certificates any more | no client is accepted |

use std::error::Error;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use gantry_engine::pki::{CertificateHolder, ExpiringCertificate};
use gantry_host::file::read_bounded;
use gantry_host::stamp::FileStamp;
use gantry_model::error::chain;
use gantry_model::{ErrorKind, Kind};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;
use tokio::sync::watch;
use tracing::{error, info, warn};

/// Maximum bytes of a file.
const MAX_FILE: u64 = 1 << 20;
/// Interval of checks whether the files have changed.
const RELOAD_INTERVAL: Duration = Duration::from_secs(1);
/// Interval of checks whether the certificate of an open connection is still accepted, besides those after a change.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);
/// Interval of warnings about certificates that expire soon, besides those when the files are read.
const EXPIRY_WARNING_INTERVAL: Duration = Duration::from_secs(86_400);
/// The protocol of gRPC in ALPN (RFC 7301).
const ALPN_HTTP2: &[u8] = b"h2";
/// The label that Talos gives PKCS#8 files of Ed25519 keys, and the label of RFC 7468, section 10.
const KEY_LABELS: [(&str, &str); 2] = [
    ("-----BEGIN ED25519 PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----"),
    ("-----END ED25519 PRIVATE KEY-----", "-----END PRIVATE KEY-----"),
];

/// The files of mutual TLS, all in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the authorities of clients.
    pub authorities: PathBuf,
    /// The server's certificate, then its intermediate authorities.
    pub certificate: PathBuf,
    /// The key of the server's certificate.
    pub key: PathBuf,
}

impl TlsFiles {
    fn stamps(&self) -> FileStamps {
        [&self.authorities, &self.certificate, &self.key].map(|path| FileStamp::read(path))
    }

    /// Warns of certificates that have expired or will expire soon.
    fn log_expiring(&self) {
        let files = [(&self.authorities, CertificateHolder::Authority), (&self.certificate, CertificateHolder::Server)];
        for (path, holder) in files {
            // A file that cannot be read is an error of its own.
            let expiring = ExpiringCertificate::find(path, holder, SystemTime::now().into()).unwrap_or_default();
            expiring.iter().for_each(|certificate| warn!("{certificate}: {}", certificate.hint()));
        }
    }
}

type FileStamps = [Option<FileStamp>; 3];

/// A file of certificates cannot be used.
#[derive(Debug, Error)]
#[error("cannot use {}", path.display())]
pub struct TlsError {
    path: PathBuf,
    kind: ErrorKind,
    #[source]
    problem: Box<dyn Error + Send + Sync>,
}

impl TlsError {
    fn read(path: &Path, error: io::Error) -> Self {
        Self { path: path.to_owned(), kind: ErrorKind::of_io(&error), problem: error.into() }
    }

    fn invalid(path: &Path, problem: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { path: path.to_owned(), kind: ErrorKind::Invalid, problem: problem.into() }
    }
}

impl Kind for TlsError {
    fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// See the module. Clones share their state.
#[derive(Debug, Clone)]
pub struct MutualTls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: Mutex<LoadedFiles>,
    credentials: watch::Sender<Arc<Credentials>>,
}

/// The files, as they were when they were read last.
#[derive(Debug)]
struct LoadedFiles {
    /// `None`: the configuration has no certificates any more.
    files: Option<TlsFiles>,
    stamps: FileStamps,
    /// The stamps at the last check. While a file is written they differ from check to check.
    checked: FileStamps,
}

/// The credentials of handshakes.
#[derive(Debug)]
struct Credentials {
    identity: Arc<CertifiedKey>,
    /// `None`: there are no authorities.
    trust: Option<Arc<dyn ClientCertVerifier>>,
    /// `None`: no client is accepted.
    config: Option<Arc<ServerConfig>>,
}

impl MutualTls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let stamps = files.stamps();
        let trust = read_authorities(&files.authorities)?;
        if trust.is_none() {
            return Err(TlsError::invalid(&files.authorities, "it has no certificate"));
        }
        let credentials = Credentials::new(read_identity(&files)?, trust, &files)?;
        files.log_expiring();
        let files = Mutex::new(LoadedFiles { files: Some(files), stamps, checked: stamps });
        Ok(Self(Arc::new(Shared { files, credentials: watch::Sender::new(Arc::new(credentials)) })))
    }

    /// Uses other files, or none, from now on.
    pub fn set_files(&self, files: Option<TlsFiles>) {
        let mut loaded = self.0.files.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.files != files {
            let stamps = files.as_ref().map(TlsFiles::stamps).unwrap_or_default();
            *loaded = LoadedFiles { files, stamps, checked: stamps };
            self.reload(loaded.files.as_ref());
        }
    }

    /// Reads the files again when they have changed and are no longer being written. Never returns.
    pub(crate) async fn watch_files(self) {
        let mut next_warning = Instant::now() + EXPIRY_WARNING_INTERVAL;
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            let warns = Instant::now() >= next_warning;
            if warns {
                next_warning += EXPIRY_WARNING_INTERVAL;
            }
            let tls = self.clone();
            // A panic was logged.
            let _checked_again_next_time = tokio::task::spawn_blocking(move || tls.check_files(warns)).await;
        }
    }

    fn check_files(&self, warns: bool) {
        let mut loaded = self.0.files.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(files) = loaded.files.clone() else { return };
        if warns {
            files.log_expiring();
        }
        let stamps = files.stamps();
        let is_stable = stamps == std::mem::replace(&mut loaded.checked, stamps);
        if is_stable && stamps != loaded.stamps {
            loaded.stamps = stamps;
            self.reload(Some(&files));
        }
    }

    /// Replaces the credentials; logs what is invalid and keeps the previous one instead.
    fn reload(&self, files: Option<&TlsFiles>) {
        let previous = Arc::clone(&self.0.credentials.borrow());
        let kept = |error: TlsError| error!("{}; the previous one stays in effect", chain(&error));
        let credentials = match files {
            None => Ok(Credentials { identity: Arc::clone(&previous.identity), trust: None, config: None }),
            Some(files) => {
                let identity = read_identity(files).map_err(kept).unwrap_or_else(|()| Arc::clone(&previous.identity));
                let trust = read_authorities(&files.authorities).map_err(kept);
                Credentials::new(identity, trust.unwrap_or_else(|()| previous.trust.clone()), files)
            }
        };
        match credentials {
            Ok(credentials) => {
                match credentials.config {
                    Some(_) => {
                        info!("certificates read again");
                        files.into_iter().for_each(TlsFiles::log_expiring);
                    }
                    None => warn!("no client certificate is accepted: there is no authority"),
                }
                self.0.credentials.send_replace(Arc::new(credentials));
            }
            Err(error) => kept(error),
        }
    }

    /// The configuration of a handshake that begins now. `None`: no client is accepted.
    pub(crate) fn server_config(&self) -> Option<Arc<ServerConfig>> {
        self.0.credentials.borrow().config.clone()
    }

    /// Returns when the certificate of a client is no longer accepted.
    pub(crate) fn wait_until_refused(
        &self,
        chain: Vec<CertificateDer<'static>>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let mut changes = self.0.credentials.subscribe();
        async move {
            loop {
                let is_accepted = changes.borrow_and_update().accept(&chain);
                if !is_accepted {
                    return;
                }
                tokio::select! {
                    changed = changes.changed() => {
                        if changed.is_err() {
                            // The server ends, and the connection with it.
                            std::future::pending().await
                        }
                    }
                    () = tokio::time::sleep(RECHECK_INTERVAL) => {}
                }
            }
        }
    }
}

impl Credentials {
    fn new(
        identity: Arc<CertifiedKey>,
        trust: Option<Arc<dyn ClientCertVerifier>>,
        files: &TlsFiles,
    ) -> Result<Self, TlsError> {
        let Some(verifier) = trust.clone() else { return Ok(Self { identity, trust, config: None }) };
        let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| TlsError::invalid(&files.certificate, error))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity))));
        config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
        // A resumed session does not verify the client's certificate again.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Self { identity, trust, config: Some(Arc::new(config)) })
    }

    fn accept(&self, chain: &[CertificateDer<'_>]) -> bool {
        let (Some(trust), Some((client, intermediates))) = (&self.trust, chain.split_first()) else { return false };
        trust.verify_client_cert(client, intermediates, UnixTime::now()).is_ok()
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    read_bounded(path, MAX_FILE).map_err(|error| TlsError::read(path, error))
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = read_file(path)?;
    CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|error| TlsError::invalid(path, error))
}

/// Reads the authorities. `None`: there are none.
fn read_authorities(path: &Path) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
    let certificates = match read_certificates(path) {
        Err(error) if error.kind == ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    if certificates.is_empty() {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).map_err(|error| TlsError::invalid(path, error))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    verifier.map(Some).map_err(|error| TlsError::invalid(path, error))
}

/// The permissions that the file of a key must not have: only its group may read it, besides its owner.
const FORBIDDEN_KEY_MODE: u32 = 0o027;

/// Refuses a key that other users can read or replace.
fn check_key_access(path: &Path) -> Result<(), TlsError> {
    let metadata = path.metadata().map_err(|error| TlsError::read(path, error))?;
    let mode = metadata.permissions().mode() & 0o777;
    match mode & FORBIDDEN_KEY_MODE {
        0 => Ok(()),
        _ => {
            let problem = format!("other users have access to the key (mode {mode:o}): 'chmod 600' protects it");
            Err(TlsError { path: path.to_owned(), kind: ErrorKind::Refused, problem: problem.into() })
        }
    }
}

/// Reads the server's certificate and its key, and checks that they belong together.
fn read_identity(files: &TlsFiles) -> Result<Arc<CertifiedKey>, TlsError> {
    let chain = read_certificates(&files.certificate)?;
    if chain.is_empty() {
        return Err(TlsError::invalid(&files.certificate, "it has no certificate"));
    }
    check_key_access(&files.key)?;
    let pem = read_file(&files.key)?;
    let mut pem = String::from_utf8(pem).map_err(|error| TlsError::invalid(&files.key, error))?;
    for (label, standard) in KEY_LABELS {
        pem = pem.replace(label, standard);
    }
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|error| TlsError::invalid(&files.key, error))?;
    let certified = CertifiedKey::from_der(chain, key, &rustls::crypto::ring::default_provider());
    certified.map(Arc::new).map_err(|error| TlsError::invalid(&files.key, error))
}
