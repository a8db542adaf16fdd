//! `gantry port`.

use std::fmt::Write as _;
use std::io::Write as _;

use gantry_model::Phase;
use gantry_model::id::shown;
use gantry_model::net::{PodPort, Protocol};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{self, CommandKind};
use crate::failure::{CliError, Failure};
use crate::render::json;

/// Arguments of `port`.
#[derive(Debug, clap::Args)]
pub(crate) struct Port {
    /// Pod: its id, a unique prefix of it, the name of an app, or the host name
    #[arg(value_name = "POD")]
    pod: String,
    /// Show only this port of the pod: PORT[/PROTOCOL]
    #[arg(value_name = "PORT", value_parser = parse_port)]
    port: Option<PodPortArg>,
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

    fn run(&self, context: &Context) -> Result<u8, Failure> {
        let engine = context.open_to_read()?;
        let id = crate::pods::find(&engine, &self.pod)?;
        let row = engine.status(id)?.row;
        // Another pod may use the ports of an ended pod by now.
        let networks = if matches!(row.phase, Phase::Running { .. }) { row.networks.read()? } else { Vec::new() };
        let ports: Vec<&PodPort> = networks.iter().flat_map(|network| &network.ports).collect();
        let text = match self.port {
            None => format_all(&ports),
            Some(wanted) => format_one(&ports, wanted),
        };
        if let (Some(PodPortArg { port, protocol }), true) = (self.port, text.is_empty()) {
            return Err(CliError::NotPublished { id, port: format!("{port}/{protocol}") }.into());
        }
        json::to_stdout(|out| out.write_all(text.as_bytes()))?;
        Ok(exit::OK)
    }
}

/// Each port of a range has a line of its own, as podman and docker print it.
fn format_all(ports: &[&PodPort]) -> String {
    let mut text = String::new();
    for port in ports {
        for offset in 0..port.count {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{}/{} -> {}",
                port.pod_port.saturating_add(offset),
                port.protocol.as_str(),
                host_address(port, offset)
            );
        }
    }
    text
}

fn format_one(ports: &[&PodPort], wanted: PodPortArg) -> String {
    let mut text = String::new();
    for port in ports.iter().filter(|port| port.protocol == wanted.protocol) {
        if let Some(offset) = wanted.port.checked_sub(port.pod_port).filter(|offset| *offset < port.count) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", host_address(port, offset));
        }
    }
    text
}

fn host_address(port: &PodPort, offset: u16) -> String {
    let address = port.host_ip.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED.into());
    std::net::SocketAddr::new(address, port.host_port.saturating_add(offset)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_printed_as_podman_does() {
        let network = crate::render::network::tests::network();
        let ports: Vec<&PodPort> = network.ports.iter().collect();
        let want = "80/tcp -> 0.0.0.0:8080\n70/udp -> [::1]:90\n71/udp -> [::1]:91\n72/udp -> [::1]:92\n";
        assert_eq!(format_all(&ports), want);
        assert_eq!(format_one(&ports, parse_port("80").unwrap()), "0.0.0.0:8080\n");
        assert_eq!(format_one(&ports, parse_port("72/UDP").unwrap()), "[::1]:92\n");
        for other in ["73/udp", "69/udp", "80/udp", "8080"] {
            assert_eq!(format_one(&ports, parse_port(other).unwrap()), "", "{other}");
        }
    }

    #[test]
    fn invalid_ports_are_rejected() {
        for text in ["", "0", "65536", "http", "80/icmp", "-1"] {
            assert!(parse_port(text).is_err(), "{text}");
        }
    }
}
