//! `portmap`: ports of the host that lead to the pod, by the capability `portMappings` (CNI conventions: a list of objects with
//! `hostPort`, `containerPort`, `protocol` and `hostIP`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gantry_model::id::shown;
use serde_json::Value;

use super::addresses::Given;
use super::chain::{Chain, capability};
use super::error::NativeError;
use crate::nft::{HostPort, PORTS_LIMIT, Protocol, State};
use crate::plugin::Attachment;

/// Adds the ports asked for to the entries; their owner is the pod. One without an address of the host leads from every one,
/// of each family the pod has an address of.
pub(super) fn add(
    entries: &mut State,
    chain: &Chain<'_>,
    attachment: &Attachment,
    given: &Given,
) -> Result<(), NativeError> {
    let Some(asked) = chain.portmap.and_then(|plugin| capability(plugin, attachment, "portMappings")) else {
        return Ok(());
    };
    let list = asked.as_array().ok_or_else(|| bad("it is no list"))?;
    if list.len() > PORTS_LIMIT {
        return Err(bad(&format!("it has more than {PORTS_LIMIT} entries")));
    }
    for mapping in list {
        let (port, to) = (number(mapping, "hostPort")?, number(mapping, "containerPort")?);
        let protocol = protocol(mapping)?;
        let hosts = host_addresses(mapping)?;
        let reachable: Vec<_> = hosts.iter().filter_map(|host| Some((*host, given.first(host.is_ipv4())?))).collect();
        if reachable.is_empty() {
            let problem = "the pod has no address that a port of the host could lead to, in the family of the port's";
            return Err(NativeError::Invalid(format!("host port {port}/{protocol}: {problem}")));
        }
        for (address, pod) in reachable {
            let first = HostPort { address, protocol, port };
            entries.forward(first, 1, SocketAddr::new(pod, to), &attachment.container_id)?;
        }
    }
    Ok(())
}

fn bad(problem: &str) -> NativeError {
    NativeError::Invalid(format!("the capability 'portMappings' cannot be used: {problem}"))
}

fn number(mapping: &Value, key: &str) -> Result<u16, NativeError> {
    let number = mapping.get(key).and_then(Value::as_u64).and_then(|number| u16::try_from(number).ok());
    number.filter(|port| *port != 0).ok_or_else(|| bad(&format!("{key} must be a number from 1 to 65535")))
}

fn text<'v>(mapping: &'v Value, key: &str) -> Result<&'v str, NativeError> {
    match mapping.get(key) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(bad(&format!("{key} must be a text"))),
    }
}

fn protocol(mapping: &Value) -> Result<Protocol, NativeError> {
    let text = text(mapping, "protocol")?;
    match text.to_ascii_lowercase().as_str() {
        "" | "tcp" => Ok(Protocol::Tcp),
        "udp" => Ok(Protocol::Udp),
        "sctp" => Ok(Protocol::Sctp),
        _ => Err(bad(&format!("the protocol '{}' is none of tcp, udp, sctp", shown(text)))),
    }
}

/// The host's address that is meant, or that for all of each family.
fn host_addresses(mapping: &Value) -> Result<Vec<IpAddr>, NativeError> {
    let text = text(mapping, "hostIP")?;
    if text.is_empty() {
        return Ok(vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]);
    }
    match text.parse() {
        Ok(address) => Ok(vec![address]),
        Err(_) => Err(bad(&format!("the hostIP '{}' is not an address", shown(text)))),
    }
}
