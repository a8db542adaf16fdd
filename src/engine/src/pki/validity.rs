//! The validity of certificates (RFC 5280, section 4.1.2.5), and those that have expired or will expire soon.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Timestamp};
use jiff::civil::{DateTime, date};

use super::der::SEQUENCE;
use super::files::read_certificates;
use super::subject::{CertificateSubject, read_to_validity};
use crate::EngineError;

/// A certificate that expires within this time is reported.
const EXPIRY_NOTICE: Duration = Duration::from_secs(30 * 86_400);
/// UTCTime: two digits of the year.
const UTC_TIME: u8 = 0x17;
/// GeneralizedTime: four digits of the year.
const GENERALIZED_TIME: u8 = 0x18;
/// The first year of UTCTime whose two digits belong to the 20th century.
const UTC_TIME_PIVOT: i16 = 50;

/// The last second in which a certificate in DER is valid. `None`: the bytes are no certificate. Times after 2262
/// become the latest timestamp.
pub(super) fn read_not_after(certificate: &[u8]) -> Option<Timestamp> {
    let mut validity = read_to_validity(certificate)?.enter(SEQUENCE)?;
    validity.read_element()?;
    let (tag, text) = validity.read_element()?;
    decode_time(tag, text)
}

/// Decodes a time in the form that RFC 5280 requires: in UTC, with seconds and without a fraction.
fn decode_time(tag: u8, text: &[u8]) -> Option<Timestamp> {
    let digits = text.strip_suffix(b"Z").filter(|digits| digits.iter().all(u8::is_ascii_digit))?;
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let (year, rest) = digits.split_at(2);
            let year = decode_number(year);
            (if year < UTC_TIME_PIVOT { 2000 + year } else { 1900 + year }, rest)
        }
        (GENERALIZED_TIME, 14) => {
            let (year, rest) = digits.split_at(4);
            (decode_number(year), rest)
        }
        _ => return None,
    };
    let mut parts = rest.chunks(2).filter_map(|part| i8::try_from(decode_number(part)).ok());
    let mut part = || parts.next();
    let time = DateTime::new(year, part()?, part()?, part()?, part()?, part()?, 0).ok()?;
    // Not by way of jiff's Timestamp, which ends before 9999-12-31, the date of certificates that do not expire.
    let seconds = time.duration_since(date(1970, 1, 1).at(0, 0, 0, 0)).as_secs();
    Some(Timestamp(seconds.saturating_mul(1_000_000_000)))
}

/// The value of at most four digits.
fn decode_number(digits: &[u8]) -> i16 {
    digits.iter().fold(0, |number, digit| number * 10 + i16::from(digit - b'0'))
}

/// A time to the second: `2026-11-20T14:00:00Z`.
pub(super) fn format_time(at: Timestamp) -> String {
    format!("{}Z", &at.rfc3339().as_str()[..19])
}

/// The holder of the certificates in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateHolder {
    /// Authorities of clients.
    Authority,
    /// The server and its intermediate authorities.
    Server,
}

/// A certificate that has expired, or expires within 30 days.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiringCertificate {
    path: PathBuf,
    holder: CertificateHolder,
    /// Its common name; may be empty.
    common_name: String,
    not_after: Timestamp,
    /// Whether it has expired.
    pub is_expired: bool,
}

impl ExpiringCertificate {
    /// Finds the certificates in a PEM file that have expired at this time, or expire within 30 days of it.
    ///
    /// # Errors
    /// The file cannot be read, or one of its certificates is invalid.
    pub fn find(path: &Path, holder: CertificateHolder, now: Timestamp) -> Result<Vec<Self>, EngineError> {
        let mut expiring = Vec::new();
        for certificate in read_certificates(path)? {
            let not_after = read_not_after(&certificate).ok_or_else(|| {
                let text = format!("cannot use {}: it has an invalid certificate", path.display());
                EngineError::new(ErrorKind::Invalid, text)
            })?;
            if not_after <= now.after(EXPIRY_NOTICE) {
                let subject = CertificateSubject::from_certificate(&certificate).unwrap_or_default();
                let (path, common_name) = (path.to_owned(), subject.common_name);
                expiring.push(Self { path, holder, common_name, not_after, is_expired: not_after < now });
            }
        }
        Ok(expiring)
    }

    /// The remedy.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match (self.holder, self.is_expired) {
            (CertificateHolder::Server, _) => {
                "'gantry pki server --force' renews it; gantryd reads it again without a restart"
            }
            (CertificateHolder::Authority, false) => {
                "make another authority with 'gantry pki init --pki-dir', append it to the file, and issue new \
                 certificates to the clients"
            }
            (CertificateHolder::Authority, true) => {
                "remove it from the file; if the file has no other, make one with 'gantry pki init'"
            }
        }
    }
}

impl fmt::Display for ExpiringCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holder = match self.holder {
            CertificateHolder::Authority => "authority",
            CertificateHolder::Server => "server",
        };
        let (name, path) = (shown(&self.common_name), self.path.display());
        let verb = if self.is_expired { "expired" } else { "expires" };
        write!(f, "the certificate of the {holder} '{name}' in {path} {verb} on {}", format_time(self.not_after))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::certificate::{CertificatePurpose, CertificateRequest};
    use super::super::files::encode_pem;
    use super::super::key::{KeyType, NewKey};
    use super::*;

    #[test]
    fn times_of_both_types_are_read() {
        let at = |tag, text: &str| decode_time(tag, text.as_bytes()).map(Timestamp::seconds);
        assert_eq!(at(UTC_TIME, "261120133456Z"), Some(1_795_181_696));
        assert_eq!(at(UTC_TIME, "491231235959Z"), Some(2_524_607_999));
        assert_eq!(at(UTC_TIME, "500101000000Z"), Some(-631_152_000));
        assert_eq!(at(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
        assert_eq!(decode_time(GENERALIZED_TIME, b"99991231235959Z"), Some(Timestamp(i64::MAX)));
        for text in ["261320133456Z", "2611201334Z", "261120133456", "26112013345aZ", "20261120133456Z", ""] {
            assert_eq!(at(UTC_TIME, text), None, "{text}");
        }
    }

    #[test]
    fn expired_and_expiring_certificates_are_found() {
        const DAY: u64 = 86_400;
        let now = Timestamp(1_795_181_696_000_000_000);
        let certificate = |days| {
            let subject = CertificateSubject { common_name: format!("of {days} days"), organizations: Vec::new() };
            let lifetime = Duration::from_secs(days * DAY);
            let request = CertificateRequest { subject: &subject, purpose: CertificatePurpose::Client, now, lifetime };
            encode_pem("CERTIFICATE", &request.sign(&NewKey::generate(KeyType::Ed25519).unwrap(), None).unwrap())
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("all.crt");
        std::fs::write(&path, [1, 29, 31, 365].map(certificate).concat()).unwrap();
        let find = |days| {
            let now = now.after(Duration::from_secs(days * DAY));
            let found = ExpiringCertificate::find(&path, CertificateHolder::Server, now).unwrap();
            found.into_iter().map(|one| (one.common_name, one.is_expired)).collect::<Vec<_>>()
        };
        let found = |days: u64, is_expired| (format!("of {days} days"), is_expired);
        assert_eq!(find(0), [found(1, false), found(29, false)]);
        assert_eq!(find(2), [found(1, true), found(29, false), found(31, false)]);
        let first = ExpiringCertificate::find(&path, CertificateHolder::Authority, now).unwrap().remove(0);
        let want = format!(
            "the certificate of the authority 'of 1 days' in {} expires on 2026-11-21T13:34:56Z",
            path.display()
        );
        assert_eq!(first.to_string(), want);
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
        let error = ExpiringCertificate::find(&path, CertificateHolder::Server, now).unwrap_err();
        assert!(error.to_string().contains("invalid certificate"), "{error}");
    }

    proptest! {
        #[test]
        fn time_decoder_never_panics(tag: u8, text in "[0-9Z]{0,16}") {
            let _times = [tag, UTC_TIME, GENERALIZED_TIME].map(|tag| decode_time(tag, text.as_bytes()));
        }
    }
}
