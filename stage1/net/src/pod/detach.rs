//! Taking a pod's networks away. Each step may have been done before; what fails does not keep the rest from being done, and
//! keeps the record.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use gantry_contract::network::Host;

use super::error::{NetworkError, Result, all};
use super::record::{self, Found, Joined, Record, boot};
use super::state::{StateDir, WAIT};
use super::turn::Turn;
use super::{Pod, select, sweep, tables, unused};
use crate::ipam::Store;
use crate::native;
use crate::netlink::link::Link;
use crate::netlink::{Namespace, Socket};
use crate::nft;
use crate::plugin::{PluginError, Runtime};

const DETACH: &str = "detach the pod from";

/// Takes away what a record says, whatever is left of it.
pub(super) fn found(pod: &Pod<'_>, found: Found, host: Option<&Host>, own: Option<&Namespace>) -> Result<()> {
    match (found, host) {
        (Found::Whole(mut record), _) => whole(pod.dir, &mut record, own),
        (Found::Damaged(_), Some(host)) => by_id(pod, host),
        (Found::Damaged(problem), None) => Err(NetworkError::Damaged { pod: pod.id.to_owned(), problem }),
        (Found::Newer(version), _) => Err(NetworkError::Newer { pod: pod.id.to_owned(), version }),
    }
}

/// Takes away what a whole record says, in the host's network namespace, where the thread is.
pub(super) fn whole(dir: BorrowedFd<'_>, record: &mut Record, own: Option<&Namespace>) -> Result<()> {
    // Without it a reload may revive the entries, until the next one: no reason to stop, or to keep the record.
    let marked = record.down(dir);
    let mut errors = Vec::new();
    let now = record.boot == boot()?;
    if now {
        errors.extend(record.entries().and_then(|entries| tables::remove(&record.host, &entries)).err());
        if record.torn {
            errors.extend(out_of_tables(&record.pod, &record.host).err());
        }
    }
    errors.extend(leave(dir, record, now, own).err());
    if !errors.is_empty() {
        errors.extend(marked.err());
    }
    NetworkError::of_all(errors)?;
    record::remove(dir)?;
    if now { unused::note(record) } else { Ok(()) }
}

/// Leaves the networks, last first.
fn leave(dir: BorrowedFd<'_>, record: &Record, now: bool, own: Option<&Namespace>) -> Result<()> {
    let state = StateDir::open(&record.host)?;
    // Plugins get the path that they got before, as long as it leads there.
    let before = record.namespace.as_ref().filter(|place| own.is_some() && place.is_there());
    let now_at = |own: &Namespace| format!("/proc/{}/fd/{}", std::process::id(), own.as_fd().as_raw_fd());
    let netns = before.map(|place| place.path.clone()).or_else(|| own.map(now_at));
    let mut errors = Vec::new();
    let natives = record.networks.iter().rev().filter(|joined| !joined.plugins);
    if now && natives.clone().next().is_some() {
        let leases = state.leases(&record.boot)?;
        let mut socket = Socket::open().map_err(NetworkError::link("open a socket on the host"))?;
        for joined in natives {
            errors.extend(leave_native(record, joined, netns.clone(), (&mut socket, leases.as_fd())).err());
        }
    }
    if record.networks.iter().any(|joined| joined.plugins) {
        errors.extend(leave_by_plugins(dir, &state, record, now, netns.as_ref()).err());
    }
    NetworkError::of_all(errors)
}

fn leave_by_plugins(
    dir: BorrowedFd<'_>,
    state: &StateDir,
    record: &Record,
    now: bool,
    netns: Option<&String>,
) -> Result<()> {
    let _turn = Turn::next(dir, &record.pod)?;
    let runtime = state.runtime(&record.host)?;
    let mut errors = Vec::new();
    for joined in record.networks.iter().rev().filter(|joined| joined.plugins) {
        errors.extend(leave_plugins(&runtime, record, joined, now, netns.cloned()).err());
    }
    NetworkError::of_all(errors)
}

fn leave_native(
    record: &Record,
    joined: &Joined,
    netns: Option<String>,
    (socket, leases): (&mut Socket, BorrowedFd<'_>),
) -> Result<()> {
    let attachment = joined.attachment(&record.pod, netns);
    let failed =
        |source| NetworkError::Native { doing: DETACH, network: joined.name.clone(), source: Box::new(source) };
    native::del(&joined.config()?, &attachment, socket, leases).map_err(failed)
}

fn leave_plugins(runtime: &Runtime, record: &Record, joined: &Joined, now: bool, netns: Option<String>) -> Result<()> {
    let failed = |source| NetworkError::Plugins {
        doing: DETACH,
        network: joined.name.clone(),
        why: None,
        source: Box::new(source),
    };
    // Without an entry ADD was never begun, or DEL is done; but for one that a power loss took.
    let begun = match runtime.cache().get(&joined.name, &record.pod, &joined.interface) {
        Err(PluginError::Damaged { .. }) => true,
        other => other.map_err(failed)?.is_some() || !now,
    };
    if !begun {
        return Ok(());
    }
    runtime.del_list(&joined.config()?, &joined.attachment(&record.pod, netns)).map_err(failed)
}

/// Takes away what is the pod's by its id, when its record says nothing: its ports and guards, its leases in every network,
/// its host's ends, and what is remembered of plugins.
fn by_id(pod: &Pod<'_>, host: &Host) -> Result<()> {
    let mut errors = Vec::new();
    errors.extend(out_of_tables(pod.id, host).err());
    if let Some(state) = StateDir::find(host)? {
        errors.extend(plugins_by_id(pod, host, &state).err());
        errors.extend(leases_by_id(pod.id, &state).err());
    }
    errors.extend(links_by_id(pod.id).err());
    NetworkError::of_all(errors)?;
    record::remove(pod.dir)
}

fn out_of_tables(pod: &str, host: &Host) -> Result<()> {
    let failed = NetworkError::table("take the pod out of the tables");
    let found = tables::with(host, nft::Table::read).map_err(failed)?;
    let Some(found) = found else { return Ok(()) };
    tables::remove(host, &tables::of_pods(found.state, &[pod.to_owned()]))
}

fn leases_by_id(pod: &str, state: &StateDir) -> Result<()> {
    let boot = boot()?;
    let mut errors = Vec::new();
    for network in state.networks(&boot)? {
        let leases = state.leases(&boot)?;
        let freed = Store::open(leases.as_fd(), &network, WAIT)
            .and_then(|store| store.release_all_but(|owner| owner.pod() != pod));
        let doing = || format!("free the addresses of pod {pod} in network '{network}'");
        errors.extend(freed.map_err(|source| NetworkError::Leases { doing: doing(), source: Box::new(source) }).err());
    }
    NetworkError::of_all(errors)
}

fn plugins_by_id(pod: &Pod<'_>, host: &Host, state: &StateDir) -> Result<()> {
    let _turn = Turn::next(pod.dir, pod.id)?;
    let runtime = state.runtime(host)?;
    let mut errors = Vec::new();
    for (network, _, interface) in
        sweep::remembered(&runtime)?.into_iter().filter(|(_, container, _)| container == pod.id)
    {
        errors.extend(delete_remembered(&runtime, host, (&network, pod.id, &interface)).err());
    }
    NetworkError::of_all(errors)
}

/// Takes a pod's networks away whatever its plugins say: each is asked once more, and what it fails to delete is forgotten here
/// and told, a line each.
pub(super) fn abandon(host: &Host, pod: &Pod<'_>) -> Result<Vec<String>> {
    let mut left = Vec::new();
    match record::read(pod.dir, pod.id)? {
        None => record::remove(pod.dir)?,
        Some(Found::Whole(mut record)) => {
            let theirs: Vec<Joined> = record.networks.iter().filter(|joined| joined.plugins).cloned().collect();
            if !theirs.is_empty() {
                let now = record.boot == boot()?;
                let _turn = Turn::next(pod.dir, pod.id)?;
                let runtime = StateDir::open(&record.host)?.runtime(&record.host)?;
                for joined in theirs.iter().rev() {
                    let left_now = leave_plugins(&runtime, &record, joined, now, None);
                    left.extend(given_up(&runtime, (&joined.name, pod.id, &joined.interface), left_now)?);
                }
            }
            record.networks.retain(|joined| !joined.plugins);
            whole(pod.dir, &mut record, None)?;
        }
        Some(found @ Found::Damaged(_)) => {
            if let Some(state) = StateDir::find(host)? {
                let _turn = Turn::next(pod.dir, pod.id)?;
                let runtime = state.runtime(host)?;
                for (network, of, interface) in sweep::remembered(&runtime)?.into_iter().filter(|it| it.1 == pod.id) {
                    let key = (network.as_str(), of.as_str(), interface.as_str());
                    left.extend(given_up(&runtime, key, delete_remembered(&runtime, host, key))?);
                }
            }
            self::found(pod, found, Some(host), None)?;
        }
        Some(found @ Found::Newer(_)) => self::found(pod, found, Some(host), None)?,
    }
    Ok(left)
}

/// What a failed DEL leaves behind, as a line for people; nothing is remembered of the attachment afterwards.
fn given_up(
    runtime: &Runtime,
    (network, pod, interface): (&str, &str, &str),
    deleted: Result<()>,
) -> Result<Option<String>> {
    let Err(error) = deleted else { return Ok(None) };
    let doing = || format!("forget what plugins have of pod {pod}");
    let forgotten = runtime.cache().remove(network, pod, interface);
    forgotten.map_err(|source| NetworkError::Cache { doing: doing(), source: Box::new(source) })?;
    Ok(Some(all(&error)))
}

/// DEL of what is remembered; where that is damaged, with the network as it is configured now.
pub(super) fn delete_remembered(
    runtime: &Runtime,
    host: &Host,
    (network, pod, interface): (&str, &str, &str),
) -> Result<()> {
    let failed = |source| NetworkError::Plugins {
        doing: "detach a pod from",
        network: network.to_owned(),
        why: None,
        source: Box::new(source),
    };
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

fn links_by_id(pod: &str) -> Result<()> {
    let mut socket = Socket::open().map_err(NetworkError::link("open a socket on the host"))?;
    for link in socket.links().map_err(NetworkError::link("list the interfaces"))? {
        if pod_of(&link) == Some(pod) {
            let doing = || format!("remove the interface {}", link.name);
            socket.delete_link(link.index).map_err(NetworkError::link(doing()))?;
        }
    }
    Ok(())
}

/// The pod that the host's end of a cable of ours leads to: it says `POD/INTERFACE`, and has the name that goes with that.
pub(super) fn pod_of(link: &Link) -> Option<&str> {
    let (pod, interface) = link.alias.as_deref()?.split_once('/')?;
    let ours = link.kind.as_deref() == Some("veth") && link.name == native::host_interface(pod, interface);
    ours.then_some(pod)
}
