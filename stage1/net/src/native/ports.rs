//! `portmap`: published ports, from the capability `portMappings` (CNI conventions: a list of objects with `hostPort`,
//! `containerPort`, `protocol` and `hostIP`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gantry_model::id::shown;
use serde_json::Value;

use super::addresses::Assignment;
use super::chain::{PluginChain, capability};
use super::error::NativeError;
use crate::address::IpFamily;
use crate::nft::{HostPort, PORTS_LIMIT, Protocol, State};
use crate::plugin::Attachment;

/// Adds the published ports to the entries, with the pod as their owner. A port without a host address is published on
/// all host addresses of the families in which the pod has an address.
pub(super) fn add(
    entries: &mut State,
    chain: &PluginChain<'_>,
    attachment: &Attachment,
    assignment: &Assignment,
) -> Result<(), NativeError> {
    let Some(requested) = chain.portmap.and_then(|plugin| capability(plugin, attachment, "portMappings")) else {
        return Ok(());
    };
    let list = requested.as_array().ok_or_else(|| invalid("must be a list"))?;
    if list.len() > PORTS_LIMIT {
        return Err(invalid(&format!("has more than {PORTS_LIMIT} entries")));
    }
    for mapping in list {
        let (port, to) = (number(mapping, "hostPort")?, number(mapping, "containerPort")?);
        let protocol = protocol(mapping)?;
        let hosts = host_addresses(mapping)?;
        let reachable: Vec<_> =
            hosts.iter().filter_map(|host| Some((*host, assignment.first(IpFamily::of(*host))?))).collect();
        if reachable.is_empty() {
            let problem = "the pod has no address in the address family of the port";
            return Err(NativeError::invalid(format!("cannot publish port {port}/{protocol}: {problem}")));
        }
        for (address, pod) in reachable {
            let first = HostPort { address, protocol, port };
            entries.forward(first, 1, SocketAddr::new(pod, to), &attachment.container_id)?;
        }
    }
    Ok(())
}

fn invalid(problem: &str) -> NativeError {
    NativeError::invalid(format!("the capability 'portMappings' is invalid: {problem}"))
}

fn number(mapping: &Value, key: &str) -> Result<u16, NativeError> {
    let number = mapping.get(key).and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok());
    number.filter(|port| *port != 0).ok_or_else(|| invalid(&format!("{key} must be a number from 1 to 65535")))
}

fn text<'v>(mapping: &'v Value, key: &str) -> Result<&'v str, NativeError> {
    match mapping.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(invalid(&format!("{key} must be a string"))),
    }
}

fn protocol(mapping: &Value) -> Result<Protocol, NativeError> {
    let text = text(mapping, "protocol")?;
    match text.to_ascii_lowercase().as_str() {
        "" | "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "sctp" => Ok(Protocol::Sctp),
        _ => Err(invalid(&format!("the protocol '{}' is not tcp, udp or sctp", shown(text)))),
    }
}

/// The host address, or the unspecified address of each family.
fn host_addresses(mapping: &Value) -> Result<Vec<IpAddr>, NativeError> {
    let text = text(mapping, "hostIP")?;
    if text.is_empty() {
        return Ok(vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]);
    }
    match text.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => Err(invalid(&format!("the hostIP '{}' is not an address", shown(text)))),
    }
}
