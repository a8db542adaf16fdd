//! Findings about the certificates of gantryd's APIs.

use std::collections::BTreeSet;

use gantry_store::{Finding, now};

use super::{fail, warn};
use crate::Settings;
use crate::pki::{CertificateHolder, ExpiringCertificate};

/// Finds files of certificates in the configuration that cannot be read, and certificates that have expired or will
/// expire within 30 days.
#[must_use]
pub fn examine_certificates(settings: &Settings) -> Vec<Finding> {
    let (now, mut findings) = (now(), Vec::new());
    let mut examined = BTreeSet::new();
    for tls in [&settings.machine_tls, &settings.aurae_tls].into_iter().flatten() {
        for (path, holder) in [(&tls.ca, CertificateHolder::Authority), (&tls.certificate, CertificateHolder::Server)] {
            if !examined.insert(path) {
                continue;
            }
            match ExpiringCertificate::find(path, holder, now) {
                Ok(expiring) => expiring.iter().for_each(|certificate| match certificate.is_expired {
                    true => fail(&mut findings, certificate.to_string(), certificate.hint()),
                    false => warn(&mut findings, certificate.to_string(), certificate.hint()),
                }),
                Err(error) => {
                    let hint =
                        "gantryd does not start without it: correct the configuration, or make it with 'gantry pki'";
                    fail(&mut findings, error.to_string(), hint);
                }
            }
        }
    }
    findings
}
