//! What a listener asks for, and what it is sent; the streams are tested by the server's tests.

use std::collections::BTreeMap;

use gantry_engine::model::EventKind;
use gantry_proto::rkt::v1alpha::ListenEventsResponse;

use super::*;

fn event(seq: u64, kind: EventKind, id: &str, name: &str) -> Event {
    let at = Timestamp(i64::try_from(seq).unwrap() * 1_000_000_000 + 5);
    let data = BTreeMap::from([("exit_code".to_owned(), "7".to_owned())]);
    Event { seq, boot: "b".to_owned(), event: NewEvent { kind, at, id: id.to_owned(), name: name.to_owned(), data } }
}

fn wanted(filter: EventFilter) -> Wanted {
    Wanted::of(ListenEventsRequest { filter: Some(filter) }).unwrap()
}

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(ToString::to_string).collect()
}

#[test]
fn filters() {
    let started = event(100, EventKind::AppStarted, "pod", "web");
    let types = |types: &[EventType]| EventFilter {
        types: types.iter().map(|kind| i32::from(*kind)).collect(),
        ..EventFilter::default()
    };
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
        let wanted = wanted(filter.clone());
        assert_eq!((wanted.holds(&started.event), wanted.is_all()), (holds, all), "{filter:?}");
    }
    assert!(Wanted::of(ListenEventsRequest { filter: None }).unwrap().is_all());
}

#[test]
fn what_is_refused_names_its_field() {
    for (filter, want) in [
        (EventFilter { types: vec![10], ..EventFilter::default() }, "filter.types: there is no EventType 10"),
        (EventFilter { since_time: -1, ..EventFilter::default() }, "filter.since_time: a time"),
        (EventFilter { until_time: i64::MIN, ..EventFilter::default() }, "filter.until_time: a time"),
        (EventFilter { since_time: 2, until_time: 1, ..EventFilter::default() }, "filter.until_time: it is before"),
        (EventFilter { ids: vec![String::new(); 10_001], ..EventFilter::default() }, "filter.ids: a request may have"),
        (EventFilter { names: vec!["x".repeat(5000)], ..EventFilter::default() }, "filter.names: a text may have"),
    ] {
        let status = Wanted::of(ListenEventsRequest { filter: Some(filter) }).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
        assert!(status.message().starts_with(want), "{}", status.message());
    }
    let far = EventFilter { since_time: i64::MAX, until_time: i64::MAX, ..EventFilter::default() };
    assert_eq!(wanted(far).query.since, Some(Timestamp(i64::MAX)));
}

#[test]
fn events_on_the_wire() {
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
    let told = ListenEventsResponse::decode(encode_after(&event, Some(2)).as_slice()).unwrap().events.remove(0);
    want.push(pair("trimmed", "2"));
    assert_eq!(data(&told), want);
}

#[test]
fn a_gap_is_told_with_the_next_event_that_is_sent() {
    let wanted = wanted(EventFilter { ids: texts(&["b"]), ..EventFilter::default() });
    let mut message = Message::new(&wanted, 0, Some(4));
    for (seq, id) in [(5, "a"), (6, "b"), (7, "b")] {
        let event = event(seq, EventKind::PodStarted, id, id);
        assert!(message.add(&event, || encode(&event)));
    }
    let read = ListenEventsResponse::decode(message.bytes.as_slice()).unwrap().events;
    let trimmed = |event: &wire::Event| event.data.iter().find(|pair| pair.key == "trimmed").map(|p| p.value.clone());
    assert_eq!(read.iter().map(trimmed).collect::<Vec<_>>(), [Some("4".to_owned()), None]);
    assert_eq!((message.cursor, message.trimmed), (7, None));
}

#[test]
fn messages_are_split_and_shared() {
    let all = Wanted::default();
    let mut message = Message::new(&all, 0, None);
    let event = event(1, EventKind::PodStarted, &"x".repeat(1000), "");
    let added = (0..1000).take_while(|_| message.add(&event, || encode(&event))).count();
    assert!((50..70).contains(&added) && message.bytes.len() < MESSAGE + 2000, "{added}");

    let listeners = Listeners::default();
    let made = std::cell::Cell::new(0);
    let make = || {
        made.set(made.get() + 1);
        vec![1]
    };
    for (from, to, want) in [(1, 2, 1), (1, 2, 1), (1, 3, 2), (2, 3, 3), (1, 2, 3)] {
        listeners.shared(from, to, make);
        assert_eq!(made.get(), want, "{from} {to}");
    }
    for n in 0..100 {
        listeners.shared(n, n + 100, make);
    }
    assert_eq!(listeners.recent.lock().unwrap().len(), KEPT);
}

#[test]
fn rounds_get_longer_with_more_listeners() {
    let listeners = Listeners::default();
    let next = |most: Duration| {
        let now = Instant::now();
        let next = listeners.next_round();
        assert!(next >= now - Duration::from_millis(5) && next <= now + most + Duration::from_millis(5));
    };
    next(PAUSE.0);
    let places: Vec<_> = (0..2000).map(|_| listeners.places.take(crate::peer::Peer::Root).ok()).collect();
    next(PAUSE.1);
    drop(places);
}
