//! Compares the resources of this host with the records, for people.

use std::os::fd::AsFd;

use gantry_contract::network::Host;
use gantry_model::{ErrorKind, Kind};

use super::error::{NetworkError, Result, with_causes};
use super::forwarding::Forwarding;
use super::links::NeededLinks;
use super::record::{Record, RecordFile, Records, boot};
use super::select::Families;
use super::state::{LOCK_TIMEOUT, StateDir};
use super::{entries, garbage, tables};
use crate::ipam::Store;
use crate::native;
use crate::netlink::Socket;
use crate::netlink::sysctl::Sysctl;
use crate::nft::{self, State};
use crate::plugin::Attachment;

pub(super) fn check(host: &Host) -> Result<Vec<String>> {
    let records = Records::open(host)?;
    let now = boot()?;
    let mut findings = Vec::new();
    for (pod, found) in records.all()? {
        match found {
            RecordFile::Valid(_) => {}
            RecordFile::Damaged(problem) => {
                findings.push(format!("the record of the networks of pod {pod} is damaged: {problem}"))
            }
            RecordFile::Newer(version) => {
                findings.push(format!(
                    "the record of the networks of pod {pod} has version {version}, which this gantry does not know"
                ));
            }
        }
    }
    let mut live = records.valid()?;
    live.retain(|record| record.is_up(&now));
    findings.extend(check_tables(host, &records)?);
    findings.extend(check_links(host, (&records, &now), &live)?);
    if let Some(state) = StateDir::find(host)? {
        let families = tables::forwarded_families(&live, &now);
        findings.extend(check_forwarding(&Forwarding::new(host, &state, &now), families)?);
        findings.extend(check_leases(&state, &records, &now)?);
        findings.extend(check_plugins(host, &state, &records, &live)?);
    }
    Ok(findings)
}

/// Orphans of gantries that are gone, in this network namespace: bridges whose owner's directory does not exist, and
/// the tables with their names, each with the commands that remove them.
pub(super) fn orphans(host: &Host) -> Result<Vec<String>> {
    let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
    let list = NetworkError::attempt("list the interfaces");
    let links = socket.links().map_err(list)?;
    let mut lines = Vec::new();
    for bridge in links.iter().filter(|link| link.kind.as_deref() == Some("bridge")) {
        let Some(owner) = bridge.alias.as_deref().filter(|alias| alias.starts_with('/') && *alias != host.state_dir)
        else {
            continue;
        };
        let abandoned = native::is_abandoned(&mut socket, bridge, owner);
        if !abandoned.map_err(NetworkError::attempt("check whether the owner of a bridge is gone"))? {
            continue;
        }
        let name = &bridge.name;
        let mut commands = format!("'ip link delete {name}'");
        let tables = match tables::others_naming(host, name) {
            // The kernel has no nftables.
            Err(error) if error.kind() == ErrorKind::Unavailable => Vec::new(),
            other => other.map_err(NetworkError::attempt(READ))?,
        };
        for table in tables {
            commands.push_str(&format!(", 'nft delete table inet {table}'"));
        }
        let owner = gantry_model::id::shown(owner);
        lines.push(format!(
            "the bridge {name} belongs to a gantry with the state directory '{owner}', which does not exist: the next pod that \
             needs the bridge takes it over; to remove it: {commands}"
        ));
    }
    Ok(lines)
}

/// Firewall entries that no pod needs, a line each.
pub(super) fn unneeded_entries(host: &Host, records: &Records) -> Result<Vec<String>> {
    let (found, needed) = present_and_needed(host, records)?;
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
    if found.state.confined != needed.confined && !needed.is_empty() {
        lines.push("outdated confinement of forwarding".to_owned());
    }
    lines.sort();
    lines.dedup();
    Ok(lines)
}

/// The present and the needed entries at the same time. If they differ, a pod may have come or gone between the reads,
/// so both are read until they are equal or stable.
fn present_and_needed(host: &Host, records: &Records) -> Result<(Option<nft::TableReport>, State)> {
    let now = boot()?;
    let mut before = None;
    for _ in 0..MAX_ATTEMPTS {
        let (whole, others) = records.partition()?;
        let needed = tables::needed_state(host, &whole, &now)?;
        let found = match tables::with(host, nft::Table::read) {
            // The kernel has no nftables, and no pod needs them.
            Err(error) if needed.is_empty() && error.kind() == ErrorKind::Unavailable => None,
            other => other.map_err(NetworkError::attempt(READ))?,
        };
        let needed = tables::with_present_entries(needed, || Ok(found.clone()), &others);
        let both = (found, needed);
        let same = both.0.as_ref().is_some_and(|found| {
            found.state.confined == both.1.confined
                && differences(&found.state, &both.1, "").is_empty()
                && differences(&both.1, &found.state, "").is_empty()
        });
        if same || before.as_ref() == Some(&both) {
            return Ok(both);
        }
        before = Some(both);
        std::thread::sleep(POLL_INTERVAL);
    }
    before.ok_or_else(|| NetworkError::attempt(READ)(nft::Error::Contended { what: READ.into() }))
}

const READ: &str = "read the tables";
const MAX_ATTEMPTS: u32 = 20;
const POLL_INTERVAL: std::time::Duration = std::time::Duration::from_millis(20);

/// The entries of single pods that `one` has and `other` lacks or has otherwise. `suffix` ends each line.
fn differences(one: &State, other: &State, suffix: &str) -> Vec<String> {
    let (mine, theirs) = (entries::unshared(one), entries::unshared(other));
    let mut lines = Vec::new();
    for (port, forward) in mine.ports.iter().filter(|(port, forward)| theirs.ports.get(port) != Some(forward)) {
        lines.push(format!("port {port}, which leads to {} for pod {}{suffix}", forward.to, forward.owner));
    }
    for (name, _) in mine.anti_spoofing.iter().filter(|(name, guard)| theirs.anti_spoofing.get(*name) != Some(guard)) {
        lines.push(format!("the anti-spoofing entry of interface {name}{suffix}"));
    }
    for (name, _) in mine.interfaces.iter().filter(|(name, it)| theirs.interfaces.get(*name) != Some(it)) {
        lines.push(format!("rules for interface {name}{suffix}"));
    }
    lines
}

fn check_tables(host: &Host, records: &Records) -> Result<Vec<String>> {
    let (found, mut needed) = present_and_needed(host, records)?;
    if !needed.anti_spoofing.is_empty() && !supports_bridge_tables(host).map_err(NetworkError::attempt(READ))? {
        needed.anti_spoofing.clear();
    }
    let Some(found) = found else {
        let missing = format!("the nftables table {} is missing: 'gantry network reload' restores it", host.table);
        return Ok(if needed.is_empty() { Vec::new() } else { vec![missing] });
    };
    let mut lines: Vec<String> = found.faults.iter().map(|fault| format!("nftables: {fault}")).collect();
    lines.extend(differences(&found.state, &needed, " is in the tables, but no pod needs it"));
    lines.extend(differences(&needed, &found.state, " is not in the tables, but a pod needs it"));
    if found.state.confined != needed.confined && !needed.is_empty() {
        lines.push("the tables do not confine the forwarding that was enabled for pods".to_owned());
    }
    for (name, network) in &needed.networks {
        if found.state.networks.get(name) != Some(network) {
            lines.push(format!("the entry of network {name} is not what its pods need"));
        }
    }
    for (name, interface) in needed.interfaces.iter().filter(|(_, it)| it.addresses.is_empty()) {
        if found.state.interfaces.get(name) != Some(interface) {
            lines.push(format!("the entry of interface {name} is not what its pods need"));
        }
    }
    Ok(lines)
}

fn supports_bridge_tables(host: &Host) -> nft::Result<bool> {
    tables::with(host, nft::Table::supports_bridge_tables)
}

/// Forwarding that pods need and that another program has disabled.
fn check_forwarding(forwarding: &Forwarding<'_>, needed: Families) -> Result<Vec<String>> {
    let disabled = forwarding.disabled(needed)?;
    let name = |sysctl: Sysctl<'_>| format!("net.{sysctl}").replace('/', ".");
    let line = |sysctl| format!("{} is 0, but pods need 1: 'gantry network reload' sets it", name(sysctl));
    Ok(disabled.into_iter().map(line).collect())
}

/// Interfaces that are orphaned, and defects of those that pods need.
fn check_links(host: &Host, (records, now): (&Records, &str), live: &[Record]) -> Result<Vec<String>> {
    let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
    let mut lines = Vec::new();
    for link in garbage::stale_ends(host, records, &mut socket)? {
        lines.push(format!("interface {} belongs to a pod that is gone", link.name));
    }
    let (needed, unreadable) = NeededLinks::of_pods(live);
    lines.extend(unreadable.iter().map(with_causes));
    for defect in needed.find_defects(&mut socket)? {
        // The pod may have ended since.
        if records.is_up(&defect.pod, now)? {
            lines.push(defect.line);
        }
    }
    lines.sort();
    lines.dedup();
    Ok(lines)
}

fn check_leases(state: &StateDir, records: &Records, now: &str) -> Result<Vec<String>> {
    let mut lines: Vec<String> = state
        .boots()?
        .into_iter()
        .filter(|boot| boot != now)
        .map(|boot| format!("leases of the earlier boot {boot} are left"))
        .collect();
    for network in state.networks(now)? {
        let dir = state.leases(now)?;
        let leases = Store::open(dir.as_fd(), &network, LOCK_TIMEOUT).and_then(|store| store.leases());
        let doing = format!("list the addresses of network '{network}'");
        for lease in leases.map_err(NetworkError::attempt(doing))? {
            let owner = match &lease.owner {
                Some(owner) if records.has(owner.pod())? => continue,
                Some(owner) => owner.to_string(),
                None => "an unknown owner".into(),
            };
            lines.push(format!("address {} of network {network} is leased by {owner}, which is gone", lease.address));
        }
    }
    Ok(lines)
}

/// Cached attachments of pods that are gone; and CNI CHECK for the pods that are up.
fn check_plugins(host: &Host, state: &StateDir, records: &Records, live: &[Record]) -> Result<Vec<String>> {
    let runtime = state.runtime(host)?;
    let mut lines = Vec::new();
    for (network, pod, interface) in garbage::cached_attachments(&runtime)? {
        if !records.has(&pod)? {
            lines.push(format!("plugins of network {network} keep {interface} of pod {pod}, which is gone"));
        }
    }
    for record in live.iter().filter(|record| !record.attached.is_empty()) {
        let Some(netns) = record.namespace.as_ref().filter(|place| place.is_valid()).map(|place| &place.path) else {
            continue;
        };
        for network in record.networks.iter().filter(|network| network.plugins) {
            let config = network.config()?;
            let attachment: Attachment = network.attachment(&record.pod, Some(netns.clone()));
            if config.cni_version < crate::config::CniVersion::V0_4_0 {
                continue;
            }
            let failed = NetworkError::attempt(format!("check the pod's attachment to network '{}'", network.name));
            if let Err(error) = runtime.check_list(&config, &attachment).map_err(failed)
                && records.has(&record.pod)?
            {
                lines.push(format!("pod {}: {}", record.pod, with_causes(&error)));
            }
        }
    }
    Ok(lines)
}
