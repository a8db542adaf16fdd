//! Makes the contents of `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf` of the apps. This module does no I/O.
//!
//! | `plan.resolv` | resolv.conf |
//! |---|---|
//! | `Network`, networks | the DNS settings of the first network that has some; else the default servers |
//! | `Network`, the host's network | the host's file |
//! | `Network`, no network | the image's own |
//! | `Given` | the given settings; without servers, those of the host's network or the default servers |
//! | `Host` | the host's file, unchanged |
//! | `None` | the image's own |
//!
//! The default servers are gantry's resolver on the pod's gateway, and then the host's servers that a pod can reach.

use std::fmt::Write as _;
use std::net::IpAddr;

use gantry_contract::plan::{Net, Plan};
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::net::{Dns, DnsSpec, HostsSpec, NameServer, PodNetwork};
use gantry_model::resolv_conf::{self, Directive};

use crate::failure::{Result, failure};

/// The file with the DNS servers.
pub(crate) const RESOLV: &str = "resolv.conf";

/// Maximum number of servers that a resolver asks (MAXNS, resolv.conf(5)).
const MAX_SERVERS: usize = 3;

/// A file of `/etc` that gantry writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its contents.
    pub(crate) text: Vec<u8>,
    /// Whether the pod must not run without it. A file with default contents is left out if the image does not allow
    /// it.
    pub(crate) required: bool,
}

/// The files of the host that the plan needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostFiles {
    /// Its resolv.conf.
    pub(crate) resolv: Option<Vec<u8>>,
    /// The resolv.conf with the upstream servers of systemd-resolved, which itself listens on a loopback address.
    pub(crate) upstream_resolv: Option<Vec<u8>>,
    /// Its hosts.
    pub(crate) hosts: Option<Vec<u8>>,
}

/// The files of a pod. `resolver` is the address of gantry's resolver for this pod.
pub(crate) fn files(
    plan: &Plan,
    host: &HostFiles,
    attached: &[PodNetwork],
    resolver: Option<IpAddr>,
) -> Result<Vec<File>> {
    let mut files = vec![
        hosts(plan, host, attached)?,
        File { name: "hostname", text: format!("{}\n", check_word(&plan.hostname)?).into_bytes(), required: false },
    ];
    files.extend(resolv(plan, host, attached, resolver)?);
    Ok(files)
}

/// machine-id(5) of an app that systemd runs in: the pod's UUID.
pub(crate) fn machine_id(pod: &str) -> File {
    File { name: "machine-id", text: format!("{}\n", pod.replace('-', "")).into_bytes(), required: false }
}

fn hosts(plan: &Plan, host: &HostFiles, attached: &[PodNetwork]) -> Result<File> {
    let entries = match &plan.hosts {
        HostsSpec::Host => return host_copy("hosts", host.hosts.as_ref()),
        HostsSpec::Entries(entries) => entries,
    };
    let mut text = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n".to_owned();
    let own = attached.iter().flat_map(|network| &network.addresses).map(|address| address.address).next();
    let own = own.unwrap_or(IpAddr::from([127, 0, 1, 1]));
    line(&mut text, &own.to_string(), "\t", &[&plan.hostname])?;
    for (address, names) in entries {
        if names.is_empty() {
            return Err(failure(ErrorKind::Invalid, format!("the entry of {address} for /etc/hosts has no name")));
        }
        line(&mut text, &address.to_string(), "\t", names)?;
    }
    Ok(File { name: "hosts", text: text.into_bytes(), required: !entries.is_empty() })
}

fn resolv(plan: &Plan, host: &HostFiles, attached: &[PodNetwork], resolver: Option<IpAddr>) -> Result<Option<File>> {
    let dns = match (&plan.resolv, &plan.net) {
        (DnsSpec::None, _) | (DnsSpec::Network, Net::None) => return Ok(None),
        (DnsSpec::Host, _) => return host_copy(RESOLV, host.resolv.as_ref()).map(Some),
        // A host without the file has no names to look up either.
        (DnsSpec::Network, Net::Host) => return Ok(host_copy(RESOLV, host.resolv.as_ref()).ok()),
        (DnsSpec::Network, Net::Networks(_)) => network_dns(host, attached, resolver),
        // As in rkt, given settings replace those of the networks. But a file without servers would resolve nothing.
        (DnsSpec::Given(dns), net) if dns.servers.is_empty() => {
            let servers = match net {
                Net::None => Vec::new(),
                Net::Host => host.resolv.as_deref().map(parse).unwrap_or_default().servers,
                Net::Networks(_) => default_dns(host, attached, resolver).servers,
            };
            Dns { servers, ..dns.clone() }
        }
        (DnsSpec::Given(dns), _) => dns.clone(),
    };
    let text = resolv_text(&dns)?;
    // Without any setting, the image's own file stays.
    let file = File { name: RESOLV, text: text.into_bytes(), required: true };
    Ok((dns != Dns::default()).then_some(file))
}

fn host_copy(name: &'static str, text: Option<&Vec<u8>>) -> Result<File> {
    match text {
        Some(text) => Ok(File { name, text: text.clone(), required: true }),
        None => Err(failure(
            ErrorKind::Unavailable,
            format!("the pod uses the host's /etc/{name}, which is missing, too large, or not a regular file"),
        )),
    }
}

/// The settings of the first network that has some, with the default servers if it has none.
fn network_dns(host: &HostFiles, attached: &[PodNetwork], resolver: Option<IpAddr>) -> Dns {
    let default = default_dns(host, attached, resolver);
    match attached.iter().map(|it| &it.dns).find(|dns| **dns != Dns::default()) {
        Some(dns) if dns.servers.is_empty() => Dns { servers: default.servers, ..dns.clone() },
        Some(dns) => dns.clone(),
        None => default,
    }
}

/// The default servers.
fn default_dns(host: &HostFiles, attached: &[PodNetwork], resolver: Option<IpAddr>) -> Dns {
    let mut dns = host.resolv.as_deref().map(parse).unwrap_or_default();
    dns.servers.retain(is_reachable);
    if dns.servers.is_empty() {
        // The host's server is on loopback, which the pod cannot reach: its upstream servers are used instead.
        let upstream = host.upstream_resolv.as_deref().map(parse).unwrap_or_default();
        dns.servers = upstream.servers.into_iter().filter(is_reachable).collect();
    }
    // A server of an address family that the pod lacks would only use up one of the three places.
    let own: Vec<IpAddr> = attached.iter().flat_map(|it| &it.addresses).map(|it| it.address).collect();
    dns.servers.retain(|server| own.is_empty() || own.iter().any(|it| it.is_ipv4() == server.address().is_ipv4()));
    if resolver.is_some() {
        // Only gantry's resolver knows the names of pods. With `rotate` the others would be asked in turn, not as a
        // fallback.
        dns.options.retain(|option| option != "rotate");
    }
    dns.servers.splice(0..0, resolver.map(NameServer::from));
    dns.servers.truncate(MAX_SERVERS);
    dns
}

/// Whether a pod can reach a server of the host. Loopback is the pod's own, and an IPv6 link-local address is on an
/// interface of the host. The host forwards to IPv4 link-local servers, such as those of clouds (169.254.169.254), or
/// has their address itself (NodeLocal DNS: 169.254.20.10).
fn is_reachable(server: &NameServer) -> bool {
    let address = server.address();
    let is_link_local6 = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    !(address.is_loopback() || address.is_unspecified() || is_link_local6 || server.zone().is_some())
}

/// The settings in a resolv.conf that apply in a pod.
fn parse(text: &[u8]) -> Dns {
    let mut dns = Dns::default();
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    for directive in resolv_conf::directives(&String::from_utf8_lossy(text)) {
        match directive {
            // One that is malformed is skipped, as the C library does.
            Directive::NameServer { address, zone } => dns.servers.extend(NameServer::new(address, zone)),
            // The last of `search` and `domain` counts (resolv.conf(5)).
            Directive::Search(names) => (dns.search, dns.domain) = (owned(names), None),
            Directive::Domain(name) => (dns.search, dns.domain) = (Vec::new(), Some(name.to_owned())),
            Directive::Options(options) => dns.options.extend(owned(options)),
        }
    }
    let plain = |text: &String| check_word(text).is_ok();
    dns.search.retain(plain);
    dns.options.retain(plain);
    dns.domain = dns.domain.filter(plain);
    dns
}

/// Formats a resolv.conf, with the lines in rkt's order.
fn resolv_text(dns: &Dns) -> Result<String> {
    let mut text = String::new();
    for server in &dns.servers {
        line(&mut text, "nameserver", " ", &[server.to_string()])?;
    }
    line(&mut text, "domain", " ", dns.domain.as_slice())?;
    line(&mut text, "search", " ", &dns.search)?;
    line(&mut text, "options", " ", &dns.options)?;
    Ok(text)
}

/// Appends a line of a first word and further ones, if there are further ones.
fn line(text: &mut String, first: &str, gap: &str, rest: &[impl AsRef<str>]) -> Result<()> {
    let rest = rest.iter().map(|it| check_word(it.as_ref())).collect::<Result<Vec<_>>>()?;
    if !rest.is_empty() {
        let _cannot_fail = writeln!(text, "{first}{gap}{}", rest.join(" "));
    }
    Ok(())
}

/// Checks that a text is one word: nothing in it ends the word or the line, or starts a comment.
fn check_word(text: &str) -> Result<&str> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || c == '#';
    if text.is_empty() || text.len() > 4096 || text.contains(bad) {
        return Err(failure(
            ErrorKind::Invalid,
            format!("'{}' is not a single word, as a file in the app's /etc needs", shown(text)),
        ));
    }
    Ok(text)
}

#[cfg(test)]
#[path = "etc_tests.rs"]
mod tests;
