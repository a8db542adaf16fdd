//! The contents of the tables as plain data: networks, interfaces, host ports, anti-spoofing entries.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use gantry_model::net::Protocol;

use super::error::{Error, Result};
use crate::address::Prefix;
use crate::mac::Mac;
use crate::namespace::is_interface_name;

/// The most ports of one range ([`State::forward`]).
pub const RANGE_LIMIT: u16 = 1024;
/// The most host ports of a table.
pub const PORTS_LIMIT: usize = 131_072;
/// The most prefixes of a network, and the most addresses of an interface.
pub const PREFIXES_LIMIT: usize = 16;
/// The most networks, interfaces, and anti-spoofing entries of a table.
pub const NETWORKS_LIMIT: usize = 8192;
const TEXT_LIMIT: usize = 100;

/// A part of a state to add or remove: the ports of a pod, and its interface unless other pods share it.
pub type Entries = State;

/// The contents of the tables, or a part of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct State {
    /// gantry's networks, by name.
    pub networks: BTreeMap<String, Network>,
    /// The host's interfaces towards pods (a bridge, or the host end of a pod's veth pair), by name.
    pub interfaces: BTreeMap<String, Interface>,
    /// Published ports.
    pub ports: BTreeMap<HostPort, Forward>,
    /// Anti-spoofing entries, by the bridge port of a pod (the host end of its veth pair).
    pub anti_spoofing: BTreeMap<String, AntiSpoofing>,
    /// The IP versions that the host forwards only from and to gantry's interfaces ([`INTERFACE_GROUP`]).
    pub confined: Confined,
}

/// The interface group (`ip link set group`) of all gantry instances on a host, so that [`Confined`] of one instance
/// spares the pods of another.
pub const INTERFACE_GROUP: u32 = 0x6761_6e74;

/// IP versions that are forwarded for pods only.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Confined {
    /// IPv4.
    pub v4: bool,
    /// IPv6.
    pub v6: bool,
}

/// The addresses a pod may send from. The bridge drops all other frames of the pod: spoofed addresses (of the gateway
/// above all), router advertisements, DHCP server replies, protocols other than ARP and IP. Needs kernel support
/// ([`super::Table::supports_bridge_tables`]).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct AntiSpoofing {
    /// The pod's hardware address.
    pub mac: Mac,
    /// The pod's addresses. IPv6 link-local addresses are always allowed.
    pub addresses: BTreeSet<IpAddr>,
}

/// A network whose pods the host routes for.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// Its subnets: at least one. No two networks overlap.
    pub prefixes: BTreeSet<Prefix>,
    /// Whether connections from its pods to outside the network are masqueraded with the host's address.
    pub masquerade: bool,
}

/// An interface of the host towards pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    /// The network's name.
    pub network: String,
    /// For an interface of a single pod (of a ptp network): the pod's addresses, the only ones it may send from.
    /// Empty for a shared interface (a bridge), through which its pods reach each other.
    pub addresses: BTreeSet<IpAddr>,
    /// Access to other networks.
    pub access: Access,
}

/// The access of the pods behind an interface, besides their own network, the host, and published ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// Everything except isolated networks of gantry.
    Open,
    /// Everything except gantry's networks.
    #[default]
    Isolated,
    /// Nothing; and they are reachable through published ports only.
    Restricted,
}

/// A port of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostPort {
    /// The host's address; `0.0.0.0` or `::` for all addresses of the family except `::1`, which is not supported. A
    /// port on one address takes precedence over one on all addresses.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port number, not 0.
    pub port: u16,
}

/// The destination of a host port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Forward {
    /// The pod's address and port, of the same family as the host's address.
    pub to: SocketAddr,
    /// The owner (a pod's UUID), for messages, and to remove only one's own ports: up to 100 letters, digits and
    /// `._:/@-`.
    pub owner: String,
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.address.is_unspecified() {
            write!(f, "{}/{}", self.port, self.protocol)
        } else {
            write!(f, "{}/{}", SocketAddr::new(self.address, self.port), self.protocol)
        }
    }
}

impl State {
    /// An empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether no table is needed: `confined` has no effect without pods.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.networks.is_empty() && self.interfaces.is_empty() && self.ports.is_empty() && self.anti_spoofing.is_empty()
    }

    /// Forwards `count` host ports from `first` on to as many ports of a pod from `to` on.
    ///
    /// # Errors
    /// [`Error::invalid`] if the range exceeds 65535 or [`RANGE_LIMIT`]; [`Error::Taken`] if a port is forwarded
    /// elsewhere.
    pub fn forward(&mut self, first: HostPort, count: u16, to: SocketAddr, owner: &str) -> Result<()> {
        if count == 0 || count > RANGE_LIMIT {
            return Err(invalid(format!("a range of host ports has 1 to {RANGE_LIMIT} of them, not {count}")));
        }
        if first.port.checked_add(count - 1).is_none() || to.port().checked_add(count - 1).is_none() {
            return Err(invalid(format!("{count} ports from {first} to {to} lead past 65535")));
        }
        for offset in 0..count {
            let port = HostPort { port: first.port + offset, ..first };
            let forward = Forward { to: SocketAddr::new(to.ip(), to.port() + offset), owner: owner.to_owned() };
            if let Some(other) = self.ports.insert(port, forward.clone())
                && other != forward
            {
                let taken = Error::Taken { port, to: other.to, owner: other.owner.clone() };
                self.ports.insert(port, other);
                return Err(taken);
            }
        }
        Ok(())
    }

    /// Drops the entries that [`super::Table::add`] rejects: no table can contain them, so they need not be removed
    /// from one. Records of an earlier version may have such entries.
    #[must_use]
    pub fn retain_valid(mut self) -> Self {
        self.networks.retain(|name, network| check_network(name, network).is_ok());
        self.interfaces.retain(|name, interface| check_interface_entry(name, interface).is_ok());
        self.ports.retain(|port, forward| check_port(port, forward).is_ok());
        self.anti_spoofing.retain(|name, guard| check_anti_spoofing(name, guard).is_ok());
        self
    }

    /// Checks that the kernel can represent the state and [`super::Table::read`] returns it unchanged.
    pub(super) fn check(&self) -> Result<()> {
        if self.ports.len() > PORTS_LIMIT {
            return Err(invalid(format!("{} host ports are more than {PORTS_LIMIT}", self.ports.len())));
        }
        if self.networks.len().max(self.interfaces.len()).max(self.anti_spoofing.len()) > NETWORKS_LIMIT {
            return Err(invalid(format!("more than {NETWORKS_LIMIT} networks, interfaces or anti-spoofing entries")));
        }
        self.networks.iter().try_for_each(|(name, network)| check_network(name, network))?;
        self.check_overlaps()?;
        self.interfaces.iter().try_for_each(|(name, interface)| check_interface_entry(name, interface))?;
        self.anti_spoofing.iter().try_for_each(|(name, guard)| check_anti_spoofing(name, guard))?;
        self.ports.iter().try_for_each(|(port, forward)| check_port(port, forward))
    }

    /// The first prefix that overlaps with one of these networks, unless it is the same prefix of the same network.
    ///
    /// # Errors
    /// [`Error::Overlap`].
    pub fn check_overlaps_with(&self, others: &BTreeMap<String, Network>) -> Result<()> {
        for (name, prefix) in prefixes_of(&self.networks) {
            let overlaps = |(other_name, other): &(&String, &Prefix)| {
                prefix.overlaps(other) && (name != *other_name || prefix != *other)
            };
            if let Some((other_name, other)) = prefixes_of(others).find(overlaps) {
                let (network, other_network) = (name.clone(), other_name.clone());
                return Err(Error::Overlap { prefix: *prefix, network, other: *other, other_network });
            }
        }
        Ok(())
    }

    /// Overlapping prefixes are adjacent when sorted by their first address.
    fn check_overlaps(&self) -> Result<()> {
        let mut all: Vec<(Prefix, &str)> =
            prefixes_of(&self.networks).map(|(name, prefix)| (*prefix, name.as_str())).collect();
        all.sort_unstable();
        for pair in all.windows(2) {
            if let [(one, of_one), (other, of_other)] = pair
                && one.overlaps(other)
            {
                return Err(invalid(format!("{one} of network {of_one} overlaps with {other} of network {of_other}")));
            }
        }
        Ok(())
    }
}

/// The prefixes of these networks with their networks' names.
fn prefixes_of(networks: &BTreeMap<String, Network>) -> impl Iterator<Item = (&String, &Prefix)> {
    networks.iter().flat_map(|(name, network)| network.prefixes.iter().map(move |prefix| (name, prefix)))
}

fn invalid(why: String) -> Error {
    Error::invalid(why)
}

/// Checks a string that is stored in an nftables comment.
pub(super) fn check_text(what: &str, text: &str) -> Result<()> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:/@-".contains(&byte);
    if text.is_empty() || text.len() > TEXT_LIMIT || !text.bytes().all(fits) {
        return Err(invalid(format!("'{}' is not {what}", text.escape_debug())));
    }
    Ok(())
}

fn check_network(name: &str, network: &Network) -> Result<()> {
    check_text("the name of a network", name)?;
    check_prefixes(&format!("network {name}"), &network.prefixes)?;
    if network.prefixes.is_empty() {
        return Err(invalid(format!("network {name} has no prefix")));
    }
    Ok(())
}

fn check_interface_entry(name: &str, interface: &Interface) -> Result<()> {
    check_interface(name)?;
    check_text("the name of a network", &interface.network)?;
    check_addresses(name, &interface.addresses)
}

fn check_anti_spoofing(name: &str, guard: &AntiSpoofing) -> Result<()> {
    check_interface(name)?;
    check_addresses(name, &guard.addresses)?;
    check_mac(name, guard.mac)
}

fn check_interface(name: &str) -> Result<()> {
    // `nft` parses `*` as a wildcard, and the others as quoting.
    if !is_interface_name(name) || name.contains(['"', '*', '\\']) {
        return Err(invalid(format!("'{}' is not the name of an interface", name.escape_debug())));
    }
    Ok(())
}

fn check_prefixes(whose: &str, prefixes: &BTreeSet<Prefix>) -> Result<()> {
    if prefixes.len() > PREFIXES_LIMIT {
        return Err(invalid(format!("{whose} has more than {PREFIXES_LIMIT} prefixes")));
    }
    if let Some(prefix) = prefixes.iter().find(|prefix| prefix.length() == 0) {
        return Err(invalid(format!("{prefix} of {whose} covers all addresses")));
    }
    Ok(())
}

fn check_addresses(interface: &str, addresses: &BTreeSet<IpAddr>) -> Result<()> {
    if addresses.len() > PREFIXES_LIMIT {
        return Err(invalid(format!("interface {interface} has more than {PREFIXES_LIMIT} addresses")));
    }
    match addresses.iter().find(|address| address.is_unspecified() || address.is_multicast() || address.is_loopback()) {
        Some(address) => Err(invalid(format!("{address} is not the address of a pod (interface {interface})"))),
        None => Ok(()),
    }
}

/// Rejects group addresses (IEEE 802: lowest bit of the first byte) and zero.
fn check_mac(interface: &str, mac: Mac) -> Result<()> {
    let [first, ..] = mac.0;
    if first & 1 != 0 || mac == Mac([0; 6]) {
        return Err(invalid(format!("{mac} is not the hardware address of a pod (interface {interface})")));
    }
    Ok(())
}

fn check_port(port: &HostPort, forward: &Forward) -> Result<()> {
    let to = forward.to;
    check_text("the owner of a host port", &forward.owner)?;
    if port.port == 0 || to.port() == 0 {
        return Err(invalid(format!("0 is not a port (host port {port} to {to})")));
    }
    if port.address.is_ipv4() != to.is_ipv4() {
        return Err(invalid(format!("host port {port} cannot lead to {to}: one is IPv4 and one is IPv6")));
    }
    if let SocketAddr::V6(to) = to
        && (to.flowinfo() != 0 || to.scope_id() != 0)
    {
        return Err(invalid(format!("host port {port} cannot lead to {to}: it has a scope")));
    }
    if port.address == IpAddr::V6(Ipv6Addr::LOCALHOST) {
        return Err(invalid(format!("host port {port} cannot be: the kernel does not route replies to ::1")));
    }
    if to.ip().is_unspecified() || to.ip().is_multicast() || to.ip().is_loopback() || port.address.is_multicast() {
        return Err(invalid(format!("host port {port} cannot lead to {to}")));
    }
    Ok(())
}
