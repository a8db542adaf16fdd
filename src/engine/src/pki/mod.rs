//! Certificates of the node API: X.509 as far as mutual TLS needs it.

mod der;
mod subject;

pub use subject::CertificateSubject;
