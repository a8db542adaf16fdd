//! `gantry port`.

use std::fmt::Write as _;

use gantry_model::Phase;
use gantry_model::id::shown;
use gantry_model::net::{PodPort, Protocol};

use crate::context::Context;
use crate::exit;
use crate::failure::{CliError, Failure};
use crate::render::json;

/// Arguments of `port`.
#[derive(Debug, clap::Args)]
pub(crate) struct Port {
    /// A pod: its id or the beginning of it, or the name of an app or host
    #[arg(value_name = "POD")]
    pod: String,
    /// Only where this port of the pod is published: PORT[/PROTOCOL]
    #[arg(value_name = "PORT", value_parser = asked)]
    port: Option<Asked>,
}

/// Parses a port of the pod; the protocol defaults to TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Asked {
    port: u16,
    protocol: Protocol,
}

fn asked(text: &str) -> Result<Asked, String> {
    let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let port = port.parse().ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| format!("'{}' is not a port: expected one such as 80 or 53/udp", shown(text)))?;
    Ok(Asked { port, protocol: protocol.parse()? })
}

/// Shows which ports of the host lead to a running pod: `80/tcp -> 0.0.0.0:8080`, or `0.0.0.0:8080` alone for one port.
pub(crate) fn port(context: &Context, args: &Port) -> Result<u8, Failure> {
    let engine = context.look()?;
    let id = crate::pods::find(&engine, &args.pod)?;
    let row = engine.status(id)?.row;
    // Another pod may use the ports of an ended pod by now.
    let networks = if matches!(row.phase, Phase::Running { .. }) { row.networks.read()? } else { Vec::new() };
    let ports: Vec<&PodPort> = networks.iter().flat_map(|network| &network.ports).collect();
    let text = match args.port {
        None => all(&ports),
        Some(asked) => one(&ports, asked),
    };
    if let (Some(Asked { port, protocol }), true) = (args.port, text.is_empty()) {
        return Err(CliError::NotPublished { id, port: format!("{port}/{protocol}") }.into());
    }
    json::to_stdout(|out| out.write_all(text.as_bytes()))?;
    Ok(exit::OK)
}

/// Each port of a range has a line of its own, as podman and docker print it.
fn all(ports: &[&PodPort]) -> String {
    let mut text = String::new();
    for port in ports {
        for offset in 0..port.count {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{}/{} -> {}",
                port.pod_port.saturating_add(offset),
                port.protocol.as_str(),
                host(port, offset)
            );
        }
    }
    text
}

fn one(ports: &[&PodPort], asked: Asked) -> String {
    let mut text = String::new();
    for port in ports.iter().filter(|port| port.protocol == asked.protocol) {
        if let Some(offset) = asked.port.checked_sub(port.pod_port).filter(|offset| *offset < port.count) {
            let _ = writeln!(text, "{}", host(port, offset));
        }
    }
    text
}

fn host(port: &PodPort, offset: u16) -> String {
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
        assert_eq!(all(&ports), want);
        assert_eq!(one(&ports, asked("80").unwrap()), "0.0.0.0:8080\n");
        assert_eq!(one(&ports, asked("72/UDP").unwrap()), "[::1]:92\n");
        for other in ["73/udp", "69/udp", "80/udp", "8080"] {
            assert_eq!(one(&ports, asked(other).unwrap()), "", "{other}");
        }
    }

    #[test]
    fn what_is_no_port_is_refused() {
        for text in ["", "0", "65536", "http", "80/icmp", "-1"] {
            assert!(asked(text).is_err(), "{text}");
        }
    }
}
