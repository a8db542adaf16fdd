//! The plugins that change an interface after another plugin has created it: portmap, firewall, bandwidth, tuning.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use super::super::json::{hardware_address, mtu, number_up_to};
use super::RateLimit;
use super::interface::NatBackend;
use crate::address::Cidr;

/// The highest bit of a packet mark.
const MAX_MARK_BIT: u32 = 31;
/// The kernel counts the burst of a token bucket in 32 bits of bytes.
const MAX_BURST_BITS: u64 = (u32::MAX as u64) * 8;

/// `portmap`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Portmap {
    /// Masquerade forwarded traffic whose replies would otherwise take another path (default true).
    pub snat: bool,
    /// Masquerade all forwarded traffic.
    pub masq_all: bool,
    /// The bit of the packet mark that requests masquerading; `None`: the plugin's default, 13.
    #[serde(deserialize_with = "mark_bit")]
    pub mark_masq_bit: Option<u32>,
    /// A chain, not the plugin's, that sets the mark.
    pub external_set_mark_chain: Option<String>,
    /// Further conditions for IPv4, in the backend's syntax.
    #[serde(rename = "conditionsV4")]
    pub conditions_v4: Vec<String>,
    /// Further conditions for IPv6.
    #[serde(rename = "conditionsV6")]
    pub conditions_v6: Vec<String>,
    /// The backend; gantry uses nftables in any case.
    pub backend: Option<NatBackend>,
}

impl Default for Portmap {
    fn default() -> Self {
        Self {
            snat: true,
            masq_all: false,
            mark_masq_bit: None,
            external_set_mark_chain: None,
            conditions_v4: Vec::new(),
            conditions_v6: Vec::new(),
            backend: None,
        }
    }
}

impl Portmap {
    /// Checks keys against each other, as the portmap plugin does.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.external_set_mark_chain.is_some() && self.mark_masq_bit.is_some() {
            return Err("markMasqBit cannot be set together with externalSetMarkChain");
        }
        Ok(())
    }
}

/// The traffic that may enter a network (`ingressPolicy`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IngressPolicy {
    /// All, the default.
    #[default]
    Open,
    /// From the same bridge only.
    SameBridge,
    /// From the host only.
    Isolated,
}

/// `firewall`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Firewall {
    /// `iptables`, `firewalld` or another backend.
    pub backend: Option<String>,
    /// The administrator's chain (default `CNI-ADMIN`).
    #[serde(rename = "iptablesAdminChainName")]
    pub admin_chain: String,
    /// firewalld's zone (default `trusted`).
    pub firewalld_zone: String,
    /// The traffic that may enter.
    pub ingress_policy: IngressPolicy,
}

impl Default for Firewall {
    fn default() -> Self {
        Self {
            backend: None,
            admin_chain: "CNI-ADMIN".into(),
            firewalld_zone: "trusted".into(),
            ingress_policy: IngressPolicy::Open,
        }
    }
}

/// `bandwidth`. Ingress is the traffic that the pod receives.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "BandwidthKeys")]
pub struct Bandwidth {
    /// Limit of the traffic that the pod receives.
    pub ingress: Option<RateLimit>,
    /// Limit of the traffic that the pod sends.
    pub egress: Option<RateLimit>,
    /// Subnets to which the limits do not apply.
    pub unshaped_subnets: Vec<Cidr>,
    /// The only subnets to which the limits apply.
    pub shaped_subnets: Vec<Cidr>,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct BandwidthKeys {
    ingress_rate: u64,
    ingress_burst: u64,
    egress_rate: u64,
    egress_burst: u64,
    unshaped_subnets: Vec<Cidr>,
    shaped_subnets: Vec<Cidr>,
}

impl TryFrom<BandwidthKeys> for Bandwidth {
    type Error = String;

    fn try_from(keys: BandwidthKeys) -> Result<Self, String> {
        if !keys.unshaped_subnets.is_empty() && !keys.shaped_subnets.is_empty() {
            return Err("shapedSubnets cannot be set together with unshapedSubnets".into());
        }
        Ok(Self {
            ingress: rate_limit("ingress", keys.ingress_rate, keys.ingress_burst)?,
            egress: rate_limit("egress", keys.egress_rate, keys.egress_burst)?,
            unshaped_subnets: keys.unshaped_subnets,
            shaped_subnets: keys.shaped_subnets,
        })
    }
}

/// A rate needs a burst and a burst a rate; the plugin treats 0 as absent.
fn rate_limit(direction: &str, rate: u64, burst: u64) -> Result<Option<RateLimit>, String> {
    match (rate, burst) {
        (0, 0) => Ok(None),
        (0, _) => Err(format!("{direction}Burst needs {direction}Rate")),
        (_, 0) => Err(format!("{direction}Rate needs {direction}Burst")),
        (_, burst) if burst > MAX_BURST_BITS => Err(format!("{direction}Burst must be at most {MAX_BURST_BITS} bits")),
        (rate, burst) => Ok(Some(RateLimit { rate, burst })),
    }
}

/// `tuning`. `None` leaves a property unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Tuning {
    /// Sysctls below `net` with their values. The part `IFNAME` of a name stands for the interface.
    #[serde(deserialize_with = "network_sysctls")]
    pub sysctl: BTreeMap<String, String>,
    /// The hardware address.
    #[serde(deserialize_with = "hardware_address")]
    pub mac: Option<[u8; 6]>,
    /// The maximum transmission unit, in bytes.
    #[serde(deserialize_with = "mtu")]
    pub mtu: Option<u32>,
    /// Promiscuous mode.
    pub promisc: Option<bool>,
    /// Receive all multicast packets.
    pub allmulti: Option<bool>,
    /// Length of the transmit queue, in packets.
    #[serde(rename = "txQLen", deserialize_with = "queue_length")]
    pub tx_queue_len: Option<u32>,
    /// The directory in which the plugin saves the previous settings.
    #[serde(rename = "dataDir")]
    pub data_dir: Option<String>,
}

fn mark_bit<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number_up_to(from, MAX_MARK_BIT).map(Some)
}

fn queue_length<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    number_up_to(from, i32::MAX.unsigned_abs()).map(Some)
}

/// Only names below `net` are per network namespace. As in sysctl(8), dots or slashes separate the parts of a name.
fn network_sysctls<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    let sysctls = BTreeMap::<String, String>::deserialize(from)?;
    for name in sysctls.keys() {
        let is_below_net = name.split(['.', '/']).next() == Some("net");
        if !is_below_net || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            let name = gantry_model::id::shown(name);
            return Err(D::Error::custom(format!("'{name}' must be a name below net, such as net.core.somaxconn")));
        }
    }
    Ok(sysctls)
}
