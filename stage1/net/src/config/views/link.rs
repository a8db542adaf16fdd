//! The plugins that make an interface: bridge, ptp, macvlan, ipvlan.

use super::super::fields::{Bad, Fields};
use super::{interface, mac, mtu};

type Result<T> = std::result::Result<T, Bad>;

/// How masquerading is done (`ipMasqBackend`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MasqBackend {
    /// Not said.
    Default,
    /// `iptables`.
    Iptables,
    /// `nftables`.
    Nftables,
}

/// One entry of `vlanTrunk`: an id alone has `min` equal to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTrunk {
    /// The first VLAN.
    pub min: u16,
    /// The last.
    pub max: u16,
}

/// `bridge`.
#[derive(Debug, Clone, PartialEq)]
pub struct Bridge {
    /// The bridge's name (default `cni0`).
    pub bridge: String,
    /// Give the bridge the gateway's address. `isDefaultGateway` implies it.
    pub is_gateway: bool,
    /// Make it the pod's default route.
    pub is_default_gateway: bool,
    /// Replace another address the bridge has.
    pub force_address: bool,
    /// Masquerade what leaves the network.
    pub ip_masq: bool,
    /// By what.
    pub masq_backend: MasqBackend,
    /// Of the interfaces; `None`: the kernel's.
    pub mtu: Option<u32>,
    /// Let a port send back what came from it.
    pub hairpin_mode: bool,
    /// Make the bridge promiscuous.
    pub promisc_mode: bool,
    /// The port's VLAN; 0: none.
    pub vlan: u16,
    /// The VLANs that pass tagged.
    pub vlan_trunk: Vec<VlanTrunk>,
    /// Keep VLAN 1 on the port (default true).
    pub preserve_default_vlan: bool,
    /// Wait for duplicate address detection.
    pub enable_dad: bool,
    /// Drop frames with another hardware address than the pod's.
    pub mac_spoof_check: bool,
    /// Leave the pod's interface down.
    pub disable_container_interface: bool,
    /// Let ports talk to the bridge only.
    pub port_isolation: bool,
}

/// `ptp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ptp {
    /// Masquerade what leaves the pod.
    pub ip_masq: bool,
    /// By what.
    pub masq_backend: MasqBackend,
    /// Of the interfaces; `None`: the kernel's.
    pub mtu: Option<u32>,
}

/// How macvlan interfaces of one master see each other (Linux, `if_link.h`, `macvlan_mode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacvlanMode {
    /// `bridge`, the default.
    Bridge,
    /// `private`.
    Private,
    /// `vepa`.
    Vepa,
    /// `passthru`.
    Passthru,
}

/// `macvlan`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Macvlan {
    /// The host's interface; `None`: that of the default route.
    pub master: Option<String>,
    /// The mode.
    pub mode: MacvlanMode,
    /// Of the interface; `None`: the master's.
    pub mtu: Option<u32>,
    /// The hardware address asked for.
    pub mac: Option<[u8; 6]>,
    /// The master is in the pod.
    pub link_in_container: bool,
    /// Length of the queue for broadcasts; `None`: the kernel's.
    pub bc_queue_len: Option<u32>,
}

/// What an ipvlan interface passes (Linux, `if_link.h`, `IFLA_IPVLAN_MODE`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpvlanMode {
    /// `l2`, the default.
    L2,
    /// `l3`.
    L3,
    /// `l3s`.
    L3s,
}

/// `ipvlan`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipvlan {
    /// The host's interface; `None`: the previous plugin's, or that of the default route.
    pub master: Option<String>,
    /// The mode.
    pub mode: IpvlanMode,
    /// Of the interface; `None`: the master's.
    pub mtu: Option<u32>,
    /// The master is in the pod.
    pub link_in_container: bool,
}

fn masq_backend(fields: &mut Fields<'_>) -> Result<MasqBackend> {
    let choices = [("iptables", MasqBackend::Iptables), ("nftables", MasqBackend::Nftables)];
    fields.choice("ipMasqBackend", &choices, MasqBackend::Default)
}

pub(super) fn bridge(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<Bridge> {
    let is_default_gateway = fields.flag("isDefaultGateway", false)?;
    let bridge = Bridge {
        bridge: interface(fields, "bridge")?.unwrap_or_else(|| "cni0".into()),
        is_gateway: fields.flag("isGateway", false)? || is_default_gateway,
        is_default_gateway,
        force_address: fields.flag("forceAddress", false)?,
        ip_masq: fields.flag("ipMasq", false)?,
        masq_backend: masq_backend(fields)?,
        mtu: mtu(fields, "mtu")?,
        hairpin_mode: fields.flag("hairpinMode", false)?,
        promisc_mode: fields.flag("promiscMode", false)?,
        vlan: vlan(fields, "vlan", 0)?.unwrap_or(0),
        vlan_trunk: trunk(fields, notes)?,
        preserve_default_vlan: fields.flag("preserveDefaultVlan", true)?,
        enable_dad: fields.flag("enabledad", false)?,
        mac_spoof_check: fields.flag("macspoofchk", false)?,
        disable_container_interface: fields.flag("disableContainerInterface", false)?,
        port_isolation: fields.flag("portIsolation", false)?,
    };
    if bridge.hairpin_mode && bridge.promisc_mode {
        return Err(fields.bad("promiscMode", "cannot be set together with hairpinMode"));
    }
    if bridge.vlan != 0 && !bridge.vlan_trunk.is_empty() {
        return Err(fields.bad("vlanTrunk", "cannot be set together with vlan"));
    }
    Ok(bridge)
}

fn vlan(fields: &mut Fields<'_>, key: &'static str, least: u64) -> Result<Option<u16>> {
    Ok(fields.number(key, least, 4094)?.and_then(|id| u16::try_from(id).ok()))
}

fn trunk(fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<Vec<VlanTrunk>> {
    let mut trunks = Vec::new();
    for item in fields.list("vlanTrunk")? {
        let mut entry = Fields::of(item.value, item.at)?;
        let (min, max) = (vlan(&mut entry, "minID", 1)?, vlan(&mut entry, "maxID", 1)?);
        if let Some(id) = vlan(&mut entry, "id", 1)? {
            trunks.push(VlanTrunk { min: id, max: id });
        }
        match (min, max) {
            (Some(min), Some(max)) if min <= max => trunks.push(VlanTrunk { min, max }),
            (None, None) => {}
            (Some(_), Some(_)) => return Err(entry.bad("maxID", "must not be less than minID")),
            _ => return Err(entry.wrong("minID and maxID go together")),
        }
        entry.finish(notes);
    }
    Ok(trunks)
}

pub(super) fn ptp(fields: &mut Fields<'_>) -> Result<Ptp> {
    Ok(Ptp { ip_masq: fields.flag("ipMasq", false)?, masq_backend: masq_backend(fields)?, mtu: mtu(fields, "mtu")? })
}

pub(super) fn macvlan(fields: &mut Fields<'_>) -> Result<Macvlan> {
    let modes = [
        ("bridge", MacvlanMode::Bridge),
        ("private", MacvlanMode::Private),
        ("vepa", MacvlanMode::Vepa),
        ("passthru", MacvlanMode::Passthru),
    ];
    Ok(Macvlan {
        master: interface(fields, "master")?,
        mode: fields.choice("mode", &modes, MacvlanMode::Bridge)?,
        mtu: mtu(fields, "mtu")?,
        mac: mac(fields, "mac")?,
        link_in_container: fields.flag("linkInContainer", false)?,
        bc_queue_len: fields.number32("bcqueuelen", 0, u32::MAX)?.filter(|len| *len != 0),
    })
}

pub(super) fn ipvlan(fields: &mut Fields<'_>) -> Result<Ipvlan> {
    let modes = [("l2", IpvlanMode::L2), ("l3", IpvlanMode::L3), ("l3s", IpvlanMode::L3s)];
    Ok(Ipvlan {
        master: interface(fields, "master")?,
        mode: fields.choice("mode", &modes, IpvlanMode::L2)?,
        mtu: mtu(fields, "mtu")?,
        link_in_container: fields.flag("linkInContainer", false)?,
    })
}
