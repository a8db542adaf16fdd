//! What the tables must hold for a pod ([`crate::nft`]).

use std::collections::BTreeSet;

use super::addresses::Given;
use super::chain::Chain;
use crate::address::Prefix;
use crate::config::builtin::DEFAULT_RESTRICTED;
use crate::config::{IngressPolicy, NetworkConfig};
use crate::netlink::Mac;
use crate::nft::{Access, Entries, Guard, Interface, Network};

/// A network whose pods the host routes for.
pub(super) struct Routed<'a> {
    pub(super) network: &'a NetworkConfig,
    pub(super) chain: &'a Chain<'a>,
    pub(super) masquerade: bool,
}

impl Routed<'_> {
    /// The network, and the interface of the host that leads to its pods. `own`: it leads to this pod alone. A network without
    /// subnets is nothing to the host.
    pub(super) fn entries(&self, interface: &str, given: &Given, own: bool) -> Entries {
        let mut entries = Entries::new();
        if given.prefixes.is_empty() {
            return entries;
        }
        let name = &self.network.name;
        let network = Network { prefixes: given.prefixes.clone(), masquerade: self.masquerade };
        entries.networks.insert(name.clone(), network);
        let addresses = if own { given.addresses() } else { BTreeSet::new() };
        let access = self.access(given);
        entries.interfaces.insert(interface.to_owned(), Interface { network: name.clone(), addresses, access });
        entries
    }

    /// What its pods may reach. Networks are apart unless one says `open`; the restricted one is that by its name, as long as
    /// its configuration gives no way out.
    fn access(&self, given: &Given) -> Access {
        let out = self.masquerade || given.routes.iter().any(|route| is_default(&route.dst.network()));
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

/// What may come out of the pod into its bridge. Of one without addresses nothing is known.
pub(super) fn guard(entries: &mut Entries, cable: &str, mac: Option<Mac>, given: &Given) {
    let addresses = given.addresses();
    if let (Some(mac), false) = (mac, addresses.is_empty()) {
        entries.guards.insert(cable.to_owned(), Guard { mac, addresses });
    }
}
