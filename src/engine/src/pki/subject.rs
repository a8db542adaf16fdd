//! The subject of a certificate (RFC 5280, section 4.1.2.6): its common name and its organizations.

use super::der::{DerReader, OBJECT_IDENTIFIER, SEQUENCE, SET};

/// The tag of the version in a certificate.
const VERSION: u8 = 0xa0;
/// id-at-commonName, 2.5.4.3.
pub(super) const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// id-at-organizationName, 2.5.4.10.
pub(super) const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
/// UTF8String.
pub(super) const UTF8_STRING: u8 = 0x0c;
/// PrintableString.
const PRINTABLE_STRING: u8 = 0x13;
/// BIT STRING.
const BIT_STRING: u8 = 0x03;
/// IA5String.
const IA5_STRING: u8 = 0x16;

/// The subject of a certificate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CertificateSubject {
    /// The common name; empty: it has none.
    pub common_name: String,
    /// The organizations, in order. Talos writes the roles of a client there.
    pub organizations: Vec<String>,
}

impl CertificateSubject {
    /// Reads the subject of a certificate in DER. `None`: the bytes are no certificate. Names in other encodings than
    /// UTF8String, PrintableString and IA5String are skipped.
    #[must_use]
    pub fn from_certificate(certificate: &[u8]) -> Option<Self> {
        Self::from_name(read_to_subject(certificate)?.enter(SEQUENCE)?)
    }

    fn from_name(mut name: DerReader<'_>) -> Option<Self> {
        let mut subject = Self::default();
        while name.next_tag().is_some() {
            let mut attributes = name.enter(SET)?;
            while attributes.next_tag().is_some() {
                let mut attribute = attributes.enter(SEQUENCE)?;
                let kind = attribute.read_tagged(OBJECT_IDENTIFIER)?;
                let (UTF8_STRING | PRINTABLE_STRING | IA5_STRING, text) = attribute.read_element()? else { continue };
                let Ok(text) = str::from_utf8(text) else { continue };
                if kind == ORGANIZATION {
                    subject.organizations.push(text.to_owned());
                } else if kind == COMMON_NAME {
                    text.clone_into(&mut subject.common_name);
                }
            }
        }
        Some(subject)
    }
}

/// The elements of a certificate in DER, from its validity on.
pub(super) fn read_to_validity(certificate: &[u8]) -> Option<DerReader<'_>> {
    let mut signed = DerReader::new(certificate).enter(SEQUENCE)?.enter(SEQUENCE)?;
    if signed.next_tag() == Some(VERSION) {
        signed.read_element()?;
    }
    // Serial number, signature algorithm, issuer.
    for _ in 0..3 {
        signed.read_element()?;
    }
    Some(signed)
}

/// The elements of a certificate in DER, from its subject on.
fn read_to_subject(certificate: &[u8]) -> Option<DerReader<'_>> {
    let mut signed = read_to_validity(certificate)?;
    signed.read_element()?;
    Some(signed)
}

/// The subject of a certificate, in DER.
pub(super) fn read_name_bytes(certificate: &[u8]) -> Option<&[u8]> {
    let mut signed = read_to_subject(certificate)?;
    let from = signed.rest();
    signed.read_tagged(SEQUENCE)?;
    from.get(..from.len() - signed.rest().len())
}

/// The public key of a certificate, without its algorithm.
pub(super) fn read_public_key(certificate: &[u8]) -> Option<&[u8]> {
    let mut signed = read_to_subject(certificate)?;
    signed.read_element()?;
    let mut info = signed.enter(SEQUENCE)?;
    info.read_tagged(SEQUENCE)?;
    // The first byte is the number of unused bits.
    info.read_tagged(BIT_STRING)?.strip_prefix(&[0])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_read() {
        let attribute = |kind: [u8; 3], tag: u8, text: &str| {
            let mut bytes = vec![0x06, 3];
            bytes.extend(kind);
            bytes.extend([tag, u8::try_from(text.len()).unwrap()]);
            bytes.extend(text.as_bytes());
            let length = u8::try_from(bytes.len()).unwrap();
            [vec![SET, length + 2, SEQUENCE, length], bytes].concat()
        };
        let name = [
            attribute(ORGANIZATION, UTF8_STRING, "os:reader"),
            attribute(COMMON_NAME, PRINTABLE_STRING, "ann"),
            attribute(ORGANIZATION, PRINTABLE_STRING, "os:operator"),
            // TeletexString and an organizational unit.
            attribute(ORGANIZATION, 0x14, "os:admin"),
            attribute([0x55, 0x04, 0x0b], UTF8_STRING, "os:admin"),
        ];
        let subject = CertificateSubject::from_name(DerReader::new(&name.concat())).unwrap();
        assert_eq!(
            (&subject.common_name[..], &subject.organizations[..]),
            ("ann", &["os:reader".to_owned(), "os:operator".to_owned()][..])
        );
    }

    proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>, length: u8) {
            let _name = CertificateSubject::from_name(DerReader::new(&bytes));
            let nested = [&[SEQUENCE, 0x82, 0, length, SEQUENCE, 0x81, length][..], &bytes].concat();
            let _certificate = CertificateSubject::from_certificate(&nested);
        }
    }
}
