//! Addresses with a length, and hardware addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::message::Attribute;

/// An address and how many of its bits say the network: `10.1.0.2/16`, `fd00::2/64`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// The address, with its host bits.
    pub address: IpAddr,
    /// The bits of the network: at most 32, or 128.
    pub length: u8,
}

impl Prefix {
    /// Everything of IPv4: where the default route goes.
    pub const ALL_V4: Self = Self { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), length: 0 };
    /// Everything of IPv6.
    pub const ALL_V6: Self = Self { address: IpAddr::V6(Ipv6Addr::UNSPECIFIED), length: 0 };

    /// An address and a length.
    #[must_use]
    pub fn new(address: impl Into<IpAddr>, length: u8) -> Self {
        Self { address: address.into(), length }
    }

    /// One address alone: /32 or /128.
    #[must_use]
    pub fn host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self { address, length: bits(address) }
    }

    /// Whether the length is possible.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.length <= bits(self.address)
    }

    /// With the host's bits at zero: what a route goes to.
    #[must_use]
    pub fn network(&self) -> Self {
        let length = u32::from(self.length);
        let address = match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(32u32.saturating_sub(length)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(128u32.saturating_sub(length)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
        };
        Self { address, length: self.length }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// `AF_INET`.
pub(crate) const AF_INET: u8 = 2;
/// `AF_INET6`.
pub(crate) const AF_INET6: u8 = 10;

/// The bytes an attribute holds an address as.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The address an attribute holds.
pub(crate) fn address(attribute: &Attribute<'_>) -> Option<IpAddr> {
    match attribute.payload.len() {
        4 => <[u8; 4]>::try_from(attribute.payload).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(attribute.payload).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The hardware address of an Ethernet interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `0a:58` and the address, as CNI's bridge plugin does it: a pod that comes back with the address of an earlier one
    /// has its hardware address too, and no neighbour's table is wrong.
    #[must_use]
    pub fn of_ipv4(address: Ipv4Addr) -> Self {
        let [a, b, c, d] = address.octets();
        Self([0x0a, 0x58, a, b, c, d])
    }

    /// `0e` and 40 bits of a digest (FNV-1a) of what identifies an interface. Locally administered, for one station, and
    /// never one of [`Self::of_ipv4`].
    #[must_use]
    pub fn of_id(id: &str) -> Self {
        let digest = id
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let [a, b, c, d, e, f, g, h] = digest.to_be_bytes();
        Self([0x0e, a ^ f, b ^ g, c ^ h, d, e])
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text that is no hardware address of six bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a hardware address is six pairs of hexadecimal digits with colons between")]
pub struct NotMac;

impl FromStr for Mac {
    type Err = NotMac;

    fn from_str(text: &str) -> Result<Self, NotMac> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or(NotMac)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(NotMac);
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| NotMac)?;
        }
        if parts.next().is_none() { Ok(Self(bytes)) } else { Err(NotMac) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn macs_follow_cni() {
        assert_eq!(Mac::of_ipv4(Ipv4Addr::new(10, 1, 0, 255)).to_string(), "0a:58:0a:01:00:ff");
        let one = Mac::of_id("pod-1/eth0");
        assert_eq!((one, one.0[0]), (Mac::of_id("pod-1/eth0"), 0x0e));
        assert_ne!(one, Mac::of_id("pod-2/eth0"));
    }

    #[test]
    fn only_macs_are_macs() {
        for text in [
            "",
            "0a:58:0a:01:00",
            "0a:58:0a:01:00:ff:00",
            "0a:58:0a:01:00:+f",
            "0a:58:0a:01:00:fff",
            "0a-58-0a-01-00-ff",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(NotMac), "{text}");
        }
    }

    #[test]
    fn networks_have_no_host_bits() {
        let cases = [
            (Prefix::new([10, 1, 2, 3], 16), "10.1.0.0/16"),
            (Prefix::new([10, 1, 2, 3], 0), "0.0.0.0/0"),
            (Prefix::host([10, 1, 2, 3]), "10.1.2.3/32"),
            (Prefix::new(Ipv6Addr::LOCALHOST, 0), "::/0"),
            (Prefix::new(Ipv6Addr::LOCALHOST, 128), "::1/128"),
        ];
        for (prefix, want) in cases {
            assert_eq!(prefix.network().to_string(), want);
        }
        assert!(!Prefix::new([0; 4], 33).is_valid() && Prefix::new([0; 16], 128).is_valid());
    }

    proptest! {
        #[test]
        fn a_mac_is_what_it_shows(bytes in any::<[u8; 6]>()) {
            prop_assert_eq!(Mac(bytes).to_string().parse(), Ok(Mac(bytes)));
        }

        #[test]
        fn any_text_is_judged(text in ".{0,24}") {
            let _ = text.parse::<Mac>();
        }
    }
}
