//! The standard CNI plugins without their programs: bridge, ptp, macvlan, ipvlan and loopback with host-local or static
//! addresses, portmap, firewall, bandwidth and tuning, through netlink, configured with the plugins' own keys.
//!
//! An ADD to the default network, whose bridge exists: allocate the leases (some files), read two sysctls of the host,
//! read the bridge and its addresses, create the veth pair with both ends in place and named, set the host end up,
//! write five sysctls of the pod's interface, and set its addresses, state and routes in one request. That takes about
//! a millisecond, half of it for the veth pair (`tests::cost`). None of these operations waits for an RCU grace
//! period. But another process can hold the RTNL lock while it waits for one, for example to delete an interface.
//!
//! A `kill -9` may leave: leases, which belong to their owner and which [`del`] releases; a bridge, which the next pod
//! uses, or completes if it is not up yet; and a veth pair, which the kernel deletes with the pod's namespace, or
//! gantry before the next start of the pod. Sysctls are not reset: another pod may need them.
//!
//! Intended differences from the plugins:
//!
//! * Leases are part of gantry's state: `dataDir` of host-local and tuning has no effect.
//! * Ports, masquerading and the isolation of networks use nftables ([`crate::nft`]) whatever backend is configured.
//!   The caller adds the rules.
//! * On a bridge, a pod can send from its own addresses only, even without `macspoofchk`.
//! * Networks are isolated from each other unless `firewall` sets `open`.
//! * Pods and gantry's bridges ignore router advertisements.
//! * Without `mtu`, interfaces have the MTU of the bridge or of the uplink.
//!
//! A kind of interface implements [`kind::InterfaceKind`] in a file of its own and is listed in
//! [`kind::interface_kind`].

use std::os::fd::BorrowedFd;

use crate::config::{NetworkConfig, PluginSettings};
use crate::netlink::{Namespace, Socket};
use crate::nft::Entries;
use crate::plugin::{Attachment, NetworkResult};

mod addresses;
mod bandwidth;
mod bridge;
mod chain;
mod entries;
mod error;
mod kind;
mod loopback;
mod macvlan;
mod pod_interface;
mod ports;
mod ptp;
mod resolv;
mod result;
pub(crate) mod sysctl;
#[cfg(test)]
mod tests;
mod uplink;
mod veth;

pub(crate) use bridge::{BridgeUse, is_abandoned, is_owned_by as is_bridge_owned_by, restore_bridge};
pub use error::NativeError;
pub(crate) use kind::properties;
pub(crate) use ptp::gateways_and_routes;
pub use veth::host_interface;

use chain::PluginChain;
use kind::AddRequest;

/// The two network namespaces of an attachment and the leases. The calling thread may be in any namespace: it enters
/// both for their sysctls and returns; `/proc` must be mounted and writable.
pub struct Ends<'a> {
    /// A socket in the host's network namespace.
    pub host: Socket,
    /// A socket in the pod's network namespace.
    pub pod: Socket,
    /// The host's network namespace.
    pub host_namespace: &'a Namespace,
    /// The pod's network namespace.
    pub pod_namespace: &'a Namespace,
    /// The directory of the leases ([`crate::ipam::Store::open`]).
    pub leases: BorrowedFd<'a>,
    /// The owner of the bridges: the state directory of this gantry, an absolute path of at most 255 bytes. Bridges of
    /// another owner are not touched.
    pub owner: &'a str,
}

impl Ends<'_> {
    fn host_network(&mut self) -> HostNetwork<'_> {
        HostNetwork { socket: &mut self.host, namespace: self.host_namespace, owner: self.owner }
    }
}

/// The host's side of [`Ends`].
pub(crate) struct HostNetwork<'a> {
    /// A socket in the host's network namespace.
    pub(crate) socket: &'a mut Socket,
    /// The host's network namespace.
    pub(crate) namespace: &'a Namespace,
    /// As in [`Ends`].
    pub(crate) owner: &'a str,
}

/// The result of an ADD.
#[derive(Debug)]
pub struct Added {
    /// The result in the format of CNI.
    pub result: NetworkResult,
    /// The firewall entries of the pod. The caller adds them to the tables. If they contain IPv4 ports, it then enables
    /// `route_localnet` on the interface (before, that would open 127.0.0.1 to others), and forwarding if the network
    /// [`is_forwarded`].
    pub entries: Entries,
    /// A bridge that was taken over from a gantry that is gone, whose tables for it are to be removed.
    pub took_over: Option<String>,
}

/// Why gantry cannot create this network without its plugins (`bandwidth with shapedSubnets`, say); `None`: it can.
#[must_use]
pub fn obstacle(network: &NetworkConfig) -> Option<String> {
    PluginChain::new(network).err()
}

/// The purpose of the host ends of a network's pods.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostEndUse<'a> {
    /// They are ports of a bridge.
    Port(BridgeUse<'a>),
    /// Each is the gateway of its pod, and the host routes to the pod through it ([`gateways_and_routes`]).
    Gateway,
}

/// The purpose of the host ends that [`add`] creates; `None`: it creates none.
pub(crate) fn host_end_use(network: &NetworkConfig) -> Option<HostEndUse<'_>> {
    let chain = PluginChain::new(network).ok()?;
    match &chain.main.settings {
        PluginSettings::Bridge(bridge) => Some(HostEndUse::Port(BridgeUse::new(bridge, &chain))),
        PluginSettings::Ptp(_) => Some(HostEndUse::Gateway),
        PluginSettings::Macvlan(_)
        | PluginSettings::Ipvlan(_)
        | PluginSettings::Loopback
        | PluginSettings::Portmap(_)
        | PluginSettings::Firewall(_)
        | PluginSettings::Bandwidth(_)
        | PluginSettings::Tuning(_)
        | PluginSettings::Other => None,
    }
}

/// Whether the host forwards packets of the network's pods.
#[must_use]
pub fn is_forwarded(network: &NetworkConfig) -> bool {
    network.plugins.iter().any(|plugin| properties(&plugin.settings).is_forwarded)
}

/// Whether the host may have to forward packets of the pods of a network that its plugins create: it is not known what
/// an unknown plugin needs.
#[must_use]
pub fn may_be_forwarded(network: &NetworkConfig) -> bool {
    let first = network.plugins.first().map(|plugin| &plugin.settings);
    matches!(first, Some(PluginSettings::Other)) || is_forwarded(network)
}

/// Adds the pod to the network. After a failure, [`del`] removes what was created.
///
/// # Errors
/// [`NativeError`].
pub fn add(network: &NetworkConfig, attachment: &Attachment, ends: &mut Ends<'_>) -> Result<Added, NativeError> {
    let chain = PluginChain::new(network).map_err(NativeError::unsupported)?;
    chain.kind.add(&AddRequest { network, chain: &chain, attachment }, ends)
}

/// Removes the resources that [`add`] created, even partly, and that do not end with the pod's network namespace.
/// Idempotent.
///
/// Those are its leases. With `pod`, the namespace of a pod whose processes have ended, the pod's interface is
/// disconnected before, because another process may keep the namespace; the kernel deletes both ends of a veth pair
/// with it. Without `pod`, the namespace has ended, and the host end is deleted if it is still there (deletion takes
/// some 20 ms). An interface of that name that does not belong to this pod stays.
///
/// # Errors
/// [`NativeError`]; the rest was removed.
pub fn del(
    network: &NetworkConfig,
    attachment: &Attachment,
    host: &mut Socket,
    pod: Option<&Namespace>,
    leases: BorrowedFd<'_>,
) -> Result<(), NativeError> {
    let kind = network.plugins.first().and_then(|plugin| kind::interface_kind(&plugin.settings));
    // The interface first: no other pod may get an address that still leads to this one.
    let interface = kind.map_or(Ok(()), |kind| match pod {
        Some(pod) => kind.disconnect(attachment, host, pod),
        None => kind.del(attachment, host),
    });
    addresses::release(network, attachment, leases)?;
    interface
}
