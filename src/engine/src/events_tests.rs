//! Cursors and gaps, on a real store.

use gantry_model::EventKind;
use gantry_store::{ImageFormat, NewImage, Store};

use super::*;
use crate::Options;

/// Commits an image without layers: one event at this time.
pub(crate) fn write_event(store: &Store, n: u32, at: i64) {
    let blob = |text: String| {
        let digest = gantry_fetch::source::digest_of(gantry_model::id::Algorithm::Sha256, text.as_bytes());
        store.put_blob(&digest, text.as_bytes()).unwrap();
        digest
    };
    let (id, config) = (blob(format!("{{\"n\":{n}}}")), blob("{}".to_owned()));
    let image = NewImage { id, config, format: ImageFormat::Oci, layers: Vec::new(), size: 2, names: Vec::new() };
    store.stop_clock(Timestamp(at));
    store.commit_image(&image, Timestamp(at)).unwrap();
}

/// An engine on a new store, and an observer of it.
pub(crate) fn open_both(dir: &std::path::Path) -> (Engine, Observer) {
    let options = Options::new(dir.join("data"));
    let engine = Engine::open(options.clone()).unwrap();
    (engine, Observer::open(options).unwrap())
}

const SECOND: i64 = 1_000_000_000;

#[test]
fn queries_become_cursors() {
    let home = tempfile::tempdir().unwrap();
    let (engine, observer) = open_both(home.path());
    // The clock was set back before the third, whose time is that of the second for that reason.
    for (n, at) in [10, 20, 12, 30, 40].into_iter().enumerate() {
        write_event(&engine.store, n as u32, at * SECOND);
    }
    let now = Timestamp(50 * SECOND);
    let ask = |since: Option<i64>, until: Option<i64>| {
        let at = |seconds: Option<i64>| seconds.map(|seconds| Timestamp(seconds * SECOND));
        let query = EventQuery { since: at(since), until: at(until), ..EventQuery::default() };
        let start = observer.events_start(&query, now).unwrap();
        let page = observer.events_after(start, 100).unwrap();
        (start, page.trimmed)
    };
    for (since, until, want) in [
        (None, None, 5),
        (None, Some(51), 5),
        (None, Some(50), 0),
        (Some(0), None, 0),
        (Some(11), None, 1),
        (Some(12), Some(13), 1),
        (Some(21), None, 3),
        (Some(41), None, 5),
        (Some(99), None, 5),
    ] {
        assert_eq!(ask(since, until), (want, None), "{since:?} {until:?}");
    }
    // Of 10, 20, 20, 30, 40 the first three go.
    assert_eq!(engine.store.trim_events(2).unwrap(), 3);
    for (since, until, want) in [
        (None, None, (5, None)),
        (None, Some(50), (3, None)),
        (Some(0), None, (2, Some(3))),
        (Some(30), None, (2, Some(3))),
        // The deleted events were written before 30.
        (Some(32), None, (4, None)),
        (Some(99), None, (5, None)),
    ] {
        assert_eq!(ask(since, until), want, "{since:?} {until:?}");
    }
}

#[test]
fn pages_continue_and_report_gaps() {
    let home = tempfile::tempdir().unwrap();
    let (engine, observer) = open_both(home.path());
    for n in 0..10 {
        write_event(&engine.store, n, i64::from(n));
    }
    let page = observer.events_after(2, 3).unwrap();
    let seqs = |page: &EventPage| page.events.iter().map(|event| event.seq).collect::<Vec<_>>();
    assert_eq!((seqs(&page), page.cursor, page.trimmed), (vec![3, 4, 5], 5, None));
    assert_eq!(page.events[0].event.kind, EventKind::ImageImported);
    engine.store.trim_events(3).unwrap();
    let page = observer.events_after(5, 2).unwrap();
    assert_eq!((seqs(&page), page.cursor, page.trimmed), (vec![8, 9], 9, Some(7)));
    let page = observer.events_after(7, 9).unwrap();
    assert_eq!((page.cursor, page.trimmed), (10, None), "nothing is missing between 7 and 8");
    let page = observer.events_after(10, 9).unwrap();
    assert_eq!(page, EventPage { cursor: 10, ..EventPage::default() });
    assert_eq!(observer.events_after(u64::MAX, 9).unwrap().cursor, u64::MAX);
}
