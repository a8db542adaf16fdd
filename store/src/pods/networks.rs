//! The network attachments of a pod, as a JSON column: `[{"name", "interface", "mac", "addresses", "routes", "dns",
//! "ports"}]`. Filters match on `name`. `gantry list -o json` copies the text, so the field names are stable.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gantry_model::PodNetwork;
use gantry_model::net::PodPort;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::StoreError;

/// The network attachments of a pod, in order. The JSON text is parsed on demand: lists have ten thousand pods, and
/// most of their readers need little of it, or copy it.
///
/// As JSON (`Serialize`) it is an array of networks, an empty one where there are none.
#[derive(Debug, Clone, Default)]
pub struct Networks(Option<Box<RawValue>>);

/// A summary of a pod's network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkSummary<'a> {
    /// The network's name.
    pub name: Cow<'a, str>,
    /// The pod's first IPv4 address in it.
    pub ip4: Option<Ipv4Addr>,
    /// The pod's first IPv6 address in it.
    pub ip6: Option<Ipv6Addr>,
    /// The ports of the host that lead to the pod through it.
    pub ports: Vec<PodPort>,
}

impl Networks {
    /// These.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be written as JSON.
    pub fn from_list(networks: &[PodNetwork]) -> Result<Self, StoreError> {
        if networks.is_empty() {
            return Ok(Self(None));
        }
        let text = serde_json::value::to_raw_value(networks);
        let not = |error| rusqlite::Error::ToSqlConversionFailure(Box::new(error));
        text.map(|text| Self(Some(text))).map_err(not).map_err(StoreError::sql("write a pod's networks"))
    }

    /// The text of a column; checked only to be JSON.
    pub(super) fn from_text(text: &str) -> serde_json::Result<Self> {
        Ok(Self(Some(serde_json::from_str::<&RawValue>(text)?.to_owned())))
    }

    /// The text of the column, unless there are none.
    pub(super) fn text(&self) -> Option<&str> {
        self.0.as_deref().map(RawValue::get)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// All attachments, with all fields.
    ///
    /// # Errors
    /// [`StoreError`] when the text is damaged.
    pub fn read(&self) -> Result<Vec<PodNetwork>, StoreError> {
        self.parsed()
    }

    /// Their names, first addresses and ports.
    ///
    /// # Errors
    /// [`StoreError`] when the text is damaged.
    pub fn summaries(&self) -> Result<Vec<NetworkSummary<'_>>, StoreError> {
        let networks: Vec<Named<'_>> = self.parsed()?;
        Ok(networks.into_iter().map(Into::into).collect())
    }

    fn parsed<'a, T: Deserialize<'a>>(&'a self) -> Result<Vec<T>, StoreError> {
        let Some(text) = self.text() else { return Ok(Vec::new()) };
        serde_json::from_str(text).map_err(|error| {
            let not = rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, Box::new(error));
            StoreError::sql("read what a pod got of its networks")(not)
        })
    }
}

impl PartialEq for Networks {
    fn eq(&self, other: &Self) -> bool {
        self.text() == other.text()
    }
}

impl Eq for Networks {}

impl Serialize for Networks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(text) => text.serialize(serializer),
            None => serializer.collect_seq([0u8; 0]),
        }
    }
}

#[derive(Deserialize)]
struct Named<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    addresses: Vec<Only>,
    #[serde(default)]
    ports: Vec<PodPort>,
}

#[derive(Deserialize)]
struct Only {
    address: IpAddr,
}

impl<'a> From<Named<'a>> for NetworkSummary<'a> {
    fn from(network: Named<'a>) -> Self {
        let Named { name, addresses, ports } = network;
        let all = || addresses.iter().map(|it| it.address);
        let ip4 = all().find_map(|address| if let IpAddr::V4(address) = address { Some(address) } else { None });
        let ip6 = all().find_map(|address| if let IpAddr::V6(address) = address { Some(address) } else { None });
        Self { name, ip4, ip6, ports }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::net::{Dns, NameServer, PodAddress, PodRoute, Protocol};
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
        let dns = (vec(ip().prop_map(NameServer::from), 0..3), texts(), texts(), any::<Option<String>>())
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
        fn networks_round_trip(networks in vec(network(), 0..4)) {
            let written = Networks::from_list(&networks).unwrap();
            prop_assert_eq!(written.read().unwrap(), networks.clone());
            prop_assert_eq!(written.is_empty(), networks.is_empty());
            let summaries = written.summaries().unwrap();
            prop_assert_eq!(summaries.len(), networks.len());
            for (summary, network) in summaries.iter().zip(&networks) {
                let first = |v6| network.addresses.iter().map(|it| it.address).find(|it| it.is_ipv6() == v6);
                prop_assert_eq!(summary.name.as_ref(), &network.name);
                prop_assert_eq!((summary.ip4.map(IpAddr::V4), summary.ip6.map(IpAddr::V6)), (first(false), first(true)));
                prop_assert_eq!(&summary.ports, &network.ports);
            }
            if let Some(text) = written.text() {
                prop_assert_eq!(&Networks::from_text(text).unwrap(), &written);
            }
        }

        #[test]
        fn parser_never_panics(any in "\\PC{0,40}") {
            let _ = Networks::from_text(&any).map(|it| it.read().is_ok() && it.summaries().is_ok());
        }
    }
}
