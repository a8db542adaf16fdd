//! Interfaces as created, as listed by gantry and iproute2; and rejected requests.

use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gantry_model::{ErrorKind, Kind};
use rustix::io::Errno;

use crate::error::Error;
use crate::mac::Mac;
use crate::namespace::Namespace;
use crate::rtnetlink::Socket;
use crate::rtnetlink::link::Change;
use crate::rtnetlink::link::create::{Bridge, IpvlanMode, LinkKind, MacvlanMode, NewLink, Peer};
use crate::rtnetlink::link::port::Port;
use crate::test_support::{Feature, Net, cable, lacks, until};

#[test]
fn a_bridge_has_the_requested_properties() {
    let mut net = Net::new();
    let mac = Mac::from_ipv4(Ipv4Addr::new(10, 1, 0, 1));
    let bridge = Bridge { ageing: Some(Duration::from_secs(30)), mcast_snooping: Some(false), ..Bridge::default() };
    let with = Change { mtu: Some(1400), mac: Some(mac), up: Some(true), promiscuous: Some(true), ..Change::default() };
    let new = NewLink { name: "gantry0", kind: LinkKind::Bridge(bridge), with };
    net.socket.create_link(&new).unwrap();
    net.socket.create_link(&new).unwrap();
    let link = net.get("gantry0");
    assert!(link.is_up() && link.is_promiscuous() && !link.is_loopback());
    assert_eq!((link.mtu, link.mac, link.kind.as_deref()), (1400, Some(mac), Some("bridge")));
    assert_eq!(net.socket.link_by_index(link.index).unwrap(), Some(link));
    let seen = &net.ip(&["-d", "link", "show", "gantry0"])[0];
    assert_eq!(seen["address"], "0a:58:0a:01:00:01");
    assert_eq!(seen["mtu"], 1400);
    assert_eq!(seen["promiscuity"], 1);
    let data = &seen["linkinfo"]["info_data"];
    for (name, want) in [("forward_delay", 0), ("stp_state", 0), ("ageing_time", 3000), ("mcast_snooping", 0)] {
        assert_eq!(data[name], want, "{name}: {data}");
    }
    let other = NewLink { with: Change { mtu: Some(1300), ..with }, ..new };
    let error = net.socket.create_link(&other).unwrap_err();
    assert_eq!(error.to_string(), "cannot create the bridge gantry0: it exists already, its MTU is 1400, not 1300");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
}

#[test]
fn an_interrupted_creation_can_be_repeated() {
    let mut net = Net::new();
    let kind = LinkKind::Bridge(Bridge::default());
    net.socket.create_link(&NewLink { name: "br0", kind, with: Change::default() }).unwrap();
    let with = Change { up: Some(true), tx_queue_length: Some(9), ..Change::default() };
    net.socket.create_link(&NewLink { name: "br0", kind, with }).unwrap();
    assert_eq!((net.get("br0").is_up(), net.get("br0").tx_queue_length), (true, 9));
}

/// Kernels without VLANs on bridges accept the request and ignore it.
#[test]
fn vlan_filtering_is_on_or_an_error() {
    let mut net = Net::new();
    let plain = NewLink { name: "br0", kind: LinkKind::Bridge(Bridge::default()), with: Change::default() };
    let kind = LinkKind::Bridge(Bridge { vlan_filtering: true, default_pvid: Some(0), ..Bridge::default() });
    match net.socket.create_link(&NewLink { kind, ..plain }) {
        Ok(()) => assert_eq!(net.get("br0").vlan_filtering, Some(true)),
        Err(error) => {
            println!("this kernel has no VLANs on bridges: testing the error instead");
            assert_eq!((error.errno(), error.kind()), (Some(Errno::NOTSUP), ErrorKind::Unavailable), "{error}");
            assert_eq!(net.socket.link("br0").unwrap(), None);
        }
    }
    net.socket.delete_link_named("br0").unwrap();
    net.socket.create_link(&plain).unwrap();
    let error = net.socket.create_link(&NewLink { kind, ..plain }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}

#[test]
fn lists_are_consistent() {
    let mut net = Net::new();
    for n in 0..100 {
        net.bridge(&format!("br{n}"));
    }
    let (mut other, stop) = (Socket::open_in(&net.namespace).unwrap(), AtomicBool::new(false));
    let mut shown = 0;
    std::thread::scope(|scope| {
        // Also when the test fails: else it would wait for the thread without end.
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let new = NewLink { name: "gone", kind: LinkKind::Bridge(Bridge::default()), with: Change::default() };
                other.create_link(&new).unwrap();
                assert!(other.delete_link_named("gone").unwrap());
            }
        });
        for _ in 0..200 {
            // On a busy machine every attempt may be interrupted; then the dump fails with Lost.
            let links = match net.socket.links() {
                Err(Error::Lost { .. }) => continue,
                links => links.unwrap(),
            };
            assert_eq!(links.iter().filter(|link| link.name != "gone").count(), 101);
            shown += 1;
        }
    });
    assert!(shown > 0, "no listing was complete");
}

/// Stops a thread when it is dropped.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn one_request_creates_a_veth_pair() {
    let (mut host, mut pod) = (Net::new(), Net::new());
    let bridge = host.bridge("br0");
    let mac = Mac::from_id("pod/eth0");
    let with = Change {
        namespace: Some(pod.namespace.as_fd()),
        mac: Some(mac),
        mtu: Some(1350),
        tx_queue_length: Some(77),
        ..Change::default()
    };
    let new = NewLink {
        name: "veth1",
        kind: LinkKind::Veth(Peer { name: "eth0", with }),
        with: Change { master: Some(bridge), mtu: Some(1350), up: Some(true), ..Change::default() },
    };
    let early = Peer { name: "eth0", with: Change { up: Some(true), ..with } };
    let error = host.socket.create_link(&NewLink { kind: LinkKind::Veth(early), ..new }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    host.socket.create_link(&new).unwrap();
    host.socket.create_link(&new).unwrap();
    pod.up("eth0");
    let (outer, inner) = (host.get("veth1"), pod.socket.link("eth0").unwrap().unwrap());
    assert_eq!((outer.master, outer.parent, outer.mtu), (Some(bridge), Some(inner.index), 1350));
    assert!(outer.netns_id.is_some());
    assert_eq!((inner.mac, inner.mtu, inner.tx_queue_length, inner.is_up()), (Some(mac), 1350, 77, true));
    let seen = &pod.ip(&["link", "show", "eth0"])[0];
    assert_eq!((&seen["address"], &seen["mtu"], &seen["txqlen"]), (&mac.to_string().into(), &1350.into(), &77.into()));
    for (net, name) in [(&host, "veth1"), (&pod, "eth0")] {
        let link = &net.ip(&["-d", "link", "show", name])[0];
        assert_eq!((&link["num_tx_queues"], &link["num_rx_queues"]), (&1.into(), &1.into()), "{link}");
    }
    until("both ends of the cable run", || host.get("veth1").is_running());
    assert_eq!(host.socket.ports(bridge).unwrap().len(), 1);

    let elsewhere = Net::new();
    let error = host.socket.create_link(&cable("veth1", bridge, elsewhere.fd(), "eth0")).unwrap_err();
    assert!(error.kind() == ErrorKind::AlreadyExists && error.to_string().contains("other end"), "{error}");
    let error = host.socket.create_link(&cable("veth2", bridge, pod.fd(), "eth0")).unwrap_err();
    assert_eq!((error.errno(), error.kind()), (Some(Errno::EXIST), ErrorKind::AlreadyExists), "{error}");
    assert_eq!(host.socket.link("veth2").unwrap(), None, "half a cable was left");

    assert!(pod.socket.delete_link(inner.index).unwrap());
    assert!(!host.socket.delete_link(outer.index).unwrap());
    assert!(!host.socket.delete_link_named("veth1").unwrap());
}

#[test]
fn bridge_port_settings() {
    let (mut host, mut pod) = (Net::new(), Net::new());
    let bridge = host.bridge("br0");
    host.plug("veth1", bridge, &mut pod);
    let index = host.index("veth1");
    let on = Port {
        hairpin: Some(true),
        isolated: Some(true),
        neigh_suppress: Some(true),
        learning: Some(false),
        ..Port::default()
    };
    host.socket.change_port(index, &on).unwrap();
    let port = host.get("veth1").port.unwrap();
    assert_eq!((port.hairpin, port.isolated, port.neigh_suppress), (Some(true), Some(true), Some(true)));
    assert_eq!((port.learning, port.unicast_flood, port.bpdu_guard), (Some(false), Some(true), Some(false)));
    let seen = host.ip(&["-d", "link", "show", "veth1"])[0]["linkinfo"]["info_slave_data"].clone();
    for (name, want) in
        [("hairpin", true), ("isolated", true), ("neigh_suppress", true), ("learning", false), ("guard", false)]
    {
        assert_eq!(seen[name], want, "{name}: {seen}");
    }
    host.socket.change_port(index, &Port { hairpin: Some(false), ..Port::default() }).unwrap();
    let port = host.get("veth1").port.unwrap();
    assert_eq!((port.hairpin, port.isolated), (Some(false), Some(true)));
    assert!(host.socket.change_port(bridge, &on).is_err(), "a bridge is no port of itself");
    host.socket.change_link(index, &Change { master: Some(0), ..Change::default() }).unwrap();
    assert_eq!(host.get("veth1").master, None);
}

#[test]
fn a_macvlan_is_created_inside_the_pod() {
    let (mut host, mut pod) = (Net::new(), Net::new());
    let parent = host.bridge("br0");
    let with = Change { namespace: Some(pod.namespace.as_fd()), up: Some(true), ..Change::default() };
    let kind = LinkKind::Macvlan { parent, mode: MacvlanMode::Private };
    let new = NewLink { name: "eth0", kind, with };
    let made = host.socket.create_link(&new);
    if lacks(Feature::Macvlan, &made) {
        return;
    }
    made.unwrap();
    host.socket.create_link(&new).unwrap();
    let link = pod.socket.link("eth0").unwrap().unwrap();
    assert_eq!((link.kind.as_deref(), link.parent), (Some("macvlan"), Some(parent)));
    assert_eq!(pod.ip(&["-d", "link", "show", "eth0"])[0]["linkinfo"]["info_data"]["mode"], "private");
    let kind = LinkKind::Macvlan { parent, mode: MacvlanMode::Bridge };
    let error = host.socket.create_link(&NewLink { kind, ..new }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
}

#[test]
fn a_port_without_a_link_local_address() {
    let (mut host, mut pod) = (Net::new(), Net::new());
    let bridge = host.bridge("br0");
    let inside = pod.fd().try_clone_to_owned().unwrap();
    let mut new = cable("veth1", bridge, inside.as_fd(), "eth0");
    new.with.link_local = Some(false);
    host.socket.create_link(&new).unwrap();
    host.socket.create_link(&new).unwrap();
    let index = host.index("veth1");
    pod.up("eth0");
    until("the pod's end to have an address of the link", || !pod.socket.addresses(None).unwrap().is_empty());
    until("the host's end to run", || host.get("veth1").is_running());
    assert_eq!(host.socket.addresses(Some(index)).unwrap(), []);
    assert_eq!(host.get("veth1").master, Some(bridge));

    // With an MTU too small for IPv6, the interface has no IPv6, and there is nothing to configure.
    let short = Change { link_local: Some(false), mtu: Some(1200), up: Some(false), ..Change::default() };
    host.socket.change_link(index, &short).unwrap();
    host.socket.change_link(index, &Change { up: Some(true), ..short }).unwrap();
    assert_eq!((host.get("veth1").mtu, host.get("veth1").is_up()), (1200, true));
    let error = host.socket.change_link(index, &Change { link_local: Some(true), ..Change::default() }).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::AFNOSUPPORT), "{error}");
    let error = host.socket.change_link(4711, &Change { link_local: Some(false), ..Change::default() }).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    new.with.namespace = Some(inside.as_fd());
    assert_eq!(host.socket.create_link(&new).unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn deleting_one_end_deletes_the_other() {
    let (mut host, mut pod) = (Net::new(), Net::new());
    let bridge = host.bridge("br0");
    host.plug("veth1", bridge, &mut pod);
    drop(pod);
    until("the kernel to have cleared the namespace away", || host.socket.link("veth1").unwrap().is_none());
}

/// Kernels may lack one or the other; then the error names it.
#[test]
fn kinds_a_kernel_may_not_have() {
    let mut net = Net::new();
    let parent = net.bridge("br0");
    for (name, kind) in [("dummy0", LinkKind::Dummy), ("ipvl0", LinkKind::Ipvlan { parent, mode: IpvlanMode::L3s })] {
        match net.socket.create_link(&NewLink { name, kind, with: Change::default() }) {
            Ok(()) => assert_eq!(net.get(name).kind.as_deref(), Some(kind.as_str())),
            Err(error) => {
                println!("this kernel has no {}: testing the error instead", kind.as_str());
                assert_eq!((error.errno(), error.kind()), (Some(Errno::NOTSUP), ErrorKind::Unavailable), "{error}");
                assert!(error.to_string().contains("Unknown device type"), "the kernel's words are missing: {error}");
            }
        }
    }
}

#[test]
fn interfaces_change_and_move() {
    let (mut one, mut two) = (Net::new(), Net::new());
    let index = one.bridge("br0");
    let mac = Mac([2, 0, 0, 0, 0, 9]);
    let change = Change { name: Some("br9"), mtu: Some(9000), mac: Some(mac), up: Some(false), ..Change::default() };
    one.socket.change_link(index, &change).unwrap();
    one.socket.change_link(index, &change).unwrap();
    let link = one.get("br9");
    assert_eq!((link.index, link.mtu, link.mac, link.is_up()), (index, 9000, Some(mac), false));

    let peer = Peer { name: "veth1", with: Change::default() };
    one.socket.create_link(&NewLink { name: "veth0", kind: LinkKind::Veth(peer), with: Change::default() }).unwrap();
    let index = one.index("veth1");
    let to = Change { namespace: Some(two.namespace.as_fd()), name: Some("eth7"), ..Change::default() };
    one.socket.change_link(index, &to).unwrap();
    assert_eq!(one.socket.link("veth1").unwrap(), None);
    assert!(two.socket.link("eth7").unwrap().is_some());
    assert_eq!(two.socket.links().unwrap().len(), 2);
}

#[test]
fn loopback_is_set_up() {
    let mut net = Net::new();
    assert!(!net.get("lo").is_up());
    net.socket.loopback_up().unwrap();
    net.socket.loopback_up().unwrap();
    let lo = net.get("lo");
    assert!(lo.is_up() && lo.is_loopback() && lo.kind.is_none());
}

#[test]
fn errors_name_the_request_and_the_cause() {
    let mut net = Net::new();
    let index = net.bridge("br0");
    let cases = [
        (net.socket.change_link(4711, &Change { up: Some(true), ..Change::default() }), ErrorKind::NotFound),
        (net.socket.change_link(index, &Change { mtu: Some(10), ..Change::default() }), ErrorKind::Invalid),
        (net.socket.change_link(index, &Change { name: Some("lo"), ..Change::default() }), ErrorKind::AlreadyExists),
        (net.socket.change_link(index, &Change { name: Some("a/b"), ..Change::default() }), ErrorKind::Invalid),
        (net.socket.change_link(index, &Change { master: Some(4711), ..Change::default() }), ErrorKind::Invalid),
    ];
    for (result, kind) in cases {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with("cannot "), "{error}");
    }
    let error = net.socket.change_link(index, &Change { mtu: Some(10), ..Change::default() }).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot change interface {index}: Invalid argument")), "{text}");
    assert!(text.contains("mtu less than device minimum"), "the kernel's words are missing: {text}");
    let lo = net.index("lo");
    assert_eq!(net.socket.delete_link(lo).unwrap_err().errno(), Some(Errno::NOTSUP));
    assert_eq!(net.socket.link("nothing").unwrap(), None);
    assert_eq!(net.socket.link_by_index(4711).unwrap(), None);
}

#[test]
fn without_capabilities_it_is_denied() {
    use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
    let mut net = Net::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let none = CapabilitySet::empty();
            // Of this thread alone, which ends with it.
            set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
            let new = NewLink { name: "br0", kind: LinkKind::Bridge(Bridge::default()), with: Change::default() };
            let error = net.socket.create_link(&new).unwrap_err();
            assert_eq!((error.errno(), error.kind()), (Some(Errno::PERM), ErrorKind::Denied), "{error}");
            assert_eq!(net.socket.links().unwrap().len(), 1);
            let error = Socket::open_in(&net.namespace).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        });
    });
}

#[test]
fn namespaces_are_entered_and_left() {
    let net = Net::new();
    let home = Namespace::own().unwrap();
    let inside = net.namespace.enter(Namespace::own).unwrap();
    assert!(inside.is(&net.namespace).unwrap() && !inside.is(&home).unwrap());
    assert!(Namespace::own().unwrap().is(&home).unwrap());
    let panicked =
        std::panic::catch_unwind(|| net.namespace.enter(|| -> crate::error::Result<()> { panic!("inside") }));
    assert!(panicked.is_err());
    assert!(Namespace::own().unwrap().is(&home).unwrap(), "a panic left the thread in another namespace");
    let error = Namespace::at(std::path::Path::new("/dev/null")).unwrap().enter(|| Ok(())).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::INVAL));
    assert!(Namespace::own().unwrap().is(&home).unwrap());
}
