//! An address prefix, as in `10.1.0.0/16` (RFC 4632) and `fd00:1::/64` (RFC 4291 section 2.3).

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use super::error::Error;

/// A prefix without host bits: of two equal ones only one can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The prefix of this length (in bits) that holds `address`: host bits are cleared. None if the address has fewer bits.
    #[must_use]
    pub fn of(address: IpAddr, length: u8) -> Option<Self> {
        let address = match address {
            IpAddr::V4(address) => {
                let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
                (length <= 32).then(|| IpAddr::V4((u32::from(address) & !host).into()))?
            }
            IpAddr::V6(address) => {
                let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
                (length <= 128).then(|| IpAddr::V6((u128::from(address) & !host).into()))?
            }
        };
        Some(Self { address, length })
    }

    /// Its first address.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        self.address
    }

    /// Its last address.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        let length = self.length.into();
        match self.address {
            IpAddr::V4(first) => IpAddr::V4((u32::from(first) | u32::MAX.checked_shr(length).unwrap_or(0)).into()),
            IpAddr::V6(first) => IpAddr::V6((u128::from(first) | u128::MAX.checked_shr(length).unwrap_or(0)).into()),
        }
    }

    /// Its length in bits.
    #[must_use]
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether it is one of IPv4.
    #[must_use]
    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Whether an address is in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.is_ipv4() == other.is_ipv4() && self.first() <= other.last() && other.first() <= self.last()
    }

    /// The prefix from `first` to `last`; None if that range is not one.
    pub(super) fn between(first: IpAddr, last: IpAddr) -> Option<Self> {
        let bits = match (first, last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => (u32::from(first) ^ u32::from(last)).leading_zeros(),
            (IpAddr::V6(first), IpAddr::V6(last)) => (u128::from(first) ^ u128::from(last)).leading_zeros(),
            _ => return None,
        };
        let prefix = Self::of(first, u8::try_from(bits).ok()?)?;
        (prefix.first() == first && prefix.last() == last).then_some(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = Error;

    /// Reads `ADDRESS/LENGTH`. Host bits are an error: what they were meant to say cannot be known.
    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (address, length) = text.split_once('/')?;
            let address = address.parse().ok()?;
            Self::of(address, length.parse().ok()?).filter(|prefix| prefix.address == address)
        };
        read().ok_or_else(|| Error::Invalid(format!("'{}' is not a prefix", text.escape_debug())))
    }
}
