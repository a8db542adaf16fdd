//! What the standard CNI plugins do, done here: bridge, ptp, macvlan, ipvlan and loopback with host-local or static
//! addresses, portmap, firewall, bandwidth and tuning, by netlink, and in the words of their configuration.
//!
//! An ADD is, for the default network on a bridge that is there: the leases (some files), two switches of the host looked
//! at, the bridge and its addresses looked at, the cable made with both ends in their places and under their names, the
//! host's end up, five switches of the pod's interface, and its addresses, state and routes in one request. That is about a
//! millisecond, half of it the cable (`tests::cost`). It waits for no grace period of RCU, but for others that hold the
//! lock of all changes (RTNL) while they wait for one, as who deletes an interface does.
//!
//! What `kill -9` leaves of it: leases, which are their owner's and are given back by [`del`]; a bridge, which the next pod
//! uses, or finishes if it is not up yet; and a cable, which goes with the pod's namespace. Switches stay as they are set: another
//! pod may need them.
//!
//! What differs from the plugins, on purpose: addresses are kept with gantry's state (`dataDir` of host-local and tuning mean
//! nothing); ports, masquerading and the separation of networks are nftables' ([`crate::nft`]), whatever backend is
//! named, and the caller's to add; a pod may use no other address than its own on a bridge (`macspoofchk` or not); networks
//! are apart from one another unless `firewall` says `open`; and router advertisements are not listened to, in the
//! pod or on bridges of ours.

use std::os::fd::BorrowedFd;

use crate::config::{NetworkConfig, PluginSettings};
use crate::netlink::{Namespace, Socket};
use crate::nft::Entries;
use crate::plugin::{Attachment, NetworkResult};

mod addresses;
mod bandwidth;
mod bridge;
mod cable;
mod chain;
mod entries;
mod error;
mod inside;
mod ports;
mod ptp;
mod resolv;
mod result;
mod station;
pub(crate) mod switches;
#[cfg(test)]
mod tests;

pub(crate) use bridge::{is_abandoned, is_of as is_bridge_of};
pub use cable::host_interface;
pub use error::NativeError;

use chain::Chain;

/// Both ends of what is made, and where its leases are. Wherever the calling thread is: it goes into both namespaces for
/// their switches, and comes back; `/proc` must be mounted and writable.
pub struct Ends<'a> {
    /// In the host's network namespace.
    pub host: Socket,
    /// In the pod's.
    pub pod: Socket,
    /// The host's network namespace.
    pub host_namespace: &'a Namespace,
    /// The pod's network namespace.
    pub pod_namespace: &'a Namespace,
    /// The directory of the leases ([`crate::ipam::Store::open`]).
    pub leases: BorrowedFd<'a>,
    /// Whose bridges these are: the state directory of this gantry, an absolute path of at most 255 bytes. Another's are
    /// not touched.
    pub owner: &'a str,
}

/// What was made.
#[derive(Debug)]
pub struct Added {
    /// In the words of CNI.
    pub result: NetworkResult,
    /// What the tables must hold for it. They are the caller's to add; and then, if there are ports of IPv4 among it, to turn on
    /// `route_localnet` of its interface, through which others could reach 127.0.0.1 before; and forwarding ([`is_forwarded`]).
    pub entries: Entries,
    /// A bridge that was made by a gantry that is gone: tables of that one that name it are to be removed.
    pub took_over: Option<String>,
}

/// Why gantry cannot do this network itself, so that its plugins are needed (`bandwidth with shapedSubnets`, say); `None`: it can.
#[must_use]
pub fn obstacle(network: &NetworkConfig) -> Option<String> {
    Chain::of(network).err()
}

/// Whether the host forwards for the pods of a network.
#[must_use]
pub fn is_forwarded(network: &NetworkConfig) -> bool {
    network.plugins.iter().any(|plugin| match &plugin.settings {
        PluginSettings::Bridge(bridge) => bridge.is_gateway || bridge.ip_masq,
        PluginSettings::Ptp(_) => true,
        _ => false,
    })
}

/// Adds the pod to the network. After a failure [`del`] takes away what was made.
///
/// # Errors
/// [`NativeError`].
pub fn add(network: &NetworkConfig, attachment: &Attachment, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
    let chain = Chain::of(network).map_err(NativeError::Beyond)?;
    match &chain.main.settings {
        PluginSettings::Bridge(bridge) => bridge::add(network, &chain, bridge, attachment, ends),
        PluginSettings::Ptp(ptp) => ptp::add(network, &chain, ptp, attachment, ends),
        PluginSettings::Macvlan(macvlan) => station::macvlan(network, &chain, macvlan, attachment, ends),
        PluginSettings::Ipvlan(ipvlan) => station::ipvlan(network, &chain, ipvlan, attachment, ends),
        PluginSettings::Loopback => station::loopback(&chain, attachment, ends),
        _ => Err(NativeError::Beyond(format!("the plugin '{}'", chain.main.kind))),
    }
}

/// Takes away what [`add`] made, or a part of it, that the end of the pod's network namespace does not. Doing it again does nothing.
///
/// That is its leases. The host's end of its cable goes with the namespace, and is deleted only when `attachment.netns` is `None`:
/// then the namespace is said to be gone, and what is still there is held by somebody (to delete it takes some 20 ms). An
/// interface of that name that is not this pod's stays.
///
/// # Errors
/// [`NativeError`]; what could be taken away was.
pub fn del(
    network: &NetworkConfig,
    attachment: &Attachment,
    host: &mut Socket,
    leases: BorrowedFd<'_>,
) -> Result<(), NativeError> {
    // The cable first: nobody is to get an address that still leads to this pod.
    let cable = match attachment.netns {
        Some(_) => Ok(()),
        None => cable::delete(host, attachment),
    };
    addresses::take_back(network, attachment, leases)?;
    cable
}
