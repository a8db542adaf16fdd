//! Pods on a bridge: reachability, addresses, and the owner of the bridge.

use std::net::{IpAddr, SocketAddr};

use gantry_model::{ErrorKind, Kind};
use serde_json::json;

use super::lab::{Lab, OWNER, Talk, address, attachment, capabilities, carries, dual, network, pod_id, ranges, talk};
use crate::config::{NetworkConfig, Source, builtin};
use crate::ipam::IpamError;
use crate::native::{NativeError, host_interface};
use crate::netlink::Mac;
use crate::netlink::link::Change;
use crate::netlink::link::create::{Bridge, LinkKind, NewLink, Peer};
use crate::nft::Access;
use crate::plugin::Attachment;
use crate::test_support::Net;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn pods_reach_each_other_and_the_host() {
    let mut lab = Lab::new();
    let network = dual("net", "br-net", 61);
    let (mut one, two) = (Net::new(), Net::new());
    let first = lab.add(&network, &one, &attachment(&one, 1));
    let second = lab.add(&network, &two, &attachment(&two, 2));
    lab.apply(&[&first, &second]);
    for v4 in [true, false] {
        let (a, b) = (address(&first, v4), address(&second, v4));
        assert_eq!(talk(&one, a, &two).seen(), b);
        assert_eq!(talk(&two, b, &one).seen(), a);
        let gateway = ip(if v4 { "10.61.0.1" } else { "fd00:61::1" });
        assert_eq!(talk(&lab.host, gateway, &two).seen(), b);
        assert_eq!(talk(&one, a, &lab.host).seen(), gateway);
    }
    // The interfaces are as configured and as in the result.
    let name = host_interface(&pod_id(1), "eth0");
    let cable = lab.host.get(&name);
    assert_eq!(cable.alias, Some(format!("{}/eth0", pod_id(1))));
    assert_eq!(cable.port.unwrap().hairpin, Some(true));
    assert!(lab.host.socket.addresses(Some(cable.index)).unwrap().is_empty(), "a port has no address of the link");
    let inside = one.get("eth0");
    assert_eq!(inside.mac, Some(Mac::from_ipv4([10, 61, 0, 2].into())));
    let said: Vec<_> = first.result.interfaces.iter().map(|it| (it.name.as_str(), it.mac.clone(), it.mtu)).collect();
    let bridge = lab.host.get("br-net");
    let of = |mac: Option<Mac>| mac.unwrap().to_string();
    assert_eq!(
        said,
        [
            ("br-net", of(bridge.mac), Some(1500)),
            (name.as_str(), of(cable.mac), Some(1500)),
            ("eth0", of(inside.mac), Some(1500))
        ]
    );
    assert_eq!(bridge.alias.as_deref(), Some(OWNER));
    let guard = &first.entries.anti_spoofing[&name];
    assert_eq!((guard.mac, guard.addresses.len()), (inside.mac.unwrap(), 2));
}

#[test]
fn the_first_network_sets_the_default_route() {
    let lab = Lab::new();
    let pod = Net::new();
    let at = attachment(&pod, 1);
    lab.add(&dual("one", "br-one", 74), &pod, &at);
    let second = Attachment { interface: "eth1".to_owned(), ..at };
    let added = lab.add(&dual("two", "br-two", 75), &pod, &second);
    assert_eq!(talk(&pod, address(&added, true), &lab.host).seen(), ip("10.75.0.1"));
    for (family, gateway) in [("-4", "10.74.0.1"), ("-6", "fd00:74::1")] {
        let routes = pod.ip(&[family, "route", "show", "default"]);
        assert_eq!((routes[0]["gateway"].as_str(), routes.as_array().unwrap().len()), (Some(gateway), 1));
    }
}

/// With a third network behind the host, which has no route to the pods.
#[test]
fn the_default_network_reaches_out_and_publishes_ports() {
    let mut lab = Lab::new();
    let network = NetworkConfig::parse(builtin::ALL[0].1, Source::BuiltIn).unwrap();
    let mut outside = Net::new();
    let peer = Peer { name: "up0", with: Change { namespace: Some(outside.fd()), ..Change::default() } };
    let new = NewLink { name: "wan", kind: LinkKind::Veth(peer), with: Change::default() };
    lab.host.socket.create_link(&new).unwrap();
    for (net, name, addresses) in [
        (&mut lab.host, "wan", ["192.0.2.1/24", "2001:db8::1/64"]),
        (&mut outside, "up0", ["192.0.2.2/24", "2001:db8::2/64"]),
    ] {
        let index = net.up(name);
        for text in addresses {
            net.socket.add_address(index, &crate::netlink::address::Address::new(text.parse().unwrap())).unwrap();
        }
    }
    let pod = Net::new();
    let ports = json!({"portMappings": [
        {"hostPort": 8080, "containerPort": 80},
        {"hostPort": 8080, "containerPort": 80, "protocol": "UDP", "hostIP": ""},
        {"hostPort": 9090, "containerPort": 80, "hostIP": "192.0.2.1"},
    ]});
    let at = Attachment { capability_args: capabilities(ports), ..attachment(&pod, 1) };
    let added = lab.add(&network, &pod, &at);
    lab.apply(&[&added]);
    assert_eq!(added.entries.ports.len(), 5);
    assert!(added.entries.ports.values().all(|forward| forward.owner == pod_id(1)));
    assert_eq!(added.entries.interfaces["gantry0"].access, Access::Isolated);
    for (v4, host, out) in [(true, "192.0.2.1", "192.0.2.2"), (false, "2001:db8::1", "2001:db8::2")] {
        // Outgoing traffic is masqueraded.
        assert_eq!(talk(&outside, ip(out), &pod).seen(), ip(host));
        // A published port is reachable.
        let listen = SocketAddr::new(address(&added, v4), 80);
        let dial = SocketAddr::new(ip(host), 8080);
        assert_eq!(Talk { server: &pod, listen, client: &outside, dial }.seen(), ip(out));
        // The pod reaches its own published port.
        Talk { server: &pod, listen, client: &pod, dial }.seen();
    }
    let listen = SocketAddr::new(address(&added, true), 80);
    Talk { server: &pod, listen, client: &lab.host, dial: "127.0.0.1:8080".parse().unwrap() }.seen();
}

#[test]
fn the_restricted_network_reaches_only_the_host() {
    let mut lab = Lab::new();
    let restricted = NetworkConfig::parse(builtin::ALL[1].1, Source::BuiltIn).unwrap();
    let (mut one, two) = (Net::new(), Net::new());
    let first = lab.add(&restricted, &one, &attachment(&one, 1));
    let other = lab.add(&dual("net", "br-net", 62), &two, &attachment(&two, 2));
    assert_eq!(first.entries.interfaces["gantry1"].access, Access::Restricted);
    lab.apply(&[&first, &other]);
    carries(&mut lab.host, &first);
    assert_eq!(talk(&lab.host, ip("10.122.0.1"), &one).seen(), address(&first, true));
    // Not even with a route.
    let index = one.index("eth0");
    one.socket.add_route(&crate::netlink::route::Route::default_by(ip("10.122.0.1"), index)).unwrap();
    assert!(talk(&two, address(&other, true), &one).is_silent());
    // The name alone does not restrict, and `open` opens a network.
    let mut open = dual("net3", "br-net3", 63);
    assert_eq!(
        lab.add(&open, &Net::new(), &attachment(&one, 3)).entries.interfaces["br-net3"].access,
        Access::Isolated
    );
    open = network(
        "open",
        json!([{"type": "bridge", "bridge": "br-open", "isGateway": true, "ipam": ranges(64)}, {"type": "firewall"}]),
    );
    assert_eq!(lab.add(&open, &Net::new(), &attachment(&one, 4)).entries.interfaces["br-open"].access, Access::Open);
}

#[test]
fn addresses_are_requested_exhausted_and_released() {
    let mut lab = Lab::new();
    let small = network(
        "small",
        json!([{"type": "bridge", "bridge": "br-small", "isDefaultGateway": true, "capabilities": {"ips": true, "mac": true},
            "ipam": {"type": "host-local", "subnet": "10.65.0.0/29"}}]),
    );
    let pods: Vec<Net> = (0..6).map(|_| Net::new()).collect();
    let mut asked = attachment(&pods[0], 0);
    asked.args = vec![("IP".into(), "10.65.0.5".into())];
    let added = lab.add(&small, &pods[0], &asked);
    assert_eq!(address(&added, true), ip("10.65.0.5"));
    // isDefaultGateway adds the default route.
    assert_eq!(added.result.routes.len(), 1);
    assert_eq!(pods[0].ip(&["route", "show", "default"])[0]["gateway"], "10.65.0.1");
    let same = Attachment { args: asked.args.clone(), ..attachment(&pods[1], 1) };
    let taken = lab.try_add(&small, &pods[1], &same).unwrap_err();
    assert!(matches!(&taken, NativeError::Address(IpamError::Taken { .. })), "{taken}");
    let more = json!({"ips": ["10.65.0.6/29"], "mac": "02:00:00:00:00:07"});
    let by_capability = Attachment { capability_args: capabilities(more), ..attachment(&pods[1], 1) };
    let second = lab.add(&small, &pods[1], &by_capability);
    assert_eq!(
        (address(&second, true), second.result.interfaces[2].mac.as_str()),
        (ip("10.65.0.6"), "02:00:00:00:00:07")
    );
    for (number, pod) in (2..5).zip(&pods[2..]) {
        lab.add(&small, pod, &attachment(pod, number));
    }
    let full = lab.try_add(&small, &pods[5], &attachment(&pods[5], 5)).unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Exhausted, "{full}");
    lab.del(&small, &attachment(&pods[5], 5), Some(&pods[5]));
    assert_eq!(lab.leased(&small).len(), 5);
    for _ in 0..2 {
        lab.del(&small, &asked, Some(&pods[0]));
        assert_eq!(lab.leased(&small).len(), 4);
    }
    let back = lab.add(&small, &pods[5], &attachment(&pods[5], 5));
    assert_eq!(address(&back, true), ip("10.65.0.5"));
}

#[test]
fn bridges_of_other_data_directories_are_not_used() {
    let lab = Lab::new();
    let network = dual("net", "br-net", 66);
    let (one, two) = (Net::new(), Net::new());
    lab.add(&network, &one, &attachment(&one, 1));
    let other = lab.try_add_as(&network, &two, &attachment(&two, 2), "/srv/other/net").unwrap_err();
    assert_eq!(
        (other.kind(), other.to_string()),
        (
            ErrorKind::Refused,
            format!(
                "the bridge 'br-net' belongs to the gantry with the state directory '{OWNER}': configure another bridge for \
                 the network, or, if that gantry is gone, remove the bridge with 'ip link delete br-net'"
            )
        )
    );
}

#[test]
fn an_administrators_bridge_is_used_unchanged() {
    let mut lab = Lab::new();
    let bridge = lab.host.bridge("br-net");
    lab.host.socket.change_link(bridge, &Change { alias: Some("the lab's"), ..Change::default() }).unwrap();
    let mut station = Net::new();
    lab.host.plug("probe", bridge, &mut station);
    let before = lab.host.get("br-net");
    let listens = lab.sysctl("ipv6/conf/br-net/accept_ra");
    let network = dual("net", "br-net", 67);
    let (one, two) = (Net::new(), Net::new());
    let first = lab.add(&network, &one, &attachment(&one, 1));
    let after = lab.host.get("br-net");
    assert_eq!((after.alias, after.mac), (Some("the lab's".to_owned()), before.mac));
    assert_eq!(lab.sysctl("ipv6/conf/br-net/accept_ra"), listens);
    assert_eq!(talk(&one, address(&first, true), &lab.host).seen(), ip("10.67.0.1"));
    // An interface of another kind is not used.
    let plain = NewLink { name: "dum0", kind: LinkKind::Bridge(Bridge::default()), with: Change::default() };
    let kind = LinkKind::Veth(Peer { name: "dum1", with: Change::default() });
    lab.host.socket.create_link(&NewLink { kind, ..plain }).unwrap();
    let error = lab.try_add(&dual("net2", "dum0", 68), &two, &attachment(&two, 2)).unwrap_err();
    assert!(error.to_string().starts_with("the interface 'dum0' is not a bridge but veth"), "{error}");
}

#[test]
fn force_address_replaces_the_address_of_a_bridge() {
    let mut lab = Lab::new();
    let bridge = lab.host.bridge("br-net");
    let has = crate::netlink::address::Address::new("10.99.0.1/24".parse().unwrap());
    lab.host.socket.add_address(bridge, &has).unwrap();
    let of = |force: bool| {
        let ipam = json!({"type": "host-local", "subnet": "10.69.0.0/24"});
        network(
            "net",
            json!([{"type": "bridge", "bridge": "br-net", "isGateway": true, "forceAddress": force, "ipam": ipam}]),
        )
    };
    let pod = Net::new();
    let at = attachment(&pod, 1);
    let error = lab.try_add(&of(false), &pod, &at).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("has the address 10.99.0.1/24 and needs 10.69.0.1/24"), "{error}");
    lab.del(&of(false), &at, Some(&pod));
    lab.add(&of(true), &pod, &at);
    let own = lab.host.socket.addresses(Some(bridge)).unwrap();
    let four: Vec<String> =
        own.iter().map(|own| own.address.prefix).filter(|own| own.is_ipv4()).map(|own| own.to_string()).collect();
    assert_eq!(four, ["10.69.0.1/24"]);
}

/// The creator was killed before the bridge was up, or before it had its alias.
#[test]
fn an_incomplete_bridge_is_completed() {
    let mut lab = Lab::new();
    let mac = Some(Mac::from_id(&format!("{OWNER} br-net")));
    let with = Change { mac, ..Change::default() };
    lab.host.socket.create_link(&NewLink { name: "br-net", kind: LinkKind::Bridge(Bridge::default()), with }).unwrap();
    let pod = Net::new();
    lab.add(&dual("net", "br-net", 70), &pod, &attachment(&pod, 1));
    let bridge = lab.host.get("br-net");
    assert_eq!((bridge.alias.as_deref(), bridge.is_up()), (Some(OWNER), true));
    assert_eq!(lab.sysctl("ipv6/conf/br-net/accept_ra"), "0");
}

#[test]
fn isolated_bridge_ports_reach_only_the_gateway() {
    let mut lab = Lab::new();
    let of = |more: serde_json::Value| {
        let bridge = json!({"type": "bridge", "bridge": "br-net", "isGateway": true, "portIsolation": true, "promiscMode": true, "ipam": ranges(71)});
        network("net", json!([bridge, more]))
    };
    let network = of(json!({"type": "firewall", "ingressPolicy": "isolated"}));
    let (one, two) = (Net::new(), Net::new());
    let first = lab.add(&network, &one, &attachment(&one, 1));
    let second = lab.add(&network, &two, &attachment(&two, 2));
    carries(&mut lab.host, &second);
    assert_eq!(talk(&one, address(&first, true), &lab.host).seen(), ip("10.71.0.1"));
    assert!(talk(&one, address(&first, true), &two).is_silent());
    assert!(lab.host.get("br-net").is_promiscuous());
}

#[test]
fn kept_namespaces_of_ended_pods_are_disconnected() {
    let mut lab = Lab::new();
    let plugin = json!({"type": "bridge", "bridge": "br-kept", "isGateway": true,
        "ipam": {"type": "host-local", "subnet": "10.66.0.0/29"}});
    let kept = network("kept", json!([plugin]));
    let asked = |net: &Net, number| {
        let args = vec![("IP".into(), "10.66.0.5".into())];
        Attachment { args, ..attachment(net, number) }
    };
    let (mut old, new, again) = (Net::new(), Net::new(), Net::new());
    let to = ip("10.66.0.5");
    lab.add(&kept, &old, &asked(&old, 1));
    assert_eq!(talk(&old, to, &lab.host).seen(), ip("10.66.0.1"));
    lab.del(&kept, &asked(&old, 1), Some(&old));
    assert!(talk(&old, to, &lab.host).is_silent());
    lab.add(&kept, &new, &asked(&new, 2));
    assert_eq!(talk(&new, to, &lab.host).seen(), ip("10.66.0.1"));
    assert!(talk(&old, to, &lab.host).is_silent());
    lab.del(&kept, &asked(&new, 2), Some(&new));
    // The next run of the first pod.
    lab.add(&kept, &again, &asked(&again, 1));
    assert_eq!(talk(&again, to, &lab.host).seen(), ip("10.66.0.1"));
    assert_eq!(old.socket.index("eth0").unwrap(), None);
}

#[test]
fn only_the_pods_own_host_end_is_deleted() {
    let mut lab = Lab::new();
    let network = dual("net", "br-net", 72);
    let pod = Net::new();
    let at = attachment(&pod, 1);
    lab.add(&network, &pod, &at);
    let name = host_interface(&pod_id(1), "eth0");
    // The namespace exists: the kernel deletes the veth pair with it.
    lab.del(&network, &at, Some(&pod));
    assert!(lab.host.socket.index(&name).unwrap().is_some());
    // The namespace has ended for gantry, but something keeps it alive.
    lab.del(&network, &at, None);
    assert_eq!(lab.host.socket.index(&name).unwrap(), None);
    lab.del(&network, &at, None);
    // Other interfaces of that name.
    let kind = LinkKind::Veth(Peer { name: "peer0", with: Change::default() });
    let theirs = Change { alias: Some("another program's"), ..Change::default() };
    lab.host.socket.create_link(&NewLink { name: &name, kind, with: theirs }).unwrap();
    lab.del(&network, &at, None);
    assert!(lab.host.socket.delete_link_named(&name).unwrap());
    lab.host.bridge(&name);
    lab.del(&network, &at, None);
    assert!(lab.host.socket.index(&name).unwrap().is_some());
}

#[test]
fn invalid_port_mappings_are_rejected() {
    let lab = Lab::new();
    let four = network(
        "four",
        json!([{"type": "bridge", "bridge": "br-four", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.73.0.0/24"}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]),
    );
    let pod = Net::new();
    let refused = |mapping: serde_json::Value| {
        let mappings = capabilities(json!({"portMappings": mapping}));
        let mut lab = Lab { dir: tempfile::tempdir().unwrap(), host: Net::new() };
        let at = Attachment { capability_args: mappings, ..attachment(&pod, 1) };
        let error = lab.try_add(&four, &pod, &at).unwrap_err();
        lab.del(&four, &at, Some(&pod));
        assert!(lab.leased(&four).is_empty());
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        error.to_string()
    };
    assert!(
        refused(json!([{"hostPort": 0, "containerPort": 80}])).contains("hostPort must be a number from 1 to 65535")
    );
    assert!(refused(json!([{"hostPort": 1, "containerPort": 65536}])).contains("containerPort"));
    assert!(refused(json!([{"hostPort": 1, "containerPort": 1, "protocol": "icmp"}])).contains("'icmp' is not tcp"));
    assert!(refused(json!([{"hostPort": 1, "containerPort": 1, "hostIP": "localhost"}])).contains("'localhost'"));
    assert!(refused(json!([{"hostPort": 1, "containerPort": 1, "hostIP": "::"}])).contains("no address"));
    assert!(refused(json!({"hostPort": 1})).contains("must be a list"));
    // Without the capability, the port mappings are ignored.
    let silent = network(
        "four",
        json!([{"type": "bridge", "bridge": "br-four", "ipam": {"type": "host-local", "subnet": "10.73.0.0/24"}}, {"type": "portmap"}]),
    );
    let at = Attachment {
        capability_args: capabilities(json!({"portMappings": [{"hostPort": 1, "containerPort": 1}]})),
        ..attachment(&pod, 1)
    };
    assert!(lab.add(&silent, &pod, &at).entries.ports.is_empty());
}
