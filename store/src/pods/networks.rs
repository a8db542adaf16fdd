//! What a pod got of its networks, as the JSON of a column: `[{"name", "interface", "mac", "addresses", "routes", "dns",
//! "ports"}]`, where what is empty is left out. Filters look for `name` in it.

use std::net::IpAddr;

use gantry_model::PodNetwork;
use gantry_model::net::{Dns, PodAddress, PodPort, PodRoute, Protocol};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Network {
    name: String,
    interface: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<Address>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
    #[serde(default, skip_serializing_if = "Names::is_empty")]
    dns: Names,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ports: Vec<Port>,
}

#[derive(Serialize, Deserialize)]
struct Address {
    address: IpAddr,
    prefix: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gateway: Option<IpAddr>,
}

#[derive(Serialize, Deserialize)]
struct Route {
    to: IpAddr,
    prefix: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    via: Option<IpAddr>,
}

#[derive(Default, Serialize, Deserialize)]
struct Names {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    servers: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    domain: Option<String>,
}

impl Names {
    fn is_empty(&self) -> bool {
        self.servers.is_empty() && self.search.is_empty() && self.options.is_empty() && self.domain.is_none()
    }
}

#[derive(Serialize, Deserialize)]
struct Port {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    host_ip: Option<IpAddr>,
    host_port: u16,
    pod_port: u16,
    count: u16,
    protocol: Transport,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Tcp,
    Udp,
    Sctp,
}

/// The text of the column.
pub(super) fn text(networks: &[PodNetwork]) -> serde_json::Result<String> {
    serde_json::to_string(&networks.iter().cloned().map(Network::from).collect::<Vec<_>>())
}

/// What the text says.
pub(super) fn parsed(text: &str) -> serde_json::Result<Vec<PodNetwork>> {
    let networks: Vec<Network> = serde_json::from_str(text)?;
    Ok(networks.into_iter().map(Into::into).collect())
}

impl From<PodNetwork> for Network {
    fn from(network: PodNetwork) -> Self {
        let PodNetwork { name, interface, mac, addresses, routes, dns, ports } = network;
        let Dns { servers, search, options, domain } = dns;
        let address = |PodAddress { address, prefix, gateway }| Address { address, prefix, gateway };
        let route = |PodRoute { to, prefix, via }| Route { to, prefix, via };
        let port = |PodPort { host_ip, host_port, pod_port, count, protocol }| Port {
            host_ip,
            host_port,
            pod_port,
            count,
            protocol: match protocol {
                Protocol::Tcp => Transport::Tcp,
                Protocol::Udp => Transport::Udp,
                Protocol::Sctp => Transport::Sctp,
            },
        };
        Self {
            name,
            interface,
            mac,
            addresses: addresses.into_iter().map(address).collect(),
            routes: routes.into_iter().map(route).collect(),
            dns: Names { servers, search, options, domain },
            ports: ports.into_iter().map(port).collect(),
        }
    }
}

impl From<Network> for PodNetwork {
    fn from(network: Network) -> Self {
        let Network { name, interface, mac, addresses, routes, dns, ports } = network;
        let Names { servers, search, options, domain } = dns;
        let address = |Address { address, prefix, gateway }| PodAddress { address, prefix, gateway };
        let route = |Route { to, prefix, via }| PodRoute { to, prefix, via };
        let port = |Port { host_ip, host_port, pod_port, count, protocol }| PodPort {
            host_ip,
            host_port,
            pod_port,
            count,
            protocol: match protocol {
                Transport::Tcp => Protocol::Tcp,
                Transport::Udp => Protocol::Udp,
                Transport::Sctp => Protocol::Sctp,
            },
        };
        Self {
            name,
            interface,
            mac,
            addresses: addresses.into_iter().map(address).collect(),
            routes: routes.into_iter().map(route).collect(),
            dns: Dns { servers, search, options, domain },
            ports: ports.into_iter().map(port).collect(),
        }
    }
}
