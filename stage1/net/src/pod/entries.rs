//! A pod's part of the tables, as its record has it. Ports in a row are one line of it: a range of a thousand is no more to
//! read than one.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::address::Cidr;
use crate::nft::{self, Access, Forward, Guard, HostPort, Interface, State};

/// What a record has of [`State`]. Whose the ports are is the record's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Written {
    networks: BTreeMap<String, WrittenNetwork>,
    interfaces: BTreeMap<String, WrittenInterface>,
    ports: Vec<WrittenPorts>,
    guards: BTreeMap<String, WrittenGuard>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenNetwork {
    prefixes: Vec<Cidr>,
    masquerade: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenInterface {
    network: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<IpAddr>,
    access: WrittenAccess,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WrittenAccess {
    Open,
    Isolated,
    Restricted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenPorts {
    address: IpAddr,
    protocol: gantry_contract::plan::Protocol,
    port: u16,
    to: SocketAddr,
    count: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct WrittenGuard {
    mac: String,
    addresses: Vec<IpAddr>,
}

impl Written {
    pub(super) fn of(state: &State) -> Self {
        let network = |network: &nft::Network| WrittenNetwork {
            prefixes: network.prefixes.iter().filter_map(|it| Cidr::new(it.first(), it.length()).ok()).collect(),
            masquerade: network.masquerade,
        };
        let interface = |it: &Interface| WrittenInterface {
            network: it.network.clone(),
            addresses: it.addresses.iter().copied().collect(),
            access: it.access.into(),
        };
        let guard =
            |it: &Guard| WrittenGuard { mac: it.mac.to_string(), addresses: it.addresses.iter().copied().collect() };
        Self {
            networks: state.networks.iter().map(|(name, it)| (name.clone(), network(it))).collect(),
            interfaces: state.interfaces.iter().map(|(name, it)| (name.clone(), interface(it))).collect(),
            ports: ranges(state),
            guards: state.guards.iter().map(|(name, it)| (name.clone(), guard(it))).collect(),
        }
    }

    /// The state it says, whose ports are the pod's; or what is wrong with it.
    pub(super) fn state(&self, owner: &str) -> Result<State, String> {
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
            let first = HostPort { address: it.address, protocol: it.protocol.into(), port: it.port };
            state.forward(first, it.count, it.to, owner).map_err(|error| error.to_string())?;
        }
        for (name, it) in &self.guards {
            let mac = it.mac.parse().map_err(|_| format!("'{}' is no hardware address", it.mac.escape_debug()))?;
            state.guards.insert(name.clone(), Guard { mac, addresses: it.addresses.iter().copied().collect() });
        }
        Ok(state)
    }
}

/// The ports, those that follow each other on both sides as one.
fn ranges(state: &State) -> Vec<WrittenPorts> {
    let mut all: Vec<WrittenPorts> = Vec::new();
    for (port, Forward { to, .. }) in &state.ports {
        if let Some(last) = all.last_mut()
            && last.count < nft::RANGE_LIMIT
            && (last.address, last.protocol.into()) == (port.address, port.protocol)
            && last.to.ip() == to.ip()
            && last.port.checked_add(last.count) == Some(port.port)
            && last.to.port().checked_add(last.count) == Some(to.port())
        {
            last.count += 1;
            continue;
        }
        let protocol = port.protocol.into();
        all.push(WrittenPorts { address: port.address, protocol, port: port.port, to: *to, count: 1 });
    }
    all
}

impl From<Access> for WrittenAccess {
    fn from(access: Access) -> Self {
        match access {
            Access::Open => Self::Open,
            Access::Isolated => Self::Isolated,
            Access::Restricted => Self::Restricted,
        }
    }
}

impl From<WrittenAccess> for Access {
    fn from(access: WrittenAccess) -> Self {
        match access {
            WrittenAccess::Open => Self::Open,
            WrittenAccess::Isolated => Self::Isolated,
            WrittenAccess::Restricted => Self::Restricted,
        }
    }
}

/// Of a pod's entries those that no other pod shares: what goes with it. The networks, and the interfaces that pods share,
/// stay until nobody uses them any more.
pub(super) fn own(state: &State) -> State {
    State {
        networks: BTreeMap::new(),
        interfaces: state.interfaces.iter().filter(|(_, it)| !it.addresses.is_empty()).map(cloned).collect(),
        ports: state.ports.clone(),
        guards: state.guards.clone(),
        confined: nft::Confined::default(),
    }
}

fn cloned<K: Clone, V: Clone>((key, value): (&K, &V)) -> (K, V) {
    (key.clone(), value.clone())
}

/// Adds what another needs. Where both cannot be had (a port that leads elsewhere, a prefix of another network), the first
/// one stays; tells whether all could.
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
    whole &= merge_map(&mut into.guards, more.guards);
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
        state.guards.insert("gt0".into(), Guard { mac: Mac([1, 2, 3, 4, 5, 6]), addresses });
        state
    }

    #[test]
    fn what_is_written_is_read() {
        let written = Written::of(&state());
        assert_eq!(written.ports.len(), 3, "a range is one line");
        let text = serde_json::to_string(&written).unwrap();
        let read: Written = serde_json::from_str(&text).unwrap();
        assert_eq!(read, written);
        assert_eq!(read.state("pod-1").unwrap(), state());
        assert!(serde_json::from_str::<Written>("{}").unwrap().state("x").unwrap().is_empty());
    }

    #[test]
    fn what_is_no_state_is_said() {
        let bad = |text: &str| serde_json::from_str::<Written>(text).unwrap().state("x").unwrap_err();
        let port = |port: u16, count: u16| {
            format!(
                r#"{{"ports":[{{"address":"0.0.0.0","protocol":"tcp","port":{port},"to":"10.0.0.1:80","count":{count}}}]}}"#
            )
        };
        assert!(bad(&port(65000, 1000)).contains("lead past 65535"));
        assert!(bad(&port(1, 0)).contains("has 1 to"));
        assert!(bad(r#"{"guards":{"a":{"mac":"x","addresses":[]}}}"#).contains("no hardware address"));
    }

    #[test]
    fn the_first_comes_first() {
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
        let mine = own(&all);
        assert_eq!((mine.networks.len(), mine.interfaces.len(), mine.guards.len()), (0, 1, 1));
        assert_eq!(mine.ports.len(), 1002);
    }
}
