//! An address with the length of its prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An address and its prefix length, as in `10.1.2.3/16` (RFC 4632, section 3.1; RFC 4291, section 2.3). The address may
/// have bits beyond the prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    address: IpAddr,
    prefix: u8,
}

/// A text that is no address with a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not of the form ADDRESS/LENGTH.
    #[error("must be ADDRESS/LENGTH, such as 10.1.0.0/16")]
    Form,
    /// The length is more than the address has bits.
    #[error("the prefix length must be from 0 to {0}")]
    Length(u8),
}

impl Cidr {
    /// Puts the two together.
    ///
    /// # Errors
    ///
    /// When the prefix is longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, BadAddress> {
        let most = width(address);
        if prefix > most { Err(BadAddress::Length(most)) } else { Ok(Self { address, prefix }) }
    }

    /// The address as written, with the bits beyond the prefix.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many leading bits are the network's.
    #[must_use]
    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// The first address of the network: all bits beyond the prefix are 0.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        of_bits(to_bits(self.address) & !self.host_mask(), self.is_ipv4())
    }

    /// The last address of the network: all bits beyond the prefix are 1 (IPv4: broadcast).
    #[must_use]
    pub fn last(&self) -> IpAddr {
        of_bits(to_bits(self.address) | self.host_mask(), self.is_ipv4())
    }

    /// Whether the address is of this network. One of the other family never is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && (to_bits(address) ^ to_bits(self.address)) & !self.host_mask() == 0
    }

    fn host_mask(&self) -> u128 {
        let free = u32::from(width(self.address) - self.prefix);
        1u128.checked_shl(free).map_or(u128::MAX, |bit| bit - 1)
    }
}

/// How many bits an address of this family has.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address as a number.
pub(crate) fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The number as an address. What does not fit in IPv4 wraps; callers stay within a network.
pub(crate) fn of_bits(bits: u128, ipv4: bool) -> IpAddr {
    if ipv4 {
        let [.., a, b, c, d] = bits.to_be_bytes();
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    } else {
        IpAddr::V6(Ipv6Addr::from_bits(bits))
    }
}

impl FromStr for Cidr {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let (address, prefix) = text.split_once('/').ok_or(BadAddress::Form)?;
        let address: IpAddr = address.parse().map_err(|_| BadAddress::Form)?;
        if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(BadAddress::Form);
        }
        Self::new(address, prefix.parse().unwrap_or(u8::MAX))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        text.parse().map_err(|bad| de::Error::custom(format!("'{}' {bad}", gantry_model::id::shown(&text))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn forms() {
        for bad in ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "::/129", "::/1000", "10.0.0/8", "/8"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
        let net: Cidr = "10.1.2.3/16".parse().unwrap();
        assert_eq!(net.to_string(), "10.1.2.3/16");
        assert_eq!(net.first().to_string(), "10.1.0.0");
        assert_eq!(net.last().to_string(), "10.1.255.255");
        assert!(!net.contains("::1".parse().unwrap()));
        let all: Cidr = "::/0".parse().unwrap();
        assert_eq!(all.last().to_string(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    }

    proptest! {
        #[test]
        fn a_network_holds_its_ends_and_not_their_neighbours(bits: u128, prefix in 0u8..=128, four: bool) {
            let prefix = if four { prefix % 33 } else { prefix };
            let net = Cidr::new(of_bits(bits, four), prefix).unwrap();
            prop_assert_eq!(net.to_string().parse::<Cidr>().unwrap(), net);
            prop_assert!(net.contains(net.first()) && net.contains(net.last()) && net.contains(net.address()));
            let top = if four { u128::from(u32::MAX) } else { u128::MAX };
            if to_bits(net.last()) < top {
                prop_assert!(!net.contains(of_bits(to_bits(net.last()) + 1, four)));
            }
            if to_bits(net.first()) > 0 {
                prop_assert!(!net.contains(of_bits(to_bits(net.first()) - 1, four)));
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let _ = text.parse::<Cidr>();
        }
    }
}
