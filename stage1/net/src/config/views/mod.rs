//! The standard plugins' configurations as values, with the defaults their documentation gives
//! (containernetworking/plugins 1.5, `plugins/*/README` and cni.dev/plugins/current).

pub(crate) mod ipam;
pub(crate) mod link;
pub(crate) mod meta;

use super::fields::{Bad, Fields};
use link::{Bridge, Ipvlan, Macvlan, Ptp};
use meta::{Bandwidth, Firewall, Portmap, Tuning};

/// A plugin's own part of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub enum View {
    /// `bridge`.
    Bridge(Bridge),
    /// `ptp`.
    Ptp(Ptp),
    /// `macvlan`.
    Macvlan(Macvlan),
    /// `ipvlan`.
    Ipvlan(Ipvlan),
    /// `loopback`, which has nothing to set.
    Loopback,
    /// `portmap`.
    Portmap(Portmap),
    /// `firewall`.
    Firewall(Firewall),
    /// `bandwidth`.
    Bandwidth(Bandwidth),
    /// `tuning`.
    Tuning(Tuning),
    /// Another plugin, of which only the raw object is known.
    Other,
}

/// How much traffic passes: a token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// Bits a second, at least 1.
    pub rate: u64,
    /// Bits that may pass at once, at least 1.
    pub burst: u64,
}

pub(super) fn parse(kind: &str, fields: &mut Fields<'_>, notes: &mut Vec<String>) -> Result<View, Bad> {
    Ok(match kind {
        "bridge" => View::Bridge(link::bridge(fields, notes)?),
        "ptp" => View::Ptp(link::ptp(fields)?),
        "macvlan" => View::Macvlan(link::macvlan(fields)?),
        "ipvlan" => View::Ipvlan(link::ipvlan(fields)?),
        "loopback" => View::Loopback,
        "portmap" => View::Portmap(meta::portmap(fields)?),
        "firewall" => View::Firewall(meta::firewall(fields)?),
        "bandwidth" => View::Bandwidth(meta::bandwidth(fields)?),
        "tuning" => View::Tuning(meta::tuning(fields)?),
        _ => View::Other,
    })
}

/// A hardware address, as the kernel writes it: six bytes in hexadecimal with colons.
pub(super) fn mac(fields: &mut Fields<'_>, key: &'static str) -> Result<Option<[u8; 6]>, Bad> {
    let Some(text) = fields.word(key)? else { return Ok(None) };
    parse_mac(&text).map(Some).ok_or_else(|| fields.bad(key, "must be a hardware address such as 02:00:0a:01:02:03"))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut parts = text.split([':', '-']);
    let mut mac = [0; 6];
    for byte in &mut mac {
        let part = parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

/// An interface's name that must do for Linux.
pub(super) fn interface(fields: &mut Fields<'_>, key: &'static str) -> Result<Option<String>, Bad> {
    match fields.word(key)? {
        Some(name) if !super::is_interface_name(&name) => {
            Err(fields.bad(key, "must be an interface's name: 1 to 15 characters without '/', ':' and spaces"))
        }
        name => Ok(name),
    }
}

/// A maximum transmission unit; 0 is as good as absent, as in the plugins.
pub(super) fn mtu(fields: &mut Fields<'_>, key: &'static str) -> Result<Option<u32>, Bad> {
    Ok(fields.number32(key, 0, 65535)?.filter(|mtu| *mtu != 0))
}
