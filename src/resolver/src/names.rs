//! The names of pods and the gateways on which they are resolved, computed from the rows of running pods alone.
//!
//! | query | reply |
//! |---|---|
//! | `HOSTNAME`, `APP`, `UUID`, `gantry-UUID`, alone or below [`DOMAIN`] | the addresses of the pods of that name on one of the client's networks |
//! | PTR for the address of a pod of these networks | the pod's host name below [`DOMAIN`] |
//!
//! Names are case-insensitive (RFC 4343). A name is one label: a pod called `example.com` does not shadow the domain.
//! The client is the pod that has the source address of the query. A name is looked up on the network of the query
//! first, then on the pod's other networks in their order. For a client, names of pods on all other networks do not
//! exist.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;

use gantry_engine::PodRow;
use gantry_model::PodNetwork;
use hickory_proto::rr::Name;

/// The domain of pods. `.internal` is reserved for private use.
pub const DOMAIN: &str = "gantry.internal";
/// The labels of [`DOMAIN`].
const DOMAIN_LABELS: [&[u8]; 2] = [b"gantry", b"internal"];
/// Maximum length of a label (RFC 1035 section 2.3.4).
const MAX_LABEL: usize = 63;
/// Maximum number of addresses in a reply.
const MAX_ADDRESSES: usize = 256;

/// The names and networks of a running pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    /// The pod's UUID.
    pub(crate) id: String,
    /// The pod's host name.
    pub(crate) hostname: String,
    /// The names of its apps.
    pub(crate) apps: Vec<String>,
    /// The networks it is attached to.
    pub(crate) networks: Vec<PodNetwork>,
}

impl Pod {
    /// Reads the pod of a row; `None` if it has no networks of its own.
    ///
    /// # Errors
    /// The row's networks are damaged.
    pub(crate) fn from_row(row: &PodRow) -> io::Result<Option<Self>> {
        if row.networks.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            id: row.id.to_string(),
            hostname: row.hostname.clone(),
            apps: row.apps.iter().map(|app| app.name.to_string()).collect(),
            networks: row.networks.read().map_err(io::Error::other)?,
        }))
    }

    /// The labels of the pod, each once. PTR records name the first.
    fn labels(&self) -> Vec<String> {
        let mut labels: Vec<String> = Vec::new();
        let own = [self.hostname.clone(), format!("gantry-{}", self.id), self.id.clone()];
        for label in own.into_iter().chain(self.apps.iter().cloned()) {
            let label = label.to_ascii_lowercase();
            if is_label(&label) && !labels.contains(&label) {
                labels.push(label);
            }
        }
        labels
    }
}

/// Whether a text may be a label (RFC 1123 section 2.1; underscores are in use nevertheless). `localhost` always names
/// the client itself (RFC 6761 section 6.3).
fn is_label(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let ends = text.starts_with('-') || text.ends_with('-');
    (1..=MAX_LABEL).contains(&text.len()) && plain && !ends && text != "localhost"
}

/// The names of one network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Zone {
    /// The subnets: address and prefix length.
    prefixes: Vec<(IpAddr, u8)>,
    names: HashMap<String, Vec<IpAddr>>,
    pointers: HashMap<IpAddr, String>,
    /// The pod of each address.
    clients: HashMap<IpAddr, Client>,
}

/// A pod as the source of queries on a network.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Client {
    /// The pod's first address on the network: limits count all addresses of a pod together.
    key: IpAddr,
    /// The zones of the pod's other networks, in their order.
    others: Vec<ZoneIndex>,
}

/// An index into [`Gateways::zones`].
type ZoneIndex = usize;

/// The result of looking up a name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NameLookup<'a> {
    /// The addresses of one or several pods.
    Pod(&'a [IpAddr]),
    /// [`DOMAIN`] itself.
    Domain,
    /// A name below [`DOMAIN`] that no pod has.
    NoSuchPod,
    /// A name outside [`DOMAIN`].
    Foreign,
}

impl Zone {
    /// Looks up a name.
    fn look_up(&self, name: &Name) -> NameLookup<'_> {
        let labels: Vec<&[u8]> = name.iter().collect();
        let (label, below) = match *labels.as_slice() {
            [label] => (label, false),
            [ref before @ .., one, two]
                if DOMAIN_LABELS.iter().zip([one, two]).all(|(a, b)| a.eq_ignore_ascii_case(b)) =>
            {
                match *before {
                    [] => return NameLookup::Domain,
                    [label] => (label, true),
                    _ => return NameLookup::NoSuchPod,
                }
            }
            _ => return NameLookup::Foreign,
        };
        let known = std::str::from_utf8(label).ok().and_then(|label| self.names.get(&label.to_ascii_lowercase()));
        match known {
            Some(addresses) => NameLookup::Pod(addresses),
            None if below => NameLookup::NoSuchPod,
            None => NameLookup::Foreign,
        }
    }

    /// The first label of the pod with this address.
    fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.pointers.get(&address).map(String::as_str)
    }

    /// Whether an address is in one of the zone's subnets.
    fn covers(&self, address: IpAddr) -> bool {
        self.prefixes.iter().any(|&(of, length)| contains(of, length, address))
    }

    /// Adds a pod whose other networks have the zones `others`.
    fn add(&mut self, pod: &Pod, network: &PodNetwork, others: &[ZoneIndex]) {
        let labels = pod.labels();
        for address in &network.addresses {
            let prefix = (address.address, address.prefix);
            if !self.prefixes.iter().any(|&(of, length)| length == prefix.1 && contains(of, length, prefix.0)) {
                self.prefixes.push(prefix);
            }
            if let Some(first) = network.addresses.first() {
                let client = || Client { key: first.address, others: others.to_vec() };
                self.clients.entry(address.address).or_insert_with(client);
            }
            if let Some(first) = labels.first() {
                self.pointers.entry(address.address).or_insert_with(|| first.clone());
            }
            for label in &labels {
                let known = self.names.entry(label.clone()).or_default();
                if known.len() < MAX_ADDRESSES && !known.contains(&address.address) {
                    known.push(address.address);
                }
            }
        }
    }
}

/// Whether `address` is in the subnet of `of`.
fn contains(of: IpAddr, length: u8, address: IpAddr) -> bool {
    let same = |a: u128, b: u128, bits: u8| {
        let rest = u32::from(bits.saturating_sub(length));
        a.checked_shr(rest).unwrap_or(0) == b.checked_shr(rest).unwrap_or(0)
    };
    match (of, address) {
        (IpAddr::V4(a), IpAddr::V4(b)) => same(a.to_bits().into(), b.to_bits().into(), 32),
        (IpAddr::V6(a), IpAddr::V6(b)) => same(a.to_bits(), b.to_bits(), 128),
        _ => false,
    }
}

/// The zones of all networks, and those that each gateway address serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Gateways {
    zones: Vec<Zone>,
    /// Several networks share an address if they are configured with the same gateway.
    by_address: BTreeMap<IpAddr, Vec<ZoneIndex>>,
}

impl Gateways {
    /// The gateway addresses.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.by_address.keys().copied()
    }

    /// Whether this is a gateway address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.by_address.contains_key(&address)
    }

    /// The names for a client of the gateway address `at`; `None`, and so no reply, if the client is in none of the
    /// networks of that address or its network is ambiguous.
    pub(crate) fn names_for(&self, at: IpAddr, client: IpAddr) -> Option<ClientNames<'_>> {
        let zones = || self.by_address.get(&at).into_iter().flatten().filter_map(|&index| self.zones.get(index));
        let mut covering = zones().filter(|zone| zone.covers(client));
        let own = match (covering.next(), covering.next()) {
            (Some(only), None) => only,
            _ => zones().find(|zone| zone.pointers.contains_key(&client))?,
        };
        let (key, others) = own.clients.get(&client).map_or((client, &[][..]), |pod| (pod.key, &pod.others));
        Some(ClientNames { own, zones: &self.zones, others, key })
    }

    /// Moves all gateways to one address, which may be a loopback address.
    #[cfg(test)]
    pub(crate) fn moved_to(mut self, address: IpAddr) -> Self {
        let all = std::mem::take(&mut self.by_address).into_values().flatten().collect();
        self.by_address.insert(address, all);
        self
    }

    /// The same zones at another address too.
    #[cfg(test)]
    pub(crate) fn with_another(&self, address: IpAddr) -> Self {
        let mut gateways = self.clone();
        gateways.by_address.insert(address, self.by_address.values().flatten().copied().collect());
        gateways
    }
}

/// The names for one client: those of the network of its query, and those of its pod's other networks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientNames<'a> {
    own: &'a Zone,
    zones: &'a [Zone],
    others: &'a [ZoneIndex],
    key: IpAddr,
}

impl<'a> ClientNames<'a> {
    /// Looks up a name. The first network that has it decides, so that the addresses of a reply are of one network.
    pub(crate) fn look_up(&self, name: &Name) -> NameLookup<'a> {
        match self.own.look_up(name) {
            absent @ (NameLookup::NoSuchPod | NameLookup::Foreign) => {
                let mut others = self.others().map(|zone| zone.look_up(name));
                others.find(|found| matches!(found, NameLookup::Pod(_))).unwrap_or(absent)
            }
            found @ (NameLookup::Pod(_) | NameLookup::Domain) => found,
        }
    }

    /// The first label of the pod with this address.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&'a str> {
        self.own.name_of(address).or_else(|| self.others().find_map(|zone| zone.name_of(address)))
    }

    /// Whether an address is in a subnet of one of the networks.
    pub(crate) fn covers(&self, address: IpAddr) -> bool {
        self.own.covers(address) || self.others().any(|zone| zone.covers(address))
    }

    /// The address under which limits count the client's queries: the first of its pod on the network of the query.
    pub(crate) fn key(&self) -> IpAddr {
        self.key
    }

    fn others(&self) -> impl Iterator<Item = &'a Zone> + use<'a> {
        let zones = self.zones;
        self.others.iter().filter_map(move |&index| zones.get(index))
    }
}

/// Collects the gateways of the networks of these pods.
pub(crate) fn gateways(pods: &[Pod]) -> Gateways {
    let mut indices: HashMap<&str, ZoneIndex> = HashMap::new();
    let mut gateways = Gateways::default();
    for pod in pods {
        let own: Vec<ZoneIndex> = pod
            .networks
            .iter()
            .map(|network| {
                let next = indices.len();
                *indices.entry(&network.name).or_insert(next)
            })
            .collect();
        gateways.zones.resize_with(indices.len(), Zone::default);
        for (network, &index) in pod.networks.iter().zip(&own) {
            let others: Vec<ZoneIndex> = own.iter().copied().filter(|other| *other != index).collect();
            if let Some(zone) = gateways.zones.get_mut(index) {
                zone.add(pod, network, &others);
            }
            let addresses = network.addresses.iter().filter_map(|address| address.gateway);
            for gateway in addresses.filter(|it| is_usable_gateway(*it)) {
                let served = gateways.by_address.entry(gateway).or_default();
                if !served.contains(&index) {
                    served.push(index);
                }
            }
        }
    }
    gateways
}

/// Whether the resolver may listen on an address. A CNI plugin may report any address as the gateway: addresses that
/// the whole host uses are excluded, and link-local ones, which are ambiguous without their interface.
fn is_usable_gateway(address: IpAddr) -> bool {
    let special = address.is_loopback() || address.is_unspecified() || address.is_multicast();
    !special
        && match address {
            IpAddr::V4(address) => !address.is_link_local() && !address.is_broadcast(),
            IpAddr::V6(address) => !address.is_unicast_link_local() && address.to_ipv4_mapped().is_none(),
        }
}

#[cfg(test)]
#[path = "names_tests.rs"]
mod tests;
