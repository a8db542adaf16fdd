//! Errors of networks that gantry creates itself.

use std::io;
use std::time::Duration;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};

use crate::address::Cidr;
use crate::ipam::IpamError;
use crate::{netlink, nft};

/// A pod could not be added to a network or removed from it.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// A netlink request failed.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// An address could not be allocated or released.
    #[error(transparent)]
    Address(#[from] IpamError),
    /// The ports cannot be published.
    #[error(transparent)]
    Ports(#[from] nft::Error),
    /// Any other failure.
    #[error("{message}")]
    Failed {
        /// The problem and the remedy.
        message: String,
        /// How callers react to it.
        kind: ErrorKind,
        /// The cause.
        source: Option<io::Error>,
    },
}

impl NativeError {
    fn failed(kind: ErrorKind, message: String) -> Self {
        Self::Failed { message, kind, source: None }
    }

    /// Only the network's plugins can create it.
    pub(super) fn unsupported(obstacle: impl std::fmt::Display) -> Self {
        Self::failed(ErrorKind::Refused, format!("gantry cannot create this network without its plugins: {obstacle}"))
    }

    /// The request or the configuration is invalid.
    pub(super) fn invalid(problem: impl Into<String>) -> Self {
        Self::failed(ErrorKind::Invalid, problem.into())
    }

    /// The bridge belongs to another gantry.
    pub(super) fn foreign_bridge(bridge: &str, owner: &str) -> Self {
        Self::failed(
            ErrorKind::Refused,
            format!(
                "the bridge '{bridge}' belongs to the gantry with the state directory '{}': configure another bridge for the \
                 network, or, if that gantry is gone, remove the bridge with 'ip link delete {bridge}'",
                shown(owner)
            ),
        )
    }

    /// An interface of the bridge's name is no bridge.
    pub(super) fn not_a_bridge(name: &str, kind: &str) -> Self {
        let message =
            format!("the interface '{name}' is not a bridge but {kind}: configure another bridge for the network");
        Self::failed(ErrorKind::Refused, message)
    }

    /// The bridge has another address, which its owner may need.
    pub(super) fn other_address(bridge: &str, present: Cidr, needed: Cidr) -> Self {
        Self::failed(
            ErrorKind::Refused,
            format!(
                "the bridge '{bridge}' has the address {present} and needs {needed}: remove {present}, or set forceAddress in the \
                 configuration of the network"
            ),
        )
    }

    /// The parent interface does not exist.
    pub(super) fn no_parent(name: &str) -> Self {
        Self::failed(ErrorKind::NotFound, format!("the parent interface '{name}' (master) does not exist"))
    }

    /// No parent interface is configured, and there is no default route to find one by.
    pub(super) fn no_default_route() -> Self {
        let message =
            "the network has no parent interface: set master in its configuration, since there is no default route";
        Self::failed(ErrorKind::NotFound, message.to_owned())
    }

    /// An interface was deleted right after its creation.
    pub(super) fn vanished(name: &str) -> Self {
        Self::failed(
            ErrorKind::Busy,
            format!("another program deleted the interface '{name}' right after its creation"),
        )
    }

    /// Duplicate address detection did not end.
    pub(super) fn tentative(address: Cidr, timeout: Duration) -> Self {
        let message = format!("duplicate address detection of {address} did not end within {} s", timeout.as_secs());
        Self::failed(ErrorKind::TimedOut, message)
    }

    /// The `resolvConf` file of the network cannot be read.
    pub(super) fn resolv_conf(path: &str, source: io::Error) -> Self {
        let message = format!("cannot read the DNS settings of the network in '{}'", shown(path));
        Self::Failed { message, kind: ErrorKind::of_io(&source), source: Some(source) }
    }
}

impl Kind for NativeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Netlink(error) => error.kind(),
            Self::Address(error) => error.kind(),
            Self::Ports(error) => error.kind(),
            Self::Failed { kind, .. } => *kind,
        }
    }
}
