//! Validation of requests for networks. Name servers and hosts become lines of files, ports become rules of the host's
//! firewall: each is checked here, once.

use std::net::{IpAddr, Ipv6Addr};

use crate::id::shown;
use crate::net::{
    Dns, DnsSpec, HostsSpec, MAX_PORT_RANGE, MAX_PORTS, NetMode, PortSpec, PortTarget, invalid_name, is_name,
};
use crate::spec::{PodSpec, SpecError, check_count};

/// The most name servers, search domains and options, each. Resolvers use three servers and six domains.
const MAX_DNS: usize = 32;
/// The most addresses of `--hosts-entry`, and the most names of one.
const MAX_HOSTS: usize = 1024;
/// The longest name of the domain name system, as text (RFC 1035, section 2.3.4).
const MAX_DOMAIN: usize = 253;

/// Checks everything about networks that can be checked without looking at the host or an image.
pub(crate) fn check(spec: &PodSpec) -> Result<(), SpecError> {
    let PodSpec { net, ports, dns, hosts, .. } = spec;
    if let Some(net) = net {
        mode(net)?;
        if !ports.is_empty() {
            takes_ports(net)?;
        }
    }
    check_count("ports", ports.len(), MAX_PORTS)?;
    ports.iter().try_for_each(port)?;
    if let DnsSpec::Given(dns) = dns {
        resolver(dns)?;
    }
    match hosts {
        HostsSpec::Host => Ok(()),
        HostsSpec::Entries(entries) => lines(entries),
    }
}

/// Whether ports of the host can lead to a pod with these networks.
///
/// # Errors
/// [`SpecError`] for `none` and `host`.
pub fn takes_ports(net: &NetMode) -> Result<(), SpecError> {
    match net {
        NetMode::None | NetMode::Host => Err(SpecError::new(format!(
            "ports cannot be published for a pod with --net={net}: --port is for pods with networks of their own"
        ))),
        NetMode::Networks(_) | NetMode::All(_) => Ok(()),
    }
}

/// Whether its text means the same: that is what is kept of it.
fn mode(net: &NetMode) -> Result<(), SpecError> {
    let again: NetMode = net.to_string().parse()?;
    if again == *net { Ok(()) } else { Err(invalid_name("")) }
}

fn port(port: &PortSpec) -> Result<(), SpecError> {
    port.host_ip.map_or(Ok(()), host_address)?;
    match &port.to {
        PortTarget::Named(name) if is_name(name) => Ok(()),
        PortTarget::Named(name) => Err(SpecError::new(format!(
            "'{}' is not the name of a port: expected one such as http or 80-tcp",
            shown(name)
        ))),
        PortTarget::All if port.host_port == 0 => Ok(()),
        PortTarget::All => Err(SpecError::new(format!(
            "all declared ports cannot be published at port {} of the host: each needs a free port of its own",
            port.host_port
        ))),
        PortTarget::Numbered { port: 0, .. } => Err(SpecError::new("there is no port 0: ports are 1 to 65535")),
        PortTarget::Numbered { port: first, count, protocol: _ } => {
            port_range(*first, *count)?;
            if port.host_port == 0 { Ok(()) } else { port_range(port.host_port, *count) }
        }
    }
}

/// Whether a port can be published on this address of the host.
///
/// # Errors
/// [`SpecError`] for `::1`, multicast addresses, and link-local addresses of IPv6, which mean nothing without an
/// interface.
pub fn host_address(address: IpAddr) -> Result<(), SpecError> {
    if address == IpAddr::V6(Ipv6Addr::LOCALHOST) {
        return Err(SpecError::new(
            "a port cannot be published on [::1]: the kernel routes no answer from a pod to it; publish it on 127.0.0.1, or \
             on every address",
        ));
    }
    if address.is_multicast() {
        return Err(SpecError::new(format!("a port cannot be published on {address}: it is a multicast address")));
    }
    if let IpAddr::V6(address) = address
        && address.is_unicast_link_local()
    {
        return Err(SpecError::new(format!(
            "a port cannot be published on [{address}]: it is a link-local address, which each interface may have; \
             publish it on another address of the host, or on every address"
        )));
    }
    Ok(())
}

/// Checks a range of ports.
///
/// # Errors
/// [`SpecError`] when the range is empty, longer than [`MAX_PORT_RANGE`], or ends after port 65535.
pub fn port_range(first: u16, count: u16) -> Result<(), SpecError> {
    if !(1..=MAX_PORT_RANGE).contains(&count) {
        return Err(SpecError::new(format!(
            "a range of {count} ports is invalid: expected 1 to {MAX_PORT_RANGE} ports"
        )));
    }
    match first.checked_add(count - 1) {
        Some(_) => Ok(()),
        None => Err(SpecError::new(format!("{count} ports from {first} on go beyond 65535"))),
    }
}

fn resolver(dns: &Dns) -> Result<(), SpecError> {
    let Dns { servers, search, options, domain } = dns;
    for (what, count) in
        [("name servers", servers.len()), ("search domains", search.len()), ("DNS options", options.len())]
    {
        check_count(what, count, MAX_DNS)?;
    }
    for name in search.iter().chain(domain) {
        if !is_domain(name) && name != "." {
            return Err(SpecError::new(format!("'{}' is not a domain name", shown(name))));
        }
    }
    let plain = |option: &&String| {
        !option.is_empty() && option.len() <= MAX_DOMAIN && option.bytes().all(|b| b.is_ascii_graphic())
    };
    match options.iter().find(|option| !plain(option)) {
        Some(option) => Err(SpecError::new(format!(
            "'{}' is not an option of resolv.conf: expected one such as ndots:2",
            shown(option)
        ))),
        None => Ok(()),
    }
}

fn lines(entries: &[(IpAddr, Vec<String>)]) -> Result<(), SpecError> {
    let most = entries.iter().map(|(_, names)| names.len()).max().unwrap_or(0).max(entries.len());
    check_count("entries of /etc/hosts", most, MAX_HOSTS)?;
    for (address, names) in entries {
        if names.is_empty() {
            return Err(SpecError::new(format!("no name is given for {address} in /etc/hosts")));
        }
        if let Some(name) = names.iter().find(|name| !is_domain(name)) {
            let name = shown(name);
            return Err(SpecError::new(format!(
                "'{name}' cannot be a name of {address} in /etc/hosts: it is not a host name"
            )));
        }
    }
    Ok(())
}

/// Whether this is a valid name in resolv.conf(5) and hosts(5): labels of letters, digits, `-` and `_`, a dot at the
/// end or not.
fn is_domain(text: &str) -> bool {
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
            && !label.starts_with('-')
    };
    name.len() <= MAX_DOMAIN && name.split('.').all(label)
}

#[cfg(test)]
#[path = "net_check_tests.rs"]
mod tests;
