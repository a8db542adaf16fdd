//! The tables and the records: what the pods that are up need, and nothing else.
//!
//! A pod writes its entries into its record before it adds them, and marks the record before it removes them. So whoever asks
//! for the generation of nftables, reads the records, and then replaces the table unless the generation changed, loses no
//! pod's entries; and who reads the records again afterwards, and finds them as they were, has revived none.
//!
//! `route_localnet` lets 127.0.0.1 of the host lead out of an interface, and 127.0.0.0/8 come in through it, which the table drops.
//! So it is turned on when the interface is in the table, and off before it goes from there: an administrator's bridge has others
//! on it than pods.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use gantry_contract::network::Host;
use gantry_model::net::MAX_NETWORKS;
use gantry_model::{ErrorKind, Kind};

use super::entries;
use super::error::{NetworkError, Result};
use super::forwarding::Forwarding;
use super::record::{Record, Records, Standing, boot};
use super::select::Families;
use super::state::{Lock, StateDir};
use crate::native;
use crate::native::switches::be;
use crate::netlink::Namespace;
use crate::netlink::sysctl::Sysctl;
use crate::nft::{self, State, Table, conntrack};

/// How the names of all gantries' tables begin.
const TABLE_PREFIX: &str = "gantry";
/// How often to try again when pods come and go, or others change nftables, meanwhile.
const ATTEMPTS: u32 = 32;

/// Does something with the tables of the network namespace the thread is in.
pub(super) fn with<T>(host: &Host, work: impl FnOnce(&mut Table) -> nft::Result<T>) -> nft::Result<T> {
    nft::kept::with(|socket| work(&mut Table::open(socket, &host.table)?))
}

pub(super) fn add(host: &Host, entries: &State) -> nft::Result<()> {
    with(host, |table| table.add(entries))
}

/// Whether networks of these entries have other prefixes in the tables besides: their configuration was another before.
pub(super) fn were_changed(host: &Host, entries: &State) -> Result<bool> {
    with(host, |table| table.has_other_prefixes(&entries.networks))
        .map_err(NetworkError::table("look which prefixes are in the tables"))
}

/// What the tables should hold: what these records say that are up in this boot.
pub(super) fn needed(records: &[Record], boot: &str) -> Result<State> {
    let mut state = State::new();
    for record in records.iter().filter(|record| record.state == Standing::Up && record.boot == boot) {
        // Where two cannot both be, one of them is about to find that out.
        entries::merge(&mut state, record.entries()?.possible());
    }
    Ok(state)
}

/// What the tables should hold: what the pods need that are up, and whether the host forwards for them alone.
pub(super) fn wanted(host: &Host, records: &[Record], boot: &str) -> Result<State> {
    let mut state = needed(records, boot)?;
    if let Some(dir) = StateDir::find(host)?.filter(|_| !state.is_empty()) {
        state.confined = Forwarding::new(host, &dir, boot).confined()?;
    }
    Ok(state)
}

/// What the tables should hold, with what they hold of pods whose records cannot be understood: it is all that is known of them.
pub(super) fn with_others(
    mut needed: State,
    read: impl FnOnce() -> nft::Result<Option<nft::Found>>,
    others: &[String],
) -> State {
    // Of a table that cannot be read nothing can be kept, and it is the reload that puts it right.
    if !others.is_empty()
        && let Ok(Some(found)) = read()
    {
        let confined = found.state.confined;
        entries::merge(&mut needed, State { confined, ..of_pods(found.state, others) });
    }
    needed
}

/// What is in the tables of these pods: by their names, and the networks and bridges that their addresses are of.
pub(super) fn of_pods(all: State, pods: &[String]) -> State {
    let names: BTreeSet<String> = pods.iter().flat_map(|pod| link_names(pod)).collect();
    let mut state = State::new();
    state.ports = all.ports.into_iter().filter(|(_, it)| pods.contains(&it.owner)).collect();
    state.guards = all.guards.into_iter().filter(|(name, _)| names.contains(name)).collect();
    let (own, shared): (BTreeMap<_, _>, BTreeMap<_, _>) =
        all.interfaces.into_iter().partition(|(_, it)| !it.addresses.is_empty());
    state.interfaces = own.into_iter().filter(|(name, _)| names.contains(name)).collect();
    let mut addresses: BTreeSet<IpAddr> = state.ports.values().map(|it| it.to.ip()).collect();
    addresses.extend(state.guards.values().flat_map(|it| &it.addresses));
    addresses.extend(state.interfaces.values().flat_map(|it| &it.addresses));
    let theirs = |network: &nft::Network| {
        network.prefixes.iter().any(|prefix| addresses.iter().any(|address| prefix.contains(*address)))
    };
    state.networks = all.networks.into_iter().filter(|(_, network)| theirs(network)).collect();
    let shared = shared.into_iter().filter(|(_, it)| state.networks.contains_key(&it.network));
    state.interfaces.extend(shared.collect::<Vec<_>>());
    state
}

/// What the host's ends of a pod's cables may be called.
fn link_names(pod: &str) -> impl Iterator<Item = String> {
    (0..MAX_NETWORKS).map(move |index| native::host_interface(pod, &format!("eth{index}")))
}

/// Makes the tables hold what the records say; without any they go.
pub(super) fn reload(host: &Host) -> Result<()> {
    let boot = boot()?;
    let records = Records::open(host)?;
    for _ in 0..ATTEMPTS {
        let generation = with(host, Table::generation);
        let (whole, others) = records.sorted()?;
        forward_for(host, &boot, &needed(&whole, &boot)?, |forwarding, families| forwarding.note(families))?;
        let state = wanted(host, &whole, &boot)?;
        let table = with_others(state.clone(), || with(host, Table::read), &others);
        let generation = match generation {
            // A host without nftables, and without pods that need them.
            Err(error) if table.is_empty() && error.kind() == ErrorKind::Unavailable => return Ok(()),
            other => other.map_err(NetworkError::table(RELOAD))?,
        };
        if table.is_empty() {
            return delete_if_unused(host);
        }
        // Whoever begins to need one of these again changes the generation.
        match close_loopback(host, &table) {
            Err(NetworkError::Table { source, .. }) if matches!(*source, nft::Error::Contended { .. }) => continue,
            other => other?,
        }
        match with(host, |ours| ours.ensure_at(&table, generation)) {
            Err(nft::Error::Changed) => continue,
            other => other.map_err(NetworkError::table(RELOAD))?,
        }
        if wanted(host, &records.whole()?, &boot)? == state {
            return switch_on(host, &boot, &state);
        }
    }
    let source = nft::Error::Contended { what: "make the tables hold what the pods need".into() };
    Err(NetworkError::Table { doing: RELOAD, source: Box::new(source) })
}

const RELOAD: &str = "put the tables back";

/// Nobody needs the tables: they go, if that is so still while no pod is being attached.
fn delete_if_unused(host: &Host) -> Result<()> {
    let Some(state) = StateDir::find(host)? else { return Ok(()) };
    let _locked = match state.lock(Lock::Links, false, Duration::ZERO) {
        // A pod is being attached, and makes the tables what it needs.
        Err(NetworkError::Locked { .. }) => return Ok(()),
        other => other?,
    };
    let now = boot()?;
    if !needed(&Records::open(host)?.whole()?, &now)?.is_empty() {
        return Ok(());
    }
    Forwarding::new(host, &state, &now).restore()?;
    delete(host)
}

/// Removes the tables, which nobody needs. The caller has the lock of the links alone.
pub(super) fn delete(host: &Host) -> Result<()> {
    close_loopback(host, &State::new())?;
    with(host, Table::delete).map_err(NetworkError::table("remove the tables"))
}

/// Removes the tables of other gantries that name a bridge which was theirs, and is ours now.
pub(super) fn remove_abandoned(host: &Host, bridge: &str) -> Result<()> {
    let failed = NetworkError::table("remove the tables of a gantry that is gone");
    let removed = others_naming(host, bridge).and_then(|tables| {
        tables.iter().try_for_each(|name| nft::kept::with(|socket| Table::open(socket, name)?.delete()))
    });
    removed.map_err(failed)
}

/// The tables of other gantries that have rules for an interface.
pub(super) fn others_naming(host: &Host, interface: &str) -> nft::Result<Vec<String>> {
    let mut names = nft::kept::with(|socket| nft::table_names(socket, TABLE_PREFIX))?;
    names.retain(|name| *name != host.table);
    let mut naming = Vec::new();
    for name in names {
        if nft::kept::with(|socket| Table::open(socket, &name)?.interfaces())?.contains(interface) {
            naming.push(name);
        }
    }
    Ok(naming)
}

/// Takes networks and their bridges out of the tables, which nobody needs. The caller has the lock of the links alone.
pub(super) fn remove_shared(host: &Host, unused: &State) -> Result<()> {
    if unused.is_empty() {
        return Ok(());
    }
    let switches = unused.interfaces.keys().map(|name| Sysctl::RouteLocalnet(name));
    switches.into_iter().try_for_each(|switch| if_there(be(switch, "0")))?;
    with(host, |table| table.remove(unused)).map_err(NetworkError::table("take a network out of the tables"))
}

/// The switches that our networks need and that others turn off (docker, sysctl --system). Written only if they are not so.
fn switch_on(host: &Host, boot: &str, state: &State) -> Result<()> {
    forward_for(host, boot, state, |forwarding, families| forwarding.switch_on(families))?;
    open_loopback(state)
}

fn forward_for(
    host: &Host,
    boot: &str,
    state: &State,
    work: impl FnOnce(&Forwarding<'_>, Families) -> Result<()>,
) -> Result<()> {
    let has = |v4: bool| state.networks.values().flat_map(|network| &network.prefixes).any(|it| it.is_ipv4() == v4);
    let families = Families { v4: has(true), v6: has(false) };
    match StateDir::find(host)? {
        Some(dir) if families != Families::default() => work(&Forwarding::new(host, &dir, boot), families),
        _ => Ok(()),
    }
}

/// Lets 127.0.0.1 of the host lead to the ports among these entries, which are in the tables.
pub(super) fn open_loopback(entries: &State) -> Result<()> {
    let to: BTreeSet<IpAddr> = entries.ports.values().map(|it| it.to.ip()).filter(IpAddr::is_ipv4).collect();
    let leads = |prefix: &nft::Prefix| to.iter().any(|to| prefix.contains(*to));
    let with_ports = |name: &String| entries.networks.get(name).is_some_and(|it| it.prefixes.iter().any(leads));
    let interfaces = entries.interfaces.iter().filter(|(_, it)| with_ports(&it.network));
    interfaces.map(|(name, _)| name).try_for_each(|name| if_there(be(Sysctl::RouteLocalnet(name), "1")))
}

/// No longer lets 127.0.0.1 lead out of interfaces that are in the tables and that nobody needs there.
fn close_loopback(host: &Host, needed: &State) -> Result<()> {
    let there =
        with(host, Table::interfaces).map_err(NetworkError::table("look which interfaces are in the tables"))?;
    let leave = there.iter().filter(|name| !needed.interfaces.contains_key(*name));
    leave.map(|name| Sysctl::RouteLocalnet(name)).try_for_each(|switch| if_there(be(switch, "0")))
}

/// The interface is gone, or there is no IPv6: then there is nothing to switch.
fn if_there(switched: crate::netlink::Result<()>) -> Result<()> {
    match switched {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(NetworkError::link("switch what networks need")),
    }
}

/// Takes a pod's entries away: those that it shares with no other.
pub(super) fn remove(host: &Host, entries: &State) -> Result<()> {
    let own = entries::own(entries).possible();
    if own.is_empty() {
        return Ok(());
    }
    with(host, |table| table.remove(&own)).map_err(NetworkError::table("take the pod out of the tables"))?;
    forget_flows(&own, conntrack::Which::There)
}

/// Connections through these ports that began before are not to go on elsewhere, or to a pod that is dead.
pub(super) fn forget_flows(entries: &State, which: conntrack::Which) -> Result<()> {
    if entries.ports.is_empty() {
        return Ok(());
    }
    let forgotten = Namespace::own().map_err(nft::Error::from);
    match forgotten.and_then(|here| conntrack::forget(&here, &entries.ports, which)) {
        // A kernel that cannot be asked: connections end when they are silent for long enough.
        Err(error) if error.kind() == ErrorKind::Unavailable => Ok(()),
        other => other.map(drop).map_err(NetworkError::table("end the connections of the pod's ports")),
    }
}
