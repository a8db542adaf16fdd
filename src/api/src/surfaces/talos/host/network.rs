//! Interfaces and Routes.

use std::net::IpAddr;

use gantry_engine::{HostInterface, HostRoute, list_interfaces, list_routes};
use gantry_proto::talos::network::{AddressFamily, Interface, Interfaces, Route, Routes};
use tonic::Status;

use crate::status::from_error;

/// Interfaces: those of gantryd's network namespace, which is the host's.
///
/// # Errors
/// The kernel's error.
pub(in super::super) fn interfaces() -> Result<Interfaces, Status> {
    let interfaces = list_interfaces().map_err(|error| from_error(&error))?;
    Ok(Interfaces { metadata: None, interfaces: interfaces.into_iter().map(interface).collect() })
}

fn interface(interface: HostInterface) -> Interface {
    Interface {
        index: interface.index,
        mtu: interface.mtu,
        name: interface.name,
        hardwareaddr: interface.mac.unwrap_or_default(),
        flags: go_flags(interface.flags),
        ipaddress: interface.addresses,
    }
}

/// The flags of an interface as Go's bit mask `net.Flags`. The field is an enumeration whose values are no bits; Talos
/// sends the mask nevertheless, and clients print it.
fn go_flags(flags: u32) -> i32 {
    // IFF_UP, IFF_BROADCAST, IFF_LOOPBACK, IFF_POINTOPOINT, IFF_MULTICAST.
    const FLAGS: [(u32, i32); 5] = [(0x1, 1), (0x2, 2), (0x8, 4), (0x10, 8), (0x1000, 16)];
    FLAGS.into_iter().filter(|(flag, _)| flags & flag != 0).fold(0, |all, (_, bit)| all | bit)
}

/// Routes: those of all tables.
///
/// # Errors
/// The kernel's error.
pub(in super::super) fn routes() -> Result<Routes, Status> {
    let routes = list_routes().map_err(|error| from_error(&error))?;
    Ok(Routes { metadata: None, routes: routes.into_iter().map(route).collect() })
}

fn route(route: HostRoute) -> Route {
    let is_ipv4 = route.is_ipv4;
    let family = if is_ipv4 { AddressFamily::AfInet } else { AddressFamily::AfInet6 };
    Route {
        interface: route.interface,
        destination: route.destination,
        gateway: network(route.gateway, is_ipv4),
        metric: route.metric,
        scope: route.scope.into(),
        source: network(route.source, is_ipv4),
        family: family.into(),
        protocol: route.protocol.into(),
        flags: route.flags,
    }
}

/// An address as a network of one address; everything if there is none.
fn network(address: Option<IpAddr>, is_ipv4: bool) -> String {
    match (address, is_ipv4) {
        (Some(address), true) => format!("{address}/32"),
        (Some(address), false) => format!("{address}/128"),
        (None, true) => "0.0.0.0/0".to_owned(),
        (None, false) => "::/0".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_address_is_a_network(address: IpAddr) {
            let network = network(Some(address), address.is_ipv4());
            let (text, prefix) = network.split_once('/').unwrap();
            prop_assert_eq!(text.parse(), Ok(address));
            prop_assert_eq!(prefix, if address.is_ipv4() { "32" } else { "128" });
        }
    }

    #[test]
    fn flags_are_those_of_go() {
        // Up, broadcast, running, multicast.
        assert_eq!(go_flags(0x1043), 19);
        assert_eq!(go_flags(0x49), 5);
    }

    #[test]
    fn addresses_are_kept() {
        assert_eq!(network(Some("fe80::1".parse().unwrap()), false), "fe80::1/128");
        assert_eq!(network(None, true), "0.0.0.0/0");
    }
}
