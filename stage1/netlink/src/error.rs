//! Errors of netlink operations: the operation, its object, and the cause.

use std::fmt;
use std::time::Duration;

use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Bytes that violate the format of netlink(7), with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) &'static str);

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel rejected the request.
    #[error("cannot {what}: {errno}{}", KernelText(.text))]
    Kernel {
        /// The attempted operation, as in "create the bridge br0".
        what: String,
        /// The error number.
        errno: Errno,
        /// The text of the extended acknowledgement, if there was one.
        text: Option<String>,
    },
    /// Another system call failed: on the socket, a namespace, a file below `/proc/sys`.
    #[error("cannot {what}: {errno}")]
    System {
        /// The attempted operation.
        what: String,
        /// The error number.
        errno: Errno,
    },
    /// The reply was lost because the receive buffer was full (ENOBUFS), or every dump was interrupted by changes.
    #[error("cannot {what}: the kernel's reply was lost or inconsistent")]
    Lost {
        /// The attempted operation.
        what: String,
    },
    /// Any other failure: the object exists with other properties, the request is invalid on any system, or the reply
    /// is malformed or late.
    #[error("{message}")]
    Failed {
        /// The attempted operation and the reason.
        message: String,
        /// The kind of failure.
        kind: ErrorKind,
    },
}

/// The text of an extended acknowledgement in parentheses, if there is one.
struct KernelText<'a>(&'a Option<String>);

impl fmt::Display for KernelText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(text) => write!(f, " ({})", text.escape_debug()),
            None => Ok(()),
        }
    }
}

impl Error {
    /// The error number, if a system call or the kernel gave one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } | Self::System { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// The object exists with other properties.
    pub(crate) fn different(what: impl fmt::Display, difference: &str) -> Self {
        let message = format!("cannot {what}: it exists already, {difference}");
        Self::Failed { message, kind: ErrorKind::AlreadyExists }
    }

    /// The request is invalid on any system.
    pub(crate) fn invalid(what: impl fmt::Display, why: &str) -> Self {
        Self::Failed { message: format!("cannot {what}: {why}"), kind: ErrorKind::Invalid }
    }

    /// The kernel's reply is malformed, or the request does not fit into a message.
    pub(crate) fn malformed(what: impl fmt::Display, source: Malformed) -> Self {
        Self::Failed { message: format!("cannot {what}: {source}"), kind: ErrorKind::Internal }
    }

    /// The reply did not arrive in time.
    pub(crate) fn timed_out(what: impl fmt::Display, timeout: Duration) -> Self {
        let message = format!("cannot {what}: no reply from the kernel within {} ms", timeout.as_millis());
        Self::Failed { message, kind: ErrorKind::TimedOut }
    }

    /// Whether the kernel rejected the request with this error number.
    pub(crate) fn is(&self, wanted: Errno) -> bool {
        matches!(self, Self::Kernel { errno, .. } if *errno == wanted)
    }
}

impl Kind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Kernel { errno, .. } | Self::System { errno, .. } => kind_of_errno(*errno),
            Self::Lost { .. } => ErrorKind::Unavailable,
            Self::Failed { kind, .. } => *kind,
        }
    }
}

fn kind_of_errno(errno: Errno) -> ErrorKind {
    match errno {
        // The errors of rtnetlink for a missing link, address or route.
        Errno::NODEV | Errno::NXIO | Errno::SRCH | Errno::ADDRNOTAVAIL | Errno::NOENT => ErrorKind::NotFound,
        Errno::EXIST | Errno::ADDRINUSE => ErrorKind::AlreadyExists,
        Errno::PERM | Errno::ACCESS => ErrorKind::Denied,
        Errno::INVAL | Errno::RANGE | Errno::NAMETOOLONG => ErrorKind::Invalid,
        Errno::BUSY | Errno::AGAIN => ErrorKind::Busy,
        Errno::NOTSUP | Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT | Errno::HOSTUNREACH | Errno::NETUNREACH => {
            ErrorKind::Unavailable
        }
        Errno::NOMEM | Errno::NOBUFS | Errno::NFILE | Errno::MFILE => ErrorKind::Exhausted,
        other => ErrorKind::of_io(&other.into()),
    }
}

/// Adds what was attempted to an error from below.
pub(crate) trait Attempt<T> {
    /// `what` completes "cannot …", as in "create the link br0".
    fn attempt<W: fmt::Display>(self, what: impl FnOnce() -> W) -> Result<T>;
}

impl<T> Attempt<T> for std::result::Result<T, Errno> {
    fn attempt<W: fmt::Display>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|errno| Error::System { what: what().to_string(), errno })
    }
}

impl<T> Attempt<T> for std::io::Result<T> {
    fn attempt<W: fmt::Display>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::System { what: what().to_string(), errno }
        })
    }
}

impl<T> Attempt<T> for std::result::Result<T, Malformed> {
    fn attempt<W: fmt::Display>(self, what: impl FnOnce() -> W) -> Result<T> {
        self.map_err(|source| Error::malformed(what(), source))
    }
}
