//! The other kinds of networks: ptp, macvlan, ipvlan, loopback, and static addresses.

use std::net::{IpAddr, SocketAddr};

use gantry_model::{ErrorKind, Kind};
use serde_json::{Value, json};

use super::lab::{Lab, Talk, address, attachment, capabilities, network, pod_id, ranges, talk};
use crate::native::host_interface;
use crate::netlink::Mac;
use crate::netlink::address::Address;
use crate::netlink::link::create::{LinkKind, MacvlanMode, NewLink, Peer};
use crate::netlink::link::{Change, Link};
use crate::netlink::route::Route;
use crate::nft::Access;
use crate::plugin::Attachment;
use crate::test_support::{Feature, Net, lacks};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn ptp_has_a_veth_pair_for_each_pod() {
    let mut lab = Lab::new();
    let network = network(
        "ptp",
        json!([{"type": "ptp", "ipMasq": true, "mtu": 1400, "ipam": ranges(81)}, {"type": "portmap", "capabilities": {"portMappings": true}}]),
    );
    let (mut one, two) = (Net::new(), Net::new());
    let ports = json!({"portMappings": [{"hostPort": 8081, "containerPort": 80}, {"hostPort": 8081, "containerPort": 80, "protocol": "udp"}]});
    let at = Attachment { capability_args: capabilities(ports), ..attachment(&one, 1) };
    let first = lab.add(&network, &one, &at);
    let second = lab.add(&network, &two, &attachment(&two, 2));
    lab.apply(&[&first, &second]);
    let name = host_interface(&pod_id(1), "eth0");
    let entry = &first.entries.interfaces[&name];
    assert_eq!((entry.addresses.len(), entry.access, first.entries.anti_spoofing.len()), (2, Access::Isolated, 0));
    assert_eq!((one.get("eth0").mtu, lab.host.get(&name).mtu), (1400, 1400));
    let names: Vec<&str> = first.result.interfaces.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(names, [name.as_str(), "eth0"]);
    assert!(first.result.ips.iter().all(|ip| ip.interface == Some(1)));
    for v4 in [true, false] {
        let (a, b) = (address(&first, v4), address(&second, v4));
        let gateway = ip(if v4 { "10.81.0.1" } else { "fd00:81::1" });
        assert_eq!(talk(&one, a, &lab.host).seen(), gateway);
        assert_eq!(talk(&lab.host, gateway, &one).seen(), a);
        // Pods reach each other through the host, without masquerading.
        assert_eq!(talk(&one, a, &two).seen(), b);
    }
    let listen = SocketAddr::new(address(&first, true), 80);
    Talk { server: &one, listen, client: &lab.host, dial: "127.0.0.1:8081".parse().unwrap() }.seen();
    let routes = one.ip(&["route"]);
    let to = |dst: &str| routes.as_array().unwrap().iter().find(|route| route["dst"] == dst).unwrap().clone();
    assert_eq!(
        (to("default")["gateway"].clone(), to("10.81.0.0/16")["gateway"].clone()),
        (json!("10.81.0.1"), json!("10.81.0.1"))
    );
    assert_eq!(
        (to("10.81.0.1")["scope"].clone(), to("10.81.0.1")["prefsrc"].clone()),
        (json!("link"), json!("10.81.0.2"))
    );
    lab.del(&network, &at, Some(&one));
    assert!(talk(&one, address(&first, true), &two).is_silent(), "the pod has ended, its namespace is kept");
    lab.del(&network, &at, None);
    assert_eq!(lab.host.socket.index(&name).unwrap(), None);
    assert_eq!(lab.leased(&network).len(), 2);
}

/// A host with a parent interface `up0`, whose veth peer is `net0` in another namespace.
fn lan() -> (Lab, Net) {
    let mut lab = Lab::new();
    let mut other = Net::new();
    let peer = Peer { name: "net0", with: Change { namespace: Some(other.fd()), ..Change::default() } };
    let new = NewLink { name: "up0", kind: LinkKind::Veth(peer), with: Change::default() };
    lab.host.socket.create_link(&new).unwrap();
    let up0 = lab.host.up("up0");
    let net0 = other.up("net0");
    lab.host.socket.add_address(up0, &Address::new("10.82.0.1/16".parse().unwrap())).unwrap();
    lab.host.socket.add_route(&Route::default_by(ip("10.82.0.9"), up0)).unwrap();
    for text in ["10.82.0.9/16", "fd00:82::9/64"] {
        other.socket.add_address(net0, &Address::new(text.parse().unwrap())).unwrap();
    }
    (lab, other)
}

fn has_macvlan(lab: &mut Lab) -> bool {
    let parent = lab.host.index("up0");
    let kind = LinkKind::Macvlan { parent, mode: MacvlanMode::Bridge };
    let made = lab.host.socket.create_link(&NewLink { name: "probe", kind, with: Change::default() });
    !lacks(Feature::Macvlan, &made) && lab.host.socket.delete_link_named("probe").unwrap()
}

#[test]
fn macvlan_joins_the_parents_network() {
    let (mut lab, other) = lan();
    if !has_macvlan(&mut lab) {
        return;
    }
    let of = |more: Value| {
        let mut plugin = json!({"type": "macvlan", "ipam": ranges(82)});
        plugin.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        network("mac", json!([plugin]))
    };
    // The parent is the interface of the default route.
    let default = of(json!({"mac": "02:00:00:00:00:82", "ipam": ranges(82)}));
    let (mut one, two) = (Net::new(), Net::new());
    let first = lab.add(&default, &one, &attachment(&one, 1));
    assert!(first.entries.is_empty());
    assert_eq!(one.get("eth0").mac, Some(Mac([2, 0, 0, 0, 0, 0x82])));
    let second = lab.add(&of(json!({"master": "up0", "mode": "bridge"})), &two, &attachment(&two, 2));
    assert_eq!(pod_mac(&second), Mac::from_ipv4([10, 82, 0, 3].into()).to_string());
    for v4 in [true, false] {
        assert_eq!(talk(&one, address(&first, v4), &two).seen(), address(&second, v4));
        let there = ip(if v4 { "10.82.0.9" } else { "fd00:82::9" });
        assert_eq!(talk(&other, there, &two).seen(), address(&second, v4));
    }
    lab.del(&default, &attachment(&one, 1), Some(&one));
    assert!(talk(&one, address(&first, true), &two).is_silent(), "the pod has ended, its namespace is kept");
    let three = Net::new();
    let error = lab.try_add(&of(json!({"master": "none0"})), &three, &attachment(&three, 3)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::NotFound, "the parent interface 'none0' (master) does not exist".into())
    );
    let error = lab.try_add(&of(json!({"master": "up0", "mtu": 9000})), &three, &attachment(&three, 4)).unwrap_err();
    assert!(error.to_string().contains("the MTU 9000 exceeds the MTU 1500 of up0"), "{error}");
}

fn pod_mac(added: &crate::native::Added) -> String {
    added.result.interfaces[0].mac.clone()
}

#[test]
fn ipvlan_joins_the_parents_network() {
    let (lab, other) = lan();
    let l2 = network("ipv", json!([{"type": "ipvlan", "master": "up0", "ipam": ranges(82)}]));
    let (one, two) = (Net::new(), Net::new());
    let made = lab.try_add(&l2, &one, &attachment(&one, 1));
    if lacks(Feature::Ipvlan, &made) {
        return;
    }
    let first = made.unwrap();
    let second = lab.add(&l2, &two, &attachment(&two, 2));
    assert_eq!(talk(&one, address(&first, true), &two).seen(), address(&second, true));
    assert_eq!(talk(&other, ip("10.82.0.9"), &two).seen(), address(&second, true));
    let three = Net::new();
    let asked = Attachment { args: vec![("MAC".into(), "02:00:00:00:00:01".into())], ..attachment(&three, 3) };
    let error = lab.try_add(&l2, &three, &asked).unwrap_err();
    assert!(error.to_string().contains("have that of the parent interface"), "{error}");
}

#[test]
fn the_parent_may_be_inside_the_pod() {
    let lab = Lab::new();
    let mut pod = Net::new();
    let new = NewLink {
        name: "in0",
        kind: LinkKind::Veth(Peer { name: "in1", with: Change::default() }),
        with: Change::default(),
    };
    pod.socket.create_link(&new).unwrap();
    let up: Vec<Link> = ["in0", "in1"]
        .into_iter()
        .map(|name| {
            pod.up(name);
            pod.get(name)
        })
        .collect();
    let inner =
        network("inner", json!([{"type": "macvlan", "master": "in0", "linkInContainer": true, "ipam": ranges(83)}]));
    let made = lab.try_add(&inner, &pod, &attachment(&pod, 1));
    if lacks(Feature::Macvlan, &made) {
        return;
    }
    made.unwrap();
    assert_eq!(pod.get("eth0").parent, Some(up[0].index));
}

#[test]
fn without_a_default_route_macvlan_needs_a_parent() {
    let lab = Lab::new();
    let pod = Net::new();
    let made =
        lab.try_add(&network("mac", json!([{"type": "macvlan", "ipam": ranges(84)}])), &pod, &attachment(&pod, 1));
    assert!(made.unwrap_err().to_string().contains("no default route"));
}

#[test]
fn loopback_is_set_up() {
    let lab = Lab::new();
    let mut pod = Net::new();
    let added = lab.add(&network("lo", json!([{"type": "loopback"}])), &pod, &attachment(&pod, 1));
    assert!(pod.get("lo").is_up() && added.entries.is_empty());
    let ips: Vec<String> = added.result.ips.iter().map(|ip| ip.address.to_string()).collect();
    assert_eq!(
        (ips, added.result.interfaces[0].name.as_str()),
        (vec!["127.0.0.1/8".to_owned(), "::1/128".to_owned()], "lo")
    );
}

#[test]
fn static_addresses_come_from_configuration_and_arguments() {
    let lab = Lab::new();
    let fixed = network(
        "fixed",
        json!([{"type": "bridge", "bridge": "br-fix", "isGateway": true, "capabilities": {"ips": true},
            "dns": {"nameservers": ["10.85.0.1"]},
            "ipam": {"type": "static", "addresses": [{"address": "10.85.0.5/24"}, {"address": "fd00:85::5/64", "gateway": "fd00:85::1"}],
                "routes": [{"dst": "10.99.0.0/16", "gw": "10.85.0.254", "mtu": 1300, "priority": 7}, {"dst": "0.0.0.0/0"}, {"dst": "198.51.100.0/24", "scope": 253}]}}]),
    );
    let pod = Net::new();
    let added = lab.add(&fixed, &pod, &attachment(&pod, 1));
    let said: Vec<_> = added.result.ips.iter().map(|ip| (ip.address.to_string(), ip.gateway.unwrap())).collect();
    assert_eq!(said, [("10.85.0.5/24".to_owned(), ip("10.85.0.1")), ("fd00:85::5/64".to_owned(), ip("fd00:85::1"))]);
    assert_eq!(added.result.dns.nameservers, ["10.85.0.1"]);
    let routes = pod.ip(&["route"]);
    let to = |dst: &str| routes.as_array().unwrap().iter().find(|route| route["dst"] == dst).unwrap().clone();
    assert_eq!(
        (to("10.99.0.0/16")["gateway"].clone(), to("10.99.0.0/16")["metric"].clone()),
        (json!("10.85.0.254"), json!(7))
    );
    assert_eq!(
        (to("default")["gateway"].clone(), to("198.51.100.0/24")["gateway"].clone()),
        (json!("10.85.0.1"), Value::Null)
    );
    assert_eq!(talk(&pod, ip("10.85.0.5"), &lab.host).seen(), ip("10.85.0.1"));
    let prefixes: Vec<String> = added.entries.networks["fixed"].prefixes.iter().map(ToString::to_string).collect();
    assert_eq!(prefixes, ["10.85.0.0/24", "fd00:85::/64"]);
    let two = Net::new();
    let asked = Attachment {
        args: vec![("IP".into(), "10.85.0.7/24".into()), ("GATEWAY".into(), "10.85.0.3".into())],
        capability_args: capabilities(json!({"ips": ["10.85.0.6/24"]})),
        ..attachment(&two, 2)
    };
    let forced = network(
        "fixed",
        json!([{"type": "bridge", "bridge": "br-fix", "capabilities": {"ips": true}, "ipam": {"type": "static"}}]),
    );
    let second = lab.add(&forced, &two, &asked);
    let said: Vec<_> = second.result.ips.iter().map(|ip| (ip.address.to_string(), ip.gateway)).collect();
    let gateway = Some(ip("10.85.0.3"));
    assert_eq!(said, [("10.85.0.6/24".to_owned(), gateway), ("10.85.0.7/24".to_owned(), gateway)]);
    // An `IP=` argument of gantry, which it passes as the capability too.
    let once = Net::new();
    let both = Attachment {
        args: vec![("IP".into(), "10.85.0.9/24".into())],
        capability_args: capabilities(json!({"ips": ["10.85.0.9/24"]})),
        ..attachment(&once, 4)
    };
    let said = lab.add(&forced, &once, &both).result.ips;
    assert_eq!(said.iter().map(|ip| ip.address.to_string()).collect::<Vec<_>>(), ["10.85.0.9/24"]);
    let three = Net::new();
    let bare = Attachment { args: vec![("IP".into(), "10.85.0.8".into())], ..attachment(&three, 3) };
    assert!(lab.try_add(&forced, &three, &bare).unwrap_err().to_string().contains("must be ADDRESS/LENGTH"));
    assert!(
        lab.try_add(&forced, &three, &attachment(&three, 3))
            .unwrap_err()
            .to_string()
            .contains("no address is configured")
    );
}
