//! What is there against what the records say: for people.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use gantry_contract::network::Host;
use gantry_model::{ErrorKind, Kind};

use super::error::{NetworkError, Result, all};
use super::record::{Found, Record, Records, boot};
use super::state::{StateDir, WAIT};
use super::{entries, sweep, tables};
use crate::ipam::Store;
use crate::native;
use crate::netlink::Socket;
use crate::nft::{self, State};
use crate::plugin::Attachment;

pub(super) fn check(host: &Host) -> Result<Vec<String>> {
    let records = Records::open(host)?;
    let now = boot()?;
    let mut findings = Vec::new();
    for (pod, found) in records.all()? {
        match found {
            Found::Whole(_) => {}
            Found::Damaged(problem) => {
                findings.push(format!("the record of the networks of pod {pod} is damaged: {problem}"))
            }
            Found::Newer(version) => {
                findings.push(format!(
                    "the record of the networks of pod {pod} is of version {version}, which is not known here"
                ));
            }
        }
    }
    let mut live = records.whole()?;
    live.retain(|record| sweep::is_live(record, &now));
    findings.extend(tables_against(host, &records)?);
    findings.extend(links_against(host, &records, &live)?);
    if let Some(state) = StateDir::find(host)? {
        findings.extend(leases_against(&state, &records, &now)?);
        findings.extend(plugins_against(host, &state, &records, &live)?);
    }
    Ok(findings)
}

/// What gantries that are gone have left in this network namespace: bridges whose owner's directory does not exist, and the tables
/// that name them, with what removes them.
pub(super) fn strays(host: &Host) -> Result<Vec<String>> {
    let mut socket = Socket::open().map_err(NetworkError::link("open a socket on the host"))?;
    let list = NetworkError::link("list the interfaces");
    let links = socket.links().map_err(list)?;
    let mut lines = Vec::new();
    for bridge in links.iter().filter(|link| link.kind.as_deref() == Some("bridge")) {
        let Some(owner) = bridge.alias.as_deref().filter(|alias| alias.starts_with('/') && *alias != host.state_dir)
        else {
            continue;
        };
        let looked = native::is_abandoned(&mut socket, bridge, owner);
        if !looked.map_err(NetworkError::link("look at a bridge"))? {
            continue;
        }
        let name = &bridge.name;
        let mut cure = format!("'ip link delete {name}'");
        let tables = match tables::others_naming(host, name) {
            // A host without nftables.
            Err(error) if error.kind() == ErrorKind::Unavailable => Vec::new(),
            other => other.map_err(NetworkError::table(READ))?,
        };
        for table in tables {
            cure.push_str(&format!(", 'nft delete table inet {table}'"));
        }
        let owner = gantry_model::id::shown(owner);
        lines.push(format!(
            "the bridge {name} was left by the gantry that kept its state in '{owner}', which does not exist: the next pod that \
             needs the bridge takes it over; to remove what is left: {cure}"
        ));
    }
    Ok(lines)
}

/// What the tables have that no pod needs, as a line for people each.
pub(super) fn beyond_tables(host: &Host, records: &Records) -> Result<Vec<String>> {
    let (found, needed) = both(host, records)?;
    let Some(found) = found else { return Ok(Vec::new()) };
    let mut lines = differences(&found.state, &needed, "");
    if found.state.is_empty() && needed.is_empty() {
        lines.push(format!("the nftables table {}, which no pod needs", host.table));
    }
    let shared = |name: &String| !needed.interfaces.contains_key(name);
    lines.extend(
        found.state.interfaces.keys().filter(|name| shared(name)).map(|name| format!("rules for interface {name}")),
    );
    let unused = found.state.networks.keys().filter(|name| !needed.networks.contains_key(*name));
    lines.extend(unused.map(|name| format!("rules for network {name}")));
    lines.sort();
    lines.dedup();
    Ok(lines)
}

/// The table as it is and as it should be, both at one time: when they differ it may be for a pod that came or went meanwhile.
fn both(host: &Host, records: &Records) -> Result<(Option<nft::Found>, State)> {
    let now = boot()?;
    let mut before = None;
    for _ in 0..ATTEMPTS {
        let (whole, others) = records.sorted()?;
        let needed = tables::wanted(host, &whole, &now)?;
        let found = match tables::with(host, nft::Table::read) {
            // A host without nftables, and without pods that need them.
            Err(error) if needed.is_empty() && error.kind() == ErrorKind::Unavailable => None,
            other => other.map_err(NetworkError::table(READ))?,
        };
        let needed = tables::with_others(needed, || Ok(found.clone()), &others);
        let both = (found, needed);
        let same = both.0.as_ref().is_some_and(|found| {
            differences(&found.state, &both.1, "").is_empty() && differences(&both.1, &found.state, "").is_empty()
        });
        if same || before.as_ref() == Some(&both) {
            return Ok(both);
        }
        before = Some(both);
        std::thread::sleep(PAUSE);
    }
    before.ok_or_else(|| {
        let source = nft::Error::Contended { what: READ.into() };
        NetworkError::Table { doing: READ, source: Box::new(source) }
    })
}

const READ: &str = "read the tables";
const ATTEMPTS: u32 = 20;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// What `one` has of single pods and `other` has not, or otherwise.
fn differences(one: &State, other: &State, what: &str) -> Vec<String> {
    let (mine, theirs) = (entries::own(one), entries::own(other));
    let mut lines = Vec::new();
    for (port, forward) in mine.ports.iter().filter(|(port, forward)| theirs.ports.get(port) != Some(forward)) {
        lines.push(format!("port {port}, which leads to {} for pod {}{what}", forward.to, forward.owner));
    }
    for (name, _) in mine.guards.iter().filter(|(name, guard)| theirs.guards.get(*name) != Some(guard)) {
        lines.push(format!("the guard of interface {name}{what}"));
    }
    for (name, _) in mine.interfaces.iter().filter(|(name, it)| theirs.interfaces.get(*name) != Some(it)) {
        lines.push(format!("rules for interface {name}{what}"));
    }
    lines
}

fn tables_against(host: &Host, records: &Records) -> Result<Vec<String>> {
    let (found, mut needed) = both(host, records)?;
    if !needed.guards.is_empty() && !can_guard(host).map_err(NetworkError::table(READ))? {
        needed.guards.clear();
    }
    let Some(found) = found else {
        let missing = format!(
            "the nftables table {} is not there, and pods need it: `gantry network reload` puts it back",
            host.table
        );
        return Ok(if needed.is_empty() { Vec::new() } else { vec![missing] });
    };
    let mut lines: Vec<String> = found.faults.iter().map(|fault| format!("nftables: {fault}")).collect();
    lines.extend(differences(&found.state, &needed, " is in the tables, and no pod needs it so"));
    lines.extend(differences(&needed, &found.state, " is not in the tables, and a pod needs it"));
    if found.state.confined != needed.confined && !needed.is_empty() {
        lines.push("forwarding that was switched on for pods is not confined to them in the tables".to_owned());
    }
    for (name, network) in &needed.networks {
        if found.state.networks.get(name) != Some(network) {
            lines.push(format!("network {name} is not in the tables as its pods need it"));
        }
    }
    for (name, interface) in needed.interfaces.iter().filter(|(_, it)| it.addresses.is_empty()) {
        if found.state.interfaces.get(name) != Some(interface) {
            lines.push(format!("interface {name} is not in the tables as its pods need it"));
        }
    }
    Ok(lines)
}

fn can_guard(host: &Host) -> nft::Result<bool> {
    tables::with(host, nft::Table::can_guard)
}

/// Interfaces that should be there, or should not.
fn links_against(host: &Host, records: &Records, live: &[Record]) -> Result<Vec<String>> {
    let mut socket = Socket::open().map_err(NetworkError::link("open a socket on the host"))?;
    let mut lines = Vec::new();
    for link in sweep::stale_ends(host, records, &mut socket)? {
        lines.push(format!("interface {} leads to a pod that is gone", link.name));
    }
    let links = socket.links().map_err(NetworkError::link("list the interfaces"))?;
    let names: BTreeSet<&str> = links.iter().map(|link| link.name.as_str()).collect();
    for record in live {
        let entries = record.entries()?;
        for name in entries.interfaces.keys().chain(entries.guards.keys()).filter(|name| !names.contains(name.as_str()))
        {
            // A pod that has ended since has no record any more.
            if records.has(&record.pod)? {
                lines.push(format!("interface {name} of pod {} is not there: start the pod again", record.pod));
            }
        }
    }
    lines.sort();
    lines.dedup();
    Ok(lines)
}

fn leases_against(state: &StateDir, records: &Records, now: &str) -> Result<Vec<String>> {
    let mut lines: Vec<String> = state
        .boots()?
        .into_iter()
        .filter(|boot| boot != now)
        .map(|boot| format!("addresses are left of boot {boot}"))
        .collect();
    for network in state.networks(now)? {
        let dir = state.leases(now)?;
        let leases = Store::open(dir.as_fd(), &network, WAIT).and_then(|store| store.leases());
        let doing = || format!("list the addresses of network '{network}'");
        for lease in leases.map_err(|source| NetworkError::Leases { doing: doing(), source: Box::new(source) })? {
            let whose = match &lease.owner {
                Some(owner) if records.has(owner.pod())? => continue,
                Some(owner) => owner.to_string(),
                None => "nobody".into(),
            };
            lines.push(format!("address {} of network {network} is taken for {whose}, which is gone", lease.address));
        }
    }
    Ok(lines)
}

/// What is remembered of plugins for nobody; and CHECK for the pods that are up.
fn plugins_against(host: &Host, state: &StateDir, records: &Records, live: &[Record]) -> Result<Vec<String>> {
    let runtime = state.runtime(host)?;
    let mut lines = Vec::new();
    for (network, pod, interface) in sweep::remembered(&runtime)? {
        if !records.has(&pod)? {
            lines.push(format!("plugins of network {network} have {interface} of pod {pod}, which is gone"));
        }
    }
    for record in live.iter().filter(|record| !record.attached.is_empty()) {
        let Some(netns) = record.namespace.as_ref().filter(|place| place.is_there()).map(|place| &place.path) else {
            continue;
        };
        for joined in record.networks.iter().filter(|joined| joined.plugins) {
            let config = joined.config()?;
            let attachment: Attachment = joined.attachment(&record.pod, Some(netns.clone()));
            if config.cni_version < crate::config::CniVersion::V0_4_0 {
                continue;
            }
            let failed = |source| {
                let network = joined.name.clone();
                NetworkError::Plugins {
                    doing: "find the pod as it should be in",
                    network,
                    why: None,
                    source: Box::new(source),
                }
            };
            if let Err(error) = runtime.check_list(&config, &attachment).map_err(failed)
                && records.has(&record.pod)?
            {
                lines.push(format!("pod {}: {}", record.pod, all(&error)));
            }
        }
    }
    Ok(lines)
}
