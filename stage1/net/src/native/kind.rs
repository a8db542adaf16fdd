//! The kinds of interface that gantry can create for a pod.

use super::chain::PluginChain;
use super::error::NativeError;
use super::{Added, Ends};
use crate::config::{Ipam, NetworkConfig, PluginSettings};
use crate::netlink::{Namespace, Socket};
use crate::plugin::Attachment;

/// A kind of interface that the first plugin of a network creates.
pub(super) trait InterfaceKind {
    /// Why gantry cannot create the interface with these settings; `None`: it can.
    fn obstacle(&self, ipam: Option<&Ipam>) -> Option<String>;

    /// Creates the interface with its addresses and routes.
    fn add(&self, request: &AddRequest<'_>, ends: &mut Ends<'_>) -> Result<Added, NativeError>;

    /// Disconnects the interface of a pod that has ended, before its addresses are free: a process that does not belong
    /// to the pod (tcpdump, an agent) may keep its namespace, and with it the interface. Idempotent.
    fn disconnect(&self, attachment: &Attachment, host: &mut Socket, pod: &Namespace) -> Result<(), NativeError>;

    /// Deletes the host's part of an interface whose namespace has ended. Idempotent.
    fn del(&self, attachment: &Attachment, host: &mut Socket) -> Result<(), NativeError>;

    /// Describes the interface.
    fn describe(&self) -> KindProperties<'_>;
}

impl std::fmt::Debug for dyn InterfaceKind + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.describe().fmt(f)
    }
}

/// An ADD of one pod.
pub(super) struct AddRequest<'a> {
    pub(super) network: &'a NetworkConfig,
    pub(super) chain: &'a PluginChain<'a>,
    pub(super) attachment: &'a Attachment,
}

/// The properties of an interface that other parts of gantry decide on.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct KindProperties<'a> {
    /// The bridge or parent interface on the host, if the configuration names one.
    pub(crate) host_interface: Option<&'a str>,
    /// The host forwards packets of the pods.
    pub(crate) is_forwarded: bool,
    /// Traffic that leaves the network is masqueraded.
    pub(crate) masquerades: bool,
    /// The pod's interface has a peer on the host, which portmap and bandwidth need.
    pub(super) has_host_end: bool,
    /// The firewall can filter the pod's traffic.
    pub(super) has_firewall: bool,
    /// The pod's interface can have a hardware address of its own.
    pub(super) has_own_mac: bool,
    /// The hardware address in the configuration.
    pub(super) mac: Option<[u8; 6]>,
}

/// The table of kinds; `None` for plugins that create no interface or that gantry does not know.
pub(super) fn interface_kind(settings: &PluginSettings) -> Option<&dyn InterfaceKind> {
    match settings {
        PluginSettings::Bridge(bridge) => Some(bridge),
        PluginSettings::Ptp(ptp) => Some(ptp),
        PluginSettings::Macvlan(macvlan) => Some(macvlan),
        PluginSettings::Ipvlan(ipvlan) => Some(ipvlan),
        PluginSettings::Loopback => Some(&super::loopback::Loopback),
        PluginSettings::Portmap(_)
        | PluginSettings::Firewall(_)
        | PluginSettings::Bandwidth(_)
        | PluginSettings::Tuning(_)
        | PluginSettings::Other => None,
    }
}

/// The properties of the interface that a plugin creates; the default for one that creates none.
pub(crate) fn properties(settings: &PluginSettings) -> KindProperties<'_> {
    interface_kind(settings).map_or_else(KindProperties::default, |kind| kind.describe())
}
