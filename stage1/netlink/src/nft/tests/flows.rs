//! Connections that started before a port was published or unpublished.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::space::Space;
use super::traffic::{Lan, networks, wire};
use super::{port, to};
use crate::nft::conntrack::{StaleFlows, delete_stale_flows};
use crate::nft::{Forward, HostPort, Protocol, State};
use crate::test_support::{bound, until};
use Protocol::{Tcp, Udp};

/// Long enough for an answer, also on a busy machine.
const MAX_PARTS: Duration = Duration::from_secs(20);

type Ports = BTreeMap<HostPort, Forward>;

fn part(ports: &Ports) -> State {
    State { ports: ports.clone(), ..State::new() }
}

fn udp(space: &Space, address: &str) -> UdpSocket {
    let socket = bound(|| space.within(|| UdpSocket::bind(address)));
    socket.set_read_timeout(Some(MAX_PARTS)).unwrap();
    socket
}

/// Sends `what` to `at`, and waits until `by` receives it.
fn assert_received(client: &UdpSocket, at: &str, by: &UdpSocket, what: &[u8]) {
    let mut buffer = [0; 64];
    // The next call reports a pending ICMP error once.
    let _ = client.take_error();
    client.send_to(what, at).unwrap();
    loop {
        let (length, from) = by.recv_from(&mut buffer).unwrap_or_else(|error| panic!("{at}: {error}"));
        by.send_to(what, from).unwrap();
        if &buffer[..length] == what {
            return;
        }
    }
}

fn delete_on(lan: &Lan, ports: &Ports, which: StaleFlows) -> usize {
    let began = Instant::now();
    let count = delete_stale_flows(lan.host.namespace(), ports, which).unwrap();
    println!("{count} of {} ports forgotten in {:?}", ports.len(), began.elapsed());
    count
}

/// The ports of a pod, over both versions.
fn ports(four: &str, six: &str) -> Ports {
    [Tcp, Udp]
        .into_iter()
        .flat_map(|protocol| {
            [
                (port("0.0.0.0", protocol, 8080), to(four, "pod")),
                (port("::", protocol, 8080), to(six, "pod")),
                (port("192.0.2.1", protocol, 9090), to(four, "pod")),
            ]
        })
        .collect()
}

#[test]
fn udp_reaches_the_current_pod() {
    udp_reaches_the_pod(0);
}

/// The kernel filters the dump if there are many entries.
#[test]
fn udp_reaches_the_current_pod_among_many_flows() {
    udp_reaches_the_pod(5000);
}

fn udp_reaches_the_pod(others: u16) {
    let lan = wire();
    let other = udp(&lan.outside, "192.0.2.2:7000");
    for number in 20_000..20_000 + others {
        other.send_to(b"?", ("192.0.2.1", number)).unwrap();
    }
    let mut table = lan.host.table();
    table.ensure(&networks()).unwrap();
    let first = ports("10.1.0.2:80", "[fd00:1::2]:80");
    let second = ports("10.1.0.3:80", "[fd00:1::3]:80");
    for (client, at, of_a, of_b) in [
        ("192.0.2.2:5000", "192.0.2.1:8080", "10.1.0.2:80", "10.1.0.3:80"),
        ("192.0.2.2:5001", "192.0.2.1:9090", "10.1.0.2:80", "10.1.0.3:80"),
        ("[2001:db8::2]:5000", "[2001:db8::1]:8080", "[fd00:1::2]:80", "[fd00:1::3]:80"),
    ] {
        let client = udp(&lan.outside, client);
        let own = udp(&lan.host, at);
        let (a, b) = (udp(&lan.a, of_a), udp(&lan.b, of_b));
        // A socket of the host receives, until the pod's port is published.
        assert_received(&client, at, &own, b"host");
        table.add(&part(&first)).unwrap();
        assert_received(&client, at, &own, b"still the host: this test can fail");
        assert_eq!(delete_on(&lan, &first, StaleFlows::Redirected), 1);
        assert_received(&client, at, &a, b"a");
        assert_eq!(delete_on(&lan, &first, StaleFlows::Redirected), 0, "what leads there stays");
        // The pod dies, and another takes its place.
        table.remove(&part(&first)).unwrap();
        table.add(&part(&second)).unwrap();
        assert_received(&client, at, &a, b"still a");
        assert_eq!(delete_on(&lan, &second, StaleFlows::ToDeadPod), 0);
        assert_eq!(delete_on(&lan, &first, StaleFlows::ToDeadPod), 1);
        assert_received(&client, at, &b, b"b");
        assert_eq!(delete_on(&lan, &first, StaleFlows::ToDeadPod), 0);
        // Or the first one's end was not seen.
        table.remove(&part(&second)).unwrap();
        table.add(&part(&first)).unwrap();
        assert_eq!(delete_on(&lan, &first, StaleFlows::Redirected), 1);
        assert_received(&client, at, &a, b"a again");
        table.remove(&part(&first)).unwrap();
        assert_eq!(delete_on(&lan, &first, StaleFlows::ToDeadPod), 1);
        assert_received(&client, at, &own, b"the host again");
        delete_on(&lan, &first, StaleFlows::Redirected);
    }
}

#[test]
fn flows_of_other_ports_stay() {
    let lan = wire();
    let mut table = lan.host.table();
    table.ensure(&networks()).unwrap();
    let all = ports("10.1.0.2:80", "[fd00:1::2]:80");
    // Out of the host and out of a pod to the same port, and past the port.
    let (outside, elsewhere) = (udp(&lan.outside, "192.0.2.2:8080"), udp(&lan.host, "192.0.2.1:8081"));
    assert_received(&udp(&lan.host, "192.0.2.1:5000"), "192.0.2.2:8080", &outside, b"out");
    assert_received(&udp(&lan.b, "10.1.0.3:5000"), "192.0.2.2:8080", &outside, b"through");
    assert_received(&udp(&lan.outside, "192.0.2.2:5000"), "192.0.2.1:8081", &elsewhere, b"past");
    // The host's own connections of TCP to it, from before.
    let address: SocketAddr = "192.0.2.1:8080".parse().unwrap();
    let own = bound(|| lan.host.within(|| TcpListener::bind(address)));
    let connect = || lan.outside.within(|| TcpStream::connect_timeout(&address, MAX_PARTS).unwrap());
    let _before = (connect(), own.accept().unwrap());
    table.add(&part(&all)).unwrap();
    // And the pod's.
    let listener = bound(|| lan.a.within(|| TcpListener::bind("10.1.0.2:80")));
    let mut client = connect();
    let (served, _) = listener.accept().unwrap();
    assert_eq!(delete_on(&lan, &all, StaleFlows::Redirected), 0);
    let other = ports("10.1.0.3:80", "[fd00:1::3]:80");
    assert_eq!(delete_on(&lan, &other, StaleFlows::ToDeadPod), 0);
    client.write_all(b"?").unwrap();
    until("the datagram to arrive", || served.peek(&mut [0]).unwrap() == 1);
    // It ends without closing anything explicitly.
    table.remove(&part(&all)).unwrap();
    assert_eq!(delete_on(&lan, &all, StaleFlows::ToDeadPod), 1);
    assert_eq!(delete_on(&lan, &State::new().ports, StaleFlows::ToDeadPod), 0);
}

#[test]
fn many_flows_are_deleted_in_batches() {
    let lan = wire();
    let mut table = lan.host.table();
    table.ensure(&networks()).unwrap();
    let client = udp(&lan.outside, "192.0.2.2:5000");
    let mut range = State::new();
    range.forward(port("0.0.0.0", Udp, 10_000), 300, "10.1.0.2:10000".parse().unwrap(), "pod").unwrap();
    for number in 10_000..10_300 {
        let at = format!("192.0.2.1:{number}");
        assert_received(&client, &at, &udp(&lan.host, &at), b"host");
    }
    table.add(&range).unwrap();
    assert_eq!(delete_on(&lan, &range.ports, StaleFlows::Redirected), 300);
    assert_received(&client, "192.0.2.1:10299", &udp(&lan.a, "10.1.0.2:10299"), b"a");
}

proptest! {
    #[test]
    fn parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        crate::nft::conntrack::judge(&bytes);
    }
}
