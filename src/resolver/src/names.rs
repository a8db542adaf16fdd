//! The names of pods and the gateways on which they are resolved, computed from the rows of running pods alone.
//!
//! | query | reply |
//! |---|---|
//! | `HOSTNAME`, `APP`, `UUID`, `gantry-UUID`, alone or below [`DOMAIN`] | the addresses of the pods of that name on the client's network |
//! | PTR for the address of a pod of that network | the pod's host name below [`DOMAIN`] |
//!
//! Names are case-insensitive (RFC 4343). A name is one label: a pod called `example.com` does not shadow the domain.
//! For a client, names of pods on other networks do not exist.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

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
    /// The first address of the pod of each address: limits count all addresses of a pod together.
    pod_keys: HashMap<IpAddr, IpAddr>,
}

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
    pub(crate) fn look_up(&self, name: &Name) -> NameLookup<'_> {
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
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.pointers.get(&address).map(String::as_str)
    }

    /// The address under which limits count the queries from `client`: the first of its pod.
    pub(crate) fn pod_key(&self, client: IpAddr) -> IpAddr {
        self.pod_keys.get(&client).copied().unwrap_or(client)
    }

    /// Whether an address is in one of the zone's subnets.
    pub(crate) fn covers(&self, address: IpAddr) -> bool {
        self.prefixes.iter().any(|&(of, length)| contains(of, length, address))
    }

    fn add(&mut self, pod: &Pod, network: &PodNetwork) {
        let labels = pod.labels();
        for address in &network.addresses {
            let prefix = (address.address, address.prefix);
            if !self.prefixes.iter().any(|&(of, length)| length == prefix.1 && contains(of, length, prefix.0)) {
                self.prefixes.push(prefix);
            }
            if let Some(first) = network.addresses.first() {
                self.pod_keys.entry(address.address).or_insert(first.address);
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

/// The zones of a gateway address. Several networks share an address if they are configured with the same gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Gateway {
    zones: Vec<Arc<Zone>>,
}

impl Gateway {
    /// The zone of a client; `None`, and so no reply, if the client is in none of the networks or its network is
    /// ambiguous.
    pub(crate) fn zone_for(&self, client: IpAddr) -> Option<&Zone> {
        let mut covering = self.zones.iter().filter(|zone| zone.covers(client));
        match (covering.next(), covering.next()) {
            (Some(only), None) => Some(only),
            _ => self.zones.iter().find(|zone| zone.pointers.contains_key(&client)).map(AsRef::as_ref),
        }
    }
}

/// Zones by gateway address.
pub(crate) type Gateways = BTreeMap<IpAddr, Gateway>;

/// Collects the gateways of the networks of these pods.
pub(crate) fn gateways(pods: &[Pod]) -> Gateways {
    let mut zones: BTreeMap<&str, Zone> = BTreeMap::new();
    let mut gateways: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for (pod, network) in pods.iter().flat_map(|pod| pod.networks.iter().map(move |network| (pod, network))) {
        zones.entry(&network.name).or_default().add(pod, network);
        for gateway in
            network.addresses.iter().filter_map(|address| address.gateway).filter(|it| is_usable_gateway(*it))
        {
            let names = gateways.entry(gateway).or_default();
            if !names.contains(&network.name.as_str()) {
                names.push(&network.name);
            }
        }
    }
    let zones: BTreeMap<&str, Arc<Zone>> = zones.into_iter().map(|(name, zone)| (name, Arc::new(zone))).collect();
    let place =
        |names: Vec<&str>| Gateway { zones: names.iter().filter_map(|name| zones.get(name).cloned()).collect() };
    gateways.into_iter().map(|(gateway, names)| (gateway, place(names))).collect()
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
