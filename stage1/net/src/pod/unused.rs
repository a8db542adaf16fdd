//! Removes the bridge and the rules of a network after its last pod, and the tables after the last pod of all.
//!
//! An ending pod deletes its record before this check; a starting pod writes its record before it takes the link lock.
//! If two pods end at once, the one whose record is deleted last finds no other record and removes the bridge. A pod
//! that starts meanwhile either has its record found, or waits for the lock and creates the bridge again.
//!
//! Deleting a bridge takes the kernel about 40 ms (two RCU grace periods), and a starting pod has to wait for it. So
//! the supervisor leaves it to a process that outlives it briefly ([`take`], [`LINGER`]): the end of a pod takes no
//! longer, and pods that run one right after another reuse the bridge.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use gantry_contract::network::Host;

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

/// Shared resources of the pods that this process detached, which may be unused now.
#[derive(Debug)]
pub struct Left {
    host: Host,
    /// The host's network namespace.
    namespace: Namespace,
    /// The networks that gantry made for the pod.
    networks: BTreeSet<String>,
    /// Their entries and those of their bridges.
    shared: State,
}

static LEFT: Mutex<Vec<Left>> = Mutex::new(Vec::new());

/// Notes what a pod shared whose record is gone, in the host's network namespace, where the thread is.
pub(super) fn note(record: &Record) -> Result<()> {
    let own = record.networks.iter().filter(|joined| !joined.plugins);
    let networks: BTreeSet<String> = own.map(|joined| joined.name.clone()).collect();
    if networks.is_empty() {
        return Ok(());
    }
    let entries = record.entries()?.possible();
    let shared = State {
        networks: entries.networks,
        interfaces: entries.interfaces.into_iter().filter(|(_, it)| it.addresses.is_empty()).collect(),
        ..State::new()
    };
    let namespace = Namespace::own().map_err(NetworkError::link("look at the network namespace of the host"))?;
    let left = Left { host: record.host.clone(), namespace, networks, shared };
    LEFT.lock().unwrap_or_else(PoisonError::into_inner).push(left);
    Ok(())
}

/// What this process has to have removed, if anything. It is the caller's to call [`Left::remove`], or to let another do so.
#[must_use]
pub fn take() -> Vec<Left> {
    std::mem::take(&mut *LEFT.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Left {
    /// The descriptor that [`Self::remove`] needs.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Whether it may be unused: no address of one of the networks is given to a pod. What cannot be looked at may be.
    #[must_use]
    pub fn may_be_unused(&self) -> bool {
        self.looks_used().map_or(true, |used| !used)
    }

    fn looks_used(&self) -> Result<bool> {
        let now = boot()?;
        match StateDir::find(&self.host)? {
            Some(state) => all(&self.networks, |network| state.has_leases(&now, network)),
            None => Ok(false),
        }
    }

    /// Removes what no pod needs of it, with the host's files in sight. Nothing is removed when the lock of the links is held for
    /// longer than `patience`.
    ///
    /// # Errors
    /// [`NetworkError`]; the next pod that ends, or a sweep, removes what is left.
    pub fn remove(&self, patience: Duration) -> std::result::Result<(), NetworkError> {
        let done = self.namespace.enter(|| Ok(self.remove_here(patience)));
        done.map_err(NetworkError::link("go to the network namespace of the host"))?
    }

    fn remove_here(&self, patience: Duration) -> Result<()> {
        if self.looks_used()? {
            return Ok(());
        }
        let now = boot()?;
        // Without the directory there is no lock: the data directory was removed.
        let state = StateDir::find(&self.host)?;
        let _locked = match state.as_ref().map(|state| state.lock(Lock::Links, false, patience)).transpose() {
            Err(NetworkError::Locked { .. }) => return Ok(()),
            other => other?,
        };
        let (whole, others) = Records::open(&self.host)?.sorted()?;
        // What a pod needs whose record cannot be understood is not known.
        if !others.is_empty() {
            return Ok(());
        }
        let needed = tables::needed(&whole, &now)?;
        if needed.is_empty() {
            if let Some(state) = &state {
                Forwarding::new(&self.host, state, &now).restore()?;
            }
            tables::delete(&self.host)?;
        } else {
            let mut unused = self.shared.clone();
            unused.networks.retain(|name, _| !needed.networks.contains_key(name));
            unused.interfaces.retain(|name, _| !needed.interfaces.contains_key(name));
            tables::remove_shared(&self.host, &unused)?;
        }
        let mut socket = Socket::open().map_err(NetworkError::link("open a socket on the host"))?;
        for bridge in idle_bridges(&self.host, &Records::open(&self.host)?, &mut socket)? {
            delete(&bridge, &mut socket)?;
        }
        Ok(())
    }
}

fn all<T>(items: &BTreeSet<T>, mut is: impl FnMut(&T) -> Result<bool>) -> Result<bool> {
    for item in items {
        if !is(item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes a bridge that [`idle_bridges`] told.
pub(super) fn delete(bridge: &Link, socket: &mut Socket) -> Result<()> {
    let doing = || format!("remove the bridge {}", bridge.name);
    socket.delete_link(bridge.index).map_err(NetworkError::link(doing()))?;
    Ok(())
}

/// Our bridges that no pod's entries name, and that have no port but cables of pods that are gone: the kernel removes those by
/// and by. The caller has the lock of the links alone, or asks again when it has.
pub(super) fn idle_bridges(host: &Host, records: &Records, socket: &mut Socket) -> Result<Vec<Link>> {
    let links = socket.links().map_err(NetworkError::link("list the interfaces"))?;
    let state = tables::needed(&records.whole()?, &boot()?)?;
    let mut idle = Vec::new();
    for bridge in links.iter().filter(|link| native::is_bridge_of(link, &host.state_dir)) {
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
