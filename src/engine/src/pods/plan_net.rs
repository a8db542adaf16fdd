//! The networks of a plan: which, how this host runs them, published ports, resolv.conf and hosts. Pure.

use std::net::IpAddr;
use std::path::Path;

use gantry_contract::{network, plan as out};
use gantry_fetch::config::ImageConfig;
use gantry_fetch::ports::DeclaredPort;
use gantry_fetch::source::digest_of;
use gantry_model::id::{Algorithm, shown};
use gantry_model::net::{HostsSpec, PodPort, PortSpec, PortTarget, port_range};
use gantry_model::{AppName, ErrorKind, NetMode};
use gantry_store::Layout;

use crate::NetworkOptions;
use crate::pods::plan::PlanError;
use crate::settings::DEFAULT_DIR;

/// The name of the nftables tables of the default data directory.
const TABLE: &str = "gantry";
/// The most ports of a pod that gantry picks on the host.
const MAX_PICKED: usize = 1024;
/// The maximum number of declared ports that an error names.
const MAX_NAMED: usize = 20;

/// More free ports of the host than the limit of a pod.
fn too_many_ports() -> PlanError {
    refuse(format!(
        "gantry picks at most {MAX_PICKED} ports of the host for a pod: publish the ports that are needed one by one"
    ))
}

fn refuse(message: String) -> PlanError {
    PlanError::new(ErrorKind::Invalid, message)
}

fn declared(known: &[String]) -> String {
    match known {
        [] => "the pod's images declare none".to_owned(),
        known => format!("declared are: {}", known.join(", ")),
    }
}

/// The network settings of this host.
pub(crate) fn host(options: &NetworkOptions, layout: &Layout) -> network::Host {
    let NetworkOptions { config_dirs, plugin_dirs, use_plugins, plugin_limit, resolver, .. } = options;
    let text = |path: &Path| path.to_string_lossy().into_owned();
    network::Host {
        state_dir: text(&layout.net_dir()),
        pods_dir: text(&layout.pods_dir()),
        config_dirs: config_dirs.clone(),
        plugin_dirs: plugin_dirs.clone(),
        table: table(layout.root()),
        use_plugins: *use_plugins,
        plugin_limit_ms: gantry_model::quantity::milliseconds(*plugin_limit),
        resolver: *resolver,
    }
}

/// The name of the nftables tables of a data directory: each installation on a host has its own.
pub(crate) fn table(dir: &Path) -> String {
    if dir == Path::new(DEFAULT_DIR) {
        return TABLE.to_owned();
    }
    let digest = digest_of(Algorithm::Sha256, dir.as_os_str().as_encoded_bytes());
    format!("{TABLE}-{}", digest.hex().chars().take(8).collect::<String>())
}

/// The networks in the format of the plan. Only a pod with networks of its own may have ports.
pub(crate) fn net(mode: &NetMode, ports: Vec<PodPort>, host: network::Host) -> Result<out::Net, PlanError> {
    if !ports.is_empty() {
        gantry_model::net::takes_ports(mode)?;
    }
    let (all, wanted) = match mode {
        NetMode::None => return Ok(out::Net::None),
        NetMode::Host => return Ok(out::Net::Host),
        NetMode::Networks(wanted) => (false, wanted),
        NetMode::All(wanted) => (true, wanted),
    };
    Ok(out::Net::Networks(out::Networks { host, wanted: wanted.clone(), all, ports, kubernetes: None }))
}

/// The network mode from which a plan's networks were made.
pub(crate) fn mode(net: &out::Net) -> NetMode {
    match net {
        out::Net::None => NetMode::None,
        out::Net::Host => NetMode::Host,
        out::Net::Networks(networks) => {
            let wanted = networks.wanted.clone();
            if networks.all { NetMode::All(wanted) } else { NetMode::Networks(wanted) }
        }
    }
}

/// Keeps the settings of a Kubernetes pod when its networks are resolved again, and the given configuration if its
/// networks are the same.
pub(crate) fn keep_given(former: &out::Net, net: &mut out::Net) {
    if let (out::Net::Networks(former), out::Net::Networks(networks)) = (former, net) {
        networks.kubernetes.clone_from(&former.kubernetes);
        let same = (former.all, &former.wanted) == (networks.all, &networks.wanted);
        if let Some(settings) = networks.kubernetes.as_mut().filter(|_| !same) {
            settings.network = None;
        }
    }
}

/// The published ports of a plan, to keep them when its networks are replaced.
pub(crate) fn ports_of(net: &out::Net) -> Vec<PodPort> {
    match net {
        out::Net::None | out::Net::Host => Vec::new(),
        out::Net::Networks(networks) => networks.ports.clone(),
    }
}

/// The requested ports, each with its number; `images` are the apps with their images' settings. Ports at free ports of
/// the host are single ones.
pub(crate) fn ports(asked: &[PortSpec], images: &[(&AppName, &ImageConfig)]) -> Result<Vec<PodPort>, PlanError> {
    let mut ports: Vec<PodPort> = Vec::with_capacity(asked.len());
    for asked in asked.iter().filter(|asked| asked.to != PortTarget::All) {
        let port = port(asked, images)?;
        if let Some(common) = ports.iter().find_map(|earlier| common(earlier, &port)) {
            let protocol = port.protocol.as_str();
            return Err(refuse(format!("{protocol} port {common} of the host is published twice")));
        }
        if port.host_port == 0 { ports.extend(single(&port)) } else { ports.push(port) }
    }
    // A port that is published already is not published again, as with podman.
    for all in asked.iter().filter(|asked| asked.to == PortTarget::All) {
        for declared in images.iter().flat_map(|(_, config)| config.ports()) {
            let DeclaredPort { name: _, port: pod_port, count, protocol } = declared;
            if ports.len().saturating_add(count.into()) > MAX_PICKED {
                return Err(too_many_ports());
            }
            let port = PodPort { host_ip: all.host_ip, host_port: 0, pod_port, count, protocol };
            let new: Vec<_> =
                single(&port).filter(|port| !ports.iter().any(|earlier| leads_to(earlier, port))).collect();
            ports.extend(new);
        }
    }
    if ports.iter().filter(|port| port.host_port == 0).count() > MAX_PICKED {
        return Err(too_many_ports());
    }
    Ok(ports)
}

/// The ports of a range, one by one.
fn single(port: &PodPort) -> impl Iterator<Item = PodPort> + use<> {
    let port = port.clone();
    (0..port.count).map(move |offset| PodPort {
        pod_port: port.pod_port.saturating_add(offset),
        count: 1,
        ..port.clone()
    })
}

/// Whether a port covers the same port of the pod as another single port.
fn leads_to(one: &PodPort, single: &PodPort) -> bool {
    one.protocol == single.protocol
        && single.pod_port.checked_sub(one.pod_port).is_some_and(|offset| offset < one.count)
}

fn port(asked: &PortSpec, images: &[(&AppName, &ImageConfig)]) -> Result<PodPort, PlanError> {
    let PortSpec { to, host_ip, host_port } = asked;
    let (pod_port, count, protocol) = match to {
        PortTarget::Numbered { port, count, protocol } => (*port, *count, *protocol),
        PortTarget::Named(name) => {
            let DeclaredPort { name, port, count, protocol } = named(name, images)?;
            let fits = if *host_port == 0 { port_range(port, count) } else { port_range(*host_port, count) };
            fits.map_err(|source| {
                let name = shown(&name);
                refuse(format!("port '{name}' cannot be published on port {host_port} of the host")).caused_by(source)
            })?;
            (port, count, protocol)
        }
        // Not one port; the caller handles it.
        PortTarget::All => return Err(too_many_ports()),
    };
    Ok(PodPort { host_ip: *host_ip, host_port: *host_port, pod_port, count, protocol })
}

/// As in rkt, a name that two apps declare is ambiguous, even where both mean the same port.
fn named(name: &str, images: &[(&AppName, &ImageConfig)]) -> Result<DeclaredPort, PlanError> {
    let mut found: Option<(&AppName, DeclaredPort)> = None;
    for &(app, config) in images {
        let Some(port) = config.ports().find(|port| port.name == name) else { continue };
        if let Some((first, _)) = found {
            return Err(refuse(format!(
                "port '{}' is ambiguous: apps '{first}' and '{app}' both declare it; write --port HOSTPORT:PODPORT",
                shown(name)
            )));
        }
        found = Some((app, port));
    }
    found.map(|(_, port)| port).ok_or_else(|| {
        let ports = images.iter().flat_map(|(_, config)| config.ports()).map(|port| port.name);
        let declared = declared(&ports.take(MAX_NAMED).collect::<Vec<_>>());
        refuse(format!(
            "no port named '{}': {declared}; write --port HOSTPORT:PODPORT for one that no image declares",
            shown(name)
        ))
    })
}

/// The first port of the host that both publish.
fn common(one: &PodPort, other: &PodPort) -> Option<u16> {
    let same_address = match (one.host_ip, other.host_ip) {
        (None, _) | (_, None) => true,
        (Some(a), Some(b)) => a == b || (a.is_ipv4() == b.is_ipv4() && (a.is_unspecified() || b.is_unspecified())),
    };
    let last = |port: &PodPort| port.host_port.saturating_add(port.count.saturating_sub(1));
    let (first, last) = (one.host_port.max(other.host_port), last(one).min(last(other)));
    let picked = one.host_port == 0 || other.host_port == 0;
    (!picked && same_address && one.protocol == other.protocol && first <= last).then_some(first)
}

/// The contents of hosts: entries of the same address share a line.
pub(crate) fn hosts(hosts: &HostsSpec) -> HostsSpec {
    let entries = match hosts {
        HostsSpec::Host => return HostsSpec::Host,
        HostsSpec::Entries(entries) => entries,
    };
    let mut lines: Vec<(IpAddr, Vec<String>)> = Vec::new();
    for (address, names) in entries {
        match lines.iter_mut().find(|(known, _)| known == address) {
            Some((_, known)) => known.extend(names.iter().cloned()),
            None => lines.push((*address, names.clone())),
        }
    }
    HostsSpec::Entries(lines)
}

#[cfg(test)]
#[path = "plan_net_tests.rs"]
mod tests;
