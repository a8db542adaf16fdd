//! Tests of names and gateways.

use proptest::prelude::*;

use super::*;
use crate::fixtures::{DB, WEB, ip, network, pod};

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// Two pods on `back`, one of them on `front` too.
fn two_networks() -> Gateways {
    let back = |address: &str| network("back", &[&format!("{address}/24 via 10.2.0.1")]);
    gateways(&[
        pod(
            WEB,
            "Web",
            &["nginx", "log"],
            vec![network("front", &["10.1.0.2/24 via 10.1.0.1", "fd00:1::2/64 via fd00:1::1"]), back("10.2.0.2")],
        ),
        pod(DB, "db", &["postgres", "log"], vec![back("10.2.0.3")]),
    ])
}

#[test]
fn a_zone_lists_names_of_its_network() {
    let gateways = two_networks();
    let all: Vec<String> = gateways.addresses().map(|it| it.to_string()).collect();
    assert_eq!(all, ["10.1.0.1", "10.2.0.1", "fd00:1::1"]);
    let front = gateways.names_for(ip("10.1.0.1"), ip("10.1.0.77")).unwrap();
    let back = gateways.names_for(ip("10.2.0.1"), ip("10.2.0.200")).unwrap();
    let both = [ip("10.1.0.2"), ip("fd00:1::2")];
    for asked in ["web.", "WEB.", "nginx.", "web.gantry.internal.", "Nginx.GANTRY.Internal.", &format!("{WEB}.")] {
        assert_eq!(front.look_up(&name(asked)), NameLookup::Pod(&both), "{asked}");
    }
    assert_eq!(front.look_up(&name(&format!("gantry-{WEB}."))), NameLookup::Pod(&both));
    assert_eq!(back.look_up(&name("web.")), NameLookup::Pod(&[ip("10.2.0.2")]));
    assert_eq!(back.look_up(&name("log.")), NameLookup::Pod(&[ip("10.2.0.2"), ip("10.2.0.3")]));
    assert_eq!(back.name_of(ip("10.2.0.3")), Some("db"));
    let key = |client: &str| gateways.names_for(ip("10.1.0.1"), ip(client)).unwrap().key();
    assert_eq!([key("10.1.0.2"), key("fd00:1::2")], [ip("10.1.0.2"); 2], "the addresses of a pod share");
    assert_eq!(key("10.1.0.77"), ip("10.1.0.77"), "an address of no pod is its own");
    // Pods of other networks are treated as absent.
    assert_eq!(front.look_up(&name("db.")), NameLookup::Foreign);
    assert_eq!(front.look_up(&name("db.gantry.internal.")), NameLookup::NoSuchPod);
    assert_eq!(front.name_of(ip("10.2.0.3")), None);
}

#[test]
fn names_of_all_networks_of_a_pod_resolve() {
    let on = |name: &str, text: &str| network(name, &[text]);
    let gateways = gateways(&[
        pod(WEB, "web", &[], vec![on("a", "10.1.0.2/24 via 10.1.0.1"), on("b", "10.2.0.2/24 via 10.2.0.1")]),
        pod(DB, "db", &["log"], vec![on("b", "10.2.0.3/24 via 10.2.0.1")]),
        pod("3", "cache", &["log"], vec![on("a", "10.1.0.4/24 via 10.1.0.1")]),
        pod("4", "far", &[], vec![on("c", "10.3.0.2/24 via 10.3.0.1")]),
    ]);
    let at = |gateway: &str, client: &str| gateways.names_for(ip(gateway), ip(client)).unwrap();
    let a = at("10.1.0.1", "10.1.0.2");
    for asked in ["db.", "db.gantry.internal."] {
        assert_eq!(a.look_up(&name(asked)), NameLookup::Pod(&[ip("10.2.0.3")]), "{asked}");
    }
    assert_eq!((a.name_of(ip("10.2.0.3")), a.covers(ip("10.2.0.9"))), (Some("db"), true));
    // The network of the query comes first.
    assert_eq!(a.look_up(&name("log.")), NameLookup::Pod(&[ip("10.1.0.4")]));
    assert_eq!(at("10.2.0.1", "10.2.0.2").look_up(&name("log.")), NameLookup::Pod(&[ip("10.2.0.3")]));
    // Neither a network that the pod is not on, nor a pod that is on one network only.
    assert_eq!((a.look_up(&name("far.")), a.covers(ip("10.3.0.2"))), (NameLookup::Foreign, false));
    let cache = at("10.1.0.1", "10.1.0.4");
    assert_eq!((cache.look_up(&name("db.")), cache.name_of(ip("10.2.0.3"))), (NameLookup::Foreign, None));
    assert_eq!(at("10.1.0.1", "10.1.0.77").look_up(&name("db.gantry.internal.")), NameLookup::NoSuchPod);
}

#[test]
fn names_are_classified_by_domain() {
    let zone = Zone::default();
    for (asked, want) in [
        ("gantry.internal.", NameLookup::Domain),
        ("x.gantry.internal.", NameLookup::NoSuchPod),
        ("a.b.gantry.internal.", NameLookup::NoSuchPod),
        ("internal.", NameLookup::Foreign),
        ("notgantry.internal.", NameLookup::Foreign),
        ("gantry.internal.example.", NameLookup::Foreign),
        ("example.com.", NameLookup::Foreign),
        ("com.", NameLookup::Foreign),
        (".", NameLookup::Foreign),
    ] {
        assert_eq!(zone.look_up(&name(asked)), want, "{asked}");
    }
}

#[test]
fn unsuitable_host_names_get_no_record() {
    let long = "a".repeat(64);
    for hostname in ["localhost", "LocalHost", "example.com", "", &long, "a b", "ü", "a\0b", "*"] {
        let pod = pod(WEB, hostname, &["localhost"], vec![]);
        assert_eq!(pod.labels(), [format!("gantry-{WEB}"), WEB.to_owned()], "{hostname:?}");
    }
    let twice = pod(WEB, &format!("gantry-{WEB}"), &["app", "APP"], vec![]);
    assert_eq!(twice.labels(), [format!("gantry-{WEB}"), WEB.to_owned(), "app".to_owned()]);
}

#[test]
fn only_unicast_gateways_get_a_server() {
    let listened = |gateway: &str| {
        let length = if gateway.contains(':') { "fd00::2/64" } else { "10.0.0.2/24" };
        let pods = [pod(WEB, "web", &[], vec![network("n", &[&format!("{length} via {gateway}")])])];
        gateways(&pods).addresses().any(|_| true)
    };
    for gateway in ["10.0.0.1", "192.168.1.1", "203.0.113.1", "fd00::1", "2001:db8::1"] {
        assert!(listened(gateway), "{gateway}");
    }
    for gateway in [
        "127.0.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "169.254.1.1",
        "::1",
        "::",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
    ] {
        assert!(!listened(gateway), "{gateway}");
    }
    assert!(!gateways(&[pod(WEB, "web", &[], vec![network("n", &["10.0.0.2/24"])])]).addresses().any(|_| true));
}

#[test]
fn zones_serve_only_clients_of_their_network() {
    let gateways = two_networks();
    let served = |client: &str| gateways.names_for(ip("10.1.0.1"), ip(client)).is_some();
    for client in ["10.1.0.2", "10.1.0.77", "10.1.0.1", "fd00:1::9"] {
        assert!(served(client), "{client}");
    }
    for client in ["10.2.0.2", "10.1.1.1", "127.0.0.1", "fd00:2::2", "::ffff:10.1.0.2"] {
        assert!(!served(client), "{client}");
    }
}

#[test]
fn networks_with_the_same_gateway_are_not_mixed() {
    let same = |name: &str, address: &str| network(name, &[&format!("{address}/24 via 10.0.0.1")]);
    let gateways = gateways(&[
        pod(WEB, "web", &[], vec![same("one", "10.0.0.2")]),
        pod(DB, "db", &[], vec![same("two", "10.0.0.3")]),
    ]);
    let of = |client: &str| gateways.names_for(ip("10.0.0.1"), ip(client));
    assert_eq!(of("10.0.0.2").unwrap().look_up(&name("db.")), NameLookup::Foreign);
    assert_eq!(of("10.0.0.3").unwrap().look_up(&name("db.")), NameLookup::Pod(&[ip("10.0.0.3")]));
    assert!(of("10.0.0.4").is_none(), "the network of this client is ambiguous");
}

#[test]
fn addresses_per_name_are_limited() {
    let many: Vec<Pod> = (0..600u32)
        .map(|n| {
            let address = std::net::Ipv4Addr::from_bits(0x0a00_0002 + n);
            pod(&format!("{n}"), "same", &[], vec![network("n", &[&format!("{address}/16 via 10.0.0.1")])])
        })
        .collect();
    let gateways = gateways(&many);
    let names = gateways.names_for(ip("10.0.0.1"), ip("10.0.0.9")).unwrap();
    assert!(matches!(names.look_up(&name("same.")), NameLookup::Pod(all) if all.len() == MAX_ADDRESSES));
    assert_eq!(gateways.zones[0].prefixes.len(), 1);
    // Each pod still has its own name.
    assert!(matches!(names.look_up(&name("gantry-599.")), NameLookup::Pod([_])));
}

#[test]
fn labels_neither_begin_nor_end_with_a_hyphen() {
    let said = ["-", "-web", "web-", "w-b", "web"].map(is_label);
    assert_eq!(said, [false, false, false, true, true]);
}

proptest! {
    #[test]
    fn ipv4_subnet_membership_compares_the_prefix(a: u32, b: u32, length in 0u8..=40) {
        let same = length == 0 || a >> (32 - u32::from(length.min(32))) == b >> (32 - u32::from(length.min(32)));
        let (a, b) = (IpAddr::V4(a.into()), IpAddr::V4(b.into()));
        prop_assert_eq!(contains(a, length, b), same);
    }

    #[test]
    fn ipv6_subnet_membership_compares_the_prefix(a: u128, b: u128, length in 0u8..=255) {
        let length = length.min(128);
        let same = length == 0 || a >> (128 - u32::from(length)) == b >> (128 - u32::from(length));
        prop_assert_eq!(contains(IpAddr::V6(a.into()), length, IpAddr::V6(b.into())), same);
        prop_assert!(contains(IpAddr::V6(a.into()), length, IpAddr::V6(a.into())));
    }

    #[test]
    fn any_host_name_yields_valid_labels(hostname in any::<String>(), app in any::<String>()) {
        let pod = pod(WEB, &hostname, &[&app], vec![network("n", &["10.0.0.2/24 via 10.0.0.1"])]);
        for label in pod.labels() {
            prop_assert!(is_label(&label));
            let name = format!("{label}.{DOMAIN}.");
            prop_assert!(Name::from_ascii(name).is_ok());
        }
    }
}
