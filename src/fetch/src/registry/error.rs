//! What can go wrong with a registry. No message holds a credential, a token or a URL's query (which may be a
//! signature); text of the peer is escaped and cut.

use std::time::Duration;

use gantry_model::{Digest, ErrorKind, Kind};
use thiserror::Error;

use crate::auth_file::AuthFileError;

/// The longest wait a registry may ask for (`Retry-After`) before it is refused.
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
        /// What the system said.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The connection broke while an answer was read.
    #[error("the connection to {host} broke while {what} was read")]
    Broken {
        /// Host and port.
        host: String,
        /// What was read.
        what: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The host has no address.
    #[error("cannot resolve the host name {host}")]
    Unresolved {
        /// The host.
        host: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A proxy variable makes no sense.
    #[error("cannot use the proxy setting {variable}: {why}")]
    ProxySetting {
        /// The environment variable.
        variable: &'static str,
        /// Why not.
        why: String,
    },
    /// The proxy's own name has no address.
    #[error("cannot resolve the name of the proxy {proxy} ({variable})")]
    ProxyUnresolved {
        /// Host and port of the proxy.
        proxy: String,
        /// The environment variable that names it.
        variable: &'static str,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// No connection through the proxy, or it broke.
    #[error("cannot reach {host} through the proxy {proxy} ({variable})")]
    ProxyUnreachable {
        /// Host and port.
        host: String,
        /// Host and port of the proxy.
        proxy: String,
        /// The environment variable that names it.
        variable: &'static str,
        /// What the system said.
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
        /// What it said (escaped).
        why: String,
    },
    /// No TLS connection that can be trusted.
    #[error("no trusted TLS connection to {host}: {hint}")]
    Tls {
        /// Host and port.
        host: String,
        /// What to do.
        hint: String,
        /// What rustls said.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The peer went silent.
    #[error("{host} sent nothing for {} while {what} was awaited", seconds(*.after))]
    Stalled {
        /// Host and port.
        host: String,
        /// What was awaited.
        what: String,
        /// The deadline.
        after: Duration,
    },
    /// An answer that says no.
    #[error("{host} answered {status} when asked for {what}{}", said(.message))]
    Status {
        /// Host and port.
        host: String,
        /// What was asked for.
        what: String,
        /// The HTTP status.
        status: u16,
        /// What the registry said (escaped); may be empty.
        message: String,
        /// The wait it asked for.
        retry_after: Option<Duration>,
    },
    /// There is no such thing.
    #[error("{what} is not in {host}{}", said(.message))]
    NotFound {
        /// Host and port.
        host: String,
        /// What was asked for.
        what: String,
        /// What the registry said (escaped); may be empty.
        message: String,
    },
    /// It is not for us, or not without credentials.
    #[error("{host} refuses {what} ({status}){}: {advice}", said(.message))]
    Denied {
        /// Host and port.
        host: String,
        /// What was asked for.
        what: String,
        /// The HTTP status.
        status: u16,
        /// What to do.
        advice: String,
        /// What the registry said (escaped); may be empty.
        message: String,
    },
    /// It asks us to wait longer than we do.
    #[error("{host} asks to be left alone for {}, longer than the {} gantry waits; try again later", seconds(*.asked), seconds(MAX_RETRY_AFTER))]
    RateLimited {
        /// Host and port.
        host: String,
        /// The wait it asked for.
        asked: Duration,
    },
    /// A redirect that is not followed.
    #[error("{from} redirects to {to}, which is refused: {why}")]
    Redirect {
        /// Who redirects: host and port.
        from: String,
        /// Where to: host and port, or an escaped text.
        to: String,
        /// Why not.
        why: &'static str,
    },
    /// An address nobody's registry should have.
    #[error("{host} has the link-local address of a machine's own metadata service, which is refused")]
    LinkLocal {
        /// Host and port.
        host: String,
    },
    /// The demand for authentication makes no sense.
    #[error("the demand of {host} for authentication is refused: {why}")]
    Challenge {
        /// Host and port.
        host: String,
        /// Why.
        why: String,
    },
    /// The token server did not give a token.
    #[error("{host} did not give a token: {why}")]
    Token {
        /// The token server's host and port.
        host: String,
        /// Why.
        why: String,
    },
    /// The bytes that came are not the bytes that were asked for.
    #[error("{host} did not send {what} as asked: {why}")]
    Answer {
        /// Host and port.
        host: String,
        /// What was asked for.
        what: String,
        /// Why it is refused.
        why: String,
    },
    /// More bytes than the descriptor says.
    #[error("{host} sends more for {digest} than the {want} bytes its descriptor says")]
    TooLong {
        /// Host and port.
        host: String,
        /// The blob.
        digest: Digest,
        /// The descriptor's size.
        want: u64,
    },
    /// Fewer bytes than the descriptor says.
    #[error("{host} sent {got} bytes for {digest}, its descriptor says {want}")]
    TooShort {
        /// Host and port.
        host: String,
        /// The blob.
        digest: Digest,
        /// The bytes that came.
        got: u64,
        /// The descriptor's size.
        want: u64,
    },
    /// A document beyond its limit.
    #[error("{what} from {host} is larger than {most} bytes, the most gantry takes")]
    TooLarge {
        /// Host and port.
        host: String,
        /// What was asked for.
        what: String,
        /// The limit.
        most: u64,
    },
    /// Tried often enough.
    #[error("gave up after {tries} tries in {}", seconds(*.after))]
    GaveUp {
        /// How often.
        tries: u32,
        /// In what time.
        after: Duration,
        /// The last failure.
        #[source]
        source: Box<RegistryError>,
    },
    /// Another layer failed, so this one is not needed any more.
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
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// A request could not even be made.
    #[error("cannot make a request to {host}")]
    Request {
        /// Host and port.
        host: String,
        /// Why.
        #[source]
        source: Box<ureq::Error>,
    },
}

/// What to do about a refusal by `registry`. `credentials` is where those that were sent are from.
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

    /// Whether the registry could not be asked at all, so that what is in the store is the best there is.
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

    /// The wait the registry asked for.
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
