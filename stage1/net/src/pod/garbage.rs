//! Collects garbage: resources that belong to no pod.
//!
//! A pod's record is created before its resources and removed after them. So a resource whose pod has no record, looked
//! up after the resource was seen, is orphaned, however many pods come and go in between. Bridges and the garbage of
//! plugins belong to all pods: they are collected while no pod is being attached.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use gantry_contract::network::Host;
use gantry_host::lock::LockMode;

use super::error::{NetworkError, Result};
use super::record::{Records, boot};
use super::state::{self, Lock, StateDir, limit};
use super::{check, detach, select, tables, unused};
use crate::config::{CniVersion, NetworkConfig};
use crate::ipam::{IpamError, Owner, Store};
use crate::native;
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::plugin::Runtime;

/// How long the kernel may take to delete the interfaces of a network namespace that has just ended.
const NAMESPACE_CLEANUP_TIMEOUT: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The timeout of a plugin that collects garbage, in milliseconds: starting pods wait for it.
const MAX_COLLECT_MS: u64 = 10_000;
/// How long to wait until no pod is being attached.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// A garbage collection.
struct Collection<'a> {
    host: &'a Host,
    records: Records,
    state: StateDir,
    dry_run: bool,
    /// A line for each collected resource.
    removed: Vec<String>,
    errors: Vec<NetworkError>,
}

pub(super) fn collect(host: &Host, dry_run: bool) -> Result<Vec<String>> {
    let Some(state) = StateDir::find(host)? else { return Ok(Vec::new()) };
    let records = Records::open(host)?;
    let mut collection = Collection { host, records, state, dry_run, removed: Vec::new(), errors: Vec::new() };
    for step in [Collection::old_boots, Collection::tables, Collection::plugins, Collection::leases, Collection::links]
    {
        let done = step(&mut collection);
        collection.errors.extend(done.err());
    }
    NetworkError::from_all(collection.errors)?;
    Ok(collection.removed)
}

impl Collection<'_> {
    /// Leases of earlier boots.
    fn old_boots(&mut self) -> Result<()> {
        let now = boot()?;
        for old in self.state.boots()?.into_iter().filter(|boot| *boot != now) {
            if !self.dry_run {
                self.state.forget_boot(&old)?;
            }
            self.removed.push(format!("addresses of the earlier boot {old}"));
        }
        Ok(())
    }

    /// Firewall entries that no pod needs.
    fn tables(&mut self) -> Result<()> {
        let unneeded = check::unneeded_entries(self.host, &self.records)?;
        if unneeded.is_empty() {
            return Ok(());
        }
        if !self.dry_run {
            tables::reload(self.host)?;
        }
        self.removed.extend(unneeded);
        Ok(())
    }

    /// Leases of pods that have no record.
    fn leases(&mut self) -> Result<()> {
        let now = boot()?;
        for network in self.state.networks(&now)? {
            let freed = self.leases_of(&now, &network);
            match freed {
                Ok(freed) => self.removed.extend(freed),
                Err(error) => self.errors.push(error),
            }
        }
        Ok(())
    }

    fn leases_of(&self, boot: &str, network: &str) -> Result<Vec<String>> {
        let dir = self.state.leases(boot)?;
        // If the record cannot be looked up, the pod counts as live.
        let live = |owner: &Owner| self.records.has(owner.pod()).unwrap_or(true);
        let freed = Store::open(dir.as_fd(), network, state::LOCK_TIMEOUT).and_then(|store| {
            if self.dry_run {
                let mut leases = store.leases()?;
                leases.retain(|lease| !lease.owner.as_ref().is_some_and(live));
                return Ok::<_, IpamError>(leases);
            }
            store.release_all_but(live)
        });
        let doing = format!("free the orphaned addresses of network '{network}'");
        let freed = freed.map_err(NetworkError::attempt(doing))?;
        let line = |lease: crate::ipam::Lease| {
            let owner = lease.owner.map_or_else(|| "an unknown owner".to_owned(), |owner| owner.to_string());
            format!("address {} of network {network}, leased by {owner}", lease.address)
        };
        Ok(freed.into_iter().map(line).collect())
    }

    /// Cached attachments of pods without a record, and the plugins' own garbage.
    fn plugins(&mut self) -> Result<()> {
        let runtime = self.state.runtime(self.host)?;
        let mut known = BTreeSet::new();
        for (network, pod, interface) in cached_attachments(&runtime)? {
            if self.records.has(&pod)? {
                known.insert(network);
                continue;
            }
            if !self.dry_run {
                let deleted = detach::delete_cached(&runtime, self.host, (&network, &pod, &interface));
                if let Err(error) = deleted {
                    self.errors.push(error);
                    continue;
                }
            }
            self.removed.push(format!("interface {interface} of pod {pod}, created by plugins of network {network}"));
            known.insert(network);
        }
        if self.dry_run { Ok(()) } else { self.collect_by_plugins(&runtime, known) }
    }

    /// Runs CNI GC with the valid attachments (CNI specification 1.1.0, section 2).
    fn collect_by_plugins(&mut self, runtime: &Runtime, known: BTreeSet<String>) -> Result<()> {
        let networks = self.collectable(runtime, &known)?;
        if networks.is_empty() {
            return Ok(());
        }
        let brief = Host { plugin_limit_ms: self.host.plugin_limit_ms.min(MAX_COLLECT_MS), ..self.host.clone() };
        let runtime = self.state.runtime(&brief)?;
        for network in networks.values() {
            let wait = LOCK_TIMEOUT.min(limit(self.host));
            let _locked = match self.state.lock(Lock::Plugins, LockMode::Exclusive, wait) {
                // Plugins run for a pod just now: the next collection repeats this.
                Err(NetworkError::Locked { .. }) => return Ok(()),
                other => other?,
            };
            let valid = self.valid(&runtime, &network.name)?;
            let failed = NetworkError::attempt(format!("collect the garbage of network '{}'", network.name));
            self.errors.extend(runtime.gc_list(network, &valid).map_err(failed).err());
        }
        Ok(())
    }

    /// The valid attachments of a network: those in records, and cached ones of a pod whose record is damaged: it may
    /// be running.
    fn valid(&self, runtime: &Runtime, network: &str) -> Result<Vec<(String, String)>> {
        let mut valid = BTreeSet::new();
        for record in self.records.valid()? {
            let by_plugins = record.networks.iter().filter(|it| it.plugins && it.name == network);
            valid.extend(by_plugins.map(|network| (record.pod.clone(), network.interface.clone())));
        }
        for (name, pod, interface) in cached_attachments(runtime)? {
            if name == network && self.records.has(&pod)? {
                valid.insert((pod, interface));
            }
        }
        Ok(valid.into_iter().collect())
    }

    /// The networks among these whose plugins support GC, as configured now, or else as cached. Only networks whose
    /// plugins ran for gantry: others may belong to another runtime, whose attachments are unknown.
    fn collectable(&self, runtime: &Runtime, known: &BTreeSet<String>) -> Result<BTreeMap<String, NetworkConfig>> {
        let mut networks = BTreeMap::new();
        for entry in select::catalog(self.host)?.entries().iter().filter(|entry| entry.shadowed_by.is_none()) {
            if let Ok(network) = &entry.network
                && known.contains(&network.name)
            {
                networks.insert(network.name.clone(), network.clone());
            }
        }
        for (network, pod, interface) in cached_attachments(runtime)? {
            if !networks.contains_key(&network)
                && let Ok(Some(entry)) = runtime.cache().get(&network, &pod, &interface)
                && let Ok(config) = entry.network()
            {
                networks.insert(network, config);
            }
        }
        networks.retain(|_, network| network.cni_version >= CniVersion::V1_1_0 && !network.disable_gc);
        Ok(networks)
    }

    /// Host ends of pods without a record, and unused bridges.
    fn links(&mut self) -> Result<()> {
        let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
        let stale = stale_ends(self.host, &self.records, &mut socket)?;
        for link in stale {
            if !self.dry_run {
                let doing = || format!("remove the interface {}", link.name);
                socket.delete_link(link.index).map_err(NetworkError::attempt(doing()))?;
            }
            self.removed.push(format!("interface {} of a pod that is gone", link.name));
        }
        if unused::idle_bridges(self.host, &self.records, &mut socket)?.is_empty() {
            return Ok(());
        }
        let _locked = match self.state.lock(Lock::Links, LockMode::Exclusive, LOCK_TIMEOUT) {
            // A pod is being attached, perhaps to one of the bridges.
            Err(NetworkError::Locked { .. }) => return Ok(()),
            other => other?,
        };
        for bridge in unused::idle_bridges(self.host, &self.records, &mut socket)? {
            if !self.dry_run {
                unused::delete_bridge(&bridge, &mut socket)?;
            }
            self.removed.push(format!("bridge {}, which no pod uses", bridge.name));
        }
        Ok(())
    }
}

/// Network, pod and interface of all cached attachments.
pub(super) fn cached_attachments(runtime: &Runtime) -> Result<Vec<(String, String, String)>> {
    runtime.cache().names().map_err(NetworkError::attempt("list the cached results of plugins"))
}

fn is_own_bridge(link: &Link, host: &Host) -> bool {
    native::is_bridge_owned_by(link, &host.state_dir)
}

/// Host ends on gantry's bridges whose pods have no record. The kernel deletes those of a pod that has just ended
/// itself, with a short delay.
pub(super) fn stale_ends(host: &Host, records: &Records, socket: &mut Socket) -> Result<Vec<Link>> {
    let deadline = Instant::now() + NAMESPACE_CLEANUP_TIMEOUT;
    loop {
        let stale = present_stale_ends(host, records, socket)?;
        if stale.is_empty() || Instant::now() >= deadline {
            return Ok(stale);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn present_stale_ends(host: &Host, records: &Records, socket: &mut Socket) -> Result<Vec<Link>> {
    let links = socket.links().map_err(NetworkError::attempt("list the interfaces"))?;
    let own: BTreeSet<u32> = links.iter().filter(|link| is_own_bridge(link, host)).map(|link| link.index).collect();
    let mut stale = Vec::new();
    for link in &links {
        // Looked up after the interface was seen.
        if let Some(pod) = detach::pod_of(link)
            && link.master.is_some_and(|master| own.contains(&master))
            && !records.has(pod)?
        {
            stale.push(link.clone());
        }
    }
    Ok(stale)
}
