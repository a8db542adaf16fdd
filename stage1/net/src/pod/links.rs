//! The bridges and host ends of running pods, compared with the pods' records, and their repair: other programs may
//! delete a bridge or set it down, delete addresses and routes, detach a pod's host end from its bridge, or change its
//! port.
//!
//! A repair needs only the host's side. If a host end was deleted, the kernel has deleted the pod's interface with it:
//! that pod must be started again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use gantry_contract::network::Host;
use gantry_host::lock::LockMode;
use gantry_model::net::PodAddress;
use gantry_model::{ErrorKind, Kind};

use super::error::{NetworkError, Result, with_causes};
use super::record::{Record, Records, boot};
use super::state::{LOCK_TIMEOUT, Lock, StateDir};
use super::tables::{self, EnabledInterface};
use crate::address::Cidr;
use crate::config::NetworkConfig;
use crate::native::sysctl::ensure_if_present;
use crate::native::{self, HostEndUse, HostNetwork};
use crate::netlink::link::port::Port;
use crate::netlink::link::{Change, Link};
use crate::netlink::route::{RouteFilter, TABLE_MAIN};
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{self, Namespace, Setup, Socket};

/// An interface that differs from what a pod needs.
#[derive(Debug)]
pub(super) struct LinkDefect {
    /// The pod.
    pub(super) pod: String,
    /// The defect and its remedy, for people.
    pub(super) line: String,
    repair: Repair,
}

#[derive(Debug)]
enum Repair {
    /// By name.
    RestoreBridge(String),
    ChangeHostEnd(HostEndChange),
    /// Only the user can repair it: the pod must be started again.
    RestartPod,
}

/// A change of a host end.
#[derive(Debug)]
struct HostEndChange {
    name: String,
    index: u32,
    kind: HostEndChangeKind,
}

#[derive(Debug)]
enum HostEndChangeKind {
    ConfigurePort {
        /// The index of the bridge.
        bridge: u32,
        port: Port,
    },
    SetUp(Setup<'static>),
}

/// The interfaces of the host that pods need.
#[derive(Debug, Default)]
pub(super) struct NeededLinks {
    /// By name.
    bridges: BTreeMap<String, NeededBridge>,
    host_ends: Vec<NeededHostEnd>,
}

#[derive(Debug)]
struct NeededBridge {
    /// One of the pods that use it.
    pod: String,
    /// The network of the pod that was attached last.
    network: NetworkConfig,
    /// The addresses that it has as a gateway, each with the name of the network.
    gateways: BTreeMap<Cidr, String>,
    /// Pods have IPv6 addresses.
    has_v6: bool,
}

#[derive(Debug)]
struct NeededHostEnd {
    name: String,
    pod: String,
    /// The name of the pod's interface.
    interface: String,
    purpose: Purpose,
}

#[derive(Debug)]
enum Purpose {
    Port {
        /// The name of the bridge.
        bridge: String,
        port: Port,
    },
    Gateway {
        /// The pod's addresses, each with its gateway.
        ips: Vec<(IpAddr, Option<IpAddr>)>,
    },
}

/// Repairs the bridges and host ends of the pods that are up; in the host's network namespace, where the thread is.
/// Returns a line for each defect that only the user can repair.
pub(super) fn repair(host: &Host) -> Result<Vec<String>> {
    let Some(state) = StateDir::find(host)? else { return Ok(Vec::new()) };
    // Bridges without pods are removed under the exclusive lock: a pod that ends meanwhile removes one that was created
    // here.
    let _locked = state.lock(Lock::Links, LockMode::Shared, LOCK_TIMEOUT)?;
    let (now, records) = (boot()?, Records::open(host)?);
    let mut up = records.valid()?;
    up.retain(|record| record.is_up(&now));
    let (needed, mut errors) = NeededLinks::of_pods(&up);
    let mut unrepaired = Vec::new();
    let mut socket = Socket::open().map_err(NetworkError::attempt(OPEN))?;
    let mut defects = needed.find_defects(&mut socket)?;
    let damaged: BTreeSet<String> = defects.iter().filter_map(LinkDefect::bridge).collect();
    if !damaged.is_empty() {
        for (name, bridge) in needed.bridges.iter().filter(|(name, _)| damaged.contains(*name)) {
            match bridge.restore(name, host, &mut socket) {
                // Its addresses are not those of the network.
                Err(error) if error.kind() == ErrorKind::Refused => unrepaired.push(with_causes(&error)),
                restored => errors.extend(restored.err()),
            }
        }
        // A new bridge lacks its ports.
        defects = needed.find_defects(&mut socket)?;
    }
    for defect in defects {
        match defect.repair {
            // The attempt above has failed.
            Repair::RestoreBridge(_) => {}
            // The pod's supervisor has begun to detach it since.
            _ if !records.is_up(&defect.pod, &now)? => {}
            Repair::ChangeHostEnd(change) => {
                errors.extend(change.apply(&mut socket).err());
                // A record is marked down before the interface is disconnected, which may have been undone here.
                if !records.is_up(&defect.pod, &now)? {
                    errors.extend(change.disconnect(&mut socket).err());
                }
            }
            // The kernel deletes the interfaces of a pod whose supervisor was killed.
            Repair::RestartPod if !records.is_running(&defect.pod)? => {}
            Repair::RestartPod => unrepaired.push(defect.line),
        }
    }
    if !damaged.is_empty() {
        errors.extend(tables::enable_route_localnet(&tables::needed(&up, &now)?, EnabledInterface::AddFilter).err());
    }
    NetworkError::from_all(errors).map(|()| unrepaired)
}

const OPEN: &str = "open a socket on the host";

impl LinkDefect {
    /// The bridge to restore.
    fn bridge(&self) -> Option<String> {
        match &self.repair {
            Repair::RestoreBridge(bridge) => Some(bridge.clone()),
            Repair::ChangeHostEnd(_) | Repair::RestartPod => None,
        }
    }
}

impl NeededLinks {
    /// What these pods need; they are sorted by the time of their attachment. Also returns why a network's
    /// configuration cannot be read, whose interfaces are left out.
    pub(super) fn of_pods(records: &[Record]) -> (Self, Vec<NetworkError>) {
        let (mut needed, mut errors) = (Self::default(), Vec::new());
        for record in records {
            for network in record.networks.iter().filter(|network| !network.plugins) {
                let Some(attached) = record.attached.iter().find(|it| it.interface == network.interface) else {
                    continue;
                };
                let config = match network.config() {
                    Ok(config) => config,
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                };
                let purpose = match native::host_end_use(&config) {
                    None => continue,
                    Some(HostEndUse::Port(bridge)) => {
                        let (bridge, port, is_gateway) = (bridge.name.to_owned(), bridge.port, bridge.is_gateway);
                        needed.add_bridge(&bridge, (&record.pod, config), &attached.addresses, is_gateway);
                        Purpose::Port { bridge, port }
                    }
                    Some(HostEndUse::Gateway) => {
                        Purpose::Gateway { ips: attached.addresses.iter().map(|it| (it.address, it.gateway)).collect() }
                    }
                };
                let name = native::host_interface(&record.pod, &network.interface);
                let (pod, interface) = (record.pod.clone(), network.interface.clone());
                needed.host_ends.push(NeededHostEnd { name, pod, interface, purpose });
            }
        }
        (needed, errors)
    }

    fn add_bridge(
        &mut self,
        bridge: &str,
        (pod, network): (&str, NetworkConfig),
        addresses: &[PodAddress],
        is_gateway: bool,
    ) {
        let (mut gateways, mut has_v6) = (BTreeMap::new(), false);
        for it in addresses {
            has_v6 |= it.address.is_ipv6();
            let gateway = it.gateway.filter(|_| is_gateway).and_then(|gateway| Cidr::new(gateway, it.prefix).ok());
            gateways.extend(gateway.map(|gateway| (gateway, network.name.clone())));
        }
        match self.bridges.get_mut(bridge) {
            Some(there) => {
                there.gateways.extend(gateways);
                there.has_v6 |= has_v6;
                there.network = network;
            }
            None => {
                let new = NeededBridge { pod: pod.to_owned(), network, gateways, has_v6 };
                self.bridges.insert(bridge.to_owned(), new);
            }
        }
    }

    /// The defects. Of ports, only if their bridge exists.
    pub(super) fn find_defects(&self, socket: &mut Socket) -> Result<Vec<LinkDefect>> {
        let links = socket.links().map_err(NetworkError::attempt("list the interfaces"))?;
        let links: BTreeMap<&str, &Link> = links.iter().map(|link| (link.name.as_str(), link)).collect();
        let present = socket.addresses(None).map_err(NetworkError::attempt("list the addresses of the host"))?;
        let present: BTreeSet<_> = present.iter().map(|own| (own.index, own.address.prefix)).collect();
        let mut defects = Vec::new();
        for (name, bridge) in &self.bridges {
            let restore = |problem: String, remedy: &str| LinkDefect {
                pod: bridge.pod.clone(),
                line: format!("the bridge {name} {problem}: 'gantry network reload' {remedy}"),
                repair: Repair::RestoreBridge(name.clone()),
            };
            let Some(link) = links.get(name.as_str()) else {
                let problem = format!("of network '{}' is missing", bridge.network.name);
                defects.push(restore(problem, "creates it"));
                continue;
            };
            if !link.is_up() {
                defects.push(restore("is down".to_owned(), "sets it up"));
            }
            for (gateway, network) in bridge.gateways.iter().filter(|(it, _)| !present.contains(&(link.index, **it))) {
                defects.push(restore(format!("lacks {gateway}, the gateway of network '{network}'"), "adds it"));
            }
        }
        for end in &self.host_ends {
            let Some(link) = links.get(end.name.as_str()) else {
                defects.push(end.missing());
                continue;
            };
            match &end.purpose {
                Purpose::Port { bridge, port } => {
                    let bridge = links.get(bridge.as_str());
                    defects.extend(bridge.into_iter().flat_map(|bridge| end.port_defects(link, bridge, *port)));
                }
                Purpose::Gateway { ips } => {
                    let setup = native::gateways_and_routes(ips.iter().copied(), link.index);
                    defects.extend(end.gateway_defects(link, &setup, &present, socket)?);
                }
            }
        }
        Ok(defects)
    }
}

impl NeededBridge {
    fn restore(&self, name: &str, host: &Host, socket: &mut Socket) -> Result<()> {
        let failed = |source| NetworkError::attempt(format!("restore the bridge {name}"))(source);
        let namespace = Namespace::own().map_err(NetworkError::attempt("open the network namespace of the host"))?;
        let addresses = (self.gateways.keys().copied().collect(), self.has_v6);
        let mut network = HostNetwork { socket, namespace: &namespace, owner: &host.state_dir };
        if native::restore_bridge(&self.network, addresses, &mut network).map_err(failed)? {
            tables::remove_abandoned(host, name)?;
        }
        Ok(())
    }
}

impl NeededHostEnd {
    /// A defect that a change of the present host end repairs.
    fn defect(
        &self,
        problem: impl std::fmt::Display,
        remedy: &str,
        (index, kind): (u32, HostEndChangeKind),
    ) -> LinkDefect {
        let Self { name, pod, .. } = self;
        let line = format!("interface {name} of pod {pod} {problem}: 'gantry network reload' {remedy}");
        let repair = Repair::ChangeHostEnd(HostEndChange { name: name.clone(), index, kind });
        LinkDefect { pod: pod.clone(), line, repair }
    }

    fn missing(&self) -> LinkDefect {
        let Self { name, pod, interface, purpose: _ } = self;
        let line = format!(
            "interface {name} of pod {pod} was deleted, and with it {interface} in the pod: run 'gantry stop {pod}' and \
             'gantry start {pod}'"
        );
        LinkDefect { pod: pod.clone(), line, repair: Repair::RestartPod }
    }

    fn port_defects(&self, link: &Link, bridge: &Link, port: Port) -> Vec<LinkDefect> {
        let configure = (link.index, HostEndChangeKind::ConfigurePort { bridge: bridge.index, port });
        let mut defects = Vec::new();
        if link.master != Some(bridge.index) {
            defects.push(self.defect(
                format!("is not attached to the bridge {}", bridge.name),
                "attaches it",
                configure,
            ));
        } else if !link.port.unwrap_or_default().satisfies(&port) {
            defects.push(self.defect("lacks settings of its bridge port", "restores them", configure));
        }
        if !link.is_up() {
            let set_up = HostEndChangeKind::SetUp(up(Setup::default()));
            defects.push(self.defect("is down", "sets it up", (link.index, set_up)));
        }
        defects
    }

    /// `setup`: the addresses and routes that it needs. The kernel removes some of them when it is set down.
    fn gateway_defects(
        &self,
        link: &Link,
        setup: &Setup<'static>,
        present: &BTreeSet<(u32, Cidr)>,
        socket: &mut Socket,
    ) -> Result<Vec<LinkDefect>> {
        let index = link.index;
        let set_up = || (index, HostEndChangeKind::SetUp(up(setup.clone())));
        if !link.is_up() {
            return Ok(vec![self.defect("is down", "sets it up", set_up())]);
        }
        let mut defects = Vec::new();
        let mut lacks = |what: String| defects.push(self.defect(format!("lacks {what}"), "adds it", set_up()));
        for gateway in setup.addresses.iter().map(|address| address.prefix) {
            if !present.contains(&(index, gateway)) {
                lacks(format!("{}, the gateway of the pod", gateway.address()));
            }
        }
        let filter = RouteFilter { v4: None, device: Some(index), table: Some(TABLE_MAIN) };
        let doing = || format!("list the routes by {}", self.name);
        let routes = socket.routes(&filter).map_err(NetworkError::attempt(doing()))?;
        for route in setup.routes.iter().filter(|route| !routes.iter().any(|has| has.to == route.to)) {
            lacks(format!("the route to {}", route.to.first()));
        }
        Ok(defects)
    }
}

/// Also sets the interface up.
fn up(setup: Setup<'static>) -> Setup<'static> {
    Setup { change: Change { up: Some(true), ..Change::default() }, ..setup }
}

impl HostEndChange {
    fn apply(&self, socket: &mut Socket) -> Result<()> {
        let Self { name, index, kind } = self;
        let (done, doing) = match kind {
            HostEndChangeKind::ConfigurePort { bridge, port } => {
                (configure_port(*index, *bridge, *port, socket), format!("set up the bridge port {name}"))
            }
            HostEndChangeKind::SetUp(setup) => {
                (set_up(name, *index, setup, socket), format!("set the interface {name} up"))
            }
        };
        unless_gone(done).map_err(NetworkError::attempt(doing))
    }

    /// Sets the host end of a pod down that has ended.
    fn disconnect(&self, socket: &mut Socket) -> Result<()> {
        let down = Change { up: Some(false), ..Change::default() };
        let doing = format!("set the interface {} down", self.name);
        unless_gone(socket.change_link(self.index, &down)).map_err(NetworkError::attempt(doing))
    }
}

/// Ignores that the interface is gone, with a pod that has ended since.
fn unless_gone(done: netlink::Result<()>) -> netlink::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Attaches a port to its bridge and sets its properties, which the kernel accepts only of an attached port.
fn configure_port(index: u32, bridge: u32, port: Port, socket: &mut Socket) -> netlink::Result<()> {
    socket.change_link(index, &Change { master: Some(bridge), ..Change::default() })?;
    if port == Port::default() {
        return Ok(());
    }
    socket.change_link(index, &Change { port: Some(port), ..Change::default() })
}

fn set_up(name: &str, index: u32, setup: &Setup<'_>, socket: &mut Socket) -> netlink::Result<()> {
    if setup.addresses.iter().any(|address| !address.prefix.is_ipv4()) {
        // disable_ipv6 has removed the addresses and prevents new ones.
        ensure_if_present(Sysctl::DisableV6(name), "0")?;
    }
    socket.set_up(index, setup)
}
