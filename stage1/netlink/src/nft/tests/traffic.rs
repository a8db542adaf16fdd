//! Packets through the tables: an outside, a host with three networks, and pods, each in a namespace of its own.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, ipproto};

use super::space::Space;
use super::{bridge, port, prefixes, to};
use crate::nft::{Access, Interface, Network, Protocol, State};
use crate::test_support::{Feature, bound, skipped, until};
use Protocol::{Sctp, Tcp, Udp};

/// Long enough for an answer, also on a busy machine.
const MAX_PARTS: Duration = Duration::from_secs(10);
/// How long to wait for a packet that must not arrive.
const NEVER: Duration = Duration::from_millis(250);

/// Servers that reply with the client's address.
#[derive(Default)]
struct Servers {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Servers {
    fn serve(&mut self, space: &Space, protocol: Protocol, address: &str) {
        let address: SocketAddr = address.parse().unwrap();
        let ended = Arc::clone(&self.ended);
        if protocol == Udp {
            let socket = bound(|| space.within(|| UdpSocket::bind(address)));
            socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
            self.threads.push(std::thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    if let Ok((_, peer)) = socket.recv_from(&mut [0; 16]) {
                        let _ = socket.send_to(peer.to_string().as_bytes(), peer);
                    }
                }
            }));
            return;
        }
        let listener = bound(|| space.within(|| listen(protocol, address)));
        listener.set_nonblocking(true).unwrap();
        self.threads.push(std::thread::spawn(move || {
            let mut open: Vec<TcpStream> = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let mut all = vec![PollFd::new(&listener, PollFlags::IN)];
                all.extend(open.iter().map(|stream| PollFd::new(stream, PollFlags::IN)));
                poll(&mut all, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 })).unwrap();
                match listener.accept() {
                    Ok((mut stream, peer)) => {
                        stream.write_all(peer.to_string().as_bytes()).unwrap();
                        stream.set_nonblocking(true).unwrap();
                        open.push(stream);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => panic!("{error}"),
                }
                // Echo the received byte.
                open.retain_mut(|stream| {
                    let mut byte = [0];
                    match stream.read(&mut byte) {
                        Ok(1) => stream.write_all(&byte).is_ok(),
                        Ok(_) => false,
                        Err(error) => error.kind() == ErrorKind::WouldBlock,
                    }
                });
            }
        }));
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn stream_socket(protocol: Protocol, address: SocketAddr) -> OwnedFd {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let number = if protocol == Sctp { ipproto::SCTP } else { ipproto::TCP };
    rustix::net::socket(family, SocketType::STREAM, Some(number)).unwrap()
}

fn has_sctp() -> bool {
    rustix::net::socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::SCTP)).is_ok()
}

fn listen(protocol: Protocol, address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = stream_socket(protocol, address);
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, 64)?;
    Ok(TcpListener::from(socket))
}

fn connect(protocol: Protocol, address: SocketAddr, limit: Duration) -> std::io::Result<TcpStream> {
    if protocol == Tcp {
        return TcpStream::connect_timeout(&address, limit);
    }
    let socket = stream_socket(protocol, address);
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Send, Some(limit))?;
    rustix::net::connect(&socket, &address)?;
    Ok(TcpStream::from(socket))
}

/// The client address that a server sees; None without a reply.
fn seen(from: &Space, protocol: Protocol, address: &str, limit: Duration) -> Option<String> {
    let address: SocketAddr = address.parse().unwrap();
    let mut buffer = [0; 100];
    let length = from.within(|| {
        if protocol == Udp {
            let any: SocketAddr = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }.parse().unwrap();
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(limit)).unwrap();
            socket.connect(address).ok()?;
            socket.send(b"?").ok()?;
            return socket.recv(&mut buffer).ok();
        }
        let mut stream = connect(protocol, address, limit).ok()?;
        stream.set_read_timeout(Some(limit)).unwrap();
        stream.read(&mut buffer).ok()
    })?;
    let peer: SocketAddr = std::str::from_utf8(&buffer[..length]).ok()?.parse().ok()?;
    Some(peer.ip().to_string())
}

pub(super) struct Lan {
    pub(super) outside: Space,
    pub(super) host: Space,
    pub(super) a: Space,
    pub(super) b: Space,
    pub(super) restricted: Space,
    pub(super) other: Space,
}

const QUIET: &str =
    "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad; echo 0 > /proc/sys/net/ipv6/conf/all/accept_dad;";

pub(super) fn wire() -> Lan {
    let lan = Lan {
        outside: Space::new(),
        host: Space::new(),
        a: Space::new(),
        b: Space::new(),
        restricted: Space::new(),
        other: Space::new(),
    };
    lan.host.sh(&format!(
        "{QUIET} echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
        for n in 0 1 2; do
            ip link add gantry$n type bridge
            ip link set gantry$n up
            echo 1 > /proc/sys/net/ipv4/conf/gantry$n/route_localnet
        done
        ip addr add 10.1.0.1/16 dev gantry0; ip addr add fd00:1::1/64 dev gantry0 nodad
        ip addr add 10.2.0.1/24 dev gantry1; ip addr add fd00:2::1/64 dev gantry1 nodad
        ip addr add 10.3.0.1/16 dev gantry2; ip addr add fd00:3::1/64 dev gantry2 nodad
        ip link add up0 type veth peer name eth0 netns {}; ip link set up0 up
        ip addr add 192.0.2.1/24 dev up0; ip addr add 2001:db8::1/64 dev up0 nodad",
        lan.outside.id()
    ));
    let join = |space: &Space, bridge: Option<&str>, four: &str, six: &str, routes: &str| {
        if let Some(bridge) = bridge {
            let id = space.id();
            lan.host.sh(&format!(
                "ip link add v{id} type veth peer name eth0 netns {id}; ip link set v{id} master {bridge} up
                ip link set v{id} type bridge_slave hairpin on"
            ));
        }
        space.sh(&format!(
            "{QUIET} ip link set eth0 up; ip addr add {four} dev eth0; ip addr add {six} dev eth0 nodad; {routes}"
        ));
    };
    // The outside has routes to the networks: packets that do not arrive were dropped.
    let routes = "ip route add 10.0.0.0/8 via 192.0.2.1; ip route add fd00::/8 via 2001:db8::1";
    join(&lan.outside, None, "192.0.2.2/24", "2001:db8::2/64", routes);
    let gateway = |n: u8| format!("ip route add default via 10.{n}.0.1; ip route add default via fd00:{n}::1");
    join(&lan.a, Some("gantry0"), "10.1.0.2/16", "fd00:1::2/64", &gateway(1));
    join(&lan.b, Some("gantry0"), "10.1.0.3/16", "fd00:1::3/64", &gateway(1));
    join(&lan.restricted, Some("gantry1"), "10.2.0.2/24", "fd00:2::2/64", "");
    join(&lan.other, Some("gantry2"), "10.3.0.2/16", "fd00:3::2/64", &gateway(3));
    // The kernel detects the carrier asynchronously.
    for space in [&lan.outside, &lan.host, &lan.a, &lan.b, &lan.restricted, &lan.other] {
        until("the veth pairs to have a carrier", || {
            space.sh("ip -o link").lines().all(|link| link.contains(" state UP ") || link.contains(" lo: "))
        });
    }
    lan
}

pub(super) fn networks() -> State {
    let mut state = State::new();
    bridge(&mut state, "default", "gantry0", &["10.1.0.0/16", "fd00:1::/64"], Access::Isolated);
    bridge(&mut state, "apart", "gantry1", &["10.2.0.0/24", "fd00:2::/64"], Access::Restricted);
    bridge(&mut state, "other", "gantry2", &["10.3.0.0/16", "fd00:3::/64"], Access::Isolated);
    state
}

/// Pods serve on 80, the outside on 90 and 8080; a's ports are 8080 and, on loopback, 8081.
fn all() -> State {
    let mut state = networks();
    for protocol in [Tcp, Udp, Sctp] {
        state.ports.insert(port("0.0.0.0", protocol, 8080), to("10.1.0.2:80", "a"));
        state.ports.insert(port("::", protocol, 8080), to("[fd00:1::2]:80", "a"));
        state.ports.insert(port("127.0.0.1", protocol, 8081), to("10.1.0.2:80", "a"));
        state.ports.insert(port("0.0.0.0", protocol, 8082), to("10.2.0.2:80", "r"));
        state.ports.insert(port("::", protocol, 8082), to("[fd00:2::2]:80", "r"));
        state.ports.insert(port("0.0.0.0", protocol, 8083), to("10.1.0.2:80", "a"));
        state.ports.insert(port("192.0.2.1", protocol, 8083), to("10.1.0.3:81", "b"));
    }
    state
}

fn start(lan: &Lan) -> Servers {
    let mut servers = Servers::default();
    let mut protocols = vec![Tcp, Udp];
    if has_sctp() {
        protocols.push(Sctp);
    } else {
        skipped(Feature::Sctp);
    }
    for protocol in protocols {
        for (space, port) in [(&lan.a, 80), (&lan.b, 81), (&lan.b, 80), (&lan.restricted, 80), (&lan.other, 80)] {
            servers.serve(space, protocol, &format!("0.0.0.0:{port}"));
        }
        for space in [&lan.a, &lan.restricted, &lan.other] {
            for address in space.sh("ip -6 -o addr show scope global | sed 's/.*inet6 //; s,/.*,,'").lines() {
                servers.serve(space, protocol, &format!("[{address}]:80"));
            }
        }
        for port in [90, 8080] {
            servers.serve(&lan.outside, protocol, &format!("192.0.2.2:{port}"));
            servers.serve(&lan.outside, protocol, &format!("[2001:db8::2]:{port}"));
        }
        servers.serve(&lan.host, protocol, "127.0.0.1:99");
        servers.serve(&lan.host, protocol, "10.2.0.1:99");
    }
    servers
}

fn reaches(from: &Space, address: &str, by: &str) {
    for protocol in [Tcp, Udp] {
        let peer = seen(from, protocol, address, MAX_PARTS);
        assert_eq!(peer.as_deref(), Some(by), "{address}/{protocol} from {}", from.sh("ip -o addr show scope global"));
    }
}

fn does_not_reach(from: &Space, address: &str) {
    for protocol in [Tcp, Udp] {
        assert_eq!(seen(from, protocol, address, NEVER), None, "{address}/{protocol}");
    }
}

#[test]
fn host_ports() {
    host_ports_where(true);
}

/// Where the kernel shows nftables the frames that a bridge switches, it switches changed packets instead of routing
/// them.
#[test]
fn host_ports_without_br_netfilter() {
    host_ports_where(false);
}

fn host_ports_where(filtered: bool) {
    let lan = wire();
    if lan.host.sh("ls /proc/sys/net").lines().all(|name| name != "bridge") {
        println!("br_netfilter is not loaded: bridged packets bypass nftables, as without it");
    }
    lan.host.sh(&format!(
        "if cd /proc/sys/net/bridge; then for f in ip ip6; do echo {} > bridge-nf-call-${{f}}tables; done; fi",
        u8::from(filtered)
    ));
    let _servers = start(&lan);
    let mut table = lan.host.table();
    table.ensure(&all()).unwrap();
    // Clients from outside keep their address.
    reaches(&lan.outside, "192.0.2.1:8080", "192.0.2.2");
    reaches(&lan.outside, "[2001:db8::1]:8080", "2001:db8::2");
    // From the host.
    reaches(&lan.host, "127.0.0.1:8080", "10.1.0.1");
    reaches(&lan.host, "127.0.0.1:8081", "10.1.0.1");
    // Not through ::1, but refused at once.
    let refused = lan.host.within(|| connect(Tcp, "[::1]:8080".parse().unwrap(), MAX_PARTS).unwrap_err());
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    reaches(&lan.host, "[fd00:1::1]:8080", "fd00:1::1");
    reaches(&lan.host, "192.0.2.1:8080", "192.0.2.1");
    // From the pod to itself, from its neighbour, from another network.
    for pod in [&lan.a, &lan.b, &lan.other] {
        for address in ["192.0.2.1:8080", "10.1.0.1:8080"] {
            reaches(pod, address, "10.1.0.1");
        }
        reaches(pod, "[2001:db8::1]:8080", "fd00:1::1");
    }
    // A restricted pod has no route to the outside, but can be reached; it can reach its gateway.
    reaches(&lan.outside, "192.0.2.1:8082", "10.2.0.1");
    reaches(&lan.outside, "[2001:db8::1]:8082", "fd00:2::1");
    reaches(&lan.restricted, "10.2.0.1:8080", "10.2.0.2");
    // An entry with an address takes precedence.
    reaches(&lan.outside, "192.0.2.1:8083", "192.0.2.2");
    lan.b.sh("ip link set eth0 down");
    does_not_reach(&lan.outside, "192.0.2.1:8083");
    reaches(&lan.host, "127.0.0.1:8083", "10.1.0.1");
    // Only packets addressed to the host.
    reaches(&lan.a, "192.0.2.2:8080", "192.0.2.1");
    // Gone with the element.
    let mut one = State::new();
    one.ports = all().ports.into_iter().filter(|(port, _)| port.port == 8080).collect();
    table.remove(&one).unwrap();
    does_not_reach(&lan.host, "127.0.0.1:8080");
    does_not_reach(&lan.outside, "192.0.2.1:8080");
    reaches(&lan.host, "127.0.0.1:8081", "10.1.0.1");
}

#[test]
fn loopback_is_not_reachable_from_outside() {
    let lan = wire();
    let _servers = start(&lan);
    lan.host.table().ensure(&all()).unwrap();
    // Neighbours that send to 127.0.0.1.
    for (space, gateway) in [(&lan.outside, "192.0.2.1"), (&lan.a, "10.1.0.1")] {
        space.sh(&format!(
            "echo 1 > /proc/sys/net/ipv4/conf/eth0/route_localnet
            ip addr flush dev lo
            ip route flush table local dev lo
            ip route add 127.0.0.1/32 via {gateway} src $(ip -4 -o addr show dev eth0 | sed 's/.*inet //; s,/.*,,')"
        ));
        does_not_reach(space, "127.0.0.1:8081");
        does_not_reach(space, "127.0.0.1:99");
    }
    // Without those rules they would: this test can fail.
    lan.host.sh("nft flush chain inet gantry antispoof");
    reaches(&lan.a, "127.0.0.1:99", "10.1.0.2");
    lan.host.sh("nft flush chain inet gantry prerouting; nft add rule inet gantry prerouting jump ports");
    reaches(&lan.outside, "127.0.0.1:8081", "192.0.2.2");
}

#[test]
fn networks_are_isolated() {
    let lan = wire();
    let _servers = start(&lan);
    // Without a table everyone reaches everyone: this test can fail.
    reaches(&lan.a, "10.3.0.2:80", "10.1.0.2");
    reaches(&lan.outside, "10.2.0.1:99", "192.0.2.2");
    lan.restricted.sh("ip route add default via 10.2.0.1; ip route add default via fd00:2::1");
    reaches(&lan.restricted, "192.0.2.2:90", "10.2.0.2");
    lan.host.table().ensure(&networks()).unwrap();
    // Outwards, masqueraded; within, not.
    reaches(&lan.a, "192.0.2.2:90", "192.0.2.1");
    reaches(&lan.a, "[2001:db8::2]:90", "2001:db8::1");
    reaches(&lan.a, "10.1.0.3:80", "10.1.0.2");
    reaches(&lan.host, "10.1.0.2:80", "10.1.0.1");
    // A route to the pod does not help a client from outside.
    does_not_reach(&lan.outside, "10.1.0.2:80");
    does_not_reach(&lan.outside, "[fd00:1::2]:80");
    // From one network to another.
    for address in ["10.3.0.2:80", "[fd00:3::2]:80", "10.2.0.2:80", "[fd00:2::2]:80"] {
        does_not_reach(&lan.a, address);
    }
    for address in ["10.1.0.2:80", "[fd00:1::2]:80"] {
        does_not_reach(&lan.other, address);
        does_not_reach(&lan.restricted, address);
    }
    // Restricted: the host and no further, in both directions.
    for address in ["192.0.2.2:90", "[2001:db8::2]:90"] {
        does_not_reach(&lan.restricted, address);
    }
    reaches(&lan.restricted, "10.2.0.1:99", "10.2.0.2");
    does_not_reach(&lan.outside, "10.2.0.2:80");
    does_not_reach(&lan.outside, "[fd00:2::2]:80");
    // A network without masquerading is reachable by its addresses.
    let mut state = networks();
    state.networks.get_mut("default").unwrap().masquerade = false;
    lan.host.table().ensure(&state).unwrap();
    reaches(&lan.outside, "10.1.0.2:80", "192.0.2.2");
    // Open to each other, but not to isolated networks.
    let mut state = networks();
    for (network, interface) in [("default", "gantry0"), ("other", "gantry2")] {
        state.interfaces.get_mut(interface).unwrap().access = Access::Open;
        lan.host.table().ensure(&state).unwrap();
        let reached = seen(&lan.a, Tcp, "10.3.0.2:80", NEVER);
        assert_eq!(reached.is_some(), network == "other", "{reached:?}");
    }
}

/// A pod that takes an address of another network gets no access to it on any bridge.
#[test]
fn an_address_of_another_network_opens_nothing() {
    let lan = wire();
    lan.a.sh("ip addr add 10.3.0.9/32 dev eth0; ip addr add fd00:3::9/128 dev eth0 nodad");
    let mut table = lan.host.table();
    for (state, passes) in [(None, true), (Some(networks()), false)] {
        table.delete().unwrap();
        state.iter().for_each(|state| table.ensure(state).unwrap());
        for (from, to) in [("10.3.0.9:0", "10.3.0.2:99"), ("[fd00:3::9]:0", "[fd00:3::2]:99")] {
            let receiver = bound(|| lan.other.within(|| UdpSocket::bind(to)));
            let sender = bound(|| lan.a.within(|| UdpSocket::bind(from)));
            sender.send_to(b"!", to).unwrap();
            receiver.set_read_timeout(Some(if passes { MAX_PARTS } else { NEVER })).unwrap();
            assert_eq!(receiver.recv(&mut [0]).is_ok(), passes, "{from} {to}");
        }
    }
}

/// Pods that have an interface of the host each.
#[test]
fn interfaces_of_single_pods() {
    let lan = wire();
    let mut servers = start(&lan);
    let pods = [Space::new(), Space::new()];
    let mut state = all();
    let subnets = prefixes(&["10.4.0.0/24", "fd00:4::/64"]);
    state.networks.insert("ptp".to_owned(), Network { prefixes: subnets, masquerade: true });
    for (pod, n) in pods.iter().zip(2..) {
        lan.host.sh(&format!(
            "ip link add ptp{n} type veth peer name eth0 netns {}; ip link set ptp{n} up
            ip addr add 10.4.0.1/32 dev ptp{n}; ip addr add fd00:4::1/128 dev ptp{n} nodad
            ip route add 10.4.0.{n}/32 dev ptp{n}; ip route add fd00:4::{n}/128 dev ptp{n}",
            pod.id()
        ));
        pod.sh(&format!(
            "{QUIET} ip link set eth0 up; ip addr add 10.4.0.{n}/32 dev eth0; ip addr add fd00:4::{n}/128 dev eth0 nodad
            ip route add 10.4.0.1 dev eth0; ip route add default via 10.4.0.1
            ip route add fd00:4::1 dev eth0; ip route add default via fd00:4::1"
        ));
        let addresses = [[10, 4, 0, n].into(), format!("fd00:4::{n}").parse().unwrap()].into();
        let interface = Interface { network: "ptp".to_owned(), addresses, access: Access::Isolated };
        state.interfaces.insert(format!("ptp{n}"), interface);
        for protocol in [Tcp, Udp] {
            servers.serve(pod, protocol, &format!("10.4.0.{n}:80"));
            servers.serve(pod, protocol, &format!("[fd00:4::{n}]:80"));
            let host = 9000 + u16::from(n);
            state.ports.insert(port("0.0.0.0", protocol, host), to(&format!("10.4.0.{n}:80"), "p"));
            state.ports.insert(port("::", protocol, host), to(&format!("[fd00:4::{n}]:80"), "p"));
        }
    }
    let mut table = lan.host.table();
    table.ensure(&state).unwrap();
    let [one, _] = &pods;
    reaches(one, "10.4.0.3:80", "10.4.0.2");
    reaches(one, "[fd00:4::3]:80", "fd00:4::2");
    reaches(one, "192.0.2.2:90", "192.0.2.1");
    reaches(one, "[2001:db8::2]:90", "2001:db8::1");
    for address in ["192.0.2.1:9002", "192.0.2.1:9003"] {
        reaches(one, address, "10.4.0.1");
        reaches(&lan.outside, address, "192.0.2.2");
    }
    reaches(one, "[2001:db8::1]:9002", "fd00:4::1");
    for address in ["10.1.0.2:80", "[fd00:1::2]:80", "10.2.0.2:80"] {
        does_not_reach(one, address);
    }
    does_not_reach(&lan.a, "10.4.0.2:80");
    // With a foreign address the pod has no access to its network.
    one.sh("ip addr add 10.4.0.9/32 dev eth0; ip route add 10.4.0.3 via 10.4.0.1 src 10.4.0.9");
    lan.host.sh("ip route add 10.4.0.9/32 dev ptp2");
    does_not_reach(one, "10.4.0.3:80");
    state.interfaces.get_mut("ptp2").unwrap().addresses.insert([10, 4, 0, 9].into());
    table.ensure(&state).unwrap();
    reaches(one, "10.4.0.3:80", "10.4.0.9");
}

/// Protocols without sockets in std.
#[test]
fn other_protocols() {
    if !has_sctp() {
        skipped(Feature::Sctp);
        return;
    }
    let lan = wire();
    let _servers = start(&lan);
    lan.host.table().ensure(&all()).unwrap();
    for (from, address, by) in [
        (&lan.outside, "192.0.2.1:8080", "192.0.2.2"),
        (&lan.host, "127.0.0.1:8080", "10.1.0.1"),
        (&lan.a, "192.0.2.1:8080", "10.1.0.1"),
        (&lan.outside, "[2001:db8::1]:8080", "2001:db8::2"),
    ] {
        assert_eq!(seen(from, Sctp, address, MAX_PARTS).as_deref(), Some(by), "{address}");
    }
}

#[test]
fn connections_outlive_a_replacement() {
    let lan = wire();
    let _servers = start(&lan);
    let mut table = lan.host.table();
    table.ensure(&all()).unwrap();
    let address = "192.0.2.1:8080".parse().unwrap();
    let mut stream = lan.outside.within(|| connect(Tcp, address, MAX_PARTS).unwrap());
    stream.set_read_timeout(Some(MAX_PARTS)).unwrap();
    let mut buffer = [0; 100];
    assert!(stream.read(&mut buffer).unwrap() > 0);
    for flush in [false, true] {
        if flush {
            // The host itself answers intermediate packets, acknowledgements included: it has no such connection.
            for space in [&lan.outside, &lan.a] {
                let silent = |line: &str| line.split_whitespace().nth(1) == Some("0");
                until("all to be acknowledged", || space.sh("ss -Htn state established").lines().all(silent));
            }
            lan.host.sh("nft flush ruleset");
        }
        table.ensure(&all()).unwrap();
        stream.write_all(b"!").unwrap();
        assert_eq!(stream.read(&mut buffer).unwrap(), 1);
        assert_eq!(buffer[0], b'!');
    }
}
