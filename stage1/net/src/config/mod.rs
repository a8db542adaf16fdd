//! Network configurations in the format of CNI.
//!
//! * [`Catalog`]: the networks in the configuration directories and the built-in ones.
//! * [`NetworkConfig`]: one network: its plugins in order, each as written ([`PluginConfig::raw`]) and, for the
//!   standard plugins, as typed values ([`PluginSettings`], [`Ipam`]) with the documented defaults.
//!
//! A known key with a value of the wrong type or range is an error that names the key's path. An unknown key is kept,
//! since a plugin may know it, and reported in [`NetworkConfig::notes`].
//!
//! Follows the CNI specification 1.1.0, section 1 (network configuration format), for versions 0.3.1 to 1.1.0, and the
//! documentation of containernetworking/plugins 1.5.

pub mod builtin;
mod catalog;
mod error;
pub(crate) mod files;
mod json;
mod network;
mod pod_cidrs;
mod range;
mod settings;
mod version;

pub use crate::address::{BadAddress, Cidr};
pub use crate::netlink::is_interface_name;
pub use catalog::{Catalog, CatalogEntry, first_in};
pub use error::ConfigError;
pub(crate) use json::empty_is_none;
pub use network::{NetworkConfig, PluginConfig, Source};
pub use pod_cidrs::{PodCidrError, PodCidrs};
pub use range::{Range, RangeSet};
pub use settings::chained::{Bandwidth, Firewall, IngressPolicy, Portmap, Tuning};
pub use settings::interface::{Bridge, Ipvlan, IpvlanMode, Macvlan, MacvlanMode, NatBackend, Ptp, VlanTrunk};
pub use settings::ipam::{Dns, HostLocal, Ipam, Route, Static, StaticAddress};
pub use settings::{PluginSettings, RateLimit};
pub use version::CniVersion;

/// The maximum size of a configuration file, in bytes.
pub const MAX_FILE: usize = 1024 * 1024;
/// The maximum number of files in a configuration directory.
pub const MAX_FILES: usize = 1024;
/// The maximum number of plugins of a network.
pub const MAX_PLUGINS: usize = 32;

pub use gantry_model::net::is_name;
