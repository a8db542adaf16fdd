//! Validation of states, and their conversion to elements and back.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use gantry_model::{ErrorKind, Kind};
use proptest::prelude::*;

use super::{bridge, port, prefixes, sample, to};
use crate::address::{Cidr, Prefix};
use crate::mac::Mac;
use crate::nft::sets::{elements, state_from_elements};
use crate::nft::{Access, AntiSpoofing, Forward, HostPort, Interface, Network, PREFIXES_LIMIT, Protocol, State};

fn address() -> impl Strategy<Value = IpAddr> {
    // Values that a pod can have.
    prop_oneof![
        (0x0b00_0000_u32..0x7f00_0000).prop_map(|bits| IpAddr::V4(Ipv4Addr::from(bits))),
        (2_u128..0xff_u128 << 120).prop_map(|bits| IpAddr::V6(Ipv6Addr::from(bits))),
    ]
}

fn prefix() -> impl Strategy<Value = Prefix> {
    (address(), 1_u8..=32, any::<u8>()).prop_map(|(address, short, long)| {
        let length = if address.is_ipv4() { short } else { long % 128 + 1 };
        Cidr::new(address, length).unwrap().network()
    })
}

fn forward() -> impl Strategy<Value = (HostPort, Forward)> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp), Just(Protocol::Sctp)];
    let every = any::<bool>();
    (address(), every, protocol, 1_u16.., address(), 1_u16.., "[a-z0-9._:/@-]{1,100}").prop_filter_map(
        "both of one family",
        |(on, every, protocol, port, to, to_port, owner)| {
            let any: IpAddr = if on.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            let port = HostPort { address: if every { any } else { on }, protocol, port };
            (on.is_ipv4() == to.is_ipv4()).then(|| (port, Forward { to: SocketAddr::new(to, to_port), owner }))
        },
    )
}

prop_compose! {
    fn interface()(
        network in "[a-z]{1,20}",
        addresses in prop::collection::btree_set(address(), 0..4),
        access in prop_oneof![Just(Access::Open), Just(Access::Isolated), Just(Access::Restricted)],
    ) -> Interface {
        Interface { network, addresses, access }
    }
}

prop_compose! {
    fn guarded()(mac in any::<[u8; 6]>(), addresses in prop::collection::btree_set(address(), 0..4)) -> AntiSpoofing {
        let [first, rest @ ..] = mac;
        let [b, c, d, e, f] = rest;
        AntiSpoofing { mac: Mac([first & 0xfc | 2, b, c, d, e, f]), addresses }
    }
}

prop_compose! {
    fn state()(
        networks in prop::collection::vec(("[a-z]{1,20}", prop::collection::btree_set(prefix(), 1..3), any::<bool>()), 0..5),
        interfaces in prop::collection::btree_map("[a-z][a-z0-9.]{0,14}", interface(), 0..5),
        forwards in prop::collection::vec(forward(), 0..20),
        anti_spoofing in prop::collection::btree_map("[a-z][a-z0-9.]{0,14}", guarded(), 0..5),
    ) -> State {
        let mut taken: Vec<Prefix> = Vec::new();
        let mut state = State { interfaces, anti_spoofing, ports: forwards.into_iter().collect(), ..State::new() };
        for (name, prefixes, masquerade) in networks {
            let free: BTreeSet<Prefix> = prefixes.into_iter().filter(|prefix| {
                let free = !taken.iter().any(|other| other.overlaps(prefix));
                taken.extend(free.then_some(*prefix));
                free
            }).collect();
            if !free.is_empty() {
                state.networks.insert(name, Network { prefixes: free, masquerade });
            }
        }
        state
    }
}

proptest! {
    #[test]
    fn a_state_survives_conversion_to_elements(state in state()) {
        state.check().unwrap();
        let all = elements(&state);
        prop_assert_eq!(state_from_elements(&all), state);
    }
}

#[test]
fn port_ranges_are_expanded() {
    let mut state = State::new();
    let first = port("0.0.0.0", Protocol::Tcp, 8000);
    state.forward(first, 3, "10.1.0.2:80".parse().unwrap(), "a").unwrap();
    assert_eq!(state.ports[&port("0.0.0.0", Protocol::Tcp, 8002)], to("10.1.0.2:82", "a"));
    for (from, count, target) in [(8000, 0, 80), (8000, 1025, 80), (65535, 2, 80), (8000, 2, 65535)] {
        let target = SocketAddr::new([10, 1, 0, 2].into(), target);
        let error = state.forward(port("0.0.0.0", Protocol::Udp, from), count, target, "a").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let error = state.forward(first, 1, "10.1.0.3:80".parse().unwrap(), "b").unwrap_err();
    assert_eq!(error.to_string(), "host port 8000/tcp is taken by a (it leads to 10.1.0.2:80)");
    assert_eq!(state.ports.len(), 3);
    assert_eq!(state.ports[&first].owner, "a");
    assert_eq!(port("127.0.0.1", Protocol::Sctp, 1).to_string(), "127.0.0.1:1/sctp");
    assert_eq!(port("fd00::1", Protocol::Udp, 1).to_string(), "[fd00::1]:1/udp");
}

fn refused(what: &str, change: impl FnOnce(&mut State)) {
    let mut state = sample();
    state.check().unwrap();
    change(&mut state);
    let error = state.check().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn invalid_states_are_rejected() {
    let any = || port("0.0.0.0", Protocol::Tcp, 1);
    let wrong = |address: &str, owner: &str, what: &str| {
        refused(what, |state| drop(state.ports.insert(any(), to(address, owner))));
    };
    wrong("[fd00::1]:80", "a", "one is IPv4 and one is IPv6");
    wrong("10.0.0.1:0", "a", "0 is not a port");
    wrong("127.0.0.1:1", "a", "cannot lead to 127.0.0.1:1");
    wrong("224.0.0.1:1", "a", "cannot lead to");
    wrong("0.0.0.0:1", "a", "cannot lead to");
    for owner in ["", "a b", "a\"b", "a\nb", "ä", &"a".repeat(101)] {
        wrong("10.0.0.1:1", owner, "is not the owner of a host port");
    }
    refused("::1", |state| drop(state.ports.insert(port("::1", Protocol::Tcp, 1), to("[fd00::1]:1", "a"))));
    refused("scope", |state| drop(state.ports.insert(port("::", Protocol::Tcp, 1), to("[fe80::1%2]:1", "a"))));
    for name in ["", "sixteen-bytes-xx", "a/b", "a b", "..", "a\0", "a\"", "a*", "ä"] {
        refused("is not the name of an interface", |state| {
            let interface = state.interfaces.remove("gantry0").unwrap();
            state.interfaces.insert(name.to_owned(), interface);
        });
    }
    refused("overlaps with", |state| bridge(state, "x", "x", &["10.1.128.0/17"], Access::Open));
    refused("overlaps with", |state| bridge(state, "x", "x", &["10.0.0.0/8", "11.0.0.0/8"], Access::Open));
    refused("covers all addresses", |state| bridge(state, "x", "x", &["0.0.0.0/0"], Access::Open));
    refused("has no prefix", |state| bridge(state, "x", "x", &[], Access::Open));
    refused("is not the name of a network", |state| bridge(state, "x y", "x", &["11.0.0.0/8"], Access::Open));
    refused("has more than", |state| {
        let many = (0..=PREFIXES_LIMIT).map(|n| format!("11.{n}.0.0/16")).collect::<Vec<_>>();
        let many = prefixes(&many.iter().map(String::as_str).collect::<Vec<_>>());
        state.networks.insert("x".to_owned(), Network { prefixes: many, masquerade: false });
    });
    refused("is not the address of a pod", |state| {
        state.interfaces.get_mut("veth7").unwrap().addresses.insert([127, 0, 0, 1].into());
    });
    refused("is not the address of a pod", |state| {
        state.anti_spoofing.get_mut("gt0").unwrap().addresses.insert([0, 0, 0, 0].into());
    });
    for mac in [[1, 0, 0, 0, 0, 1], [0; 6], [0xff; 6]] {
        refused("is not the hardware address of a pod", |state| {
            state.anti_spoofing.get_mut("gt0").unwrap().mac = Mac(mac)
        });
    }
    refused("is not the name of an interface", |state| {
        let guard = state.anti_spoofing.remove("gt0").unwrap();
        state.anti_spoofing.insert("gt*".to_owned(), guard);
    });
}
