//! Addresses with the length of their network, and networks: `10.1.2.3/16` and `10.1.0.0/16`.
//!
//! They are written alike and mean two things, so they are two types (RFC 4632, section 3.1; RFC 4291, section 2.3):
//!
//! * [`Cidr`] is an address in its network: it keeps the bits beyond the prefix. What an interface has.
//! * [`Prefix`] is a network: it has no such bits, and of two equal ones only one can be written. Where a route goes.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An address and how many of its bits say the network, as in `10.1.2.3/16`. The bits beyond are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

/// A network, as in `10.1.0.0/16`: the bits beyond the prefix are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(Cidr);

/// A text that is no address with a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not of the form ADDRESS/LENGTH.
    #[error("must be ADDRESS/LENGTH, such as 10.1.0.0/16")]
    Form,
    /// The length is more than the address has bits.
    #[error("the prefix length must be from 0 to {0}")]
    Length(u8),
    /// A network was wanted, and there are bits beyond its prefix: what they were meant to say cannot be known.
    #[error("is an address in the network {0}, and not a network")]
    HostBits(Prefix),
}

impl Cidr {
    /// Puts the two together.
    ///
    /// # Errors
    ///
    /// [`BadAddress::Length`] when the prefix is longer than the address.
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Result<Self, BadAddress> {
        let address = address.into();
        let most = width(address);
        if length > most { Err(BadAddress::Length(most)) } else { Ok(Self { address, length }) }
    }

    /// One address alone: /32 or /128.
    #[must_use]
    pub fn host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self { address, length: width(address) }
    }

    /// The address as written, with the bits beyond the prefix.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many leading bits are the network's.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// The network it is in: without the bits beyond the prefix.
    #[must_use]
    pub fn network(&self) -> Prefix {
        Prefix(Self {
            address: from_bits(to_bits(self.address) & !self.host_mask(), self.is_ipv4()),
            length: self.length,
        })
    }

    /// The first address of the network: all bits beyond the prefix are 0.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.network().first()
    }

    /// The last address of the network: all bits beyond the prefix are 1 (IPv4: broadcast).
    #[must_use]
    pub fn last(&self) -> IpAddr {
        from_bits(to_bits(self.address) | self.host_mask(), self.is_ipv4())
    }

    /// Whether the address is of this network. One of the other family never is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.is_ipv4() && (to_bits(address) ^ to_bits(self.address)) & !self.host_mask() == 0
    }

    fn host_mask(&self) -> u128 {
        let free = u32::from(width(self.address) - self.length);
        1u128.checked_shl(free).map_or(u128::MAX, |bit| bit - 1)
    }
}

impl Prefix {
    /// Everything of IPv4: where the default route goes.
    pub const ALL_V4: Self = Self(Cidr { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), length: 0 });
    /// Everything of IPv6.
    pub const ALL_V6: Self = Self(Cidr { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), length: 0 });

    /// Its first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.0.address
    }

    /// Its last address.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        self.0.last()
    }

    /// How many leading bits all its addresses share.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.0.length
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.0.is_ipv4()
    }

    /// Whether the address is in it. One of the other family never is.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(address)
    }

    /// Whether an address is in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.first()) || other.contains(self.first())
    }

    /// The prefix from `first` to `last`; None if that range is not one.
    #[must_use]
    pub fn from_range(first: IpAddr, last: IpAddr) -> Option<Self> {
        if first.is_ipv4() != last.is_ipv4() {
            return None;
        }
        let free = 128 - (to_bits(first) ^ to_bits(last)).leading_zeros();
        let length = width(first).checked_sub(u8::try_from(free).ok()?)?;
        let prefix = Cidr::new(first, length).ok()?.network();
        (prefix.first() == first && prefix.last() == last).then_some(prefix)
    }
}

/// How many bits an address of this family has.
fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The address as a number.
#[must_use]
pub fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The number as an address. What does not fit in IPv4 wraps; callers stay within a network.
#[must_use]
pub fn from_bits(bits: u128, ipv4: bool) -> IpAddr {
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
        let (address, length) = text.split_once('/').ok_or(BadAddress::Form)?;
        let address: IpAddr = address.parse().map_err(|_| BadAddress::Form)?;
        if length.is_empty() || length.len() > 3 || !length.bytes().all(|b| b.is_ascii_digit()) {
            return Err(BadAddress::Form);
        }
        Self::new(address, length.parse().unwrap_or(u8::MAX))
    }
}

impl FromStr for Prefix {
    type Err = BadAddress;

    fn from_str(text: &str) -> Result<Self, BadAddress> {
        let cidr: Cidr = text.parse()?;
        let network = cidr.network();
        if network.0 == cidr { Ok(network) } else { Err(BadAddress::HostBits(network)) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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

    fn cidr() -> impl Strategy<Value = Cidr> {
        let four = (any::<[u8; 4]>(), 0..=32u8).prop_map(|(address, length)| Cidr::new(address, length).unwrap());
        let six = (any::<[u8; 16]>(), 0..=128u8).prop_map(|(address, length)| Cidr::new(address, length).unwrap());
        prop_oneof![four, six]
    }

    #[test]
    fn forms() {
        for bad in ["", "10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.0/+8", "::/129", "::/1000", "10.0.0/8", "/8"] {
            assert!(bad.parse::<Cidr>().is_err() && bad.parse::<Prefix>().is_err(), "{bad}");
        }
        assert_eq!(Cidr::new([0; 4], 33), Err(BadAddress::Length(32)));
        assert_eq!(Cidr::host([10, 1, 2, 3]).to_string(), "10.1.2.3/32");
        let net: Cidr = "10.1.2.3/16".parse().unwrap();
        assert_eq!(net.to_string(), "10.1.2.3/16");
        assert_eq!(net.first().to_string(), "10.1.0.0");
        assert_eq!(net.last().to_string(), "10.1.255.255");
        assert!(!net.contains("::1".parse().unwrap()));
        let all: Cidr = "::/0".parse().unwrap();
        assert_eq!(all.last().to_string(), "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    }

    #[test]
    fn networks_have_no_host_bits() {
        for (text, want) in [
            ("10.1.2.3/16", "10.1.0.0/16"),
            ("10.1.2.3/0", "0.0.0.0/0"),
            ("::1/0", "::/0"),
            ("fd00::1/64", "fd00::/64"),
        ] {
            let network = text.parse::<Cidr>().unwrap().network();
            assert_eq!(network.to_string(), want);
            assert_eq!(text.parse::<Prefix>(), Err(BadAddress::HostBits(network)));
            assert_eq!(want.parse::<Prefix>(), Ok(network));
        }
        assert_eq!(("0.0.0.0/0".parse(), "::/0".parse()), (Ok(Prefix::ALL_V4), Ok(Prefix::ALL_V6)));
        let read = |text: &str| text.parse::<Prefix>().unwrap();
        assert!(read("0.0.0.0/0").overlaps(&read("10.0.0.0/8")) && !read("0.0.0.0/0").overlaps(&read("::/0")));
        assert!(!read("10.0.0.0/24").overlaps(&read("10.0.1.0/24")));
    }

    proptest! {
        #[test]
        fn a_network_holds_its_ends_and_not_their_neighbours(net in cidr()) {
            let four = net.is_ipv4();
            prop_assert_eq!(net.to_string().parse(), Ok(net));
            prop_assert!(net.contains(net.first()) && net.contains(net.last()) && net.contains(net.address()));
            let top = if four { u128::from(u32::MAX) } else { u128::MAX };
            if to_bits(net.last()) < top {
                prop_assert!(!net.contains(from_bits(to_bits(net.last()) + 1, four)));
            }
            if to_bits(net.first()) > 0 {
                prop_assert!(!net.contains(from_bits(to_bits(net.first()) - 1, four)));
            }
        }

        #[test]
        fn a_prefix_is_what_it_is_written_as_and_where_it_ends(net in cidr(), other in cidr()) {
            let prefix = net.network();
            prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
            prop_assert_eq!(Prefix::from_range(prefix.first(), prefix.last()), Some(prefix));
            prop_assert!(prefix.overlaps(&prefix));
            if let Some(between) = Prefix::from_range(net.address(), other.address()) {
                prop_assert_eq!((between.first(), between.last()), (net.address(), other.address()));
            }
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let _ = (text.parse::<Cidr>(), text.parse::<Prefix>());
        }
    }
}
