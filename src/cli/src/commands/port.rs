//! `gantry port`.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use gantry_model::Phase;
use gantry_model::id::shown;
use gantry_model::net::{PodPort, Protocol};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure};
use crate::render::{OutputFlag, OutputFormat, json};

/// Arguments of `port`.
#[derive(Debug, clap::Args)]
pub(crate) struct Port {
    /// Pod: its id, a unique prefix of it, the name of an app, or the host name
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

/// Shows the published ports of a running pod: `80/tcp -> 0.0.0.0:8080`, or `0.0.0.0:8080` for a single port.
impl RunCommand for Port {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let id = crate::pods::find(&engine, &self.pod)?;
        let row = engine.status(id)?.row;
        // Another pod may use the ports of an ended pod by now.
        let networks = if matches!(row.phase, Phase::Running { .. }) { row.networks.read()? } else { Vec::new() };
        let ports = published_ports(networks.iter().flat_map(|network| &network.ports), self.port);
        if let (Some(PodPortArg { port, protocol }), true) = (self.port, ports.is_empty()) {
            return Err(CliError::NotPublished { id, port: format!("{port}/{protocol}") }.into());
        }
        json::to_stdout(|out| match (self.output.format, self.port) {
            (OutputFormat::Table, None) => ports.iter().try_for_each(|port| writeln!(out, "{}", port.mapping())),
            (OutputFormat::Table, Some(_)) => ports.iter().try_for_each(|port| writeln!(out, "{}", port.on_host())),
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
}

impl PublishedPort {
    /// `80/tcp -> 0.0.0.0:8080`, as podman and docker print it.
    fn mapping(&self) -> String {
        format!("{}/{} -> {}", self.pod_port, self.protocol, self.on_host())
    }

    fn on_host(&self) -> SocketAddr {
        SocketAddr::new(self.host_ip.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), self.host_port)
    }
}

/// Each port by itself, also those of ranges; if one is wanted, only that one.
fn published_ports<'a>(ports: impl IntoIterator<Item = &'a PodPort>, wanted: Option<PodPortArg>) -> Vec<PublishedPort> {
    let each = ports.into_iter().flat_map(|port| {
        (0..port.count).map(|offset| PublishedPort {
            pod_port: port.pod_port.saturating_add(offset),
            protocol: port.protocol.as_str(),
            host_ip: port.host_ip,
            host_port: port.host_port.saturating_add(offset),
        })
    });
    let is_wanted = |port: &PublishedPort| {
        wanted.is_none_or(|wanted| wanted.port == port.pod_port && wanted.protocol.as_str() == port.protocol)
    };
    each.filter(is_wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_printed_as_podman_does() {
        let network = crate::render::network::tests::network();
        let ports = |wanted: Option<&str>| published_ports(&network.ports, wanted.map(|it| parse_port(it).unwrap()));
        let mappings: Vec<String> = ports(None).iter().map(PublishedPort::mapping).collect();
        let want = ["80/tcp -> 0.0.0.0:8080", "70/udp -> [::1]:90", "71/udp -> [::1]:91", "72/udp -> [::1]:92"];
        assert_eq!(mappings, want);
        for (wanted, want) in [("80", "0.0.0.0:8080"), ("72/UDP", "[::1]:92")] {
            let on_host: Vec<String> = ports(Some(wanted)).iter().map(|port| port.on_host().to_string()).collect();
            assert_eq!(on_host, [want], "{wanted}");
        }
        for other in ["73/udp", "69/udp", "80/udp", "8080"] {
            assert_eq!(ports(Some(other)), [], "{other}");
        }
    }

    #[test]
    fn invalid_ports_are_rejected() {
        for text in ["", "0", "65536", "http", "80/icmp", "-1"] {
            assert!(parse_port(text).is_err(), "{text}");
        }
    }
}
