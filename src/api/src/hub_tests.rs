//! The ring, and encodings.

use std::collections::BTreeMap;

use gantry_model::{EventKind, NewEvent, Timestamp};

use super::*;

fn event(seq: u64, bytes: usize) -> HubEvent {
    let event = NewEvent {
        kind: EventKind::PodStarted,
        at: Timestamp(0),
        id: String::new(),
        name: "x".repeat(bytes),
        data: BTreeMap::new(),
    };
    HubEvent::new(EventRecord { seq, boot: String::new(), event })
}

/// The numbers of the events after a cursor; `None` behind the ring.
fn after(ring: &Ring, cursor: u64, limit: usize) -> Option<Vec<u64>> {
    match ring.after(cursor, limit) {
        HubSlice::Behind => None,
        HubSlice::Events(events) => Some(events.iter().map(|event| event.seq()).collect()),
    }
}

#[test]
fn a_cursor_receives_later_events() {
    let mut ring = Ring::default();
    ring.restart(10);
    assert_eq!((after(&ring, 9, 9), after(&ring, 10, 9)), (None, Some(vec![])));
    // The numbers jump at a boot.
    for seq in [11, 12, 1_000_000] {
        ring.push(event(seq, 1));
    }
    for (cursor, limit, want) in [
        (9, 9, None),
        (10, 9, Some(vec![11, 12, 1_000_000])),
        (10, 2, Some(vec![11, 12])),
        (12, 9, Some(vec![1_000_000])),
        (500, 9, Some(vec![1_000_000])),
        (1_000_000, 9, Some(vec![])),
        (2_000_000, 9, Some(vec![])),
    ] {
        assert_eq!(after(&ring, cursor, limit), want, "{cursor}");
    }
}

#[test]
fn the_ring_is_bounded_and_drops_the_oldest() {
    let mut ring = Ring::default();
    ring.restart(0);
    for seq in 1..=MAX_EVENTS as u64 + 5 {
        ring.push(event(seq, 1));
    }
    assert_eq!((ring.events.len(), ring.from), (MAX_EVENTS, 5));
    assert_eq!((after(&ring, 4, 1), after(&ring, 5, 1)), (None, Some(vec![6])));
    ring.push(event(MAX_EVENTS as u64 + 6, MAX_BYTES));
    assert!(ring.bytes <= MAX_BYTES + event(0, MAX_BYTES).size());
    let last = MAX_EVENTS as u64 + 6;
    assert_eq!(after(&ring, last - 1, 1), None, "an event that does not fit is read from the store");
    ring.push(event(last + 1, 1));
    assert_eq!(after(&ring, last, 9), Some(vec![last + 1]));
    let bytes: usize = ring.events.iter().map(|event| event.size()).sum();
    assert_eq!(ring.bytes, bytes);
}

#[test]
fn an_event_is_encoded_once_per_surface() {
    let number = |event: &EventRecord| event.seq.to_string().into_bytes();
    let encoders: Vec<EventEncoder> = (0..=MAX_ENCODERS).map(|slot| EventEncoder { slot, encode: number }).collect();
    let event = event(7, 0);
    for encoder in &encoders {
        assert_eq!(event.encoded(*encoder).as_ref(), b"7");
    }
    let again = event.encoded(EventEncoder { slot: 0, encode: |_| panic!("it is encoded already") });
    assert!(matches!(again, Cow::Borrowed(b"7")));
    assert!(matches!(event.encoded(encoders[MAX_ENCODERS]), Cow::Owned(_)), "one surface more than slots");
}
