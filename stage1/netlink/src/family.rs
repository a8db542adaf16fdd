//! IP addresses in rtnetlink(7): the family in the header, the bytes in an attribute.

use std::net::IpAddr;

use crate::message::Attribute;

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family(address: IpAddr) -> u8 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

/// `AF_INET`.
pub(crate) const AF_INET: u8 = 2;
/// `AF_INET6`.
pub(crate) const AF_INET6: u8 = 10;

/// The address as the payload of an attribute.
pub(crate) fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

/// The address in an attribute; None if the payload is not 4 or 16 bytes.
pub(crate) fn address(attribute: &Attribute<'_>) -> Option<IpAddr> {
    match attribute.payload.len() {
        4 => <[u8; 4]>::try_from(attribute.payload).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(attribute.payload).ok().map(IpAddr::from),
        _ => None,
    }
}
