//! Releases resources of pods whose supervisors were killed, for a pod that needs them: no command may have detached
//! those pods yet.
//!
//! A live supervisor holds the lock of its pod, so only the resources of dead pods are released. The caller may hold
//! the shared lock of the links, but not that of the plugins: detaching a pod runs plugins, or waits for those that its
//! supervisor has left.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};

use gantry_contract::network::Host;
use serde_json::Value;

use super::error::{NetworkError, Result};
use super::record::{DeadPod, NetworkRecord, Record, Records, boot};
use super::state::LOCK_TIMEOUT;
use super::{Pod, detach, tables};
use crate::ipam::{IpamError, Store};
use crate::nft::{self, State};

/// Detaches a pod that holds an address whose allocation failed with this error, or one of the addresses if all are
/// leased. Adds the pods that it has looked at to `tried`. Returns whether it has detached one.
pub(super) fn release_address(
    host: &Host,
    leases: BorrowedFd<'_>,
    error: &IpamError,
    tried: &mut BTreeSet<String>,
) -> Result<bool> {
    let owners = match error {
        IpamError::Taken { owner, .. } => owner.iter().cloned().collect(),
        IpamError::Exhausted { network, .. } => {
            let doing = format!("list the addresses of network '{network}'");
            let leases = Store::open(leases, network, LOCK_TIMEOUT).and_then(|store| store.leases());
            leases.map_err(NetworkError::attempt(doing))?.into_iter().filter_map(|lease| lease.owner).collect()
        }
        IpamError::Io { .. } | IpamError::Invalid(_) | IpamError::Failed { .. } => Vec::new(),
    };
    let records = Records::open(host)?;
    let mut errors = Vec::new();
    for owner in owners {
        if !tried.insert(owner.pod().to_owned()) {
            continue;
        }
        match detach_if_dead(&records, host, owner.pod()) {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            Err(error) => errors.push(error),
        }
    }
    NetworkError::from_all(errors)?;
    Ok(false)
}

/// Detaches other pods for which plugins publish ports that they are about to publish for `pod`.
pub(super) fn detach_port_users(host: &Host, pod: &str, network: &NetworkRecord) -> Result<()> {
    let wanted: Vec<_> = published_ports(network).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let publishes = |it: &NetworkRecord| it.plugins && published_ports(it).any(|port| wanted.contains(&port));
    let detached = detach_dead(host, |record| record.pod != pod && record.networks.iter().any(publishes))?;
    NetworkError::from_all(detached.errors)
}

/// Detaches other pods that plugins have attached to the network of this name.
pub(super) fn detach_attached(host: &Host, pod: &str, network: &str) -> Result<DetachedPods> {
    let is_attached = |it: &NetworkRecord| it.plugins && it.name == network;
    detach_dead(host, |record| record.pod != pod && record.networks.iter().any(is_attached))
}

/// Removes the firewall entries of pods whose networks overlap with those of `pod`, so that a reload removes these
/// networks. Returns `false` if a live pod needs one of them.
pub(super) fn release_networks(host: &Host, pod: &str, entries: &State) -> Result<bool> {
    let records = Records::open(host)?;
    let (valid, others) = records.partition()?;
    let now = boot()?;
    for record in valid.iter().filter(|record| record.pod != pod && record.is_up(&now)) {
        let overlaps = entries.check_overlaps_with(&record.entries()?.networks).is_err();
        if overlaps && !detach::release_entries_if_dead(&records, &record.pod)? {
            return Ok(false);
        }
    }
    // Pods with unusable records may be running, and a reload keeps their networks.
    let present = tables::with_present_entries(State::new(), || tables::with(host, nft::Table::read), &others);
    Ok(entries.check_overlaps_with(&present.networks).is_ok())
}

/// The ports that plugins publish for a pod, and their protocols.
fn published_ports(network: &NetworkRecord) -> impl Iterator<Item = (&Value, &Value)> {
    let mappings = network.capability_args.get("portMappings").and_then(Value::as_array).into_iter().flatten();
    mappings.filter_map(|mapping| Some((mapping.get("hostPort")?, mapping.get("protocol")?)))
}

/// The dead pods among some pods, after an attempt to detach each of them.
#[derive(Debug, Default)]
pub(super) struct DetachedPods {
    /// At least one was detached.
    pub(super) any: bool,
    /// Why others could not be detached.
    pub(super) errors: Vec<NetworkError>,
}

/// Detaches the dead pods among those with such records.
fn detach_dead(host: &Host, is_wanted: impl Fn(&Record) -> bool) -> Result<DetachedPods> {
    let mut pods = DetachedPods::default();
    let records = Records::open(host)?;
    for record in records.valid()?.iter().filter(|record| is_wanted(record)) {
        match detach_if_dead(&records, host, &record.pod) {
            Ok(detached) => pods.any |= detached,
            Err(error) => pods.errors.push(error),
        }
    }
    Ok(pods)
}

/// Detaches a pod. Returns `false` if its supervisor lives, another process is just detaching or starting it, or it has
/// no record.
fn detach_if_dead(records: &Records, host: &Host, pod: &str) -> Result<bool> {
    let Some(DeadPod { dir, record }) = records.take_dead(pod)? else { return Ok(false) };
    let detached = detach::detach_recorded(&Pod { id: pod, dir: dir.as_fd() }, record, Some(host), None);
    detached.map_err(NetworkError::attempt(format!("detach pod {pod}, whose supervisor was killed")))?;
    Ok(true)
}
