//! Which names there are, where they are told, and to whom: computed from the rows of running pods, nothing else.
//!
//! | asked | answered |
//! |---|---|
//! | `HOSTNAME`, `APP`, `UUID`, `gantry-UUID`, alone or below [`DOMAIN`] | the addresses of the pods of that name on the asker's network |
//! | the address of a pod of that network, backwards | the pod's host name below [`DOMAIN`] |
//!
//! Names are compared without regard to case (RFC 4343). A name is one label: a pod that is called `example.com` does not
//! take the place of the domain. Pods of other networks are not told of, not even that they are there.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use gantry_engine::PodRow;
use gantry_engine::model::PodNetwork;
use hickory_proto::rr::Name;

/// Pods are found below this domain too; `.internal` is reserved for uses like this one.
pub const DOMAIN: &str = "gantry.internal";
/// Its labels.
const DOMAIN_LABELS: [&[u8]; 2] = [b"gantry", b"internal"];
/// The longest label (RFC 1035 section 2.3.4).
const LONGEST_LABEL: usize = 63;
/// The most addresses of one name that are told of.
const MOST_ADDRESSES: usize = 256;

/// A running pod, as far as names are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pod {
    /// Its UUID.
    pub(crate) id: String,
    /// Its host name.
    pub(crate) hostname: String,
    /// The names of its apps.
    pub(crate) apps: Vec<String>,
    /// What it got of its networks.
    pub(crate) networks: Vec<PodNetwork>,
}

impl Pod {
    /// The pod of a row; none where it has no networks of its own.
    ///
    /// # Errors
    /// What the row says of networks is damaged.
    pub(crate) fn of(row: &PodRow) -> io::Result<Option<Self>> {
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

    /// The labels that stand for it, each once; the first is what its addresses are called.
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

/// Whether this is told of as a name (RFC 1123 section 2.1; an underscore is in use nevertheless). `localhost` is everybody's
/// own (RFC 6761 section 6.3).
fn is_label(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
    let ends = text.starts_with('-') || text.ends_with('-');
    (1..=LONGEST_LABEL).contains(&text.len()) && plain && !ends && text != "localhost"
}

/// The names of one network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Zone {
    /// The subnets, by their addresses and lengths.
    prefixes: Vec<(IpAddr, u8)>,
    names: HashMap<String, Vec<IpAddr>>,
    pointers: HashMap<IpAddr, String>,
    /// Of an address of a pod the pod's first: what one pod may ask for is counted for all of its addresses together.
    firsts: HashMap<IpAddr, IpAddr>,
}

/// What a name is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// A pod's, or several pods'.
    Pod(&'a [IpAddr]),
    /// The domain of all pods itself.
    Domain,
    /// Below that domain, and no pod's.
    Missing,
    /// Not ours.
    Foreign,
}

impl Zone {
    /// Looks a name up.
    pub(crate) fn find(&self, name: &Name) -> Found<'_> {
        let labels: Vec<&[u8]> = name.iter().collect();
        let (label, below) = match *labels.as_slice() {
            [label] => (label, false),
            [ref before @ .., one, two]
                if DOMAIN_LABELS.iter().zip([one, two]).all(|(a, b)| a.eq_ignore_ascii_case(b)) =>
            {
                match *before {
                    [] => return Found::Domain,
                    [label] => (label, true),
                    _ => return Found::Missing,
                }
            }
            _ => return Found::Foreign,
        };
        let known = std::str::from_utf8(label).ok().and_then(|label| self.names.get(&label.to_ascii_lowercase()));
        match known {
            Some(addresses) => Found::Pod(addresses),
            None if below => Found::Missing,
            None => Found::Foreign,
        }
    }

    /// The name of the pod with this address.
    pub(crate) fn name_of(&self, address: IpAddr) -> Option<&str> {
        self.pointers.get(&address).map(String::as_str)
    }

    /// The address under which the questions of a pod are counted, of whichever of its addresses they come.
    pub(crate) fn counted_as(&self, asker: IpAddr) -> IpAddr {
        self.firsts.get(&asker).copied().unwrap_or(asker)
    }

    /// Whether an address is in one of the subnets.
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
                self.firsts.entry(address.address).or_insert(first.address);
            }
            if let Some(first) = labels.first() {
                self.pointers.entry(address.address).or_insert_with(|| first.clone());
            }
            for label in &labels {
                let known = self.names.entry(label.clone()).or_default();
                if known.len() < MOST_ADDRESSES && !known.contains(&address.address) {
                    known.push(address.address);
                }
            }
        }
    }
}

/// Whether an address is in the subnet of another.
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

/// An address that is listened on. Mostly of one network; two that were given the same gateway share it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Place {
    zones: Vec<Arc<Zone>>,
}

impl Place {
    /// The names that are told to this asker. None when it is not in a network of this place, or it cannot be said in which:
    /// then it gets no answer.
    pub(crate) fn zone_for(&self, asker: IpAddr) -> Option<&Zone> {
        let mut covering = self.zones.iter().filter(|zone| zone.covers(asker));
        match (covering.next(), covering.next()) {
            (Some(only), None) => Some(only),
            _ => self.zones.iter().find(|zone| zone.pointers.contains_key(&asker)).map(AsRef::as_ref),
        }
    }
}

/// The places there are to be, by their addresses.
pub(crate) type Places = BTreeMap<IpAddr, Place>;

/// Where names are to be told: on the gateways of the networks of these pods.
pub(crate) fn places(pods: &[Pod]) -> Places {
    let mut zones: BTreeMap<&str, Zone> = BTreeMap::new();
    let mut gateways: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for (pod, network) in pods.iter().flat_map(|pod| pod.networks.iter().map(move |network| (pod, network))) {
        zones.entry(&network.name).or_default().add(pod, network);
        for gateway in network.addresses.iter().filter_map(|address| address.gateway).filter(|it| is_place(*it)) {
            let names = gateways.entry(gateway).or_default();
            if !names.contains(&network.name.as_str()) {
                names.push(&network.name);
            }
        }
    }
    let zones: BTreeMap<&str, Arc<Zone>> = zones.into_iter().map(|(name, zone)| (name, Arc::new(zone))).collect();
    let place = |names: Vec<&str>| Place { zones: names.iter().filter_map(|name| zones.get(name).cloned()).collect() };
    gateways.into_iter().map(|(gateway, names)| (gateway, place(names))).collect()
}

/// Whether an address may be listened on. A plugin can call anything a gateway; what is everybody's on this host is not,
/// and one of a link cannot be told without its link.
fn is_place(address: IpAddr) -> bool {
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
