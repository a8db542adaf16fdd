//! The plugins that change what another has made: portmap, firewall, bandwidth, tuning.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::fields::{Bad, Fields};
use super::{RateLimit, mac, mtu};
use crate::address::{BadAddress, Cidr};

type Result<T> = std::result::Result<T, Bad>;

/// `portmap`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portmap {
    /// Masquerade forwarded traffic where the way back needs it (default true).
    pub snat: bool,
    /// Masquerade all of it.
    pub masq_all: bool,
    /// The bit of the packet mark that says so (default 13).
    pub mark_masq_bit: u32,
    /// A chain of somebody else that sets the mark.
    pub external_set_mark_chain: Option<String>,
    /// More conditions for IPv4, in the words of the backend.
    pub conditions_v4: Vec<String>,
    /// And for IPv6.
    pub conditions_v6: Vec<String>,
    /// `iptables` or `nftables`, as written.
    pub backend: Option<String>,
}

/// What may enter (`ingressPolicy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngressPolicy {
    /// Everything, the default.
    Open,
    /// From the same bridge only.
    SameBridge,
    /// From nobody but the host.
    Isolated,
}

/// `firewall`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Firewall {
    /// `iptables`, `firewalld` or another, as written.
    pub backend: Option<String>,
    /// The administrator's chain (default `CNI-ADMIN`).
    pub admin_chain: String,
    /// firewalld's zone (default `trusted`).
    pub firewalld_zone: String,
    /// What may enter.
    pub ingress_policy: IngressPolicy,
}

/// `bandwidth`. Ingress is what the pod receives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bandwidth {
    /// Of what the pod receives; `None`: no limit.
    pub ingress: Option<RateLimit>,
    /// Of what the pod sends.
    pub egress: Option<RateLimit>,
    /// The limits do not hold for these.
    pub unshaped_subnets: Vec<Cidr>,
    /// The limits hold for these only.
    pub shaped_subnets: Vec<Cidr>,
}

/// `tuning`. What is `None` is left as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuning {
    /// Names below `/proc/sys/net`, with their values. The name `IFNAME` within one stands for the interface.
    pub sysctl: BTreeMap<String, String>,
    /// The hardware address.
    pub mac: Option<[u8; 6]>,
    /// The maximum transmission unit.
    pub mtu: Option<u32>,
    /// Promiscuous mode.
    pub promisc: Option<bool>,
    /// Reception of all multicasts.
    pub allmulti: Option<bool>,
    /// Length of the transmit queue.
    pub tx_queue_len: Option<u32>,
    /// Where the plugin remembers how it was before.
    pub data_dir: Option<String>,
}

pub(super) fn portmap(fields: &mut Fields<'_>) -> Result<Portmap> {
    let view = Portmap {
        snat: fields.flag("snat", true)?,
        masq_all: fields.flag("masqAll", false)?,
        mark_masq_bit: fields.number32("markMasqBit", 0, 31)?.unwrap_or(13),
        external_set_mark_chain: fields.word("externalSetMarkChain")?,
        conditions_v4: fields.texts("conditionsV4")?,
        conditions_v6: fields.texts("conditionsV6")?,
        backend: fields.word("backend")?,
    };
    if view.external_set_mark_chain.is_some() && fields.map().contains_key("markMasqBit") {
        return Err(fields.bad("markMasqBit", "cannot be set together with externalSetMarkChain"));
    }
    if view.backend.as_deref().is_some_and(|backend| !matches!(backend, "iptables" | "nftables")) {
        return Err(fields.bad("backend", "must be iptables or nftables"));
    }
    Ok(view)
}

pub(super) fn firewall(fields: &mut Fields<'_>) -> Result<Firewall> {
    let policies = [
        ("open", IngressPolicy::Open),
        ("same-bridge", IngressPolicy::SameBridge),
        ("isolated", IngressPolicy::Isolated),
    ];
    Ok(Firewall {
        backend: fields.word("backend")?,
        admin_chain: fields.word("iptablesAdminChainName")?.unwrap_or_else(|| "CNI-ADMIN".into()),
        firewalld_zone: fields.word("firewalldZone")?.unwrap_or_else(|| "trusted".into()),
        ingress_policy: fields.choice("ingressPolicy", &policies, IngressPolicy::Open)?,
    })
}

pub(super) fn bandwidth(fields: &mut Fields<'_>) -> Result<Bandwidth> {
    let view = Bandwidth {
        ingress: limit(fields, "ingressRate", "ingressBurst")?,
        egress: limit(fields, "egressRate", "egressBurst")?,
        unshaped_subnets: subnets(fields, "unshapedSubnets")?,
        shaped_subnets: subnets(fields, "shapedSubnets")?,
    };
    if !view.unshaped_subnets.is_empty() && !view.shaped_subnets.is_empty() {
        return Err(fields.bad("shapedSubnets", "cannot be set together with unshapedSubnets"));
    }
    Ok(view)
}

/// A rate and its burst: both or none; the plugin takes 0 for none.
fn limit(fields: &mut Fields<'_>, rate: &'static str, burst: &'static str) -> Result<Option<RateLimit>> {
    // The kernel counts bursts in 32 bits of bytes.
    let most_burst = u64::from(u32::MAX) * 8;
    let rate_value = fields.number(rate, 0, u64::MAX)?.unwrap_or(0);
    let burst_value = fields.number(burst, 0, most_burst)?.unwrap_or(0);
    match (rate_value, burst_value) {
        (0, 0) => Ok(None),
        (0, _) => Err(fields.bad(burst, format!("needs {rate}"))),
        (_, 0) => Err(fields.bad(rate, format!("needs {burst}"))),
        (rate, burst) => Ok(Some(RateLimit { rate, burst })),
    }
}

fn subnets(fields: &mut Fields<'_>, key: &'static str) -> Result<Vec<Cidr>> {
    let parse = |text: String| text.parse().map_err(|bad| fields_bad(key, &text, bad));
    let texts = fields.texts(key)?;
    texts.into_iter().map(parse).collect::<std::result::Result<_, String>>().map_err(|problem| fields.bad(key, problem))
}

fn fields_bad(key: &str, text: &str, bad: BadAddress) -> String {
    format!("'{}' in {key} {bad}", gantry_model::id::shown(text))
}

pub(super) fn tuning(fields: &mut Fields<'_>) -> Result<Tuning> {
    let optional = |fields: &mut Fields<'_>, key| match fields.get(key) {
        None => Ok(None),
        Some(_) => fields.flag(key, false).map(Some),
    };
    Ok(Tuning {
        sysctl: sysctls(fields)?,
        mac: mac(fields, "mac")?,
        mtu: mtu(fields, "mtu")?,
        promisc: optional(fields, "promisc")?,
        allmulti: optional(fields, "allmulti")?,
        tx_queue_len: fields.number32("txQLen", 0, i32::MAX.unsigned_abs())?,
        data_dir: fields.word("dataDir")?,
    })
}

/// Names stay below `/proc/sys/net`: the rest is not of one network.
fn sysctls(fields: &mut Fields<'_>) -> Result<BTreeMap<String, String>> {
    let mut sysctls = BTreeMap::new();
    let Some(object) = fields.object("sysctl")? else { return Ok(sysctls) };
    for (name, value) in object.map() {
        let Value::String(value) = value else { return Err(object.bad(name, "must be a text")) };
        // A name has dots or slashes between its parts, as in sysctl(8).
        let mut parts = name.split(['.', '/']);
        if parts.next() != Some("net") || name.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(object.bad(name, "must be a name below net, such as net.core.somaxconn"));
        }
        sysctls.insert(name.clone(), value.clone());
    }
    Ok(sysctls)
}
