//! The network interfaces and routes of the calling thread's network namespace, over netlink.

use std::collections::HashMap;
use std::net::IpAddr;

use gantry_netlink::rtnetlink::Socket;
use gantry_netlink::rtnetlink::route::RouteFilter;

pub use gantry_netlink::Error as NetlinkError;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostInterface {
    /// The index.
    pub index: u32,
    /// The name.
    pub name: String,
    /// The MTU in bytes.
    pub mtu: u32,
    /// The hardware address, unless it is 0.
    pub mac: Option<String>,
    /// `IFF_*` of netdevice(7).
    pub flags: u32,
    /// The addresses with their prefix lengths: `192.0.2.1/24`.
    pub addresses: Vec<String>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRoute {
    /// The name of the outgoing interface.
    pub interface: String,
    /// The destination: `192.0.2.0/24`; `0.0.0.0/0` and `::/0` are the default routes.
    pub destination: String,
    /// Whether it is a route of IPv4.
    pub is_ipv4: bool,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// The preferred source address.
    pub source: Option<IpAddr>,
    /// The metric: the lowest wins.
    pub metric: u32,
    /// The scope of the destination (`rtm_scope`).
    pub scope: u8,
    /// The origin (`rtm_protocol`).
    pub protocol: u8,
    /// `RTNH_F_*` and `RTM_F_*`.
    pub flags: u32,
}

/// The interfaces, by index.
///
/// # Errors
/// Errors of the kernel.
pub fn list_interfaces() -> Result<Vec<HostInterface>, NetlinkError> {
    let mut socket = Socket::open()?;
    let mut addresses: HashMap<u32, Vec<String>> = HashMap::new();
    for own in socket.addresses(None)? {
        addresses.entry(own.index).or_default().push(own.address.prefix.to_string());
    }
    let mut interfaces: Vec<HostInterface> = socket
        .links()?
        .into_iter()
        .map(|link| HostInterface {
            index: link.index,
            name: link.name,
            mtu: link.mtu,
            mac: link.mac.map(|mac| mac.to_string()).filter(|mac| mac != "00:00:00:00:00:00"),
            flags: link.flags,
            addresses: addresses.remove(&link.index).unwrap_or_default(),
        })
        .collect();
    interfaces.sort_by_key(|interface| interface.index);
    Ok(interfaces)
}

/// The routes of all tables and of both address families. One without an outgoing interface is left out.
///
/// # Errors
/// Errors of the kernel; more than 100 000 routes of a family.
pub fn list_routes() -> Result<Vec<HostRoute>, NetlinkError> {
    let mut socket = Socket::open()?;
    let names = names_by_index(&mut socket)?;
    let routes = socket.own_routes(&RouteFilter::default())?.into_iter().filter_map(|own| {
        Some(HostRoute {
            interface: names.get(&own.route.device?)?.clone(),
            destination: own.route.to.to_string(),
            is_ipv4: own.route.to.is_ipv4(),
            gateway: own.route.gateway,
            source: own.route.source,
            metric: own.route.priority.unwrap_or(0),
            scope: own.route.scope.map_or(0, gantry_netlink::rtnetlink::address::Scope::number),
            protocol: own.protocol,
            flags: own.flags,
        })
    });
    Ok(routes.collect())
}

/// The names of the interfaces by index.
pub(crate) fn names_by_index(socket: &mut Socket) -> Result<HashMap<u32, String>, NetlinkError> {
    Ok(socket.links()?.into_iter().map(|link| (link.index, link.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed() {
        let interfaces = list_interfaces().unwrap();
        let loopback = interfaces.iter().find(|interface| interface.name == "lo").unwrap();
        assert_eq!((loopback.index, loopback.mac.as_deref()), (1, None));
        assert!(list_routes().unwrap().iter().all(|route| route.destination.contains('/')));
    }
}
