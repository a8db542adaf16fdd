//! Schedules: replacement, and runs.

use gantry_model::schedule::Timer;
use gantry_model::{Edge, Generation, PodId, ScheduleName, Timestamp};

use super::{Home, edge, image, moved, new_pod};
use crate::pods::{InsertPodError, NewPod};
use crate::schedules::{NewSchedule, PodSchedule, ScheduleRun};

#[test]
fn schedules_are_replaced_and_their_runs_begin_once() {
    let home = Home::new();
    let store = &home.store;
    let name: ScheduleName = "web".parse().unwrap();
    let new = NewSchedule { name: name.clone(), manifest: "{}".into(), timer: None, comment: "c".into() };
    assert!(store.enable_schedule(&new, Timestamp(5)).unwrap());
    assert!(!store.enable_schedule(&new, Timestamp(6)).unwrap(), "the same content");
    let row = store.schedule(&name).unwrap().unwrap();
    assert_eq!((row.revision, row.enabled, row.enabled_at), (1, true, Timestamp(5)));
    let run = ScheduleRun { name: name.clone(), revision: 1, runs: 0, at: Timestamp(7), boot: None, interrupted: None };
    store.record_schedule_start(&run, Some("no image"), Some(Timestamp(9))).unwrap();
    let row = store.schedule(&name).unwrap().unwrap();
    assert_eq!((row.failures, row.failure.as_deref(), row.retry_at), (1, Some("no image"), Some(Timestamp(9))));
    let timer = Timer { every: Some(std::time::Duration::from_secs(60)), ..Timer::default() };
    assert!(store.enable_schedule(&NewSchedule { timer: Some(timer.clone()), ..new }, Timestamp(8)).unwrap());
    let row = store.schedule(&name).unwrap().unwrap();
    assert_eq!((row.revision, row.failures, row.timer), (2, 0, Some(timer)));
    assert!(store.disable_schedule(&name).unwrap());
    assert!(!store.schedules().unwrap()[0].enabled);
    assert!(store.delete_schedule(&name).unwrap() && !store.delete_schedule(&name).unwrap());
    assert!(!store.disable_schedule(&name).unwrap() && store.schedules().unwrap().is_empty());
}

#[test]
fn an_interrupted_run_is_begun_again_once() {
    let home = Home::new();
    let store = &home.store;
    let name: ScheduleName = "web".parse().unwrap();
    let timer = Some(Timer { every: Some(std::time::Duration::from_secs(60)), ..Timer::default() });
    let new = NewSchedule { name: name.clone(), manifest: "{}".into(), timer, comment: String::new() };
    store.enable_schedule(&new, Timestamp(5)).unwrap();
    let image = image(store, "a", &["l"]);
    let insert = |n: u8, run: &ScheduleRun| {
        let pod = new_pod(PodId::from_random([n; 16]), &image, &["a"]);
        store.insert_pod(&NewPod { schedule: Some(PodSchedule::Run(run.clone())), ..pod })
    };
    let run = ScheduleRun { name: name.clone(), revision: 1, runs: 0, at: Timestamp(7), boot: None, interrupted: None };
    let first = insert(1, &run).unwrap().id;
    let again = ScheduleRun { runs: 1, at: Timestamp(8), interrupted: Some(first), ..run };
    let is_refused = |result| matches!(result, Err(InsertPodError::ScheduleChanged(_)));
    assert!(is_refused(insert(2, &again)), "its preparation may succeed");
    moved(store, first, Generation(0), edge(Edge::Aborted(Timestamp(8))));
    insert(3, &again).unwrap();
    assert!(is_refused(insert(4, &again)), "another process was faster");
    assert_eq!(store.schedule(&name).unwrap().unwrap().runs, 1);
    let pods = store.schedule_pods(Some(&name)).unwrap();
    assert_eq!(pods.iter().map(|pod| (pod.id == first, pod.revision)).collect::<Vec<_>>(), [(true, 0), (false, 1)]);
    assert!(pods.iter().all(|pod| !pod.has_failed));
    assert_eq!(store.schedule(&name).unwrap().unwrap().handled_at, Timestamp(8));
    let earlier = ScheduleRun { runs: 1, at: Timestamp(3), interrupted: None, ..again.clone() };
    store.bring_schedule_forward(&ScheduleRun { runs: 0, ..earlier.clone() }).unwrap();
    assert_eq!(store.schedule(&name).unwrap().unwrap().handled_at, Timestamp(8), "it is outdated");
    store.bring_schedule_forward(&earlier).unwrap();
    assert_eq!(store.schedule(&name).unwrap().unwrap().handled_at, Timestamp(3));
}
