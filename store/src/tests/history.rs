//! The history: finding the start of a time, trimming in pieces, and reporting trimmed events.

use gantry_model::EventKind;

use super::*;

/// A history of these kinds and times, numbered from 1.
fn history(store: &Store, events: &[(EventKind, i64)]) {
    let tx = store.conn.unchecked_transaction().unwrap();
    for (kind, at) in events {
        tx.prepare_cached("INSERT INTO event SELECT next_seq, boot, ?1, ?2, 'id', 'name', '{}' FROM state")
            .unwrap()
            .execute(rusqlite::params![kind.as_str(), at])
            .unwrap();
        tx.prepare_cached("UPDATE state SET next_seq = next_seq + 1").unwrap().execute([]).unwrap();
    }
    tx.commit().unwrap();
}

const SECOND: i64 = 1_000_000_000;

#[test]
fn late_timestamps_do_not_hide_gaps() {
    use EventKind::{PodExited, PodGarbageCollected, PodStarted};
    let home = Home::new();
    // Ends that happened long ago were noticed after the start at 50; then, at 60, a pod was removed.
    let all = [(PodStarted, 50), (PodExited, 10), (PodExited, 20), (PodGarbageCollected, 60), (PodExited, 30)];
    history(&home.store, &all.map(|(kind, at)| (kind, at * SECOND)));
    let before = |since: i64| {
        let start = home.store.seq_before(Timestamp(since * SECOND)).unwrap();
        (start, home.store.events_page(start, 9).unwrap().1)
    };
    assert_eq!([before(0), before(15), before(25), before(70)], [(0, None), (0, None), (0, None), (5, None)]);
    home.store.trim_events(4).unwrap();
    // The oldest kept one is of 10, and the trimmed one was of 50.
    assert_eq!([before(15), before(50), before(60), before(62)], [(0, Some(1)), (0, Some(1)), (0, Some(1)), (5, None)]);
    home.store.trim_events(1).unwrap();
    assert_eq!(before(62), (3, Some(4)), "no remaining event dates the trimmed ones");
    home.store.trim_events(0).unwrap();
    assert_eq!((before(62), home.store.trimmed_seq().unwrap()), ((4, Some(5)), 5));
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(24))]

    /// A reader that asks for events after the last one it received misses none, even if the clock jumps.
    #[test]
    fn event_times_never_decrease(clock in proptest::collection::vec(-100i64..100, 1..8)) {
        let home = Home::new();
        for (n, &at) in clock.iter().enumerate() {
            home.store.stop_clock(Timestamp(at));
            image(&home.store, &n.to_string(), &[]);
        }
        let all = home.store.events_after(0, 100).unwrap();
        proptest::prop_assert_eq!(all.len(), clock.len());
        for (n, seen) in all.iter().enumerate() {
            let start = home.store.seq_before(seen.event.at).unwrap();
            let (page, gap) = home.store.events_page(start, 100).unwrap();
            let told: Vec<u64> = page.iter().filter(|e| e.event.at >= seen.event.at).map(|e| e.seq).collect();
            let missed = all[n..].iter().find(|event| !told.contains(&event.seq));
            proptest::prop_assert!(missed.is_none() && gap.is_none(), "{:?} {:?}", missed, gap);
        }
    }
}

#[test]
fn queries_by_time_use_the_index() {
    let home = Home::new();
    // As the second format has it.
    home.store.conn.execute_batch("CREATE INDEX IF NOT EXISTS event_at ON event (at)").unwrap();
    let plan = format!("EXPLAIN QUERY PLAN {}", crate::events::FIRST_SINCE);
    let plan: String = home.store.conn.query_row(&plan, [5], |row| row.get("detail")).unwrap();
    assert!(plan.contains("event_at (at>?)"), "{plan}");
}

#[test]
fn trimming_yields_to_writers() {
    let home = Home::new();
    let image = image(&home.store, "i", &[]);
    history(&home.store, &vec![(EventKind::PodStarted, 1); 20_000]);
    let trimmer = home.another();
    let (mut waits, mut written) = (Vec::new(), 0);
    let deleted = std::thread::scope(|scope| {
        let trimming = scope.spawn(move || trimmer.trim_events(1_000).unwrap());
        while !trimming.is_finished() || written == 0 {
            let begun = std::time::Instant::now();
            home.store.insert_pod(&new_pod(pod_id(written), &image, &["a"])).unwrap();
            waits.push(begun.elapsed());
            written += 1;
        }
        trimming.join().unwrap()
    });
    println!("{written} writes while {deleted} events were trimmed, the longest took {:?}", waits.iter().max());
    assert_eq!((deleted, home.store.trimmed_seq().unwrap()), (19_001, 19_001));
    let (events, gap) = home.store.events_page(0, 5_000).unwrap();
    assert_eq!((events.len(), events[0].seq, gap), (1_000, 19_002, Some(19_001)));
    assert_eq!(home.store.check(crate::Depth::Deep), []);
}

#[test]
fn an_interrupted_trim_reports_the_gap() {
    let home = Home::new();
    history(&home.store, &vec![(EventKind::PodStarted, 1); 12_000]);
    // Fails at the second piece, as a kill would end it there.
    home.store
        .conn
        .execute_batch(
            "CREATE TEMP TRIGGER cut BEFORE DELETE ON event WHEN old.seq > 6000 BEGIN SELECT RAISE(ABORT, 'cut'); END",
        )
        .unwrap();
    assert!(home.store.trim_events(0).is_err());
    assert_eq!(home.store.trimmed_seq().unwrap(), 5_000);
    assert_eq!(home.store.events_after(0, 1).unwrap()[0].seq, 5_001);
    assert_eq!(home.store.check(crate::Depth::Deep), []);
    home.store.conn.execute_batch("DROP TRIGGER cut").unwrap();
    assert_eq!(home.store.trim_events(0).unwrap(), 7_000);
}
