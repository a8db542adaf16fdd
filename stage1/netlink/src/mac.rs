//! Hardware addresses.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// The hardware address of an Ethernet interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// `0a:58` and the IPv4 address, as CNI's bridge plugin does: a pod that reuses an IP address has the same hardware
    /// address, so neighbours' ARP entries stay valid.
    #[must_use]
    pub fn from_ipv4(address: Ipv4Addr) -> Self {
        let [a, b, c, d] = address.octets();
        Self([0x0a, 0x58, a, b, c, d])
    }

    /// `0e` and 40 bits of a digest (FNV-1a) of an interface's identity. Locally administered, unicast, and disjoint
    /// from [`Self::from_ipv4`].
    #[must_use]
    pub fn from_id(id: &str) -> Self {
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

/// A string that is not a hardware address of six bytes.
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
        assert_eq!(Mac::from_ipv4(Ipv4Addr::new(10, 1, 0, 255)).to_string(), "0a:58:0a:01:00:ff");
        let one = Mac::from_id("pod-1/eth0");
        assert_eq!((one, one.0[0]), (Mac::from_id("pod-1/eth0"), 0x0e));
        assert_ne!(one, Mac::from_id("pod-2/eth0"));
    }

    #[test]
    fn invalid_macs_are_rejected() {
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

    proptest! {
        #[test]
        fn macs_round_trip(bytes in any::<[u8; 6]>()) {
            prop_assert_eq!(Mac(bytes).to_string().parse(), Ok(Mac(bytes)));
        }

        #[test]
        fn parser_never_panics(text in ".{0,24}") {
            let _ = text.parse::<Mac>();
        }
    }
}
