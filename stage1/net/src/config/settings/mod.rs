//! The keys of the standard plugins, with the defaults of their documentation (containernetworking/plugins 1.5,
//! `plugins/*/README` and cni.dev/plugins/current).

pub(crate) mod chained;
pub(crate) mod interface;
pub(crate) mod ipam;

use chained::{Bandwidth, Firewall, Portmap, Tuning};
use interface::{Bridge, Ipvlan, Macvlan, Ptp};
use serde_json::Value;

use super::json::{Invalid, read};

/// A plugin's own keys.
#[derive(Debug, Clone, PartialEq)]
pub enum PluginSettings {
    /// `bridge`.
    Bridge(Bridge),
    /// `ptp`.
    Ptp(Ptp),
    /// `macvlan`.
    Macvlan(Macvlan),
    /// `ipvlan`.
    Ipvlan(Ipvlan),
    /// `loopback`, which has no keys.
    Loopback,
    /// `portmap`.
    Portmap(Portmap),
    /// `firewall`.
    Firewall(Firewall),
    /// `bandwidth`.
    Bandwidth(Bandwidth),
    /// `tuning`.
    Tuning(Tuning),
    /// A plugin that gantry does not know; see [`super::PluginConfig::raw`].
    Other,
}

/// A token bucket that limits traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Bits per second, at least 1.
    pub rate: u64,
    /// Bits that may pass at once, at least 1.
    pub burst: u64,
}

impl PluginSettings {
    /// Whether gantry knows the keys of plugins of this type.
    pub(super) fn is_known(kind: &str) -> bool {
        matches!(
            kind,
            "bridge" | "ptp" | "macvlan" | "ipvlan" | "loopback" | "portmap" | "firewall" | "bandwidth" | "tuning"
        )
    }

    /// Reads the settings of a plugin of this type.
    pub(super) fn read(kind: &str, keys: &Value, path: &str, unknown: &mut Vec<String>) -> Result<Self, Invalid> {
        let checked = |problem: Result<(), &'static str>| problem.map_err(|problem| Invalid::new(path, problem));
        Ok(match kind {
            "bridge" => {
                let mut bridge: Bridge = read(keys, path, unknown)?;
                bridge.is_gateway |= bridge.is_default_gateway;
                checked(bridge.check())?;
                Self::Bridge(bridge)
            }
            "ptp" => Self::Ptp(read(keys, path, unknown)?),
            "macvlan" => Self::Macvlan(read(keys, path, unknown)?),
            "ipvlan" => Self::Ipvlan(read(keys, path, unknown)?),
            "loopback" => {
                read::<NoKeys>(keys, path, unknown)?;
                Self::Loopback
            }
            "portmap" => {
                let portmap: Portmap = read(keys, path, unknown)?;
                checked(portmap.check())?;
                Self::Portmap(portmap)
            }
            "firewall" => Self::Firewall(read(keys, path, unknown)?),
            "bandwidth" => Self::Bandwidth(read(keys, path, unknown)?),
            "tuning" => Self::Tuning(read(keys, path, unknown)?),
            _ => Self::Other,
        })
    }
}

#[derive(serde::Deserialize)]
struct NoKeys {}
