//! The network flags: `--net`, `--port`, `--dns…`, `--hosts-entry`. They can be repeated; combinations that exclude
//! each other fail.

use std::net::IpAddr;
use std::str::FromStr as _;

use gantry_model::id::shown;
use gantry_model::net::{Dns, DnsSpec, HostsSpec, MAX_PORT_RANGE, NetMode, PortSpec, PortTarget, Protocol};
use gantry_model::{AppName, PodSpec};

use super::UsageError;
use super::values::{self, ValueError, invalid};

/// Whether a word reads like a value of `--net` rather than an image.
pub(super) fn is_like_net(word: &str) -> bool {
    let has_settings = word.split_once(':').is_some_and(|(_, settings)| settings.contains('='));
    has_settings || matches!(word, "none" | "host" | "all" | "default" | "default-restricted")
}

/// The network flags so far.
#[derive(Default)]
pub(super) struct NetDraft {
    /// The values of all `--net`, joined by commas and parsed.
    net: Option<(String, NetMode)>,
    ports: Vec<PortSpec>,
    /// `--dns=host` or `--dns=none`, which exclude `given`.
    dns: Option<Special>,
    given: Option<Dns>,
    hosts: HostsSpec,
}

/// The values of `--dns` besides addresses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    Host,
    None,
}

/// What to use instead of docker's `--net=container:NAME` and podman's `--pod`.
pub(super) const ONE_POD: &str = "apps that share a network are apps of one pod: write gantry run IMAGE IMAGE, \
                                  or gantry run IMAGE -- ARG --- IMAGE, or gantry app add POD IMAGE";

/// Whether a value of `--net` is docker's `container:NAME`.
fn is_network_of_container(value: &str) -> bool {
    value.strip_prefix("container:").is_some_and(|pod| !pod.contains('='))
}

/// The networks that the values of a flag name together; `flag` is `--net` or `--network`. `None`: there are no values.
///
/// # Errors
/// [`UsageError`]
pub(crate) fn networks(flag: &str, values: &[String]) -> Result<Option<NetMode>, UsageError> {
    let mut draft = NetDraft::default();
    for value in values {
        values::text(value)
            .and_then(|value| draft.net(&value))
            .map_err(|why| UsageError::of_value(flag, value, why))?;
    }
    Ok(draft.net.map(|(_, mode)| mode))
}

impl NetDraft {
    /// `--net`; without a value the default network, as in rkt.
    pub(super) fn net(&mut self, value: &str) -> Result<(), ValueError> {
        if is_network_of_container(value) {
            return Err(ValueError::Unsupported(ONE_POD));
        }
        let value = if value.is_empty() { gantry_model::net::DEFAULT } else { value };
        let text = match &self.net {
            Some((earlier, _)) => format!("{earlier},{value}"),
            None => value.to_owned(),
        };
        let mode = NetMode::from_str(&text).map_err(|error| ValueError::Invalid(error.to_string()))?;
        self.net = Some((text, mode));
        Ok(())
    }

    /// `--port`.
    pub(super) fn port(&mut self, value: &str) -> Result<(), ValueError> {
        self.ports.push(port(value)?);
        Ok(())
    }

    /// `--publish-all`.
    pub(super) fn publish_all(&mut self, on: bool) {
        self.ports.retain(|port| port.to != PortTarget::All);
        if on {
            self.ports.push(PortSpec { to: PortTarget::All, host_ip: None, host_port: 0 });
        }
    }

    /// `--dns`: addresses, or `host` or `none` and nothing else.
    pub(super) fn dns(&mut self, value: &str) -> Result<(), ValueError> {
        let special = match value {
            "host" => Special::Host,
            "none" => Special::None,
            _ => {
                for server in value.split(',') {
                    let address =
                        server.parse().or_else(|_| invalid(server, "an IP address, or host or none alone"))?;
                    self.given()?.servers.push(address);
                }
                return Ok(());
            }
        };
        if self.given.is_some() || self.dns.is_some_and(|earlier| earlier != special) {
            return Err(ValueError::Invalid(format!("'{value}' cannot be combined with other DNS flags")));
        }
        self.dns = Some(special);
        Ok(())
    }

    /// The DNS configuration given by flags. As in rkt, any of it replaces that of the networks.
    pub(super) fn given(&mut self) -> Result<&mut Dns, ValueError> {
        match self.dns {
            None => Ok(self.given.get_or_insert_default()),
            Some(Special::Host) => Err(ValueError::Invalid("it cannot be combined with --dns=host".into())),
            Some(Special::None) => Err(ValueError::Invalid("it cannot be combined with --dns=none".into())),
        }
    }

    /// `--hosts-entry`: `IP=NAME`, comma-separated, or `host` and nothing else.
    pub(super) fn hosts_entry(&mut self, value: &str) -> Result<(), ValueError> {
        if value == "host" {
            if self.hosts != HostsSpec::default() && self.hosts != HostsSpec::Host {
                return Err(ValueError::Invalid("'host' cannot be combined with other entries".into()));
            }
            self.hosts = HostsSpec::Host;
            return Ok(());
        }
        for entry in value.split(',') {
            let Some((address, name)) = entry.split_once('=') else {
                return invalid(entry, "IP=NAME");
            };
            self.host(self::address(address)?, name)?;
        }
        Ok(())
    }

    /// docker's `--add-host NAME:IP`.
    pub(super) fn add_host(&mut self, value: &str) -> Result<(), ValueError> {
        // Split at the first separator: an IPv6 address contains colons, a name neither.
        let Some((name, text)) = value.split_once([':', '=']) else {
            return invalid(value, "NAME:IP");
        };
        if text == "host-gateway" {
            return Err(ValueError::Unsupported("use the gateway that 'gantry network list -o json' shows"));
        }
        let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        self.host(self::address(text)?, name)
    }

    /// Adds a name to an address.
    fn host(&mut self, address: IpAddr, name: &str) -> Result<(), ValueError> {
        if !is_host_name(name) {
            return invalid(name, "a host name");
        }
        let HostsSpec::Entries(entries) = &mut self.hosts else {
            return Err(ValueError::Invalid("entries cannot be combined with the host's file ('host')".into()));
        };
        match entries.iter_mut().find(|(known, _)| *known == address) {
            Some((_, names)) => names.push(name.to_owned()),
            None => entries.push((address, vec![name.to_owned()])),
        }
        Ok(())
    }

    /// Sets the networks of the pod.
    pub(super) fn onto(self, spec: &mut PodSpec) {
        spec.net = self.net.map(|(_, mode)| mode);
        spec.dns = match self.dns {
            Some(Special::Host) => DnsSpec::Host,
            Some(Special::None) => DnsSpec::None,
            None => self.given.map_or(DnsSpec::Network, DnsSpec::Given),
        };
        (spec.ports, spec.hosts) = (self.ports, self.hosts);
    }
}

fn address(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().or_else(|_| invalid(text, "an IP address"))
}

/// The host address on which a port is published.
fn host_address(text: &str) -> Result<IpAddr, ValueError> {
    let address = address(text)?;
    gantry_model::net::host_address(address).map_err(|error| ValueError::Invalid(error.to_string()))?;
    Ok(address)
}

/// A domain of resolv.conf(5); `.` is the root.
pub(super) fn domain(text: &str) -> Result<String, ValueError> {
    if text == "." || is_host_name(text) {
        return Ok(text.to_owned());
    }
    invalid(text, "a domain name; the flag can be repeated")
}

/// Whether this is a host name (RFC 1123, section 2.1; underscores are accepted, too).
fn is_host_name(text: &str) -> bool {
    let fits = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_'))
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= 253 && text.strip_suffix('.').unwrap_or(text).split('.').all(fits)
}

/// The syntax of `--port` and `--publish`.
const PORT: &str = "NAME[:[HOSTIP:]HOSTPORT] or [[HOSTIP:][HOSTPORT[-END]]:]PODPORT[-END][/tcp|udp|sctp], \
                    with an IPv6 address in brackets";

/// rkt's `NAME:[HOSTIP:]HOSTPORT`, or docker's `[HOSTIP:]HOSTPORT[-END]:PODPORT[-END][/PROTOCOL]`. It is docker's if
/// it begins with an address or a number: the name of a port contains a letter.
fn port(value: &str) -> Result<PortSpec, ValueError> {
    let (rest, protocol) = match value.rsplit_once('/') {
        Some((rest, protocol)) => (rest, Some(protocol.parse::<Protocol>().map_err(ValueError::Invalid)?)),
        None => (value, None),
    };
    let fields = fields(rest).unwrap_or_default();
    match fields[..] {
        [pod] if is_numeric(pod) => at_a_free_port(None, pod, protocol.unwrap_or_default()),
        [ip, "", pod] if is_numeric(pod) => at_a_free_port(Some(host_address(ip)?), pod, protocol.unwrap_or_default()),
        [name] if is_port_name(name) => named(name, None, None, protocol),
        [host, pod] if is_numeric(host) => numbered(None, host, pod, protocol.unwrap_or_default()),
        [ip, host, pod] if ip.parse::<IpAddr>().is_ok() => {
            numbered(Some(host_address(ip)?), host, pod, protocol.unwrap_or_default())
        }
        [name, port] if is_port_name(name) => named(name, None, Some(port), protocol),
        [name, ip, port] if is_port_name(name) => named(name, Some(host_address(ip)?), Some(port), protocol),
        _ => invalid(value, PORT),
    }
}

/// The engine chooses a free port of the host when the pod starts.
fn at_a_free_port(host_ip: Option<IpAddr>, pod: &str, protocol: Protocol) -> Result<PortSpec, ValueError> {
    let (port, count) = range(pod)?;
    Ok(PortSpec { to: PortTarget::Numbered { port, count, protocol }, host_ip, host_port: 0 })
}

fn numbered(host_ip: Option<IpAddr>, host: &str, pod: &str, protocol: Protocol) -> Result<PortSpec, ValueError> {
    let (host_port, host_count) = range(host)?;
    let (port, count) = range(pod)?;
    if host_count != count {
        return Err(ValueError::Invalid(format!(
            "'{}' and '{}' differ in size: {host_count} ports of the host for {count} of the pod",
            shown(host),
            shown(pod)
        )));
    }
    Ok(PortSpec { to: PortTarget::Numbered { port, count, protocol }, host_ip, host_port })
}

/// Without a port of the host, a free one is chosen.
fn named(
    name: &str,
    host_ip: Option<IpAddr>,
    port: Option<&str>,
    protocol: Option<Protocol>,
) -> Result<PortSpec, ValueError> {
    if let Some(protocol) = protocol {
        let protocol = protocol.as_str();
        return Err(ValueError::Invalid(format!(
            "the image declares the protocol of port '{name}': omit '/{protocol}'"
        )));
    }
    let host_port = port.map_or(Ok(0), number)?;
    Ok(PortSpec { to: PortTarget::Named(name.to_owned()), host_ip, host_port })
}

/// The fields between colons; an address in brackets is one field, without the brackets. `None`: a bracket is
/// misplaced.
fn fields(text: &str) -> Option<Vec<&str>> {
    let (mut fields, mut rest) = (Vec::new(), text);
    loop {
        let (field, after) = match rest.strip_prefix('[') {
            Some(inside) => inside.split_once(']')?,
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        fields.push(field);
        match after.strip_prefix(':') {
            Some(more) => rest = more,
            None => return after.is_empty().then_some(fields),
        }
    }
}

/// Whether this is a port or a range, valid or not, and not a name.
fn is_numeric(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit() || c == b'-')
}

/// Whether this is the name of a port: an AC name of appc, like the names of apps.
fn is_port_name(text: &str) -> bool {
    !is_numeric(text) && text.parse::<AppName>().is_ok()
}

/// `PORT` or `FIRST-LAST`: the first port and the number of ports.
fn range(text: &str) -> Result<(u16, u16), ValueError> {
    let is_range = |(first, last): &(&str, &str)| !first.is_empty() && !last.is_empty();
    let Some((first, last)) = text.split_once('-').filter(is_range) else {
        return Ok((number(text)?, 1));
    };
    let (first, last) = (number(first)?, number(last)?);
    match last.checked_sub(first) {
        Some(more) if more < MAX_PORT_RANGE => Ok((first, more + 1)),
        Some(_) => {
            Err(ValueError::Invalid(format!("'{}' is too large: the limit is {MAX_PORT_RANGE} ports", shown(text))))
        }
        None => invalid(text, "a range of ports: the first port must be the lower one"),
    }
}

fn number(text: &str) -> Result<u16, ValueError> {
    match values::number(text, "a port: 1 to 65535")? {
        0 => invalid(text, "a port: 1 to 65535"),
        port => Ok(port),
    }
}
