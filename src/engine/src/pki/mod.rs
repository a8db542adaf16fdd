//! Certificates of the node API: an authority with an Ed25519 key, and the certificates of servers and clients that it
//! issues. The files of an authority are in one directory.
//!
//! | file | contents |
//! |---|---|
//! | `ca.crt`, `ca.key` | the authority |
//! | `server.crt`, `server.key` | the certificate of a server; Talos calls such files `crt` and `key`, too |
//! | `NAME.crt`, `NAME.key` | the certificate of a client |
//! | `NAME.talosconfig` | the same and the authority, as talosctl reads them |
//!
//! Keys have mode 0600. A key is written before its certificate. A `kill -9` between the two leaves a key without a
//! certificate, which the next attempt reports as existing; `replace` overwrites it.

mod certificate;
mod der;
mod encode;
mod files;
mod subject;
mod talosconfig;

use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind as _, Timestamp};
use gantry_store::now;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

use self::certificate::{CertificatePurpose, CertificateRequest, Issuer, NewKey, read_key};
use self::files::{PemFile, read_pem, write_files};
use self::talosconfig::TalosConfig;
use crate::EngineError;

pub use certificate::SubjectAltName;
pub use subject::CertificateSubject;

/// The roles that a client can have, as in the organizations of its certificate.
pub const ROLES: [&str; 4] = ["os:admin", "os:operator", "os:reader", "os:etcd:backup"];
/// Maximum lifetime of a certificate: GeneralizedTime has four digits for the year.
const MAX_LIFETIME: Duration = Duration::from_secs(100 * 366 * 86_400);
/// Minimum lifetime of a certificate.
const MIN_LIFETIME: Duration = Duration::from_secs(1);
/// The name of the authority's files.
const AUTHORITY: &str = "ca";
/// The name of the server's files.
const SERVER: &str = "server";
/// Maximum characters of a name (RFC 5280, ub-common-name).
const MAX_NAME: usize = 64;

/// How certificates and keys are made.
#[derive(Debug, Clone)]
pub struct IssueOptions {
    /// The directory of the authority's files.
    pub dir: PathBuf,
    /// How long the certificate is valid.
    pub lifetime: Duration,
    /// Overwrites existing files.
    pub replace: bool,
}

/// The certificate of a client.
#[derive(Debug, Clone)]
pub struct ClientRequest {
    /// The name of the client: the common name of its certificate, and the name of its files.
    pub name: String,
    /// Its roles, of [`ROLES`].
    pub roles: Vec<String>,
    /// The addresses of the servers, `HOST` or `HOST:PORT`, for talosctl.
    pub endpoints: Vec<String>,
}

impl IssueOptions {
    /// Makes an authority: `ca.crt` and `ca.key`. Returns the paths of the files.
    ///
    /// # Errors
    /// A file exists already or cannot be written, or the lifetime is out of range.
    pub fn create_authority(&self, name: &str) -> Result<Vec<PathBuf>, EngineError> {
        check_name(name)?;
        let subject = CertificateSubject { common_name: name.to_owned(), organizations: vec!["gantry".to_owned()] };
        let (key, certificate) = self.issue(&subject, CertificatePurpose::Authority, None)?;
        files::make_dir(&self.dir)?;
        self.write(&[PemFile::key(AUTHORITY, &key.pkcs8), PemFile::certificate(AUTHORITY, &certificate)])
    }

    /// Makes the certificate of a server with these names and addresses: `server.crt` and `server.key`. Returns the
    /// paths of the files.
    ///
    /// # Errors
    /// There is no authority; a file exists already or cannot be written, or the lifetime is out of range.
    pub fn issue_server(&self, names: &[SubjectAltName]) -> Result<Vec<PathBuf>, EngineError> {
        let authority = Authority::read(&self.dir)?;
        let first = names.iter().map(ToString::to_string).find(|name| name.len() <= MAX_NAME);
        let common_name = first.unwrap_or_else(|| SERVER.to_owned());
        let subject = CertificateSubject { common_name, organizations: Vec::new() };
        let (key, certificate) = self.issue(&subject, CertificatePurpose::Server(names), Some(&authority))?;
        self.write(&[PemFile::key(SERVER, &key.pkcs8), PemFile::certificate(SERVER, &certificate)])
    }

    /// Makes the certificate of a client: `NAME.crt`, `NAME.key` and `NAME.talosconfig`. Returns the paths of the
    /// files.
    ///
    /// # Errors
    /// There is no authority; the name or a role is invalid; a file exists already or cannot be written, or the
    /// lifetime is out of range.
    pub fn issue_client(&self, request: &ClientRequest) -> Result<Vec<PathBuf>, EngineError> {
        let ClientRequest { name, roles, endpoints } = request;
        check_name(name)?;
        if [AUTHORITY, SERVER].contains(&&name[..]) {
            return Err(invalid(format!(
                "a client cannot be called '{name}': the files of that name are not a client's"
            )));
        }
        if let Some(role) = roles.iter().find(|role| !ROLES.contains(&&role[..])) {
            return Err(invalid(format!("'{}' is not a role; the roles are {}", shown(role), ROLES.join(", "))));
        }
        let authority = Authority::read(&self.dir)?;
        let subject = CertificateSubject { common_name: name.clone(), organizations: roles.clone() };
        let (key, certificate) = self.issue(&subject, CertificatePurpose::Client, Some(&authority))?;
        let config = TalosConfig {
            context: name,
            endpoints,
            authority: &authority.certificate,
            certificate: &certificate,
            key: &key.pkcs8,
        };
        self.write(&[
            PemFile::key(name, &key.pkcs8),
            PemFile::secret(format!("{name}.talosconfig"), config.render()?),
            PemFile::certificate(name, &certificate),
        ])
    }

    fn issue(
        &self,
        subject: &CertificateSubject,
        purpose: CertificatePurpose<'_>,
        authority: Option<&Authority>,
    ) -> Result<(NewKey, Vec<u8>), EngineError> {
        if !(MIN_LIFETIME..=MAX_LIFETIME).contains(&self.lifetime) {
            return Err(invalid("a certificate is valid for one second to a hundred years"));
        }
        let now: Timestamp = now();
        let issuer = authority.map(Authority::issuer).transpose()?;
        let key = NewKey::generate()?;
        let request = CertificateRequest { subject, purpose, now, lifetime: self.lifetime };
        let certificate = request.sign(&key, issuer.as_ref())?;
        Ok((key, certificate))
    }

    fn write(&self, files: &[PemFile]) -> Result<Vec<PathBuf>, EngineError> {
        write_files(&self.dir, files, self.replace)
    }
}

/// An authority, as read from its files.
struct Authority {
    path: PathBuf,
    /// In DER.
    certificate: Vec<u8>,
    key: Ed25519KeyPair,
}

impl Authority {
    fn read(dir: &Path) -> Result<Self, EngineError> {
        let [path, key_path] = ["ca.crt", "ca.key"].map(|name| dir.join(name));
        let certificate = read_pem(&path, "CERTIFICATE").map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                let text = format!("there is no authority in {}: make one with 'gantry pki init'", dir.display());
                EngineError::new(ErrorKind::NotFound, text)
            }
            _ => error,
        })?;
        let key = read_key(&read_pem(&key_path, "PRIVATE KEY")?)
            .ok_or_else(|| invalid(format!("{} is not an Ed25519 key", key_path.display())))?;
        if subject::read_public_key(&certificate) != Some(key.public_key().as_ref()) {
            let text = format!("{} is not the key of {}", key_path.display(), path.display());
            return Err(invalid(text));
        }
        Ok(Self { path, certificate, key })
    }

    fn issuer(&self) -> Result<Issuer<'_>, EngineError> {
        let name = subject::read_name_bytes(&self.certificate);
        let name = name.ok_or_else(|| invalid(format!("{} is not a certificate", self.path.display())))?;
        Ok(Issuer { name, key: &self.key })
    }
}

/// Checks a name of a certificate, which is also the name of its files.
fn check_name(name: &str) -> Result<(), EngineError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.bytes().all(is_plain) {
        return Err(invalid(format!(
            "'{}' is not a name: it has 1 to {MAX_NAME} letters, digits, '-', '_', '.' and '@'",
            shown(name)
        )));
    }
    Ok(())
}

fn invalid(text: impl Into<String>) -> EngineError {
    EngineError::new(ErrorKind::Invalid, text)
}
