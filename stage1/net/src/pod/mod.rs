//! A pod's networks: made, written down, taken away; and the networks of this host.
//!
//! * [`attach`] and [`detach`]: of one pod. What it has is in its record, `network.json` of its directory, from before the first of
//!   it is made until after the last is gone.
//! * [`reload`], [`sweep`], [`check`]: what the records of all pods say against what is there.
//! * [`unused`]: what the last pod of a network leaves to be removed.
//! * [`networks`]: the configurations, and who is in them.
//!
//! The record is the truth about what a pod owns here: a lease, a cached result or an interface of ours whose pod has none,
//! looked up when it was seen, belongs to nobody.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_contract::network::{Attached, Host, Network};
use gantry_contract::plan::Networks;

use crate::netlink::Namespace;

mod attach;
mod check;
mod detach;
mod entries;
mod error;
mod forwarding;
mod holders;
mod list;
mod listeners;
mod ports;
mod record;
mod select;
mod state;
mod sweep;
mod tables;
mod turn;
pub mod unused;

pub use error::NetworkError;

/// The pod whose networks are meant.
pub struct Pod<'a> {
    /// Its UUID.
    pub id: &'a str,
    /// Its directory.
    pub dir: BorrowedFd<'a>,
}

/// The networks that a pod gets, as they are configured now.
#[derive(Debug)]
pub struct Chosen<'a> {
    wanted: &'a Networks,
    choices: Vec<select::Choice>,
}

impl Chosen<'_> {
    /// Whether plugins make some of them.
    #[must_use]
    pub fn run_plugins(&self) -> bool {
        self.choices.iter().any(|choice| choice.plugins.is_some())
    }
}

/// Looks which networks a pod gets, and who makes each; changes nothing.
///
/// # Errors
/// [`NetworkError`]: one that is not there or cannot be used, ports that no network can have.
pub fn choose(wanted: &Networks) -> Result<Chosen<'_>, NetworkError> {
    Ok(Chosen { wanted, choices: select::choose(wanted)? })
}

/// Attaches a pod to its networks, in its own namespace, where the calling thread is. The
/// loopback interface is up afterwards. When one network fails, those before it are taken away. What an earlier attempt of the
/// same pod has left is taken away first.
///
/// The ports of the host are held by the [`Held`] that comes with it, until it is dropped.
///
/// # Errors
/// [`NetworkError`]; nothing is left of it then, or the pod's record says what is ([`detach`]).
pub fn attach(
    pod: &Pod<'_>,
    chosen: &Chosen<'_>,
    namespaces: &Namespaces<'_>,
) -> Result<(Vec<Attached>, Held), NetworkError> {
    attach::attach(pod, chosen, namespaces)
}

/// The two network namespaces that a pod is attached between.
#[derive(Clone, Copy)]
pub struct Namespaces<'a> {
    /// The host's.
    pub host: &'a Namespace,
    /// The pod's.
    pub own: &'a Namespace,
    /// The process that has `own` open, by this descriptor, as long as the pod lives: so plugins are told where it is
    /// (`CNI_NETNS`).
    pub keeper: u32,
}

/// Sockets on the ports of the host that lead to the pod, so that nobody else listens there.
#[derive(Debug, Default)]
pub struct Held(Vec<OwnedFd>);

impl Held {
    /// The sockets.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }
}

impl From<Vec<OwnedFd>> for Held {
    fn from(sockets: Vec<OwnedFd>) -> Self {
        Self(sockets)
    }
}

/// Takes away all that the pod's record says, in the host's namespaces, where the calling thread is. `own`: the pod's
/// network namespace, if it is there for certain. Doing it again does nothing.
///
/// # Errors
/// [`NetworkError`]; the record says what is left. [`NetworkError::Damaged`] when it says nothing: see [`detach_on`].
pub fn detach(pod: &Pod<'_>, own: Option<&Namespace>) -> Result<(), NetworkError> {
    match record::read(pod.dir, pod.id)? {
        None => record::remove(pod.dir),
        Some(found) => detach::found(pod, found, None, own),
    }
}

/// As [`detach`], for who knows how networks are run here: a damaged record is no obstacle, what the pod has is found by its id.
///
/// # Errors
/// [`NetworkError`]; the record stays.
pub fn detach_on(host: &Host, pod: &Pod<'_>, own: Option<&Namespace>) -> Result<(), NetworkError> {
    match record::read(pod.dir, pod.id)? {
        None => record::remove(pod.dir),
        Some(found) => detach::found(pod, found, Some(host), own),
    }
}

/// As [`detach_on`], for a pod that is to go whatever its plugins say: what they fail to delete is given up, and is told, a line
/// each. What gantry itself has of the pod is taken away.
///
/// # Errors
/// [`NetworkError`]: what gantry itself has cannot be taken away; the record stays.
pub fn abandon_on(host: &Host, pod: &Pod<'_>) -> Result<Vec<String>, NetworkError> {
    detach::abandon(host, pod)
}

/// Makes the tables hold what the records of the pods that are up say, and nothing else, and turns on the switches of the
/// kernel that their networks need; in the host's network namespace, where the calling thread is.
///
/// # Errors
/// [`NetworkError`].
pub fn reload(host: &Host) -> Result<(), NetworkError> {
    tables::reload(host)
}

/// Removes what no record accounts for; tells what it was. With `dry_run` it only tells.
///
/// # Errors
/// [`NetworkError`]; what could be removed was.
pub fn sweep(host: &Host, dry_run: bool) -> Result<Vec<String>, NetworkError> {
    sweep::sweep(host, dry_run)
}

/// What is there that no record accounts for, and what is missing that one needs.
///
/// # Errors
/// [`NetworkError`].
pub fn check(host: &Host) -> Result<Vec<String>, NetworkError> {
    check::check(host)
}

/// What gantries that are gone have left here, a line for people each.
///
/// # Errors
/// [`NetworkError`].
pub fn strays(host: &Host) -> Result<Vec<String>, NetworkError> {
    check::strays(host)
}

/// The networks that are configured, or the one of this name with its text.
///
/// # Errors
/// [`NetworkError`]; a network that is not there.
pub fn networks(host: &Host, name: Option<&str>) -> Result<Vec<Network>, NetworkError> {
    list::networks(host, name)
}
