//! What `/etc/hosts`, `/etc/hostname` and `/etc/resolv.conf` of the apps say. Text in, text out: nothing is read or written
//! here.
//!
//! | `plan.resolv` | resolv.conf |
//! |---|---|
//! | `Network`, networks | the DNS of the first network that says something of it; else the resolver on the pod's gateway and then the host's servers that a pod can reach |
//! | `Network`, the host's network | the host's file |
//! | `Network`, no network | the image's own |
//! | `Given` | what was given; without servers, with those that nobody said anything else for |
//! | `Host` | the host's file, whatever is in it |
//! | `None` | the image's own |

use std::fmt::Write as _;
use std::net::IpAddr;

use gantry_contract::network::Attached;
use gantry_contract::plan::{Dns, Hosts, Net, Plan, Resolv};
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use gantry_model::resolv_conf::{self, Directive};

use crate::failure::{Result, failure};

/// The file that says whom to ask for names.
pub(crate) const RESOLV: &str = "resolv.conf";

/// How many servers a resolver asks (MAXNS, resolv.conf(5)).
const MAX_SERVERS: usize = 3;

/// A file of `/etc` that gantry writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct File {
    /// Its name.
    pub(crate) name: &'static str,
    /// What it says.
    pub(crate) text: Vec<u8>,
    /// Whether the pod must not run without it. What is only the usual content gives way to a strange image.
    pub(crate) required: bool,
}

/// What was read on the host; only what the plan needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct HostFiles {
    /// Its resolv.conf.
    pub(crate) resolv: Option<Vec<u8>>,
    /// The resolv.conf with the upstream servers of systemd-resolved, which itself listens on a loopback address.
    pub(crate) upstream_resolv: Option<Vec<u8>>,
    /// Its hosts.
    pub(crate) hosts: Option<Vec<u8>>,
}

/// The files of a pod. `resolver` is the address on which this gantry answers the pod's questions.
pub(crate) fn files(
    plan: &Plan,
    host: &HostFiles,
    attached: &[Attached],
    resolver: Option<IpAddr>,
) -> Result<Vec<File>> {
    let mut files = vec![
        hosts(plan, host, attached)?,
        File { name: "hostname", text: format!("{}\n", word(&plan.hostname)?).into_bytes(), required: false },
    ];
    files.extend(resolv(plan, host, attached, resolver)?);
    Ok(files)
}

fn hosts(plan: &Plan, host: &HostFiles, attached: &[Attached]) -> Result<File> {
    let entries = match &plan.hosts {
        Hosts::Host => return of_host("hosts", host.hosts.as_ref()),
        Hosts::Entries(entries) => entries,
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

fn resolv(plan: &Plan, host: &HostFiles, attached: &[Attached], resolver: Option<IpAddr>) -> Result<Option<File>> {
    let dns = match (&plan.resolv, &plan.net) {
        (Resolv::None, _) | (Resolv::Network, Net::None) => return Ok(None),
        (Resolv::Host, _) => return of_host(RESOLV, host.resolv.as_ref()).map(Some),
        // A host without the file has no names to look up either.
        (Resolv::Network, Net::Host) => return Ok(of_host(RESOLV, host.resolv.as_ref()).ok()),
        (Resolv::Network, Net::Networks(_)) => of_networks(host, attached, resolver),
        // What networks say of DNS is switched off, as in rkt; but a file without servers would have nobody asked.
        (Resolv::Given(dns), net) if dns.servers.is_empty() => {
            let servers = match net {
                Net::None => Vec::new(),
                Net::Host => host.resolv.as_deref().map(parse).unwrap_or_default().servers,
                Net::Networks(_) => usual(host, attached, resolver).servers,
            };
            Dns { servers, ..dns.clone() }
        }
        (Resolv::Given(dns), _) => dns.clone(),
    };
    let text = resolv_text(&dns)?;
    // Nobody knows a server: then the image's own file may.
    let file = File { name: RESOLV, text: text.into_bytes(), required: true };
    Ok((dns != Dns::default()).then_some(file))
}

fn of_host(name: &'static str, text: Option<&Vec<u8>>) -> Result<File> {
    match text {
        Some(text) => Ok(File { name, text: text.clone(), required: true }),
        None => Err(failure(
            ErrorKind::Unavailable,
            format!("the pod was to have the host's /etc/{name}, and that is not there or not a small file"),
        )),
    }
}

/// What the first network says that says something, with the usual servers where it names none.
fn of_networks(host: &HostFiles, attached: &[Attached], resolver: Option<IpAddr>) -> Dns {
    let usual = usual(host, attached, resolver);
    match attached.iter().map(|it| &it.dns).find(|dns| **dns != Dns::default()) {
        Some(said) if said.servers.is_empty() => Dns { servers: usual.servers, ..said.clone() },
        Some(said) => said.clone(),
        None => usual,
    }
}

/// What a pod asks that nobody said anything else for.
fn usual(host: &HostFiles, attached: &[Attached], resolver: Option<IpAddr>) -> Dns {
    let mut dns = host.resolv.as_deref().map(parse).unwrap_or_default();
    dns.servers.retain(is_reachable);
    if dns.servers.is_empty() {
        // The host asks itself, where the pod cannot reach it; systemd-resolved tells whom that asks.
        let upstream = host.upstream_resolv.as_deref().map(parse).unwrap_or_default();
        dns.servers = upstream.servers.into_iter().filter(is_reachable).collect();
    }
    // A server that the pod has no address to ask from would only take the place of another.
    let own: Vec<IpAddr> = attached.iter().flat_map(|it| &it.addresses).map(|it| it.address).collect();
    dns.servers.retain(|server| own.is_empty() || own.iter().any(|it| it.is_ipv4() == server.is_ipv4()));
    if resolver.is_some() {
        // It alone knows the names of pods: the host's servers are for when it does not answer, and not asked in turn.
        dns.options.retain(|option| option != "rotate");
    }
    dns.servers.splice(0..0, resolver);
    dns.servers.truncate(MAX_SERVERS);
    dns
}

/// Loopback is the pod's own, and link-local addresses need an interface that the pod does not have.
fn is_reachable(server: &IpAddr) -> bool {
    let local = match server {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(server.is_loopback() || server.is_unspecified() || local)
}

/// The settings in a resolv.conf that apply in a pod.
fn parse(text: &[u8]) -> Dns {
    let mut dns = Dns::default();
    let owned = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<Vec<_>>();
    for directive in resolv_conf::directives(&String::from_utf8_lossy(text)) {
        match directive {
            // A link-local address is of an interface that the pod does not have.
            Directive::NameServer { address, zone } => dns.servers.extend(Some(address).filter(|_| zone.is_none())),
            // The last of `search` and `domain` counts (resolv.conf(5)).
            Directive::Search(names) => (dns.search, dns.domain) = (owned(names), None),
            Directive::Domain(name) => (dns.search, dns.domain) = (Vec::new(), Some(name.to_owned())),
            Directive::Options(options) => dns.options.extend(owned(options)),
        }
    }
    let plain = |text: &String| word(text).is_ok();
    dns.search.retain(plain);
    dns.options.retain(plain);
    dns.domain = dns.domain.filter(plain);
    dns
}

/// In rkt's order.
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

/// A line of a first word and further ones, if there are any.
fn line(text: &mut String, first: &str, gap: &str, rest: &[impl AsRef<str>]) -> Result<()> {
    let rest = rest.iter().map(|it| word(it.as_ref())).collect::<Result<Vec<_>>>()?;
    if !rest.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{first}{gap}{}", rest.join(" "));
    }
    Ok(())
}

/// One word and no more: nothing that ends it, its line, or begins a comment.
fn word(text: &str) -> Result<&str> {
    let bad = |c: char| c.is_whitespace() || c.is_control() || c == '#';
    if text.is_empty() || text.len() > 4096 || text.contains(bad) {
        return Err(failure(
            ErrorKind::Invalid,
            format!("'{}' cannot be a word of a file in the app's /etc", shown(text)),
        ));
    }
    Ok(text)
}

#[cfg(test)]
#[path = "etc_tests.rs"]
mod tests;
