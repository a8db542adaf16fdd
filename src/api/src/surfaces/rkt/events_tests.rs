//! Selections and messages; the streams are tested by the server's tests.

use std::collections::BTreeMap;

use gantry_engine::{CommitWatcher, Options};
use gantry_model::{EventKind, Timestamp};
use gantry_proto::rkt::v1alpha::ListenEventsResponse;

use super::*;

fn event(seq: u64, kind: EventKind, id: &str, name: &str) -> EventRecord {
    let at = Timestamp(i64::try_from(seq).unwrap() * 1_000_000_000 + 5);
    let data = BTreeMap::from([("exit_code".to_owned(), "7".to_owned())]);
    EventRecord {
        seq,
        boot: "b".to_owned(),
        event: NewEvent { kind, at, id: id.to_owned(), name: name.to_owned(), data },
    }
}

fn selection(filter: EventFilter) -> EventSelection {
    EventSelection::parse(ListenEventsRequest { filter: Some(filter) }).unwrap()
}

/// Subscribers to the events of an empty store, which is removed with the directory.
fn subscribers() -> (tempfile::TempDir, Subscribers) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new(dir.path().join("data"));
    let commits = CommitWatcher::start(&options).unwrap();
    let hub = Hub::start(options, commits, std::sync::Arc::default()).unwrap();
    let subscribers = Subscribers::new(&hub);
    (dir, subscribers)
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn filters_select_events() {
    let started = event(100, EventKind::AppStarted, "pod", "web");
    let types = |types: &[EventType]| EventFilter {
        types: types.iter().map(|kind| i32::from(*kind)).collect(),
        ..EventFilter::default()
    };
    assert!(selection(types(&[EventType::Undefined])).matches(&event(100, EventKind::PodStopping, "pod", "").event));
    let ids = |all: &[&str]| EventFilter { ids: texts(all), ..EventFilter::default() };
    let names = |all: &[&str]| EventFilter { names: texts(all), ..EventFilter::default() };
    let since = |since_time| EventFilter { since_time, ..EventFilter::default() };
    let until = |until_time| EventFilter { until_time, ..EventFilter::default() };
    for (filter, holds, all) in [
        (EventFilter::default(), true, true),
        (types(&[EventType::AppStarted]), true, false),
        (types(&[EventType::AppExited, EventType::AppStarted]), true, false),
        (types(&[EventType::AppExited]), false, false),
        (types(&[EventType::Undefined]), false, false),
        (types(&[EventType::Undefined, EventType::AppStarted]), true, false),
        (ids(&["x", "pod"]), true, false),
        (ids(&["po"]), false, false),
        (names(&["web"]), true, false),
        (names(&["x"]), false, false),
        (EventFilter { names: texts(&["web"]), ..ids(&["x"]) }, false, false),
        (since(100), true, false),
        (since(101), false, false),
        (until(101), true, false),
        (until(100), false, false),
    ] {
        let selection = selection(filter.clone());
        assert_eq!((selection.matches(&started.event), selection.is_all()), (holds, all), "{filter:?}");
    }
    assert!(EventSelection::parse(ListenEventsRequest { filter: None }).unwrap().is_all());
}

#[test]
fn errors_name_the_field() {
    for (filter, want) in [
        (EventFilter { types: vec![10], ..EventFilter::default() }, "filter.types: there is no EventType 10"),
        (EventFilter { since_time: -1, ..EventFilter::default() }, "filter.since_time: a time"),
        (EventFilter { until_time: i64::MIN, ..EventFilter::default() }, "filter.until_time: a time"),
        (EventFilter { since_time: 2, until_time: 1, ..EventFilter::default() }, "filter.until_time: it is before"),
        (EventFilter { ids: vec![String::new(); 10_001], ..EventFilter::default() }, "filter.ids: a request may have"),
        (EventFilter { names: vec!["x".repeat(5000)], ..EventFilter::default() }, "filter.names: a text may have"),
    ] {
        let status = EventSelection::parse(ListenEventsRequest { filter: Some(filter) }).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with(want), "{}", status.message());
    }
    let far = EventFilter { since_time: i64::MAX, until_time: i64::MAX, ..EventFilter::default() };
    assert_eq!(selection(far).query.since, Some(Timestamp(i64::MAX)));
}

#[test]
fn events_are_encoded() {
    let event = event(3, EventKind::AppExited, "pod", "web");
    let read = ListenEventsResponse::decode(encode(&event).as_slice()).unwrap().events.remove(0);
    assert_eq!((read.r#type(), read.id.as_str(), read.from.as_str()), (EventType::AppExited, "pod", "web"));
    assert_eq!(read.time, 3);
    let data = |read: &wire::Event| -> Vec<(String, String)> {
        read.data.iter().map(|pair| (pair.key.clone(), pair.value.clone())).collect()
    };
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let mut want = vec![pair("exit_code", "7"), pair("sequence", "3"), pair("time_ns", "3000000005")];
    assert_eq!(data(&read), want);
    let after_gap =
        ListenEventsResponse::decode(encode_after_gap(&event, Some(2)).as_slice()).unwrap().events.remove(0);
    want.push(pair("trimmed", "2"));
    assert_eq!(data(&after_gap), want);
}

#[test]
fn events_of_pods_are_from_their_uuids() {
    for (kind, name, version, from, more) in [
        (EventKind::PodExited, "web", None, "id", Some(("name", "web"))),
        (EventKind::PodGarbageCollected, "id", None, "id", None),
        (EventKind::AppExited, "web", None, "web", None),
        (EventKind::ImageRemoved, "reg.example/a", Some("1"), "reg.example/a", Some(("version", "1"))),
        (EventKind::ImageRemoved, "", None, "", None),
    ] {
        let name = version.map_or_else(|| name.to_owned(), |version| format!("{name}:{version}"));
        let event = event(1, kind, "id", &name);
        let subject = Subject::of(&event.event);
        assert_eq!((subject.from, subject.more), (from, more), "{kind:?}");
        let by = |name: &str| selection(EventFilter { names: texts(&[name]), ..EventFilter::default() });
        assert!(by(&name).matches(&event.event) && by(from).matches(&event.event), "{kind:?}");
    }
}

#[test]
fn gaps_are_reported_with_the_next_event() {
    let (_dir, subscribers) = subscribers();
    let selection = selection(EventFilter { ids: texts(&["b"]), ..EventFilter::default() });
    let mut message = Message { selection: &selection, bytes: Vec::new(), gap: Some(4) };
    for (seq, id) in [(5, "a"), (6, "b"), (7, "b")] {
        let event = HubEvent::new(event(seq, EventKind::PodStarted, id, id));
        assert!(message.add(&event, subscribers.encoder));
    }
    let read = ListenEventsResponse::decode(message.bytes.as_slice()).unwrap().events;
    let trimmed = |event: &wire::Event| event.data.iter().find(|pair| pair.key == "trimmed").map(|p| p.value.clone());
    assert_eq!(read.iter().map(trimmed).collect::<Vec<_>>(), [Some("4".to_owned()), None]);
    assert_eq!(message.gap, None);
}

#[test]
fn messages_are_split_and_shared() {
    let (_dir, subscribers) = subscribers();
    let all = EventSelection::default();
    let mut message = Message { selection: &all, bytes: Vec::new(), gap: None };
    let event = Arc::new(HubEvent::new(event(1, EventKind::AppStarted, &"x".repeat(1000), "")));
    let added = (0..1000).take_while(|_| message.add(&event, subscribers.encoder)).count();
    assert!((50..70).contains(&added) && message.bytes.len() < MAX_MESSAGE + 2000, "{added}");
    assert_eq!(fitting(&vec![event; 1000], subscribers.encoder).len(), added);

    let made = std::cell::Cell::new(0);
    let make = || {
        made.set(made.get() + 1);
        vec![1]
    };
    for (from, to, want) in [(1, 2, 1), (1, 2, 1), (1, 3, 2), (2, 3, 3), (1, 2, 3)] {
        subscribers.shared_message(from, to, make);
        assert_eq!(made.get(), want, "{from} {to}");
    }
    for n in 0..100 {
        subscribers.shared_message(n, n + 100, make);
    }
    assert_eq!(subscribers.shared.lock().unwrap().len(), MAX_SHARED_MESSAGES);
}

#[test]
fn intervals_grow_with_the_subscribers() {
    let (_dir, subscribers) = subscribers();
    let next = |interval: Duration| {
        let now = Instant::now();
        let next = subscribers.next_tick();
        assert!(next >= now - Duration::from_millis(5) && next <= Instant::now() + interval);
    };
    next(MIN_INTERVAL);
    let permits: Vec<_> = (0..2000).map(|_| subscribers.quota.acquire(crate::peer::Peer::Root).ok()).collect();
    next(MAX_INTERVAL);
    drop(permits);
}
