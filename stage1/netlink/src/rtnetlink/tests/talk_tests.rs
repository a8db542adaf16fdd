//! Connections of pods on a bridge to each other, to the host and through it, over IPv4 and IPv6, TCP and UDP.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::address::Cidr;
use crate::rtnetlink::address::Address;
use crate::rtnetlink::link::port::Port;
use crate::rtnetlink::route::Route;
use crate::rtnetlink::traffic::TokenBucket;
use crate::sysctl::Sysctl;
use crate::test_support::{Feature, Net, lacks, until};

const LIMIT: Duration = Duration::from_secs(10);
const AGAIN: Duration = Duration::from_secs(1);

fn four(network: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(10, 9, network, host).into()
}

fn six(network: u8, host: u8) -> IpAddr {
    Ipv6Addr::new(0xfd00, 9, 0, u16::from(network), 0, 0, 0, u16::from(host)).into()
}

/// A bridge of this number with its gateway addresses.
fn network(host: &mut Net, number: u8) -> u32 {
    let bridge = host.bridge(&format!("br{number}"));
    host.socket.add_address(bridge, &Address::new(Cidr::new(four(number, 1), 24).unwrap())).unwrap();
    host.socket.add_address(bridge, &Address::new(Cidr::new(six(number, 1), 64).unwrap())).unwrap();
    bridge
}

/// A pod on it.
fn pod(host: &mut Net, bridge: u32, network: u8, number: u8) -> Net {
    let mut pod = Net::new();
    host.plug(&format!("veth{network}-{number}"), bridge, &mut pod);
    let index = pod.index("eth0");
    for (address, gateway, length) in
        [(four(network, number), four(network, 1), 24), (six(network, number), six(network, 1), 64)]
    {
        pod.socket.add_address(index, &Address::new(Cidr::new(address, length).unwrap())).unwrap();
        pod.socket.add_route(&Route::default_by(gateway, index)).unwrap();
    }
    // The kernel detects the carrier asynchronously.
    until("the veth pair to have a carrier", || {
        let ends = [format!("br{network}"), format!("veth{network}-{number}")];
        ends.iter().all(|end| host.get(end).is_running()) && pod.get("eth0").is_running()
    });
    pod
}

fn tcp(from: &Net, to: &Net, address: IpAddr) {
    let listener = to.namespace.enter(|| Ok(TcpListener::bind((address, 0)).unwrap())).unwrap();
    let at = listener.local_addr().unwrap();
    // Neighbour resolution gives up after three probes, which a loaded machine may lose.
    let mut client = None;
    until("a connection", || {
        client = from.namespace.enter(|| Ok(TcpStream::connect_timeout(&at, LIMIT).ok())).unwrap();
        client.is_some()
    });
    let mut client = client.unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(LIMIT)).unwrap();
    client.write_all(b"to the pod").unwrap();
    let mut heard = [0; 10];
    server.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"to the pod");
}

fn udp_pair(from: &Net, to: &Net, address: IpAddr) -> (UdpSocket, UdpSocket, SocketAddr) {
    let server = to.namespace.enter(|| Ok(UdpSocket::bind((address, 0)).unwrap())).unwrap();
    let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let client = from.namespace.enter(|| Ok(UdpSocket::bind((any, 0)).unwrap())).unwrap();
    let at = server.local_addr().unwrap();
    (client, server, at)
}

/// Retries, as UDP clients do: neighbour resolution may be too slow for the first packet.
fn udp(from: &Net, to: &Net, address: IpAddr) {
    let (client, server, at) = udp_pair(from, to, address);
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(AGAIN)).unwrap();
    }
    let mut heard = [0; 8];
    until("an answer by UDP", || {
        client.send_to(b"ping", at).unwrap();
        let Ok((length, sender)) = server.recv_from(&mut heard) else { return false };
        assert_eq!(&heard[..length], b"ping");
        server.send_to(b"pong", sender).unwrap();
        client.recv_from(&mut heard).is_ok_and(|from| from == (4, at))
    });
}

#[test]
fn pods_reach_host_and_other_networks() {
    let mut host = Net::new();
    for switch in [Sysctl::ForwardV4, Sysctl::ForwardV6] {
        host.namespace.enter(|| switch.set("1")).unwrap();
    }
    let (left, right) = (network(&mut host, 1), network(&mut host, 2));
    let (one, two) = (pod(&mut host, left, 1, 2), pod(&mut host, left, 1, 3));
    let far = pod(&mut host, right, 2, 2);
    for exchange in [tcp, udp] {
        for address in [four, six] {
            exchange(&one, &two, address(1, 3));
            exchange(&two, &one, address(1, 2));
            exchange(&one, &host, address(1, 1));
            exchange(&host, &one, address(1, 2));
            exchange(&one, &far, address(2, 2));
            exchange(&far, &two, address(1, 3));
        }
    }
}

#[test]
fn isolated_ports_exchange_no_packets() {
    let mut host = Net::new();
    let bridge = network(&mut host, 1);
    let (one, two) = (pod(&mut host, bridge, 1, 2), pod(&mut host, bridge, 1, 3));
    udp(&one, &two, four(1, 3));
    for port in ["veth1-2", "veth1-3"] {
        let index = host.index(port);
        host.socket.change_port(index, &Port { isolated: Some(true), ..Port::default() }).unwrap();
    }
    // The host still receives from each; the bridge drops packets between them.
    let (client, server, at) = udp_pair(&one, &two, four(1, 3));
    client.send_to(b"lost", at).unwrap();
    udp(&one, &host, four(1, 1));
    udp(&host, &two, four(1, 3));
    server.set_nonblocking(true).unwrap();
    assert!(server.recv(&mut [0; 8]).is_err(), "a packet passed between isolated ports");
}

#[test]
fn a_token_bucket_limits_the_rate() {
    let mut host = Net::new();
    let bridge = network(&mut host, 1);
    let pod = pod(&mut host, bridge, 1, 2);
    let index = host.index("veth1-2");
    let bucket = TokenBucket { rate: 1_000_000, burst: 100_000, latency: Duration::from_millis(50) };
    let limited = host.socket.limit_rate(index, &bucket);
    if lacks(Feature::TokenBuckets, &limited) {
        return;
    }
    limited.unwrap();
    let listener = pod.namespace.enter(|| Ok(TcpListener::bind((four(1, 2), 0)).unwrap())).unwrap();
    let at = listener.local_addr().unwrap();
    let mut client = host.namespace.enter(|| Ok(TcpStream::connect_timeout(&at, LIMIT))).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let begun = Instant::now();
    let sender = std::thread::spawn(move || client.write_all(&[0; 500_000]));
    let mut heard = Vec::new();
    server.read_to_end(&mut heard).unwrap();
    sender.join().unwrap().unwrap();
    let took = begun.elapsed();
    assert_eq!(heard.len(), 500_000);
    assert!(took > Duration::from_millis(300), "500 kB at 1 MB/s took {took:?}");
}
