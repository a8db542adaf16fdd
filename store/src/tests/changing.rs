//! Steps, races, events, images in use.

use std::sync::Barrier;

use gantry_host::stamp::FileStamp;
use gantry_model::query::PodQuery;
use gantry_model::{AppEnd, AppOutcome, ErrorKind, EventKind, Kind as _, Phase, PhaseName};
use proptest::prelude::*;

use super::*;
use crate::{CommitImageError, InsertPodError, PauseState, RemoveImageError, ResolveError, StepError, StoreError};

fn name(text: &str) -> AppName {
    text.parse().unwrap()
}

fn started(attempt: u32) -> AppState {
    AppState::Started { at: Timestamp(20), pid: 8, attempt }
}

fn exited(how: AppOutcome, attempt: u32) -> AppState {
    AppState::Exited {
        started: Some(Timestamp(20)),
        end: AppEnd { how, oom: true, at: Timestamp(30), restart_at: None },
        attempt,
    }
}

/// Walks a new pod to Running; returns the row.
fn running(store: &Store, id: PodId, image: &Digest) -> PodRow {
    let pod = store.insert_pod(&new_pod(id, image, &["a", "b"])).unwrap();
    let pod = moved(store, id, pod.generation, edge(Edge::Prepare));
    let change = Change { durable: true, ..edge(Edge::Prepared(Timestamp(11))) };
    let pod = moved(store, id, pod.generation, change);
    assert_eq!(pod.prepared, Some(Timestamp(11)));
    let apps = vec![(name("a"), started(0)), (name("b"), started(0))];
    let start = Edge::Started { at: Timestamp(12), supervisor: supervisor() };
    moved(store, id, pod.generation, Change { apps: apps.into(), ..edge(start) })
}

#[test]
fn only_running_pods_and_apps_are_stopping() {
    let home = Home::new();
    let (store, id) = (&home.store, pod_id(1));
    let image = image(store, "i", &["l"]);
    store.record_stopping(id, None).unwrap();
    let pod = running(store, id, &image);
    let apps = [(name("b"), exited(AppOutcome::Exited(0), 0))];
    let pod = update(store, &pod, &apps, &[]);
    let last = store.last_seq().unwrap();
    for app in [Some("a"), Some("b"), Some("x"), None] {
        store.record_stopping(id, app.map(name).as_ref()).unwrap();
    }
    let ended = edge(Edge::Ended { at: Timestamp(31), end: end() });
    let pod = moved(store, id, pod.generation, ended);
    store.record_stopping(id, None).unwrap();
    let events = store.events_after(last, 100).unwrap();
    let text = id.to_string();
    let seen: Vec<_> = events.iter().map(|event| (event.event.kind, &event.event.name[..])).collect();
    let want = [(EventKind::AppStopping, "a"), (EventKind::PodStopping, &text), (EventKind::PodExited, &text)];
    assert_eq!(seen, want);
    assert_eq!(events[0].event.data["attempt"], "0");
    assert_eq!(store.pod(id).unwrap().unwrap().generation, pod.generation, "the row is the same");
}

#[test]
fn recorded_stamps_count_until_the_next_change() {
    let home = Home::new();
    let (store, id) = (&home.store, pod_id(1));
    let image = image(store, "i", &["l"]);
    let pod = running(store, id, &image);
    let other = store.insert_pod(&new_pod(pod_id(2), &image, &["a"])).unwrap();
    let stamp = FileStamp::read(&store.layout().db()).unwrap();
    let shown = || {
        let mut shown = Vec::new();
        store.pods_showing(&PodQuery::default(), &mut |pod, stamp| shown.push((pod.id, stamp))).unwrap();
        shown
    };
    let last = store.last_seq().unwrap();
    store.record_journals(&[(id, Generation(pod.generation.0 - 1), stamp)]).unwrap();
    assert_eq!(shown(), [(id, None), (other.id, None)], "the generation differs");
    store.record_journals(&[(id, pod.generation, stamp)]).unwrap();
    assert_eq!(shown(), [(id, Some(stamp)), (other.id, None)]);
    assert_eq!((store.pod(id).unwrap().unwrap(), store.last_seq().unwrap()), (pod.clone(), last), "no change");
    let paused = PauseState { pod: true, ..PauseState::default() };
    let Moved::Yes(Some(pod)) = store.record_pauses(id, pod.generation, &paused).unwrap() else { panic!() };
    assert_eq!(shown()[0], (id, None));
    store.record_journals(&[(id, pod.generation, stamp)]).unwrap();
    let exits = [(name("b"), exited(AppOutcome::Exited(0), 0))];
    let _ = update(store, &pod, &exits, &[]);
    assert_eq!(shown()[0], (id, None));
}

#[test]
fn recording_stamps_does_not_wait_for_a_writer() {
    let home = Home::new();
    let (store, id) = (&home.store, pod_id(1));
    let image = image(store, "i", &["l"]);
    let pod = running(store, id, &image);
    let stamp = FileStamp::read(&store.layout().db()).unwrap();
    let other = home.another();
    other.conn.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begun = std::time::Instant::now();
    store.record_journals(&[(id, pod.generation, stamp)]).unwrap_err();
    assert!(begun.elapsed() < crate::db::BUSY_TIMEOUT);
    other.conn.execute_batch("ROLLBACK").unwrap();
    store.record_journals(&[(id, pod.generation, stamp)]).unwrap();
    let timeout: u64 = store.conn.query_row("PRAGMA busy_timeout", [], |row| row.get(0)).unwrap();
    assert_eq!(u128::from(timeout), crate::db::BUSY_TIMEOUT.as_millis(), "of later steps");
}

#[test]
fn several_steps_are_one_transaction() {
    let home = Home::new();
    let (store, id) = (&home.store, pod_id(1));
    let image = image(store, "i", &["l"]);
    let new = store.insert_pod(&new_pod(id, &image, &["a"])).unwrap();
    let last = store.last_seq().unwrap();
    let refused = [edge(Edge::Prepare), edge(Edge::Swept)];
    assert_eq!(store.steps(id, new.generation, &refused).unwrap_err().kind(), ErrorKind::Refused);
    assert_eq!((store.pod(id).unwrap().unwrap(), store.last_seq().unwrap()), (new.clone(), last));
    let prepare = [edge(Edge::Prepare), edge(Edge::Prepared(Timestamp(7)))];
    let Moved::Yes(Some(pod)) = store.steps(id, new.generation, &prepare).unwrap() else { panic!() };
    assert_eq!(home.another().pod(id).unwrap().unwrap(), pod);
    assert!(matches!(pod.phase, Phase::Prepared { .. }), "{pod:?}");
    assert_eq!(store.steps(id, new.generation, &prepare).unwrap(), Moved::Lost(Some(pod.clone())));
    let end = [edge(Edge::Discarded(Timestamp(8))), edge(Edge::Deleting(Timestamp(8))), edge(Edge::Swept)];
    assert_eq!(store.steps(id, pod.generation, &end).unwrap(), Moved::Yes(None));
    assert_eq!(store.pod(id).unwrap(), None);
}

/// As for a `run`: the row and the events are those of single steps.
#[test]
fn a_start_in_one_transaction_writes_everything() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &["l"]));
    let apart = running(store, pod_id(1), &image);
    let new = store.insert_pod(&new_pod(pod_id(2), &image, &["a", "b"])).unwrap();
    let networks = Networks::from_list(&[full_network()]).unwrap();
    let apps = vec![(name("a"), started(0)), (name("b"), started(0))];
    let start = Edge::Started { at: Timestamp(12), supervisor: supervisor() };
    let start = Change { apps: apps.into(), networks: networks.clone(), ..edge(start) };
    let steps = [edge(Edge::Prepare), edge(Edge::Prepared(Timestamp(11))), start];
    let Moved::Yes(Some(pod)) = store.steps(new.id, new.generation, &steps).unwrap() else { panic!() };
    assert_eq!(home.another().pod(pod.id).unwrap().unwrap(), pod);
    assert_eq!((&pod.phase, pod.generation, pod.prepared), (&apart.phase, apart.generation, apart.prepared));
    assert_eq!(pod.networks, networks);
    let states = |row: &PodRow| row.apps.iter().map(|app| app.state).collect::<Vec<_>>();
    assert_eq!(states(&pod), states(&apart));
    let kinds = |id: PodId| {
        let events = store.events_after(0, 100).unwrap().into_iter().filter(|event| event.event.id == id.to_string());
        events.map(|event| event.event.kind).collect::<Vec<_>>()
    };
    assert_eq!(kinds(pod.id), kinds(apart.id));
    assert_eq!(kinds(pod.id).first(), Some(&EventKind::PodPrepared));
}

#[test]
fn a_full_pod_life_records_every_event() {
    let home = Home::new();
    let (store, id) = (&home.store, pod_id(1));
    let image = image(store, "i", &["l"]);
    let pod = running(store, id, &image);
    assert_eq!(home.another().pod(id).unwrap().unwrap(), pod);
    let apps = [(name("b"), exited(AppOutcome::Exited(0), 0))];
    let pod = update(store, &pod, &apps, &[]);
    let apps = vec![(name("a"), exited(AppOutcome::Signaled(9), 1)), (name("b"), exited(AppOutcome::Exited(0), 0))];
    let ended = Change { apps: apps.into(), ..edge(Edge::Ended { at: Timestamp(31), end: end() }) };
    let pod = moved(store, id, pod.generation, ended);
    assert_eq!(home.another().pod(id).unwrap().unwrap(), pod);
    let pod = moved(store, id, pod.generation, edge(Edge::Marked(Timestamp(40))));
    assert_eq!(home.another().pod(id).unwrap().unwrap(), pod);
    let early = store.step(id, pod.generation, edge(Edge::Swept)).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::Refused);
    let pod = moved(store, id, pod.generation, edge(Edge::Deleting(Timestamp(41))));
    assert_eq!(home.another().pod(id).unwrap().unwrap(), pod);
    // The successor continues where the first was killed.
    let pod = moved(store, id, pod.generation, edge(Edge::Deleting(Timestamp(42))));
    assert!(matches!(pod.phase, Phase::Garbage { deleting: Some(Timestamp(41)), .. }), "{pod:?}");
    assert_eq!(pod.generation, Generation(8));
    assert_eq!(store.step(id, pod.generation, edge(Edge::Swept)).unwrap(), Moved::Yes(None));
    assert_eq!(store.pod(id).unwrap(), None);

    let events = store.events_after(0, 100).unwrap();
    let told: Vec<_> = events.iter().map(|e| (e.seq, e.event.kind.as_str(), e.event.name.as_str())).collect();
    let uuid = id.to_string();
    let want = [
        (1, "image-imported", "docker.io/library/i:1"),
        (2, "pod-prepared", &uuid),
        (3, "pod-started", &uuid),
        (4, "app-started", "a"),
        (5, "app-started", "b"),
        (6, "app-exited", "b"),
        // Attempt 1 of `a` started and ended between two reads.
        (7, "app-started", "a"),
        (8, "app-exited", "a"),
        (9, "pod-exited", &uuid),
        (10, "pod-garbage-collected", &uuid),
    ];
    assert_eq!(told, want);
    // The times of this test are long ago.
    let data = |seq: usize| {
        let data = events[seq - 1].event.data.iter().filter(|(key, _)| *key != "happened");
        data.map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>()
    };
    assert_eq!(events[8].event.data["happened"], Timestamp(31).rfc3339().as_str());
    assert_eq!(data(9), ["exit_code=3", "failed_app=a", "reason=an app failed"]);
    let exit = ["attempt=1", "exit_code=137", &format!("image_id={image}"), "oom=true", "signal=9"];
    assert_eq!(data(8), exit);
    assert!(events.iter().all(|event| event.boot == store.boot().0));
}

#[test]
fn aborted_and_discarded_pods_record_their_end() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &[]));
    let pod = store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
    let pod = moved(store, pod.id, pod.generation, edge(Edge::Aborted(Timestamp(1))));
    let pod = moved(store, pod.id, pod.generation, edge(Edge::Marked(Timestamp(2))));
    assert_eq!(store.pod(pod.id).unwrap().unwrap(), pod);
    let pod = store.insert_pod(&new_pod(pod_id(2), &image, &["a"])).unwrap();
    let pod = moved(store, pod.id, pod.generation, edge(Edge::Prepare));
    let pod = moved(store, pod.id, pod.generation, edge(Edge::Prepared(Timestamp(3))));
    let pod = moved(store, pod.id, pod.generation, edge(Edge::Discarded(Timestamp(4))));
    assert_eq!(store.pod(pod.id).unwrap().unwrap(), pod);
    let kinds: Vec<_> = store.events_after(1, 9).unwrap().into_iter().map(|event| event.event.kind).collect();
    assert_eq!(kinds, [EventKind::PodPrepareAborted, EventKind::PodPrepared]);
}

#[test]
fn invalid_changes_are_rejected_without_effect() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &[]));
    let absent = store.insert_pod(&new_pod(pod_id(1), &digest("absent"), &["a"])).unwrap_err();
    assert!(matches!(absent, InsertPodError::NoSuchImage { .. }));
    assert_eq!(store.pod(pod_id(1)).unwrap(), None);
    let pod = store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap();
    let again = store.insert_pod(&new_pod(pod_id(1), &image, &["a"])).unwrap_err();
    assert!(matches!(again, InsertPodError::Exists(_)));

    let last = store.last_seq().unwrap();
    let refused = store.step(pod.id, pod.generation, edge(Edge::Swept)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    let change = Change { apps: vec![(name("x"), started(0))].into(), ..edge(Edge::Prepare) };
    assert!(matches!(store.step(pod.id, pod.generation, change), Err(StepError::NoSuchApp { .. })));
    let refused = store.update_apps(pod.id, pod.generation, &[vec![(name("a"), started(0))].into()]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Refused);
    assert_eq!(store.step(pod.id, Generation(9), edge(Edge::Prepare)).unwrap(), Moved::Lost(Some(pod.clone())));
    assert_eq!(store.step(pod_id(5), Generation(0), edge(Edge::Prepare)).unwrap(), Moved::Lost(None));
    assert_eq!((store.pod(pod.id).unwrap(), store.last_seq().unwrap()), (Some(pod), last));
}

#[test]
fn exactly_one_of_concurrent_transitions_succeeds() {
    let home = Home::new();
    let image = image(&home.store, "i", &[]);
    let (begin, path) = (Barrier::new(8), home.path());
    for round in 0..20 {
        let pod = home.store.insert_pod(&new_pod(pod_id(round), &image, &["a"])).unwrap();
        let won = std::thread::scope(|scope| {
            let race = || {
                let store = Store::open(&path).unwrap();
                begin.wait();
                matches!(store.step(pod.id, pod.generation, edge(Edge::Aborted(Timestamp(1)))), Ok(Moved::Yes(_)))
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(race)).collect();
            all.into_iter().map(|one| one.join().unwrap()).filter(|&won| won).count()
        });
        assert_eq!(won, 1);
    }
    assert_eq!(home.store.last_seq().unwrap(), 21);
}

#[test]
fn concurrent_writers_leave_no_sequence_gaps() {
    let home = Home::new();
    let image = image(&home.store, "i", &[]);
    std::thread::scope(|scope| {
        for thread in 0..4u128 {
            let (path, image) = (home.path(), &image);
            scope.spawn(move || {
                let store = Store::open(&path).unwrap();
                for n in 0..25 {
                    let pod = store.insert_pod(&new_pod(pod_id(thread << 32 | n), image, &["a"])).unwrap();
                    let durable = n % 5 == 0;
                    moved(&store, pod.id, pod.generation, Change { durable, ..edge(Edge::Aborted(Timestamp(1))) });
                    // Rolled back: takes no number.
                    assert!(store.step(pod.id, Generation(1), edge(Edge::Prepare)).is_err());
                }
            });
        }
    });
    let seqs: Vec<u64> = home.store.events_after(0, 1000).unwrap().into_iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=101).collect::<Vec<_>>());
    assert_eq!(home.store.trim_events(10).unwrap(), 91);
    assert_eq!(home.store.trim_events(10).unwrap(), 0);
    assert_eq!((home.store.trimmed_seq().unwrap(), home.store.last_seq().unwrap()), (91, 101));
    assert_eq!(home.store.events_after(0, 3).unwrap()[0].seq, 92);
    assert_eq!(home.store.check(crate::Depth::Deep), []);
}

#[test]
fn pods_are_found_by_query_and_prefix() {
    let home = Home::new();
    let (store, other) = (&home.store, image(&home.store, "other", &[]));
    let image = image(store, "i", &[]);
    let first = running(store, pod_id(1), &image);
    let second = store.insert_pod(&NewPod { created: Timestamp(5), ..new_pod(pod_id(2), &other, &["z"]) }).unwrap();
    let all = PodQuery::default();
    let rows = [
        (all.clone(), vec![second.clone(), first.clone()]),
        (PodQuery::in_phases([PhaseName::Running, PhaseName::Exited]), vec![first.clone()]),
        (PodQuery { created_since: Some(Timestamp(6)), ..all.clone() }, vec![first.clone()]),
        (PodQuery { app: Some(name("z")), ..all.clone() }, vec![second.clone()]),
        (PodQuery { image: Some(image.clone()), ..all.clone() }, vec![first.clone()]),
        (PodQuery { image: Some(image), app: Some(name("z")), ..all }, vec![]),
    ];
    for (query, want) in rows {
        let found: Vec<_> = store.pods(&query).unwrap().into_iter().map(|row| *row).collect();
        assert_eq!(found, want, "{query:?}");
    }
    let resolve = |text: &str| store.resolve(&text.parse().unwrap());
    assert_eq!(resolve(&first.id.to_string()).unwrap(), first.id);
    let several = |n: u64, shown: usize| {
        let Err(ResolveError::Ambiguous { matches, some, .. }) = resolve("0000") else { panic!("{n}") };
        assert_eq!((matches, some.len()), (n, shown));
    };
    several(2, 2);
    (3..10).for_each(|n| drop(store.insert_pod(&new_pod(pod_id(n), &other, &[])).unwrap()));
    several(9, 5);
    assert!(matches!(resolve("f"), Err(ResolveError::NotFound { .. })));
}

#[test]
fn images_in_use_are_not_removed() {
    let home = Home::new();
    let store = &home.store;
    let (one, two) = (image(store, "app", &["l"]), image(store, "two", &["l", "m"]));
    // Once more: only a name is new, and the other image's name moves.
    let (_locks, refs) = layers(store, &["l"]);
    let again = NewImage {
        id: one.clone(),
        config: digest("config of app"),
        format: ImageFormat::Oci,
        layers: refs,
        size: 10,
        names: vec!["docker.io/library/two:1".into(), "localhost/x/app:2".into()],
    };
    let row = store.commit_image(&again, Timestamp(9)).unwrap();
    assert_eq!(row.names, ["docker.io/library/app:1", "docker.io/library/two:1", "localhost/x/app:2"]);
    assert_eq!((row.imported, row.last_used, store.last_seq().unwrap()), (Timestamp(5), Timestamp(9), 2));
    assert_eq!(store.images().unwrap().iter().map(|i| i.names.len()).sum::<usize>(), 3);
    assert_eq!(store.image_by_name("docker.io/library/two:1").unwrap().unwrap().id, one);
    let short = |repository, tag| store.images_by_short(repository, tag).unwrap().len();
    assert_eq!((short("app", "1"), short("library/app", "1"), short("pp", "1"), short("app", "3")), (1, 1, 0, 0));
    assert_eq!(store.images_by_prefix(two.short()).unwrap()[0].id, two);
    assert_eq!(store.images_by_prefix("%").unwrap(), []);
    assert!(!store.untag(&two, "localhost/x/app:2").unwrap(), "the name of another image");
    assert!(store.untag(&one, "localhost/x/app:2").unwrap() && !store.untag(&one, "localhost/x/app:2").unwrap());

    store.touch_image(&one, Timestamp(10)).unwrap();
    assert_eq!(store.image(&one).unwrap().unwrap().last_used, Timestamp(9));
    store.touch_image(&one, Timestamp(60_000_000_009)).unwrap();
    assert_eq!(store.image(&one).unwrap().unwrap().last_used, Timestamp(60_000_000_009));

    let kept = store.remove_image_if(&one, &|image| image.names.is_empty()).unwrap_err();
    assert!(matches!(kept, RemoveImageError::Unselected(id) if id == one), "it was named since it was selected");
    let pod = store.insert_pod(&new_pod(pod_id(1), &one, &["a"])).unwrap();
    let used = store.remove_image(&one).unwrap_err();
    assert!(matches!(&used, RemoveImageError::InUse { pods, .. } if *pods == [pod.id]));
    assert!(store.conn.execute("DELETE FROM image", []).is_err(), "the foreign key protects it too");
    for change in [Edge::Aborted(Timestamp(1)), Edge::Marked(Timestamp(2)), Edge::Deleting(Timestamp(3)), Edge::Swept] {
        let seen = store.pod(pod.id).unwrap().unwrap().generation;
        store.step(pod.id, seen, edge(change)).unwrap();
    }
    assert_eq!(store.remove_image(&one).unwrap().image.id, one);
    assert!(matches!(store.remove_image(&one), Err(RemoveImageError::NotFound(_))));
    let last = store.events_after(store.last_seq().unwrap() - 1, 1).unwrap().remove(0);
    assert_eq!(last.event.kind, EventKind::ImageRemoved);
}

#[test]
fn images_with_missing_parts_are_not_committed() {
    let home = Home::new();
    let store = &home.store;
    let (_locks, refs) = layers(store, &["l"]);
    let missing = LayerRef { chain: digest("none"), ..refs[0].clone() };
    let image = |layers| NewImage {
        id: digest("i"),
        config: digest("c"),
        format: ImageFormat::Docker,
        layers,
        size: 1,
        names: vec![],
    };
    let commit = |layers| store.commit_image(&image(layers), Timestamp(1));
    assert!(matches!(commit(refs.clone()), Err(CommitImageError::NoSuchBlob { .. })));
    assert!(store.put_blob(&digest("i"), b"x").is_err());
    store.put_blob(&digest("i"), b"i").unwrap();
    store.put_blob(&digest("c"), b"c").unwrap();
    assert!(matches!(commit(vec![missing]), Err(CommitImageError::NoSuchLayer { .. })));
    assert_eq!(store.images().unwrap(), []);
    assert_eq!(commit(refs).unwrap().format, ImageFormat::Docker);
}

#[test]
fn removal_works_on_a_full_disk() {
    let home = Home::new();
    let (store, image) = (&home.store, image(&home.store, "i", &["l", "m"]));
    let pod = store.insert_pod(&new_pod(pod_id(2000), &image, &["a"])).unwrap();
    let pages: u32 = store.conn.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    store.conn.pragma_update(None, "max_page_count", pages).unwrap();
    let error = (0..1000).find_map(|n| {
        let pod = NewPod { hostname: "h".repeat(3000), apps: vec![], ..new_pod(pod_id(n), &image, &[]) };
        store.insert_pod(&pod).err()
    });
    assert!(
        matches!(
            error,
            Some(InsertPodError::Store(StoreError::Database { failure: crate::DatabaseFailure::Full, .. }))
        ),
        "{error:?}"
    );
    let lock = store.make_pod_dir(pod_id(1)).unwrap();
    store.unname_pod_dir(lock, pod_id(1), true).unwrap().unwrap().delete().unwrap();
    let out = [Edge::Aborted(Timestamp(1)), Edge::Marked(Timestamp(2)), Edge::Deleting(Timestamp(3))];
    let pod = out.into_iter().fold(pod, |pod, out| moved(store, pod.id, pod.generation, edge(out)));
    assert_eq!(store.step(pod.id, pod.generation, edge(Edge::Swept)).unwrap(), Moved::Yes(None));
    store.remove_image(&image).unwrap();
    let reserve = home.path().join("reserve");
    assert_eq!(std::fs::metadata(&reserve).unwrap().len(), 1 << 20);
    store.make_room().unwrap();
    assert!(!reserve.exists());
    assert_eq!(store.sweep_images().unwrap().layers, 2);
    assert!(reserve.exists());
}

fn any_app() -> impl Strategy<Value = AppState> {
    let how = prop_oneof![
        any::<u8>().prop_map(AppOutcome::Exited),
        any::<u8>().prop_map(AppOutcome::Signaled),
        Just(AppOutcome::Lost)
    ];
    prop_oneof![
        Just(AppState::Waiting),
        Just(AppState::Creating),
        Just(AppState::Created),
        (any::<i64>(), any::<u32>(), any::<u32>()).prop_map(|(at, pid, attempt)| AppState::Started {
            at: Timestamp(at),
            pid,
            attempt
        }),
        (any::<Option<i64>>(), how, any::<bool>(), any::<i64>(), any::<u32>()).prop_map(
            |(start, how, oom, at, attempt)| {
                AppState::Exited {
                    started: start.map(Timestamp),
                    end: AppEnd { how, oom, at: Timestamp(at), restart_at: None },
                    attempt,
                }
            }
        ),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every phase and app state round-trips with arbitrary numbers and texts.
    #[test]
    fn pod_rows_round_trip(
        app in any_app(), at: i64, pid: u32, ticks in 0..u64::MAX / 2, code: i32, reason: String, label: String,
    ) {
        let home = Home::new();
        let (store, image) = (&home.store, image(&home.store, "i", &[]));
        let mut new = new_pod(pod_id(1), &image, &["a"]);
        new.user_labels = [(label, reason.clone())].into();
        new.apps[0].annotations = new.user_labels.clone();
        let mut pod = store.insert_pod(&new).unwrap();
        let end = PodEnd { exit_code: code, failed_app: None, reason };
        let supervisor = Process { pid, start_ticks: ticks, boot: gantry_model::BootId("b".into()) };
        let edges = [
            Edge::Prepare, Edge::Prepared(Timestamp(at)), Edge::Started { at: Timestamp(at), supervisor },
            Edge::Ended { at: Timestamp(at), end }, Edge::Marked(Timestamp(at)), Edge::Deleting(Timestamp(at)),
        ];
        for step in edges {
            let apps = vec![(name("a"), app)];
            pod = moved(store, pod.id, pod.generation, Change { apps: apps.into(), ..edge(step) });
            let read = store.pod(pod.id).unwrap();
            prop_assert_eq!(read.as_ref(), Some(&pod));
            prop_assert_eq!(&*store.pods(&PodQuery::default()).unwrap()[0], &pod);
        }
        prop_assert!(matches!(pod.phase, Phase::Garbage { .. }), "{:?}", pod.phase);
    }
}

#[test]
fn networks_of_a_pod_are_kept_until_deletion() {
    let home = Home::new();
    let (store, id) = (&home.store, pod_id(1));
    let image = image(store, "i", &[]);
    let new = NewPod { net: "default,b".parse().unwrap(), ..new_pod(id, &image, &["a"]) };
    let pod = store.insert_pod(&new).unwrap();
    let second = PodNetwork { name: "b".into(), interface: "eth1".into(), ..PodNetwork::default() };
    let got = Networks::from_list(&[full_network(), second]).unwrap();
    let change = |step: Edge| Change { networks: got.clone(), ..edge(step) };
    // Networks in a change are ignored before the start of the pod.
    let pod = moved(store, id, pod.generation, change(Edge::Prepare));
    let pod = moved(store, id, pod.generation, change(Edge::Prepared(Timestamp(1))));
    assert_eq!((&pod.net, pod.networks.is_empty()), (&new.net, true));
    let changed = store.set_net(id, &"a:IP=fd00::1".parse().unwrap()).unwrap().unwrap();
    assert_eq!(changed.net.to_string(), "a:IP=fd00::1");
    let start = Edge::Started { at: Timestamp(2), supervisor: supervisor() };
    let pod = moved(store, id, changed.generation, change(start));
    assert_eq!(pod.networks, got);
    assert_eq!(home.another().pod(id).unwrap().unwrap(), pod);
    let event = store.events_after(0, 100).unwrap().pop().unwrap().event;
    assert_eq!(event.kind, gantry_model::EventKind::PodStarted);
    assert_eq!(event.data["networks"], "default:ip4=172.16.28.2;ip6=fd00::2,b");
    for step in [Edge::Ended { at: Timestamp(3), end: end() }, Edge::Marked(Timestamp(4)), Edge::Deleting(Timestamp(5))]
    {
        let before = store.pod(id).unwrap().unwrap();
        let pod = moved(store, id, before.generation, edge(step));
        assert_eq!((&pod.networks, home.another().pod(id).unwrap().as_ref()), (&got, Some(&pod)));
    }
}
