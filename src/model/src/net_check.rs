//! Validation of requests for networks. Name servers and hosts become lines of files, ports become rules of the host's
//! firewall: each is checked here, once.

use std::net::{IpAddr, Ipv6Addr};

use crate::id::shown;
use crate::net::{
    Dns, DnsSpec, HostsSpec, MAX_PORT_RANGE, MAX_PORTS, NetError, NetMode, PortSpec, PortTarget, is_name,
};
use crate::spec::PodSpec;

/// The most name servers, search domains and options, each. Resolvers use three servers and six domains.
const MAX_DNS: usize = 32;
/// The most addresses of `--hosts-entry`, and the most names of one.
const MAX_HOSTS: usize = 1024;
/// The longest name of the domain name system, as text (RFC 1035, section 2.3.4).
const MAX_DOMAIN: usize = 253;

/// Checks everything about networks that can be checked without looking at the host or an image.
pub(crate) fn check(spec: &PodSpec) -> Result<(), NetError> {
    let PodSpec { net, ports, dns, hosts, .. } = spec;
    if let Some(net) = net {
        mode(net)?;
        if !ports.is_empty() {
            takes_ports(net)?;
        }
    }
    if ports.len() > MAX_PORTS {
        return Err(NetError::TooMany { what: "ports", count: ports.len(), most: MAX_PORTS });
    }
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
/// [`NetError::NoPorts`] for `none` and `host`.
pub fn takes_ports(net: &NetMode) -> Result<(), NetError> {
    match net {
        NetMode::None => Err(NetError::NoPorts("none")),
        NetMode::Host => Err(NetError::NoPorts("host")),
        NetMode::Networks(_) | NetMode::All(_) => Ok(()),
    }
}

/// Whether its text means the same: that is what is kept of it.
fn mode(net: &NetMode) -> Result<(), NetError> {
    let again: NetMode = net.to_string().parse()?;
    if again == *net { Ok(()) } else { Err(NetError::Name(String::new())) }
}

fn port(port: &PortSpec) -> Result<(), NetError> {
    port.host_ip.map_or(Ok(()), host_address)?;
    match &port.to {
        PortTarget::Named(name) if is_name(name) => Ok(()),
        PortTarget::Named(name) => Err(NetError::PortName(shown(name))),
        PortTarget::All if port.host_port == 0 => Ok(()),
        PortTarget::All => Err(NetError::AllOnOnePort(port.host_port)),
        PortTarget::Numbered { port: 0, .. } => Err(NetError::PortZero),
        PortTarget::Numbered { port: first, count, protocol: _ } => {
            port_range(*first, *count)?;
            if port.host_port == 0 { Ok(()) } else { port_range(port.host_port, *count) }
        }
    }
}

/// Whether a port can be published on this address of the host.
///
/// # Errors
/// [`NetError::PortOnLoopback6`] and [`NetError::PortOnGroup`].
pub fn host_address(address: IpAddr) -> Result<(), NetError> {
    if address == IpAddr::V6(Ipv6Addr::LOCALHOST) {
        return Err(NetError::PortOnLoopback6);
    }
    if address.is_multicast() { Err(NetError::PortOnGroup(address)) } else { Ok(()) }
}

/// Whether so many ports can be had from this one on.
///
/// # Errors
/// [`NetError::PortCount`] and [`NetError::PortRange`].
pub fn port_range(first: u16, count: u16) -> Result<(), NetError> {
    if !(1..=MAX_PORT_RANGE).contains(&count) {
        return Err(NetError::PortCount(count));
    }
    match first.checked_add(count - 1) {
        Some(_) => Ok(()),
        None => Err(NetError::PortRange { first, count }),
    }
}

fn resolver(dns: &Dns) -> Result<(), NetError> {
    let Dns { servers, search, options, domain } = dns;
    for (what, count) in
        [("name servers", servers.len()), ("search domains", search.len()), ("DNS options", options.len())]
    {
        if count > MAX_DNS {
            return Err(NetError::TooMany { what, count, most: MAX_DNS });
        }
    }
    for name in search.iter().chain(domain) {
        if !is_domain(name) && name != "." {
            return Err(NetError::Domain(shown(name)));
        }
    }
    let plain = |option: &&String| {
        !option.is_empty() && option.len() <= MAX_DOMAIN && option.bytes().all(|b| b.is_ascii_graphic())
    };
    match options.iter().find(|option| !plain(option)) {
        Some(option) => Err(NetError::DnsOption(shown(option))),
        None => Ok(()),
    }
}

fn lines(entries: &[(IpAddr, Vec<String>)]) -> Result<(), NetError> {
    let most = entries.iter().map(|(_, names)| names.len()).max().unwrap_or(0).max(entries.len());
    if most > MAX_HOSTS {
        return Err(NetError::TooMany { what: "entries of /etc/hosts", count: most, most: MAX_HOSTS });
    }
    for (address, names) in entries {
        if names.is_empty() {
            return Err(NetError::NoHostName(*address));
        }
        if let Some(name) = names.iter().find(|name| !is_domain(name)) {
            return Err(NetError::HostName { address: *address, name: shown(name) });
        }
    }
    Ok(())
}

/// Whether this may stand as a name in resolv.conf(5) and hosts(5): labels of letters, digits, `-` and `_`, a dot at the
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
