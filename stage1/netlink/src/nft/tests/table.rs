//! Transactions, and the tables as `nft` lists them.

use std::sync::atomic::{AtomicUsize, Ordering};

use gantry_model::{ErrorKind, Kind};
use serde_json::Value;

use super::space::Space;
use super::{allowed_from, bridge, port, prefixes, sample, to};
use crate::nft::{Access, Error, Network, Protocol, State, Table, socket};

/// The objects of a kind in the output of `nft -j list`.
fn objects(listing: &str, kind: &str) -> Vec<Value> {
    let listing: Value = serde_json::from_str(listing).unwrap();
    listing["nftables"].as_array().unwrap().iter().filter_map(|object| object.get(kind).cloned()).collect()
}

fn names(objects: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = objects.iter().map(|object| object["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_tables_are_listed_as_written() {
    let space = Space::new();
    let mut table = space.table();
    assert_eq!(table.read().unwrap(), None);
    table.ensure(&sample()).unwrap();
    let found = table.read().unwrap().unwrap();
    assert_eq!(found.faults, Vec::<String>::new());
    assert_eq!(found.state, sample());

    let listing = space.sh("nft -j list table inet gantry");
    let chains = ["antispoof", "forward", "output", "ports", "postrouting", "prerouting"];
    assert_eq!(names(&objects(&listing, "chain")), chains);
    let sets = [
        "confined",
        "interfaces",
        "isolated",
        "masquerade4",
        "masquerade6",
        "restricted",
        "shared",
        "sources4",
        "sources6",
        "within4",
        "within6",
    ];
    assert_eq!(names(&objects(&listing, "set")), sets);
    assert_eq!(names(&objects(&listing, "map")), ["hostports4", "hostports6", "ports4", "ports6"]);
    assert_eq!(objects(&listing, "rule").len(), 33);
    let text = space.sh("nft list table inet gantry");
    for line in [
        "tcp . 8080 comment \"pod-a\" : 10.1.0.2 . 80",
        "sctp . 8080 comment \"pod-a\" : 10.1.0.2 . 80",
        "127.0.0.1 . tcp . 8081 comment \"pod-b\" : 10.1.0.3 . 81",
        "2001:db8::1 . udp . 65535 comment \"pod-b\" : fd00:1::3 . 1",
        "\"gantry1\" . \"gantry1\" comment \"apart\"",
        "elements = { ipv4, ipv6 }",
        "\"veth7\" . fd00:3::7 comment \"open\"",
        "10.1.0.0/16 . 10.1.0.0/16 comment \"default\"",
        "10.1.0.0/16 comment \"default\"",
        "fib daddr type local jump ports comment \"packets to this host\"",
        "dnat ip to ip daddr . meta l4proto . th dport map @hostports4 comment \"published ports\"",
        "dnat ip6 to meta l4proto . th dport map @ports6 comment \"published ports\"",
        "iifname @isolated oifname @interfaces drop comment \"isolated network\"",
        "ip daddr @masquerade4 oifname @interfaces iifname != @interfaces drop",
        "ip saddr @masquerade4 ip daddr != 224.0.0.0/4 masquerade",
        "ct status dnat ip6 saddr . ip6 daddr @within6 masquerade",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }

    // nft can load its own listing, with the same result.
    space.sh(r#"saved=$(nft list table inet gantry); nft delete table inet gantry; printf '%s\n' "$saved" | nft -f -"#);
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (sample(), Vec::new()));
    table.delete().unwrap();
    table.delete().unwrap();
    assert_eq!(table.read().unwrap(), None);
    assert_eq!(space.sh("nft list ruleset"), "");
}

#[test]
fn tables_are_independent() {
    let space = Space::new();
    let mut one = space.table();
    let mut other = Table::open(space.within(|| socket().unwrap()), "gantry-2").unwrap();
    space.sh("nft add table ip gantry; nft add table inet others; nft add chain inet others c");
    one.ensure(&sample()).unwrap();
    other.ensure(&State::new()).unwrap();
    assert_eq!(other.read().unwrap().unwrap().state, State::new());
    other.delete().unwrap();
    assert_eq!(one.read().unwrap().unwrap().state, sample());
    assert_eq!(one.read().unwrap().unwrap().faults, Vec::<String>::new());
    one.delete().unwrap();
    assert_eq!(space.sh("nft list ruleset").matches("table").count(), 2);
}

#[test]
fn entries_are_added_and_removed() {
    let space = Space::new();
    let mut table = space.table();
    let mut all = sample();
    table.ensure(&all).unwrap();
    let mut pod = State::new();
    pod.forward(port("0.0.0.0", Protocol::Tcp, 30000), 1024, "10.1.0.9:1000".parse().unwrap(), "pod-c").unwrap();
    pod.forward(port("::", Protocol::Tcp, 30000), 700, "[fd00:1::9]:1000".parse().unwrap(), "pod-c").unwrap();
    bridge(&mut pod, "own", "veth9", &["10.9.0.0/24", "fd00:9::/64"], Access::Isolated);
    for _ in 0..2 {
        table.add(&pod).unwrap();
    }
    all.networks.extend(pod.networks.clone());
    all.interfaces.extend(pod.interfaces.clone());
    all.ports.extend(pod.ports.clone());
    let found = table.read().unwrap().unwrap();
    assert_eq!((&found.state, &found.faults), (&all, &Vec::new()));
    for _ in 0..2 {
        table.remove(&pod).unwrap();
    }
    let found = table.read().unwrap().unwrap();
    assert_eq!((&found.state, &found.faults), (&sample(), &Vec::new()));
}

#[test]
fn entries_are_found_in_the_tables() {
    let space = Space::new();
    let mut table = space.table();
    assert!(!table.contains(&sample()).unwrap(), "there is no table");
    assert!(table.contains(&State::new()).unwrap());
    table.ensure(&sample()).unwrap();
    assert!(table.contains(&sample()).unwrap());
    let mut part = State::new();
    part.networks.insert("open".to_owned(), sample().networks["open"].clone());
    assert!(table.contains(&part).unwrap());
    let changes: [fn(&mut State); 7] = [
        |state| _ = state.ports.insert(port("0.0.0.0", Protocol::Tcp, 8080), to("10.1.0.2:80", "pod-b")),
        |state| _ = state.ports.insert(port("0.0.0.0", Protocol::Tcp, 8082), to("10.1.0.2:80", "pod-a")),
        |state| _ = state.anti_spoofing.insert("gt2".to_owned(), allowed_from([2, 0, 0, 0, 0, 4], &[])),
        |state| state.networks.get_mut("open").unwrap().prefixes = prefixes(&["10.3.0.0/17"]),
        |state| state.interfaces.get_mut("gantry2").unwrap().access = Access::Isolated,
        |state| state.interfaces.get_mut("gantry0").unwrap().access = Access::Open,
        |state| state.networks.get_mut("default").unwrap().masquerade = false,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut other = sample();
        change(&mut other);
        assert!(!table.contains(&other).unwrap(), "{number}");
    }
}

#[test]
fn a_port_has_one_owner() {
    let space = Space::new();
    let mut table = space.table();
    table.ensure(&sample()).unwrap();
    let mut other = State::new();
    other.ports.insert(port("0.0.0.0", Protocol::Tcp, 1), to("10.1.0.7:80", "pod-z"));
    other.ports.insert(port("0.0.0.0", Protocol::Tcp, 8080), to("10.1.0.7:80", "pod-z"));
    let error = table.add(&other).unwrap_err();
    assert_eq!(error.to_string(), "host port 8080/tcp is taken by pod-a (it leads to 10.1.0.2:80)");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    // All or nothing; and an owner cannot remove another's port.
    table.remove(&other).unwrap();
    assert_eq!(table.read().unwrap().unwrap().state, sample());
    // A new owner of the same destination takes the port over; then the former cannot remove it.
    let key = port("127.0.0.1", Protocol::Tcp, 8081);
    let (mut heir, mut former) = (State::new(), State::new());
    heir.ports.insert(key, to("10.1.0.3:81", "pod-y"));
    heir.ports.insert(port("127.0.0.1", Protocol::Udp, 8081), to("10.1.0.3:81", "pod-y"));
    former.ports.insert(key, to("10.1.0.3:81", "pod-b"));
    table.add(&heir).unwrap();
    table.remove(&former).unwrap();
    assert_eq!(table.read().unwrap().unwrap().state.ports[&key].owner, "pod-y");
}

#[test]
fn networks_do_not_overlap() {
    let space = Space::new();
    let mut table = space.table();
    table.ensure(&sample()).unwrap();
    let mut other = State::new();
    // Without masquerading, `add` removes the elements for it: here, those of another network.
    for (overlapping, masquerade) in [
        ("10.1.3.0/24", true),
        ("10.0.0.0/8", true),
        ("fd00:1::/48", true),
        ("10.1.0.0/16", true),
        ("10.1.0.0/16", false),
    ] {
        let network = Network { prefixes: prefixes(&[overlapping]), masquerade };
        other.networks.insert("other".to_owned(), network);
        let error = table.add(&other).unwrap_err();
        let names = format!("the subnet {overlapping} of network 'other' overlaps with ");
        assert!(error.to_string().starts_with(&names), "{error}");
        assert!(error.to_string().contains("', which pods use"), "{error}");
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert_eq!(table.read().unwrap().unwrap().state, sample());
        // Removing absent entries succeeds.
        table.remove(&other).unwrap();
    }
    assert_eq!(table.read().unwrap().unwrap().state, sample());
    // Also with a host port, which is free.
    other.ports.insert(port("0.0.0.0", Protocol::Tcp, 1), to("10.1.0.7:80", "pod-z"));
    let error = table.add(&other).unwrap_err();
    assert!(matches!(error, Error::Overlap { .. }), "{error}");
    other.ports.clear();
    let ends = Network { prefixes: prefixes(&["128.0.0.0/1", "ffff::/16"]), masquerade: true };
    other.networks.insert("other".to_owned(), ends);
    table.add(&other).unwrap();
    assert_eq!(table.read().unwrap().unwrap().state.networks["other"], other.networks["other"]);
    table.remove(&other).unwrap();
    assert_eq!(table.read().unwrap().unwrap().state, sample());
}

#[test]
fn networks_change_and_are_removed() {
    let space = Space::new();
    let mut table = space.table();
    let mut state = sample();
    table.ensure(&state).unwrap();
    for (access, masquerade) in
        [(Access::Restricted, false), (Access::Open, true), (Access::Isolated, false), (Access::Isolated, true)]
    {
        state.interfaces.get_mut("gantry0").unwrap().access = access;
        state.networks.get_mut("default").unwrap().masquerade = masquerade;
        let mut part = state.clone();
        part.ports.clear();
        table.add(&part).unwrap();
        let found = table.read().unwrap().unwrap();
        assert_eq!((&found.state, &found.faults), (&state, &Vec::new()));
    }
    for interface in state.interfaces.values_mut() {
        interface.access = Access::Open;
    }
    for network in state.networks.values_mut() {
        network.masquerade = false;
    }
    table.remove(&state).unwrap();
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (State::new(), Vec::new()));
}

#[test]
fn adding_without_a_table_fails() {
    let space = Space::new();
    let mut table = space.table();
    let error = table.add(&sample()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(error.to_string(), "the nftables table inet gantry does not exist, or lacks parts");
    table.remove(&sample()).unwrap();
    table.ensure(&State::new()).unwrap();
    space.sh("nft flush ruleset");
    assert_eq!(table.add(&sample()).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn a_stale_generation_is_rejected() {
    let space = Space::new();
    let mut table = space.table();
    table.ensure(&State::new()).unwrap();
    let generation = table.generation().unwrap();
    table.add(&sample()).unwrap();
    let error = table.ensure_at_generation(&State::new(), generation).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(matches!(error, Error::Changed), "{error}");
    assert_eq!(table.read().unwrap().unwrap().state, sample());
    let generation = table.generation().unwrap();
    table.ensure_at_generation(&State::new(), generation).unwrap();
    assert_eq!(table.read().unwrap().unwrap().state, State::new());
}

#[test]
fn faults_are_reported() {
    let space = Space::new();
    let mut table = space.table();
    for (damage, fault) in [
        ("flush chain inet gantry forward", "the chain forward has other rules (0; it should have 12)"),
        ("insert rule inet gantry postrouting accept", "the chain postrouting has other rules (9; it should have 8)"),
        ("insert rule inet gantry antispoof limit rate 1/second drop", "the chain antispoof has other rules"),
        ("chain inet gantry forward { policy drop; }", "the chain forward has another type"),
        ("add chain inet gantry more", "the chain more is unexpected"),
        ("add set inet gantry more { type ipv4_addr; }", "the set more is unexpected"),
        ("flush chain inet gantry antispoof; delete chain inet gantry antispoof", "the chain antispoof is missing"),
        ("flush set inet gantry within4", "does not belong to anything"),
        ("delete element inet gantry shared { \"gantry1\" . \"gantry1\" }", "is missing"),
        ("add element inet gantry isolated { \"veth1\" }", "does not belong to anything"),
        ("add element inet gantry ports4 { icmp . 1 comment \"x\" : 10.1.0.1 . 1 }", "does not belong to anything"),
    ] {
        table.ensure(&sample()).unwrap();
        space.sh(&format!("nft '{damage}'"));
        let found = table.read().unwrap().unwrap();
        let whole = found.state == sample() && found.faults.is_empty();
        assert!(!whole && found.faults.join("\n").contains(fault), "{damage}: {found:?}");
    }
    table.ensure(&sample()).unwrap();
    assert_eq!(table.read().unwrap().unwrap().faults, Vec::<String>::new());
}

#[test]
fn rejections_name_the_object() {
    let space = Space::new();
    let mut table = space.table();
    space.sh("nft 'table inet gantry { set ports4 { type ipv4_addr; }; }'");
    let mut entries = State::new();
    entries.ports.insert(port("0.0.0.0", Protocol::Tcp, 1), to("10.1.0.7:80", "pod-z"));
    let error = table.add(&entries).unwrap_err();
    assert!(error.to_string().contains("cannot add to the set ports4: "), "{error}");
    table.ensure(&entries).unwrap();
    assert_eq!(table.read().unwrap().unwrap().state, entries);
}

#[test]
fn concurrent_additions_and_removals() {
    let space = Space::new();
    space.table().ensure(&sample()).unwrap();
    let winners = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for pod in 0..8_u16 {
            let (space, winners) = (&space, &winners);
            scope.spawn(move || {
                let mut table = space.table();
                let owner = format!("pod-{pod}");
                let own = |number: u16| {
                    let mut state = State::new();
                    let first = port("0.0.0.0", Protocol::Tcp, 10_000 + 1000 * pod + number);
                    state.forward(first, 4, format!("10.1.1.{pod}:1").parse().unwrap(), &owner).unwrap();
                    state
                };
                for number in 0..50 {
                    table.add(&own(4 * number)).unwrap();
                    if number % 2 == 0 {
                        table.remove(&own(4 * number)).unwrap();
                    }
                }
                let mut contended = State::new();
                contended.ports.insert(port("0.0.0.0", Protocol::Udp, 53), to(&format!("10.1.1.{pod}:1"), &owner));
                match table.add(&contended) {
                    Ok(_) => drop(winners.fetch_add(1, Ordering::Relaxed)),
                    Err(Error::Taken { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
                // A read during writes returns a consistent snapshot, or Busy.
                match table.read() {
                    Ok(found) => assert_eq!(found.unwrap().faults, Vec::<String>::new()),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Busy, "{error}"),
                }
            });
        }
    });
    assert_eq!(winners.into_inner(), 1);
    let found = space.table().read().unwrap().unwrap();
    assert_eq!(found.state.ports.len(), sample().ports.len() + 8 * 25 * 4 + 1);
}
