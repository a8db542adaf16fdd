//! Failures of our table: what was attempted, on what, and what the kernel said of it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;

use super::state::HostPort;

/// The result of an operation on the table.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on the table failed. The table is then as it was: a transaction is made whole or not at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {what}: {errno}{}", Said(.said))]
    Kernel {
        /// What was attempted, as in "make the chain forward".
        what: String,
        /// Its error number.
        errno: Errno,
        /// Its own words, where it gave some (the extended acknowledgement).
        said: Option<String>,
    },
    /// A system call around it failed.
    #[error("cannot {what}: {errno}")]
    System {
        /// What was attempted.
        what: String,
        /// Its error number.
        errno: Errno,
    },
    /// There is no such table: it was never made, or somebody removed it.
    #[error("the nftables table inet {table} does not exist, or lacks parts")]
    Missing {
        /// Its name.
        table: String,
    },
    /// A host port leads somewhere else already.
    #[error("host port {port} is taken by {owner} (it leads to {to})")]
    Taken {
        /// The port asked for.
        port: HostPort,
        /// Where it leads.
        to: SocketAddr,
        /// Who asked for that.
        owner: String,
    },
    /// A prefix overlaps with one of another network.
    #[error("cannot {what}: a prefix overlaps with one that is there")]
    Overlap {
        /// What was attempted.
        what: String,
    },
    /// What was asked for can never be done.
    #[error("{0}")]
    Invalid(String),
    /// Somebody changed nftables since the generation that was named.
    #[error("nftables changed meanwhile")]
    Changed,
    /// Others changed nftables during each of several attempts.
    #[error("cannot {what}: others keep changing nftables")]
    Contended {
        /// What was attempted.
        what: String,
    },
    /// The kernel's answer makes no sense, or the request was too long to be one.
    #[error("cannot {what}: {why}")]
    Malformed {
        /// What was attempted.
        what: String,
        /// What is wrong with it.
        why: String,
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
    /// The kernel's error number, where it refused.
    pub(super) fn refused(&self) -> Option<Errno> {
        match self {
            Self::Kernel { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    pub(super) fn malformed(what: &str, why: impl fmt::Display) -> Self {
        Self::Malformed { what: what.to_owned(), why: why.to_string() }
    }
}

impl Kind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Kernel { errno, .. } | Self::System { errno, .. } => of_errno(*errno),
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Taken { .. } | Self::Overlap { .. } => ErrorKind::AlreadyExists,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Changed | Self::Contended { .. } => ErrorKind::Busy,
            Self::Malformed { .. } => ErrorKind::Internal,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
        }
    }
}

fn of_errno(errno: Errno) -> ErrorKind {
    match errno {
        Errno::PERM | Errno::ACCESS => ErrorKind::Denied,
        Errno::BUSY | Errno::AGAIN => ErrorKind::Busy,
        Errno::NOMEM | Errno::NOBUFS | Errno::NFILE | Errno::MFILE | Errno::MSGSIZE => ErrorKind::Exhausted,
        // How the kernel says that it lacks nf_tables, or an expression or chain type of it. ENOENT is one of them: the
        // table and what we put into it is there when it says so.
        Errno::NOTSUP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT | Errno::NOENT | Errno::INVAL => {
            ErrorKind::Unavailable
        }
        other => ErrorKind::of_io(&other.into()),
    }
}

/// Says what was attempted when a system call failed.
pub(super) trait Attempt<T> {
    /// `what` in the form "read the table".
    fn attempt(self, what: &str) -> Result<T>;
}

impl<T> Attempt<T> for rustix::io::Result<T> {
    fn attempt(self, what: &str) -> Result<T> {
        self.map_err(|errno| Error::System { what: what.to_owned(), errno })
    }
}

impl<T> Attempt<T> for std::io::Result<T> {
    fn attempt(self, what: &str) -> Result<T> {
        self.map_err(|error| Error::System {
            what: what.to_owned(),
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
        })
    }
}
