//! What a monitor tells.

use std::time::{Duration, Instant};

use super::sample;
use super::space::Space;
use crate::nft::{Change, Part};

/// `comm` of this thread: what the kernel tells of our own changes.
fn own_name() -> String {
    std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end().to_owned()
}

const LIMIT: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_flush_is_noticed_and_undone() {
    let space = Space::new();
    let mut table = space.table();
    let mut monitor = space.monitor(&[&own_name()]);
    table.ensure(&sample()).unwrap();
    table.remove(&sample()).unwrap();
    table.add(&sample()).unwrap();
    assert_eq!(monitor.wait(SHORT).unwrap(), None, "our own changes are not told");
    space.sh(
        "nft add table inet others; nft add chain inet others c; nft add table ip gantry; nft delete table ip gantry",
    );
    assert_eq!(monitor.wait(SHORT).unwrap(), None, "nor are changes of others to others");
    let began = Instant::now();
    space.sh("nft flush ruleset");
    let change = monitor.wait(LIMIT).unwrap();
    assert_eq!(change, Some(Change { removed: true, part: Part::Table, by: Some("nft".to_owned()) }));
    assert_eq!(table.read().unwrap(), None);
    table.ensure(&sample()).unwrap();
    println!("flushed, noticed and undone in {:?}", began.elapsed());
    let found = table.read().unwrap().unwrap();
    assert_eq!((found.state, found.faults), (sample(), Vec::new()));
    assert_eq!(monitor.wait(Duration::ZERO).unwrap(), None);
}

#[test]
fn each_part_is_told() {
    let space = Space::new();
    let mut table = space.table();
    let mut monitor = space.monitor(&[&own_name()]);
    for (damage, removed, part) in [
        ("flush table inet gantry", true, Part::Rule),
        ("flush chain inet gantry forward", true, Part::Rule),
        ("flush set inet gantry isolated", true, Part::Elements),
        ("add element inet gantry isolated { \"x\" }", false, Part::Elements),
        ("flush chain inet gantry guard; delete chain inet gantry guard", true, Part::Chain),
        ("add set inet gantry more { type ipv4_addr; }", false, Part::Set),
        ("delete table inet gantry", true, Part::Table),
    ] {
        table.ensure(&sample()).unwrap();
        space.sh(&format!("nft '{damage}'"));
        let by = Some("nft".to_owned());
        assert_eq!(monitor.wait(LIMIT).unwrap(), Some(Change { removed, part, by }), "{damage}");
    }
}

#[test]
fn what_was_dropped_is_assumed() {
    let space = Space::new();
    let mut table = space.table();
    let mut monitor = space.monitor(&[&own_name()]);
    let began = Instant::now();
    // The kernel keeps some megabytes for one that does not read.
    while monitor.wait(Duration::ZERO).unwrap().is_none() && began.elapsed() < Duration::from_secs(60) {
        for _ in 0..100 {
            table.ensure(&sample()).unwrap();
        }
    }
    let began = Instant::now();
    for _ in 0..200 {
        table.ensure(&sample()).unwrap();
        let _ = monitor.wait(Duration::ZERO).unwrap();
    }
    println!("200 replacements in {:?}", began.elapsed());
}
