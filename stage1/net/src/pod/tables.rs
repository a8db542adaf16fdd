//! The tables and the records: what the pods that are up need, and nothing else.
//!
//! A pod writes its entries into its record before it adds them, and marks the record before it removes them. So whoever asks
//! for the generation of nftables, reads the records, and then replaces the table unless the generation changed, loses no
//! pod's entries; and who reads the records again afterwards, and finds them as they were, has revived none.

use std::time::Duration;

use gantry_contract::network::Host;
use gantry_model::{ErrorKind, Kind};

use super::entries;
use super::error::{NetworkError, Result};
use super::record::{Record, Records, Standing, boot};
use super::state::{Lock, StateDir};
use crate::netlink::Namespace;
use crate::netlink::sysctl::Sysctl;
use crate::nft::{self, State, Table, conntrack};

/// How often to try again when pods come and go, or others change nftables, meanwhile.
const ATTEMPTS: u32 = 32;

/// Does something with the tables of the network namespace the thread is in.
pub(super) fn with<T>(host: &Host, work: impl FnOnce(&mut Table) -> nft::Result<T>) -> nft::Result<T> {
    nft::kept::with(|socket| work(&mut Table::open(socket, &host.table)?))
}

pub(super) fn add(host: &Host, entries: &State) -> nft::Result<()> {
    with(host, |table| table.add(entries))
}

/// What the tables should hold: what these records say that are up in this boot.
pub(super) fn needed(records: &[Record], boot: &str) -> Result<State> {
    let mut state = State::new();
    for record in records.iter().filter(|record| record.state == Standing::Up && record.boot == boot) {
        // Where two cannot both be, one of them is about to find that out.
        entries::merge(&mut state, record.entries()?);
    }
    Ok(state)
}

/// Makes the tables hold what the records say; without any they go.
pub(super) fn reload(host: &Host) -> Result<()> {
    let boot = boot()?;
    let records = Records::open(host)?;
    for _ in 0..ATTEMPTS {
        let generation = with(host, Table::generation);
        let state = needed(&records.whole()?, &boot)?;
        let generation = match generation {
            // A host without nftables, and without pods that need them.
            Err(error) if state.is_empty() && error.kind() == ErrorKind::Unavailable => return Ok(()),
            other => other.map_err(NetworkError::table(RELOAD))?,
        };
        if state.is_empty() {
            return delete(host);
        }
        match with(host, |table| table.ensure_at(&state, generation)) {
            Err(nft::Error::Changed) => continue,
            other => other.map_err(NetworkError::table(RELOAD))?,
        }
        if needed(&records.whole()?, &boot)? == state {
            return switch_on(&state);
        }
    }
    let source = nft::Error::Contended { what: "make the tables hold what the pods need".into() };
    Err(NetworkError::Table { doing: RELOAD, source: Box::new(source) })
}

const RELOAD: &str = "put the tables back";

/// Nobody needs the tables: they go, if that is so still while no pod is being attached.
fn delete(host: &Host) -> Result<()> {
    let Some(state) = StateDir::find(host)? else { return Ok(()) };
    let _locked = match state.lock(Lock::Links, false, Duration::ZERO) {
        // A pod is being attached, and makes the tables what it needs.
        Err(NetworkError::Locked { .. }) => return Ok(()),
        other => other?,
    };
    if !needed(&Records::open(host)?.whole()?, &boot()?)?.is_empty() {
        return Ok(());
    }
    with(host, Table::delete).map_err(NetworkError::table("remove the tables"))
}

/// The switches that our networks need and that others turn off (docker, sysctl --system). Written only if they are not so.
fn switch_on(state: &State) -> Result<()> {
    let prefixes = || state.networks.values().flat_map(|network| &network.prefixes);
    let mut switches = Vec::new();
    if prefixes().any(|prefix| prefix.is_ipv4()) {
        switches.push(Sysctl::ForwardV4);
        switches.extend(state.interfaces.keys().map(|name| Sysctl::RouteLocalnet(name)));
    }
    if prefixes().any(|prefix| !prefix.is_ipv4()) {
        switches.push(Sysctl::ForwardV6);
    }
    for switch in switches {
        let set = switch.get().and_then(|is| if is == "1" { Ok(()) } else { switch.set("1") });
        match set {
            // The interface is gone, or there is no IPv6.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => other.map_err(NetworkError::link("turn on what networks need"))?,
        }
    }
    Ok(())
}

/// Takes a pod's entries away: those that it shares with no other.
pub(super) fn remove(host: &Host, entries: &State) -> Result<()> {
    let own = entries::own(entries);
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
