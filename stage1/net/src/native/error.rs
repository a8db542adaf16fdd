//! What can go wrong.

use std::io;

use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind};

use crate::address::Cidr;
use crate::ipam::IpamError;
use crate::{netlink, nft};

/// A network could not be made or taken away.
#[derive(Debug, thiserror::Error)]
pub enum NativeError {
    /// The kernel did not do it.
    #[error(transparent)]
    Netlink(#[from] netlink::Error),
    /// There was no address to be had, or it could not be given back.
    #[error(transparent)]
    Address(#[from] IpamError),
    /// The ports cannot be as they were asked for.
    #[error(transparent)]
    Ports(#[from] nft::Error),
    /// It is a network that only its plugins can make.
    #[error("gantry cannot make this network by itself: {0}")]
    Beyond(String),
    /// What was asked for cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The bridge is another gantry's.
    #[error(
        "the bridge '{bridge}' belongs to the gantry that keeps its state in '{}': name another bridge in the configuration of \
         the network, or, if that gantry is gone, remove the bridge with 'ip link delete {bridge}'",
        shown(.owner)
    )]
    Foreign {
        /// Its name.
        bridge: String,
        /// Whose it is: its state directory.
        owner: String,
    },
    /// The name of the bridge is that of something else.
    #[error(
        "'{name}' is to be a bridge, and is there as {kind}: name another bridge in the configuration of the network"
    )]
    NoBridge {
        /// The name.
        name: String,
        /// What it is.
        kind: String,
    },
    /// The bridge has another address, and whoever gave it may need it.
    #[error(
        "the bridge '{bridge}' has the address {has} and needs {wants}: remove that, or set forceAddress in the configuration of the network"
    )]
    OtherAddress {
        /// Its name.
        bridge: String,
        /// What it has.
        has: Cidr,
        /// What it is to have.
        wants: Cidr,
    },
    /// The interface to sit on is not there.
    #[error("there is no interface '{name}' for the network to sit on")]
    NoMaster {
        /// Its name.
        name: String,
    },
    /// No interface to sit on is named, and none can be found.
    #[error(
        "no interface is named for the network to sit on (master), and there is no default route that would tell one"
    )]
    NoDefaultRoute,
    /// An interface that was just made is gone.
    #[error("the interface '{name}' was made and is gone: somebody else deleted it")]
    Gone {
        /// Its name.
        name: String,
    },
    /// It could not be found out whether somebody else has an address, which the network is to wait for.
    #[error("whether somebody else has the address {address} was not known after {seconds} s")]
    Tentative {
        /// The address.
        address: Cidr,
        /// How long was waited.
        seconds: u64,
    },
    /// The file the network takes its DNS settings from cannot be read.
    #[error("cannot read the DNS settings of the network in '{}'", shown(.path))]
    ResolvConf {
        /// Its path.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl Kind for NativeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Netlink(error) => error.kind(),
            Self::Address(error) => error.kind(),
            Self::Ports(error) => error.kind(),
            Self::Beyond(_) | Self::Foreign { .. } | Self::NoBridge { .. } | Self::OtherAddress { .. } => {
                ErrorKind::Refused
            }
            Self::Invalid(_) => ErrorKind::Invalid,
            Self::NoMaster { .. } | Self::NoDefaultRoute => ErrorKind::NotFound,
            Self::Gone { .. } => ErrorKind::Busy,
            Self::Tentative { .. } => ErrorKind::TimedOut,
            Self::ResolvConf { source, .. } => ErrorKind::of_io(source),
        }
    }
}
