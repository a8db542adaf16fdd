//! A pod's networks: made, written down, taken away; and the networks of this host.

use std::os::fd::BorrowedFd;

use gantry_contract::network::{Attached, Host, Network};
use gantry_contract::plan::Networks;

use crate::netlink::Namespace;

mod error;

pub use error::NetworkError;

/// The pod whose networks are meant.
pub struct Pod<'a> {
    /// Its UUID.
    pub id: &'a str,
    /// Its directory.
    pub dir: BorrowedFd<'a>,
}

/// Attaches a pod to its networks, in its own namespace, where the calling thread is; `host` is the one it came from. The
/// loopback interface is up afterwards. When one network fails, those before it are taken away.
///
/// The ports of the host are held by the [`Held`] that comes with it, until it is dropped.
///
/// # Errors
/// [`NetworkError`]; nothing is left of it then, or the pod's record says what is ([`detach`]).
pub fn attach(
    pod: &Pod<'_>,
    wanted: &Networks,
    host: &Namespace,
    own: &Namespace,
) -> Result<(Vec<Attached>, Held), NetworkError> {
    let _ = (pod, wanted, host, own);
    Err(NetworkError::Missing)
}

/// Sockets on the ports of the host that lead to the pod, so that nobody else listens there.
#[derive(Debug, Default)]
pub struct Held {
    _sockets: Vec<std::os::fd::OwnedFd>,
}

/// Takes away all that the pod's record says, in the host's namespaces, where the calling thread is. `own`: the pod's
/// network namespace, if it is there for certain. Doing it again does nothing.
///
/// # Errors
/// [`NetworkError`]; the record says what is left.
pub fn detach(pod: &Pod<'_>, own: Option<&Namespace>) -> Result<(), NetworkError> {
    let _ = (pod, own);
    Err(NetworkError::Missing)
}

/// Makes the tables hold what the records of the pods that are up say, and nothing else.
///
/// # Errors
/// [`NetworkError`].
pub fn reload(host: &Host) -> Result<(), NetworkError> {
    let _ = host;
    Err(NetworkError::Missing)
}

/// Removes what no record accounts for; tells what it was. With `dry_run` it only tells.
///
/// # Errors
/// [`NetworkError`]; what could be removed was.
pub fn sweep(host: &Host, dry_run: bool) -> Result<Vec<String>, NetworkError> {
    let _ = (host, dry_run);
    Err(NetworkError::Missing)
}

/// What is there that no record accounts for, and what is missing that one needs.
///
/// # Errors
/// [`NetworkError`].
pub fn check(host: &Host) -> Result<Vec<String>, NetworkError> {
    let _ = host;
    Err(NetworkError::Missing)
}

/// The networks that are configured, or the one of this name with its text.
///
/// # Errors
/// [`NetworkError`]; a network that is not there.
pub fn networks(host: &Host, name: Option<&str>) -> Result<Vec<Network>, NetworkError> {
    let _ = (host, name);
    Err(NetworkError::Missing)
}
