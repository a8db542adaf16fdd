//! Cursors, gaps and waking, on a real store with several writers.

use std::time::Instant;

use gantry_model::EventKind;
use gantry_store::{ImageFormat, NewImage, Store};

use super::*;
use crate::Options;

/// Commits an image without layers: one event at this time.
fn write_event(store: &Store, n: u32, at: i64) {
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
fn both(dir: &std::path::Path) -> (Engine, Observer) {
    let options = Options::new(dir.join("data"));
    let engine = Engine::open(options.clone()).unwrap();
    (engine, Observer::open(options).unwrap())
}

const SECOND: i64 = 1_000_000_000;

#[test]
fn queries_become_cursors() {
    let home = tempfile::tempdir().unwrap();
    let (engine, observer) = both(home.path());
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
    let (engine, observer) = both(home.path());
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

/// Reads until there are this many events; a wait may take any time, but no event may be missed.
fn follow(observer: &Observer, commits: &mut Commits, want: usize) -> Vec<u64> {
    let (mut cursor, mut seqs) = (0, Vec::new());
    let begin = Instant::now();
    while seqs.len() < want {
        assert!(begin.elapsed() < Duration::from_secs(60), "only {seqs:?} came");
        let page = observer.events_after(cursor, 7).unwrap();
        seqs.extend(page.events.iter().map(|event| event.seq));
        cursor = page.cursor;
        if page.events.is_empty() {
            commits.wait(Duration::from_secs(10)).unwrap();
        }
    }
    seqs
}

#[test]
fn a_follower_misses_nothing_with_or_without_inotify() {
    for blind in [false, true] {
        let home = tempfile::tempdir().unwrap();
        let (engine, observer) = both(home.path());
        let mut commits = Commits::watch(&observer).unwrap();
        assert!(commits.inotify.is_some(), "the test sees inotify");
        if blind {
            commits.inotify = None;
        }
        let options = engine.options.clone();
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let options = options.clone();
                std::thread::spawn(move || {
                    let engine = Engine::open(options).unwrap();
                    (0..20).for_each(|n| write_event(&engine.store, writer * 100 + n, 1));
                })
            })
            .collect();
        let seqs = follow(&observer, &mut commits, 40);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(seqs, (1..=40).collect::<Vec<_>>(), "blind: {blind}");
    }
}

#[test]
fn polling_backs_off_until_the_deadline() {
    let home = tempfile::tempdir().unwrap();
    let (engine, observer) = both(home.path());
    let mut commits = Commits::watch(&observer).unwrap();
    for _ in 0..POLL_BACKOFF_MS.len() {
        commits.wait(MAX_POLL_INTERVAL).unwrap();
    }
    assert_eq!(commits.pause(), MAX_POLL_INTERVAL);
    let begin = Instant::now();
    commits.wait(Duration::from_millis(5)).unwrap();
    assert!(
        begin.elapsed() >= Duration::from_millis(5) && commits.pause() == MAX_POLL_INTERVAL,
        "{:?}",
        begin.elapsed()
    );
    // Changes of other files in the directory are no commits; those of the WAL are.
    std::fs::write(home.path().join("data/other"), b"x").unwrap();
    commits.wait(Duration::from_millis(5)).unwrap();
    assert_eq!(commits.pause(), MAX_POLL_INTERVAL);
    write_event(&engine.store, 1, 1);
    commits.wait(MAX_POLL_INTERVAL).unwrap();
    assert_eq!(commits.pause(), Duration::from_millis(POLL_BACKOFF_MS[0]));
}

#[test]
fn waiting_survives_removal_of_the_directory() {
    let home = tempfile::tempdir().unwrap();
    let both = both(home.path());
    let mut commits = Commits::watch(&both.1).unwrap();
    // Files that are open keep the kernel from telling of their directory's end.
    drop(both);
    std::fs::remove_dir_all(home.path().join("data")).unwrap();
    let begin = Instant::now();
    while commits.inotify.is_some() {
        assert!(begin.elapsed() < Duration::from_secs(60), "the kernel does not tell of the end of the directory");
        commits.wait(POLL_INTERVAL).unwrap();
    }
    assert_eq!(commits.pause(), POLL_INTERVAL);
    commits.wait(Duration::from_millis(1)).unwrap();
}
