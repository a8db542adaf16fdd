//! Router advertisements (RFC 4861): pods ignore them, and the host keeps accepting them.

use std::net::{Ipv6Addr, SocketAddrV6};

use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket, sockopt};

use super::lab::{Lab, attachment, dual, within};
use crate::native::sysctl;
use crate::netlink::address::Address;
use crate::netlink::link::Change;
use crate::netlink::link::create::{LinkKind, NewLink, Peer};
use crate::netlink::route::Route;
use crate::test_support::{Net, until};

/// A router advertisement with a lifetime of 1800 s. The kernel adds the checksum.
const ADVERTISEMENT: [u8; 16] = [134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];

/// Sends an advertisement to all nodes of the interface's network.
fn advertise(net: &Net, index: u32) {
    within(net, || {
        let raw = socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::ICMPV6)).unwrap();
        sockopt::set_ipv6_multicast_hops(&raw, 255).unwrap();
        let all = SocketAddrV6::new(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1), 0, 0, index);
        // Fails until the interface has a link-local address.
        let _ = sendto(&raw, &ADVERTISEMENT, SendFlags::empty(), &all);
    });
}

fn has_default(net: &mut Net, index: u32) -> bool {
    let filter = crate::netlink::route::RouteFilter { v4: Some(false), device: Some(index), table: None };
    net.socket.routes(&filter).unwrap().iter().any(|route| route.to == crate::netlink::Prefix::ALL_V6)
}

#[test]
fn pods_ignore_router_advertisements() {
    let mut lab = Lab::new();
    let network = crate::config::NetworkConfig::parse(
        &dual("net", "br-net", 97).text.replace("\"::/0\"", "\"2001:db8::/64\""),
        crate::config::Source::BuiltIn,
    )
    .unwrap();
    let mut pod = Net::new();
    lab.add(&network, &pod, &attachment(&pod, 1));
    // A bridge port that accepts advertisements, to see that they arrive.
    let bridge = lab.host.index("br-net");
    let mut listener = Net::new();
    lab.host.plug("probe", bridge, &mut listener);
    let (theirs, own) = (listener.index("eth0"), pod.index("eth0"));
    until("the accepting port has a default route", || {
        advertise(&lab.host, bridge);
        has_default(&mut listener, theirs)
    });
    assert!(!has_default(&mut pod, own));
    // Advertisements of a pod do not reach the host.
    let heard = advertisements(&listener);
    until("the pod's advertisement reaches the others", || {
        advertise(&pod, own);
        advertisements(&listener) > heard
    });
    assert!(!has_default(&mut lab.host, bridge));
}

/// The number of advertisements that a namespace has received.
fn advertisements(net: &Net) -> u64 {
    let counters = within(net, || std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap());
    let line = counters.lines().find(|line| line.starts_with("Icmp6InRouterAdvertisements")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A host that starts forwarding keeps the default route from its routers.
#[test]
fn the_host_keeps_accepting_router_advertisements() {
    let mut lab = Lab::new();
    let router = Net::new();
    let peer = Peer { name: "lan0", with: Change { namespace: Some(router.fd()), ..Change::default() } };
    let new = NewLink { name: "up0", kind: LinkKind::Veth(peer), with: Change::default() };
    lab.host.socket.create_link(&new).unwrap();
    let up0 = lab.host.up("up0");
    lab.host.socket.add_address(up0, &Address::new("2001:db8::2/64".parse().unwrap())).unwrap();
    lab.host.socket.add_route(&Route::default_by("2001:db8::1".parse().unwrap(), up0)).unwrap();
    assert_eq!(
        (lab.sysctl("ipv6/conf/up0/accept_ra"), lab.sysctl("ipv6/conf/all/forwarding")),
        ("1".into(), "0".into())
    );
    let pod = Net::new();
    lab.add(&dual("net", "br-net", 98), &pod, &attachment(&pod, 1));
    assert_eq!(lab.sysctl("ipv6/conf/br-net/accept_ra"), "0");
    let Lab { host, .. } = &mut lab;
    host.namespace.enter(|| sysctl::keep_accepting_advertisements(&mut host.socket)).unwrap();
    assert_eq!(lab.sysctl("ipv6/conf/up0/accept_ra"), "2");
}
