//! Schedules: replacement, and runs.

use gantry_model::schedule::Timer;
use gantry_model::{ScheduleName, Timestamp};

use super::Home;
use crate::schedules::{NewSchedule, ScheduleRun};

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
    let run = ScheduleRun { name: name.clone(), revision: 1, runs: 0, at: Timestamp(7), boot: None };
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
