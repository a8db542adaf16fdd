//! Ranges of addresses to assign (`ranges` of host-local).

use std::net::IpAddr;

use serde::Deserialize;

use crate::address::{Cidr, IpFamily, from_bits, to_bits};

/// The maximum number of ranges of a network: each is compared with each other.
const MAX_RANGES: usize = 256;

/// A part of a subnet from which addresses are assigned. `start` and `end` are within the subnet, `start` is not after
/// `end`, and neither is the network address or the broadcast address.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RangeKeys")]
pub struct Range {
    /// The subnet, without bits beyond its prefix.
    pub subnet: Cidr,
    /// The first address to assign (default: the subnet's second).
    pub start: IpAddr,
    /// The last address to assign (default: the subnet's last, in IPv4 the one before).
    pub end: IpAddr,
    /// The gateway, which is never assigned (default: the subnet's second address).
    pub gateway: IpAddr,
}

/// Ranges of one address family that do not overlap: a pod gets one address of each set.
pub type RangeSet = Vec<Range>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct RangeKeys {
    subnet: Cidr,
    range_start: Option<IpAddr>,
    range_end: Option<IpAddr>,
    gateway: Option<IpAddr>,
}

impl TryFrom<RangeKeys> for Range {
    type Error = String;

    fn try_from(keys: RangeKeys) -> Result<Self, String> {
        Self::new(keys.subnet, keys.range_start, keys.range_end, keys.gateway)
    }
}

impl Range {
    /// Fills in defaults and checks the rest, as the host-local plugin does.
    ///
    /// # Errors
    ///
    /// A sentence with the problem.
    pub fn new(
        subnet: Cidr,
        start: Option<IpAddr>,
        end: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, String> {
        let family = subnet.family();
        let max_length = match family {
            IpFamily::V4 => 30,
            IpFamily::V6 => 126,
        };
        if subnet.length() > max_length {
            return Err(format!(
                "the subnet {subnet} is too small to assign addresses from: its prefix is longer than {max_length}"
            ));
        }
        if subnet.first() != subnet.address() {
            return Err(format!(
                "{subnet} has bits beyond its prefix: the network is {}/{}",
                subnet.first(),
                subnet.length()
            ));
        }
        let first = from_bits(to_bits(subnet.first()) + 1, family);
        // IPv6 has no broadcast; its first address is the subnet's routers' (RFC 4291, section 2.6.1).
        let last = match family {
            IpFamily::V4 => from_bits(to_bits(subnet.last()) - 1, family),
            IpFamily::V6 => subnet.last(),
        };
        let within = |what: &str, address: Option<IpAddr>, default: IpAddr| match address {
            None => Ok(default),
            Some(address) if !subnet.contains(address) => {
                Err(format!("{what} {address} is not in the subnet {subnet}"))
            }
            Some(address) if address < first || address > last => {
                Err(format!("{what} {address} is the network address or the broadcast address of {subnet}"))
            }
            Some(address) => Ok(address),
        };
        let (start, end) = (within("rangeStart", start, first)?, within("rangeEnd", end, last)?);
        if start > end {
            return Err(format!("rangeStart {start} is after rangeEnd {end}"));
        }
        let gateway = gateway.unwrap_or(first);
        if IpFamily::of(gateway) != family {
            return Err(format!("the gateway {gateway} and the subnet {subnet} have different address families"));
        }
        Ok(Self { subnet, start, end, gateway })
    }

    /// Whether the address lies between start and end.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        IpFamily::of(address) == self.subnet.family() && (self.start..=self.end).contains(&address)
    }

    /// Whether the ranges share an address.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.subnet.family() == other.subnet.family() && self.start <= other.end && other.start <= self.end
    }
}

/// Checks that no set is empty, that each set has one address family, and that no ranges overlap.
pub(crate) fn check_sets(sets: &[RangeSet]) -> Result<(), String> {
    for set in sets {
        let Some(first) = set.first() else { return Err("a set of ranges must not be empty".into()) };
        if set.iter().any(|range| range.subnet.family() != first.subnet.family()) {
            return Err("a set of ranges has both IPv4 and IPv6: write two sets".into());
        }
    }
    let all: Vec<&Range> = sets.iter().flatten().collect();
    if all.len() > MAX_RANGES {
        return Err(format!("a network can have at most {MAX_RANGES} ranges"));
    }
    for (index, one) in all.iter().enumerate() {
        if let Some(other) = all.iter().skip(index + 1).find(|other| one.overlaps(other)) {
            return Err(format!("the ranges {}-{} and {}-{} overlap", one.start, one.end, other.start, other.end));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn defaults_match_host_local() {
        let range = Range::new("10.1.0.0/16".parse().unwrap(), None, None, None).unwrap();
        assert_eq!((range.start, range.end, range.gateway), (ip("10.1.0.1"), ip("10.1.255.254"), ip("10.1.0.1")));
        let range = Range::new("fd00::/64".parse().unwrap(), None, None, None).unwrap();
        assert_eq!((range.start, range.end), (ip("fd00::1"), ip("fd00::ffff:ffff:ffff:ffff")));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        let new = |subnet: &str, start: &str, end: &str| {
            Range::new(subnet.parse().unwrap(), start.parse().ok(), end.parse().ok(), None).unwrap_err()
        };
        assert!(new("10.1.0.0/31", "", "").contains("too small"));
        assert!(new("10.1.0.1/24", "", "").contains("10.1.0.0/24"));
        assert!(new("10.1.0.0/24", "10.2.0.1", "").contains("not in the subnet"));
        assert!(new("10.1.0.0/24", "10.1.0.0", "").contains("network address or the broadcast"));
        assert!(new("10.1.0.0/24", "", "10.1.0.255").contains("network address or the broadcast"));
        assert!(new("10.1.0.0/24", "10.1.0.9", "10.1.0.8").contains("after"));
        let one = |subnet: &str| Range::new(subnet.parse().unwrap(), None, None, None).unwrap();
        assert!(check_sets(&[vec![one("10.1.0.0/24"), one("fd00::/64")]]).unwrap_err().contains("two sets"));
        assert!(check_sets(&[vec![one("10.1.0.0/24")], vec![one("10.1.0.0/16")]]).unwrap_err().contains("overlap"));
        assert!(check_sets(&[vec![]]).is_err());
        check_sets(&[vec![one("10.1.0.0/24"), one("10.1.1.0/24")], vec![one("fd00::/64")]]).unwrap();
    }
}
