//! Detaches a pod from its networks. Every step is idempotent. If a step fails, the others are done nevertheless, and
//! the record stays.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use gantry_contract::network::Host;

use super::error::{NetworkError, Result, with_causes};
use super::plugin_lock::PluginLock;
use super::record::{self, DeadPod, NetworkRecord, Record, RecordFile, Records, boot};
use super::state::{LOCK_TIMEOUT, StateDir};
use super::{Pod, garbage, select, tables, unused};
use crate::ipam::Store;
use crate::native;
use crate::netlink::link::Link;
use crate::netlink::{Namespace, Socket};
use crate::nft;
use crate::plugin::{PluginError, Runtime};

const DETACH: &str = "detach the pod from network";

/// When a record was written: a reboot removes what the pod used of the host's network, and its leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordAge {
    ThisBoot,
    EarlierBoot,
}

impl RecordAge {
    fn of(record: &Record) -> Result<Self> {
        Ok(if record.boot == boot()? { Self::ThisBoot } else { Self::EarlierBoot })
    }
}

/// Detaches the pod of this record, which may be damaged.
pub(super) fn detach_recorded(
    pod: &Pod<'_>,
    record: RecordFile,
    host: Option<&Host>,
    own: Option<&Namespace>,
) -> Result<()> {
    match (record, host) {
        (RecordFile::Valid(mut record), _) => detach_valid(pod.dir, &mut record, own),
        (RecordFile::Damaged(_), Some(host)) => detach_by_id(pod, host),
        (RecordFile::Damaged(problem), None) => Err(NetworkError::damaged(pod.id, &problem)),
        (RecordFile::Newer(version), _) => Err(NetworkError::newer(pod.id, version)),
    }
}

/// Detaches the pod of a valid record; in the host's network namespace, where the thread is.
pub(super) fn detach_valid(dir: BorrowedFd<'_>, record: &mut Record, own: Option<&Namespace>) -> Result<()> {
    // If this fails, a concurrent reload may restore the entries until the next reload. That is no reason to stop or to
    // keep the record.
    let marked = record.append_down(dir);
    let mut errors = Vec::new();
    let age = RecordAge::of(record)?;
    if age == RecordAge::ThisBoot {
        errors.extend(remove_entries(record));
    }
    errors.extend(detach_networks(dir, record, age, own).err());
    if !errors.is_empty() {
        errors.extend(marked.err());
    }
    NetworkError::from_all(errors)?;
    record::remove(dir)?;
    if age == RecordAge::EarlierBoot {
        return Ok(());
    }
    let mut errors = Vec::from_iter(unused::remember(record).err());
    if record.may_be_forwarded_by_plugins() {
        errors.extend(tables::reload_confinement(&record.host).err());
    }
    NetworkError::from_all(errors)
}

/// Removes the firewall entries of a pod; returns the failures.
fn remove_entries(record: &Record) -> Vec<NetworkError> {
    let removed = record.entries().and_then(|entries| tables::remove(&record.host, &entries));
    let torn = record.torn.then(|| remove_entries_by_id(&record.pod, &record.host));
    removed.err().into_iter().chain(torn.and_then(Result::err)).collect()
}

/// Removes the firewall entries of a pod whose supervisor was killed, so that another pod can publish its ports.
/// Returns `false` if the pod is alive, or is just being detached or started. Its networks are detached later.
pub(super) fn release_entries_if_dead(records: &Records, pod: &str) -> Result<bool> {
    let Some(DeadPod { dir, record: RecordFile::Valid(mut record) }) = records.take_dead(pod)? else {
        return Ok(false);
    };
    // First, or a reload would add them again.
    record.append_down(dir.as_fd())?;
    NetworkError::from_all(remove_entries(&record))?;
    Ok(true)
}

/// Detaches the pod from its networks, last first.
fn detach_networks(dir: BorrowedFd<'_>, record: &Record, age: RecordAge, own: Option<&Namespace>) -> Result<()> {
    let state = StateDir::open(&record.host)?;
    // Plugins get the same path as for ADD, as long as it leads to the same namespace.
    let before = record.namespace.as_ref().filter(|place| own.is_some() && place.is_valid());
    let now_at = |own: &Namespace| format!("/proc/{}/fd/{}", std::process::id(), own.as_fd().as_raw_fd());
    let netns = before.map(|place| place.path.clone()).or_else(|| own.map(now_at));
    let mut errors = Vec::new();
    let natives = record.networks.iter().rev().filter(|network| !network.plugins);
    if age == RecordAge::ThisBoot && natives.clone().next().is_some() {
        let leases = state.leases(&record.boot)?;
        let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
        for network in natives {
            errors.extend(detach_native(record, network, own, (&mut socket, leases.as_fd())).err());
        }
    }
    if record.networks.iter().any(|network| network.plugins) {
        errors.extend(detach_by_plugins(dir, &state, record, age, netns.as_ref()).err());
    }
    NetworkError::from_all(errors)
}

fn detach_by_plugins(
    dir: BorrowedFd<'_>,
    state: &StateDir,
    record: &Record,
    age: RecordAge,
    netns: Option<&String>,
) -> Result<()> {
    let _plugin_lock = PluginLock::open(dir, &record.pod)?;
    let runtime = state.runtime(&record.host)?;
    let mut errors = Vec::new();
    for network in record.networks.iter().rev().filter(|network| network.plugins) {
        errors.extend(run_plugins_del(&runtime, record, network, age, netns.cloned()).err());
    }
    NetworkError::from_all(errors)
}

fn detach_native(
    record: &Record,
    network: &NetworkRecord,
    own: Option<&Namespace>,
    (socket, leases): (&mut Socket, BorrowedFd<'_>),
) -> Result<()> {
    let attachment = network.attachment(&record.pod, None);
    let failed = NetworkError::attempt(format!("{DETACH} '{}'", network.name));
    native::del(&network.config()?, &attachment, socket, own, leases).map_err(failed)
}

fn run_plugins_del(
    runtime: &Runtime,
    record: &Record,
    network: &NetworkRecord,
    age: RecordAge,
    netns: Option<String>,
) -> Result<()> {
    let failed = |source| NetworkError::attempt(format!("{DETACH} '{}'", network.name))(source);
    // Without a cache entry, ADD was never started or DEL is done, unless a power loss has destroyed the entry.
    let begun = match runtime.cache().get(&network.name, &record.pod, &network.interface) {
        Err(PluginError::Damaged { .. }) => true,
        other => other.map_err(failed)?.is_some() || age == RecordAge::EarlierBoot,
    };
    if !begun {
        return Ok(());
    }
    runtime.del_list(&network.config()?, &network.attachment(&record.pod, netns)).map_err(failed)
}

/// Detaches a pod without a usable record, by its id: its firewall entries, its leases in every network, its host ends,
/// and its cached plugin results.
fn detach_by_id(pod: &Pod<'_>, host: &Host) -> Result<()> {
    let mut errors = Vec::new();
    errors.extend(remove_entries_by_id(pod.id, host).err());
    if let Some(state) = StateDir::find(host)? {
        errors.extend(detach_plugins_by_id(pod, host, &state).err());
        errors.extend(release_leases_by_id(pod.id, &state).err());
    }
    errors.extend(delete_links_by_id(pod.id).err());
    NetworkError::from_all(errors)?;
    record::remove(pod.dir)?;
    // It may have had networks of plugins.
    tables::reload_confinement(host)
}

fn remove_entries_by_id(pod: &str, host: &Host) -> Result<()> {
    let failed = NetworkError::attempt("remove the pod's firewall entries");
    let found = tables::with(host, nft::Table::read).map_err(failed)?;
    let Some(found) = found else { return Ok(()) };
    tables::remove(host, &tables::entries_of_pods(found.state, &[pod.to_owned()]))
}

fn release_leases_by_id(pod: &str, state: &StateDir) -> Result<()> {
    let boot = boot()?;
    let mut errors = Vec::new();
    for network in state.networks(&boot)? {
        let leases = state.leases(&boot)?;
        let freed = Store::open(leases.as_fd(), &network, LOCK_TIMEOUT)
            .and_then(|store| store.release_all_but(|owner| owner.pod() != pod));
        let doing = format!("free the addresses of pod {pod} in network '{network}'");
        errors.extend(freed.map_err(NetworkError::attempt(doing)).err());
    }
    NetworkError::from_all(errors)
}

fn detach_plugins_by_id(pod: &Pod<'_>, host: &Host, state: &StateDir) -> Result<()> {
    let _plugin_lock = PluginLock::open(pod.dir, pod.id)?;
    let runtime = state.runtime(host)?;
    let mut errors = Vec::new();
    for (network, _, interface) in
        garbage::cached_attachments(&runtime)?.into_iter().filter(|(_, container, _)| container == pod.id)
    {
        errors.extend(delete_cached(&runtime, host, (&network, pod.id, &interface)).err());
    }
    NetworkError::from_all(errors)
}

/// Detaches a pod even if its plugins fail: DEL is called once more, and an attachment that a plugin fails to delete is
/// forgotten. Returns a line for each of those.
pub(super) fn abandon(host: &Host, pod: &Pod<'_>) -> Result<Vec<String>> {
    let mut abandoned = Vec::new();
    match record::read(pod.dir, pod.id)? {
        None => record::remove(pod.dir)?,
        Some(RecordFile::Valid(mut record)) => {
            let by_plugins: Vec<NetworkRecord> =
                record.networks.iter().filter(|network| network.plugins).cloned().collect();
            if !by_plugins.is_empty() {
                let age = RecordAge::of(&record)?;
                let _plugin_lock = PluginLock::open(pod.dir, pod.id)?;
                let runtime = StateDir::open(&record.host)?.runtime(&record.host)?;
                for network in by_plugins.iter().rev() {
                    let deleted = run_plugins_del(&runtime, &record, network, age, None);
                    abandoned.extend(forget_failed(&runtime, (&network.name, pod.id, &network.interface), deleted)?);
                }
            }
            record.networks.retain(|network| !network.plugins);
            detach_valid(pod.dir, &mut record, None)?;
        }
        Some(record @ RecordFile::Damaged(_)) => {
            if let Some(state) = StateDir::find(host)? {
                let _plugin_lock = PluginLock::open(pod.dir, pod.id)?;
                let runtime = state.runtime(host)?;
                let cached = garbage::cached_attachments(&runtime)?.into_iter();
                for (network, container, interface) in cached.filter(|it| it.1 == pod.id) {
                    let key = (network.as_str(), container.as_str(), interface.as_str());
                    abandoned.extend(forget_failed(&runtime, key, delete_cached(&runtime, host, key))?);
                }
            }
            detach_recorded(pod, record, Some(host), None)?;
        }
        Some(record @ RecordFile::Newer(_)) => detach_recorded(pod, record, Some(host), None)?,
    }
    Ok(abandoned)
}

/// After a failed DEL, removes the attachment from the cache and returns the error as a line for people.
fn forget_failed(
    runtime: &Runtime,
    (network, pod, interface): (&str, &str, &str),
    deleted: Result<()>,
) -> Result<Option<String>> {
    let Err(error) = deleted else { return Ok(None) };
    let failed = NetworkError::attempt(format!("remove the cached result of the plugins of pod {pod}"));
    runtime.cache().remove(network, pod, interface).map_err(failed)?;
    Ok(Some(with_causes(&error)))
}

/// Runs DEL of a cached attachment; if the cache entry is damaged, with the present configuration of the network.
pub(super) fn delete_cached(
    runtime: &Runtime,
    host: &Host,
    (network, pod, interface): (&str, &str, &str),
) -> Result<()> {
    let failed = |source| NetworkError::attempt(format!("{DETACH} '{network}'"))(source);
    match runtime.cache().get(network, pod, interface) {
        Ok(None) => Ok(()),
        Ok(Some(entry)) if entry.network().is_ok() => runtime.del_entry(&entry, None).map_err(failed),
        Ok(Some(_)) | Err(PluginError::Damaged { .. }) => {
            let config = select::catalog(host)?.get(network)?;
            let attachment = crate::plugin::Attachment {
                container_id: pod.to_owned(),
                interface: interface.to_owned(),
                ..Default::default()
            };
            runtime.del_list(&config, &attachment).map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

fn delete_links_by_id(pod: &str) -> Result<()> {
    let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
    for link in socket.links().map_err(NetworkError::attempt("list the interfaces"))? {
        if pod_of(&link) == Some(pod) {
            let doing = || format!("remove the interface {}", link.name);
            socket.delete_link(link.index).map_err(NetworkError::attempt(doing()))?;
        }
    }
    Ok(())
}

/// The pod of a host end of gantry's: its alias is `POD/INTERFACE`, and its name is derived from both.
pub(super) fn pod_of(link: &Link) -> Option<&str> {
    let (pod, interface) = link.alias.as_deref()?.split_once('/')?;
    let is_host_end = link.kind.as_deref() == Some("veth") && link.name == native::host_interface(pod, interface);
    is_host_end.then_some(pod)
}
