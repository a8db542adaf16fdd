//! Pods on networks that gantry creates itself: attach, detach, kill, repair.

#![allow(clippy::unwrap_used, reason = "a failure is the failure of the test")]

mod lab;

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use gantry_model::net::{PodPort, Protocol};
use gantry_model::{ErrorKind, Kind};
use gantry_net::netlink::Namespace;
use gantry_net::pod;
use lab::{Lab, TestPod, inside, port, sh, until};
use rustix::process::Pid;
use serde_json::{Value, json};

/// Answers one connection to port 80 in a pod.
fn answer(pod: &TestPod) -> std::thread::JoinHandle<()> {
    let listener = pod.own.enter(|| Ok(TcpListener::bind("[::]:80").unwrap())).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"pod").unwrap();
    })
}

fn ask(address: &str) -> String {
    let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(10)).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

#[test]
fn the_default_network() {
    if !inside("the_default_network") {
        return;
    }
    let lab = Lab::new();
    let pod = lab.pod();
    let (attached, held) = lab.attach(&pod, &["default"], &[port(8080, Protocol::Tcp)]).unwrap();
    let addresses: Vec<String> =
        attached[0].addresses.iter().map(|it| format!("{}/{}", it.address, it.prefix)).collect();
    assert_eq!(addresses, ["10.121.0.2/16", "fd67:616e:7472:7900::2/64"]);
    let gateways: Vec<IpAddr> = attached[0].addresses.iter().map(|it| it.gateway.unwrap()).collect();
    assert_eq!(gateways, ["10.121.0.1".parse::<IpAddr>().unwrap(), "fd67:616e:7472:7900::1".parse().unwrap()]);
    assert_eq!(attached[0].mac.as_deref(), pod.ip("link show dev eth0")[0]["address"].as_str());
    assert_eq!(pod.ip("route show default")[0]["gateway"], "10.121.0.1");
    assert_eq!(pod.ip("link show dev lo")[0]["flags"][1], "UP");
    let server = answer(&pod);
    assert_eq!(ask("127.0.0.1:8080"), "pod");
    server.join().unwrap();
    // The port is held in both families; connections to [::1] are refused at once.
    assert!(TcpListener::bind("0.0.0.0:8080").is_err() && TcpListener::bind("[::]:8080").is_err());
    assert!(TcpListener::bind("127.0.0.1:8080").is_err());
    let refused = TcpStream::connect_timeout(&"[::1]:8080".parse().unwrap(), Duration::from_secs(10)).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    assert_eq!(pod::collect_garbage(&lab.host, false).unwrap(), Vec::<String>::new());
    let networks = pod::list_networks(&lab.host, None).unwrap();
    assert_eq!(networks[0].pods[0].attached, attached[0]);
    assert_eq!((networks[0].interface.as_deref(), networks[0].built_in), (Some("gantry0"), true));
    drop(held);
    TcpListener::bind("0.0.0.0:8080").unwrap();
    lab.end(pod);
    lab.assert_no_garbage();
    assert_eq!(lab.links(), Vec::<String>::new(), "the bridge is gone too");
}

/// The bridges of built-in networks have no multicast snooping, so they send no reports that the host tracks.
#[test]
fn built_in_bridges_flood_multicast() {
    if !inside("built_in_bridges_flood_multicast") {
        return;
    }
    let lab = Lab::new();
    lab.bridge("mine", "br-mine", "10.203.0.0/24");
    let pod = lab.pod();
    let _held = lab.attach(&pod, &["default", "default-restricted", "mine"], &[]).unwrap();
    for (bridge, snooping) in [("gantry0", 0), ("gantry1", 0), ("br-mine", 1)] {
        let link: Value = serde_json::from_str(&sh(&format!("ip -j -d link show dev {bridge}"))).unwrap();
        assert_eq!(link[0]["linkinfo"]["info_data"]["mcast_snooping"], snooping, "{bridge}");
    }
    let groups = sh("cat /proc/net/igmp");
    // All-Snoopers (224.0.0.106), little-endian.
    assert_eq!(groups.matches("6A0000E0").count(), 1, "{groups}");
    lab.end(pod);
    lab.assert_no_garbage();
}

#[test]
fn several_networks_and_an_impossible_one() {
    if !inside("several_networks_and_an_impossible_one") {
        return;
    }
    let lab = Lab::new();
    lab.bridge("mine", "br-mine", "10.203.0.0/24");
    lab.network(
        "lost",
        "1.0.0",
        &json!([{"type": "macvlan", "master": "nowhere", "ipam": {"type": "host-local", "subnet": "10.204.0.0/24"}}]),
    );
    let pod = lab.pod();
    let error = lab.attach(&pod, &["default", "mine", "lost"], &[port(8080, Protocol::Udp)]).unwrap_err();
    let said = gantry_model::error::messages(&error).join(": ");
    assert!(said.contains("cannot attach the pod to network 'lost'"), "{said}");
    assert_eq!(pod.ip("link").as_array().unwrap().len(), 1, "only lo");
    assert!(!pod.has_record());
    lab.assert_no_pod_resources();
    let (attached, _held) = lab.attach(&pod, &["default", "mine:IP=10.203.0.9", "default-restricted"], &[]).unwrap();
    let got: Vec<_> = attached.iter().map(|it| (it.interface.as_str(), it.addresses[0].address.to_string())).collect();
    let want = [("eth0", "10.121.0.3"), ("eth1", "10.203.0.9"), ("eth2", "10.122.0.2")];
    assert_eq!(got, want.map(|(interface, address)| (interface, address.to_owned())));
    let lock = lab.lock(&pod);
    let error = lab.attach(&lab.pod(), &["mine:IP=10.203.0.9"], &[]).unwrap_err();
    drop(lock);
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    let error = lab.attach(&lab.pod(), &["nobody", "default", "no-one"], &[]).unwrap_err();
    assert!(error.to_string().starts_with("there are no networks 'nobody', 'no-one': "), "{error}");
    assert_eq!(error.kind(), ErrorKind::NotFound);
    // The network is removed from the configuration while a pod is attached.
    fs::remove_file(lab.at("conf/mine.conflist")).unwrap();
    let mine = pod::list_networks(&lab.host, Some("mine")).unwrap();
    assert!(mine[0].problem.is_some() && mine[0].pods.len() == 1, "{mine:?}");
    assert_eq!(pod::list_networks(&lab.host, Some("nobody")).unwrap_err().kind(), ErrorKind::NotFound);
    lab.end(pod);
    lab.assert_no_garbage();
}

#[test]
fn publishing_a_port_in_use_fails() {
    if !inside("publishing_a_port_in_use_fails") {
        return;
    }
    let lab = Lab::new();
    let (one, two) = (lab.pod(), lab.pod());
    let held = lab.attach(&one, &["default"], &[PodPort { count: 300, ..port(8000, Protocol::Tcp) }]).unwrap();
    let refused = |port: PodPort| {
        let error = lab.attach(&two, &["default"], &[port]).unwrap_err();
        assert!(!two.has_record(), "{error}");
        (error.kind(), error.to_string())
    };
    // The supervisor of a live pod holds its lock.
    let lock = lab.lock(&one);
    let (kind, said) = refused(port(8299, Protocol::Tcp));
    assert_eq!(kind, ErrorKind::AlreadyExists);
    assert!(said.contains(&format!("port 8299/tcp of the host is in use by pod {}", one.id)), "{said}");
    let server = UdpSocket::bind("0.0.0.0:9000").unwrap();
    let (kind, said) = refused(port(9000, Protocol::Udp));
    assert_eq!(kind, ErrorKind::AlreadyExists);
    let user = format!("port 9000/udp of the host is in use by process {} (", std::process::id());
    assert!(said.contains(&user), "{said}");
    drop(server);
    let here = PodPort { host_ip: Some([192, 0, 2, 7].into()), ..port(9000, Protocol::Udp) };
    assert!(refused(here).1.contains("192.0.2.7 is not an address of this host"));
    if let Err(error) = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        Some(rustix::net::ipproto::SCTP),
    ) {
        assert_eq!(error, rustix::io::Errno::PROTONOSUPPORT);
        assert!(refused(port(9000, Protocol::Sctp)).1.contains("the kernel has no SCTP"));
    }
    lab.network("four", "1.0.0", &lab.bridge("four", "br-four", "10.203.0.0/24"));
    let six = PodPort { host_ip: Some("::".parse().unwrap()), ..port(9000, Protocol::Tcp) };
    let error = lab.attach(&two, &["four"], &[six]).unwrap_err();
    assert!(error.to_string().contains("the pod has no IPv6 address in network 'four'"), "{error}");
    // A listener on IPv6 only does not conflict with a pod without IPv6.
    let six = TcpListener::bind("[::1]:9001").unwrap();
    lab.attach(&two, &["four"], &[port(9001, Protocol::Tcp)]).unwrap();
    drop(six);
    lab.end(two);
    // Whatever holds the sockets, the record of a live pod reserves the port.
    drop(held);
    let three = lab.pod();
    let error = lab.attach(&three, &["default"], &[port(8000, Protocol::Tcp)]).unwrap_err();
    assert!(error.to_string().contains(&format!("in use by pod {}", one.id)), "{error}");
    drop(lock);
    lab.end(one);
    let held = lab.attach(&three, &["default"], &[port(8000, Protocol::Tcp)]).unwrap();
    // Connections to a server that has ended do not conflict.
    drop(held);
    lab.end(three);
    lab.assert_no_garbage();
}

#[test]
fn ports_of_killed_supervisors_are_taken_over() {
    if !inside("ports_of_killed_supervisors_are_taken_over") {
        return;
    }
    let lab = Lab::new();
    let (mut dead, next) = (lab.pod(), lab.pod());
    drop(lab.attach(&dead, &["default"], &[PodPort { count: 2, ..port(8000, Protocol::Tcp) }]).unwrap());
    dead.end_process();
    let (_, held) = lab.attach(&next, &["default"], &[port(8001, Protocol::Tcp)]).unwrap();
    let server = answer(&next);
    assert_eq!(ask("127.0.0.1:8001"), "pod");
    server.join().unwrap();
    // Neither a reload nor the late end of the dead pod gives the port back.
    pod::reload(&lab.host).unwrap();
    lab.end(dead);
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    let server = answer(&next);
    assert_eq!(ask("127.0.0.1:8001"), "pod");
    server.join().unwrap();
    drop(held);
    lab.end(next);
    lab.assert_no_garbage();
}

#[test]
fn time_wait_connections_do_not_block_ports() {
    if !inside("time_wait_connections_do_not_block_ports") {
        return;
    }
    let lab = Lab::new();
    let server = TcpListener::bind("127.0.0.1:8080").unwrap();
    let client = TcpStream::connect("127.0.0.1:8080").unwrap();
    let (stream, _) = server.accept().unwrap();
    // The side that closes first keeps the port in TIME-WAIT.
    drop(stream);
    drop(client);
    drop(server);
    let pod = lab.pod();
    let (_, held) = lab.attach(&pod, &["default"], &[port(8080, Protocol::Tcp)]).unwrap();
    assert!(TcpListener::bind("0.0.0.0:8080").is_err(), "it is held as any other");
    drop(held);
    lab.end(pod);
}

#[test]
fn a_flow_follows_its_port() {
    if !inside("a_flow_follows_its_port") {
        return;
    }
    let lab = Lab::new();
    let client = UdpSocket::bind("127.0.0.1:7777").unwrap();
    for name in ["first", "second"] {
        let pod = lab.pod();
        let bind = || UdpSocket::bind("0.0.0.0:80").unwrap();
        let server = pod.own.enter(|| Ok(bind())).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let (_, held) = lab.attach(&pod, &["default"], &[port(9000, Protocol::Udp)]).unwrap();
        // From the same source port, for which conntrack has an entry to the first pod.
        client.send_to(name.as_bytes(), "127.0.0.1:9000").unwrap();
        let mut said = [0; 16];
        let (length, _) = server.recv_from(&mut said).unwrap();
        assert_eq!(&said[..length], name.as_bytes());
        drop((server, held));
        lab.end(pod);
    }
    lab.assert_no_garbage();
}

#[test]
fn twenty_pods_start_at_once() {
    if !inside("twenty_pods_start_at_once") {
        return;
    }
    let lab = Lab::new();
    let pods: Vec<TestPod> = (0..20).map(|_| lab.pod()).collect();
    let addresses: Vec<IpAddr> = std::thread::scope(|scope| {
        let threads: Vec<_> = pods
            .iter()
            .zip(8000..)
            .map(|(pod, number)| {
                let lab = &lab;
                scope.spawn(move || lab.attach(pod, &["default"], &[port(number, Protocol::Tcp)]).unwrap())
            })
            .collect();
        let all = threads.into_iter().map(|thread| thread.join().unwrap());
        all.flat_map(|(attached, _)| attached[0].addresses.clone()).map(|it| it.address).collect()
    });
    assert_eq!(addresses.iter().collect::<BTreeSet<_>>().len(), 40);
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    std::thread::scope(|scope| {
        for pod in pods {
            let lab = &lab;
            scope.spawn(move || lab.end(pod));
        }
    });
    lab.assert_no_garbage();
}

#[test]
fn garbage_collection_does_not_disturb_concurrent_pods() {
    if !inside("garbage_collection_does_not_disturb_concurrent_pods") {
        return;
    }
    let mut lab = Lab::new();
    lab.bridge("plugins", "br-plugins", "10.203.0.0/24");
    lab.host.use_plugins = true;
    let lab = &lab;
    let busy = AtomicUsize::new(4);
    let stay: Vec<TestPod> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while busy.load(Ordering::SeqCst) > 0 {
                pod::collect_garbage(&lab.host, false).unwrap();
                pod::reload(&lab.host).unwrap();
            }
        });
        let workers: Vec<_> = (0..4_u16)
            .map(|worker| {
                let busy = &busy;
                scope.spawn(move || {
                    // In every case, so that the collecting thread stops.
                    let _ends = Ends(busy);
                    let mut last = None;
                    for round in 0..6 {
                        let pod = lab.pod();
                        let names: &[&str] = if round == 5 { &["default", "plugins"] } else { &["default"] };
                        let (_, held) = lab.attach(&pod, names, &[port(8000 + worker, Protocol::Tcp)]).unwrap();
                        drop(held);
                        if round == 5 { last = Some(pod) } else { lab.end(pod) }
                    }
                    last.unwrap()
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let findings = pod::check(&lab.host).unwrap();
    assert!(findings.iter().all(|line| line.contains("plugin 'portmap' failed to CHECK")), "{findings:?}");
    for (pod, number) in stay.iter().zip(8000..) {
        let server = answer(pod);
        assert_eq!(ask(&format!("127.0.0.1:{number}")), "pod");
        server.join().unwrap();
    }
    stay.into_iter().for_each(|pod| lab.end(pod));
    lab.assert_no_garbage();
}

/// Decrements the counter on drop.
struct Ends<'a>(&'a AtomicUsize);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn an_exhausted_pool_recovers() {
    if !inside("an_exhausted_pool_recovers") {
        return;
    }
    let lab = Lab::new();
    lab.bridge("small", "br-small", "10.203.0.0/30");
    let (one, two) = (lab.pod(), lab.pod());
    lab.attach(&one, &["small"], &[]).unwrap();
    let lock = lab.lock(&one);
    let error = lab.attach(&two, &["small"], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(!two.has_record());
    drop(lock);
    lab.end(one);
    lab.attach(&two, &["small"], &[]).unwrap();
    lab.end(two);
    lab.assert_no_garbage();
}

#[test]
fn addresses_of_killed_supervisors_are_taken_over() {
    if !inside("addresses_of_killed_supervisors_are_taken_over") {
        return;
    }
    let lab = Lab::new();
    lab.bridge("small", "br-small", "10.203.0.0/30");
    let (one, two, three) = (lab.pod(), lab.pod(), lab.pod());
    lab.attach(&one, &["small", "default"], &[]).unwrap();
    lab.attach(&two, &["default", "small"], &[]).unwrap();
    assert!(!one.has_record(), "its only free address was needed");
    let lock = lab.lock(&two);
    let error = lab.attach(&three, &["small:IP=10.203.0.2"], &[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(two.has_record() && !three.has_record());
    drop(lock);
    let (attached, _held) = lab.attach(&three, &["small:IP=10.203.0.2"], &[]).unwrap();
    assert_eq!(attached[0].addresses[0].address, IpAddr::from([10, 203, 0, 2]));
    assert!(!two.has_record());
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    lab.end(three);
    lab.assert_no_garbage();
}

/// The prefixes in the table, and the networks that they belong to.
fn prefixes() -> String {
    sh("nft list set inet gantry-test within4; nft list set inet gantry-test masquerade4")
}

/// Removes what ended pods of this process no longer share.
fn remove_unused() {
    for shared in pod::unused::take_shared() {
        shared.remove(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn overlapping_networks_are_refused() {
    if !inside("overlapping_networks_are_refused") {
        return;
    }
    let lab = Lab::new();
    for (name, subnet) in [("one", "10.203.0.0/24"), ("same", "10.203.0.0/24"), ("wide", "10.203.0.0/16")] {
        lab.bridge(name, &format!("br-{name}"), subnet);
    }
    let ids = ["00000000-0000-4000-8000-000000000001", "ffffffff-ffff-4fff-8fff-ffffffffffff"];
    for (first, second) in [(ids[0], ids[1]), (ids[1], ids[0])] {
        let (pod, other) = (lab.pod_named(first), lab.pod_named(second));
        lab.attach(&pod, &["one"], &[]).unwrap();
        let (lock, before) = (lab.lock(&pod), prefixes());
        for (name, subnet) in [("same", "10.203.0.0/24"), ("wide", "10.203.0.0/16")] {
            let error = lab.attach(&other, &[name], &[]).unwrap_err();
            let said = gantry_model::error::messages(&error).join(": ");
            let overlap = format!(
                "the subnet {subnet} of network '{name}' overlaps with 10.203.0.0/24 of network 'one', which pods use"
            );
            assert!(said.contains(&overlap), "{said}");
            assert_eq!(error.kind(), ErrorKind::AlreadyExists);
            assert!(!other.has_record());
            remove_unused();
            assert_eq!(prefixes(), before);
            pod::reload(&lab.host).unwrap();
            assert_eq!(prefixes(), before);
        }
        assert_eq!(lab.links().iter().filter(|name| name.starts_with("br-")).count(), 1);
        // The supervisor is killed.
        drop(lock);
        lab.attach(&other, &["same"], &[]).unwrap();
        assert_eq!(prefixes(), before.replace("\"one\"", "\"same\""));
        lab.end(pod);
        remove_unused();
        assert_eq!(prefixes(), before.replace("\"one\"", "\"same\""));
        lab.end(other);
        lab.assert_no_garbage();
    }
}

/// Earlier gantries attached pods to networks with the same subnet, which had one entry for both.
#[test]
fn an_overlapping_network_keeps_its_rules() {
    if !inside("an_overlapping_network_keeps_its_rules") {
        return;
    }
    let lab = Lab::new();
    lab.bridge("one", "br-one", "10.203.0.0/24");
    lab.bridge("two", "br-two", "10.204.0.0/24");
    let (one, two) = (lab.pod(), lab.pod());
    lab.attach(&one, &["one"], &[]).unwrap();
    lab.attach(&two, &["two"], &[]).unwrap();
    let record = two.path.join("network.json");
    fs::write(&record, fs::read_to_string(&record).unwrap().replace("10.204.0.", "10.203.0.")).unwrap();
    sh("ip address add 10.203.0.1/24 dev br-two && ip address del 10.204.0.1/24 dev br-two");
    pod::reload(&lab.host).unwrap();
    let before = prefixes();
    assert!(before.contains("\"one\"") && !before.contains("\"two\""), "{before}");
    lab.end(one);
    remove_unused();
    assert_eq!(prefixes(), before.replace("\"one\"", "\"two\""));
    lab.end(two);
    lab.assert_no_garbage();
}

#[test]
fn damaged_links_are_reported_and_repaired() {
    if !inside("damaged_links_are_reported_and_repaired") {
        return;
    }
    let lab = Lab::new();
    let ipam = json!({"type": "host-local", "ranges": [[{"subnet": "10.203.0.0/24"}]]});
    lab.network(
        "apart",
        "1.0.0",
        &json!([{"type": "bridge", "bridge": "br-apart", "portIsolation": true, "ipam": ipam}]),
    );
    let (pod, other) = (lab.pod(), lab.pod());
    let _held = lab.attach(&pod, &["default", "apart"], &[]).unwrap();
    let _other_held = lab.attach(&other, &["default"], &[]).unwrap();
    let host_end = |number: u8| format!("gt{}{number}", pod.id.replace('-', "").split_at(12).0);
    let (first, second) = (host_end(0), host_end(1));
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    assert!(sh(&format!("ip -d link show dev {second}")).contains("isolated on"));
    for (damage, found) in [
        ("ip link set gantry0 down".to_owned(), "the bridge gantry0 is down".to_owned()),
        ("ip address del 10.121.0.1/16 dev gantry0".to_owned(), "the bridge gantry0 lacks 10.121.0.1/16".to_owned()),
        (
            "ip address del fd67:616e:7472:7900::1/64 dev gantry0".to_owned(),
            "the bridge gantry0 lacks fd67:616e:7472:7900::1/64".to_owned(),
        ),
        (format!("ip link set {first} nomaster"), format!("interface {first} of pod {} is not attached", pod.id)),
        (format!("ip link set {second} nomaster"), format!("interface {second} of pod {} is not attached", pod.id)),
        (format!("ip link set {first} down"), format!("interface {first} of pod {} is down", pod.id)),
        ("sysctl -qw net.ipv4.ip_forward=0".to_owned(), "net.ipv4.ip_forward is 0".to_owned()),
        ("sysctl -qw net.ipv6.conf.all.forwarding=0".to_owned(), "net.ipv6.conf.all.forwarding is 0".to_owned()),
    ] {
        sh(&damage);
        let lines = pod::check(&lab.host).unwrap();
        assert!(lines.iter().any(|line| line.starts_with(&found)), "{damage}: {lines:?}");
        pod::reload(&lab.host).unwrap();
        assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new(), "{damage}");
        let server = answer(&pod);
        assert_eq!(ask("10.121.0.2:80"), "pod", "{damage}");
        server.join().unwrap();
        assert!(sh(&format!("ip -d link show dev {second}")).contains("isolated on"), "{damage}");
    }
    lab.end(pod);
    lab.end(other);
    lab.assert_no_garbage();
}

#[test]
fn a_pod_with_a_damaged_record_is_detached() {
    if !inside("a_pod_with_a_damaged_record_is_detached") {
        return;
    }
    let lab = Lab::new();
    lab.with_liar();
    let mut list = lab.bridge("mixed", "br-mixed", "10.203.0.0/24");
    list.as_array_mut().unwrap().push(json!({"type": "liar", "log": lab.at("log")}));
    lab.network("mixed", "1.0.0", &list);
    let stays = lab.pod();
    lab.attach(&stays, &["default"], &[port(8081, Protocol::Tcp)]).unwrap();
    for damage in ["", "{\"version\":1", "null"] {
        let mut pod = lab.pod();
        lab.attach(&pod, &["default", "mixed"], &[port(8080, Protocol::Tcp)]).unwrap();
        pod.end_process();
        fs::write(pod.path.join("network.json"), damage).unwrap();
        let error = lab.detach(&pod).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Damaged, "{error}");
        assert!(pod::check(&lab.host).unwrap().iter().any(|line| line.contains("is damaged")));
        assert!(pod::collect_garbage(&lab.host, true).unwrap().iter().all(|line| !line.contains("address")));
        let it = pod::Pod { id: &pod.id, dir: pod.dir.as_fd() };
        pod::detach_on(&lab.host, &it, None).unwrap();
        pod::detach_on(&lab.host, &it, None).unwrap();
        assert!(!pod.has_record());
    }
    assert_eq!(lab.asked().matches("DEL").count(), 3);
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    // The record of a later gantry is not touched.
    let pod = lab.pod();
    fs::write(pod.path.join("network.json"), r#"{"version": 9}"#).unwrap();
    let error = lab.detach(&pod).unwrap_err();
    assert!(error.to_string().contains("has version 9") && pod.has_record(), "{error}");
    fs::remove_file(pod.path.join("network.json")).unwrap();
    lab.end(stays);
    lab.assert_no_garbage();
}

/// A running pod whose record cannot be read keeps its entries in the table.
#[test]
fn pods_with_damaged_records_keep_their_entries() {
    if !inside("pods_with_damaged_records_keep_their_entries") {
        return;
    }
    let lab = Lab::new();
    let pod = lab.pod();
    let (_, held) = lab.attach(&pod, &["default"], &[port(8080, Protocol::Tcp)]).unwrap();
    let record = fs::read(pod.path.join("network.json")).unwrap();
    for damage in ["{", r#"{"version": 9}"#] {
        fs::write(pod.path.join("network.json"), damage).unwrap();
        let before = sh("nft list ruleset");
        pod::reload(&lab.host).unwrap();
        assert_eq!(sh("nft list ruleset"), before);
        let swept = pod::collect_garbage(&lab.host, false).unwrap();
        assert!(swept.iter().all(|line| line == "bridge gantry1, which no pod uses"), "{swept:?}");
        // Other pods start and end.
        let other = lab.pod();
        lab.attach(&other, &["default-restricted"], &[]).unwrap();
        lab.end(other);
        pod::reload(&lab.host).unwrap();
        let server = answer(&pod);
        assert_eq!(ask("127.0.0.1:8080"), "pod", "{damage}");
        server.join().unwrap();
        assert_eq!(pod::check(&lab.host).unwrap().len(), 1, "only that the record cannot be read");
    }
    fs::write(pod.path.join("network.json"), record).unwrap();
    drop(held);
    lab.end(pod);
    lab.assert_no_garbage();
}

#[test]
fn a_removed_table_is_restored() {
    if !inside("a_removed_table_is_restored") {
        return;
    }
    let lab = Lab::new();
    let pod = lab.pod();
    let (_, _held) = lab.attach(&pod, &["default"], &[port(8080, Protocol::Tcp)]).unwrap();
    for damage in [
        "nft flush ruleset",
        "nft delete table inet gantry-test",
        "nft flush chain inet gantry-test ports",
        "nft delete element inet gantry-test interfaces { gantry0 }; nft add set inet gantry-test odd '{ type mark; }'",
        "sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.gantry0.route_localnet=0 net.ipv6.conf.all.forwarding=0; nft flush ruleset",
    ] {
        sh(damage);
        assert_ne!(pod::check(&lab.host).unwrap(), Vec::<String>::new(), "{damage}");
        pod::reload(&lab.host).unwrap();
        pod::reload(&lab.host).unwrap();
        assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new(), "{damage}");
        let server = answer(&pod);
        assert_eq!(ask("127.0.0.1:8080"), "pod", "{damage}");
        server.join().unwrap();
    }
    // A pod that starts without the table restores it for all pods.
    sh("nft flush ruleset");
    let other = lab.pod();
    lab.attach(&other, &["default"], &[port(8081, Protocol::Tcp)]).unwrap();
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    // A pod ends without the table.
    sh("nft flush ruleset");
    lab.end(other);
    lab.end(pod);
    pod::reload(&lab.host).unwrap();
    lab.assert_no_garbage();
}

/// An administrator's bridge has other ports than pods: the rules that protect the host's 127.0.0.1 from them must
/// exist while `route_localnet` is enabled.
#[test]
fn route_localnet_follows_the_interfaces_of_the_table() {
    if !inside("route_localnet_follows_the_interfaces_of_the_table") {
        return;
    }
    let lab = Lab::new();
    sh("ip link add br-lan type bridge; ip link set br-lan up");
    lab.bridge("lan", "br-lan", "10.203.0.0/24");
    let switch = |name: &str| sh(&format!("sysctl -n net.ipv4.conf.{name}.route_localnet")).trim().to_owned();
    let (plain, stays, leaves) = (lab.pod(), lab.pod(), lab.pod());
    lab.attach(&plain, &["lan"], &[]).unwrap();
    assert_eq!(switch("br-lan"), "0", "no port leads there");
    let held = lab.attach(&stays, &["default"], &[port(8080, Protocol::Tcp)]).unwrap();
    lab.attach(&leaves, &["lan"], &[port(8081, Protocol::Tcp)]).unwrap();
    assert_eq!((switch("br-lan").as_str(), switch("gantry0").as_str()), ("1", "1"));
    lab.end(leaves);
    lab.end(plain);
    // Not yet: the bridge is still in the table.
    assert!(sh("nft list set inet gantry-test interfaces").contains("br-lan"));
    pod::reload(&lab.host).unwrap();
    assert!(!sh("nft list set inet gantry-test interfaces").contains("br-lan"));
    assert_eq!((switch("br-lan").as_str(), switch("gantry0").as_str()), ("0", "1"));
    let again = lab.pod();
    lab.attach(&again, &["lan"], &[port(8081, Protocol::Tcp)]).unwrap();
    assert_eq!(switch("br-lan"), "1");
    lab.end(again);
    drop(held);
    lab.end(stays);
    lab.assert_no_garbage();
    assert_eq!(switch("br-lan"), "0");
}

/// A host that accepts router advertisements loses its default route when it starts forwarding IPv6, unless `accept_ra`
/// is 2.
#[test]
fn a_reload_keeps_accepting_router_advertisements() {
    if !inside("a_reload_keeps_accepting_router_advertisements") {
        return;
    }
    let lab = Lab::new();
    sh("ip link add up0 type veth peer name router0; ip link set up0 up; ip link set router0 up");
    sh("sysctl -qw net.ipv6.conf.up0.accept_ra=1; ip -6 route add default via fe80::1 dev up0");
    let pod = lab.pod();
    lab.attach(&pod, &["default"], &[]).unwrap();
    assert_eq!(sh("sysctl -n net.ipv6.conf.up0.accept_ra").trim(), "2");
    sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.up0.accept_ra=1");
    pod::reload(&lab.host).unwrap();
    assert_eq!(sh("sysctl -n net.ipv6.conf.all.forwarding net.ipv6.conf.up0.accept_ra"), "1\n2\n");
    lab.end(pod);
}

/// Hardening guides set disable_ipv6 on all interfaces, which removes the addresses of an existing bridge.
#[test]
fn ipv6_may_be_disabled_and_enabled_again() {
    if !inside("ipv6_may_be_disabled_and_enabled_again") {
        return;
    }
    let lab = Lab::new();
    let (one, two) = (lab.pod(), lab.pod());
    lab.attach(&one, &["default"], &[]).unwrap();
    sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1");
    lab.attach(&two, &["default"], &[]).unwrap();
    assert!(sh("ip -6 address show dev gantry0").contains("fd67:616e:7472:7900::1/64"));
    lab.end(one);
    lab.end(two);
    lab.assert_no_garbage();
}

/// A ptp pod can send only from its own address, even if the host does not filter by reverse path.
#[test]
fn a_ptp_pod_cannot_spoof() {
    if !inside("a_ptp_pod_cannot_spoof") {
        return;
    }
    let lab = Lab::new();
    sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0");
    let ranges = json!([[{"subnet": "10.203.0.0/24"}], [{"subnet": "fd00:203::/64"}]]);
    let ipam = json!({"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
    lab.network("cable", "1.0.0", &json!([{"type": "ptp", "ipam": ipam}]));
    let pod = lab.pod();
    let (attached, _held) = lab.attach(&pod, &["cable"], &[]).unwrap();
    let holder = pod.holder();
    sh(&format!(
        "nsenter -t {holder} -n sh -ec 'ip addr add 10.9.9.9/32 dev lo; ip addr add fd09::9/128 dev lo nodad'"
    ));
    for (own, other) in attached[0].addresses.iter().zip(["10.9.9.9", "fd09::9"]) {
        let gateway = own.gateway.unwrap();
        let server = UdpSocket::bind((gateway, 0)).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let to = server.local_addr().unwrap();
        // In order over one veth pair: the first packet to arrive is the first that passed.
        for from in [other.parse().unwrap(), own.address] {
            let client = pod.own.enter(|| Ok(UdpSocket::bind((from, 0)).unwrap())).unwrap();
            client.send_to(b"hello", to).unwrap();
        }
        let (_, from) = server.recv_from(&mut [0; 8]).unwrap();
        assert_eq!(from.ip(), own.address);
    }
    lab.end(pod);
    lab.assert_no_garbage();
}

#[test]
fn a_changed_subnet_frees_the_old_one() {
    if !inside("a_changed_subnet_frees_the_old_one") {
        return;
    }
    let lab = Lab::new();
    lab.bridge("one", "br-one", "10.203.0.0/24");
    let pod = lab.pod();
    lab.attach(&pod, &["one"], &[]).unwrap();
    lab.end(pod);
    let stays = lab.pod();
    lab.attach(&stays, &["one"], &[]).unwrap();
    lab.bridge("one", "br-four", "10.205.0.0/24");
    let beside = lab.pod();
    lab.attach(&beside, &["one"], &[]).unwrap();
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new(), "both belong to one network");
    lab.end(beside);
    lab.end(stays);
    // Before garbage collection, the table still has the old prefix.
    lab.bridge("one", "br-two", "10.204.0.0/24");
    lab.bridge("two", "br-three", "10.203.0.0/16");
    let pod = lab.pod();
    lab.attach(&pod, &["two"], &[]).unwrap();
    lab.end(pod);
    lab.assert_no_garbage();
}

#[test]
fn orphans_are_collected() {
    if !inside("orphans_are_collected") {
        return;
    }
    let lab = Lab::new();
    let (stays, lost) = (lab.pod(), lab.pod());
    lab.attach(&stays, &["default"], &[port(8081, Protocol::Tcp)]).unwrap();
    lab.attach(&lost, &["default", "default-restricted"], &[port(8080, Protocol::Tcp)]).unwrap();
    fs::remove_file(lost.path.join("network.json")).unwrap();
    fs::create_dir_all(lab.at("net/0f3a1f3e-6f0d-4f0e-8b89-0123456789ab/old/owners")).unwrap();
    sh("ip link add br-admin type bridge; ip link add br-other type bridge; ip link set br-other alias /another/net");
    // Its creator was killed before it set the alias.
    let mac = gantry_net::netlink::Mac::from_id(&format!("{} br-begun", lab.host.state_dir));
    sh(&format!("ip link add br-begun address {mac} type bridge"));
    let findings = pod::check(&lab.host).unwrap().join("\n");
    for want in ["address 10.121.0.3", "address 10.122.0.2", "interface gt", "boot 0f3a1f3e", "port 8080/tcp"] {
        assert!(findings.contains(want), "no {want} in {findings}");
    }
    let told = pod::collect_garbage(&lab.host, true).unwrap();
    assert_eq!(pod::collect_garbage(&lab.host, true).unwrap(), told, "nothing was changed");
    let swept = pod::collect_garbage(&lab.host, false).unwrap().join("\n");
    for want in
        ["bridge gantry1", "bridge br-begun", "network default-restricted", "interface gt", "8080/tcp", "boot 0f3a1f3e"]
    {
        assert!(swept.contains(want), "no {want} in {swept}");
    }
    assert!(!swept.contains("8081") && !swept.contains("10.121.0.2 "), "{swept}");
    assert_eq!(pod::check(&lab.host).unwrap(), Vec::<String>::new());
    assert_eq!(pod::collect_garbage(&lab.host, true).unwrap(), Vec::<String>::new());
    assert_eq!(pod::list_networks(&lab.host, Some("default")).unwrap()[0].pods.len(), 1);
    lab.end(stays);
    lab.assert_no_garbage();
    assert_eq!(lab.links(), ["br-admin", "br-other"], "others' bridges are theirs");
}

const HELPER: &str = "GANTRY_NET_TEST_HELPER";

/// A supervisor for the tests below: attaches, reports it, waits for input, detaches.
#[test]
#[ignore = "run by others as a program"]
fn supervisor() {
    let Some(task) = std::env::var_os(HELPER) else { return };
    let task: Value = serde_json::from_str(task.to_str().unwrap()).unwrap();
    let (id, path) = (task["id"].as_str().unwrap(), task["path"].as_str().unwrap());
    let wanted = serde_json::from_value(task["wanted"].clone()).unwrap();
    let dir = fs::File::open(path).unwrap();
    let host = Namespace::own().unwrap();
    let pid = Pid::from_raw(i32::try_from(task["holder"].as_i64().unwrap()).unwrap()).unwrap();
    let own = Namespace::from_process(pid).unwrap();
    let it = pod::Pod { id, dir: dir.as_fd() };
    println!("begins");
    let namespaces = pod::Namespaces { host: &host, own: &own, keeper: std::process::id() };
    let attach = || pod::select_networks(&wanted).and_then(|selection| pod::attach(&it, &selection, &namespaces));
    let attached = own.enter(|| Ok(attach())).unwrap();
    let Ok((_, held)) = attached else { return };
    println!("attached");
    std::io::stdin().read_exact(&mut [0]).unwrap();
    drop(held);
    pod::detach(&it, Some(&own)).unwrap();
    println!("detached");
}

fn run_supervisor(lab: &Lab, pod: &TestPod, names: &[&str], number: u16) -> Child {
    let wanted = lab.wanted(names, &[port(number, Protocol::Tcp), port(number, Protocol::Udp)]);
    let task = json!({"id": pod.id, "path": pod.path, "wanted": wanted, "holder": pod.holder()});
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "supervisor", "--nocapture", "--include-ignored"])
        .env(HELPER, task.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads the output of a supervisor up to this word.
fn wait_for_line(child: &mut Child, word: &str) {
    let mut said = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&said).contains(word) {
        assert_eq!(child.stdout.as_mut().unwrap().read(&mut byte).unwrap(), 1, "{}", String::from_utf8_lossy(&said));
        said.push(byte[0]);
    }
}

/// Sleeps, to reach a time in the middle of an operation.
fn advance(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::thread::yield_now();
    }
}

#[test]
fn supervisors_killed_at_random_times_leave_nothing() {
    if !inside("supervisors_killed_at_random_times_leave_nothing") {
        return;
    }
    let mut lab = Lab::new();
    lab.host.use_plugins = true;
    lab.bridge("plugins", "br-plugins", "10.203.0.0/24");
    let names: &[&[&str]] = &[&["default"], &["default", "default-restricted"], &["default", "plugins"]];
    for round in 0..36_u64 {
        let (names, down) = (names[usize::try_from(round % 3).unwrap()], round % 2 == 1);
        let mut pod = lab.pod();
        let mut child = run_supervisor(&lab, &pod, names, 8000);
        wait_for_line(&mut child, if down { "attached" } else { "begins" });
        if down {
            child.stdin.as_mut().unwrap().write_all(b"!").unwrap();
        }
        let steps = if names.contains(&"plugins") { 20_000 } else { 1_500 };
        advance(Duration::from_micros(round * 7919 % 12 * steps));
        child.kill().unwrap();
        child.wait().unwrap();
        pod.end_process();
        // Every other time, garbage collection runs first, and must not touch resources in the record.
        if round % 4 < 2 {
            pod::collect_garbage(&lab.host, false).unwrap();
        }
        lab.detach(&pod).unwrap();
        drop(pod);
        lab.assert_no_pod_resources();
    }
    lab.assert_no_garbage();
}

#[test]
fn a_killed_detach_is_completed() {
    if !inside("a_killed_detach_is_completed") {
        return;
    }
    let lab = Lab::new();
    // After an earlier attempt of the same pod, attach detaches it first.
    let mut pod = lab.pod();
    let mut child = run_supervisor(&lab, &pod, &["default"], 8000);
    wait_for_line(&mut child, "attached");
    child.kill().unwrap();
    child.wait().unwrap();
    let id = pod.id.clone();
    pod.end_process();
    let again = lab.pod_named(&id);
    let (attached, held) = lab.attach(&again, &["default"], &[port(8000, Protocol::Tcp)]).unwrap();
    assert_eq!(attached[0].addresses[0].address.to_string(), "10.121.0.3");
    assert_eq!(lab.kept().len(), 3, "{:?}", lab.kept());
    drop((pod, held));
    lab.end(again);
    lab.assert_no_garbage();
}

/// CPU time of this thread, which does not depend on the load.
fn cpu_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap(), now.tv_nsec.try_into().unwrap())
}

/// The cost, besides `PODS` other pods; a measurement: `cargo test -p gantry-net --test pod_native cost -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement"]
fn cost() {
    if !inside("cost") {
        return;
    }
    let lab = Lab::new();
    let others: usize = std::env::var("PODS").map_or(1, |pods| pods.parse().unwrap());
    let others: Vec<TestPod> = (0..others).map(|_| lab.pod()).collect();
    others.iter().for_each(|pod| drop(lab.attach(pod, &["default"], &[]).unwrap()));
    for (ports, protocol) in [(0, Protocol::Tcp), (1, Protocol::Tcp), (1, Protocol::Udp)] {
        let (mut up, mut down, mut worked) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..60 {
            let pod = lab.pod();
            let ports: Vec<PodPort> = (0..ports).map(|_| port(8000 + number, protocol)).collect();
            let (start, cpu) = (Instant::now(), cpu_time());
            let (_, held) = lab.attach(&pod, &["default"], &ports).unwrap();
            up.push(start.elapsed());
            worked.push(cpu_time() - cpu);
            drop(held);
            let it = pod::Pod { id: &pod.id, dir: pod.dir.as_fd() };
            let start = Instant::now();
            pod::detach(&it, Some(&pod.own)).unwrap();
            down.push(start.elapsed());
            drop(pod);
            // While the kernel removes a namespace, no interfaces can be created.
            until("the namespace is gone", || {
                lab.links().iter().filter(|name| name.starts_with("gt")).count() == others.len()
            });
        }
        up.sort();
        down.sort();
        worked.sort();
        let (up, down) = ((up[30], up[54]), (down[30], down[54]));
        println!(
            "{ports} ports of {protocol:?}: attach {up:?} (of the processor {:?}), detach {down:?}; p50, p90",
            worked[30]
        );
    }
    others.into_iter().for_each(|pod| lab.end(pod));
}

#[test]
fn lease_names_are_not_trusted() {
    if !inside("lease_names_are_not_trusted") {
        return;
    }
    let lab = Lab::new();
    let mut pod = lab.pod();
    lab.attach(&pod, &["default"], &[]).unwrap();
    pod.end_process();
    let record = pod.path.join("network.json");
    let whole = fs::read_to_string(&record).unwrap();
    // A copy of another pod's record is damaged.
    let mut other = lab.pod();
    other.end_process();
    fs::write(other.path.join("network.json"), &whole).unwrap();
    assert_eq!(lab.detach(&other).unwrap_err().kind(), ErrorKind::Damaged);
    fs::remove_file(other.path.join("network.json")).unwrap();
    assert_eq!(lab.kept().len(), 3);
    until("the interface goes", || !lab.links().iter().any(|name| name.starts_with("gt")));
    lab.end(pod);
    lab.assert_no_garbage();
}
