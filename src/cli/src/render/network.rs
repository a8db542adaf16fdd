//! The networks of a pod as rkt's short text and as lines. In JSON they have the form of [`PodNetwork`], whose field
//! names are stable: fields are added, never changed.
//!
//! ```text
//! name interface mac addresses[address prefix gateway] routes[to prefix via] dns{servers search options domain}
//! ports[host_ip host_port pod_port count protocol]
//! ```
//!
//! Prefixes are in bits; a `host_ip` of null is every address of the host; `count` ports lead from `host_port` and the
//! following ones to `pod_port` and the following ones.

use std::fmt::Write as _;
use std::net::IpAddr;

use gantry_engine::{NetworkSummary, PodRow};
use gantry_model::Phase;
use gantry_model::net::{PodAddress, PodNetwork, PodPort};

use crate::failure::Failure;

/// The address families of the short text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv4, or IPv6 if there is no IPv4 address: for narrow columns.
    One,
    /// Both.
    Both,
}

/// rkt's text: `default:ip4=10.121.0.2,ip6=fd67::2, other:ip4=…`, with the first address of each family. For a pod that
/// was not started or has no network of its own, the requested networks.
///
/// # Errors
/// The row is damaged.
pub(crate) fn summary(row: &PodRow, families: Families) -> Result<String, Failure> {
    if row.networks.is_empty() {
        return Ok(row.net.to_string());
    }
    let mut text = String::new();
    for NetworkSummary { name, ip4, ip6, ports: _ } in row.networks.summaries()? {
        let ip6 = ip6.filter(|_| families == Families::Both || ip4.is_none());
        text.push_str(if text.is_empty() { "" } else { ", " });
        text.push_str(&name);
        // Writing to a String cannot fail.
        if let Some(ip4) = ip4 {
            let _infallible = write!(text, ":ip4={ip4}");
        }
        if let Some(ip6) = ip6 {
            let _infallible = write!(text, "{}ip6={ip6}", if ip4.is_none() { ':' } else { ',' });
        }
    }
    Ok(text)
}

/// The published ports of a running pod for the column PORTS: `8080->80/tcp, 127.0.0.1:53->53/udp`. Empty for other
/// pods: another pod may use their ports by now.
///
/// # Errors
/// The row is damaged.
pub(crate) fn published_ports(row: &PodRow) -> Result<String, Failure> {
    if !matches!(row.phase, Phase::Running { .. }) {
        return Ok(String::new());
    }
    let networks = row.networks.summaries()?;
    let ports: Vec<String> = networks.iter().flat_map(|network| &network.ports).map(port_mapping).collect();
    Ok(ports.join(", "))
}

/// `127.0.0.1:8080->80/tcp`, and for a range `9000-9002->7000-7002/tcp`.
pub(crate) fn port_mapping(port: &PodPort) -> String {
    let (host, pod) = (host_side(port), range(port.pod_port, port.count));
    format!("{host}->{pod}/{}", port.protocol.as_str())
}

/// The lines of `status` for a network: one for the interface, and one for each published port.
pub(crate) fn details(network: &PodNetwork) -> Vec<String> {
    let mut interface = format!("interface-{}={}", network.interface, network.name);
    for (key, value) in network.mac.iter().map(|mac| ("mac", mac)) {
        // Writing to a String cannot fail.
        let _infallible = write!(interface, ",{key}={value}");
    }
    for PodAddress { address, prefix, gateway } in &network.addresses {
        let _infallible = write!(interface, ",address={address}/{prefix}");
        if let Some(gateway) = gateway {
            let _infallible = write!(interface, ",gateway={gateway}");
        }
    }
    std::iter::once(interface).chain(network.ports.iter().map(port)).collect()
}

/// `port-127.0.0.1:8080/tcp=80`.
fn port(port: &PodPort) -> String {
    format!("port-{}/{}={}", host_side(port), port.protocol.as_str(), range(port.pod_port, port.count))
}

/// `8080`, `127.0.0.1:8080`, `[2001:db8::7]:9000-9002`.
pub(crate) fn host_side(port: &PodPort) -> String {
    let host = match port.host_ip {
        None => String::new(),
        Some(IpAddr::V4(ip)) => format!("{ip}:"),
        Some(IpAddr::V6(ip)) => format!("[{ip}]:"),
    };
    format!("{host}{}", range(port.host_port, port.count))
}

fn range(first: u16, count: u16) -> String {
    match count {
        0 | 1 => first.to_string(),
        count => format!("{first}-{}", u32::from(first) + u32::from(count) - 1),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::render::pod::tests::ended;
    use gantry_model::net::{Dns, PodRoute, Protocol};

    /// What a pod got of a network with both families and two ports.
    pub(crate) fn network() -> PodNetwork {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        PodNetwork {
            name: "default".into(),
            interface: "eth0".into(),
            mac: Some("0a:58:0a:79:00:02".into()),
            addresses: vec![
                PodAddress { address: ip("fd67::2"), prefix: 64, gateway: Some(ip("fd67::1")) },
                PodAddress { address: ip("10.121.0.2"), prefix: 16, gateway: Some(ip("10.121.0.1")) },
                PodAddress { address: ip("10.121.0.3"), prefix: 16, gateway: None },
            ],
            routes: vec![PodRoute { to: ip("0.0.0.0"), prefix: 0, via: Some(ip("10.121.0.1")) }],
            dns: Dns { servers: vec![ip("10.121.0.1").into()], search: vec!["x.example".into()], ..Dns::default() },
            ports: vec![
                PodPort { host_ip: None, host_port: 8080, pod_port: 80, count: 1, protocol: Protocol::Tcp },
                PodPort { host_ip: Some(ip("::1")), host_port: 90, pod_port: 70, count: 3, protocol: Protocol::Udp },
            ],
        }
    }

    fn row(networks: Vec<PodNetwork>) -> PodRow {
        let networks = gantry_engine::Networks::from_list(&networks).unwrap();
        PodRow { networks, net: "default,only6,nothing".parse().unwrap(), ..ended() }
    }

    #[test]
    fn summaries_follow_rkt() {
        let mut only6 = PodNetwork { name: "only6".into(), ..network() };
        only6.addresses.truncate(1);
        let nothing = PodNetwork { name: "nothing".into(), addresses: vec![], ..network() };
        let networks = vec![network(), only6, nothing];
        let want = "default:ip4=10.121.0.2, only6:ip6=fd67::2, nothing";
        assert_eq!(summary(&row(networks.clone()), Families::One).unwrap(), want);
        let want = "default:ip4=10.121.0.2,ip6=fd67::2, only6:ip6=fd67::2, nothing";
        assert_eq!(summary(&row(networks), Families::Both).unwrap(), want);
        assert_eq!(summary(&row(vec![]), Families::Both).unwrap(), "default,only6,nothing");
    }

    #[test]
    fn only_running_pods_show_ports() {
        use gantry_model::{BootId, Process, Timestamp};
        let supervisor = Process { pid: 7, start_ticks: 1, boot: BootId("b".into()) };
        let running = PodRow { phase: Phase::Running { since: Timestamp(0), supervisor }, ..row(vec![network()]) };
        assert_eq!(published_ports(&running).unwrap(), "8080->80/tcp, [::1]:90-92->70-72/udp");
        assert_eq!(published_ports(&row(vec![network()])).unwrap(), "");
    }

    #[test]
    fn details_are_rendered_as_lines() {
        let want = [
            "interface-eth0=default,mac=0a:58:0a:79:00:02,address=fd67::2/64,gateway=fd67::1,\
             address=10.121.0.2/16,gateway=10.121.0.1,address=10.121.0.3/16",
            "port-8080/tcp=80",
            "port-[::1]:90-92/udp=70-72",
        ];
        assert_eq!(details(&network()), want);
    }

    #[test]
    fn json_field_names_are_stable() {
        let want = r#"{"name":"default","interface":"eth0","mac":"0a:58:0a:79:00:02","addresses":[{"address":"fd67::2","prefix":64,"gateway":"fd67::1"},{"address":"10.121.0.2","prefix":16,"gateway":"10.121.0.1"},{"address":"10.121.0.3","prefix":16,"gateway":null}],"routes":[{"to":"0.0.0.0","prefix":0,"via":"10.121.0.1"}],"dns":{"servers":["10.121.0.1"],"search":["x.example"],"options":[],"domain":null},"ports":[{"host_ip":null,"host_port":8080,"pod_port":80,"count":1,"protocol":"tcp"},{"host_ip":"::1","host_port":90,"pod_port":70,"count":3,"protocol":"udp"}]}"#;
        assert_eq!(serde_json::to_string(&network()).unwrap(), want);
        // Lists copy what is stored.
        let stored = row(vec![network(), network()]).networks;
        assert_eq!(serde_json::to_string(&stored).unwrap(), format!("[{want},{want}]"));
        assert_eq!(serde_json::to_string(&row(vec![]).networks).unwrap(), "[]");
    }
}
