//! Makes X.509 certificates (RFC 5280).

use std::net::IpAddr;
use std::time::Duration;

use gantry_model::Timestamp;
use ring::digest::{SHA256, digest};

use super::der::SET;
use super::encode::{bit_string, constructed, element, object_identifier, sequence};
use super::key::{NewKey, SigningKey, random_bytes};
use super::subject::{COMMON_NAME, CertificateSubject, ORGANIZATION, UTF8_STRING};
use crate::EngineError;

/// id-kp-serverAuth, 1.3.6.1.5.5.7.3.1.
const SERVER_AUTH: [u8; 8] = [0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
/// id-kp-clientAuth, 1.3.6.1.5.5.7.3.2.
const CLIENT_AUTH: [u8; 8] = [0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];
/// The arc of certificate extensions, 2.5.29.
const EXTENSION: [u8; 2] = [0x55, 0x1d];
const SUBJECT_KEY_ID: u8 = 14;
const KEY_USAGE: u8 = 15;
const SUBJECT_ALT_NAME: u8 = 17;
const BASIC_CONSTRAINTS: u8 = 19;
const AUTHORITY_KEY_ID: u8 = 35;
const EXTENDED_KEY_USAGE: u8 = 37;
/// The bit string of keyUsage: digitalSignature, keyCertSign and cRLSign.
const AUTHORITY_USAGE: [u8; 4] = [0x03, 0x02, 0x01, 0x86];
/// The bit string of keyUsage: digitalSignature.
const LEAF_USAGE: [u8; 4] = [0x03, 0x02, 0x07, 0x80];
const TRUE: [u8; 3] = [0x01, 0x01, 0xff];
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
/// Bytes of a serial number.
const SERIAL_LENGTH: usize = 16;
/// Certificates are valid this long before they were made: clocks of clients differ.
const CLOCK_MARGIN: Duration = Duration::from_secs(300);
/// The purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CertificatePurpose<'a> {
    /// Signing certificates.
    Authority,
    /// Identifying a server by these names and addresses.
    Server(&'a [SubjectAltName]),
    /// Identifying a client.
    Client,
}

/// A name or an address of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SubjectAltName {
    /// A DNS name.
    Dns(String),
    /// An address.
    Ip(IpAddr),
}

impl SubjectAltName {
    /// Reads an address or a DNS name. `None`: it is neither.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(address) = text.parse() {
            return Some(Self::Ip(address));
        }
        let is_label = |label: &str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            (1..=63).contains(&label.len()) && label.bytes().all(is_plain) && !label.starts_with('-')
        };
        let labels = text.strip_prefix("*.").unwrap_or(text);
        (text.len() <= 253 && labels.split('.').all(is_label)).then(|| Self::Dns(text.to_ascii_lowercase()))
    }
}

impl std::fmt::Display for SubjectAltName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dns(name) => f.write_str(name),
            Self::Ip(address) => address.fmt(f),
        }
    }
}

/// The signer of a certificate.
pub(super) struct Issuer<'a> {
    /// Its subject, as in its certificate, in DER.
    pub(super) name: &'a [u8],
    pub(super) key: &'a SigningKey,
}

/// The contents of a certificate that are not random and do not come from keys.
pub(super) struct CertificateRequest<'a> {
    pub(super) subject: &'a CertificateSubject,
    pub(super) purpose: CertificatePurpose<'a>,
    pub(super) now: Timestamp,
    pub(super) lifetime: Duration,
}

impl CertificateRequest<'_> {
    /// A certificate of this key in DER, signed by the issuer. `None`: by the key itself.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub(super) fn sign(&self, key: &NewKey, issuer: Option<&Issuer<'_>>) -> Result<Vec<u8>, EngineError> {
        let subject = encode_name(self.subject);
        let (issuer_name, signer) = issuer.map_or((&subject[..], &key.key), |issuer| (issuer.name, issuer.key));
        let algorithm = signer.signature_algorithm();
        let [first, last] = [self.now.before(CLOCK_MARGIN), self.now.after(self.lifetime)].map(encode_time);
        let public = key.key.public();
        let signed = sequence(&[
            constructed(0xa0, &[element(INTEGER, &[2])]),
            element(INTEGER, &serial_number()?),
            algorithm.clone(),
            issuer_name.to_vec(),
            sequence(&[first, last]),
            subject,
            sequence(&[key.key.key_algorithm(), bit_string(public)]),
            constructed(0xa3, &[sequence(&self.extensions(public, signer.public()))]),
        ]);
        let signature = bit_string(&signer.sign(&signed)?);
        Ok(sequence(&[signed, algorithm, signature]))
    }

    fn extensions(&self, public: &[u8], issuer_public: &[u8]) -> Vec<Vec<u8>> {
        let usages = |usage: &[u8]| extension(EXTENDED_KEY_USAGE, false, &sequence(&[object_identifier(usage)]));
        let mut extensions = match self.purpose {
            CertificatePurpose::Authority => vec![
                extension(BASIC_CONSTRAINTS, true, &sequence(&[TRUE.to_vec()])),
                extension(KEY_USAGE, true, &AUTHORITY_USAGE),
            ],
            CertificatePurpose::Server(_) | CertificatePurpose::Client => {
                vec![extension(BASIC_CONSTRAINTS, true, &sequence(&[])), extension(KEY_USAGE, true, &LEAF_USAGE)]
            }
        };
        match self.purpose {
            CertificatePurpose::Authority => {}
            CertificatePurpose::Client => extensions.push(usages(&CLIENT_AUTH)),
            CertificatePurpose::Server(names) => {
                let names: Vec<Vec<u8>> = names.iter().map(encode_alt_name).collect();
                extensions.push(usages(&SERVER_AUTH));
                extensions.push(extension(SUBJECT_ALT_NAME, false, &sequence(&names)));
            }
        }
        extensions.push(extension(SUBJECT_KEY_ID, false, &element(OCTET_STRING, &key_id(public))));
        extensions.push(extension(AUTHORITY_KEY_ID, false, &sequence(&[element(0x80, &key_id(issuer_public))])));
        extensions
    }
}

/// A random serial number: positive, and without leading zeros.
fn serial_number() -> Result<[u8; SERIAL_LENGTH], EngineError> {
    let mut serial = random_bytes::<SERIAL_LENGTH>()?;
    serial[0] = serial[0] & 0x7f | 0x40;
    Ok(serial)
}

/// The identifier of a key (RFC 7093, section 2, method 1).
fn key_id(public: &[u8]) -> Vec<u8> {
    digest(&SHA256, public).as_ref().iter().copied().take(20).collect()
}

fn extension(kind: u8, is_critical: bool, value: &[u8]) -> Vec<u8> {
    let [one, two] = EXTENSION;
    let mut parts = vec![object_identifier(&[one, two, kind])];
    parts.extend(is_critical.then(|| TRUE.to_vec()));
    parts.push(element(OCTET_STRING, value));
    sequence(&parts)
}

/// The extensions' general names dNSName and iPAddress.
fn encode_alt_name(name: &SubjectAltName) -> Vec<u8> {
    match name {
        SubjectAltName::Dns(name) => element(0x82, name.as_bytes()),
        SubjectAltName::Ip(IpAddr::V4(address)) => element(0x87, &address.octets()),
        SubjectAltName::Ip(IpAddr::V6(address)) => element(0x87, &address.octets()),
    }
}

fn encode_name(subject: &CertificateSubject) -> Vec<u8> {
    let attribute = |kind: &[u8], text: &str| {
        constructed(SET, &[sequence(&[object_identifier(kind), element(UTF8_STRING, text.as_bytes())])])
    };
    let mut parts: Vec<Vec<u8>> =
        subject.organizations.iter().map(|organization| attribute(&ORGANIZATION, organization)).collect();
    parts.push(attribute(&COMMON_NAME, &subject.common_name));
    sequence(&parts)
}

/// UTCTime until 2049, then GeneralizedTime (RFC 5280, section 4.1.2.5).
fn encode_time(at: Timestamp) -> Vec<u8> {
    let text = at.rfc3339();
    let digits: Vec<u8> = text.as_str()[..19].bytes().filter(u8::is_ascii_digit).chain([b'Z']).collect();
    match text.as_str() {
        text if ("1950".."2050").contains(&&text[..4]) => element(0x17, &digits[2..]),
        _ => element(0x18, &digits),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::key::KeyType;

    #[test]
    fn times_have_the_type_of_their_century() {
        let at = |seconds: i64| encode_time(Timestamp(seconds * 1_000_000_000));
        assert_eq!(at(1_795_181_696), [&[0x17, 13][..], b"261120133456Z"].concat());
        assert_eq!(at(2_524_608_000), [&[0x18, 15][..], b"20500101000000Z"].concat());
    }

    #[test]
    fn subjects_are_read_back() {
        let subject = CertificateSubject {
            common_name: "ann".to_owned(),
            organizations: vec!["os:reader".to_owned(), "os:etcd:backup".to_owned()],
        };
        let keys = [KeyType::Ed25519, KeyType::Ecdsa].map(|key_type| NewKey::generate(key_type).unwrap());
        let names = [SubjectAltName::Dns("a.example".into()), SubjectAltName::Ip([127, 0, 0, 1].into())];
        for purpose in [CertificatePurpose::Authority, CertificatePurpose::Client, CertificatePurpose::Server(&names)] {
            let lifetime = Duration::from_secs(3600);
            let request = CertificateRequest { subject: &subject, purpose, now: Timestamp(0), lifetime };
            for key in &keys {
                let certificate = request.sign(key, None).unwrap();
                assert_eq!(CertificateSubject::from_certificate(&certificate), Some(subject.clone()));
            }
        }
    }
}
