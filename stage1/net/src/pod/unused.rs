//! Removes the bridge and the rules of a network after its last pod, and the tables after the last pod of all.
//!
//! An ending pod deletes its record before this check; a starting pod writes its record before it takes the link lock.
//! If two pods end at once, the one whose record is deleted last finds no other record and removes the bridge. If a pod
//! starts at that time, either its record is found, or it waits for the lock and creates the bridge again.
//!
//! Deleting a bridge takes the kernel about 40 ms (two RCU grace periods), and a starting pod has to wait for it. So
//! the supervisor leaves it to a process that outlives it briefly ([`take_shared`], [`LINGER`]): the end of a pod takes
//! no longer, and pods that run one right after another reuse the bridge.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gantry_contract::network::Host;
use gantry_host::lock::LockMode;

use super::error::{NetworkError, Result};
use super::forwarding::Forwarding;
use super::record::{Record, Records, boot};
use super::state::{Lock, StateDir};
use super::{detach, tables};
use crate::native;
use crate::netlink::link::Link;
use crate::netlink::{Namespace, Socket};
use crate::nft::State;

/// How long the process of a supervisor waits for the next pod before it removes anything.
pub const LINGER: Duration = Duration::from_millis(200);
/// How long the process of a supervisor waits for the lock of the links. A pod that begins holds it while plugins run.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Shared resources of a pod that this process detached, which may be unused now.
#[derive(Debug)]
pub struct SharedResources {
    host: Host,
    /// The host's network namespace.
    namespace: Namespace,
    /// The networks that gantry created for the pod.
    networks: BTreeSet<String>,
    /// The entries of these networks and of their bridges.
    shared: State,
}

static SHARED: Mutex<Vec<SharedResources>> = Mutex::new(Vec::new());

/// Remembers the shared resources of a pod whose record was removed; in the host's network namespace, where the thread
/// is.
///
/// While plugins attach a pod, they hold the lock of the links, and the process of the last pod of another network
/// gives up waiting for it after [`LOCK_TIMEOUT`]. So the end of a pod with plugins only checks all networks of this
/// boot.
pub(super) fn remember(record: &Record) -> Result<()> {
    let native = record.networks.iter().filter(|network| !network.plugins);
    let mut networks: BTreeSet<String> = native.map(|network| network.name.clone()).collect();
    if networks.is_empty()
        && let Some(state) = StateDir::find(&record.host)?
    {
        networks.extend(state.networks(&record.boot)?);
    }
    if networks.is_empty() {
        return Ok(());
    }
    let entries = record.entries()?.retain_valid();
    let shared = State {
        networks: entries.networks,
        interfaces: entries.interfaces.into_iter().filter(|(_, it)| it.addresses.is_empty()).collect(),
        ..State::new()
    };
    let namespace = Namespace::own().map_err(NetworkError::attempt("open the network namespace of the host"))?;
    let resources = SharedResources { host: record.host.clone(), namespace, networks, shared };
    SHARED.lock().unwrap_or_else(PoisonError::into_inner).push(resources);
    Ok(())
}

/// Takes the shared resources that this process has remembered. The caller, or another process, then calls
/// [`SharedResources::remove`].
#[must_use]
pub fn take_shared() -> Vec<SharedResources> {
    std::mem::take(&mut *SHARED.lock().unwrap_or_else(PoisonError::into_inner))
}

impl SharedResources {
    /// The descriptor that [`Self::remove`] needs.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Whether one of the networks has no lease, so that its resources may be unused. An error counts as unused.
    #[must_use]
    pub fn may_be_unused(&self) -> bool {
        self.are_all_leased().map_or(true, |leased| !leased)
    }

    fn are_all_leased(&self) -> Result<bool> {
        let now = boot()?;
        match StateDir::find(&self.host)? {
            Some(state) => all(&self.networks, |network| state.has_leases(&now, network)),
            None => Ok(false),
        }
    }

    /// Removes the resources that no pod needs; in a mount namespace with the host's files. Removes nothing if the lock
    /// of the links is held by others for longer than `timeout`.
    ///
    /// # Errors
    /// [`NetworkError`]; the next pod that ends, or garbage collection, removes the rest.
    pub fn remove(&self, timeout: Duration) -> std::result::Result<(), NetworkError> {
        let done = self.namespace.enter(|| Ok(self.remove_in_namespace(timeout)));
        done.map_err(NetworkError::attempt("enter the network namespace of the host"))?
    }

    fn remove_in_namespace(&self, timeout: Duration) -> Result<()> {
        if self.are_all_leased()? {
            return Ok(());
        }
        let now = boot()?;
        // Without the directory there is no lock: the data directory was removed.
        let state = StateDir::find(&self.host)?;
        let _locked =
            match state.as_ref().map(|state| state.lock(Lock::Links, LockMode::Exclusive, timeout)).transpose() {
                Err(NetworkError::Locked { .. }) => return Ok(()),
                other => other?,
            };
        let (valid, others) = Records::open(&self.host)?.partition()?;
        // The needs of a pod with an unusable record are unknown.
        if !others.is_empty() {
            return Ok(());
        }
        let needed = tables::needed(&valid, &now)?;
        if needed.is_empty() {
            if let Some(state) = &state {
                Forwarding::new(&self.host, state, &now).restore()?;
            }
            tables::delete(&self.host)?;
        } else {
            let mut unused = self.shared.clone();
            unused.networks.retain(|name, _| !needed.networks.contains_key(name));
            unused.interfaces.retain(|name, _| !needed.interfaces.contains_key(name));
            if unused.check_overlaps_with(&needed.networks).is_ok() {
                tables::remove_shared(&self.host, &unused)?;
            } else {
                // An earlier gantry has attached pods to networks that overlap: those that are left get the prefixes.
                tables::reload(&self.host)?;
            }
        }
        let mut socket = Socket::open().map_err(NetworkError::attempt("open a socket on the host"))?;
        for bridge in idle_bridges(&self.host, &Records::open(&self.host)?, &mut socket)? {
            delete_bridge(&bridge, &mut socket)?;
        }
        Ok(())
    }
}

/// Whether `is` holds for all items.
fn all<T>(items: &BTreeSet<T>, mut is: impl FnMut(&T) -> Result<bool>) -> Result<bool> {
    for item in items {
        if !is(item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Deletes a bridge that [`idle_bridges`] returned.
pub(super) fn delete_bridge(bridge: &Link, socket: &mut Socket) -> Result<()> {
    let doing = || format!("delete the bridge {}", bridge.name);
    socket.delete_link(bridge.index).map_err(NetworkError::attempt(doing()))?;
    Ok(())
}

/// This gantry's bridges that are in no pod's entries and whose only ports belong to pods that are gone: the kernel
/// deletes those ports with a delay. The caller holds the exclusive lock of the links, or calls this again once it
/// does.
pub(super) fn idle_bridges(host: &Host, records: &Records, socket: &mut Socket) -> Result<Vec<Link>> {
    let links = socket.links().map_err(NetworkError::attempt("list the interfaces"))?;
    let state = tables::needed(&records.valid()?, &boot()?)?;
    let mut idle = Vec::new();
    for bridge in links.iter().filter(|link| native::is_bridge_owned_by(link, &host.state_dir)) {
        let mut used = state.interfaces.contains_key(&bridge.name);
        for port in links.iter().filter(|link| link.master == Some(bridge.index)) {
            used = used || detach::pod_of(port).map_or(Ok(true), |pod| records.has(pod))?;
        }
        if !used {
            idle.push(bridge.clone());
        }
    }
    Ok(idle)
}
