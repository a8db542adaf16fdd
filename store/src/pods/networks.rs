//! What a pod got of its networks, as the JSON of a column: `[{"name", "interface", "mac", "addresses", "routes", "dns",
//! "ports"}]`, where what is empty is left out. Filters look for `name` in it.

use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use gantry_model::PodNetwork;
use gantry_model::net::{Dns, PodAddress, PodPort, PodRoute, Protocol};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

#[derive(Serialize, Deserialize)]
struct Network {
    name: String,
    interface: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(default, deserialize_with = "few", skip_serializing_if = "Vec::is_empty")]
    addresses: Vec<Address>,
    #[serde(default, deserialize_with = "few", skip_serializing_if = "Vec::is_empty")]
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
    let mut read = serde_json::Deserializer::from_str(text);
    let networks: Vec<Network> = read.deserialize_seq(Few::<Network, 1>(PhantomData))?;
    read.end()?;
    Ok(networks.into_iter().map(Into::into).collect())
}

/// An address and a route of each family.
fn few<'de, D: Deserializer<'de>, T: Deserialize<'de>>(read: D) -> Result<Vec<T>, D::Error> {
    read.deserialize_seq(Few::<T, 2>(PhantomData))
}

/// A list with room for as many as there usually are: lists are of ten thousand pods, and a vector that grows from
/// nothing takes room for four.
struct Few<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Few<T, N> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::with_capacity(N);
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        Ok(all)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    fn network() -> impl Strategy<Value = PodNetwork> {
        let ip = any::<IpAddr>;
        let texts = || vec(any::<String>(), 0..3);
        let address = (ip(), any::<u8>(), option::of(ip()));
        let addresses =
            vec(address.prop_map(|(address, prefix, gateway)| PodAddress { address, prefix, gateway }), 0..3);
        let route = (ip(), any::<u8>(), option::of(ip()));
        let routes = vec(route.prop_map(|(to, prefix, via)| PodRoute { to, prefix, via }), 0..3);
        let dns = (vec(ip(), 0..3), texts(), texts(), any::<Option<String>>())
            .prop_map(|(servers, search, options, domain)| Dns { servers, search, options, domain });
        let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
        let port = (option::of(ip()), any::<(u16, u16, u16)>(), protocol);
        let ports = port.prop_map(|(host_ip, (host_port, pod_port, count), protocol)| PodPort {
            host_ip,
            host_port,
            pod_port,
            count,
            protocol,
        });
        (any::<(String, String, Option<String>)>(), addresses, routes, dns, vec(ports, 0..3)).prop_map(
            |((name, interface, mac), addresses, routes, dns, ports)| PodNetwork {
                name,
                interface,
                mac,
                addresses,
                routes,
                dns,
                ports,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(networks in vec(network(), 0..4)) {
            prop_assert_eq!(parsed(&text(&networks).unwrap()).unwrap(), networks);
        }

        #[test]
        fn nothing_panics(any in "\\PC{0,40}") {
            let _ = parsed(&any);
        }
    }
}
