//! Network configurations, as CNI writes them.
//!
//! * [`Catalog`]: the networks of some directories and the built-in ones.
//! * [`NetworkConfig`]: one network: the plugins to run in order, each as it was written ([`PluginConfig::raw`]) and, for
//!   the standard plugins, as typed values ([`View`], [`Ipam`]) with the documented defaults.
//!
//! A key that has a meaning must have the right type and range, or the file is refused with its line. A key that means
//! nothing here is kept, since a plugin may know it, and reported in [`NetworkConfig::notes`].
//!
//! Follows the CNI specification 1.1.0, section 1 (network configuration format), of which versions 0.3.1 to 1.1.0 are
//! taken, and the documentation of containernetworking/plugins 1.5.

pub mod builtin;
mod catalog;
mod error;
mod fields;
pub(crate) mod files;
mod locate;
mod network;
mod range;
mod version;
mod views;

pub use crate::address::{BadAddress, Cidr};
pub use crate::netlink::is_interface_name;
pub use catalog::{Catalog, Entry};
pub use error::ConfigError;
pub(crate) use network::empty_is_none;
pub use network::{NetworkConfig, PluginConfig, Source};
pub use range::{Range, RangeSet};
pub use version::CniVersion;
pub use views::ipam::{Dns, HostLocal, Ipam, Route, Static, StaticAddress};
pub use views::link::{Bridge, Ipvlan, IpvlanMode, Macvlan, MacvlanMode, MasqBackend, Ptp, VlanTrunk};
pub use views::meta::{Bandwidth, Firewall, IngressPolicy, Portmap, Tuning};
pub use views::{RateLimit, View};

/// The largest configuration file that is read.
pub const MAX_FILE: usize = 1024 * 1024;
/// How many configuration files a directory may have.
pub const MAX_FILES: usize = 1024;
/// How many plugins a network may chain.
pub const MAX_PLUGINS: usize = 32;

pub use gantry_model::net::is_name;
