//! ListenEvents sends past, then future events: in order, without duplicates or gaps, for every cause of an event and
//! for slow clients.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test itself does")]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use gantry_proto::rkt::v1alpha::{Event, EventFilter, EventType, PodState};
use gantry_tests::api::{Api, data, sequence};
use gantry_tests::python::{run_script, spawn_script};
use gantry_tests::{DEADLINE, Gantry, Signal, now_ns, pod_id, wait_for};

/// All stored and all future events.
fn since_ever() -> EventFilter {
    EventFilter { since_time: 1, ..EventFilter::default() }
}

fn now_seconds() -> i64 {
    now_ns().div_euclid(1_000_000_000)
}

/// Sequence numbers rise by one: none is missing, none comes twice.
#[track_caller]
fn gapless(events: &[Event]) {
    for pair in events.windows(2) {
        assert_eq!(sequence(&pair[1]), sequence(&pair[0]) + 1, "{pair:?}");
    }
}

fn kinds(events: &[Event]) -> Vec<EventType> {
    events.iter().map(Event::r#type).collect()
}

/// All stored events.
#[track_caller]
fn history(api: &Api) -> Vec<Event> {
    // A filter that ends in the past: the stream ends by itself.
    api.listen(EventFilter { since_time: 1, until_time: now_seconds() + 1, ..EventFilter::default() }).rest()
}

#[test]
fn concurrent_writers_neither_lose_nor_repeat_events() {
    const COMMANDS: usize = 8;
    const PODS: usize = 3;
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let mut listeners = vec![api.listen(since_ever())];
    // The number of events of the whole history that each listener has received already.
    let mut earliest = vec![0];
    for _ in 0..PODS {
        let run = ["run", "--net=none", "--quiet", "--rm", &image, "--name=it", "--", "true"];
        let mut makers: Vec<_> = (0..COMMANDS).map(|_| g.spawn(&run)).collect();
        // Some listeners connect in the middle, with connections of their own.
        while makers.iter_mut().any(|maker| !maker.has_ended()) {
            let mut late = served.api().listen(since_ever());
            late.take_one();
            if listeners.len() < 12 {
                listeners.push(late);
                earliest.push(1);
            }
        }
        makers.into_iter().for_each(|maker| maker.wait().succeeded());
    }
    let last = g.import("last", &gantry_fixtures::Image::builder().label("last", "1").build().unwrap());
    let all: Vec<Vec<Event>> = listeners.iter_mut().map(|it| it.until(|event| event.id == last)).collect();
    gapless(&all[0]);
    for (one, taken) in all.iter().zip(earliest) {
        assert_eq!(one[..], all[0][taken..], "every listener receives the same");
    }
    assert_eq!(history(&api), all[0]);
    let mut count: BTreeMap<EventType, usize> = BTreeMap::new();
    for event in &all[0] {
        *count.entry(event.r#type()).or_default() += 1;
    }
    let pods = COMMANDS * PODS;
    for kind in [
        EventType::PodPrepared,
        EventType::PodStarted,
        EventType::AppStarted,
        EventType::AppExited,
        EventType::PodExited,
        EventType::PodGarbageCollected,
    ] {
        assert_eq!(count.get(&kind), Some(&pods), "{kind:?} in {count:?}");
    }
    drop((listeners, api));
    served.end();
}

/// Causes all nine types of events by commands; returns the pod that ran and the pod whose preparation was killed.
fn all_nine(g: &Gantry, api: &Api) -> (String, String, String) {
    let image = g.fixture();
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--name=it", "--", "exit", "7"]).ok());
    api.wait_state(&pod, PodState::Exited);
    g.run(&["rm", &pod]).succeeded();
    let path = g.scratch().join("id");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let path = path.display().to_string();
    // The command blocks on writing the id to the fifo, and is killed there.
    let preparing = g.spawn(&["prepare", "--net=none", "--uuid-file-save", &path, &image, "--", "true"]);
    let aborted = wait_for("the pod that is being prepared", || api.pods().pop()).id;
    preparing.signal(Signal::KILL);
    let _ = preparing.wait();
    // On a slow machine, the pod may have been collected as garbage before this looks.
    let under_way = [PodState::Embryo as i32, PodState::Preparing as i32];
    wait_for("its preparation to be aborted", || {
        let pod = api.pods().into_iter().find(|pod| pod.id == aborted);
        pod.is_none_or(|pod| !under_way.contains(&pod.state)).then_some(())
    });
    let _ = g.run(&["rm", &aborted]);
    g.run(&["image", "rm", &image]).succeeded();
    (image, pod, aborted)
}

#[test]
fn all_nine_event_types_carry_their_data() {
    use EventType::{
        AppExited, AppStarted, ImageImported, ImageRemoved, PodExited, PodGarbageCollected, PodPrepareAborted,
        PodPrepared, PodStarted,
    };
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    let mut listener = api.listen(EventFilter::default());
    let begin = now_ns();
    let (image, pod, aborted) = all_nine(&g, &api);
    let events = listener.until(|event| event.r#type() == ImageRemoved);
    gapless(&events);
    let want = [
        ImageImported,
        PodPrepared,
        PodStarted,
        AppStarted,
        AppExited,
        PodExited,
        PodGarbageCollected,
        PodPrepareAborted,
        PodGarbageCollected,
        ImageRemoved,
    ];
    assert_eq!(kinds(&events), want);
    for event in &events {
        let at: i64 = data(event, "time_ns").unwrap().parse().unwrap();
        assert!((begin..=now_ns()).contains(&at) && event.time == at.div_euclid(1_000_000_000), "{event:?}");
        let (id, from) = match event.r#type() {
            ImageImported | ImageRemoved => (&image, None),
            AppStarted | AppExited => (&pod, Some("it")),
            PodPrepareAborted => (&aborted, Some(&*aborted)),
            _ if event.id == aborted => (&aborted, Some(&*aborted)),
            _ => (&pod, Some(&*pod)),
        };
        assert_eq!(event.id, *id, "{event:?}");
        assert!(from.is_none_or(|from| event.from == from), "{event:?}");
    }
    let fact = |kind: EventType, key: &str| data(events.iter().find(|event| event.r#type() == kind).unwrap(), key);
    for (kind, key, value) in [
        (PodExited, "exit_code", "7"),
        (PodExited, "failed_app", "it"),
        (AppStarted, "image_id", &image),
        (AppStarted, "attempt", "0"),
        (AppExited, "image_id", &image),
        (AppExited, "exit_code", "7"),
        (AppExited, "oom", "false"),
        (ImageImported, "image_id", &image),
        (ImageRemoved, "image_id", &image),
    ] {
        assert_eq!(fact(kind, key), Some(value), "{key} of {kind:?}");
    }
    assert!(fact(PodExited, "reason").is_some() && fact(ImageImported, "size").is_some());
    filters(&api, &events, &image, &pod, &aborted);
    drop((listener, api));
    served.end();
}

/// Checks each field of the filter against the same history.
#[track_caller]
fn filters(api: &Api, all: &[Event], image: &str, pod: &str, aborted: &str) {
    let until = || EventFilter { since_time: 1, until_time: now_seconds() + 1, ..EventFilter::default() };
    let types = |list: &[EventType]| EventFilter { types: list.iter().map(|&it| it.into()).collect(), ..until() };
    let ids = |list: &[&str]| EventFilter { ids: list.iter().map(|&it| it.into()).collect(), ..until() };
    let names = |list: &[&str]| EventFilter { names: list.iter().map(|&it| it.into()).collect(), ..until() };
    for (what, filter, want) in [
        ("nothing asked for", until(), 10),
        ("one type", types(&[EventType::AppExited]), 1),
        ("any type", types(&[EventType::AppExited, EventType::PodGarbageCollected]), 3),
        ("no event is of no type", types(&[EventType::Undefined]), 0),
        ("one id", ids(&[pod]), 6),
        ("any id", ids(&[pod, image]), 8),
        ("whole ids", ids(&[&pod[..8]]), 0),
        ("one name", names(&["it"]), 2),
        ("any name", names(&["it", aborted]), 4),
        ("both hold", EventFilter { ids: vec![pod.into()], ..names(&["it"]) }, 2),
        ("one does not", EventFilter { ids: vec![image.into()], ..names(&["it"]) }, 0),
        (
            "all hold",
            EventFilter { ids: vec![pod.into()], names: vec!["it".into()], ..types(&[EventType::AppStarted]) },
            1,
        ),
    ] {
        let found = api.listen(filter.clone()).rest();
        assert_eq!(found.len(), want, "{what}: {filter:?}");
        assert!(found.iter().all(|event| all.contains(event)), "{what}");
    }
    // Filters that end before the first event or begin after the last.
    let last = all.last().unwrap().time;
    for (since, until, want) in [
        (1, all[0].time, 0),
        (all[0].time, last + 1, 10),
        (0, last + 1, if last < now_seconds() { 10 } else { 0 }),
        (1, last, all.iter().filter(|event| event.time < last).count()),
    ] {
        let filter = EventFilter { since_time: since, until_time: until, ..EventFilter::default() };
        assert_eq!(api.listen(filter.clone()).rest().len(), want, "{filter:?}");
    }
}

#[test]
fn events_of_a_removed_pod_keep_its_name() {
    use EventType::{PodExited, PodGarbageCollected, PodPrepared, PodStarted};
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    let image = g.fixture();
    let run = |app: &str| {
        ["run", "--net=none", "-d", "--pod-name=web", &image, "--name", app, "--", "true"].map(str::to_owned)
    };
    let pods: Vec<String> = ["a", "b"]
        .map(|app| {
            let pod = pod_id(&g.run(&run(app).each_ref().map(String::as_str)).ok());
            api.wait_state(&pod, PodState::Exited);
            // Another pod may have the name afterwards.
            g.run(&["rm", "web"]).succeeded();
            pod
        })
        .into();
    let until = || EventFilter { since_time: 1, until_time: now_seconds() + 1, ..EventFilter::default() };
    let of_name = api.listen(EventFilter { names: vec!["web".into()], ..until() }).rest();
    let all = [PodPrepared, PodStarted, PodExited, PodGarbageCollected];
    assert_eq!(kinds(&of_name), [all, all].concat());
    for (event, pod) in of_name.iter().zip(pods.iter().flat_map(|pod| [pod; 4])) {
        assert_eq!((&event.id, &event.from, data(event, "name")), (pod, pod, Some("web")), "{event:?}");
    }
    let of_uuid = api.listen(EventFilter { names: vec![pods[0].clone()], ..until() }).rest();
    assert_eq!(of_uuid, of_name[..4]);
    let printed = g.run(&["events", "--since=1h", "--filter=type=pod-garbage-collected", "--no-legend"]).ok();
    assert_eq!(printed.stdout.lines().filter(|line| line.contains(" web")).count(), 2, "{printed}");
    drop(api);
    served.end();
}

#[test]
fn a_subscription_ends_at_its_until_time() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    let until = now_seconds() + 5;
    let mut listener = api.listen(EventFilter { until_time: until, ..EventFilter::default() });
    g.fixture();
    let events = listener.rest();
    let over = now_ns();
    assert_eq!(kinds(&events), [EventType::ImageImported]);
    assert!(
        (0..2_000_000_000).contains(&(over - until * 1_000_000_000)),
        "it ended {} ns late",
        over - until * 1_000_000_000
    );
    // A listener with a later start time receives no earlier event. The end is far enough away for a slow machine.
    let since = now_seconds() + 2;
    let mut later = api.listen(EventFilter { since_time: since, until_time: since + 60, ..EventFilter::default() });
    let early = g.import("early", &gantry_fixtures::Image::builder().label("n", "1").build().unwrap());
    wait_for("the second", || (now_seconds() >= since).then_some(()));
    let late = g.import("late", &gantry_fixtures::Image::builder().label("n", "2").build().unwrap());
    let heard = later.until(|event| event.id == late);
    // On a slow machine, that second may have come before the first image did.
    assert!(heard.iter().all(|event| event.time >= since && [&early, &late].contains(&&event.id)), "{heard:?}");
    let first = history(&api).into_iter().find(|event| event.id == early).unwrap();
    assert_eq!(heard.len(), 1 + usize::from(first.time >= since), "{heard:?}");
    drop(api);
    served.end();
}

#[test]
fn events_arrive_while_their_command_runs() {
    const EVENTS: usize = 10;
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let mut listener = api.listen(EventFilter { types: vec![EventType::PodPrepared.into()], ..EventFilter::default() });
    // The benchmark (`bench/run api`) measures the latency; here, every matching event arrives and no other.
    for _ in 0..EVENTS {
        let made = g.spawn(&["prepare", "--net=none", "--quiet", &image, "--", "true"]);
        let event = listener.take_one();
        let pod = pod_id(&made.wait().ok());
        assert_eq!(event.id, pod);
        g.run(&["rm", &pod]).succeeded();
    }
    drop((listener, api));
    served.end();
}

/// Writes this many events of this many bytes straight into the database.
#[track_caller]
fn write_events(g: &Gantry, count: usize, size: usize) {
    let dir = g.dir().display().to_string();
    run_script("database.py", &[&dir, "events", &count.to_string(), &size.to_string()]).succeeded();
}

#[test]
fn slow_listeners_lose_nothing_and_use_little_memory() {
    const LISTENERS: usize = 20;
    const COUNT: usize = 12_000;
    let g = Gantry::new();
    let served = g.serve(&[]);
    let quick = served.api();
    let mut reads = quick.listen(EventFilter::default());
    // Each listener has a connection of its own, with a receive window of 64 KiB until its client reads.
    let stuck: Vec<Api> = (0..LISTENERS).map(|_| Api::connect_with_small_window(served.address())).collect();
    let mut stuck: Vec<_> = stuck.iter().map(|api| api.listen(EventFilter::default())).collect();
    let before = served.rss_kib();
    write_events(&g, COUNT, 1000);
    let mut count = 0;
    let all = reads.until(|_| {
        count += 1;
        count == COUNT
    });
    gapless(&all);
    assert!(reads.largest < 1 << 20, "{} bytes in one message", reads.largest);
    let grown = served.rss_kib().saturating_sub(before);
    println!("{LISTENERS} listeners that do not read, {} MiB of events: {grown} KiB more", COUNT / 1000);
    assert!(grown < 64 * 1024, "{grown} KiB more for {LISTENERS} listeners");
    for (i, listener) in stuck.iter_mut().enumerate() {
        for want in &all {
            assert_eq!(listener.take_one(), *want, "listener {i}");
        }
    }
    drop((stuck, reads, quick));
    served.end();
}

#[test]
fn trimmed_events_are_reported_as_a_gap() {
    const KEPT: usize = 1000;
    let g = Gantry::new();
    let config = g.write("trim.toml", &format!("events-kept = {KEPT}\ngc-interval = '200ms'\n"));
    let served = g.serve(&["--config", &config]);
    let api = served.api();
    let narrow = Api::connect_with_small_window(served.address());
    let mut stuck = narrow.listen(EventFilter::default());
    // More than all buffers on the way hold: unsent events are trimmed before the client reads again.
    write_events(&g, 8000, 4096);
    let kept = |api: &Api| history(api).len();
    wait_for("the history to be trimmed", || (kept(&api) <= KEPT).then_some(()));
    let last = sequence(history(&api).last().unwrap());
    let heard = stuck.until(|event| sequence(event) == last);
    let gaps: Vec<(u64, u64)> = heard
        .windows(2)
        .map(|pair| (sequence(&pair[0]), sequence(&pair[1]), data(&pair[1], "trimmed")))
        .filter_map(|(before, after, told)| {
            assert_eq!(told.is_some(), after != before + 1, "only a gap is reported: {before}, {after}");
            told.map(|told| (told.parse().unwrap(), after))
        })
        .collect();
    assert!(!gaps.is_empty(), "the test has seen a gap");
    for (told, after) in gaps {
        assert_eq!(told + 1, after, "the highest number that is gone");
    }
    // A listener that requests trimmed events is notified with the first event.
    let asked = history(&api);
    let told: u64 = data(&asked[0], "trimmed").expect("the gap is reported").parse().unwrap();
    assert_eq!(told + 1, sequence(&asked[0]));
    assert!(asked[1..].iter().all(|event| data(event, "trimmed").is_none()));
    gapless(&asked);
    // A listener that requests only later events is not.
    let mut fresh = api.listen(EventFilter::default());
    write_events(&g, 1, 0);
    assert_eq!(data(&fresh.take_one(), "trimmed"), None);
    drop((stuck, fresh, api, narrow));
    served.end();
}

#[test]
fn shutdown_ends_streams_and_sequence_continues() {
    let g = Gantry::new();
    let image = g.fixture();
    let served = g.serve(&[]);
    let api = served.api();
    let mut listener = api.listen(since_ever());
    let first = listener.take_one();
    let pod = pod_id(&g.run(&["run", "--net=none", "-d", &image, "--name=it", "--", "sleep", "forever"]).ok());
    let heard = listener.until(|event| event.r#type() == EventType::AppStarted);
    let mut logs = api.logs(gantry_proto::rkt::v1alpha::GetLogsRequest {
        pod_id: pod.clone(),
        follow: true,
        ..Default::default()
    });
    served.end();
    for status in [listener.try_next().unwrap_err(), logs.try_next().unwrap_err()] {
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        assert_eq!(status.message(), "gantryd is ending: ask again");
    }
    drop((listener, logs, api));
    // Events that occur while gantryd is down are not lost.
    g.run(&["kill", &pod]).succeeded();
    g.wait_state(&pod, "exited");
    let served = g.serve(&[]);
    let api = served.api();
    let mut again = api.listen(since_ever());
    let all = again.until(|event| event.r#type() == EventType::PodExited);
    gapless(&all);
    assert_eq!(all[0], first);
    assert_eq!(all[1..=heard.len()], heard[..]);
    drop((again, api));
    served.end();
}

#[test]
fn response_headers_precede_the_first_event() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    for _ in 0..20 {
        let begin = Instant::now();
        let mut listener = api.listen(EventFilter::default());
        assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
        // After the response headers, no event is missed.
        let dir = g.dir().display().to_string();
        let writer = spawn_script("database.py", &[&dir, "events", "1"]);
        assert!(matches!(listener.next_within(DEADLINE), Ok(Some(_))));
        writer.wait().succeeded();
    }
    drop(api);
    served.end();
}

#[test]
fn events_without_a_type_can_be_selected() {
    let g = Gantry::new();
    let served = g.serve(&[]);
    let api = served.api();
    let mut listener = api.listen(EventFilter { types: vec![EventType::Undefined.into()], ..EventFilter::default() });
    let pod = g.detached(&[], &["sleep", "600"]);
    g.run(&["stop", "--time=0", &pod]).succeeded();
    let event = listener.take_one();
    assert_eq!((event.r#type(), &event.id, data(&event, "type")), (EventType::Undefined, &pod, Some("pod-stopping")));
    drop((listener, api));
    served.end();
    g.remove_all();
}
