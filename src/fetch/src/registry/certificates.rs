//! TLS certificates: trusted authorities, client certificates, and explanations of failed handshakes.
//!
//! In addition to the system's bundle there can be a directory per host, as with podman and docker: `HOST[:PORT]/*.crt`
//! are authorities trusted for that host only, `*.cert` with `*.key` of the same name is the client certificate for it.
//! The name of the directory is the registry as image references name it (containers-certs.d(5)): `reg.example:443` is
//! for `reg.example:443/app` and not for `reg.example/app`, and upper case is not lower case.

use std::io::{Error as IoError, ErrorKind as IoErrorKind};
use std::path::{Path, PathBuf};

use gantry_host::file::is_absent;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, Error as TlsError};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey};

use super::endpoints::TlsFiles;
use super::error::RegistryError;
use super::proxy::Proxy;
use super::url::HttpUrl;

/// Where a distribution keeps the certificates it trusts.
const SYSTEM_ROOTS: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// The contents of a host's directories.
#[derive(Default)]
pub(crate) struct HostCertificates {
    pub(crate) roots: Vec<Certificate<'static>>,
    /// The certificate for the host, and the file it is from.
    pub(crate) client: Option<(ClientCert, PathBuf)>,
}

/// The system's trusted certificates.
pub(crate) fn system_roots() -> Result<Vec<Certificate<'static>>, RegistryError> {
    let mut files: Vec<PathBuf> = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from).into_iter().collect();
    files.extend(SYSTEM_ROOTS.map(PathBuf::from));
    for file in files {
        if let Some(roots) = read_certificates(&file)? {
            return Ok(roots);
        }
    }
    // Without a bundle, every TLS connection fails with the correct error: the certificate's issuer is unknown.
    Ok(Vec::new())
}

/// Reads the directories of this name below each of `dirs`.
pub(crate) fn read_host_certificates(dirs: &[PathBuf], name: &str) -> Result<HostCertificates, RegistryError> {
    let mut found = HostCertificates::default();
    for dir in dirs {
        for path in sorted_files(&dir.join(name))? {
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("crt") => found.roots.extend(read_certificates(&path)?.into_iter().flatten()),
                Some("cert") if found.client.is_none() => {
                    found.client = Some((client(&path, &path.with_extension("key"))?, path));
                }
                Some("key") if !path.with_extension("cert").exists() => {
                    return Err(unusable(&path, "the certificate of this key (the same name with .cert) is missing"));
                }
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Adds the certificates of an endpoint, whose client certificate comes before that of a directory.
pub(crate) fn add_files(found: &mut HostCertificates, files: &TlsFiles) -> Result<(), RegistryError> {
    for path in &files.authorities {
        let missing = || RegistryError::certificates(path)(IoErrorKind::NotFound.into());
        found.roots.extend(read_certificates(path)?.ok_or_else(missing)?);
    }
    if let Some((path, key)) = files.clients.first() {
        found.client = Some((client(path, key)?, path.clone()));
    }
    Ok(())
}

/// Refuses an https proxy for a registry with TLS settings of its own: ureq has one TLS configuration for both
/// connections, so the registry's settings would apply to the proxy. `own` are the certificates configured for the
/// registry.
pub(crate) fn check_https_proxy(
    proxy: &Proxy,
    url: &HttpUrl,
    own: &HostCertificates,
    unverified: bool,
) -> Result<(), RegistryError> {
    let setting = if unverified {
        "--insecure-options=tls"
    } else if own.client.is_some() {
        "the client certificate"
    } else if own.roots.is_empty() {
        return Ok(());
    } else {
        "the certificate authority"
    };
    let host = url.authority();
    let why = format!(
        "{setting} for {host} would apply to the https:// proxy {} too; \
         use an http:// proxy, or add {host} to NO_PROXY",
        proxy.url.authority()
    );
    Err(RegistryError::proxy_setting(proxy.variable, why))
}

fn sorted_files(dir: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    let failed = RegistryError::certificates(dir);
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut paths =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    paths.sort();
    Ok(paths)
}

fn unusable(path: &Path, why: &str) -> RegistryError {
    RegistryError::certificates(path)(IoError::new(IoErrorKind::InvalidData, why))
}

fn read_pem(path: &Path) -> Result<Option<Vec<PemItem<'static>>>, RegistryError> {
    let pem = match std::fs::read(path) {
        Ok(pem) => pem,
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(RegistryError::certificates(path)(error)),
    };
    let items = ureq::tls::parse_pem(&pem).collect::<Result<_, _>>();
    items.map(Some).map_err(|_| unusable(path, "it is not PEM"))
}

/// The certificates of a PEM file; none if the file does not exist. Other items in it are skipped.
fn read_certificates(path: &Path) -> Result<Option<Vec<Certificate<'static>>>, RegistryError> {
    let certificate = |item| if let PemItem::Certificate(certificate) = item { Some(certificate) } else { None };
    Ok(read_pem(path)?.map(|items| items.into_iter().filter_map(certificate).collect()))
}

/// A client certificate with its key, checked to belong together.
fn client(path: &Path, key_path: &Path) -> Result<ClientCert, RegistryError> {
    let chain = read_certificates(path)?.unwrap_or_default();
    if chain.is_empty() {
        return Err(unusable(path, "it has no certificate"));
    }
    let pem = std::fs::read(key_path).map_err(RegistryError::certificates(key_path))?;
    let no_key = "it has no private key without a pass phrase";
    let key = PrivateKey::from_pem(&pem).map_err(|_| unusable(key_path, no_key))?;
    let der = PrivateKeyDer::from_pem_slice(&pem).map_err(|_| unusable(key_path, no_key))?;
    // ureq assumes that they match and would panic.
    let ders = chain.iter().map(|certificate| CertificateDer::from(certificate.der().to_vec())).collect();
    let provider = rustls::crypto::ring::default_provider();
    rustls::sign::CertifiedKey::from_der(ders, der, &provider)
        .map_err(|error| unusable(path, &format!("it cannot be used with {}: {error}", key_path.display())))?;
    Ok(ClientCert::new_with_certs(&chain, key))
}

/// The TLS error inside an error of ureq.
pub(crate) fn tls_error(error: &ureq::Error) -> Option<&TlsError> {
    match error {
        ureq::Error::Rustls(inner) => Some(inner),
        ureq::Error::Io(io) => io.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// Explains a failed handshake and its remedy. `dir` is where certificates for the host belong; `client` is the client
/// certificate that was offered.
pub(crate) fn tls_hint(error: Option<&TlsError>, dir: &Path, client: Option<&Path>) -> String {
    use CertificateError as Bad;
    let dir = dir.display();
    let clock = || format!("this host's clock says {}", today());
    match error {
        Some(TlsError::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. })) => {
            format!("its certificate has expired, or this host's clock is wrong ({})", clock())
        }
        Some(TlsError::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. })) => {
            format!("its certificate is not valid yet, or this host's clock is wrong ({})", clock())
        }
        // An authority of the same name with another key leaves a bad signature.
        Some(TlsError::InvalidCertificate(Bad::UnknownIssuer | Bad::BadSignature)) => format!(
            "its certificate is signed by an authority that this host does not trust; \
             to trust it for this registry, put the authority's certificate into {dir}/ca.crt"
        ),
        Some(TlsError::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. })) => {
            "its certificate is for another name".to_owned()
        }
        Some(TlsError::InvalidCertificate(_)) => format!(
            "its certificate is refused; a server's certificate must be signed by an authority (it may not be one \
             itself), whose own certificate may be put into {dir}/ca.crt"
        ),
        Some(TlsError::InvalidMessage(_)) => {
            "it speaks plain HTTP, it seems: --insecure-options=http allows that".to_owned()
        }
        Some(TlsError::AlertReceived(alert)) if is_about_client(*alert) => match client {
            Some(path) => format!("it does not accept the client certificate {}", path.display()),
            None => format!("it asks for a client certificate; put it into {dir} as client.cert and client.key"),
        },
        _ => "the handshake failed".to_owned(),
    }
}

/// Whether a server's alert concerns the certificate of its client.
fn is_about_client(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::BadCertificate
            | Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
    )
}

/// The date by this host's clock.
fn today() -> String {
    let text = gantry_store::now().rfc3339().to_string();
    text.split('T').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_tls_settings_do_not_apply_to_proxies() {
        let url = HttpUrl::parse("https://reg.example:5000/").unwrap();
        let address = HttpUrl::parse("https://proxy.example:3129/").unwrap();
        let proxy = Proxy { url: address, credentials: None, variable: "HTTPS_PROXY" };
        let certificate = || Certificate::from_der(b"certificate");
        let authority = HostCertificates { roots: vec![certificate()], client: None };
        let key = PrivateKey::from_pem(b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
        let client = ClientCert::new_with_certs(&[certificate()], key);
        let client = HostCertificates { roots: Vec::new(), client: Some((client, PathBuf::from("a.cert"))) };
        for (own, unverified, setting) in [
            (&HostCertificates::default(), true, "--insecure-options=tls"),
            (&client, false, "client certificate"),
            (&authority, false, "certificate authority"),
        ] {
            let error = check_https_proxy(&proxy, &url, own, unverified).unwrap_err().to_string();
            for part in ["HTTPS_PROXY", "reg.example:5000", "proxy.example:3129", "NO_PROXY", setting] {
                assert!(error.contains(part), "{part}: {error}");
            }
        }
        check_https_proxy(&proxy, &url, &HostCertificates::default(), false).unwrap();
    }
}
