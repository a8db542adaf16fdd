//! Waking with several writers and readers, and a directory that is absent, removed or replaced.

use std::time::Instant;

use gantry_tests::wait_for;

use super::*;
use crate::Observer;
use crate::events::tests::{open_both, write_event};

/// The interval right after a wake-up.
const FIRST_INTERVAL: Duration = Duration::from_millis(POLL_BACKOFF_MS[0]);

/// Reads until there are this many events; a wait may take any time, but no event may be missed.
fn follow(observer: &Observer, mut wait: impl FnMut(Duration) -> io::Result<()>, want: usize) -> Vec<u64> {
    let (mut cursor, mut seqs) = (0, Vec::new());
    let begin = Instant::now();
    while seqs.len() < want {
        assert!(begin.elapsed() < gantry_tests::DEADLINE, "only {seqs:?} came");
        let page = observer.events_after(cursor, 7).unwrap();
        seqs.extend(page.events.iter().map(|event| event.seq));
        cursor = page.cursor;
        if page.events.is_empty() {
            wait(Duration::from_secs(10)).unwrap();
        }
    }
    seqs
}

/// Two writers, which make 20 events each.
fn spawn_writers(options: &Options) -> Vec<std::thread::JoinHandle<()>> {
    let spawn = |writer: u32| {
        let options = options.clone();
        std::thread::spawn(move || {
            let engine = Engine::open(options).unwrap();
            (0..20).for_each(|n| write_event(&engine.store, writer * 100 + n, 1));
        })
    };
    (0..2).map(spawn).collect()
}

#[test]
fn a_follower_misses_nothing_with_or_without_inotify() {
    for is_watched in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let (engine, observer) = open_both(home.path());
        let mut commits = engine.commits();
        assert!(commits.inotify.is_some(), "the test can use inotify");
        commits.inotify.take_if(|_| !is_watched);
        let writers = spawn_writers(&engine.options);
        let seqs = follow(&observer, |at_most| commits.wait(at_most), 40);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(seqs, (1..=40).collect::<Vec<_>>(), "watched: {is_watched}");
    }
}

#[test]
fn subscribers_miss_nothing_with_or_without_inotify() {
    for is_watched in [true, false] {
        let home = tempfile::tempdir().unwrap();
        let (engine, _) = open_both(home.path());
        let absent = Options::new(home.path().join("absent"));
        let watcher = CommitWatcher::start(if is_watched { &engine.options } else { &absent }).unwrap();
        assert_eq!(watcher.check().is_ok(), is_watched);
        let spawn_reader = |_| {
            let (options, mut commits) = (engine.options.clone(), watcher.subscribe().unwrap());
            std::thread::spawn(move || {
                let observer = Observer::open(options).unwrap();
                follow(&observer, |at_most| commits.wait(at_most), 40)
            })
        };
        let readers: Vec<_> = (0..3).map(spawn_reader).collect();
        spawn_writers(&engine.options).into_iter().for_each(|writer| writer.join().unwrap());
        for reader in readers {
            assert_eq!(reader.join().unwrap(), (1..=40).collect::<Vec<_>>(), "watched: {is_watched}");
        }
    }
}

#[test]
fn polling_backs_off_until_the_deadline() {
    let home = tempfile::tempdir().unwrap();
    let (engine, _observer) = open_both(home.path());
    let mut commits = engine.commits();
    for _ in 0..POLL_BACKOFF_MS.len() {
        commits.wait(MAX_POLL_INTERVAL).unwrap();
    }
    assert_eq!(commits.interval(), MAX_POLL_INTERVAL);
    let begin = Instant::now();
    commits.wait(Duration::from_millis(5)).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(5), "{:?}", begin.elapsed());
    assert_eq!(commits.interval(), MAX_POLL_INTERVAL);
    // Changes of other files in the directory are no commits; those of the WAL are.
    std::fs::write(home.path().join("data/other"), b"x").unwrap();
    commits.wait(Duration::from_millis(5)).unwrap();
    assert_eq!(commits.interval(), MAX_POLL_INTERVAL);
    write_event(&engine.store, 1, 1);
    commits.wait(MAX_POLL_INTERVAL).unwrap();
    assert_eq!(commits.interval(), FIRST_INTERVAL);
}

#[test]
fn waiting_survives_removal_of_the_directory() {
    let home = tempfile::tempdir().unwrap();
    let (engine, observer) = open_both(home.path());
    let mut commits = engine.commits();
    // While a file is open, the kernel does not report the end of its directory.
    drop((engine, observer));
    std::fs::remove_dir_all(home.path().join("data")).unwrap();
    wait_for("the end of the watch", || {
        commits.wait(POLL_INTERVAL).unwrap();
        commits.inotify.is_none().then_some(())
    });
    assert_eq!(commits.interval(), POLL_INTERVAL);
    commits.wait(Duration::from_millis(1)).unwrap();
}

/// Waits until a subscription has backed off completely: all wake-ups of earlier commits have arrived.
fn wait_for_back_off(commits: &mut CommitSubscription) {
    wait_for("the back-off", || {
        commits.wait(MAX_POLL_INTERVAL).unwrap();
        (commits.interval() == MAX_POLL_INTERVAL).then_some(())
    });
}

/// Waits until a subscription has backed off completely, then for its next wake-up, which `change` causes.
fn wait_for_wake_up(commits: &mut CommitSubscription, change: impl FnOnce()) {
    wait_for_back_off(commits);
    change();
    wait_for("a wake-up", || {
        commits.wait(MAX_POLL_INTERVAL).unwrap();
        (commits.interval() == FIRST_INTERVAL).then_some(())
    });
}

#[test]
fn one_commit_wakes_all_subscriptions() {
    let home = tempfile::tempdir().unwrap();
    let (engine, _observer) = open_both(home.path());
    let watcher = CommitWatcher::start(&engine.options).unwrap();
    let other = watcher.subscribe().unwrap();
    let is_readable = || process::readable(&[other.as_fd()], Deadline::after(Duration::ZERO)).unwrap().is_some();
    let mut one = watcher.subscribe().unwrap();
    assert!(!is_readable());
    wait_for_wake_up(&mut one, || write_event(&engine.store, 1, 1));
    wait_for("the other subscription", || is_readable().then_some(()));
    // A commit writes several times to its file.
    wait_for_back_off(&mut one);
    other.clear();
    assert!(!is_readable());
    // Changes of other files are no commits.
    std::fs::write(home.path().join("data/other"), b"x").unwrap();
    one.wait(Duration::from_millis(50)).unwrap();
    assert!(!is_readable());
}

#[test]
fn a_directory_may_be_created_removed_and_replaced() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    let watcher = CommitWatcher::start(&Options::new(data.clone())).unwrap();
    let mut commits = watcher.subscribe().unwrap();
    assert_eq!(watcher.check().unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(commits.interval(), POLL_INTERVAL, "an absent directory is polled");

    let (engine, observer) = open_both(home.path());
    wait_for_wake_up(&mut commits, || write_event(&engine.store, 1, 1));
    drop((engine, observer));
    std::fs::rename(&data, home.path().join("old")).unwrap();
    let (engine, observer) = open_both(home.path());
    let id = |watcher: &CommitWatcher| watcher.shared.lock().watch;
    let old = id(&watcher);
    let mut late = watcher.subscribe().unwrap();
    assert!(id(&watcher).is_some(), "subscribing watches the new directory");
    assert_ne!(id(&watcher), old);
    wait_for_wake_up(&mut late, || write_event(&engine.store, 2, 1));
    wait_for_wake_up(&mut commits, || write_event(&engine.store, 3, 1));

    drop((engine, observer));
    std::fs::remove_dir_all(&data).unwrap();
    wait_for("the end of the watch", || {
        commits.wait(MAX_POLL_INTERVAL).unwrap();
        (commits.interval() == POLL_INTERVAL).then_some(())
    });
    // Without a new subscription the thread finds the new directory.
    let (engine, _observer) = open_both(home.path());
    wait_for_wake_up(&mut commits, || write_event(&engine.store, 4, 1));
}

#[test]
fn the_thread_ends_with_the_last_handle() {
    let home = tempfile::tempdir().unwrap();
    let watcher = CommitWatcher::start(&Options::new(home.path().to_owned())).unwrap();
    let commits = watcher.subscribe().unwrap();
    let inotify = Arc::downgrade(watcher.shared.lock().inotify.as_ref().unwrap());
    drop(watcher);
    assert!(inotify.upgrade().is_some());
    drop(commits);
    wait_for("the thread to close its inotify instance", || inotify.upgrade().is_none().then_some(()));
}
