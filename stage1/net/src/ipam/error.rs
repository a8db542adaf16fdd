//! Why an address cannot be had, or given back.

use std::io;
use std::net::IpAddr;

use gantry_model::{ErrorKind, Kind};

/// A failure of the address store.
#[derive(Debug, thiserror::Error)]
pub enum IpamError {
    /// A system call failed.
    #[error("cannot {doing} of the addresses of network '{network}': {source}")]
    Io {
        /// What was attempted, with its file.
        doing: String,
        /// Of which network.
        network: String,
        /// Why.
        source: io::Error,
    },
    /// Somebody else held the lock until the deadline.
    #[error("the addresses of network '{network}' were locked by somebody else for {seconds} s")]
    Locked {
        /// Of which network.
        network: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Every address of a set is taken.
    #[error("network '{network}' has no free address left in {ranges}")]
    Exhausted {
        /// Which network.
        network: String,
        /// The ranges of the set.
        ranges: String,
    },
    /// An address asked for belongs to another.
    #[error("address {address} of network '{network}' is taken by {by}")]
    Taken {
        /// The address.
        address: IpAddr,
        /// Which network.
        network: String,
        /// Whose it is.
        by: String,
    },
    /// An address asked for is never given.
    #[error("address {address} cannot be had in network '{network}': {problem}")]
    NotGiven {
        /// The address.
        address: IpAddr,
        /// Which network.
        network: String,
        /// Why.
        problem: String,
    },
    /// The owner has addresses already.
    #[error("{owner} has address {address} in network '{network}' already")]
    Held {
        /// Who.
        owner: String,
        /// Which one.
        address: IpAddr,
        /// Which network.
        network: String,
    },
    /// The directory is of another version.
    #[error("the addresses of network '{network}' are kept in a format this gantry does not know: '{found}'")]
    Format {
        /// Of which network.
        network: String,
        /// What its `format` file says.
        found: String,
    },
    /// A name or number is out of bounds.
    #[error("{0}")]
    Invalid(String),
}

impl Kind for IpamError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { source, .. } => ErrorKind::of_io(source),
            Self::Locked { .. } => ErrorKind::TimedOut,
            Self::Exhausted { .. } => ErrorKind::Exhausted,
            Self::Taken { .. } => ErrorKind::Busy,
            Self::NotGiven { .. } | Self::Invalid(_) => ErrorKind::Invalid,
            Self::Held { .. } => ErrorKind::AlreadyExists,
            Self::Format { .. } => ErrorKind::Refused,
        }
    }
}
