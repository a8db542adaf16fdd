//! The plugins that create an interface: bridge, ptp, macvlan, ipvlan.

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

use super::super::json::{hardware_address, interface_name, mtu, number_up_to, optional_interface_name, zero_is_none};

/// The highest VLAN identifier (IEEE 802.1Q; 4095 is reserved).
const MAX_VLAN: u32 = 4094;

/// The program that masquerades (`ipNatBackend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NatBackend {
    /// `iptables`.
    Iptables,
    /// `nftables`.
    Nftables,
}

/// A range of VLANs that pass tagged (`vlanTrunk`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTrunk {
    /// The first VLAN.
    pub min: u16,
    /// The last VLAN.
    pub max: u16,
}

/// `bridge`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Bridge {
    /// The bridge's name (default `cni0`).
    #[serde(deserialize_with = "interface_name")]
    pub bridge: String,
    /// Assign the gateway's address to the bridge. `isDefaultGateway` implies it.
    pub is_gateway: bool,
    /// Route the pod's default route through the bridge.
    pub is_default_gateway: bool,
    /// Replace a conflicting address of the bridge.
    pub force_address: bool,
    /// Masquerade traffic that leaves the network.
    pub ip_masq: bool,
    /// The program that masquerades; gantry uses nftables in any case.
    pub ip_masq_backend: Option<NatBackend>,
    /// MTU of the interfaces; `None`: the bridge's, at most 1500. A new bridge gets the uplink's, 1280 to 1500.
    #[serde(deserialize_with = "mtu")]
    pub mtu: Option<u32>,
    /// Let a bridge port send a frame back through the port it came from.
    pub hairpin_mode: bool,
    /// Make the bridge promiscuous.
    pub promisc_mode: bool,
    /// The VLAN of the bridge port; 0: none.
    #[serde(deserialize_with = "vlan")]
    pub vlan: u16,
    /// The VLANs that pass tagged.
    #[serde(deserialize_with = "vlan_trunks")]
    pub vlan_trunk: Vec<VlanTrunk>,
    /// Keep VLAN 1 on the bridge port (default true).
    pub preserve_default_vlan: bool,
    /// Wait for duplicate address detection.
    #[serde(rename = "enabledad")]
    pub enable_dad: bool,
    /// Drop frames with another hardware address than the pod's (anti-spoofing).
    #[serde(rename = "macspoofchk")]
    pub mac_spoof_check: bool,
    /// Leave the pod's interface down.
    pub disable_container_interface: bool,
    /// Let the bridge ports reach the bridge only, not each other.
    pub port_isolation: bool,
}

impl Default for Bridge {
    fn default() -> Self {
        Self {
            bridge: "cni0".into(),
            is_gateway: false,
            is_default_gateway: false,
            force_address: false,
            ip_masq: false,
            ip_masq_backend: None,
            mtu: None,
            hairpin_mode: false,
            promisc_mode: false,
            vlan: 0,
            vlan_trunk: Vec::new(),
            preserve_default_vlan: true,
            enable_dad: false,
            mac_spoof_check: false,
            disable_container_interface: false,
            port_isolation: false,
        }
    }
}

impl Bridge {
    /// Checks keys against each other, as the bridge plugin does.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        if self.hairpin_mode && self.promisc_mode {
            return Err("promiscMode cannot be set together with hairpinMode");
        }
        if self.vlan != 0 && !self.vlan_trunk.is_empty() {
            return Err("vlanTrunk cannot be set together with vlan");
        }
        Ok(())
    }
}

/// `ptp`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ptp {
    /// Masquerade traffic that leaves the pod.
    pub ip_masq: bool,
    /// The program that masquerades; gantry uses nftables in any case.
    pub ip_masq_backend: Option<NatBackend>,
    /// MTU of the interfaces; `None`: the uplink's, at most 1500.
    #[serde(deserialize_with = "mtu")]
    pub mtu: Option<u32>,
}

/// How macvlan interfaces of one parent reach each other (Linux, `if_link.h`, `macvlan_mode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MacvlanMode {
    /// `bridge`, the default.
    #[default]
    Bridge,
    /// `private`.
    Private,
    /// `vepa`.
    Vepa,
    /// `passthru`.
    Passthru,
}

/// `macvlan`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Macvlan {
    /// The parent interface; `None`: that of the default route.
    #[serde(deserialize_with = "optional_interface_name")]
    pub master: Option<String>,
    /// The mode.
    pub mode: MacvlanMode,
    /// MTU of the interface; `None`: the parent's.
    #[serde(deserialize_with = "mtu")]
    pub mtu: Option<u32>,
    /// The hardware address of the interface.
    #[serde(deserialize_with = "hardware_address")]
    pub mac: Option<[u8; 6]>,
    /// The parent interface is in the pod's network namespace.
    pub link_in_container: bool,
    /// Length of the broadcast queue; `None`: the kernel's default.
    #[serde(rename = "bcqueuelen", deserialize_with = "zero_is_none")]
    pub bc_queue_len: Option<u32>,
}

/// The layer at which ipvlan works (Linux, `if_link.h`, `IFLA_IPVLAN_MODE`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IpvlanMode {
    /// `l2`, the default.
    #[default]
    L2,
    /// `l3`.
    L3,
    /// `l3s`.
    L3s,
}

/// `ipvlan`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Ipvlan {
    /// The parent interface; `None`: that of the default route.
    #[serde(deserialize_with = "optional_interface_name")]
    pub master: Option<String>,
    /// The mode.
    pub mode: IpvlanMode,
    /// MTU of the interface; `None`: the parent's.
    #[serde(deserialize_with = "mtu")]
    pub mtu: Option<u32>,
    /// The parent interface is in the pod's network namespace.
    pub link_in_container: bool,
}

fn vlan<'de, D: Deserializer<'de>>(from: D) -> Result<u16, D::Error> {
    let id = number_up_to(from, MAX_VLAN)?;
    u16::try_from(id).map_err(D::Error::custom)
}

fn trunk_vlan<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u16>, D::Error> {
    match vlan(from)? {
        0 => Err(D::Error::custom(format!("must be a number from 1 to {MAX_VLAN}"))),
        id => Ok(Some(id)),
    }
}

/// An entry of `vlanTrunk`: a VLAN, a range, or both.
#[derive(Deserialize)]
#[serde(try_from = "VlanTrunkKeys")]
struct VlanTrunks(Vec<VlanTrunk>);

#[derive(Deserialize)]
struct VlanTrunkKeys {
    #[serde(default, deserialize_with = "trunk_vlan")]
    id: Option<u16>,
    #[serde(default, rename = "minID", deserialize_with = "trunk_vlan")]
    min: Option<u16>,
    #[serde(default, rename = "maxID", deserialize_with = "trunk_vlan")]
    max: Option<u16>,
}

impl TryFrom<VlanTrunkKeys> for VlanTrunks {
    type Error = &'static str;

    fn try_from(keys: VlanTrunkKeys) -> Result<Self, Self::Error> {
        let mut trunks: Vec<VlanTrunk> = keys.id.map(|id| VlanTrunk { min: id, max: id }).into_iter().collect();
        match (keys.min, keys.max) {
            (None, None) => {}
            (Some(min), Some(max)) if min <= max => trunks.push(VlanTrunk { min, max }),
            (Some(_), Some(_)) => return Err("maxID must not be less than minID"),
            (Some(_), None) | (None, Some(_)) => return Err("minID and maxID go together"),
        }
        Ok(Self(trunks))
    }
}

fn vlan_trunks<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<VlanTrunk>, D::Error> {
    Ok(Vec::<VlanTrunks>::deserialize(from)?.into_iter().flat_map(|trunks| trunks.0).collect())
}
