//! The bridges and host ends of running pods, compared with the pods' records, and their repair: other programs may set
//! a bridge down, delete its address, or detach a pod's host end from it.

use std::collections::{BTreeMap, BTreeSet};

use gantry_contract::network::Host;
use gantry_model::{ErrorKind, Kind};

use super::error::{NetworkError, Result};
use super::garbage;
use super::record::{NetworkRecord, Record, Records, boot};
use super::select::Families;
use crate::address::Cidr;
use crate::native;
use crate::native::sysctl::ensure_if_present;
use crate::netlink::address::Address;
use crate::netlink::link::port::Port;
use crate::netlink::link::{Change, Link};
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{self, Socket};

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
    SetUp { name: String, index: u32 },
    AddGateway { bridge: String, index: u32, gateway: Cidr },
    Attach { name: String, index: u32, bridge: u32, port: Port },
}

/// The use of a bridge by a pod.
struct BridgedPod<'a> {
    record: &'a Record,
    network: &'a NetworkRecord,
    /// The name of the bridge.
    bridge: String,
    /// The addresses that the bridge has for the pod.
    gateways: Vec<Cidr>,
    /// The settings of the pod's bridge port.
    port: Port,
}

/// Repairs the bridges and host ends of the pods that are up; in the host's network namespace, where the thread is.
pub(super) fn repair(host: &Host) -> Result<()> {
    let (now, mut records) = (boot()?, Records::open(host)?.valid()?);
    records.retain(|record| garbage::is_up(record, &now));
    let mut errors = Vec::new();
    let mut socket = Socket::open().map_err(NetworkError::attempt(OPEN))?;
    for defect in find_defects(&records, &mut socket)? {
        match defect.repair.apply(&mut socket) {
            // The pod has ended since.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => errors.extend(other.map_err(NetworkError::attempt(defect.repair.doing())).err()),
        }
    }
    NetworkError::from_all(errors)
}

const OPEN: &str = "open a socket on the host";

/// The defects of the existing bridges and host ends of these pods, in the order in which to repair them: an address of
/// a bridge may be gone because the bridge is down.
pub(super) fn find_defects(records: &[Record], socket: &mut Socket) -> Result<Vec<LinkDefect>> {
    let pods = bridged_pods(records)?;
    let links = socket.links().map_err(NetworkError::attempt("list the interfaces"))?;
    let links: BTreeMap<&str, &Link> = links.iter().map(|link| (link.name.as_str(), link)).collect();
    let find = |name: &str| links.get(name).copied();
    let present = socket.addresses(None).map_err(NetworkError::attempt("list the addresses of the host"))?;
    let present: BTreeSet<_> = present.iter().map(|own| (own.index, own.address.prefix)).collect();
    let (mut defects, mut down, mut without) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for pod in &pods {
        let Some(bridge) = find(&pod.bridge) else { continue };
        let of_pod = |line: String, repair: Repair| LinkDefect { pod: pod.record.pod.clone(), line, repair };
        if !bridge.is_up() && down.insert(bridge.index) {
            let line = format!("the bridge {} is down: 'gantry network reload' sets it up", bridge.name);
            defects.push(of_pod(line, Repair::SetUp { name: bridge.name.clone(), index: bridge.index }));
        }
        for gateway in &pod.gateways {
            let key = (bridge.index, *gateway);
            if !present.contains(&key) && without.insert(key) {
                let line = format!(
                    "the bridge {} lacks {gateway}, the gateway of network '{}': 'gantry network reload' adds it",
                    bridge.name, pod.network.name
                );
                let repair = Repair::AddGateway { bridge: bridge.name.clone(), index: bridge.index, gateway: *gateway };
                defects.push(of_pod(line, repair));
            }
        }
        if let Some(host_end) = find(&native::host_interface(&pod.record.pod, &pod.network.interface)) {
            defects.extend(host_end_defects(pod, host_end, bridge));
        }
    }
    Ok(defects)
}

fn host_end_defects(pod: &BridgedPod<'_>, host_end: &Link, bridge: &Link) -> Vec<LinkDefect> {
    let (name, index, id) = (&host_end.name, host_end.index, &pod.record.pod);
    let defect = |line: String, repair: Repair| LinkDefect { pod: id.clone(), line, repair };
    let mut defects = Vec::new();
    if host_end.master != Some(bridge.index) {
        let line = format!(
            "interface {name} of pod {id} is not attached to the bridge {}: 'gantry network reload' attaches it",
            bridge.name
        );
        defects.push(defect(line, Repair::Attach { name: name.clone(), index, bridge: bridge.index, port: pod.port }));
    }
    if !host_end.is_up() {
        let line = format!("interface {name} of pod {id} is down: 'gantry network reload' sets it up");
        defects.push(defect(line, Repair::SetUp { name: name.clone(), index }));
    }
    defects
}

/// The attachments of these pods to bridges that gantry made without plugins.
fn bridged_pods(records: &[Record]) -> Result<Vec<BridgedPod<'_>>> {
    let mut pods = Vec::new();
    for record in records {
        for network in record.networks.iter().filter(|network| !network.plugins) {
            let Some(attached) = record.attached.iter().find(|it| it.interface == network.interface) else { continue };
            let config = network.config()?;
            let Some(bridge) = native::bridge_use(&config) else { continue };
            let gateways = attached.addresses.iter().filter(|_| bridge.is_gateway);
            let gateways = gateways.filter_map(|it| Cidr::new(it.gateway?, it.prefix).ok()).collect();
            pods.push(BridgedPod { record, network, bridge: bridge.name.to_owned(), gateways, port: bridge.port });
        }
    }
    Ok(pods)
}

/// The IP versions that the host must forward for these pods.
pub(super) fn forwarded_families(records: &[Record]) -> Result<Families> {
    let mut families = Families::default();
    for record in records {
        for network in record.networks.iter().filter(|network| !network.plugins) {
            if native::is_forwarded(&network.config()?) {
                let attached = record.attached.iter().filter(|it| it.interface == network.interface);
                let addresses = attached.flat_map(|it| &it.addresses).map(|it| it.address);
                let has = Families::from_addresses(addresses);
                families = Families { v4: families.v4 | has.v4, v6: families.v6 | has.v6 };
            }
        }
    }
    Ok(families)
}

impl Repair {
    fn apply(&self, socket: &mut Socket) -> netlink::Result<()> {
        match self {
            Self::SetUp { index, .. } => socket.change_link(*index, &Change { up: Some(true), ..Change::default() }),
            Self::AddGateway { bridge, index, gateway } => {
                if !gateway.is_ipv4() {
                    // disable_ipv6 has removed the address and prevents a new one.
                    ensure_if_present(Sysctl::DisableV6(bridge), "0")?;
                }
                socket.add_address(*index, &Address::new(*gateway))
            }
            Self::Attach { index, bridge, port, .. } => {
                socket.change_link(*index, &Change { master: Some(*bridge), ..Change::default() })?;
                if *port == Port::default() {
                    return Ok(());
                }
                socket.change_link(*index, &Change { port: Some(*port), ..Change::default() })
            }
        }
    }

    /// Completes "cannot …".
    fn doing(&self) -> String {
        match self {
            Self::SetUp { name, .. } => format!("set the interface {name} up"),
            Self::AddGateway { bridge, gateway, .. } => format!("add {gateway} to the bridge {bridge}"),
            Self::Attach { name, .. } => format!("attach the interface {name} to its bridge"),
        }
    }
}
