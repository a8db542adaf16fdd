//! Certificates of the node API: an authority, and the certificates of servers and clients that it issues. The files
//! of an authority are in one directory.
//!
//! | file | contents |
//! |---|---|
//! | `ca.crt`, `ca.key` | the authority |
//! | `server.crt`, `server.key` | the certificate of a server; Talos calls such files `crt` and `key`, too |
//! | `NAME.crt`, `NAME.key` | the certificate of a client |
//! | `NAME.talosconfig` | the same and the authority, as talosctl reads them |
//!
//! Keys have mode 0600. The files get their names when all are complete, one directly after the other, the key first.
//! A `kill -9` in between leaves a key without a certificate, which the next attempt reports as existing; with
//! `replace`, it may leave a key beside the former certificate, to which it does not belong. `replace` overwrites both.
//!
//! No certificate outlives its authority: a lifetime beyond that of the authority ends with it.

mod certificate;
mod der;
mod encode;
mod files;
mod key;
mod subject;
mod talosconfig;
mod validity;

use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind as _, Timestamp};
use gantry_store::now;

use self::certificate::{CertificatePurpose, CertificateRequest, Issuer};
use self::files::{PemFile, read_pem, write_files};
use self::key::{NewKey, SigningKey};
use self::talosconfig::TalosConfig;
use self::validity::{format_time, read_not_after};
use crate::EngineError;

pub use certificate::SubjectAltName;
pub use key::KeyType;
pub use subject::CertificateSubject;
pub use validity::{CertificateHolder, ExpiringCertificate};

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
    /// The type of the new key.
    pub key_type: KeyType,
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

/// The files of a new certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IssuedFiles {
    /// Their paths.
    pub paths: Vec<PathBuf>,
    /// The end of the certificate's validity (`2026-11-20T14:00:00Z`), if it is that of its authority because the
    /// authority expires before the lifetime ends.
    pub clamped_to: Option<String>,
}

impl IssueOptions {
    /// Makes an authority: `ca.crt` and `ca.key`.
    ///
    /// # Errors
    /// A file exists already or cannot be written, or the lifetime is out of range.
    pub fn create_authority(&self, name: &str) -> Result<IssuedFiles, EngineError> {
        check_name(name)?;
        let subject = CertificateSubject { common_name: name.to_owned(), organizations: vec!["gantry".to_owned()] };
        let issued = self.issue(&subject, CertificatePurpose::Authority, None)?;
        files::make_dir(&self.dir)?;
        let files = [PemFile::key(AUTHORITY, &issued.key.pkcs8), PemFile::certificate(AUTHORITY, &issued.certificate)];
        self.write(&files, issued.clamped_to)
    }

    /// Makes the certificate of a server with these names and addresses: `server.crt` and `server.key`.
    ///
    /// # Errors
    /// There is no authority, or it has expired; a file exists already or cannot be written, or the lifetime is out of
    /// range.
    pub fn issue_server(&self, names: &[SubjectAltName]) -> Result<IssuedFiles, EngineError> {
        let authority = Authority::read(&self.dir)?;
        let first = names.iter().map(ToString::to_string).find(|name| name.len() <= MAX_NAME);
        let common_name = first.unwrap_or_else(|| SERVER.to_owned());
        let subject = CertificateSubject { common_name, organizations: Vec::new() };
        let issued = self.issue(&subject, CertificatePurpose::Server(names), Some(&authority))?;
        let files = [PemFile::key(SERVER, &issued.key.pkcs8), PemFile::certificate(SERVER, &issued.certificate)];
        self.write(&files, issued.clamped_to)
    }

    /// Makes the certificate of a client: `NAME.crt`, `NAME.key` and `NAME.talosconfig`.
    ///
    /// # Errors
    /// There is no authority, or it has expired; the name or a role is invalid; a file exists already or cannot be
    /// written, or the lifetime is out of range.
    pub fn issue_client(&self, request: &ClientRequest) -> Result<IssuedFiles, EngineError> {
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
        let NewCertificate { key, certificate, clamped_to } =
            self.issue(&subject, CertificatePurpose::Client, Some(&authority))?;
        let config = TalosConfig {
            context: name,
            endpoints,
            authority: &authority.certificate,
            certificate: &certificate,
            key_type: self.key_type,
            key: &key.pkcs8,
        };
        let files = [
            PemFile::key(name, &key.pkcs8),
            PemFile::secret(format!("{name}.talosconfig"), config.render()?),
            PemFile::certificate(name, &certificate),
        ];
        self.write(&files, clamped_to)
    }

    fn issue(
        &self,
        subject: &CertificateSubject,
        purpose: CertificatePurpose<'_>,
        authority: Option<&Authority>,
    ) -> Result<NewCertificate, EngineError> {
        if !(MIN_LIFETIME..=MAX_LIFETIME).contains(&self.lifetime) {
            return Err(invalid("a certificate is valid for one second to a hundred years"));
        }
        let now: Timestamp = now();
        let issuer = authority.map(Authority::issuer).transpose()?;
        let remaining = authority.map(|authority| authority.remaining_lifetime(now)).transpose()?;
        let lifetime = remaining.map_or(self.lifetime, |remaining| remaining.min(self.lifetime));
        let clamped_to = (lifetime < self.lifetime).then(|| format_time(now.after(lifetime)));
        let key = NewKey::generate(self.key_type)?;
        let request = CertificateRequest { subject, purpose, now, lifetime };
        let certificate = request.sign(&key, issuer.as_ref())?;
        Ok(NewCertificate { key, certificate, clamped_to })
    }

    fn write(&self, files: &[PemFile], clamped_to: Option<String>) -> Result<IssuedFiles, EngineError> {
        let paths = write_files(&self.dir, files, self.replace)?;
        Ok(IssuedFiles { paths, clamped_to })
    }
}

/// A certificate that is not written yet.
struct NewCertificate {
    key: NewKey,
    /// In DER.
    certificate: Vec<u8>,
    /// As in [`IssuedFiles`].
    clamped_to: Option<String>,
}

/// An authority, as read from its files.
struct Authority {
    path: PathBuf,
    /// In DER.
    certificate: Vec<u8>,
    key: SigningKey,
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
        let key = SigningKey::read(&read_pem(&key_path, "PRIVATE KEY")?)
            .ok_or_else(|| invalid(format!("{} is neither an Ed25519 key nor an ECDSA key", key_path.display())))?;
        if subject::read_public_key(&certificate) != Some(key.public()) {
            let text = format!("{} is not the key of {}", key_path.display(), path.display());
            return Err(invalid(text));
        }
        Ok(Self { path, certificate, key })
    }

    fn issuer(&self) -> Result<Issuer<'_>, EngineError> {
        let name = subject::read_name_bytes(&self.certificate);
        let name = name.ok_or_else(|| self.is_no_certificate())?;
        Ok(Issuer { name, key: &self.key })
    }

    /// The time until it expires.
    ///
    /// # Errors
    /// It has expired, or will before a certificate could be used.
    fn remaining_lifetime(&self, now: Timestamp) -> Result<Duration, EngineError> {
        let not_after = read_not_after(&self.certificate).ok_or_else(|| self.is_no_certificate())?;
        let remaining = not_after.since(now);
        if remaining < MIN_LIFETIME {
            let (path, time) = (self.path.display(), format_time(not_after));
            return Err(invalid(format!(
                "the authority in {path} expired on {time}: make another one with 'gantry pki init'"
            )));
        }
        Ok(remaining)
    }

    fn is_no_certificate(&self) -> EngineError {
        invalid(format!("{} is not a certificate", self.path.display()))
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
