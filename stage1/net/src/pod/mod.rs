//! The networks of a pod: attach, record, detach; and the networks of this host.
//!
//! * [`attach`] and [`detach`]: one pod. Its resources are listed in its record, `network.json` in its directory, from
//!   before the first is created until after the last is removed.
//! * [`reload`], [`collect_garbage`], [`check`]: the records of all pods compared with reality.
//! * [`unused`]: removes shared resources after the last pod of a network.
//! * [`list_networks`]: the configurations, and the pods that are attached.
//!
//! The record is authoritative: a lease, a cached result or an interface of gantry's whose pod has no record, looked up
//! after the resource was seen, is orphaned.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use gantry_contract::network::{Host, Network};
use gantry_contract::plan::Networks;
use gantry_model::ErrorKind;
use gantry_model::net::PodNetwork;

use crate::config::NetworkConfig;
use crate::netlink::Namespace;

mod attach;
mod check;
mod dead_pods;
mod detach;
mod entries;
mod error;
mod forwarding;
mod garbage;
mod links;
mod list;
mod lock_holders;
mod plugin_lock;
mod port_users;
mod ports;
mod record;
mod select;
mod state;
mod tables;
pub mod unused;

pub use error::NetworkError;
pub use list::{InvalidConfiguration, NetworkSurvey, RoutedBridge};

/// A pod.
pub struct Pod<'a> {
    /// Its UUID.
    pub id: &'a str,
    /// Its directory.
    pub dir: BorrowedFd<'a>,
}

/// The networks of a pod, as they are configured now.
#[derive(Debug)]
pub struct NetworkSelection<'a> {
    wanted: &'a Networks,
    choices: Vec<select::SelectedNetwork>,
    /// Addresses that the pod gets if they are free.
    preferred: Vec<IpAddr>,
}

impl NetworkSelection<'_> {
    /// Lets the pod have these addresses if they are free and no others are requested.
    #[must_use]
    pub fn preferring(self, addresses: &[IpAddr]) -> Self {
        Self { preferred: addresses.to_vec(), ..self }
    }

    /// Whether plugins create some of the networks.
    #[must_use]
    pub fn runs_plugins(&self) -> bool {
        self.choices.iter().any(|choice| choice.plugins.is_some())
    }
}

/// Selects the networks of a pod and determines which ones gantry creates without plugins. Changes nothing.
///
/// # Errors
/// [`NetworkError`]: a network is missing or unusable, or no network can publish the ports.
pub fn select_networks(wanted: &Networks) -> Result<NetworkSelection<'_>, NetworkError> {
    Ok(NetworkSelection { wanted, choices: select::select_networks(wanted)?, preferred: Vec::new() })
}

/// Attaches a pod to its networks, in its own namespace, where the calling thread is. Sets the loopback interface up.
/// First detaches the networks of an earlier attempt of the same pod. If one network fails, the others are detached
/// again.
///
/// The published ports are held until the returned [`HeldPorts`] is dropped.
///
/// # Errors
/// [`NetworkError`]; then nothing is left, or the pod's record lists the rest ([`detach`]).
pub fn attach(
    pod: &Pod<'_>,
    selection: &NetworkSelection<'_>,
    namespaces: &Namespaces<'_>,
) -> Result<(Vec<PodNetwork>, HeldPorts), NetworkError> {
    attach::attach(pod, selection, namespaces)
}

/// The network namespaces of an attachment.
#[derive(Clone, Copy)]
pub struct Namespaces<'a> {
    /// The host's.
    pub host: &'a Namespace,
    /// The pod's.
    pub own: &'a Namespace,
    /// The process that keeps the descriptor of `own` open while the pod lives; plugins open the namespace through it
    /// (`CNI_NETNS`).
    pub keeper: u32,
}

/// Sockets that hold the published ports of a pod, so that no other process can use them.
#[derive(Debug, Default)]
pub struct HeldPorts(Vec<OwnedFd>);

impl HeldPorts {
    /// The sockets.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.iter().map(AsFd::as_fd)
    }
}

impl From<Vec<OwnedFd>> for HeldPorts {
    fn from(sockets: Vec<OwnedFd>) -> Self {
        Self(sockets)
    }
}

/// Detaches a pod as its record says, in the host's namespaces, where the calling thread is. Idempotent. `own`: the
/// pod's network namespace, if it certainly exists.
///
/// # Errors
/// [`NetworkError`]; the record lists the rest. For a damaged record, see [`detach_on`].
pub fn detach(pod: &Pod<'_>, own: Option<&Namespace>) -> Result<(), NetworkError> {
    match record::read(pod.dir, pod.id)? {
        None => record::remove(pod.dir),
        Some(record) => detach::detach_recorded(pod, record, None, own),
    }
}

/// As [`detach`], with the settings of this host, so that a pod with a damaged record is detached by its id.
///
/// # Errors
/// [`NetworkError`]; the record stays.
pub fn detach_on(host: &Host, pod: &Pod<'_>, own: Option<&Namespace>) -> Result<(), NetworkError> {
    match record::read(pod.dir, pod.id)? {
        None => record::remove(pod.dir),
        Some(record) => detach::detach_recorded(pod, record, Some(host), own),
    }
}

/// As [`detach_on`], even if plugins fail: returns a line for each attachment that they failed to delete. gantry's own
/// resources of the pod are removed.
///
/// # Errors
/// [`NetworkError`]: gantry's own resources cannot be removed; the record stays.
pub fn abandon_on(host: &Host, pod: &Pod<'_>) -> Result<Vec<String>, NetworkError> {
    detach::abandon(host, pod)
}

/// Makes the firewall table equal to the records of the pods that are up, enables the sysctls that their networks need,
/// and repairs their bridges and host ends; in the host's network namespace, where the calling thread is. Returns a
/// line for each defect that only the user can repair, such as a running pod that has lost its interface.
///
/// # Errors
/// [`NetworkError`]: a step failed; the rest was restored.
pub fn reload(host: &Host) -> Result<Vec<String>, NetworkError> {
    match (tables::reload(host), links::repair(host)) {
        (Ok(()), repaired) => repaired,
        (Err(error), repaired) => {
            NetworkError::from_all(std::iter::once(error).chain(repaired.err()).collect()).map(|()| Vec::new())
        }
    }
}

/// Removes resources that belong to no record; returns a line for each. With `dry_run` it removes nothing.
///
/// # Errors
/// [`NetworkError`]; the rest was removed.
pub fn collect_garbage(host: &Host, dry_run: bool) -> Result<Vec<String>, NetworkError> {
    garbage::collect(host, dry_run)
}

/// Reports resources that belong to no record, and missing ones; a line each.
///
/// # Errors
/// [`NetworkError`].
pub fn check(host: &Host) -> Result<Vec<String>, NetworkError> {
    check::check(host)
}

/// Reports bridges and tables of gantries that are gone; a line each.
///
/// # Errors
/// [`NetworkError`].
pub fn find_orphans(host: &Host) -> Result<Vec<String>, NetworkError> {
    check::orphans(host)
}

/// The network of Kubernetes pods: the first configuration in a directory, by file name; `None`: there is none.
///
/// # Errors
/// [`NetworkError`]: the file cannot be used, or a plugin that it needs is not installed. Runs nothing.
pub fn first_network(host: &Host, dir: &Path) -> Result<Option<NetworkConfig>, NetworkError> {
    let Some(network) = crate::config::first_in(dir)? else { return Ok(None) };
    let missing = select::missing_plugins(&network, host);
    if missing.is_empty() {
        return Ok(Some(network));
    }
    let message = format!(
        "{}: network '{}' needs the plugins {}, which are not in {}",
        network.source,
        network.name,
        missing.join(", "),
        host.plugin_dirs.join(", ")
    );
    Err(NetworkError::new(ErrorKind::Unavailable, message))
}

/// Lists the configured networks; with `name` the network of this name, with its text.
///
/// # Errors
/// [`NetworkError`]; no network has this name.
pub fn list_networks(host: &Host, name: Option<&str>) -> Result<Vec<Network>, NetworkError> {
    list::networks(host, name)
}

/// Lists the networks, those that cannot be used, and those on bridges of gantry's; for `doctor`.
///
/// # Errors
/// [`NetworkError`]: a directory or the records of pods cannot be read.
pub fn survey_networks(host: &Host) -> Result<NetworkSurvey, NetworkError> {
    list::survey(host)
}
