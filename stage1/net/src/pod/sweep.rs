//! Removing what belongs to no pod.
//!
//! A pod's record is there before anything else of it, and goes last. So what is seen first and whose pod is then found to have
//! no record is nobody's, however many pods come and go meanwhile. Bridges, and what plugins are told to collect, are of
//! all pods: they are seen to while no pod is being attached.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use gantry_contract::network::Host;

use super::error::{NetworkError, Result};
use super::record::{Record, Records, Standing, boot};
use super::state::{Lock, StateDir, WAIT, limit};
use super::{check, detach, select, tables, unused};
use crate::config::{CniVersion, NetworkConfig};
use crate::ipam::{IpamError, Owner, Store};
use crate::native;
use crate::netlink::Socket;
use crate::netlink::link::Link;
use crate::plugin::Runtime;

/// How long to wait for the kernel to clear a namespace that has just ended.
const FADING: Duration = Duration::from_secs(1);
/// How long, in milliseconds, one plugin may take to collect garbage: others wait for it to attach pods.
const COLLECT_MS: u64 = 10_000;
/// How long to wait until no pod is being attached.
const QUIET: Duration = Duration::from_secs(5);

/// What a sweep has at hand.
struct Sweep<'a> {
    host: &'a Host,
    records: Records,
    state: StateDir,
    dry_run: bool,
    told: Vec<String>,
    errors: Vec<NetworkError>,
}

pub(super) fn sweep(host: &Host, dry_run: bool) -> Result<Vec<String>> {
    let Some(state) = StateDir::find(host)? else { return Ok(Vec::new()) };
    let records = Records::open(host)?;
    let mut sweep = Sweep { host, records, state, dry_run, told: Vec::new(), errors: Vec::new() };
    for step in [Sweep::old_boots, Sweep::tables, Sweep::plugins, Sweep::leases, Sweep::links] {
        let done = step(&mut sweep);
        sweep.errors.extend(done.err());
    }
    NetworkError::of_all(sweep.errors)?;
    Ok(sweep.told)
}

impl Sweep<'_> {
    /// The leases of boots that are over.
    fn old_boots(&mut self) -> Result<()> {
        let now = boot()?;
        for old in self.state.boots()?.into_iter().filter(|boot| *boot != now) {
            if !self.dry_run {
                self.state.forget_boot(&old)?;
            }
            self.told.push(format!("the addresses that were given in boot {old}"));
        }
        Ok(())
    }

    /// What the tables hold that no pod needs.
    fn tables(&mut self) -> Result<()> {
        let beyond = check::beyond_tables(self.host, &self.records)?;
        if beyond.is_empty() {
            return Ok(());
        }
        if !self.dry_run {
            tables::reload(self.host)?;
        }
        self.told.extend(beyond);
        Ok(())
    }

    /// Leases of pods that have no record.
    fn leases(&mut self) -> Result<()> {
        let now = boot()?;
        for network in self.state.networks(&now)? {
            let freed = self.leases_of(&now, &network);
            match freed {
                Ok(told) => self.told.extend(told),
                Err(error) => self.errors.push(error),
            }
        }
        Ok(())
    }

    fn leases_of(&self, boot: &str, network: &str) -> Result<Vec<String>> {
        let dir = self.state.leases(boot)?;
        // One that cannot be looked for is taken for live.
        let live = |owner: &Owner| self.records.has(owner.pod()).unwrap_or(true);
        let freed = Store::open(dir.as_fd(), network, WAIT).and_then(|store| {
            if self.dry_run {
                let mut leases = store.leases()?;
                leases.retain(|lease| !lease.owner.as_ref().is_some_and(live));
                return Ok::<_, IpamError>(leases);
            }
            store.release_all_but(live)
        });
        let doing = || format!("free the addresses that nobody has in network '{network}'");
        let freed = freed.map_err(|source| NetworkError::Leases { doing: doing(), source: Box::new(source) })?;
        let line = |lease: crate::ipam::Lease| {
            let of = lease.owner.map_or_else(|| "nobody".to_owned(), |owner| owner.to_string());
            format!("address {} of network {network}, given to {of}", lease.address)
        };
        Ok(freed.into_iter().map(line).collect())
    }

    /// What is remembered of plugins for pods that have no record, and what plugins keep themselves.
    fn plugins(&mut self) -> Result<()> {
        let runtime = self.state.runtime(self.host)?;
        let mut known = BTreeSet::new();
        for (network, pod, interface) in remembered(&runtime)? {
            if self.records.has(&pod)? {
                known.insert(network);
                continue;
            }
            if !self.dry_run {
                let deleted = detach::delete_remembered(&runtime, self.host, (&network, &pod, &interface));
                if let Err(error) = deleted {
                    self.errors.push(error);
                    continue;
                }
            }
            self.told.push(format!("what plugins made in network {network} for pod {pod} ({interface})"));
            known.insert(network);
        }
        if self.dry_run { Ok(()) } else { self.collect(&runtime, known) }
    }

    /// CNI GC, with what is still valid.
    fn collect(&mut self, runtime: &Runtime, known: BTreeSet<String>) -> Result<()> {
        let networks = self.collectable(runtime, &known)?;
        if networks.is_empty() {
            return Ok(());
        }
        let brief = Host { plugin_limit_ms: self.host.plugin_limit_ms.min(COLLECT_MS), ..self.host.clone() };
        let runtime = self.state.runtime(&brief)?;
        for network in networks.values() {
            let _locked = match self.state.lock(Lock::Plugins, false, QUIET.min(limit(self.host))) {
                // Plugins run for a pod just now: the next sweep collects.
                Err(NetworkError::Locked { .. }) => return Ok(()),
                other => other?,
            };
            let valid = self.valid(&runtime, &network.name)?;
            let failed = |source| {
                let network = network.name.clone();
                NetworkError::Plugins { doing: "collect the garbage of", network, why: None, source: Box::new(source) }
            };
            self.errors.extend(runtime.gc_list(network, &valid).map_err(failed).err());
        }
        Ok(())
    }

    /// The attachments of a network that plugins run: those that records say, and those that are remembered of a pod whose
    /// record cannot be understood. It may be running.
    fn valid(&self, runtime: &Runtime, network: &str) -> Result<Vec<(String, String)>> {
        let mut valid = BTreeSet::new();
        for record in self.records.whole()? {
            let ours = record.networks.iter().filter(|joined| joined.plugins && joined.name == network);
            valid.extend(ours.map(|joined| (record.pod.clone(), joined.interface.clone())));
        }
        for (name, pod, interface) in remembered(runtime)? {
            if name == network && self.records.has(&pod)? {
                valid.insert((pod, interface));
            }
        }
        Ok(valid.into_iter().collect())
    }

    /// The networks among these whose plugins know GC: as they are configured now, or as they were. Only those that plugins have
    /// run for us: others are perhaps another runtime's, whose attachments we do not know.
    fn collectable(&self, runtime: &Runtime, known: &BTreeSet<String>) -> Result<BTreeMap<String, NetworkConfig>> {
        let mut networks = BTreeMap::new();
        for entry in select::catalog(self.host)?.entries().iter().filter(|entry| entry.shadowed_by.is_none()) {
            if let Ok(network) = &entry.network
                && known.contains(&network.name)
            {
                networks.insert(network.name.clone(), network.clone());
            }
        }
        for (network, pod, interface) in remembered(runtime)? {
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

    /// Host's ends of pods that have no record, and bridges that nobody needs.
    fn links(&mut self) -> Result<()> {
        let mut socket = Socket::open().map_err(NetworkError::link("open a socket on the host"))?;
        let stale = stale_ends(self.host, &self.records, &mut socket)?;
        for link in stale {
            if !self.dry_run {
                let doing = || format!("remove the interface {}", link.name);
                socket.delete_link(link.index).map_err(NetworkError::link(doing()))?;
            }
            self.told.push(format!("interface {}, which led to a pod that is gone", link.name));
        }
        if unused::idle_bridges(self.host, &self.records, &mut socket)?.is_empty() {
            return Ok(());
        }
        let _locked = match self.state.lock(Lock::Links, false, QUIET) {
            // A pod is being attached, perhaps to one of them.
            Err(NetworkError::Locked { .. }) => return Ok(()),
            other => other?,
        };
        for bridge in unused::idle_bridges(self.host, &self.records, &mut socket)? {
            if !self.dry_run {
                unused::delete(&bridge, &mut socket)?;
            }
            self.told.push(format!("bridge {}, which no pod is on", bridge.name));
        }
        Ok(())
    }
}

/// Network, pod and interface of all that is remembered of plugins.
pub(super) fn remembered(runtime: &Runtime) -> Result<Vec<(String, String, String)>> {
    let doing = || "list what is remembered of plugins".to_owned();
    runtime.cache().names().map_err(|source| NetworkError::Cache { doing: doing(), source: Box::new(source) })
}

pub(super) fn is_our_bridge(link: &Link, host: &Host) -> bool {
    native::is_bridge_of(link, &host.state_dir)
}

/// Host's ends on our bridges that stay although their pods have no record. The kernel removes those of a pod that has just
/// ended by itself, soon.
pub(super) fn stale_ends(host: &Host, records: &Records, socket: &mut Socket) -> Result<Vec<Link>> {
    let deadline = Instant::now() + FADING;
    loop {
        let stale = stale_now(host, records, socket)?;
        if stale.is_empty() || Instant::now() >= deadline {
            return Ok(stale);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn stale_now(host: &Host, records: &Records, socket: &mut Socket) -> Result<Vec<Link>> {
    let links = socket.links().map_err(NetworkError::link("list the interfaces"))?;
    let ours: BTreeSet<u32> = links.iter().filter(|link| is_our_bridge(link, host)).map(|link| link.index).collect();
    let mut stale = Vec::new();
    for link in &links {
        // Looked up after the interface was seen.
        if let Some(pod) = detach::pod_of(link)
            && link.master.is_some_and(|master| ours.contains(&master))
            && !records.has(pod)?
        {
            stale.push(link.clone());
        }
    }
    Ok(stale)
}

/// Whether a record's entries belong in the tables.
pub(super) fn is_live(record: &Record, boot: &str) -> bool {
    record.state == Standing::Up && record.boot == boot
}
