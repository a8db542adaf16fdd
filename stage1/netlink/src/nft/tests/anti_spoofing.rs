//! Spoofed frames of every kind from a pod, on a bridge with a neighbour that receives all frames.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gantry_model::{ErrorKind, Kind};

use super::frame::{ARP, FrameReceiver, IPV4, IPV6, Mac, Sender, arp, ethernet, icmpv6, ipv6, tagged, udp4, udp6};
use super::space::Space;
use super::{allowed_from, port, sample};
use crate::nft::{AntiSpoofing, Error, Protocol, State};
use crate::test_support::{bound, until};

const A: Mac = [2, 0, 0, 0, 0, 0xa];
const B: Mac = [2, 0, 0, 0, 0, 0xb];
/// The bridge.
const GATEWAY: Mac = [2, 0, 0, 0, 0, 1];
const QUIET: &str = "echo 0 > /proc/sys/net/ipv6/conf/all/accept_ra;";
const MAX_PARTS: Duration = Duration::from_secs(20);

/// A bridge and two pods at it.
struct Lan {
    host: Space,
    a: Space,
    b: Space,
}

fn lan() -> Lan {
    let mut lan = Lan { host: Space::new(), a: Space::new(), b: Space::new() };
    lan.host.bridge("gantry0");
    // This test does not cover the effects of `br_netfilter` on frames.
    lan.host.sh("if cd /proc/sys/net/bridge; then for f in ip ip6 arp; do echo 0 > bridge-nf-call-${f}tables; done; fi
        ip link set gantry0 address 02:00:00:00:00:01 type bridge mcast_snooping 0
        ip addr add 10.1.0.1/16 dev gantry0; ip addr add fd00:1::1/64 dev gantry0 nodad");
    for (space, name, last) in [(&lan.a, "gta", 0xa), (&lan.b, "gtb", 0xb)] {
        let id = space.id();
        lan.host.sh(&format!(
            "ip link add {name} type veth peer name eth0 netns {id} address 02:00:00:00:00:{last:02x}
            ip link set {name} master gantry0 up"
        ));
        let last = last - 8;
        space.sh(&format!(
            "{QUIET} ip link set eth0 up; ip addr add 10.1.0.{last}/16 dev eth0; ip addr add fd00:1::{last}/64 dev eth0 nodad"
        ));
    }
    for space in [&lan.host, &lan.a, &lan.b] {
        until("the cables to carry", || {
            space.sh("ip -o link").lines().all(|link| link.contains(" state UP ") || link.contains(" lo: "))
        });
    }
    lan
}

fn anti_spoofing() -> BTreeMap<String, AntiSpoofing> {
    [("gta", allowed_from(A, &["10.1.0.2", "fd00:1::2"])), ("gtb", allowed_from(B, &["10.1.0.3", "fd00:1::3"]))]
        .map(|(name, guard)| (name.to_owned(), guard))
        .into()
}

fn guarded() -> State {
    State { anti_spoofing: anti_spoofing(), ..State::new() }
}

/// Frames of pod a: whether each is spoofed.
fn frames() -> Vec<(bool, &'static str, Vec<u8>)> {
    let (own, other, gateway) = ([10, 1, 0, 2], [10, 1, 0, 3], [10, 1, 0, 1]);
    let link = "fe80::ff:fe00:a";
    let bad_arp = |at: usize, byte: u8| {
        let mut bad = arp(true, A, own, other);
        bad[at] = byte;
        ethernet(A, ARP, &bad)
    };
    vec![
        (true, "ARP: a question", ethernet(A, ARP, &arp(false, A, own, other))),
        (true, "ARP: an answer", ethernet(A, ARP, &arp(true, A, own, other))),
        (true, "ARP: is it free", ethernet(A, ARP, &arp(false, A, [0; 4], own))),
        (false, "ARP: I am the gateway", ethernet(A, ARP, &arp(true, A, gateway, other))),
        (false, "ARP: so I ask", ethernet(A, ARP, &arp(false, A, gateway, other))),
        (false, "ARP: I am the gateway, there", ethernet(A, ARP, &arp(true, GATEWAY, gateway, other))),
        (false, "ARP: I am b", ethernet(A, ARP, &arp(true, A, other, gateway))),
        (false, "ARP: I am at b", ethernet(A, ARP, &arp(true, B, own, gateway))),
        (false, "ARP: is it free, asks b", ethernet(A, ARP, &arp(false, B, [0; 4], own))),
        (false, "ARP: other hardware", bad_arp(1, 6)),
        (false, "ARP: other protocol", bad_arp(2, 0x86)),
        (false, "ARP: longer hardware addresses", bad_arp(4, 8)),
        (false, "ARP: longer addresses", bad_arp(5, 16)),
        (true, "IPv4", ethernet(A, IPV4, &udp4("10.1.0.2", 1000, 53))),
        (true, "IPv4: to a DHCP server", ethernet(A, IPV4, &udp4("10.1.0.2", 68, 67))),
        (false, "IPv4: from b's hardware address", ethernet(B, IPV4, &udp4("10.1.0.2", 1000, 53))),
        (false, "IPv4: from the gateway's", ethernet(GATEWAY, IPV4, &udp4("10.1.0.2", 1000, 53))),
        (false, "IPv4: from b", ethernet(A, IPV4, &udp4("10.1.0.3", 1000, 53))),
        (false, "IPv4: from the gateway", ethernet(A, IPV4, &udp4("10.1.0.1", 1000, 53))),
        (false, "IPv4: from an unused address", ethernet(A, IPV4, &udp4("10.1.9.9", 1000, 53))),
        (false, "IPv4: from elsewhere", ethernet(A, IPV4, &udp4("192.0.2.1", 1000, 53))),
        (false, "IPv4: from no address", ethernet(A, IPV4, &udp4("0.0.0.0", 68, 67))),
        (false, "IPv4: a DHCP server", ethernet(A, IPV4, &udp4("10.1.0.2", 67, 68))),
        (true, "IPv6", ethernet(A, IPV6, &udp6("fd00:1::2", 1000, 53))),
        (true, "IPv6: link-local", ethernet(A, IPV6, &udp6(link, 546, 547))),
        (false, "IPv6: from b", ethernet(A, IPV6, &udp6("fd00:1::3", 1000, 53))),
        (false, "IPv6: from the gateway", ethernet(A, IPV6, &udp6("fd00:1::1", 1000, 53))),
        (false, "IPv6: from elsewhere", ethernet(A, IPV6, &udp6("2001:db8::1", 1000, 53))),
        (false, "IPv6: site-local", ethernet(A, IPV6, &udp6("fec0::1", 1000, 53))),
        (false, "IPv6: from no address", ethernet(A, IPV6, &udp6("::", 1000, 53))),
        (false, "IPv6: a DHCP server", ethernet(A, IPV6, &udp6(link, 547, 546))),
        (true, "ICMPv6: neighbour solicitation", ethernet(A, IPV6, &icmpv6("fd00:1::2", 135, "fd00:1::3", false))),
        (true, "ICMPv6: is it free", ethernet(A, IPV6, &icmpv6("::", 135, "fd00:1::2", false))),
        (true, "ICMPv6: is the link's free", ethernet(A, IPV6, &icmpv6("::", 135, link, false))),
        (false, "ICMPv6: b's is not free", ethernet(A, IPV6, &icmpv6("::", 135, "fd00:1::3", false))),
        (true, "ICMPv6: it is me", ethernet(A, IPV6, &icmpv6("fd00:1::2", 136, "fd00:1::2", false))),
        (true, "ICMPv6: the link's is me", ethernet(A, IPV6, &icmpv6(link, 136, link, false))),
        (false, "ICMPv6: the gateway is me", ethernet(A, IPV6, &icmpv6("fd00:1::2", 136, "fd00:1::1", false))),
        (false, "ICMPv6: that behind options", ethernet(A, IPV6, &icmpv6(link, 136, "fd00:1::1", true))),
        (true, "ICMPv6: router solicitation", ethernet(A, IPV6, &icmpv6(link, 133, "::", false))),
        (false, "ICMPv6: I am a router", ethernet(A, IPV6, &icmpv6(link, 134, "::", false))),
        (false, "ICMPv6: so, behind options", ethernet(A, IPV6, &icmpv6(link, 134, "::", true))),
        (false, "ICMPv6: go there", ethernet(A, IPV6, &icmpv6(link, 137, "fd00:1::1", false))),
        (true, "ICMPv6: an echo behind options", ethernet(A, IPV6, &icmpv6(link, 128, "::", true))),
        (false, "VLAN", tagged(A, 0x8100, IPV4, &udp4("10.1.0.2", 1000, 53))),
        (false, "VLAN of the provider", tagged(A, 0x88a8, IPV4, &udp4("10.1.0.2", 1000, 53))),
        (false, "VLAN, ARP for the gateway", tagged(A, 0x8100, ARP, &arp(true, A, gateway, other))),
        (false, "reverse ARP", ethernet(A, 0x8035, &arp(true, A, own, other))),
        (false, "MPLS", ethernet(A, 0x8847, &udp4("10.1.0.1", 1000, 53))),
        (false, "IEEE 802.3", ethernet(A, 64, &[0xaa; 64])),
        (false, "IPv4 without a header", ethernet(A, IPV4, &[])),
        (false, "IPv6 without a header", ethernet(A, IPV6, &[])),
        (false, "ARP without a header", ethernet(A, ARP, &[])),
        (false, "half of ARP", ethernet(A, ARP, &arp(true, A, own, other)[..8])),
        (true, "IPv6: no next header", ethernet(A, IPV6, &ipv6("fd00:1::2", 59, false, &[]))),
    ]
}

/// Sends frames with a mark at their end, one after the other; returns whether each is received.
fn try_all(sender: &mut Sender, receiver: &FrameReceiver, mut judge: impl FnMut(&str, bool, bool)) {
    static MARKS: AtomicU64 = AtomicU64::new(0xfeed_0000_0000_0000);
    let mark = || MARKS.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    for (allowed, what, mut frame) in frames() {
        let (first, last) = (mark(), mark());
        frame.extend(first);
        sender.send(&frame);
        sender.send(&[ethernet(A, IPV4, &udp4("10.1.0.2", 1, 1)), last.to_vec()].concat());
        judge(what, allowed, receiver.receives(&first, &last));
    }
}

#[test]
fn spoofed_frames_are_dropped() {
    let lan = lan();
    let (mut sender, receiver) = (Sender::new(&lan.a), FrameReceiver::new(&lan.b));
    // Without anti-spoofing every frame arrives: this test can fail.
    try_all(&mut sender, &receiver, |what, _, heard| assert!(heard, "{what}"));
    let mut table = lan.host.table();
    table.ensure(&guarded()).unwrap();
    assert!(table.supports_bridge_tables().unwrap());
    try_all(&mut sender, &receiver, |what, allowed, heard| assert_eq!(heard, allowed, "{what}"));
    // Ports without an entry are not filtered.
    let own = State {
        anti_spoofing: anti_spoofing().into_iter().filter(|(name, _)| name == "gta").collect(),
        ..State::new()
    };
    table.remove(&own).unwrap();
    try_all(&mut sender, &receiver, |what, _, heard| assert!(heard, "{what}"));
    table.add(&own).unwrap();
    try_all(&mut sender, &receiver, |what, allowed, heard| assert_eq!(heard, allowed, "{what}"));
}

/// Legitimate traffic passes: pods and the host resolve each other's addresses, over both IP versions.
#[test]
fn legitimate_traffic_passes() {
    let lan = lan();
    lan.host.table().ensure(&guarded()).unwrap();
    let listeners = [
        (&lan.b, "10.1.0.3:80"),
        (&lan.b, "[fd00:1::3]:80"),
        (&lan.host, "10.1.0.1:80"),
        (&lan.host, "[fd00:1::1]:80"),
    ];
    for (space, address) in listeners {
        let address: SocketAddr = address.parse().unwrap();
        let listener = bound(|| space.within(|| TcpListener::bind(address)));
        let mut client = lan.a.within(|| TcpStream::connect_timeout(&address, MAX_PARTS).unwrap());
        let (mut served, _) = listener.accept().unwrap();
        client.write_all(b"?").unwrap();
        served.set_read_timeout(Some(MAX_PARTS)).unwrap();
        served.read_exact(&mut [0]).unwrap();
    }
    // A probe for a free address may have the sender address 0.0.0.0.
    lan.a.sh("ip link set eth0 down; ip link set eth0 up; ip addr replace fd00:1::2/64 dev eth0");
    until("the addresses to be free", || {
        let all = lan.a.sh("ip -6 -o addr show dev eth0");
        assert!(!all.contains("dadfailed"), "{all}");
        all.contains("fd00:1::2") && all.contains("fe80::") && !all.contains("tentative")
    });
}

/// A neighbour keeps the gateway's hardware address.
#[test]
fn the_gateway_cannot_be_impersonated() {
    let lan = lan();
    let (mut sender, receiver) = (Sender::new(&lan.a), FrameReceiver::new(&lan.b));
    let listener = bound(|| lan.host.within(|| TcpListener::bind("10.1.0.1:80")));
    let gateway = listener.local_addr().unwrap();
    let lie = ethernet(A, ARP, &arp(true, A, [10, 1, 0, 1], [10, 1, 0, 3]));
    let truth = [ethernet(A, IPV4, &udp4("10.1.0.2", 1, 1)), b"the last".to_vec()].concat();
    let mut table = lan.host.table();
    for (anti_spoofing, believed) in [(BTreeMap::new(), true), (anti_spoofing(), false)] {
        table.ensure(&State { anti_spoofing, ..State::new() }).unwrap();
        lan.b.sh("ip neigh flush all; echo 1 > /proc/sys/net/ipv4/conf/eth0/arp_accept; echo 0 > /proc/sys/net/ipv4/neigh/eth0/locktime");
        let _known = lan.b.within(|| TcpStream::connect_timeout(&gateway, MAX_PARTS).unwrap());
        let known = || lan.b.sh("ip neigh show 10.1.0.1 dev eth0");
        assert!(known().contains("02:00:00:00:00:01"));
        let mut lied = || {
            sender.send(&lie);
            sender.send(&truth);
            receiver.receives(b"the last", b"the last");
            known().contains("02:00:00:00:00:0a")
        };
        if believed {
            until("the lie to be believed", lied);
        } else {
            (0..10).for_each(|_| assert!(!lied()));
        }
    }
}

/// The bridge learns nothing from frames that no rule sees in time.
#[test]
fn spoofed_frames_do_not_change_the_bridges_table() {
    let lan = lan();
    let (mut sender, receiver) = (Sender::new(&lan.a), FrameReceiver::new(&lan.b));
    lan.host.table().ensure(&guarded()).unwrap();
    // As LLDP is sent (IEEE 802.1AB section 7.1).
    let mut lie = ethernet(B, 0x88cc, &[0; 46]);
    lie[..6].copy_from_slice(&[0x01, 0x80, 0xc2, 0, 0, 0x0e]);
    let truth = [ethernet(A, IPV4, &udp4("10.1.0.2", 1, 1)), b"the last".to_vec()].concat();
    let mut send_lie = || {
        sender.send(&lie);
        sender.send(&truth);
        receiver.receives(b"the last", b"the last");
        lan.host.sh("bridge fdb show br gantry0 dynamic")
    };
    let has_lie = |known: &str| known.lines().any(|line| line.starts_with("02:00:00:00:00:0b dev gta "));
    // As the bridge was created.
    assert!(lan.host.sh("ip -d link show gantry0").contains("no_linklocal_learn 1"));
    for _ in 0..10 {
        let known = send_lie();
        assert!(!has_lie(&known), "{known}");
    }
    lan.host.sh("ip link set gantry0 type bridge no_linklocal_learn 0");
    // A frame that the kernel of B sends meanwhile, such as a multicast report, corrects the entry.
    until("the spoofed address to be learned", || has_lie(&send_lie()));
}

/// Counts a running thread until it ends, also by a panic.
struct Leaving<'a>(&'a AtomicU64);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Twenty pods start concurrently without a bridge table, while two threads replace the tables repeatedly, one of
/// them with a generation.
#[test]
fn twenty_pods_start_concurrently() {
    let space = Space::new();
    let mut shared = sample();
    (shared.ports, shared.anti_spoofing) = (BTreeMap::new(), BTreeMap::new());
    space.table().ensure(&shared).unwrap();
    let coming = AtomicU64::new(20);
    let pod = |number: u8| {
        let mut pod = shared.clone();
        let first = port("0.0.0.0", Protocol::Udp, 10_000 + 10 * u16::from(number));
        let address = format!("10.1.1.{number}");
        pod.forward(first, 3, format!("{address}:1").parse().unwrap(), &format!("pod-{number}")).unwrap();
        pod.anti_spoofing.insert(format!("gt{number}"), allowed_from([2, 0, 0, 0, 1, number], &[&address]));
        pod
    };
    std::thread::scope(|scope| {
        for number in 1..=20 {
            let (space, coming, pod) = (&space, &coming, &pod);
            scope.spawn(move || {
                let _leaving = Leaving(coming);
                let mut table = space.table();
                for _ in 0..3 {
                    table.add(&pod(number)).unwrap();
                    let State { ports, anti_spoofing, .. } = pod(number);
                    table.remove(&State { ports, anti_spoofing, ..State::new() }).unwrap();
                }
                table.add(&pod(number)).unwrap();
            });
        }
        scope.spawn(|| {
            let mut table = space.table();
            while coming.load(Ordering::Relaxed) > 0 {
                let generation = table.generation().unwrap();
                let found = match table.read() {
                    Err(error) if error.kind() == ErrorKind::Busy => continue,
                    found => found.unwrap().unwrap(),
                };
                assert_eq!(found.faults, Vec::<String>::new());
                match table.ensure_at_generation(&found.state, generation) {
                    Ok(()) | Err(Error::Changed) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
    });
    let found = space.table().read().unwrap().unwrap();
    assert_eq!(found.faults, Vec::<String>::new());
    for number in 1..=20 {
        let pod = pod(number);
        assert!(
            pod.anti_spoofing.iter().all(|(name, guard)| found.state.anti_spoofing.get(name) == Some(guard)),
            "{number}"
        );
        assert!(pod.ports.iter().all(|(port, forward)| found.state.ports.get(port) == Some(forward)), "{number}");
    }
    assert_eq!((found.state.anti_spoofing.len(), found.state.ports.len()), (20, 60));
}

/// Entries removed by other programs in the meantime do not make the operation fail: the next reload restores them.
#[test]
fn pods_start_during_removal_of_the_table() {
    let space = Space::new();
    space.table().ensure(&State::new()).unwrap();
    let coming = AtomicU64::new(4);
    std::thread::scope(|scope| {
        for number in 1..=4 {
            let (space, coming) = (&space, &coming);
            scope.spawn(move || {
                let _leaving = Leaving(coming);
                let mut table = space.table();
                let anti_spoofing = [(format!("gt{number}"), allowed_from([2, 0, 0, 0, 1, number], &[]))].into();
                let pod = State { anti_spoofing, ..State::new() };
                for _ in 0..10 {
                    table.add(&pod).unwrap();
                    table.remove(&pod).unwrap();
                }
            });
        }
        scope.spawn(|| {
            while coming.load(Ordering::Relaxed) > 0 {
                space.table().ensure(&State::new()).unwrap();
            }
        });
    });
}

#[test]
fn the_bridge_table_exists_only_with_entries() {
    let space = Space::new();
    let mut table = space.table();
    let tables = || space.sh("nft list tables");
    table.ensure(&State::new()).unwrap();
    assert_eq!(tables(), "table inet gantry\n");
    // The first anti-spoofing entry creates the table, with the other new entries.
    table.add(&sample()).unwrap();
    assert_eq!(tables(), "table inet gantry\ntable bridge gantry\n");
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (sample(), Vec::new()));
    table.remove(&sample()).unwrap();
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (State::new(), Vec::new()));
    // An empty one goes with the next replacement.
    table.ensure(&State::new()).unwrap();
    assert_eq!(tables(), "table inet gantry\n");
    table.ensure(&sample()).unwrap();
    table.delete().unwrap();
    assert_eq!(tables(), "");
}

#[test]
fn entries_are_added_all_or_nothing() {
    let space = Space::new();
    let mut table = space.table();
    table.ensure(&State::new()).unwrap();
    let mut pod = sample();
    table.add(&pod).unwrap();
    table.add(&pod).unwrap();
    let generation = table.generation().unwrap();
    // The port belongs to another owner, so the anti-spoofing entry is not added either.
    for forward in pod.ports.values_mut() {
        forward.to.set_port(1);
    }
    pod.anti_spoofing = [("gt9".to_owned(), allowed_from(A, &["10.1.0.9"]))].into();
    assert_eq!(table.add(&pod).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(table.generation().unwrap(), generation);
    assert_eq!(table.read().unwrap().unwrap().state, sample());
    // A table that lacks parts gets them with the next pod.
    pod.ports = sample().ports;
    space.sh("nft 'delete table bridge gantry; add table bridge gantry'");
    table.add(&pod).unwrap();
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (pod, Vec::new()));
}

/// A kernel without nftables for bridges: here, one that lacks this family.
#[test]
fn pods_start_without_kernel_support() {
    let space = Space::new();
    let mut without = sample();
    without.anti_spoofing.clear();
    let cannot = || {
        let mut table = space.table();
        table.bridge = 250;
        table
    };
    let mut table = cannot();
    table.ensure(&sample()).unwrap();
    assert!(!table.supports_bridge_tables().unwrap());
    assert!(!cannot().supports_bridge_tables().unwrap());
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (without.clone(), Vec::new()));
    for mut table in [table, cannot()] {
        table.remove(&sample()).unwrap();
        assert_eq!(table.read().unwrap().unwrap().state, State::new());
        table.add(&sample()).unwrap();
        assert_eq!(table.read().unwrap().unwrap().state, without);
    }
    let generation = cannot().generation().unwrap();
    cannot().ensure_at_generation(&sample(), generation).unwrap();
    cannot().delete().unwrap();
    assert_eq!(space.sh("nft list tables"), "");
    assert!(space.table().supports_bridge_tables().unwrap());
    assert_eq!(space.sh("nft list tables"), "", "to ask makes nothing");
}

#[test]
fn nft_lists_the_bridge_table() {
    let space = Space::new();
    let mut table = space.table();
    table.ensure(&sample()).unwrap();
    let text = space.sh("nft list table bridge gantry");
    println!("{text}");
    for line in [
        "\"gt0\" . 02:00:00:00:00:01",
        "\"gt1\" . 10.1.0.4",
        "\"gt1\" . fd00:1::3",
        "iifname != @pod_ports accept comment \"not from a pod\"",
        "iifname . ether saddr != @pod_macs drop comment \"drop spoofed hardware addresses\"",
        "type filter hook prerouting priority filter; policy accept;",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    let mut other = sample();
    other.anti_spoofing.get_mut("gt0").unwrap().addresses.insert([10, 1, 0, 9].into());
    for (damage, fault) in [
        ("flush chain bridge gantry antispoof", "the chain antispoof has other rules (0; it should have 16)"),
        ("flush chain bridge gantry antispoof; delete chain bridge gantry antispoof", "the chain antispoof is missing"),
        ("add chain bridge gantry more", "the chain more is unexpected"),
        ("add set bridge gantry more { type ipv4_addr; }", "the set more is unexpected"),
        ("delete element bridge gantry pod_ports { \"gt0\" }", "the set pod_ports: "),
        ("flush set bridge gantry pod_macs", "does not belong to anything"),
        ("add element bridge gantry pod_addresses4 { \"x\" . 10.0.0.1 }", "does not belong to anything"),
        ("delete table bridge gantry", ""),
        ("add element bridge gantry pod_addresses4 { \"gt0\" . 10.1.0.9 }", ""),
    ] {
        table.ensure(&sample()).unwrap();
        space.sh(&format!("nft '{damage}'"));
        let found = table.read().unwrap().unwrap();
        if fault.is_empty() {
            assert!(found.state != sample() && found.faults.is_empty(), "{damage}: {found:?}");
        } else {
            assert!(found.faults.join("\n").contains(fault), "{damage}: {found:?}");
        }
    }
}
