//! The ring: what it has for whom.

use std::collections::BTreeMap;

use gantry_engine::model::{EventKind, NewEvent, Timestamp};

use super::*;

fn entry(seq: u64, bytes: usize) -> Entry {
    let event = NewEvent {
        kind: EventKind::PodStarted,
        at: Timestamp(0),
        id: String::new(),
        name: String::new(),
        data: BTreeMap::new(),
    };
    Entry { event: Event { seq, boot: String::new(), event }, encoded: vec![0; bytes] }
}

/// The numbers of what it has; `None` for who is behind it.
fn after(ring: &Ring, cursor: u64, most: usize) -> Option<Vec<u64>> {
    match ring.after(cursor, most) {
        Slice::Behind => None,
        Slice::Entries(entries) => Some(entries.iter().map(|entry| entry.event.seq).collect()),
    }
}

#[test]
fn a_cursor_gets_what_is_behind_it() {
    let mut ring = Ring::default();
    ring.begin(10);
    assert_eq!((after(&ring, 9, 9), after(&ring, 10, 9)), (None, Some(vec![])));
    // The numbers jump at a boot.
    for seq in [11, 12, 1_000_000] {
        ring.push(entry(seq, 1));
    }
    for (cursor, most, want) in [
        (9, 9, None),
        (10, 9, Some(vec![11, 12, 1_000_000])),
        (10, 2, Some(vec![11, 12])),
        (12, 9, Some(vec![1_000_000])),
        (500, 9, Some(vec![1_000_000])),
        (1_000_000, 9, Some(vec![])),
        (2_000_000, 9, Some(vec![])),
    ] {
        assert_eq!(after(&ring, cursor, most), want, "{cursor}");
    }
}

#[test]
fn it_stays_small_and_forgets_the_oldest_only() {
    let mut ring = Ring::default();
    ring.begin(0);
    for seq in 1..=MOST_EVENTS as u64 + 5 {
        ring.push(entry(seq, 1));
    }
    assert_eq!((ring.entries.len(), ring.from), (MOST_EVENTS, 5));
    assert_eq!((after(&ring, 4, 1), after(&ring, 5, 1)), (None, Some(vec![6])));
    ring.push(entry(MOST_EVENTS as u64 + 6, MOST_BYTES));
    assert!(ring.bytes <= MOST_BYTES + size(&entry(0, MOST_BYTES)));
    let last = MOST_EVENTS as u64 + 6;
    assert_eq!(after(&ring, last - 1, 1), None, "what does not fit is read from the store");
    ring.push(entry(last + 1, 1));
    assert_eq!(after(&ring, last, 9), Some(vec![last + 1]));
    let bytes: usize = ring.entries.iter().map(|entry| size(entry)).sum();
    assert_eq!(ring.bytes, bytes);
}
