//! The changes that a monitor reports.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::space::Space;
use super::{port, sample};
use crate::nft::monitor::Reader;
use crate::nft::{Change, Protocol, TablePart};

/// `comm` of this thread, which the kernel reports for its changes.
fn own_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end().to_owned()
}

const MAX_PARTS: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_flush_is_reported() {
    let space = Space::new();
    let mut table = space.table();
    let mut monitor = space.monitor(&[&own_name()]);
    table.ensure(&sample()).unwrap();
    table.remove(&sample()).unwrap();
    table.add(&sample()).unwrap();
    assert_eq!(monitor.wait(SHORT).unwrap(), None, "own changes are not reported");
    space.sh(
        "nft add table inet others; nft add chain inet others c; nft add table ip gantry; nft delete table ip gantry",
    );
    assert_eq!(monitor.wait(SHORT).unwrap(), None, "nor are changes of others to others");
    let began = Instant::now();
    space.sh("nft flush ruleset");
    let change = monitor.wait(MAX_PARTS).unwrap();
    assert_eq!(change, Some(Change { removed: true, part: TablePart::Table, by: Some("nft".to_owned()) }));
    assert_eq!(table.read().unwrap(), None);
    table.ensure(&sample()).unwrap();
    println!("flushed, noticed and undone in {:?}", began.elapsed());
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (sample(), Vec::new()));
    assert_eq!(monitor.wait(Duration::ZERO).unwrap(), None);
}

#[test]
fn each_kind_of_object_is_reported() {
    let space = Space::new();
    let mut table = space.table();
    let mut monitor = space.monitor(&[&own_name()]);
    for (damage, removed, part) in [
        ("flush table inet gantry", true, TablePart::Rule),
        ("flush chain inet gantry forward", true, TablePart::Rule),
        ("flush set inet gantry isolated", true, TablePart::Elements),
        ("add element inet gantry isolated { \"x\" }", false, TablePart::Elements),
        ("flush chain inet gantry antispoof; delete chain inet gantry antispoof", true, TablePart::Chain),
        ("add set inet gantry more { type ipv4_addr; }", false, TablePart::Set),
        ("delete table inet gantry", true, TablePart::Table),
        ("flush chain bridge gantry antispoof", true, TablePart::Rule),
        ("delete element bridge gantry pod_ports { \"gt0\" }", true, TablePart::Elements),
        ("delete table bridge gantry", true, TablePart::Table),
    ] {
        table.ensure(&sample()).unwrap();
        space.sh(&format!("nft '{damage}'"));
        let by = Some("nft".to_owned());
        assert_eq!(monitor.wait(MAX_PARTS).unwrap(), Some(Change { removed, part, by }), "{damage}");
    }
}

#[test]
fn dropped_notifications_are_reported_as_unknown() {
    let space = Space::new();
    let mut table = space.table();
    let mut monitor = space.monitor(&[&own_name()]);
    let mut state = sample();
    state.forward(port("0.0.0.0", Protocol::Tcp, 20_000), 1024, "10.1.0.2:1".parse().unwrap(), "pod-a").unwrap();
    // More than the kernel keeps for one that does not read.
    for _ in 0..20 {
        table.ensure(&state).unwrap();
    }
    let mut told = Vec::new();
    while let Some(change) = monitor.wait(Duration::ZERO).unwrap() {
        told.push(change);
    }
    assert_eq!(told, [Change { removed: true, part: TablePart::Unknown, by: None }]);
    // The monitor continues.
    space.sh("nft flush ruleset");
    assert_eq!(monitor.wait(MAX_PARTS).unwrap().map(|change| change.part), Some(TablePart::Table));
}

proptest! {
    #[test]
    fn parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0_u16..20) {
        let mut reader = Reader::new("gantry", &[]);
        let _ = reader.take(&bytes);
        let mut message = u32::try_from(bytes.len() + 16).unwrap().to_ne_bytes().to_vec();
        message.extend((10 << 8 | kind).to_ne_bytes());
        message.extend([0; 10]);
        message.extend(&bytes);
        let _ = reader.take(&message);
    }
}
