//! Errors of registries. No message holds a credential, a token or a URL's query (which may be a signature); text of
//! the peer is escaped and cut.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use gantry_model::id::shown;
use gantry_model::{Digest, ErrorKind, Kind};
use thiserror::Error;

use crate::auth_file::AuthFileError;

/// The longest wait a registry may request (`Retry-After`) before the request fails.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A request to a registry failed. The variants are those that retries, the fallback to plain http and the fallback to
/// the store decide on; all other failures are [`RegistryError::Failed`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// No connection to the registry or its proxy, or it broke before a response.
    #[error("cannot reach {host}{}", through(.proxy.as_deref()))]
    Unreachable {
        /// Host and port.
        host: String,
        /// The proxy and the variable that names it.
        proxy: Option<String>,
        /// The error of the HTTP client.
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
    /// The name of the host or of its proxy has no address.
    #[error("cannot resolve {name}")]
    Unresolved {
        /// The name, as in "the host name registry.example".
        name: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The proxy refuses to connect.
    #[error("the proxy {proxy} does not connect to {host}: {why}")]
    ProxyRefused {
        /// Host and port.
        host: String,
        /// The proxy and the variable that names it.
        proxy: String,
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
    /// The peer sends too little to be waited for.
    #[error("{host} sent less than {} KiB of {what} in {}", .most >> 10, seconds(*.after))]
    Slow {
        /// Host and port.
        host: String,
        /// The awaited data.
        what: String,
        /// The bytes that were due in this time.
        most: u64,
        /// How long it was read.
        after: Duration,
    },
    /// A status that is neither success, "not found" nor a refusal.
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
    /// The last of several attempts failed.
    #[error("gave up after {tries} tries in {}", seconds(*.after))]
    GaveUp {
        /// The number of attempts.
        tries: u32,
        /// The time since the first.
        after: Duration,
        /// The last failure.
        #[source]
        source: Box<RegistryError>,
    },
    /// Another layer failed, so this one is no longer needed.
    #[error("the download was cancelled")]
    Cancelled,
    /// Any other failure. Retrying does not help, and the registry was reached or is misconfigured.
    #[error("{message}")]
    Failed {
        /// The attempted operation and its object, or the refused object and the reason.
        message: String,
        /// The kind of failure.
        kind: ErrorKind,
        /// The cause, unless the message includes it.
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

/// The origin of credentials that a request brought.
pub(crate) const REQUEST: &str = "the request";

/// The advice after a refusal by `registry`. `credentials` names the origin of the credentials that were sent.
pub(crate) fn login_advice(credentials: Option<&str>, registry: &str) -> String {
    match credentials {
        Some(REQUEST) => "the credentials of the request are not accepted".to_owned(),
        Some(place) => {
            format!("the credentials from {place} are not accepted; log in anew with 'gantry login {registry}'")
        }
        None => format!("it does not exist, or needs credentials: log in with 'gantry login {registry}'"),
    }
}

fn said(message: &str) -> String {
    if message.is_empty() { String::new() } else { format!(" (it says: {message})") }
}

fn through(proxy: Option<&str>) -> String {
    proxy.map(|proxy| format!(" through the proxy {proxy}")).unwrap_or_default()
}

fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(1) { format!("{} ms", time.as_millis()) } else { format!("{} s", time.as_secs()) }
}

impl RegistryError {
    fn refused(kind: ErrorKind, message: String) -> Self {
        Self::Failed { message, kind, source: None }
    }

    /// A proxy variable is invalid.
    pub(crate) fn proxy_setting(variable: &str, why: impl Display) -> Self {
        Self::refused(ErrorKind::Invalid, format!("cannot use the proxy setting {variable}: {why}"))
    }

    /// The object does not exist.
    pub(crate) fn not_found(host: &str, what: &str, message: &str) -> Self {
        Self::refused(ErrorKind::NotFound, format!("{what} is not in {host}{}", said(message)))
    }

    /// Access is denied, or requires credentials.
    pub(crate) fn denied(host: &str, what: &str, status: u16, advice: &str, message: &str) -> Self {
        let message = format!("{host} refuses {what} ({status}){}: {advice}", said(message));
        Self::refused(ErrorKind::Denied, message)
    }

    /// A link-local address, which no registry should have.
    pub(crate) fn link_local(host: &str) -> Self {
        let message =
            format!("{host} has the link-local address of a machine's own metadata service, which is refused");
        Self::refused(ErrorKind::Denied, message)
    }

    /// The demand for authentication is invalid.
    pub(crate) fn challenge(host: &str, why: &str) -> Self {
        Self::refused(ErrorKind::Damaged, format!("the demand of {host} for authentication is refused: {why}"))
    }

    /// The token server did not issue a usable token.
    pub(crate) fn token(host: &str, why: &str) -> Self {
        Self::refused(ErrorKind::Denied, format!("{host} did not give a token: {why}"))
    }

    /// The response is not what was requested.
    pub(crate) fn bad_response(host: &str, what: &str, why: impl Display) -> Self {
        Self::refused(ErrorKind::Damaged, format!("{host} did not send {what} as asked: {why}"))
    }

    /// The body is longer than its descriptor allows.
    pub(crate) fn too_long(host: &str, digest: &Digest, want: u64) -> Self {
        let message = format!("{host} sends more for {digest} than the {want} bytes its descriptor says");
        Self::refused(ErrorKind::Damaged, message)
    }

    /// A document exceeds gantry's limit.
    pub(crate) fn too_large(host: &str, what: &str, limit: u64) -> Self {
        let message = format!("{what} from {host} is larger than {limit} bytes, the most gantry takes");
        Self::refused(ErrorKind::Exhausted, message)
    }

    /// The host's configuration forbids the name.
    pub(crate) fn blocked(name: &str, prefix: &str, file: &Path) -> Self {
        let (name, prefix) = (shown(name), shown(prefix));
        let message =
            format!("{name} is blocked: {} has a registry with the prefix {prefix} and blocked = true", file.display());
        Self::refused(ErrorKind::Denied, message)
    }

    /// A configuration of mirrors is malformed.
    pub(crate) fn configuration(path: &Path, why: impl Display) -> Self {
        Self::refused(ErrorKind::Invalid, format!("cannot use the configuration of mirrors {}: {why}", path.display()))
    }

    /// For `map_err`: a configuration of mirrors cannot be read.
    pub(crate) fn configuration_io(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::Failed {
            message: format!("cannot read the configuration of mirrors {}", path.display()),
            kind: ErrorKind::of_io(&error),
            source: Some(Box::new(error)),
        }
    }

    /// For `map_err`: trusted or client certificates cannot be read.
    pub(crate) fn certificates(path: &Path) -> impl Fn(std::io::Error) -> Self {
        move |error| Self::Failed {
            message: format!("cannot read the trusted certificates in {}", path.display()),
            kind: ErrorKind::of_io(&error),
            source: Some(Box::new(error)),
        }
    }

    /// The HTTP client cannot create a request.
    pub(crate) fn request(host: &str, error: ureq::Error) -> Self {
        Self::Failed {
            message: format!("cannot make a request to {host}"),
            kind: ErrorKind::Internal,
            source: Some(Box::new(error)),
        }
    }

    /// Whether the same request may succeed a moment later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::Broken { .. }
            | Self::Stalled { .. }
            | Self::Slow { .. }
            | Self::TooShort { .. } => true,
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
            | Self::Broken { .. }
            | Self::Stalled { .. }
            | Self::Slow { .. }
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

impl From<AuthFileError> for RegistryError {
    fn from(error: AuthFileError) -> Self {
        Self::Failed { message: error.message, kind: error.kind, source: error.source.map(Into::into) }
    }
}

impl Kind for RegistryError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Unreachable { .. }
            | Self::Unresolved { .. }
            | Self::Broken { .. }
            | Self::Status { .. }
            | Self::Cancelled => ErrorKind::Unavailable,
            Self::Stalled { .. } | Self::Slow { .. } => ErrorKind::TimedOut,
            Self::RateLimited { .. } => ErrorKind::Busy,
            Self::Tls { .. } | Self::ProxyRefused { .. } | Self::Redirect { .. } => ErrorKind::Denied,
            Self::TooShort { .. } => ErrorKind::Damaged,
            Self::GaveUp { source, .. } => source.kind(),
            Self::Failed { kind, .. } => *kind,
        }
    }
}
