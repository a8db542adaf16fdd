//! Ranges of addresses to give out (host-local's `ranges`).

use std::net::IpAddr;

use crate::address::{Cidr, of_bits, to_bits};

/// How many ranges a network may have: each is compared with each other.
const MAX_RANGES: usize = 256;

/// A stretch of a subnet from which addresses are given. `start` and `end` are within the subnet, `start` is not after
/// `end`, and neither is the network's or the broadcast address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    /// The network, without bits beyond its prefix.
    pub subnet: Cidr,
    /// The first address given (default: the subnet's second).
    pub start: IpAddr,
    /// The last address given (default: the subnet's last, in IPv4 the one before).
    pub end: IpAddr,
    /// The gateway, never given (default: the subnet's second address).
    pub gateway: IpAddr,
}

/// Ranges of one family, none overlapping another: a pod gets one address of each set.
pub type RangeSet = Vec<Range>;

impl Range {
    /// Fills in what is not said and checks what is, as the host-local plugin does.
    ///
    /// # Errors
    ///
    /// A sentence that says what cannot be.
    pub fn new(
        subnet: Cidr,
        start: Option<IpAddr>,
        end: Option<IpAddr>,
        gateway: Option<IpAddr>,
    ) -> Result<Self, String> {
        let (most, four) = if subnet.is_ipv4() { (30, true) } else { (126, false) };
        if subnet.length() > most {
            return Err(format!(
                "the subnet {subnet} is too small to give addresses from: its prefix is longer than {most}"
            ));
        }
        if subnet.first() != subnet.address() {
            return Err(format!(
                "{subnet} has bits beyond its prefix: the network is {}/{}",
                subnet.first(),
                subnet.length()
            ));
        }
        let first = of_bits(to_bits(subnet.first()) + 1, four);
        // IPv6 has no broadcast; its first address is the subnet's routers' (RFC 4291, section 2.6.1).
        let last = if four { of_bits(to_bits(subnet.last()) - 1, true) } else { subnet.last() };
        let within = |what: &str, address: Option<IpAddr>, default: IpAddr| match address {
            None => Ok(default),
            Some(address) if !subnet.contains(address) => {
                Err(format!("{what} {address} is not in the subnet {subnet}"))
            }
            Some(address) if address < first || address > last => {
                Err(format!("{what} {address} is the network's or the broadcast address of {subnet}"))
            }
            Some(address) => Ok(address),
        };
        let (start, end) = (within("rangeStart", start, first)?, within("rangeEnd", end, last)?);
        if start > end {
            return Err(format!("rangeStart {start} is after rangeEnd {end}"));
        }
        let gateway = gateway.unwrap_or(first);
        if gateway.is_ipv4() != four {
            return Err(format!("the gateway {gateway} is not of the family of {subnet}"));
        }
        Ok(Self { subnet, start, end, gateway })
    }

    /// Whether the address lies between start and end.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.subnet.is_ipv4() && (self.start..=self.end).contains(&address)
    }

    /// Whether the two have an address in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.subnet.is_ipv4() == other.subnet.is_ipv4() && self.start <= other.end && other.start <= self.end
    }
}

/// Checks sets against each other: no empty one, one family in each, no overlap anywhere.
pub(crate) fn check_sets(sets: &[RangeSet]) -> Result<(), String> {
    for set in sets {
        let Some(first) = set.first() else { return Err("a set of ranges must not be empty".into()) };
        if set.iter().any(|range| range.subnet.is_ipv4() != first.subnet.is_ipv4()) {
            return Err("a set of ranges must be of IPv4 or of IPv6, not of both: write two sets".into());
        }
    }
    let all: Vec<&Range> = sets.iter().flatten().collect();
    if all.len() > MAX_RANGES {
        return Err(format!("at most {MAX_RANGES} ranges are possible"));
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
    fn defaults_are_host_locals() {
        let range = Range::new("10.1.0.0/16".parse().unwrap(), None, None, None).unwrap();
        assert_eq!((range.start, range.end, range.gateway), (ip("10.1.0.1"), ip("10.1.255.254"), ip("10.1.0.1")));
        let range = Range::new("fd00::/64".parse().unwrap(), None, None, None).unwrap();
        assert_eq!((range.start, range.end), (ip("fd00::1"), ip("fd00::ffff:ffff:ffff:ffff")));
    }

    #[test]
    fn what_cannot_be_is_said() {
        let new = |subnet: &str, start: &str, end: &str| {
            Range::new(subnet.parse().unwrap(), start.parse().ok(), end.parse().ok(), None).unwrap_err()
        };
        assert!(new("10.1.0.0/31", "", "").contains("too small"));
        assert!(new("10.1.0.1/24", "", "").contains("10.1.0.0/24"));
        assert!(new("10.1.0.0/24", "10.2.0.1", "").contains("not in the subnet"));
        assert!(new("10.1.0.0/24", "10.1.0.0", "").contains("network's or the broadcast"));
        assert!(new("10.1.0.0/24", "", "10.1.0.255").contains("network's or the broadcast"));
        assert!(new("10.1.0.0/24", "10.1.0.9", "10.1.0.8").contains("after"));
        let one = |subnet: &str| Range::new(subnet.parse().unwrap(), None, None, None).unwrap();
        assert!(check_sets(&[vec![one("10.1.0.0/24"), one("fd00::/64")]]).unwrap_err().contains("two sets"));
        assert!(check_sets(&[vec![one("10.1.0.0/24")], vec![one("10.1.0.0/16")]]).unwrap_err().contains("overlap"));
        assert!(check_sets(&[vec![]]).is_err());
        check_sets(&[vec![one("10.1.0.0/24"), one("10.1.1.0/24")], vec![one("fd00::/64")]]).unwrap();
    }
}
