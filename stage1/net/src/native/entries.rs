//! The firewall entries of a pod ([`crate::nft`]).

use std::collections::BTreeSet;

use super::addresses::Assignment;
use super::chain::PluginChain;
use crate::address::Prefix;
use crate::config::builtin::DEFAULT_RESTRICTED;
use crate::config::{IngressPolicy, NetworkConfig};
use crate::netlink::Mac;
use crate::nft::{Access, AntiSpoofing, Entries, Interface, Network};

/// A network for whose pods the host routes.
pub(super) struct RoutedNetwork<'a> {
    pub(super) network: &'a NetworkConfig,
    pub(super) chain: &'a PluginChain<'a>,
    pub(super) masquerade: bool,
}

/// The name of an interface by which the host reaches pods.
#[derive(Debug, Clone, Copy)]
pub(super) enum HostInterface<'a> {
    /// The pods of a network: its bridge.
    OfNetwork(&'a str),
    /// One pod: the host end of its veth pair.
    OfPod(&'a str),
}

impl RoutedNetwork<'_> {
    /// The entries of the network and of the host's interface to its pods. A network without subnets has none.
    pub(super) fn entries(&self, interface: HostInterface<'_>, assignment: &Assignment) -> Entries {
        let mut entries = Entries::new();
        if assignment.prefixes.is_empty() {
            return entries;
        }
        let name = &self.network.name;
        let network = Network { prefixes: assignment.prefixes.clone(), masquerade: self.masquerade };
        entries.networks.insert(name.clone(), network);
        let (interface, addresses) = match interface {
            HostInterface::OfNetwork(name) => (name, BTreeSet::new()),
            HostInterface::OfPod(name) => (name, assignment.addresses()),
        };
        let access = self.access(assignment);
        entries.interfaces.insert(interface.to_owned(), Interface { network: name.clone(), addresses, access });
        entries
    }

    /// The destinations that pods may reach. Networks are isolated unless one is configured as `open`. The restricted
    /// network is recognized by its name, unless its configuration masquerades or has a default route.
    fn access(&self, assignment: &Assignment) -> Access {
        let out = self.masquerade || assignment.routes.iter().any(|route| is_default(&route.dst.network()));
        if self.network.name == DEFAULT_RESTRICTED && !out {
            return Access::Restricted;
        }
        match self.chain.firewall.map(|firewall| firewall.ingress_policy) {
            Some(IngressPolicy::Open) => Access::Open,
            Some(IngressPolicy::SameBridge | IngressPolicy::Isolated) | None => Access::Isolated,
        }
    }
}

fn is_default(to: &Prefix) -> bool {
    *to == Prefix::ALL_V4 || *to == Prefix::ALL_V6
}

/// Adds the anti-spoofing entry of the host end: the addresses from which the pod may send. A pod without addresses has
/// none.
pub(super) fn add_anti_spoofing(entries: &mut Entries, host_end: &str, mac: Option<Mac>, assignment: &Assignment) {
    let addresses = assignment.addresses();
    if let (Some(mac), false) = (mac, addresses.is_empty()) {
        entries.anti_spoofing.insert(host_end.to_owned(), AntiSpoofing { mac, addresses });
    }
}
