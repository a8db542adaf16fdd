//! Failures of our table: what was attempted, on what, and what the kernel said of it.

use std::net::SocketAddr;

use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;

use super::state::HostPort;
use crate::error::{Error as NetlinkError, Malformed};

/// The result of an operation on the table.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on the table failed. The table is then as it was: a transaction is made whole or not at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel refused, gave no answer in time, or one that makes no sense.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
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
}

impl Error {
    /// The kernel's error number, where it refused.
    pub(super) fn refused(&self) -> Option<Errno> {
        match self {
            Self::Netlink(NetlinkError::Kernel { errno, .. }) => Some(*errno),
            _ => None,
        }
    }

    /// The kernel refused without words.
    pub(super) fn kernel(what: &str, errno: Errno) -> Self {
        NetlinkError::Kernel { what: what.to_owned(), errno, said: None }.into()
    }

    pub(super) fn malformed(what: &str, why: &'static str) -> Self {
        NetlinkError::Malformed { what: what.to_owned(), source: Malformed(why) }.into()
    }
}

impl Kind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Netlink(error) => kind_of_netlink(error),
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Taken { .. } | Self::Overlap { .. } => ErrorKind::AlreadyExists,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Changed | Self::Contended { .. } => ErrorKind::Busy,
        }
    }
}

fn kind_of_netlink(error: &NetlinkError) -> ErrorKind {
    match error.errno() {
        // How the kernel says that it lacks nf_tables, or an expression or chain type of it. ENOENT is one of them: the
        // table and what we put into it is there when it says so.
        Some(Errno::NOENT | Errno::INVAL) => ErrorKind::Unavailable,
        Some(Errno::MSGSIZE) => ErrorKind::Exhausted,
        _ => error.kind(),
    }
}
