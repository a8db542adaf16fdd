//! Address management: host-local and static; routes and DNS settings.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::json::{Invalid, join, read};
use super::super::range::{Range, RangeSet, check_sets};
use crate::address::Cidr;

/// A route (CNI specification 1.1.0, section 5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destination.
    pub dst: Cidr,
    /// The next hop; `None`: the network's gateway.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "super::super::json::empty_is_none")]
    pub gw: Option<IpAddr>,
    /// The path's maximum transmission unit, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The advertised maximum segment size, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// The metric: lower is preferred.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The routing table; `None`: main.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The scope (rtnetlink(7), `rtm_scope`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

/// Name servers and resolver settings (resolv.conf(5)).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dns {
    /// The name servers, preferred first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The search list for short names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether no setting is present.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the `dns` object of a plugin.
    pub(crate) fn read(value: &Value, path: &str, unknown: &mut Vec<String>) -> Result<Self, Invalid> {
        let dns: Self = read(value, path, unknown)?;
        dns.check().map_err(|problem| Invalid::new(path, problem))?;
        Ok(dns)
    }

    /// In a configuration, name servers are addresses. (Results of plugins are not checked: see `pod::attach`.)
    fn check(&self) -> Result<(), String> {
        match self.nameservers.iter().find(|server| server.parse::<IpAddr>().is_err()) {
            Some(server) => Err(format!("the name server '{}' is not an address", gantry_model::id::shown(server))),
            None => Ok(()),
        }
    }
}

/// The source of a pod's addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ipam {
    /// Ranges of which this host assigns addresses.
    HostLocal(HostLocal),
    /// Addresses from the configuration.
    Static(Static),
    /// Another plugin, by its type.
    Other(String),
}

/// `host-local`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "HostLocalKeys")]
pub struct HostLocal {
    /// A pod gets one address of each set. May be empty if the `ipRanges` capability supplies the ranges.
    pub ranges: Vec<RangeSet>,
    /// Routes of the pod.
    pub routes: Vec<Route>,
    /// A file with DNS settings.
    pub resolv_conf: Option<String>,
    /// The directory in which the plugin keeps its leases.
    pub data_dir: Option<String>,
}

/// An address of `static`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StaticAddress {
    /// The address with the prefix length of its network.
    pub address: Cidr,
    /// The gateway.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
}

/// `static`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "StaticKeys")]
pub struct Static {
    /// The addresses; may come from the arguments instead.
    pub addresses: Vec<StaticAddress>,
    /// Routes of the pod.
    pub routes: Vec<Route>,
    /// DNS settings.
    pub dns: Dns,
}

impl Ipam {
    /// Reads the `ipam` object of a plugin. `None`: it is empty, and the interface gets no address.
    pub(crate) fn read(value: &Value, path: &str, unknown: &mut Vec<String>) -> Result<Option<Self>, Invalid> {
        let mut keys: Map<String, Value> = read(value, path, &mut Vec::new())?;
        if keys.is_empty() {
            return Ok(None);
        }
        let kind = match keys.remove("type") {
            Some(Value::String(kind)) => kind,
            Some(_) => return Err(Invalid::new(join(path, "type"), "must be a string")),
            None => return Err(Invalid::new(path, "missing field `type`")),
        };
        let keys = Value::Object(keys);
        Ok(Some(match kind.as_str() {
            "host-local" => Self::HostLocal(read(&keys, path, unknown)?),
            "static" => Self::Static(read(&keys, path, unknown)?),
            _ => Self::Other(kind),
        }))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct HostLocalKeys {
    // A single range, in the syntax from before `ranges`.
    subnet: Option<Cidr>,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
    #[serde(default)]
    ranges: Vec<RangeSet>,
    #[serde(default)]
    routes: Vec<Route>,
    resolv_conf: Option<String>,
    data_dir: Option<String>,
}

impl TryFrom<HostLocalKeys> for HostLocal {
    type Error = String;

    fn try_from(keys: HostLocalKeys) -> Result<Self, String> {
        let mut ranges = keys.ranges;
        if let Some(subnet) = keys.subnet {
            ranges.insert(0, vec![Range::new(subnet, keys.range_start, keys.range_end, keys.gateway)?]);
        }
        check_sets(&ranges)?;
        check_routes(&keys.routes)?;
        Ok(Self { ranges, routes: keys.routes, resolv_conf: keys.resolv_conf, data_dir: keys.data_dir })
    }
}

#[derive(Deserialize)]
struct StaticKeys {
    #[serde(default)]
    addresses: Vec<StaticAddress>,
    #[serde(default)]
    routes: Vec<Route>,
    #[serde(default)]
    dns: Dns,
}

impl TryFrom<StaticKeys> for Static {
    type Error = String;

    fn try_from(keys: StaticKeys) -> Result<Self, String> {
        let mixes = |it: &&StaticAddress| it.gateway.is_some_and(|gateway| gateway.is_ipv4() != it.address.is_ipv4());
        if let Some(mixed) = keys.addresses.iter().find(mixes) {
            return Err(format!("the gateway of {} has another address family", mixed.address));
        }
        check_routes(&keys.routes)?;
        keys.dns.check()?;
        Ok(Self { addresses: keys.addresses, routes: keys.routes, dns: keys.dns })
    }
}

fn check_routes(routes: &[Route]) -> Result<(), String> {
    let mixes = |route: &&Route| route.gw.is_some_and(|gw| gw.is_ipv4() != route.dst.is_ipv4());
    match routes.iter().find(mixes) {
        Some(route) => Err(format!("gw of the route to {} has another address family", route.dst)),
        None => Ok(()),
    }
}

impl HostLocal {
    /// Replaces the configured ranges with those of the `ipRanges` capability, which has the syntax of `ranges` (CNI
    /// conventions; the host-local plugin does the same). An empty list changes nothing.
    ///
    /// # Errors
    ///
    /// The path of the invalid key and the problem.
    pub fn with_ip_ranges(mut self, value: &Value) -> Result<Self, String> {
        let sets: Vec<RangeSet> = read(value, "ipRanges", &mut Vec::new()).map_err(|invalid| invalid.to_string())?;
        check_sets(&sets).map_err(|problem| format!("ipRanges: {problem}"))?;
        if !sets.is_empty() {
            self.ranges = sets;
        }
        Ok(self)
    }
}
