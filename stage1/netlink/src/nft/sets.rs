//! The sets and maps of the tables, their elements, and the conversion between a [`State`] and elements.
//!
//! Everything that belongs to one pod is an element of a hash table, so its cost does not depend on the number of
//! pods. A range of ports is one element per port, since each maps to another port of the pod. Sets of concatenated
//! intervals hold only networks: removing an element from one with 500 elements took 30 ms.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Protocol;
use super::family::Family;
use super::rules::{NFPROTO_IPV4, NFPROTO_IPV6};
use super::state::{Access, AntiSpoofing, Confined, Forward, HostPort, Interface, Network, State};
use crate::address::Prefix;
use crate::mac::Mac;

/// A set or map. Those of the bridge table come last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Set {
    /// All interfaces towards pods.
    Interfaces,
    /// Interfaces of isolated networks.
    Isolated,
    /// Interfaces of restricted networks.
    Restricted,
    /// Interface . interface, the same twice: shared by pods that may reach each other.
    Shared,
    /// Interface . source address, for interfaces of a single pod.
    Sources4,
    Sources6,
    /// Source . destination within one network.
    Within4,
    Within6,
    /// Source networks to masquerade.
    Masquerade4,
    Masquerade6,
    /// Protocol . port : pod address . port.
    Ports4,
    Ports6,
    /// Host address . protocol . port : pod address . port.
    HostPorts4,
    HostPorts6,
    /// IP versions forwarded for pods only.
    Confined,
    /// Bridge port . hardware address of its pod.
    PodMacs,
    /// Bridge ports of pods.
    PodPorts,
    /// Bridge port . address of its pod.
    PodAddresses4,
    PodAddresses6,
}

/// A field of a key or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Field {
    Interface,
    /// The number of an IP version (`NFPROTO_*`).
    Version,
    V4,
    V6,
    Mac,
    Protocol,
    Port,
}

impl Field {
    /// The type number of `nft` (datatype.h of nftables), which the kernel stores without interpreting it.
    fn datatype(self) -> u32 {
        match self {
            Self::Version => 2,
            Self::V4 => 7,
            Self::V6 => 8,
            Self::Mac => 9,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Interface => 41,
        }
    }

    /// The length in bytes, without the padding to a multiple of four of concatenated fields.
    pub(super) fn length(self) -> usize {
        match self {
            Self::Protocol | Self::Version => 1,
            Self::Port => 2,
            Self::V4 => 4,
            Self::Mac => 6,
            Self::V6 | Self::Interface => 16,
        }
    }
}

impl Set {
    pub(super) const ALL: [Self; 19] = [
        Self::Interfaces,
        Self::Isolated,
        Self::Restricted,
        Self::Shared,
        Self::Sources4,
        Self::Sources6,
        Self::Within4,
        Self::Within6,
        Self::Masquerade4,
        Self::Masquerade6,
        Self::Ports4,
        Self::Ports6,
        Self::HostPorts4,
        Self::HostPorts6,
        Self::Confined,
        Self::PodMacs,
        Self::PodPorts,
        Self::PodAddresses4,
        Self::PodAddresses6,
    ];

    /// The sets of a table.
    pub(super) fn in_family(family: Family) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |set| set.family() == family)
    }

    /// The table of the set.
    pub(super) fn family(self) -> Family {
        match self {
            Self::PodMacs | Self::PodPorts | Self::PodAddresses4 | Self::PodAddresses6 => Family::Bridge,
            _ => Family::Inet,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Interfaces => "interfaces",
            Self::Isolated => "isolated",
            Self::Restricted => "restricted",
            Self::Shared => "shared",
            Self::Sources4 => "sources4",
            Self::Sources6 => "sources6",
            Self::Within4 => "within4",
            Self::Within6 => "within6",
            Self::Masquerade4 => "masquerade4",
            Self::Masquerade6 => "masquerade6",
            Self::Ports4 => "ports4",
            Self::Ports6 => "ports6",
            Self::HostPorts4 => "hostports4",
            Self::HostPorts6 => "hostports6",
            Self::Confined => "confined",
            Self::PodMacs => "pod_macs",
            Self::PodPorts => "pod_ports",
            Self::PodAddresses4 => "pod_addresses4",
            Self::PodAddresses6 => "pod_addresses6",
        }
    }

    pub(super) fn key(self) -> &'static [Field] {
        match self {
            Self::Interfaces | Self::Isolated | Self::Restricted | Self::PodPorts => &[Field::Interface],
            Self::Confined => &[Field::Version],
            Self::Shared => &[Field::Interface, Field::Interface],
            Self::Sources4 | Self::PodAddresses4 => &[Field::Interface, Field::V4],
            Self::Sources6 | Self::PodAddresses6 => &[Field::Interface, Field::V6],
            Self::PodMacs => &[Field::Interface, Field::Mac],
            Self::Within4 => &[Field::V4, Field::V4],
            Self::Within6 => &[Field::V6, Field::V6],
            Self::Masquerade4 => &[Field::V4],
            Self::Masquerade6 => &[Field::V6],
            Self::Ports4 | Self::Ports6 => &[Field::Protocol, Field::Port],
            Self::HostPorts4 => &[Field::V4, Field::Protocol, Field::Port],
            Self::HostPorts6 => &[Field::V6, Field::Protocol, Field::Port],
        }
    }

    /// The fields of the value of a map; empty for a set.
    pub(super) fn data(self) -> &'static [Field] {
        match self {
            Self::Ports4 | Self::HostPorts4 => &[Field::V4, Field::Port],
            Self::Ports6 | Self::HostPorts6 => &[Field::V6, Field::Port],
            _ => &[],
        }
    }

    pub(super) fn is_map(self) -> bool {
        !self.data().is_empty()
    }

    /// Whether the keys are ranges.
    pub(super) fn is_interval(self) -> bool {
        matches!(self, Self::Within4 | Self::Within6 | Self::Masquerade4 | Self::Masquerade6)
    }

    /// Whether the keys are concatenated ranges: the kernel then takes both ends in one element.
    pub(super) fn is_ranges(self) -> bool {
        self.is_interval() && self.key().len() > 1
    }
}

/// The length of these fields in bytes; concatenated fields are padded.
pub(super) fn length(fields: &[Field]) -> usize {
    if let [field] = fields {
        return field.length();
    }
    fields.iter().map(|field| field.length().next_multiple_of(4)).sum()
}

/// The type number of `nft` for the concatenation of these fields.
pub(super) fn datatype(fields: &[Field]) -> u32 {
    fields.iter().fold(0, |number, field| number << 6 | field.datatype())
}

/// An element. For a range, `key` and `end` are its first and last key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Element {
    pub(super) set: Set,
    pub(super) key: Vec<u8>,
    pub(super) end: Option<Vec<u8>>,
    pub(super) data: Option<Vec<u8>>,
    pub(super) comment: String,
}

impl Element {
    /// Whether it is a host port.
    pub(super) fn is_port(&self) -> bool {
        self.set.is_map()
    }

    fn plain(set: Set, key: Vec<u8>, comment: &str) -> Self {
        Self { set, key, end: None, data: None, comment: comment.to_owned() }
    }

    fn range(set: Set, key: Vec<u8>, end: Vec<u8>, comment: &str) -> Self {
        Self { set, key, end: Some(end), data: None, comment: comment.to_owned() }
    }
}

fn append_field(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend_from_slice(field);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn append_address(bytes: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => append_field(bytes, &address.octets()),
        IpAddr::V6(address) => append_field(bytes, &address.octets()),
    }
}

fn interface_bytes(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize(Field::Interface.length(), 0);
    bytes
}

fn address_bytes(address: IpAddr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    append_address(&mut bytes, address);
    bytes
}

/// The set for an IP version.
fn by_version(ipv4: bool, four: Set, six: Set) -> Set {
    if ipv4 { four } else { six }
}

/// The elements of a state.
pub(super) fn elements(state: &State) -> BTreeSet<Element> {
    let mut all = BTreeSet::new();
    for (name, network) in &state.networks {
        network_elements(name, network, &mut all);
    }
    for (name, interface) in &state.interfaces {
        interface_elements(name, interface, &mut all);
    }
    all.extend(state.ports.iter().map(|(port, forward)| port_element(port, forward)));
    for (name, guard) in &state.anti_spoofing {
        anti_spoofing_elements(name, guard, &mut all);
    }
    let Confined { v4, v6 } = state.confined;
    for (number, _) in [(NFPROTO_IPV4, v4), (NFPROTO_IPV6, v6)].into_iter().filter(|(_, confined)| *confined) {
        all.insert(Element::plain(Set::Confined, vec![number], ""));
    }
    all
}

fn network_elements(name: &str, network: &Network, all: &mut BTreeSet<Element>) {
    for one in &network.prefixes {
        for other in network.prefixes.iter().filter(|other| other.is_ipv4() == one.is_ipv4()) {
            all.insert(pair_element(name, *one, *other));
        }
        if network.masquerade {
            let set = by_version(one.is_ipv4(), Set::Masquerade4, Set::Masquerade6);
            all.insert(Element::range(set, address_bytes(one.first()), address_bytes(one.last()), name));
        }
    }
}

/// The element that says that a network contains a prefix.
pub(super) fn prefix_element(network: &str, prefix: Prefix) -> Element {
    pair_element(network, prefix, prefix)
}

/// The element that says that a network contains both prefixes, which are of one IP version.
fn pair_element(network: &str, one: Prefix, other: Prefix) -> Element {
    let set = by_version(one.is_ipv4(), Set::Within4, Set::Within6);
    let key = [address_bytes(one.first()), address_bytes(other.first())].concat();
    let end = [address_bytes(one.last()), address_bytes(other.last())].concat();
    Element::range(set, key, end, network)
}

fn interface_elements(name: &str, interface: &Interface, all: &mut BTreeSet<Element>) {
    let key = interface_bytes(name);
    let network = &interface.network;
    all.insert(Element::plain(Set::Interfaces, key.clone(), network));
    match interface.access {
        Access::Open => {}
        Access::Isolated => {
            all.insert(Element::plain(Set::Isolated, key.clone(), network));
        }
        Access::Restricted => {
            all.insert(Element::plain(Set::Restricted, key.clone(), network));
        }
    }
    if interface.addresses.is_empty() {
        all.insert(Element::plain(Set::Shared, key.repeat(2), network));
    }
    for address in &interface.addresses {
        let set = by_version(address.is_ipv4(), Set::Sources4, Set::Sources6);
        all.insert(Element::plain(set, [key.clone(), address_bytes(*address)].concat(), network));
    }
}

fn anti_spoofing_elements(name: &str, guard: &AntiSpoofing, all: &mut BTreeSet<Element>) {
    let key = interface_bytes(name);
    let mut mac = key.clone();
    append_field(&mut mac, &guard.mac.0);
    all.insert(Element::plain(Set::PodMacs, mac, ""));
    for address in &guard.addresses {
        let set = by_version(address.is_ipv4(), Set::PodAddresses4, Set::PodAddresses6);
        all.insert(Element::plain(set, [key.clone(), address_bytes(*address)].concat(), ""));
    }
    all.insert(Element::plain(Set::PodPorts, key, ""));
}

pub(super) fn port_element(port: &HostPort, forward: &Forward) -> Element {
    let ipv4 = port.address.is_ipv4();
    let mut key = Vec::with_capacity(24);
    let set = if port.address.is_unspecified() {
        by_version(ipv4, Set::Ports4, Set::Ports6)
    } else {
        append_address(&mut key, port.address);
        by_version(ipv4, Set::HostPorts4, Set::HostPorts6)
    };
    append_field(&mut key, &[port.protocol.number()]);
    append_field(&mut key, &port.port.to_be_bytes());
    let mut data = address_bytes(forward.to.ip());
    append_field(&mut data, &forward.to.port().to_be_bytes());
    Element { set, key, end: None, data: Some(data), comment: forward.owner.clone() }
}

/// Reads the fields of a key or value.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let field = self.0.get(..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..)?;
        Some(field)
    }

    fn address(&mut self, ipv4: bool) -> Option<IpAddr> {
        if ipv4 {
            Some(Ipv4Addr::from(<[u8; 4]>::try_from(self.take(4)?).ok()?).into())
        } else {
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(self.take(16)?).ok()?).into())
        }
    }

    fn port(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.take(2)?.try_into().ok()?))
    }

    fn mac(&mut self) -> Option<Mac> {
        Some(Mac(self.take(6)?.try_into().ok()?))
    }

    fn interface(&mut self) -> Option<String> {
        let field = self.take(16)?;
        let end = field.iter().position(|byte| *byte == 0)?;
        String::from_utf8(field.get(..end)?.to_vec()).ok()
    }
}

/// The host port and destination in an element; None for elements of other sets.
pub(super) fn host_port_from_element(element: &Element) -> Option<(HostPort, Forward)> {
    let ipv4 = matches!(element.set, Set::Ports4 | Set::HostPorts4);
    let mut key = Reader(&element.key);
    let address = match element.set {
        Set::Ports4 => Ipv4Addr::UNSPECIFIED.into(),
        Set::Ports6 => Ipv6Addr::UNSPECIFIED.into(),
        Set::HostPorts4 | Set::HostPorts6 => key.address(ipv4)?,
        _ => return None,
    };
    let protocol = Protocol::of_number(*key.take(1)?.first()?)?;
    let port = HostPort { address, protocol, port: key.port()? };
    let mut data = Reader(element.data.as_deref()?);
    let to = SocketAddr::new(data.address(ipv4)?, data.port()?);
    Some((port, Forward { to, owner: element.comment.clone() }))
}

/// The state that elements describe. Skips elements that do not fit; the caller finds those by comparing with
/// [`elements`] of the result.
pub(super) fn state_from_elements(all: &BTreeSet<Element>) -> State {
    let mut state = State::new();
    // Elements are sorted by [`Set`]: interfaces before their access, networks before masquerading, a pod's hardware
    // address before its IP addresses.
    for element in all {
        let _shows_in_comparison = read_into(&mut state, element);
    }
    state
}

fn read_into(state: &mut State, element: &Element) -> Option<()> {
    let mut key = Reader(&element.key);
    match element.set {
        Set::Interfaces => {
            let interface =
                Interface { network: element.comment.clone(), addresses: BTreeSet::new(), access: Access::Open };
            state.interfaces.insert(key.interface()?, interface);
        }
        Set::Isolated => state.interfaces.get_mut(&key.interface()?)?.access = Access::Isolated,
        Set::Restricted => state.interfaces.get_mut(&key.interface()?)?.access = Access::Restricted,
        // Implied by the absence of addresses.
        Set::Shared => {}
        Set::Sources4 | Set::Sources6 => {
            let name = key.interface()?;
            let address = key.address(element.set == Set::Sources4)?;
            state.interfaces.get_mut(&name)?.addresses.insert(address);
        }
        Set::Within4 | Set::Within6 => {
            let ipv4 = element.set == Set::Within4;
            let prefix = Prefix::from_range(key.address(ipv4)?, Reader(element.end.as_deref()?).address(ipv4)?)?;
            let networks: &mut BTreeMap<String, Network> = &mut state.networks;
            networks.entry(element.comment.clone()).or_default().prefixes.insert(prefix);
        }
        Set::Masquerade4 | Set::Masquerade6 => state.networks.get_mut(&element.comment)?.masquerade = true,
        Set::Ports4 | Set::Ports6 | Set::HostPorts4 | Set::HostPorts6 => {
            let (port, forward) = host_port_from_element(element)?;
            state.ports.insert(port, forward);
        }
        Set::PodMacs => {
            let (port, mac) = (key.interface()?, key.mac()?);
            state.anti_spoofing.insert(port, AntiSpoofing { mac, addresses: BTreeSet::new() });
        }
        Set::Confined => match element.key.first() {
            Some(&NFPROTO_IPV4) => state.confined.v4 = true,
            Some(&NFPROTO_IPV6) => state.confined.v6 = true,
            _ => return None,
        },
        // Implied by the hardware address.
        Set::PodPorts => {}
        Set::PodAddresses4 | Set::PodAddresses6 => {
            let (port, address) = (key.interface()?, key.address(element.set == Set::PodAddresses4)?);
            state.anti_spoofing.get_mut(&port)?.addresses.insert(address);
        }
    }
    Some(())
}
