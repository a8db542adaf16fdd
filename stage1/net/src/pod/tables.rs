//! The tables and the records: what the pods that are up need, and nothing else.
//!
//! A pod writes its entries into its record before it adds them, and marks the record before it removes them. So whoever asks
//! for the generation of nftables, reads the records, and then replaces the table unless the generation changed, loses no
//! pod's entries; and who reads the records again afterwards, and finds them as they were, has revived none.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gantry_contract::network::Host;
use gantry_model::{ErrorKind, Kind};

use super::entries;
use super::error::{NetworkError, Result};
use super::record::{Record, Records, Standing, boot};
use super::state::{Lock, StateDir};
use crate::netlink::sysctl::Sysctl;
use crate::netlink::{Attempt, Namespace};
use crate::nft::{self, State, Table};

/// How often to try again when pods come and go, or others change nftables, meanwhile.
const ATTEMPTS: u32 = 32;

/// Sockets that were used, by the network namespace they are of: its device and inode. To close one waits for a grace period of
/// RCU (the kernel clears up after every transaction before), which takes 7 ms and more. So they are kept for the next use, and the end of the
/// process closes them: mostly there is one.
static KEPT: Mutex<Vec<((u64, u64), OwnedFd)>> = Mutex::new(Vec::new());
/// So many are kept.
const MOST_KEPT: usize = 32;

/// Does something with the tables of the network namespace the thread is in.
pub(super) fn with<T>(host: &Host, work: impl FnOnce(&mut Table) -> nft::Result<T>) -> nft::Result<T> {
    let here = Namespace::own()?;
    let stat = rustix::fs::fstat(&here).attempt(|| "look at the network namespace")?;
    let here = (stat.st_dev, stat.st_ino);
    let kept = {
        let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().position(|(of, _)| *of == here);
        found.map(|index| all.swap_remove(index).1)
    };
    let kept = kept.map_or_else(nft::socket, Ok)?;
    let socket = rustix::io::fcntl_dupfd_cloexec(&kept, 3).attempt(|| "use a socket of nftables")?;
    let done = Table::open(socket, &host.table).and_then(|mut table| work(&mut table));
    // After a failure an answer may still come, that the next one would take for his.
    if done.is_ok() {
        let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MOST_KEPT {
            all.push((here, kept));
        }
    }
    done
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
    Err(NetworkError::Table { doing: RELOAD, source })
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
    forget_flows(&own)
}

/// Flows that were let through these ports, to whoever had them before, are not to go there any longer.
pub(super) fn forget_flows(entries: &State) -> Result<()> {
    // CALL SITE: nft's conntrack goes here.
    let _ = entries;
    Ok(())
}
