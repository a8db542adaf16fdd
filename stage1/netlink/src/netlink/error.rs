//! Failures of netlink: what was attempted, on what, and what the kernel said of it.

use std::fmt;
use std::time::Duration;

use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Bytes that are not what netlink(7) says, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) &'static str);

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {what}: {errno}{}", Said(.said))]
    Kernel {
        /// What was attempted, as in "make the link br0".
        what: String,
        /// Its error number.
        errno: Errno,
        /// Its own words, where it gave some (the extended acknowledgement).
        said: Option<String>,
    },
    /// A system call around it failed: the socket, a namespace, a file below `/proc/sys`.
    #[error("cannot {what}: {errno}")]
    System {
        /// What was attempted.
        what: String,
        /// Its error number.
        errno: Errno,
    },
    /// It exists already, and is not as asked for.
    #[error("cannot {what}: it exists already, {difference}")]
    Different {
        /// What was attempted.
        what: String,
        /// What is not as asked for.
        difference: String,
    },
    /// What was asked for can never be done.
    #[error("cannot {what}: {why}")]
    Invalid {
        /// What was attempted.
        what: String,
        /// Why not.
        why: String,
    },
    /// The kernel's answer makes no sense, or the request was too long to be one.
    #[error("cannot {what}: {source}")]
    Malformed {
        /// What was attempted.
        what: String,
        /// What is wrong with it.
        source: Malformed,
    },
    /// The kernel's answer was lost for want of memory (ENOBUFS), or the tables changed during each of several readings.
    #[error("cannot {what}: the kernel's answer was lost or inconsistent")]
    Lost {
        /// What was attempted.
        what: String,
    },
    /// No answer came in time.
    #[error("cannot {what}: no answer from the kernel within {} ms", .after.as_millis())]
    TimedOut {
        /// What was attempted.
        what: String,
        /// How long was waited.
        after: Duration,
    },
}

/// The kernel's words in brackets, if there are any.
struct Said<'a>(&'a Option<String>);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(said) => write!(f, " ({})", said.escape_debug()),
            None => Ok(()),
        }
    }
}

impl Error {
    /// The error number, where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } | Self::System { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether the kernel refused with this number.
    pub(crate) fn is(&self, wanted: Errno) -> bool {
        matches!(self, Self::Kernel { errno, .. } if *errno == wanted)
    }
}

impl Kind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Kernel { errno, .. } | Self::System { errno, .. } => of_errno(*errno),
            Self::Different { .. } => ErrorKind::AlreadyExists,
            Self::Invalid { .. } => ErrorKind::Invalid,
            Self::Malformed { .. } => ErrorKind::Internal,
            Self::Lost { .. } => ErrorKind::Unavailable,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
        }
    }
}

fn of_errno(errno: Errno) -> ErrorKind {
    match errno {
        // rtnetlink's ways of saying that a link, an address or a route is not there.
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

/// Says what was attempted when something below failed.
pub(crate) trait Attempt<T> {
    /// `what` in the form "make the link br0".
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
        self.map_err(|source| Error::Malformed { what: what().to_string(), source })
    }
}
