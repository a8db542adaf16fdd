//! The cost of operations. Run the measurement with `--ignored --nocapture`; it prints times and asserts none.

use std::time::{Duration, Instant};

use crate::address::Cidr;
use crate::namespace::Namespace;
use crate::rtnetlink::Socket;
use crate::rtnetlink::address::Address;
use crate::rtnetlink::link::Change;
use crate::rtnetlink::link::create::{LinkKind, MacvlanMode, NewLink, Peer};
use crate::rtnetlink::link::port::Port;
use crate::rtnetlink::route::Route;
use crate::test_support::{Feature, Net, cable, lacks, until};

const MANY: u8 = 250;

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let result = work();
    times.push(begun.elapsed());
    result
}

fn show(what: &str, times: &mut [Duration]) {
    times.sort();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_micros();
    println!("{what:34} {:4} times: p50 {:6} us, p90 {:6} us, most {:6} us", times.len(), at(50), at(90), at(100));
}

#[test]
fn three_hundred_veth_pairs_are_created_and_deleted() {
    let (mut host, mut pod) = (Net::new(), Net::new());
    let bridge = host.bridge("br0");
    let (mut made, mut deleted) = (Vec::new(), Vec::new());
    for n in 0..300u16 {
        let (outer, inner) = (format!("veth{n}"), format!("eth{n}"));
        let [high, low] = n.to_be_bytes();
        timed(&mut made, || {
            host.socket.create_link(&cable(&outer, bridge, pod.fd(), &inner)).unwrap();
            let index = pod.up(&inner);
            pod.socket.add_address(index, &Address::new(Cidr::new([10, 77, high, low], 32).unwrap())).unwrap();
        });
    }
    let ports = host.socket.ports(bridge).unwrap();
    assert_eq!(ports.len(), 300);
    assert!(ports.iter().all(|port| port.is_up()));
    assert_eq!(pod.socket.addresses(None).unwrap().iter().filter(|own| own.address.prefix.length() == 32).count(), 300);
    for port in &ports {
        timed(&mut deleted, || assert!(host.socket.delete_link(port.index).unwrap()));
    }
    assert_eq!((host.socket.links().unwrap().len(), pod.socket.links().unwrap().len()), (2, 1));
    for chunk in made.chunks_mut(50) {
        show("chunk", chunk);
    }
    show("veth pair created, addressed, up", &mut made);
    show("veth pair deleted", &mut deleted);
}

/// Measures each kind of operation 20 times.
#[test]
#[ignore = "a measurement that asserts nothing"]
fn cost_of_each_operation() {
    let mut host = Net::new();
    let bridge = host.bridge("br0");
    let mut costs: Vec<(&str, Vec<Duration>)> = Vec::new();
    let mut price = |what: &'static str, work: &mut dyn FnMut()| {
        let at = costs.iter().position(|(of, _)| *of == what).unwrap_or_else(|| {
            costs.push((what, Vec::new()));
            costs.len() - 1
        });
        timed(&mut costs[at].1, work);
    };
    for n in 0..20u8 {
        let mut pod = Net::new();
        let name = format!("veth{n}");
        let change = |up, master| Change { up, master, ..Change::default() };
        price("namespace entered and left", &mut || pod.namespace.enter(|| Ok(())).unwrap());
        price("socket opened in the pod", &mut || drop(Socket::open_in(&pod.namespace).unwrap()));
        let peer = Peer { name: "eth0", with: Change { namespace: Some(pod.fd()), ..Change::default() } };
        let new = NewLink { name: &name, kind: LinkKind::Veth(peer), with: Change::default() };
        price("veth pair made across", &mut || host.socket.create_link(&new).unwrap());
        let mut index = 0;
        price("link found by name", &mut || index = host.index(&name));
        price("to the bridge", &mut || host.socket.change_link(index, &change(None, Some(bridge))).unwrap());
        price("host's end up", &mut || host.socket.change_link(index, &change(Some(true), None)).unwrap());
        let inner = pod.index("eth0");
        price("pod's end up", &mut || pod.socket.change_link(inner, &change(Some(true), None)).unwrap());
        let hairpin = Port { hairpin: Some(true), ..Port::default() };
        price("hairpin on", &mut || host.socket.change_port(index, &hairpin).unwrap());
        let (four, six) = (
            Cidr::new([10, 5, 0, n], 24).unwrap(),
            Cidr::new([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, n], 64).unwrap(),
        );
        price("IPv4 address", &mut || pod.socket.add_address(inner, &Address::new(four)).unwrap());
        price("IPv6 address", &mut || pod.socket.add_address(inner, &Address::new(six)).unwrap());
        let route = Route::default_by([10, 5, 0, MANY].into(), inner);
        price("default route", &mut || pod.socket.add_route(&route).unwrap());
        price("lo up", &mut || pod.socket.loopback_up().unwrap());
        price("from the bridge", &mut || host.socket.change_link(index, &change(None, Some(0))).unwrap());
        price("host's end down", &mut || host.socket.change_link(index, &change(Some(false), None)).unwrap());
        let home = Namespace::from(rustix::io::fcntl_dupfd_cloexec(host.fd(), 0).unwrap());
        price("moved to another namespace", &mut || {
            let to =
                Change { namespace: Some(std::os::fd::AsFd::as_fd(&home)), name: Some("moved"), ..Change::default() };
            pod.socket.change_link(inner, &to).unwrap();
        });
        price("veth pair deleted", &mut || assert!(host.socket.delete_link(index).unwrap()));
        let kind = LinkKind::Macvlan { parent: bridge, mode: MacvlanMode::Bridge };
        let with = Change { namespace: Some(pod.fd()), ..Change::default() };
        let mut made = Ok(());
        price("macvlan made", &mut || made = host.socket.create_link(&NewLink { name: "mac0", kind, with }));
        if !lacks(Feature::Macvlan, &made) {
            made.unwrap();
            price("macvlan deleted", &mut || assert!(pod.socket.delete_link_named("mac0").unwrap()));
        }
        let mut pod = Some(pod);
        host.socket.create_link(&cable(&name, bridge, pod.as_ref().unwrap().fd(), "eth1")).unwrap();
        price("namespace's last process ended", &mut || drop(pod.take()));
        price("and the host's end gone", &mut || until("it is gone", || host.socket.link(&name).unwrap().is_none()));
    }
    for (what, times) in &mut costs {
        show(what, times);
    }
}
