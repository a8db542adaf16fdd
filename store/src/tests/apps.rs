//! Apps that are added to and removed from running pods.

use std::collections::BTreeSet;

use gantry_model::{AppEnd, AppOutcome, ErrorKind, EventKind, Kind as _};

use super::*;
use crate::{AddAppError, RemoveImageError, StepError};

fn name(text: &str) -> AppName {
    text.parse().unwrap()
}

fn started(attempt: u32) -> AppState {
    AppState::Started { at: Timestamp(20), pid: 8, attempt }
}

fn exited(attempt: u32) -> AppState {
    let end = AppEnd { how: AppOutcome::Exited(3), oom: false, at: Timestamp(30), restart_at: None };
    AppState::Exited { started: Some(Timestamp(20)), end, attempt }
}

fn new_app(app: &str, image: &Digest) -> NewApp {
    NewApp {
        name: name(app),
        id: None,
        image: Some(image.clone()),
        image_name: "i".into(),
        annotations: Default::default(),
        labels: Default::default(),
        notifies: false,
        log_path: None,
        volume_images: BTreeSet::new(),
        restart: Default::default(),
    }
}

/// A running sandbox without apps.
fn sandbox(store: &Store, n: u128) -> PodRow {
    let new = NewPod { sandbox: true, apps: vec![], ..new_pod(pod_id(n), &digest("unused"), &[]) };
    let mut pod = store.insert_pod(&new).unwrap();
    let start = Edge::Started { at: Timestamp(12), supervisor: supervisor() };
    for step in [Edge::Prepare, Edge::Prepared(Timestamp(11)), start] {
        pod = moved(store, pod.id, pod.generation, edge(step));
    }
    assert!(pod.sandbox);
    pod
}

#[test]
fn several_changes_are_one_transaction() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &["l"]));
    let mut pod = sandbox(store, 1);
    for app in ["a", "b"] {
        pod = store.add_app(pod.id, &new_app(app, &image), &BTreeSet::new()).unwrap();
    }
    let first = store.last_seq().unwrap();
    let of_a = |state| AppChanges::from(vec![(name("a"), state)]);
    let both = vec![(name("a"), exited(0)), (name("b"), AppState::Created)];
    let changes = [of_a(AppState::Created), of_a(started(0)), both.into(), AppChanges::removal_of(&name("b"))];
    let Moved::Yes(Some(moved)) = store.update_apps(pod.id, pod.generation, &changes).unwrap() else { panic!() };
    assert_eq!(moved.generation, Generation(pod.generation.0 + 4));
    assert_eq!(moved.apps.iter().map(|app| (app.name.as_str(), app.state)).collect::<Vec<_>>(), [("a", exited(0))]);
    assert_eq!(home.another().pod(pod.id).unwrap(), Some(moved.clone()));
    let events = store.events_after(first, 100).unwrap();
    let seen: Vec<_> = events.iter().map(|event| (event.event.kind, event.event.name.as_str())).collect();
    use EventKind::{AppCreated, AppExited, AppRemoved, AppStarted};
    assert_eq!(seen, [(AppCreated, "a"), (AppStarted, "a"), (AppExited, "a"), (AppCreated, "b"), (AppRemoved, "b")]);
    // One step that fails undoes those before it.
    let changes = [of_a(started(1)), AppChanges::from(vec![(name("x"), started(0))])];
    assert!(matches!(store.update_apps(moved.id, moved.generation, &changes), Err(StepError::NoSuchApp { .. })));
    assert_eq!(store.pod(moved.id).unwrap(), Some(moved));
}

#[test]
fn app_changes_emit_one_event_per_step() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &["l"]));
    let mut pod = sandbox(store, 1);
    let first = store.last_seq().unwrap();
    let none = BTreeSet::new();
    for app in ["a", "b"] {
        pod = store.add_app(pod.id, &new_app(app, &image), &none).unwrap();
        let row = pod.apps.last().unwrap();
        assert_eq!((row.name.as_str(), row.state, row.added.is_some()), (app, AppState::Creating, true));
    }
    assert_eq!(store.last_seq().unwrap(), first, "an intention is no event");
    let again = store.add_app(pod.id, &new_app("a", &image), &none).unwrap_err();
    assert!(matches!(again, AddAppError::Exists { .. }) && again.kind() == ErrorKind::AlreadyExists, "{again}");
    for state in [AppState::Created, started(0), exited(0), started(1), exited(1)] {
        pod = update(store, &pod, &[(name("a"), state)], &[]);
        assert_eq!((pod.apps[0].state, home.another().pod(pod.id).unwrap().as_ref()), (state, Some(&pod)));
    }
    // A late writer that finds several steps at once reports each of them.
    pod = update(store, &pod, &[(name("b"), exited(0))], &[]);
    pod = update(store, &pod, &[], &[name("a")]);
    assert_eq!(home.another().pod(pod.id).unwrap().as_ref(), Some(&pod));
    // Its name is free again; an app that was never created leaves without an event.
    pod = store.add_app(pod.id, &new_app("a", &image), &none).unwrap();
    assert_eq!(pod.apps.iter().map(|app| app.name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    pod = update(store, &pod, &[], &[name("a")]);
    assert_eq!(pod.apps.len(), 1);
    let events = store.events_after(first, 100).unwrap();
    let told: Vec<_> = events
        .iter()
        .map(|event| (event.event.kind, event.event.name.as_str(), event.event.data.get("attempt").map(String::as_str)))
        .collect();
    use EventKind::{AppCreated, AppExited, AppRemoved, AppStarted};
    assert_eq!(
        told,
        [
            (AppCreated, "a", None),
            (AppStarted, "a", Some("0")),
            (AppExited, "a", Some("0")),
            (AppStarted, "a", Some("1")),
            (AppExited, "a", Some("1")),
            (AppCreated, "b", None),
            (AppStarted, "b", Some("0")),
            (AppExited, "b", Some("0")),
            (AppRemoved, "a", Some("1")),
        ]
    );
}

#[test]
fn added_apps_protect_their_image_and_volumes() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &["l"]));
    let volume: gantry_model::VolumeName = "data".parse().unwrap();
    let pod = sandbox(store, 1);
    let volumes: BTreeSet<_> = [volume.clone()].into();
    let missing = store.add_app(pod.id, &new_app("a", &image), &volumes).unwrap_err();
    assert!(matches!(missing, AddAppError::NoSuchVolume(_)), "{missing}");
    assert_eq!(store.pod(pod.id).unwrap().unwrap(), pod, "a refused app leaves nothing");
    store.create_volume(&volume, &Default::default()).unwrap();
    let pod = store.add_app(pod.id, &new_app("a", &image), &volumes).unwrap();
    let pod = store.add_app(pod.id, &new_app("b", &image), &volumes).unwrap();
    let missing = store.add_app(pod.id, &new_app("c", &digest("none")), &Default::default()).unwrap_err();
    assert!(matches!(missing, AddAppError::NoSuchImage { .. }), "{missing}");
    assert!(matches!(store.remove_image(&image), Err(RemoveImageError::InUse { .. })));
    let pod = update(store, &pod, &[], &[name("a")]);
    assert!(store.remove_volume(&volume).is_err(), "the other app has it");
    let pod = update(store, &pod, &[], &[name("b")]);
    assert_eq!(pod.apps, []);
    assert_eq!(store.volume(&volume).unwrap().unwrap().pods, [].into());
    store.remove_volume(&volume).unwrap();
    store.remove_image(&image).unwrap();
}

#[test]
fn only_a_running_pod_takes_apps() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &["l"]));
    let embryo = store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
    let ended = sandbox(store, 2);
    let change =
        Change { apps: AppChanges::removal_of(&name("x")), ..edge(Edge::Ended { at: Timestamp(31), end: end() }) };
    let ended = moved(store, ended.id, ended.generation, change);
    for (id, phase) in [(embryo.id, "embryo"), (ended.id, "exited"), (pod_id(9), "removed")] {
        let refused = store.add_app(id, &new_app("b", &image), &Default::default()).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Refused);
        assert!(refused.to_string().contains(phase), "{refused}");
    }
}
