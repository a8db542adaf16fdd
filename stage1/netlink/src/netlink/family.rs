//! IP addresses as rtnetlink(7) writes them: the family in one place, the bytes in another.

use std::net::IpAddr;

use super::message::Attribute;

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
