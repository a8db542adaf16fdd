//! What can go wrong.

use std::io;
use std::net::IpAddr;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};

use crate::config::ConfigError;
use crate::ipam::IpamError;
use crate::native::NativeError;
use crate::plugin::PluginError;
use crate::{netlink, nft};

/// The result of an operation.
pub(super) type Result<T> = std::result::Result<T, NetworkError>;

/// A network could not be made, taken away or looked at.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// A configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Networks were asked for that are not configured.
    #[error("{}: 'gantry network list' shows the networks of this host{}", no_network(names), unreadable(broken))]
    NotFound {
        /// Their names.
        names: Vec<String>,
        /// Files that have no readable name, one of which may have been meant.
        broken: Vec<String>,
    },
    /// More networks than a pod may have.
    #[error("a pod may have {most} networks, and {count} were asked for: name those it needs")]
    TooMany {
        /// How many were asked for.
        count: usize,
        /// How many may be.
        most: usize,
    },
    /// An argument that the network has no use for.
    #[error("network '{network}' has no argument '{}': {known} are its arguments", shown(argument))]
    UnknownArgument {
        /// The network.
        network: String,
        /// The key of the argument.
        argument: String,
        /// Those it has.
        known: &'static str,
    },
    /// An argument without a value.
    #[error("argument '{argument}' of network '{network}' has no value")]
    EmptyArgument {
        /// The network.
        network: String,
        /// The key of the argument.
        argument: String,
    },
    /// Ports were asked for, and no network of the pod forwards any.
    #[error(
        "no network of the pod forwards ports ({networks}): add one whose configuration lists portmap, or ask for no ports"
    )]
    NoForwarder {
        /// The pod's networks.
        networks: String,
    },
    /// A port is on an address of a family that the pod has none of.
    #[error("port {port} cannot lead to the pod: it has no IPv{family} address in network '{network}'")]
    NoFamily {
        /// The port of the host.
        port: String,
        /// 4 or 6.
        family: u8,
        /// The network that forwards.
        network: String,
    },
    /// A port of the host is somebody's.
    #[error("port {port} of the host is in use by {by}: choose another port, or stop what uses it")]
    PortTaken {
        /// Number and protocol, with its address if one was asked for.
        port: String,
        /// Whose it is, as far as it can be told.
        by: String,
    },
    /// The host has no free port.
    #[error("no free port of the host was found to publish {port}: name one with HOSTPORT:PODPORT")]
    NoFreePort {
        /// The protocol, and the host's address if one was asked for.
        port: String,
    },
    /// The address of a port is not the host's.
    #[error("port {port} cannot be had: {address} is not an address of this host")]
    NotHostAddress {
        /// The port.
        port: String,
        /// The address.
        address: IpAddr,
    },
    /// The kernel lacks a protocol.
    #[error("port {port} cannot be had: this kernel has no SCTP (its module is called sctp)")]
    NoSctp {
        /// The port.
        port: String,
    },
    /// A port of the host could not be had for another reason.
    #[error("cannot hold port {port} of the host")]
    Port {
        /// The port.
        port: String,
        /// Why.
        source: io::Error,
    },
    /// gantry itself could not add a pod to a network, or take it away.
    #[error("cannot {doing} network '{network}'")]
    Native {
        /// `attach the pod to`, `detach the pod from`.
        doing: &'static str,
        /// Which.
        network: String,
        /// Why.
        source: Box<NativeError>,
    },
    /// The plugins of a network could not.
    #[error("cannot {doing} network '{network}'{}", reason(why))]
    Plugins {
        /// `attach the pod to`, …
        doing: &'static str,
        /// Which.
        network: String,
        /// Why plugins are needed for it.
        why: Option<String>,
        /// Why they failed.
        source: Box<PluginError>,
    },
    /// Plugins say that they made an interface, and it is not there.
    #[error(
        "cannot attach the pod to network '{network}': its plugins say that they did, and there is no interface {interface} in the pod"
    )]
    Untrue {
        /// Which network.
        network: String,
        /// The interface.
        interface: String,
    },
    /// The addresses of a network could not be seen to.
    #[error("cannot {doing}")]
    Leases {
        /// What was attempted.
        doing: String,
        /// Why not.
        source: Box<IpamError>,
    },
    /// What is remembered of plugins could not be seen to.
    #[error("cannot {doing}")]
    Cache {
        /// What was attempted.
        doing: String,
        /// Why not.
        source: Box<PluginError>,
    },
    /// The nftables table could not be changed or read.
    #[error("cannot {doing}")]
    Table {
        /// What was attempted.
        doing: &'static str,
        /// Why not.
        source: Box<nft::Error>,
    },
    /// Interfaces could not be changed or read.
    #[error("cannot {doing}")]
    Link {
        /// What was attempted.
        doing: String,
        /// Why not.
        source: Box<netlink::Error>,
    },
    /// A file or directory of ours could not be had.
    #[error("cannot {doing}")]
    File {
        /// What was attempted, on what.
        doing: String,
        /// Why not.
        source: io::Error,
    },
    /// A pod's record cannot be understood.
    #[error("the record of the networks of pod {pod} is damaged ({problem}): `gantry gc` frees what the pod had")]
    Damaged {
        /// Which pod's.
        pod: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A pod's record was written by a later gantry.
    #[error(
        "the record of the networks of pod {pod} has version {version}, which this gantry does not know: use the one that wrote it"
    )]
    Newer {
        /// Which pod's.
        pod: String,
        /// Its version.
        version: u32,
    },
    /// Others held a lock until the deadline.
    #[error("{path} was locked by others for {seconds} s: try again")]
    Locked {
        /// The file.
        path: String,
        /// How long was waited.
        seconds: u64,
    },
    /// Plugins whose starter is dead cannot be ended.
    #[error(
        "plugins that were started for pod {pod} by a process that is dead cannot be ended (process {}): see what they wait for, end them, and try again",
        processes.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    Orphans {
        /// Which pod.
        pod: String,
        /// Their process ids.
        processes: Vec<i32>,
    },
    /// An attachment failed, and what was made could not all be taken away.
    #[error("{}; removing what was made failed too, 'gantry gc' tries again: {}", all(cause), all(left))]
    NotUndone {
        /// Why it failed.
        cause: Box<NetworkError>,
        /// What could not be undone.
        left: Box<NetworkError>,
    },
    /// Several things failed; the others were done.
    #[error("{}", .0.iter().map(all).collect::<Vec<_>>().join("; "))]
    Several(Vec<NetworkError>),
}

impl NetworkError {
    /// `Ok` without errors, the error itself when there is one.
    pub(super) fn of_all(errors: Vec<Self>) -> Result<()> {
        crate::all_of(errors, Self::Several)
    }

    pub(super) fn file(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::File { doing, source }
    }

    pub(super) fn errno(doing: impl Into<String>) -> impl FnOnce(rustix::io::Errno) -> Self {
        let doing = doing.into();
        move |errno| Self::File { doing, source: errno.into() }
    }

    pub(super) fn link(doing: impl Into<String>) -> impl FnOnce(netlink::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Link { doing, source: source.into() }
    }

    pub(super) fn table(doing: &'static str) -> impl FnOnce(nft::Error) -> Self {
        move |source| Self::Table { doing, source: source.into() }
    }
}

fn no_network(names: &[String]) -> String {
    match names {
        [name] => format!("there is no network '{name}'"),
        names => format!("there are no networks '{}'", names.join("', '")),
    }
}

fn unreadable(broken: &[String]) -> String {
    if broken.is_empty() { String::new() } else { format!("; not readable: {}", broken.join("; ")) }
}

fn reason(why: &Option<String>) -> String {
    why.as_ref().map(|why| format!(" by its plugins ({why})")).unwrap_or_default()
}

/// An error with its causes: where several stand in one sentence, nobody walks the chain of each.
pub(super) fn all(error: &NetworkError) -> String {
    gantry_model::error::messages(error).join(": ")
}

impl Kind for NetworkError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Config(error) => error.kind(),
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::UnknownArgument { .. }
            | Self::EmptyArgument { .. }
            | Self::TooMany { .. }
            | Self::NoForwarder { .. }
            | Self::NoFamily { .. }
            | Self::NotHostAddress { .. } => ErrorKind::Invalid,
            Self::PortTaken { .. } => ErrorKind::AlreadyExists,
            Self::NoFreePort { .. } => ErrorKind::Exhausted,
            Self::NoSctp { .. } | Self::Untrue { .. } => ErrorKind::Unavailable,
            Self::Port { source, .. } | Self::File { source, .. } => ErrorKind::of_io(source),
            Self::Native { source, .. } => source.kind(),
            Self::Plugins { source, .. } | Self::Cache { source, .. } => source.kind(),
            Self::Leases { source, .. } => source.kind(),
            Self::Table { source, .. } => source.kind(),
            Self::Link { source, .. } => source.kind(),
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::Newer { .. } => ErrorKind::Refused,
            Self::Locked { .. } | Self::Orphans { .. } => ErrorKind::TimedOut,
            Self::NotUndone { cause, .. } => cause.kind(),
            Self::Several(errors) => errors.first().map_or(ErrorKind::Internal, Kind::kind),
        }
    }
}
