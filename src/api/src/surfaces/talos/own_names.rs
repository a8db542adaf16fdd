//! The names and addresses of this node: a call that names another node must not be executed here.
//!
//! * the name of the host, with and without its domain, and `localhost`;
//! * the addresses of its interfaces. A trial bind(2) would not do: where `ip_nonlocal_bind` is set (keepalived), the
//!   kernel binds sockets to every address;
//! * the subject alternative names of the server's certificate: the names under which clients know the node, such as
//!   its domain name, or its address behind NAT. A wildcard names no node.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use gantry_engine::{HostInterface, list_interfaces};
use gantry_host::file::read_bounded;
use gantry_host::stamp::FileStamp;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tonic::Status;
use tracing::warn;
use webpki::EndEntityCert;

use crate::status;

/// Maximum bytes of the file of the certificate.
const MAX_FILE: u64 = 1 << 20;

/// The certificate whose names are names of this node. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct NodeCertificate(Arc<Mutex<LoadedCertificate>>);

#[derive(Debug, Default)]
struct LoadedCertificate {
    /// `None`: the node has no certificate.
    path: Option<PathBuf>,
    /// The stamp of the file when it was read last.
    stamp: Option<FileStamp>,
    certificate: Option<CertificateDer<'static>>,
}

impl NodeCertificate {
    /// Uses the certificate in this file from now on, or none. While the file is invalid, the previous certificate
    /// counts, as it does for connections.
    pub fn set_file(&self, path: Option<PathBuf>) {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.path != path {
            let certificate = loaded.certificate.take().filter(|_| path.is_some());
            *loaded = LoadedCertificate { path, stamp: None, certificate };
        }
    }

    /// The certificate, read again if the file has changed.
    fn read(&self) -> Option<CertificateDer<'static>> {
        let mut loaded = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let path = loaded.path.clone()?;
        let stamp = FileStamp::read(&path);
        if stamp != loaded.stamp {
            loaded.stamp = stamp;
            match read_certificate(&path) {
                Ok(certificate) => loaded.certificate = Some(certificate),
                Err(error) => warn!("cannot read the names of this node from {}: {error}", path.display()),
            }
        }
        loaded.certificate.clone()
    }
}

/// Reads the first certificate of a file: the server's own.
fn read_certificate(path: &Path) -> io::Result<CertificateDer<'static>> {
    let first = CertificateDer::pem_slice_iter(&read_bounded(path, MAX_FILE)?).next();
    first.ok_or_else(|| io::Error::other("it has no certificate"))?.map_err(io::Error::other)
}

/// The names of this node during a call. Addresses are read only when a name needs them.
#[derive(Debug, Default)]
pub(super) struct OwnNames {
    certificate: NodeCertificate,
    addresses: Option<Vec<IpAddr>>,
}

impl OwnNames {
    /// The names of the host and of this certificate.
    pub(super) fn new(certificate: NodeCertificate) -> Self {
        Self { certificate, addresses: None }
    }

    /// Whether this is a name or an address of this node. Blocks.
    ///
    /// # Errors
    /// The kernel's: the addresses of the host are unknown.
    pub(super) fn include(&mut self, name: &str) -> Result<bool, Status> {
        if let Ok(address) = name.parse::<IpAddr>() {
            return self.include_address(address);
        }
        let own = rustix::system::uname();
        let own = own.nodename().to_string_lossy().to_lowercase();
        let name = name.trim_end_matches('.').to_lowercase();
        let is_host = name == "localhost" || name == own || own.split('.').next() == Some(&name);
        Ok(is_host || self.certificate.read().is_some_and(|certificate| has_name(&certificate, &name)))
    }

    fn include_address(&mut self, address: IpAddr) -> Result<bool, Status> {
        let address = address.to_canonical();
        if address.is_unspecified() || address.is_multicast() || is_link_local(address) {
            return Ok(false);
        }
        if address.is_loopback() || self.addresses()?.contains(&address) {
            return Ok(true);
        }
        Ok(self.certificate.read().is_some_and(|certificate| is_valid_for(&certificate, &ServerName::from(address))))
    }

    /// The addresses of the host.
    fn addresses(&mut self) -> Result<&[IpAddr], Status> {
        if self.addresses.is_none() {
            let interfaces = list_interfaces().map_err(|error| status::from_error(&error))?;
            self.addresses = Some(addresses_of(&interfaces));
        }
        Ok(self.addresses.as_deref().unwrap_or_default())
    }
}

/// Whether an address is unique on its link only: every host may have fe80::1, or NodeLocal DNS on 169.254.20.10.
fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The addresses of interfaces, without their prefix lengths.
fn addresses_of(interfaces: &[HostInterface]) -> Vec<IpAddr> {
    let all = interfaces.iter().flat_map(|interface| &interface.addresses);
    all.filter_map(|address| address.split('/').next()?.parse().ok()).collect()
}

/// Whether a certificate has this name itself, not only a wildcard that matches it.
fn has_name(certificate: &CertificateDer<'_>, name: &str) -> bool {
    let is_it = |own: &str| own.trim_end_matches('.').eq_ignore_ascii_case(name) && !own.starts_with('*');
    !name.is_empty()
        && EndEntityCert::try_from(certificate).is_ok_and(|certificate| certificate.valid_dns_names().any(is_it))
}

fn is_valid_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> bool {
    EndEntityCert::try_from(certificate)
        .is_ok_and(|certificate| certificate.verify_is_valid_for_subject_name(name).is_ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gantry_engine::pki::{IssueOptions, KeyType, SubjectAltName};

    use super::*;

    /// Makes the certificate of a server with these names, in a directory with an authority.
    fn issue(dir: &Path, names: &[&str]) -> PathBuf {
        let (dir, lifetime) = (dir.to_owned(), Duration::from_secs(3600));
        let options = IssueOptions { dir: dir.clone(), key_type: KeyType::Ed25519, lifetime, replace: true };
        if !dir.join("ca.crt").exists() {
            options.create_authority("test").unwrap();
        }
        let names: Vec<_> = names.iter().map(|name| SubjectAltName::parse(name).unwrap()).collect();
        options.issue_server(&names).unwrap();
        dir.join("server.crt")
    }

    #[test]
    fn own_names_and_addresses_are_recognized() {
        for (name, own) in [
            ("::1", true),
            ("127.8.8.8", true),
            ("::ffff:127.0.0.1", true),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("fe80::1", false),
            ("169.254.20.10", false),
            ("LOCALHOST.", true),
            ("192.0.2.1", false),
            ("2001:db8::1", false),
            ("x.y", false),
            ("", false),
        ] {
            assert_eq!(OwnNames::default().include(name).unwrap(), own, "{name}");
        }
    }

    #[test]
    fn addresses_of_interfaces_are_own() {
        for address in addresses_of(&list_interfaces().unwrap()) {
            let is_own = OwnNames::default().include(&address.to_string()).unwrap();
            assert_eq!(is_own, !is_link_local(address), "{address}");
        }
    }

    #[test]
    fn names_of_the_certificate_are_own() {
        let dir = tempfile::tempdir().unwrap();
        let certificate = NodeCertificate::default();
        let is_own = |name: &str| OwnNames::new(certificate.clone()).include(name).unwrap();
        assert!(!is_own("node1.example"));
        let names = ["node1.example", "192.0.2.7", "2001:db8::7", "*.wild.example", "node0.wild.example"];
        certificate.set_file(Some(issue(dir.path(), &names)));
        for name in ["node1.example", "NODE1.example.", "node0.wild.example", "192.0.2.7", "2001:db8::7"] {
            assert!(is_own(name), "{name}");
        }
        for name in ["node2.example", "example", "192.0.2.8", "node1.wild.example", "*.wild.example", "a b", "."] {
            assert!(!is_own(name), "{name}");
        }
        certificate.set_file(Some(dir.path().join("missing.crt")));
        assert!(is_own("node1.example"), "connections use the previous certificate, too");
        certificate.set_file(None);
        assert!(!is_own("node1.example"));
    }

    #[test]
    fn a_renewed_certificate_has_other_names() {
        let dir = tempfile::tempdir().unwrap();
        let certificate = NodeCertificate::default();
        let is_own = |name: &str| OwnNames::new(certificate.clone()).include(name).unwrap();
        let path = issue(dir.path(), &["node1.example"]);
        certificate.set_file(Some(path.clone()));
        assert!(is_own("node1.example"));
        issue(dir.path(), &["renamed-node.example"]);
        assert_eq!((is_own("node1.example"), is_own("renamed-node.example")), (false, true));
        // As for connections, what is invalid has no effect.
        std::fs::write(&path, "no certificate").unwrap();
        assert!(is_own("renamed-node.example"));
        std::fs::remove_file(&path).unwrap();
        assert!(is_own("renamed-node.example"));
    }
}
