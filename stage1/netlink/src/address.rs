//! Addresses with a prefix length, and networks: `10.1.2.3/16` and `10.1.0.0/16`.
//!
//! Both are written alike but differ in meaning, so they are two types around [`ipnet::IpNet`] (RFC 4632 section 3.1;
//! RFC 4291 section 2.3):
//!
//! * [`Cidr`] is an address in its network and keeps the host bits: the address of an interface.
//! * [`Prefix`] is a network without host bits, so equal networks compare equal: the destination of a route.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A version of the Internet Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// Both.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// An address and its prefix length, as in `10.1.2.3/16`. Keeps the host bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cidr(IpNet);

/// A network, as in `10.1.0.0/16`. Its host bits are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix(IpNet);

/// A string that is not an address with a prefix length, or not a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadAddress {
    /// Not of the form ADDRESS/LENGTH.
    #[error("must be ADDRESS/LENGTH, such as 10.1.0.0/16")]
    Form,
    /// The prefix is longer than the address.
    #[error("the prefix length must be from 0 to {0}")]
    Length(u8),
    /// A network with host bits, whose meaning is ambiguous.
    #[error("is an address in the network {0}, and not a network")]
    HostBits(Prefix),
}

impl Cidr {
    /// An address with a prefix length.
    ///
    /// # Errors
    ///
    /// [`BadAddress::Length`] if the prefix is longer than the address.
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Result<Self, BadAddress> {
        let address = address.into();
        IpNet::new(address, length).map(Self).map_err(|_| BadAddress::Length(IpNet::from(address).max_prefix_len()))
    }

    /// A single address: /32 or /128.
    #[must_use]
    pub fn host(address: impl Into<IpAddr>) -> Self {
        Self(IpNet::from(address.into()))
    }

    /// The address with its host bits.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.addr()
    }

    /// The prefix length.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.address().is_ipv4()
    }

    /// The family of the address.
    #[must_use]
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.address())
    }

    /// The network of the address.
    #[must_use]
    pub fn network(&self) -> Prefix {
        Prefix(self.0.trunc())
    }

    /// The first address of the network: all host bits are 0.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.0.network()
    }

    /// The last address of the network: all host bits are 1 (IPv4: the broadcast address).
    #[must_use]
    pub fn last(&self) -> IpAddr {
        self.0.broadcast()
    }

    /// Whether the address is in the network. An address of the other family is not.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }
}

impl Prefix {
    /// The default route of IPv4: all addresses.
    pub const ALL_V4: Self = Self(IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::UNSPECIFIED, 0)));
    /// The default route of IPv6: all addresses.
    pub const ALL_V6: Self = Self(IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0)));

    /// The first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.0.network()
    }

    /// The last address.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        self.0.broadcast()
    }

    /// The prefix length.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.0.prefix_len()
    }

    /// Whether it is IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.first().is_ipv4()
    }

    /// The family of the addresses.
    #[must_use]
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.first())
    }

    /// Whether the address is in the network. An address of the other family is not.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address)
    }

    /// Whether the networks share an address.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.contains(&other.0) || other.0.contains(&self.0)
    }

    /// The network from `first` to `last`; None if the range is not a network.
    #[must_use]
    pub fn from_range(first: IpAddr, last: IpAddr) -> Option<Self> {
        let host_bits = 128 - (to_bits(first) ^ to_bits(last)).leading_zeros();
        let length = IpNet::from(first).max_prefix_len().checked_sub(u8::try_from(host_bits).ok()?)?;
        let prefix = Self(IpNet::new(first, length).ok()?);
        (prefix.first() == first && prefix.last() == last).then_some(prefix)
    }
}

/// The address as a number.
#[must_use]
pub fn to_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The number as an address. For IPv4 the upper bits are ignored.
#[must_use]
pub fn from_bits(bits: u128, family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => {
            let [.., a, b, c, d] = bits.to_be_bytes();
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        IpFamily::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
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
        if network.0 == cidr.0 { Ok(network) } else { Err(BadAddress::HostBits(network)) }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
    fn only_addresses_with_a_length_are_parsed() {
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
        fn a_network_contains_exactly_its_range(net in cidr()) {
            let family = net.family();
            prop_assert_eq!(net.to_string().parse(), Ok(net));
            prop_assert!(net.contains(net.first()) && net.contains(net.last()) && net.contains(net.address()));
            let top = if net.is_ipv4() { u128::from(u32::MAX) } else { u128::MAX };
            if to_bits(net.last()) < top {
                prop_assert!(!net.contains(from_bits(to_bits(net.last()) + 1, family)));
            }
            if to_bits(net.first()) > 0 {
                prop_assert!(!net.contains(from_bits(to_bits(net.first()) - 1, family)));
            }
        }

        #[test]
        fn prefixes_are_parsed_from_text_and_range(net in cidr(), other in cidr()) {
            let prefix = net.network();
            prop_assert_eq!(prefix.to_string().parse(), Ok(prefix));
            prop_assert_eq!(Prefix::from_range(prefix.first(), prefix.last()), Some(prefix));
            prop_assert!(prefix.overlaps(&prefix));
            if let Some(between) = Prefix::from_range(net.address(), other.address()) {
                prop_assert_eq!((between.first(), between.last()), (net.address(), other.address()));
            }
        }

        #[test]
        fn parser_never_panics(text in "\\PC{0,40}") {
            let _ = (text.parse::<Cidr>(), text.parse::<Prefix>());
        }
    }
}
