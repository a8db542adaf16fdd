//! The MTU of pods on networks whose configuration sets none.

use std::net::IpAddr;

use serde_json::json;

use super::lab::{Lab, attachment, dual, network, ranges};
use crate::config::NetworkConfig;
use crate::netlink::Cidr;
use crate::netlink::address::Address;
use crate::netlink::link::Change;
use crate::netlink::link::create::{Bridge, LinkKind, NewLink, Peer};
use crate::netlink::route::Route;
use crate::test_support::Net;

/// Adds an interface with this MTU, by which the default route of an address family leads.
fn uplink(lab: &mut Lab, name: &str, mtu: u32, v4: bool) -> u32 {
    let with = Change { mtu: Some(mtu), ..Change::default() };
    let peer = format!("{name}-peer");
    let kind = LinkKind::Veth(Peer { name: &peer, with });
    lab.host.socket.create_link(&NewLink { name, kind, with }).unwrap();
    lab.host.up(&peer);
    let index = lab.host.up(name);
    let (own, gateway) = if v4 { ("192.0.2.1/24", "192.0.2.2") } else { ("2001:db8::1/64", "2001:db8::2") };
    let address = Address { no_dad: !v4, ..Address::new(own.parse::<Cidr>().unwrap()) };
    lab.host.socket.add_address(index, &address).unwrap();
    lab.host.socket.add_route(&Route::default_by(gateway.parse::<IpAddr>().unwrap(), index)).unwrap();
    index
}

/// The MTU of the host end and of the pod's interface, of a new pod.
fn mtu_of_pod(lab: &mut Lab, network: &NetworkConfig, id: u32) -> (u32, u32) {
    let mut pod = Net::new();
    let at = attachment(&pod, id);
    let added = lab.add(network, &pod, &at);
    let host_end = added.result.interfaces.iter().find(|it| it.name.starts_with("gt")).unwrap().clone();
    let found = (lab.host.get(&host_end.name).mtu, pod.get("eth0").mtu);
    assert_eq!(host_end.mtu, Some(found.0));
    // The last port of the bridge goes.
    lab.del(network, &at, None);
    found
}

#[test]
fn pods_have_the_mtu_of_the_uplink() {
    for (uplink_mtu, expected) in [(1420, 1420), (9000, 1500), (1000, 1280)] {
        let mut lab = Lab::new();
        uplink(&mut lab, "wan", uplink_mtu, true);
        let bridge = dual("net", "br-net", 94);
        assert_eq!(mtu_of_pod(&mut lab, &bridge, 1), (expected, expected));
        assert_eq!(lab.host.get("br-net").mtu, expected, "an empty bridge keeps its MTU");
        assert_eq!(mtu_of_pod(&mut lab, &bridge, 2), (expected, expected));
        let ptp = network("ptp", json!([{"type": "ptp", "ipam": ranges(95)}]));
        assert_eq!(mtu_of_pod(&mut lab, &ptp, 3), (expected, expected));
    }
}

#[test]
fn a_configured_mtu_replaces_the_uplinks() {
    let mut lab = Lab::new();
    uplink(&mut lab, "wan", 1420, true);
    let configured = json!([{"type": "bridge", "bridge": "br-big", "mtu": 9000, "ipam": ranges(94)}]);
    assert_eq!(mtu_of_pod(&mut lab, &network("big", configured), 1), (9000, 9000));
    let configured = json!([{"type": "ptp", "mtu": 9000, "ipam": ranges(95)}]);
    assert_eq!(mtu_of_pod(&mut lab, &network("ptp", configured), 2), (9000, 9000));
}

#[test]
fn routes_decide_on_the_uplink() {
    let mut lab = Lab::new();
    let ptp = network("ptp", json!([{"type": "ptp", "ipam": ranges(95)}]));
    assert_eq!(mtu_of_pod(&mut lab, &ptp, 1), (1500, 1500));
    let six = uplink(&mut lab, "six", 1480, false);
    assert_eq!(mtu_of_pod(&mut lab, &ptp, 2), (1480, 1480), "there is only IPv6");
    uplink(&mut lab, "four", 1460, true);
    assert_eq!(mtu_of_pod(&mut lab, &ptp, 3), (1460, 1460));
    // Two halves that override the default route, as of a VPN, with an MTU of the route.
    let address = Address::new("203.0.113.1/24".parse().unwrap());
    lab.host.socket.add_address(six, &address).unwrap();
    let half = Route { device: Some(six), mtu: Some(1400), ..Route::to("128.0.0.0/1".parse().unwrap()) };
    lab.host.socket.add_route(&half).unwrap();
    assert_eq!(mtu_of_pod(&mut lab, &ptp, 4), (1400, 1400));
}

#[test]
fn pods_have_the_mtu_of_a_foreign_bridge() {
    let v4 = json!({"type": "host-local", "ranges": [[{"subnet": "10.94.0.0/16"}]]});
    for (bridge_mtu, ipam, expected) in
        [(1400, ranges(94), 1400), (9000, ranges(94), 1500), (1000, ranges(94), 1280), (1000, v4, 1000)]
    {
        let mut lab = Lab::new();
        let with = Change { up: Some(true), mtu: Some(bridge_mtu), ..Change::default() };
        let kind = LinkKind::Bridge(Bridge::default());
        lab.host.socket.create_link(&NewLink { name: "br-lan", kind, with }).unwrap();
        // The kernel keeps only an MTU that was set after the creation.
        let index = lab.host.get("br-lan").index;
        lab.host.socket.change_link(index, &Change { mtu: Some(bridge_mtu), ..Change::default() }).unwrap();
        let lan = network("lan", json!([{"type": "bridge", "bridge": "br-lan", "ipam": ipam}]));
        assert_eq!(mtu_of_pod(&mut lab, &lan, 1), (expected, expected));
    }
}
