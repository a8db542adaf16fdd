//! Keeps the nftables table equal to the records of the pods that are up.
//!
//! A pod appends its entries to its record before it adds them to the table, and marks the record before it removes
//! them. A reload reads the generation of nftables, then the records, and replaces the table only if the generation is
//! unchanged: so it loses no pod's entries. It then reads the records again: if they are unchanged, it has restored no
//! removed entries.
//!
//! `route_localnet` lets packets from the host's 127.0.0.1 leave through an interface, and packets to 127.0.0.0/8 enter
//! through it. The table and a tc filter drop the latter. So the sysctl is enabled once the interface is in the table,
//! and disabled before the interface leaves the table: an administrator's bridge may have other ports than pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use gantry_contract::network::Host;
use gantry_host::lock::LockMode;
use gantry_model::net::MAX_NETWORKS;
use gantry_model::{ErrorKind, Kind};

use super::entries;
use super::error::{NetworkError, Result};
use super::forwarding::Forwarding;
use super::record::{Record, Records, boot};
use super::select::Families;
use super::state::{Lock, StateDir};
use crate::native;
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Namespace, Socket};
use crate::nft::{self, State, Table, conntrack};

/// The prefix of the names of all gantries' tables.
const TABLE_PREFIX: &str = "gantry";
/// How often to retry if pods come and go or other programs change nftables during an attempt.
const MAX_ATTEMPTS: u32 = 32;

/// Runs `work` on the table in the network namespace of the thread.
pub(super) fn with<T>(host: &Host, work: impl FnOnce(&mut Table) -> nft::Result<T>) -> nft::Result<T> {
    nft::socket_cache::with_socket(|socket| work(&mut Table::open(socket, &host.table)?))
}

/// Adds entries. Returns whether their networks have further prefixes in the table: their configuration has changed.
pub(super) fn add(host: &Host, entries: &State) -> nft::Result<bool> {
    with(host, |table| table.add(entries))
}

pub(super) fn contains(host: &Host, entries: &State) -> nft::Result<bool> {
    with(host, |table| table.contains(entries))
}

/// The entries of the pods that are up in this boot.
pub(super) fn needed(records: &[Record], boot: &str) -> Result<State> {
    let mut state = State::new();
    for record in records.iter().filter(|record| record.is_up(boot)) {
        // If two conflict, attaching one of the pods is about to fail, or an earlier gantry has attached both.
        entries::merge(&mut state, record.entries()?.retain_valid());
    }
    Ok(state)
}

/// The entries of the pods that are up, and whether forwarding is confined to pods.
pub(super) fn needed_state(host: &Host, records: &[Record], boot: &str) -> Result<State> {
    let mut state = needed(records, boot)?;
    if let Some(dir) = StateDir::find(host)?.filter(|_| !state.is_empty()) {
        state.confined = Forwarding::new(host, &dir, boot).confined()?;
    }
    Ok(state)
}

/// Adds the present entries of pods with unusable records (`others`): nothing else is known of these pods.
pub(super) fn with_present_entries(
    mut needed: State,
    read: impl FnOnce() -> nft::Result<Option<nft::TableReport>>,
    others: &[String],
) -> State {
    // If the table cannot be read, no entry can be kept; the reload repairs the table.
    if !others.is_empty()
        && let Ok(Some(found)) = read()
    {
        let confined = found.state.confined;
        entries::merge(&mut needed, State { confined, ..entries_of_pods(found.state, others) });
    }
    needed
}

/// The entries of these pods: those with their names, and the networks and bridges of their addresses.
pub(super) fn entries_of_pods(all: State, pods: &[String]) -> State {
    let names: BTreeSet<String> = pods.iter().flat_map(|pod| host_end_names(pod)).collect();
    let mut state = State::new();
    state.ports = all.ports.into_iter().filter(|(_, it)| pods.contains(&it.owner)).collect();
    state.anti_spoofing = all.anti_spoofing.into_iter().filter(|(name, _)| names.contains(name)).collect();
    let (own, shared): (BTreeMap<_, _>, BTreeMap<_, _>) =
        all.interfaces.into_iter().partition(|(_, it)| !it.addresses.is_empty());
    state.interfaces = own.into_iter().filter(|(name, _)| names.contains(name)).collect();
    let mut addresses: BTreeSet<IpAddr> = state.ports.values().map(|it| it.to.ip()).collect();
    addresses.extend(state.anti_spoofing.values().flat_map(|it| &it.addresses));
    addresses.extend(state.interfaces.values().flat_map(|it| &it.addresses));
    let contains_address = |network: &nft::Network| {
        network.prefixes.iter().any(|prefix| addresses.iter().any(|address| prefix.contains(*address)))
    };
    state.networks = all.networks.into_iter().filter(|(_, network)| contains_address(network)).collect();
    let shared = shared.into_iter().filter(|(_, it)| state.networks.contains_key(&it.network));
    state.interfaces.extend(shared.collect::<Vec<_>>());
    state
}

/// The possible names of a pod's host ends.
fn host_end_names(pod: &str) -> impl Iterator<Item = String> {
    (0..MAX_NETWORKS).map(move |index| native::host_interface(pod, &format!("eth{index}")))
}

/// Makes the table equal to the records; removes it if no pod needs it.
pub(super) fn reload(host: &Host) -> Result<()> {
    let boot = boot()?;
    let records = Records::open(host)?;
    for _ in 0..MAX_ATTEMPTS {
        let generation = with(host, Table::generation);
        let (whole, others) = records.partition()?;
        let families = forwarded_families(&whole, &boot);
        forward_for(host, &boot, families, |forwarding, families| forwarding.save(families))?;
        let state = needed_state(host, &whole, &boot)?;
        let table = with_present_entries(state.clone(), || with(host, Table::read), &others);
        let generation = match generation {
            // The kernel has no nftables, and no pod needs them.
            Err(error) if table.is_empty() && error.kind() == ErrorKind::Unavailable => return Ok(()),
            other => other.map_err(NetworkError::attempt(RELOAD))?,
        };
        if table.is_empty() {
            return delete_if_unused(host);
        }
        // A pod that needs one of these interfaces again changes the generation.
        match disable_route_localnet(host, &table) {
            Err(error) if error.is_contended() => continue,
            other => other?,
        }
        match with(host, |ours| ours.ensure_at_generation(&table, generation)) {
            Err(nft::Error::Changed) => continue,
            other => other.map_err(NetworkError::attempt(RELOAD))?,
        }
        if needed_state(host, &records.valid()?, &boot)? == state {
            // Other programs turn forwarding off (docker, sysctl --system).
            forward_for(host, &boot, families, |forwarding, families| forwarding.enable(families))?;
            return enable_route_localnet(&state, EnabledInterface::AddFilter);
        }
    }
    Err(NetworkError::attempt(RELOAD)(nft::Error::Contended { what: "make the table equal to the records".into() }))
}

const RELOAD: &str = "restore the table";

/// Updates the confinement of forwarding in the table, after plugins attached or detached a pod. If no pod is left,
/// restores the settings of forwarding.
pub(super) fn reload_confinement(host: &Host) -> Result<()> {
    let Some(state) = StateDir::find(host)? else { return Ok(()) };
    if Forwarding::new(host, &state, &boot()?).has_saved()? { reload(host) } else { Ok(()) }
}

/// Removes the table if no pod needs it; checked again while no pod is being attached.
fn delete_if_unused(host: &Host) -> Result<()> {
    let Some(state) = StateDir::find(host)? else { return Ok(()) };
    let _locked = match state.lock(Lock::Links, LockMode::Exclusive, Duration::ZERO) {
        // A pod is being attached, which adds its entries itself.
        Err(NetworkError::Locked { .. }) => return Ok(()),
        other => other?,
    };
    let now = boot()?;
    if !needed(&Records::open(host)?.valid()?, &now)?.is_empty() {
        return Ok(());
    }
    Forwarding::new(host, &state, &now).restore()?;
    delete(host)
}

/// Removes the table, which no pod needs. The caller holds the exclusive lock of the links.
pub(super) fn delete(host: &Host) -> Result<()> {
    disable_route_localnet(host, &State::new())?;
    with(host, Table::delete).map_err(NetworkError::attempt("remove the table"))
}

/// Removes the tables of other gantries that contain a bridge that this gantry has taken over.
pub(super) fn remove_abandoned(host: &Host, bridge: &str) -> Result<()> {
    let failed = NetworkError::attempt("remove the tables of a gantry that is gone");
    let removed = others_naming(host, bridge).and_then(|tables| {
        tables.iter().try_for_each(|name| nft::socket_cache::with_socket(|socket| Table::open(socket, name)?.delete()))
    });
    removed.map_err(failed)
}

/// The tables of other gantries that contain an interface.
pub(super) fn others_naming(host: &Host, interface: &str) -> nft::Result<Vec<String>> {
    let mut names = nft::socket_cache::with_socket(|socket| nft::table_names(socket, TABLE_PREFIX))?;
    names.retain(|name| *name != host.table);
    let mut naming = Vec::new();
    for name in names {
        if nft::socket_cache::with_socket(|socket| Table::open(socket, &name)?.interfaces())?.contains(interface) {
            naming.push(name);
        }
    }
    Ok(naming)
}

/// Removes unused networks and their bridges from the table. The caller holds the exclusive lock of the links.
pub(super) fn remove_shared(host: &Host, unused: &State) -> Result<()> {
    if unused.is_empty() {
        return Ok(());
    }
    unused.interfaces.keys().try_for_each(|name| ignore_missing(close_loopback(name)))?;
    with(host, |table| table.remove(unused)).map_err(NetworkError::attempt("remove a network from the table"))
}

/// The IP versions that the host must forward for the pods of these records that are up. A network without plugins
/// whose configuration can no longer be read counts as forwarded.
pub(super) fn forwarded_families(records: &[Record], boot: &str) -> Families {
    let mut families = Families::default();
    // Many pods have few networks: each configuration is parsed once.
    let mut forwarded: BTreeMap<(&str, &str), bool> = BTreeMap::new();
    for record in records.iter().filter(|record| record.is_up(boot)) {
        for network in record.networks.iter().filter(|network| !network.plugins) {
            let parse = || network.config().map_or(true, |config| native::is_forwarded(&config));
            if *forwarded.entry((&network.source, &network.text)).or_insert_with(parse) {
                let attached = record.attached.iter().filter(|it| it.interface == network.interface);
                let addresses = attached.flat_map(|it| &it.addresses).map(|it| it.address);
                families |= Families::from_addresses(addresses);
            }
        }
    }
    families
}

fn forward_for(
    host: &Host,
    boot: &str,
    families: Families,
    work: impl FnOnce(&Forwarding<'_>, Families) -> Result<()>,
) -> Result<()> {
    match StateDir::find(host)? {
        Some(dir) if families != Families::default() => work(&Forwarding::new(host, &dir, boot), families),
        _ => Ok(()),
    }
}

/// What happens to an interface whose `route_localnet` is enabled already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EnabledInterface {
    Skip,
    /// It gets its filter, which it may have lost or never had.
    AddFilter,
}

/// Enables `route_localnet` on the interfaces of these entries with published IPv4 ports. The entries are in the table.
pub(super) fn enable_route_localnet(entries: &State, enabled: EnabledInterface) -> Result<()> {
    let to: BTreeSet<IpAddr> = entries.ports.values().map(|it| it.to.ip()).filter(IpAddr::is_ipv4).collect();
    let contains_pod = |prefix: &nft::Prefix| to.iter().any(|to| prefix.contains(*to));
    let with_ports = |name: &String| entries.networks.get(name).is_some_and(|it| it.prefixes.iter().any(contains_pod));
    let interfaces = entries.interfaces.iter().filter(|(_, it)| with_ports(&it.network));
    interfaces.map(|(name, _)| name).try_for_each(|name| ignore_missing(open_loopback(name, enabled)))
}

/// Disables `route_localnet` on interfaces that are in the table but that no pod needs.
fn disable_route_localnet(host: &Host, needed: &State) -> Result<()> {
    let present = with(host, Table::interfaces).map_err(NetworkError::attempt("read the interfaces in the table"))?;
    let unneeded = present.iter().filter(|name| !needed.interfaces.contains_key(*name));
    unneeded.into_iter().try_for_each(|name| ignore_missing(close_loopback(name)))
}

/// Sets `route_localnet` of an interface. First adds a tc filter that drops packets from and to 127.0.0.0/8 on the
/// wire: the table drops them too, but another program may flush it (CVE-2020-8558). Without the kernel modules, only
/// the table does.
fn open_loopback(interface: &str, enabled: EnabledInterface) -> crate::netlink::Result<()> {
    let sysctl = Sysctl::RouteLocalnet(interface);
    let is_open = sysctl.get()? == "1";
    if is_open && enabled == EnabledInterface::Skip {
        return Ok(());
    }
    let mut socket = Socket::open()?;
    if let Some(index) = socket.index(interface)? {
        let _has_modules = socket.drop_loopback(index)?;
    }
    if is_open { Ok(()) } else { sysctl.set("1") }
}

/// Resets `route_localnet` of an interface, then removes the filter: an administrator's bridge stays.
fn close_loopback(interface: &str) -> crate::netlink::Result<()> {
    let sysctl = Sysctl::RouteLocalnet(interface);
    if sysctl.get()? == "0" {
        return Ok(());
    }
    sysctl.set("0")?;
    let mut socket = Socket::open()?;
    match socket.index(interface)? {
        Some(index) => socket.allow_loopback(index),
        None => Ok(()),
    }
}

/// A sysctl is missing if its interface is gone.
fn ignore_missing(result: crate::netlink::Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(NetworkError::attempt("set a sysctl of a network")),
    }
}

/// Removes the entries that a pod does not share with others.
pub(super) fn remove(host: &Host, entries: &State) -> Result<()> {
    let unshared = entries::unshared(entries).retain_valid();
    if unshared.is_empty() {
        return Ok(());
    }
    with(host, |table| table.remove(&unshared)).map_err(NetworkError::attempt("remove the pod's firewall entries"))?;
    forget_flows(&unshared, conntrack::StaleFlows::ToDeadPod)
}

/// Ends earlier connections through these ports, which would otherwise continue to another destination or a dead pod.
pub(super) fn forget_flows(entries: &State, which: conntrack::StaleFlows) -> Result<()> {
    if entries.ports.is_empty() {
        return Ok(());
    }
    let forgotten = Namespace::own().map_err(nft::Error::from);
    match forgotten.and_then(|here| conntrack::delete_stale_flows(&here, &entries.ports, which)) {
        // The kernel has no conntrack netlink: the connections end by their timeout.
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
        other => other.map(drop).map_err(NetworkError::attempt("end the connections of the pod's ports")),
    }
}
