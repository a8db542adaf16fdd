//! Addresses, routes, rate limits and sysctls, as set and as read back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;

use crate::address::{Cidr, Prefix};
use crate::rtnetlink::address::{Address, Scope};
use crate::rtnetlink::link::Change;
use crate::rtnetlink::route::{Route, RouteFilter, RouteKind, TABLE_MAIN};
use crate::rtnetlink::traffic::TokenBucket;
use crate::sysctl::Sysctl;
use crate::test_support::Net;

fn v4(text: &str) -> IpAddr {
    text.parse::<Ipv4Addr>().unwrap().into()
}

fn v6(text: &str) -> IpAddr {
    text.parse::<Ipv6Addr>().unwrap().into()
}

#[test]
fn addresses_are_added_and_deleted() {
    let mut net = Net::new();
    let index = net.bridge("br0");
    let four = Address {
        broadcast: Some(Ipv4Addr::new(10, 1, 255, 255)),
        scope: Scope::Link,
        ..Address::new(Cidr::new(v4("10.1.0.1"), 16).unwrap())
    };
    let six = Address::new(Cidr::new(v6("fd00::1"), 64).unwrap());
    let cable =
        Address { peer: Some(v4("192.0.2.2")), no_prefix_route: true, ..Address::new(Cidr::host(v4("192.0.2.1"))) };
    for address in [four, six, cable] {
        net.socket.add_address(index, &address).unwrap();
        net.socket.add_address(index, &address).unwrap();
        let found = net.socket.addresses(Some(index)).unwrap();
        let own = found.iter().find(|own| own.address == address).unwrap_or_else(|| panic!("{address:?} in {found:?}"));
        assert!(!own.tentative && !own.duplicate, "{own:?}");
    }
    let seen = net.ip(&["addr", "show", "br0"])[0]["addr_info"].clone();
    assert_eq!((&seen[0]["local"], &seen[0]["prefixlen"]), (&"10.1.0.1".into(), &16.into()));
    assert_eq!((&seen[0]["broadcast"], &seen[0]["scope"]), (&"10.1.255.255".into(), &"link".into()));
    assert!(seen.as_array().unwrap().iter().any(|one| one["local"] == "fd00::1" && one["nodad"] == true), "{seen}");
    assert!(seen.as_array().unwrap().iter().any(|one| one["address"] == "192.0.2.2"), "{seen}");

    let error = net.socket.add_address(index, &Address { broadcast: None, ..four }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    for address in [four, six, cable] {
        assert!(net.socket.delete_address(index, &address).unwrap());
        assert!(!net.socket.delete_address(index, &address).unwrap());
    }
    assert!(!net.socket.delete_address(4711, &four).unwrap());
    assert_eq!(net.socket.addresses(Some(4711)).unwrap(), []);
    assert_eq!(net.socket.add_address(4711, &four).unwrap_err().kind(), ErrorKind::NotFound);
    for wrong in
        [Address { broadcast: Some(Ipv4Addr::BROADCAST), ..six }, Address { peer: Some(v4("10.0.0.1")), ..six }]
    {
        assert_eq!(net.socket.add_address(index, &wrong).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

fn routed() -> (Net, u32) {
    let mut net = Net::new();
    let index = net.bridge("br0");
    for prefix in [Cidr::new(v4("10.1.0.2"), 16).unwrap(), Cidr::new(v6("fd00::2"), 64).unwrap()] {
        net.socket.add_address(index, &Address::new(prefix)).unwrap();
    }
    (net, index)
}

#[test]
fn routes_are_added() {
    let (mut net, index) = routed();
    let far = Route { device: Some(index), ..Route::to(Cidr::new(v4("172.16.9.9"), 16).unwrap().network()) };
    let routes = [
        Route::default_by(v4("10.1.0.1"), index),
        Route::default_by(v6("fd00::1"), index),
        Route { source: Some(v4("10.1.0.2")), ..far },
        Route { mtu: Some(1300), advmss: Some(1200), table: Some(1000), priority: Some(7), ..far },
        Route { gateway: Some(v4("198.51.100.1")), on_link: true, priority: Some(9), ..far },
        Route {
            gateway: Some(v6("fd99::1")),
            on_link: true,
            mtu: Some(1290),
            device: Some(index),
            ..Route::to(Cidr::new(v6("fd01::"), 48).unwrap().network())
        },
        Route { kind: RouteKind::Blackhole, ..Route::to(Cidr::new(v4("203.0.113.0"), 24).unwrap().network()) },
        Route { kind: RouteKind::Unreachable, ..Route::to(Cidr::new(v6("fd02::"), 32).unwrap().network()) },
    ];
    for route in &routes {
        net.socket.add_route(route).unwrap();
        net.socket.add_route(route).unwrap_or_else(|error| panic!("{route:?} again: {error}"));
    }
    let seen = net.ip(&["route", "show", "table", "all"]);
    let has = |want: &dyn Fn(&serde_json::Value) -> bool| seen.as_array().unwrap().iter().any(want);
    assert!(has(&|one| one["dst"] == "default" && one["gateway"] == "10.1.0.1"), "{seen}");
    assert!(has(&|one| one["table"] == "1000" && one["metrics"][0]["mtu"] == 1300 && one["metric"] == 7), "{seen}");
    assert!(has(&|one| one["gateway"] == "198.51.100.1" && one["flags"][0] == "onlink"), "{seen}");
    assert!(has(&|one| one["type"] == "blackhole" && one["dst"] == "203.0.113.0/24"), "{seen}");

    let in_main = RouteFilter { v4: Some(true), device: Some(index), table: Some(TABLE_MAIN) };
    let found = net.socket.routes(&in_main).unwrap();
    assert!(found.iter().all(|route| route.table == Some(TABLE_MAIN) && route.device == Some(index)), "{found:?}");
    assert_eq!(found.len(), 4, "{found:?}");
}

#[test]
fn a_route_through_another_gateway_is_different() {
    let (mut net, index) = routed();
    for (one, two) in [("10.1.0.1", "10.1.0.9"), ("fd00::1", "fd00::9")] {
        let (one, two): (IpAddr, IpAddr) = (one.parse().unwrap(), two.parse().unwrap());
        net.socket.add_route(&Route::default_by(one, index)).unwrap();
        let error = net.socket.add_route(&Route::default_by(two, index)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    }
    let error =
        net.socket.add_route(&Route { priority: Some(5), ..Route::default_by(v4("192.0.2.1"), index) }).unwrap_err();
    assert_eq!((error.errno(), error.kind()), (Some(Errno::NETUNREACH), ErrorKind::Unavailable), "{error}");
    assert!(error.to_string().contains("Nexthop has invalid gateway"), "the kernel's words are missing: {error}");
    let mixed = Route { gateway: Some(v6("fd00::1")), ..Route::to(Prefix::ALL_V4) };
    assert_eq!(net.socket.add_route(&mixed).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(net.socket.routes(&RouteFilter { table: Some(4711), ..RouteFilter::default() }).unwrap(), []);
}

#[test]
fn rates_are_limited() {
    let (mut net, index) = routed();
    assert_eq!(net.socket.rate_limit(index).unwrap(), None);
    for rate in [125_000, 10_000_000_000] {
        let bucket = TokenBucket { rate, burst: 20_000, latency: Duration::from_millis(25) };
        net.socket.limit_rate(index, &bucket).unwrap();
        assert_eq!(net.socket.rate_limit(index).unwrap(), Some(rate));
    }
    let none = TokenBucket { rate: 0, burst: 1, latency: Duration::ZERO };
    assert_eq!(net.socket.limit_rate(index, &none).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn sysctls_belong_to_the_namespace() {
    let mut net = Net::new();
    let index = net.bridge("br.1");
    let other = Net::new();
    // A new namespace has the host's `ipv4.conf` (net.core.devconf_inherit_init_net), so forwarding may be on already.
    let forwarding = || other.namespace.enter(|| Sysctl::ForwardV4.get()).unwrap();
    let inherited = forwarding();
    let opposite = if inherited == "0" { "1" } else { "0" };
    let link = "br.1";
    let switches = [
        (Sysctl::ForwardV4, opposite),
        (Sysctl::ForwardV6, "1"),
        (Sysctl::RouteLocalnet(link), "1"),
        (Sysctl::ArpNotify(link), "1"),
        (Sysctl::NdiscNotify(link), "1"),
        (Sysctl::AcceptDad(link), "0"),
        (Sysctl::AcceptRa(link), "2"),
        (Sysctl::Other("ipv4/conf/all/rp_filter"), "2"),
    ];
    for (switch, value) in switches {
        net.namespace.enter(|| switch.set(value)).unwrap();
        assert_eq!(net.namespace.enter(|| switch.get()).unwrap(), value, "{switch}");
    }
    assert_eq!(forwarding(), inherited);
    let error = other.namespace.enter(|| Sysctl::RouteLocalnet(link).set("1")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = net.namespace.enter(|| Sysctl::DisableV6(link).set("x")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    net.namespace.enter(|| Sysctl::DisableV6(link).set("1")).unwrap();
    let error = net.socket.add_address(index, &Address::new(Cidr::new(v6("fd00::1"), 64).unwrap())).unwrap_err();
    assert!(error.to_string().contains("IPv6 is disabled on this device"), "{error}");
    net.socket.change_link(index, &Change { up: Some(false), ..Change::default() }).unwrap();
}
