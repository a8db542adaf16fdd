//! The firewall entries of a pod in its record. Consecutive ports are one item, so that a range of a thousand ports is
//! as cheap to read as one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::address::Cidr;
use crate::nft::{self, Access, AntiSpoofing, Forward, HostPort, Interface, State};

/// [`State`] in a record. The pod of the record owns the ports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RecordedEntries {
    networks: BTreeMap<String, RecordedNetwork>,
    interfaces: BTreeMap<String, RecordedInterface>,
    ports: Vec<RecordedPorts>,
    guards: BTreeMap<String, RecordedGuard>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedNetwork {
    prefixes: Vec<Cidr>,
    masquerade: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedInterface {
    network: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<IpAddr>,
    access: RecordedAccess,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RecordedAccess {
    Open,
    Isolated,
    Restricted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedPorts {
    address: IpAddr,
    protocol: gantry_model::net::Protocol,
    port: u16,
    to: SocketAddr,
    count: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedGuard {
    mac: String,
    addresses: Vec<IpAddr>,
}

impl RecordedEntries {
    pub(super) fn from_state(state: &State) -> Self {
        let network = |network: &nft::Network| RecordedNetwork {
            prefixes: network.prefixes.iter().filter_map(|it| Cidr::new(it.first(), it.length()).ok()).collect(),
            masquerade: network.masquerade,
        };
        let interface = |it: &Interface| RecordedInterface {
            network: it.network.clone(),
            addresses: it.addresses.iter().copied().collect(),
            access: it.access.into(),
        };
        let guard = |it: &AntiSpoofing| RecordedGuard {
            mac: it.mac.to_string(),
            addresses: it.addresses.iter().copied().collect(),
        };
        Self {
            networks: state.networks.iter().map(|(name, it)| (name.clone(), network(it))).collect(),
            interfaces: state.interfaces.iter().map(|(name, it)| (name.clone(), interface(it))).collect(),
            ports: port_ranges(state),
            guards: state.anti_spoofing.iter().map(|(name, it)| (name.clone(), guard(it))).collect(),
        }
    }

    /// The entries, with `owner` as the owner of the ports; or the problem.
    pub(super) fn to_state(&self, owner: &str) -> Result<State, String> {
        let mut state = State::new();
        for (name, it) in &self.networks {
            let prefixes = it.prefixes.iter().map(Cidr::network).collect();
            state.networks.insert(name.clone(), nft::Network { prefixes, masquerade: it.masquerade });
        }
        for (name, it) in &self.interfaces {
            let (network, addresses) = (it.network.clone(), it.addresses.iter().copied().collect());
            state.interfaces.insert(name.clone(), Interface { network, addresses, access: it.access.into() });
        }
        for it in &self.ports {
            let first = HostPort { address: it.address, protocol: it.protocol, port: it.port };
            state.forward(first, it.count, it.to, owner).map_err(|error| error.to_string())?;
        }
        for (name, it) in &self.guards {
            let mac = it.mac.parse().map_err(|_| format!("'{}' is not a hardware address", it.mac.escape_debug()))?;
            state
                .anti_spoofing
                .insert(name.clone(), AntiSpoofing { mac, addresses: it.addresses.iter().copied().collect() });
        }
        Ok(state)
    }
}

/// The ports; ports that are consecutive on both sides are joined.
fn port_ranges(state: &State) -> Vec<RecordedPorts> {
    let mut all: Vec<RecordedPorts> = Vec::new();
    for (port, Forward { to, .. }) in &state.ports {
        if let Some(last) = all.last_mut()
            && last.count < nft::RANGE_LIMIT
            && (last.address, last.protocol) == (port.address, port.protocol)
            && last.to.ip() == to.ip()
            && last.port.checked_add(last.count) == Some(port.port)
            && last.to.port().checked_add(last.count) == Some(to.port())
        {
            last.count += 1;
            continue;
        }
        let protocol = port.protocol;
        all.push(RecordedPorts { address: port.address, protocol, port: port.port, to: *to, count: 1 });
    }
    all
}

impl From<Access> for RecordedAccess {
    fn from(access: Access) -> Self {
        match access {
            Access::Open => Self::Open,
            Access::Isolated => Self::Isolated,
            Access::Restricted => Self::Restricted,
        }
    }
}

impl From<RecordedAccess> for Access {
    fn from(access: RecordedAccess) -> Self {
        match access {
            RecordedAccess::Open => Self::Open,
            RecordedAccess::Isolated => Self::Isolated,
            RecordedAccess::Restricted => Self::Restricted,
        }
    }
}

/// The entries that a pod does not share with others, which are removed with it. Networks and shared interfaces stay
/// until no pod uses them.
pub(super) fn unshared(state: &State) -> State {
    State {
        networks: BTreeMap::new(),
        interfaces: state.interfaces.iter().filter(|(_, it)| !it.addresses.is_empty()).map(cloned).collect(),
        ports: state.ports.clone(),
        anti_spoofing: state.anti_spoofing.clone(),
        confined: nft::Confined::default(),
    }
}

fn cloned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

/// Adds entries. If two conflict (a port with two destinations, a prefix of two networks), the first one stays. Returns
/// whether there was no conflict.
pub(super) fn merge(into: &mut State, more: State) -> bool {
    let mut whole = true;
    for (name, network) in more.networks {
        let others = into.networks.iter().filter(|(other, _)| **other != name).flat_map(|(_, it)| &it.prefixes);
        let others: Vec<_> = others.copied().collect();
        let (mine, taken): (Vec<_>, Vec<_>) =
            network.prefixes.into_iter().partition(|prefix| !others.iter().any(|other| other.overlaps(prefix)));
        whole &= taken.is_empty();
        if !mine.is_empty() {
            let there = into.networks.entry(name).or_default();
            there.prefixes.extend(mine);
            there.masquerade |= network.masquerade;
        }
    }
    whole &= merge_map(&mut into.interfaces, more.interfaces);
    whole &= merge_map(&mut into.ports, more.ports);
    whole &= merge_map(&mut into.anti_spoofing, more.anti_spoofing);
    into.confined.v4 |= more.confined.v4;
    into.confined.v6 |= more.confined.v6;
    whole
}

fn merge_map<K: Ord, V: PartialEq>(into: &mut BTreeMap<K, V>, more: BTreeMap<K, V>) -> bool {
    let mut whole = true;
    for (key, value) in more {
        match into.entry(key) {
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(value);
            }
            std::collections::btree_map::Entry::Occupied(there) => whole &= *there.get() == value,
        }
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Mac;

    fn host_port(port: u16) -> HostPort {
        HostPort { address: [0, 0, 0, 0].into(), protocol: nft::Protocol::Udp, port }
    }

    fn state() -> State {
        let mut state = State::new();
        let prefixes = ["10.1.0.0/16".parse().unwrap(), "fd00::/64".parse().unwrap()].into();
        state.networks.insert("net".into(), nft::Network { prefixes, masquerade: true });
        for (name, addresses, access) in
            [("br0", vec![], Access::Restricted), ("gt0", vec![[10, 1, 0, 2].into()], Access::Open)]
        {
            let addresses = addresses.into_iter().collect();
            state.interfaces.insert(name.into(), Interface { network: "net".into(), addresses, access });
        }
        let to = "10.1.0.2:70".parse().unwrap();
        state.forward(host_port(8000), 1000, to, "pod-1").unwrap();
        state.forward(HostPort { protocol: nft::Protocol::Tcp, ..host_port(9) }, 1, to, "pod-1").unwrap();
        let v6 = HostPort { address: "::".parse().unwrap(), ..host_port(9000) };
        state.forward(v6, 1, "[fd00::2]:80".parse().unwrap(), "pod-1").unwrap();
        let addresses = [[10, 1, 0, 2].into()].into();
        state.anti_spoofing.insert("gt0".into(), AntiSpoofing { mac: Mac([1, 2, 3, 4, 5, 6]), addresses });
        state
    }

    #[test]
    fn entries_round_trip() {
        let written = RecordedEntries::from_state(&state());
        assert_eq!(written.ports.len(), 3, "a range is one line");
        let text = serde_json::to_string(&written).unwrap();
        let read: RecordedEntries = serde_json::from_str(&text).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.to_state("pod-1").unwrap(), state());
        assert!(serde_json::from_str::<RecordedEntries>("{}").unwrap().to_state("x").unwrap().is_empty());
    }

    #[test]
    fn invalid_entries_are_rejected() {
        let bad = |text: &str| serde_json::from_str::<RecordedEntries>(text).unwrap().to_state("x").unwrap_err();
        let port = |port: u16, count: u16| {
            format!(
                r#"{{"ports":[{{"address":"0.0.0.0","protocol":"tcp","port":{port},"to":"10.0.0.1:80","count":{count}}}]}}"#
            )
        };
        assert!(bad(&port(65000, 1000)).contains("lead past 65535"));
        assert!(bad(&port(1, 0)).contains("has 1 to"));
        assert!(bad(r#"{"guards":{"a":{"mac":"x","addresses":[]}}}"#).contains("not a hardware address"));
    }

    #[test]
    fn the_first_of_two_conflicting_entries_stays() {
        let mut all = state();
        assert!(merge(&mut all, state()), "the same again");
        assert_eq!(all, state());
        let mut other = State::new();
        other.forward(host_port(8000), 1, "10.1.0.3:70".parse().unwrap(), "pod-2").unwrap();
        let prefixes = ["10.1.2.0/24".parse().unwrap(), "10.9.0.0/16".parse().unwrap()].into();
        other.networks.insert("second".into(), nft::Network { prefixes, masquerade: false });
        assert!(!merge(&mut all, other));
        assert_eq!(all.ports, state().ports);
        assert_eq!(all.networks["second"].prefixes, ["10.9.0.0/16".parse().unwrap()].into());
        let unshared = unshared(&all);
        assert_eq!((unshared.networks.len(), unshared.interfaces.len(), unshared.anti_spoofing.len()), (0, 1, 1));
        assert_eq!(unshared.ports.len(), 1002);
    }
}
