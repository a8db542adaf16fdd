//! The queue: skipped, refused and separate jobs, threads that are made and end, and panics.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::*;

const WORKERS: usize = 4;
/// Threads as of [`READERS`].
const FIXED: BridgeThreads = BridgeThreads {
    kept: WORKERS,
    max: WORKERS,
    idle_time: Duration::from_secs(3600),
    max_running: PerWeight { light: WORKERS, heavy: WORKERS - 1, create: 1, start: 1, stop: 1 },
};
const USER: Peer = Peer::User { uid: 1000, member: false };

struct Home {
    dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

fn home() -> (Home, Arc<Bridge<Observer>>) {
    home_with(FIXED)
}

fn home_with(threads: BridgeThreads) -> (Home, Arc<Bridge<Observer>>) {
    let dir = tempfile::tempdir().unwrap();
    let engine = gantry_engine::Engine::open(Options::new(dir.path().join("data"))).unwrap();
    let settings = LiveSettings::new(settings(engine.options().clone()));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    (Home { dir, runtime }, Arc::new(Bridge::start(settings, threads).unwrap()))
}

fn settings(options: Options) -> ApiSettings {
    ApiSettings { options, time_server: None, sample_interval: Duration::from_secs(1) }
}

type CallTask = tokio::task::JoinHandle<Result<(), Status>>;

/// Jobs that are under way until the sender is dropped.
fn hold_jobs(
    home: &Home,
    bridge: &Arc<Bridge<Observer>>,
    weight: Weight,
    count: usize,
) -> (mpsc::Sender<()>, Vec<CallTask>) {
    let (release, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let begun = Arc::new(AtomicUsize::new(0));
    let calls = (0..count).map(|_| {
        let (bridge, held, begun) = (Arc::clone(bridge), Arc::clone(&held), Arc::clone(&begun));
        home.runtime.spawn(async move {
            let job = move |_: &Observer| {
                begun.fetch_add(1, Ordering::SeqCst);
                // Ends with the sender.
                let _ended = held.lock().unwrap_or_else(PoisonError::into_inner).recv();
                Ok(())
            };
            bridge.call(USER, weight, job).await
        })
    });
    let calls = calls.collect();
    let busy = count.min(*bridge.shared.threads.max_running.get(weight));
    gantry_tests::wait_for("the jobs to begin", || (begun.load(Ordering::SeqCst) == busy).then_some(()));
    (release, calls)
}

#[test]
fn heavy_jobs_leave_room_for_light_ones() {
    let (home, bridge) = home();
    let (release, calls) = hold_jobs(&home, &bridge, Weight::Heavy, WORKERS + 1);
    let answer = home.runtime.block_on(bridge.call(USER, Weight::Light, |_| Ok(7)));
    assert_eq!(answer.unwrap(), 7);
    drop(release);
    for one in calls {
        home.runtime.block_on(one).unwrap().unwrap();
    }
}

#[test]
fn hanging_starts_delay_no_other_change() {
    let (home, bridge) = home_with(BridgeThreads { idle_time: Duration::from_millis(1), ..WRITERS });
    let (starts, mut calls) = hold_jobs(&home, &bridge, Weight::Start, WRITERS.max_running.start + 1);
    let (stops, stopping) = hold_jobs(&home, &bridge, Weight::Stop, WRITERS.max_running.stop + 1);
    calls.extend(stopping);
    for weight in [Weight::Light, Weight::Heavy, Weight::Create] {
        let answer = home.runtime.block_on(bridge.call(USER, weight, |_| Ok(7)));
        assert_eq!(answer.unwrap(), 7, "{weight:?}");
    }
    let wanted = QueueDepth {
        waiting: PerWeight { start: 1, stop: 1, ..PerWeight::default() },
        running: PerWeight { start: WRITERS.max_running.start, stop: WRITERS.max_running.stop, ..PerWeight::default() },
    };
    gantry_tests::wait_for("the other jobs to end", || {
        let mut depth = QueueDepth::default();
        bridge.add_depth(&mut depth);
        (depth == wanted).then_some(())
    });
    drop((starts, stops));
    for one in calls {
        home.runtime.block_on(one).unwrap().unwrap();
    }
    gantry_tests::wait_for("idle threads to end", || (bridge.shared.lock().threads == WRITERS.kept).then_some(()));
    home.runtime.block_on(bridge.call(USER, Weight::Start, |_| Ok(()))).unwrap();
}

#[test]
fn replaced_settings_reopen_the_handles() {
    let (home, bridge) = home();
    let other = home.dir.path().join("other");
    gantry_engine::Engine::open(Options::new(&other)).unwrap();
    let dir = || {
        let job = |observer: &Observer| observer.image_disk_usage().map_err(|error| status::from_error(&error));
        home.runtime.block_on(bridge.call(USER, Weight::Light, job)).unwrap().1
    };
    assert!(dir().starts_with(home.dir.path().join("data")));
    bridge.shared.settings.replace(settings(Options::new(&other)));
    assert!(dir().starts_with(&other));
}

#[test]
fn abandoned_jobs_are_skipped_and_excess_jobs_refused() {
    let (home, bridge) = home();
    let (release, calls) = hold_jobs(&home, &bridge, Weight::Light, WORKERS);
    let done = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<CallTask> = (0..MAX_WAITING)
        .map(|_| {
            let (bridge, done) = (Arc::clone(&bridge), Arc::clone(&done));
            let job = move |_: &Observer| {
                done.fetch_add(1, Ordering::SeqCst);
                Ok(())
            };
            home.runtime.spawn(async move { bridge.call(USER, Weight::Light, job).await })
        })
        .collect();
    gantry_tests::wait_for("the queue to be full", || {
        (bridge.shared.lock().lanes.light.waiting.len() == MAX_WAITING).then_some(())
    });
    let refused = home.runtime.block_on(bridge.call(USER, Weight::Light, |_| Ok(()))).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    for one in waiting {
        one.abort();
        assert!(home.runtime.block_on(one).is_err());
    }
    drop(release);
    for one in calls {
        home.runtime.block_on(one).unwrap().unwrap();
    }
    home.runtime.block_on(bridge.call(USER, Weight::Light, |_| Ok(()))).unwrap();
    assert_eq!(done.load(Ordering::SeqCst), 0);
}

#[test]
fn a_panic_fails_only_its_own_call() {
    let (home, bridge) = home();
    for _ in 0..WORKERS * 2 {
        let answer = home.runtime.block_on(bridge.call::<()>(USER, Weight::Heavy, |_| panic!("as this test wants it")));
        assert_eq!(answer.unwrap_err().code(), Code::Internal);
    }
    home.runtime.block_on(bridge.call(USER, Weight::Heavy, |_| Ok(()))).unwrap();
}

#[test]
fn a_replaced_database_is_reopened() {
    let (home, bridge) = home();
    let count = || {
        home.runtime.block_on(bridge.call(USER, Weight::Light, |observer| Ok(observer.pods(&[]).map(|all| all.len()))))
    };
    assert_eq!(count().unwrap().unwrap(), 0);
    std::fs::rename(home.dir.path().join("data"), home.dir.path().join("old")).unwrap();
    assert_eq!(count().unwrap_err().code(), Code::NotFound);
    gantry_engine::Engine::open(Options::new(home.dir.path().join("data"))).unwrap();
    assert_eq!(count().unwrap().unwrap(), 0);
}

#[test]
fn heavy_jobs_always_have_one_thread() {
    let (_home, bridge) = home();
    let shared = Arc::new(Shared {
        queue: Mutex::default(),
        more: Condvar::new(),
        settings: bridge.shared.settings.clone(),
        // Makes no thread.
        threads: BridgeThreads { max: 1, ..FIXED },
    });
    let job = || -> Job<Observer> { Box::new(|_| HandleUse::Keep) };
    {
        let mut queue = shared.lock();
        queue.threads = 1;
        queue.lanes.light.waiting.extend((0..3).map(|_| job()));
        queue.lanes.heavy.waiting.extend((0..2).map(|_| job()));
        queue.closed = true;
    }
    let order: Vec<Weight> = std::iter::from_fn(|| next_job(&shared, None).map(|(weight, _)| weight)).collect();
    use Weight::{Heavy, Light};
    assert_eq!(order, [Heavy, Light, Light, Light, Heavy]);
}

#[test]
fn streams_wait_when_the_queue_is_full() {
    let (home, bridge) = home();
    let (release, calls) = hold_jobs(&home, &bridge, Weight::Light, WORKERS);
    let waiting: Vec<CallTask> = (0..MAX_WAITING)
        .map(|_| {
            let bridge = Arc::clone(&bridge);
            home.runtime.spawn(async move { bridge.call(USER, Weight::Light, |_| Ok(())).await })
        })
        .collect();
    gantry_tests::wait_for("the queue to be full", || {
        (bridge.shared.lock().lanes.light.waiting.len() == MAX_WAITING).then_some(())
    });
    let streams: Vec<CallTask> = (0..2 * MAX_WAITING_FOR_STREAMS)
        .map(|_| {
            let bridge = Arc::clone(&bridge);
            home.runtime.spawn(async move { bridge.call_for_stream(Weight::Heavy, |_| Ok(())).await })
        })
        .collect();
    gantry_tests::wait_for("the streams' share to be full", || {
        (bridge.shared.lock().lanes.heavy.waiting.len() == MAX_WAITING_FOR_STREAMS).then_some(())
    });
    drop(release);
    for one in calls.into_iter().chain(waiting).chain(streams) {
        home.runtime.block_on(one).unwrap().unwrap();
    }
}
