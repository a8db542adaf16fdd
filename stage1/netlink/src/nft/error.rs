//! Errors of operations on the nftables tables: the operation, its object, and the cause.

use std::net::SocketAddr;

use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;

use super::state::HostPort;
use crate::address::Prefix;
use crate::error::{Error as NetlinkError, Malformed};

/// The result of an operation on the tables.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on the tables failed. The tables are then unchanged: a transaction is applied as a whole or not
/// at all.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel rejected the request, did not reply in time, or sent a malformed reply; or the requested state is
    /// invalid.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// The table does not exist: it was never created, or another program removed it.
    #[error("the nftables table inet {table} does not exist, or lacks parts")]
    Missing {
        /// The table's name.
        table: String,
    },
    /// A host port is forwarded elsewhere already.
    #[error("host port {port} is taken by {owner} (it leads to {to})")]
    Taken {
        /// The requested port.
        port: HostPort,
        /// Its current destination.
        to: SocketAddr,
        /// The owner of the current destination.
        owner: String,
    },
    /// A prefix overlaps with one in the table: of another network, or an earlier one of the same network.
    #[error(
        "the subnet {prefix} of network '{network}' overlaps with {other} of network '{other_network}', which pods use: \
         choose another subnet, or stop these pods"
    )]
    Overlap {
        /// The prefix.
        prefix: Prefix,
        /// Its network.
        network: String,
        /// The prefix in the table.
        other: Prefix,
        /// The network of the prefix in the table.
        other_network: String,
    },
    /// nftables changed since the given generation.
    #[error("another program changed nftables meanwhile")]
    Changed,
    /// nftables changed during every attempt.
    #[error("cannot {what}: other programs keep changing nftables")]
    Contended {
        /// The attempted operation.
        what: String,
    },
}

impl Error {
    /// The kernel's error number, if it rejected the request.
    pub(super) fn errno(&self) -> Option<Errno> {
        match self {
            Self::Netlink(NetlinkError::Kernel { errno, .. }) => Some(*errno),
            _ => None,
        }
    }

    /// The requested state is invalid.
    #[must_use]
    pub fn invalid(message: impl Into<String>) -> Self {
        NetlinkError::Failed { message: message.into(), kind: ErrorKind::Invalid }.into()
    }

    /// A rejection without a text.
    pub(super) fn kernel(what: &str, errno: Errno) -> Self {
        NetlinkError::Kernel { what: what.to_owned(), errno, text: None }.into()
    }

    pub(super) fn malformed(what: &str, why: &'static str) -> Self {
        NetlinkError::malformed(what, Malformed(why)).into()
    }
}

impl Kind for Error {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Netlink(error) => kind_of_netlink(error),
            Self::Missing { .. } => ErrorKind::NotFound,
            Self::Taken { .. } | Self::Overlap { .. } => ErrorKind::AlreadyExists,
            Self::Changed | Self::Contended { .. } => ErrorKind::Busy,
        }
    }
}

fn kind_of_netlink(error: &NetlinkError) -> ErrorKind {
    match error.errno() {
        // The kernel lacks nf_tables, or an expression or chain type. ENOENT means that too here: a missing table or
        // set is handled before.
        Some(Errno::NOENT | Errno::INVAL) => ErrorKind::Unavailable,
        Some(Errno::MSGSIZE) => ErrorKind::Exhausted,
        _ => error.kind(),
    }
}
