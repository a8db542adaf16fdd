//! Errors of leases.

use std::io;
use std::net::IpAddr;

use gantry_model::{ErrorKind, Kind};

use super::owner::Owner;

/// An address could not be allocated, released or listed.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// A system call failed.
    #[error("cannot {doing} of the addresses of network '{network}': {source}")]
    Io {
        /// The attempted operation, with its file.
        doing: String,
        /// The network.
        network: String,
        /// The cause.
        source: io::Error,
    },
    /// A requested address is leased.
    #[error("address {address} of network '{network}' is taken by {}", shown(owner.as_ref()))]
    Taken {
        /// The address.
        address: IpAddr,
        /// The network.
        network: String,
        /// Its owner; `None` if a power loss has destroyed its record.
        owner: Option<Owner>,
    },
    /// All addresses are leased.
    #[error("network '{network}' has no free address left in {ranges}")]
    Exhausted {
        /// The network.
        network: String,
        /// The ranges.
        ranges: String,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
    /// Any other failure.
    #[error("{message}")]
    Failed {
        /// The problem.
        message: String,
        /// How callers react to it.
        kind: ErrorKind,
    },
}

fn shown(owner: Option<&Owner>) -> String {
    owner.map_or_else(|| "an owner without a record".to_owned(), ToString::to_string)
}

impl Kind for IpamError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => ErrorKind::of_io(source),
            Self::Taken { .. } => ErrorKind::Busy,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::Failed { kind, .. } => *kind,
        }
    }
}
