//! Errors of registries. No message holds a credential, a token or a URL's query (which may be a signature); text of
//! the peer is escaped and cut.

use std::time::Duration;

use gantry_model::{Digest, ErrorKind, Kind};
use thiserror::Error;

use crate::auth_file::AuthFileError;

/// The longest wait a registry may request (`Retry-After`) before the request fails.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A registry did not deliver.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No connection, or it broke.
    #[error("cannot reach {host}")]
    Unreachable {
        /// Host and port.
        host: String,
        /// The system's error.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The connection broke while a response was read.
    #[error("the connection to {host} broke while {what} was read")]
    Broken {
        /// Host and port.
        host: String,
        /// The object that was being read.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The host has no address.
    #[error("cannot resolve the host name {host}")]
    Unresolved {
        /// The host.
        host: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A proxy variable is invalid.
    #[error("cannot use the proxy setting {variable}: {why}")]
    ProxySetting {
        /// The environment variable.
        variable: &'static str,
        /// The reason.
        why: String,
    },
    /// The proxy's own name has no address.
    #[error("cannot resolve the name of the proxy {proxy} ({variable})")]
    ProxyUnresolved {
        /// Host and port of the proxy.
        proxy: String,
        /// The environment variable that names it.
        variable: &'static str,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// No connection through the proxy, or a broken one.
    #[error("cannot reach {host} through the proxy {proxy} ({variable})")]
    ProxyUnreachable {
        /// Host and port.
        host: String,
        /// Host and port of the proxy.
        proxy: String,
        /// The environment variable that names it.
        variable: &'static str,
        /// The system's error.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The proxy refuses.
    #[error("the proxy {proxy} ({variable}) does not connect to {host}: {why}")]
    ProxyRefused {
        /// Host and port.
        host: String,
        /// Host and port of the proxy.
        proxy: String,
        /// The environment variable that names it.
        variable: &'static str,
        /// The message (escaped).
        why: String,
    },
    /// No trusted TLS connection.
    #[error("no trusted TLS connection to {host}: {hint}")]
    Tls {
        /// Host and port.
        host: String,
        /// The remedy.
        hint: String,
        /// The error of rustls.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The peer went silent.
    #[error("{host} sent nothing for {} while {what} was awaited", seconds(*.after))]
    Stalled {
        /// Host and port.
        host: String,
        /// The awaited data.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// An error status.
    #[error("{host} answered {status} when asked for {what}{}", said(.message))]
    Status {
        /// Host and port.
        host: String,
        /// The requested object.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The registry's message (escaped); may be empty.
        message: String,
        /// The requested wait.
        retry_after: Option<Duration>,
    },
    /// The object does not exist.
    #[error("{what} is not in {host}{}", said(.message))]
    NotFound {
        /// Host and port.
        host: String,
        /// The requested object.
        what: String,
        /// The registry's message (escaped); may be empty.
        message: String,
    },
    /// Access is denied, or requires credentials.
    #[error("{host} refuses {what} ({status}){}: {advice}", said(.message))]
    Denied {
        /// Host and port.
        host: String,
        /// The requested object.
        what: String,
        /// The HTTP status.
        status: u16,
        /// The remedy.
        advice: String,
        /// The registry's message (escaped); may be empty.
        message: String,
    },
    /// The requested wait is longer than gantry's limit.
    #[error("{host} asks to be left alone for {}, longer than the {} gantry waits; try again later", seconds(*.asked), seconds(MAX_RETRY_AFTER))]
    RateLimited {
        /// Host and port.
        host: String,
        /// The requested wait.
        asked: Duration,
    },
    /// A redirect that is not followed.
    #[error("{from} redirects to {to}, which is refused: {why}")]
    Redirect {
        /// The redirecting server: host and port.
        from: String,
        /// The target: host and port, or an escaped text.
        to: String,
        /// The reason.
        why: &'static str,
    },
    /// An address that no registry should have.
    #[error("{host} has the link-local address of a machine's own metadata service, which is refused")]
    LinkLocal {
        /// Host and port.
        host: String,
    },
    /// The demand for authentication is invalid.
    #[error("the demand of {host} for authentication is refused: {why}")]
    Challenge {
        /// Host and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The token server did not issue a token.
    #[error("{host} did not give a token: {why}")]
    Token {
        /// The token server's host and port.
        host: String,
        /// The reason.
        why: String,
    },
    /// The received bytes do not match the requested digest.
    #[error("{host} did not send {what} as asked: {why}")]
    Answer {
        /// Host and port.
        host: String,
        /// The requested object.
        what: String,
        /// The reason for the refusal.
        why: String,
    },
    /// The body is longer than its descriptor allows.
    #[error("{host} sends more for {digest} than the {want} bytes its descriptor says")]
    TooLong {
        /// Host and port.
        host: String,
        /// The blob.
        digest: Digest,
        /// The descriptor's size.
        want: u64,
    },
    /// The body is shorter than its descriptor says.
    #[error("{host} sent {got} bytes for {digest}, its descriptor says {want}")]
    TooShort {
        /// Host and port.
        host: String,
        /// The blob.
        digest: Digest,
        /// The bytes received.
        got: u64,
        /// The descriptor's size.
        want: u64,
    },
    /// A document beyond its limit.
    #[error("{what} from {host} is larger than {most} bytes, the most gantry takes")]
    TooLarge {
        /// Host and port.
        host: String,
        /// The requested object.
        what: String,
        /// The limit.
        most: u64,
    },
    /// Tried often enough.
    #[error("gave up after {tries} tries in {}", seconds(*.after))]
    GaveUp {
        /// The number of attempts.
        tries: u32,
        /// In what time.
        after: Duration,
        /// The last failure.
        #[source]
        source: Box<RegistryError>,
    },
    /// Another layer failed, so this one is no longer needed.
    #[error("the download was cancelled")]
    Cancelled,
    /// The credentials cannot be read.
    #[error(transparent)]
    Credentials(#[from] AuthFileError),
    /// The trusted certificates cannot be read.
    #[error("cannot read the trusted certificates in {path}")]
    Certificates {
        /// The file.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A request could not even be created.
    #[error("cannot make a request to {host}")]
    Request {
        /// Host and port.
        host: String,
        /// The cause.
        #[source]
        source: Box<ureq::Error>,
    },
}

/// The advice after a refusal by `registry`. `credentials` names the origin of the credentials that were sent.
pub(crate) fn login_advice(credentials: Option<&str>, registry: &str) -> String {
    match credentials {
        Some(place) => {
            format!("the credentials from {place} are not accepted; log in anew with 'gantry login {registry}'")
        }
        None => format!("it does not exist, or needs credentials: log in with 'gantry login {registry}'"),
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" (it says: {message})") }
}

fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{} ms", time.as_millis()) } else { format!("{} s", time.as_secs()) }
}

impl RegistryError {
    /// Whether the same request may succeed a moment later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::ProxyUnreachable { .. } => true,
            Self::Broken { .. } | Self::Stalled { .. } | Self::TooShort { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status == 408 || *status >= 500,
            _ => false,
        }
    }

    /// Whether the registry could not be reached at all, so that the store has the best available image.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        match self {
            Self::GaveUp { source, .. } => source.is_offline(),
            Self::Unreachable { .. }
            | Self::Unresolved { .. }
            | Self::ProxyUnreachable { .. }
            | Self::ProxyUnresolved { .. }
            | Self::Broken { .. }
            | Self::Stalled { .. }
            | Self::RateLimited { .. } => true,
            Self::Status { status, .. } => *status == 429 || *status >= 500,
            _ => false,
        }
    }

    /// The wait that the registry requested.
    #[must_use]
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl Kind for RegistryError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable { .. }
            | Self::Unresolved { .. }
            | Self::ProxyUnreachable { .. }
            | Self::ProxyUnresolved { .. }
            | Self::Broken { .. }
            | Self::Status { .. }
            | Self::Cancelled => ErrorKind::Unavailable,
            Self::ProxySetting { .. } => ErrorKind::Invalid,
            Self::Stalled { .. } => ErrorKind::TimedOut,
            Self::RateLimited { .. } => ErrorKind::Busy,
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Tls { .. }
            | Self::Denied { .. }
            | Self::ProxyRefused { .. }
            | Self::Redirect { .. }
            | Self::LinkLocal { .. }
            | Self::Token { .. } => ErrorKind::Denied,
            Self::Challenge { .. } | Self::Answer { .. } | Self::TooLong { .. } | Self::TooShort { .. } => {
                ErrorKind::Damaged
            }
            Self::TooLarge { .. } => ErrorKind::Exhausted,
            Self::GaveUp { source, .. } => source.kind(),
            Self::Credentials(error) => error.kind(),
            Self::Certificates { source, .. } => ErrorKind::of_io(source),
            Self::Request { .. } => ErrorKind::Internal,
        }
    }
}
