//! The MTU of networks whose configuration sets none: that of the uplink, the interface by which the host reaches the
//! Internet, but no more than that of Ethernet.
//!
//! With a larger MTU than the uplink's (a VPN, a tunnel, a cloud's network), pods would announce a TCP segment size
//! that does not fit, and where ICMP is filtered, large packets would be lost. Frames larger than Ethernet's need a
//! configuration: not every network that the pods reach passes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::route::RouteKind;
use crate::netlink::{Result, Socket};

/// The MTU of Ethernet (`ETH_DATA_LEN`), which is the kernel's default for bridges and veth pairs.
const DEFAULT_MTU: u32 = 1500;
/// The smallest MTU of an interface with IPv6 (RFC 8200, section 5): with less, the kernel rejects IPv6 addresses.
const MIN_MTU: u32 = 1280;

/// Addresses for documentation (RFC 5737, RFC 3849). No program talks to them, so the route to them is the one to the
/// Internet, without a path MTU that the kernel has learned for one destination. The kernel only looks the route up: no
/// packet is sent.
const ANYWHERE: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1))];

/// The MTU of the route to the Internet by IPv4, or else by IPv6; [`DEFAULT_MTU`] if there is none.
pub(super) fn find_mtu(host: &mut Socket) -> Result<u32> {
    for address in ANYWHERE {
        let Some(route) = host.route_to(address)?.filter(|route| route.kind == RouteKind::Unicast) else { continue };
        let mtu = match (route.mtu, route.device) {
            (Some(mtu), _) => Some(mtu),
            (None, Some(device)) => host.link_by_index(device)?.map(|link| link.mtu),
            (None, None) => None,
        };
        if let Some(mtu) = mtu {
            return Ok(clamp_mtu(mtu));
        }
    }
    Ok(DEFAULT_MTU)
}

/// Limits an MTU to Ethernet's, and raises it to what IPv6 needs.
pub(super) fn clamp_mtu(mtu: u32) -> u32 {
    limit_mtu(mtu).max(MIN_MTU)
}

/// Limits an MTU to Ethernet's.
pub(super) fn limit_mtu(mtu: u32) -> u32 {
    mtu.min(DEFAULT_MTU)
}
