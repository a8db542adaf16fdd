//! Where addresses come from: host-local and static; and routes and DNS.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::fields::{Bad, Fields, Item, items};
use super::super::locate::{Step, shown};
use super::super::range::{Range, RangeSet, check_sets};
use crate::address::Cidr;

type Result<T> = std::result::Result<T, Bad>;

/// A route (CNI specification 1.1.0, section 5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Whereto.
    pub dst: Cidr,
    /// Through whom; `None`: the network's gateway.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::super::network::empty_is_none"
    )]
    pub gw: Option<IpAddr>,
    /// The path's maximum transmission unit, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The maximal segment size advertised, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// The metric: lower is preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The table, main when `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The scope (rtnetlink(7), `rtm_scope`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

/// Name servers and how names are looked up (resolv.conf(5)).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// The servers, preferred first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Where short names are looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Options of the resolver.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether it says nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Where addresses come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ipam {
    /// Ranges of which this host gives addresses.
    HostLocal(HostLocal),
    /// Addresses written in the configuration.
    Static(Static),
    /// Another plugin, by its type.
    Other(String),
}

/// `host-local`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostLocal {
    /// A pod gets one address of each set. May be empty when the `ipRanges` capability brings them.
    pub ranges: Vec<RangeSet>,
    /// Routes for the pod.
    pub routes: Vec<Route>,
    /// A file to take the DNS settings from.
    pub resolv_conf: Option<String>,
    /// Where the plugin keeps its leases.
    pub data_dir: Option<String>,
}

/// An address of `static`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticAddress {
    /// The address and its prefix.
    pub address: Cidr,
    /// The gateway.
    pub gateway: Option<IpAddr>,
}

/// `static`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Static {
    /// The addresses; may come from the arguments instead.
    pub addresses: Vec<StaticAddress>,
    /// Routes for the pod.
    pub routes: Vec<Route>,
    /// DNS settings.
    pub dns: Dns,
}

/// The `ipam` object. An empty one is none: the interface gets no address.
pub(crate) fn parse(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<Option<Ipam>> {
    let Some(mut ipam) = fields.object("ipam")? else { return Ok(None) };
    if ipam.map().is_empty() {
        return Ok(None);
    }
    let kind = ipam.word("type")?.ok_or_else(|| ipam.bad("type", "is missing"))?;
    let parsed = match kind.as_str() {
        "host-local" => Ipam::HostLocal(host_local(&mut ipam, notes)?),
        "static" => Ipam::Static(fixed(&mut ipam, notes)?),
        _ => return Ok(Some(Ipam::Other(kind))),
    };
    ipam.finish(notes);
    Ok(Some(parsed))
}

fn host_local(ipam: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<HostLocal> {
    let mut ranges = Vec::new();
    // The old way of writing one range, which comes first.
    if let Some(range) = range(ipam)? {
        ranges.push(vec![range]);
    }
    for set in ipam.list("ranges")? {
        ranges.push(range_set(set, notes)?);
    }
    check_sets(&ranges).map_err(|problem| ipam.bad("ranges", problem))?;
    Ok(HostLocal {
        ranges,
        routes: routes(ipam, notes)?,
        resolv_conf: ipam.word("resolvConf")?,
        data_dir: ipam.word("dataDir")?,
    })
}

fn range_set(set: Item<'_>, notes: &mut Vec<String>) -> Result<RangeSet> {
    let parse = |item: Item<'_>| {
        let mut fields = Fields::of(item.value, item.at)?;
        let range = range(&mut fields)?.ok_or_else(|| fields.bad("subnet", "is missing"))?;
        fields.finish(notes);
        Ok(range)
    };
    items(set.value, set.at)?.into_iter().map(parse).collect()
}

impl HostLocal {
    /// The ranges when the runtime brings some (the `ipRanges` capability, written as `ranges` is): those come in the place
    /// of the configured ones (CNI conventions; host-local does the same).
    ///
    /// # Errors
    ///
    /// A sentence that names the key and what is wrong with it.
    pub fn with_ip_ranges(mut self, value: &Value) -> std::result::Result<Self, String> {
        let mut notes = Vec::new();
        let sets = items(value, vec![Step::Key("ipRanges".into())])
            .and_then(|sets| sets.into_iter().map(|set| range_set(set, &mut notes)).collect::<Result<Vec<_>>>())
            .map_err(|bad| format!("{}: {}", shown(&bad.at), bad.problem))?;
        check_sets(&sets).map_err(|problem| format!("ipRanges: {problem}"))?;
        if !sets.is_empty() {
            self.ranges = sets;
        }
        Ok(self)
    }
}

fn range(fields: &mut Fields<'_>) -> Result<Option<Range>> {
    let subnet = fields.parsed("subnet", "a network such as 10.1.0.0/16")?;
    let start = fields.parsed("rangeStart", "an address")?;
    let end = fields.parsed("rangeEnd", "an address")?;
    let gateway = fields.parsed("gateway", "an address")?;
    let Some(subnet) = subnet else { return Ok(None) };
    Range::new(subnet, start, end, gateway).map(Some).map_err(|problem| fields.wrong(problem))
}

fn fixed(ipam: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<Static> {
    let mut addresses = Vec::new();
    for item in ipam.list("addresses")? {
        let mut entry = Fields::of(item.value, item.at)?;
        let address: Cidr = entry
            .parsed("address", "an address such as 10.1.0.5/16")?
            .ok_or_else(|| entry.bad("address", "is missing"))?;
        let gateway: Option<IpAddr> = entry.parsed("gateway", "an address")?;
        if gateway.is_some_and(|gateway| gateway.is_ipv4() != address.is_ipv4()) {
            return Err(entry.bad("gateway", "is not of the family of the address"));
        }
        entry.finish(notes);
        addresses.push(StaticAddress { address, gateway });
    }
    Ok(Static { addresses, routes: routes(ipam, notes)?, dns: dns(ipam, notes)? })
}

/// The `routes` list of an object.
pub(crate) fn routes(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<Vec<Route>> {
    let mut routes = Vec::new();
    for item in fields.list("routes")? {
        let mut entry = Fields::of(item.value, item.at)?;
        let dst: Cidr =
            entry.parsed("dst", "a network such as 0.0.0.0/0")?.ok_or_else(|| entry.bad("dst", "is missing"))?;
        let gw: Option<IpAddr> = entry.parsed("gw", "an address")?;
        if gw.is_some_and(|gw| gw.is_ipv4() != dst.is_ipv4()) {
            return Err(entry.bad("gw", "is not of the family of dst"));
        }
        routes.push(Route {
            dst,
            gw,
            mtu: entry.number32("mtu", 0, u32::MAX)?,
            advmss: entry.number32("advmss", 0, u32::MAX)?,
            priority: entry.number32("priority", 0, u32::MAX)?,
            table: entry.number32("table", 0, u32::MAX)?,
            scope: entry.number("scope", 0, 255)?.and_then(|scope| u8::try_from(scope).ok()),
        });
        entry.finish(notes);
    }
    Ok(routes)
}

/// The `dns` object of an object.
pub(crate) fn dns(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<Dns> {
    let Some(mut entry) = fields.object("dns")? else { return Ok(Dns::default()) };
    let dns = Dns {
        nameservers: entry.texts("nameservers")?,
        domain: entry.word("domain")?,
        search: entry.texts("search")?,
        options: entry.texts("options")?,
    };
    if let Some(bad) = dns.nameservers.iter().find(|server| server.parse::<IpAddr>().is_err()) {
        return Err(entry.bad("nameservers", format!("'{}' is not an address", gantry_model::id::shown(bad))));
    }
    entry.finish(notes);
    Ok(dns)
}
