//! `gantry port`.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gantry_model::Phase;
use gantry_model::id::shown;
use gantry_model::net::{PodNetwork, Protocol};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure};
use crate::render::{OutputFlag, OutputFormat, json};

/// Arguments of `port`.
#[derive(Debug, clap::Args)]
pub(crate) struct Port {
    /// Pod: its id, its name, a unique prefix of the id, the name of an app, or the host name
    #[arg(value_name = "POD")]
    pod: String,
    /// Show only this port of the pod: PORT[/PROTOCOL]
    #[arg(value_name = "PORT", value_parser = parse_port)]
    port: Option<PodPortArg>,
    #[command(flatten)]
    output: OutputFlag,
}

/// A port of the pod; the protocol defaults to TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PodPortArg {
    port: u16,
    protocol: Protocol,
}

fn parse_port(text: &str) -> Result<PodPortArg, String> {
    let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let port = port.parse().ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| format!("'{}' is not a port: expected one such as 80 or 53/udp", shown(text)))?;
    Ok(PodPortArg { port, protocol: protocol.parse()? })
}

/// Shows the published ports of a running pod: `80/tcp -> 0.0.0.0:8080`, or `0.0.0.0:8080` for a single port. A port on
/// every address is shown once for each address family in which it is published.
impl RunCommand for Port {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let id = crate::pods::find(&engine, &self.pod)?;
        let row = engine.status(id)?.row;
        // Another pod may use the ports of an ended pod by now.
        let networks = if matches!(row.phase, Phase::Running { .. }) { row.networks.read()? } else { Vec::new() };
        let ports = published_ports(&networks, self.port);
        if let (Some(PodPortArg { port, protocol }), true) = (self.port, ports.is_empty()) {
            return Err(CliError::NotPublished { id, port: format!("{port}/{protocol}") }.into());
        }
        json::to_stdout(|out| match (self.output.format, self.port) {
            (OutputFormat::Table, None) => {
                ports.iter().flat_map(PublishedPort::mappings).try_for_each(|line| writeln!(out, "{line}"))
            }
            (OutputFormat::Table, Some(_)) => {
                ports.iter().flat_map(PublishedPort::on_host).try_for_each(|line| writeln!(out, "{line}"))
            }
            (format, _) => json::write_items(out, format, &ports),
        })?;
        Ok(ExitStatus::OK)
    }
}

/// A published port. In JSON, its field names are stable.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct PublishedPort {
    pod_port: u16,
    protocol: &'static str,
    /// The address on the host; `null`: every address.
    host_ip: Option<IpAddr>,
    host_port: u16,
    /// The addresses on the host as printed: `host_ip`, or for every address, those that stand for its families.
    #[serde(skip)]
    shown: Vec<IpAddr>,
}

impl PublishedPort {
    /// `80/tcp -> 0.0.0.0:8080`, as docker prints it.
    fn mappings(&self) -> impl Iterator<Item = String> {
        self.on_host().map(|on_host| format!("{}/{} -> {on_host}", self.pod_port, self.protocol))
    }

    fn on_host(&self) -> impl Iterator<Item = SocketAddr> {
        self.shown.iter().map(|address| SocketAddr::new(*address, self.host_port))
    }
}

/// Each port by itself, also those of ranges; if one is wanted, only that one.
fn published_ports(networks: &[PodNetwork], wanted: Option<PodPortArg>) -> Vec<PublishedPort> {
    let each = networks.iter().flat_map(|network| network.ports.iter().map(move |port| (network, port)));
    let each = each.flat_map(|(network, port)| {
        (0..port.count).map(|offset| PublishedPort {
            pod_port: port.pod_port.saturating_add(offset),
            protocol: port.protocol.as_str(),
            host_ip: port.host_ip,
            host_port: port.host_port.saturating_add(offset),
            shown: port.host_ip.map_or_else(|| every_address(network), |address| vec![address]),
        })
    });
    let is_wanted = |port: &PublishedPort| {
        wanted.is_none_or(|wanted| wanted.port == port.pod_port && wanted.protocol.as_str() == port.protocol)
    };
    each.filter(is_wanted).collect()
}

/// The unspecified address of each family in which a pod has an address in this network: a port on every address leads
/// only to these.
fn every_address(network: &PodNetwork) -> Vec<IpAddr> {
    let has = |v4: bool| network.addresses.iter().any(|one| one.address.is_ipv4() == v4);
    let families = [(true, Ipv4Addr::UNSPECIFIED.into()), (false, Ipv6Addr::UNSPECIFIED.into())];
    families.into_iter().filter(|(v4, _)| has(*v4)).map(|(_, address)| address).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_printed_as_docker_does() {
        let both = crate::render::network::tests::network();
        let ports = |network: &PodNetwork, wanted: Option<&str>| {
            published_ports(std::slice::from_ref(network), wanted.map(|it| parse_port(it).unwrap()))
        };
        let mappings = |network: &PodNetwork| -> Vec<String> {
            ports(network, None).iter().flat_map(PublishedPort::mappings).collect()
        };
        let of_range = ["70/udp -> [::1]:90", "71/udp -> [::1]:91", "72/udp -> [::1]:92"];
        let with = |first: &[&'static str]| [first, &of_range].concat();
        assert_eq!(mappings(&both), with(&["80/tcp -> 0.0.0.0:8080", "80/tcp -> [::]:8080"]));
        let only = |v4: bool| {
            let mut network = both.clone();
            network.addresses.retain(|one| one.address.is_ipv4() == v4);
            network
        };
        assert_eq!(mappings(&only(true)), with(&["80/tcp -> 0.0.0.0:8080"]));
        assert_eq!(mappings(&only(false)), with(&["80/tcp -> [::]:8080"]));
        for (wanted, want) in [("80", &["0.0.0.0:8080", "[::]:8080"][..]), ("72/UDP", &["[::1]:92"])] {
            let found = ports(&both, Some(wanted));
            let on_host: Vec<String> =
                found.iter().flat_map(PublishedPort::on_host).map(|address| address.to_string()).collect();
            assert_eq!(on_host, want, "{wanted}");
        }
        for other in ["73/udp", "69/udp", "80/udp", "8080"] {
            assert_eq!(ports(&both, Some(other)), [], "{other}");
        }
    }

    #[test]
    fn invalid_ports_are_rejected() {
        for text in ["", "0", "65536", "http", "80/icmp", "-1"] {
            assert!(parse_port(text).is_err(), "{text}");
        }
    }
}
