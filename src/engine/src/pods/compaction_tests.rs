//! Rows that follow a journal are the same with and without its compaction.

use std::collections::BTreeMap;

use gantry_contract::journal::{self, Fact, Parsed, Record, StopReason};
use gantry_contract::{ProcessExit, start};
use gantry_model::{AppName, AppState, Timestamp};
use proptest::prelude::*;

use crate::pods::app_history::{AppHistories, apply_changes};
use crate::pods::outcome::{self, Observation, Outcome};

/// Facts of each app that the compaction keeps.
const MAX_FACTS: usize = 8;

/// An app of the simulated supervisor.
#[derive(Clone, Copy, Default)]
struct SimulatedApp {
    running: bool,
    attempts: u32,
}

/// Journals as a supervisor writes them: `steps` are the numbers of an app and of an action.
fn simulate(steps: &[(u8, u8)]) -> Vec<Fact> {
    let started = |app: &str, attempt| start::Started { app: app.to_owned(), attempt, pid: 7, at: 50 };
    let ready: start::Ready = serde_json::from_value(serde_json::json!({
        "supervisor": 3, "start_ticks": 4, "init": 5, "apps": [started("a0", 0)],
    }))
    .unwrap();
    let mut facts = vec![Fact::Ready(ready)];
    let mut apps = BTreeMap::from([("a0".to_owned(), SimulatedApp { running: true, attempts: 1 })]);
    for (number, action) in steps {
        let app = format!("a{}", number % 3);
        let Some(known) = apps.get_mut(&app) else {
            facts.push(Fact::AppCreated { app: app.clone() });
            apps.insert(app, SimulatedApp::default());
            continue;
        };
        let last = known.attempts.saturating_sub(1);
        let exited = |how| Fact::AppExited { app: app.clone(), attempt: last, how, oom: false, restart_at: None };
        match (known.running, action % 8) {
            (true, 0) => facts.extend([
                Fact::AppStopping { app: app.clone(), attempt: last, unhealthy: false },
                exited(ProcessExit::Signal(15)),
            ]),
            (true, 1) => facts.push(exited(ProcessExit::Code(3))),
            (true, 3) => facts.extend([
                Fact::AppStopping { app: app.clone(), attempt: last, unhealthy: true },
                exited(ProcessExit::Signal(15)),
            ]),
            (true, 4) => facts.push(Fact::AppExited {
                app: app.clone(),
                attempt: last,
                how: ProcessExit::Code(4),
                oom: false,
                restart_at: Some(200),
            }),
            (true, 2) => {
                facts.push(Fact::Paused { app: Some(app) });
                continue;
            }
            (true, _) => facts.push(exited(ProcessExit::Code(0))),
            (false, 7) => {
                facts.push(Fact::AppRemoved { app: app.clone() });
                apps.remove(&app);
                continue;
            }
            (false, _) => {
                facts.push(Fact::AppStarted(started(&app, known.attempts)));
                known.attempts += 1;
            }
        }
        known.running = !known.running;
    }
    facts
}

fn parsed(facts: &[Fact]) -> Parsed {
    let records = facts.iter().cloned().zip(100..).map(|(fact, at)| Record { at, fact }).collect();
    Parsed { records, damaged: 0 }
}

/// The rows after reconciling with this journal.
fn reconcile(mut rows: Vec<(AppName, AppState)>, journal: &Parsed) -> Vec<(AppName, AppState)> {
    let histories = AppHistories::from_journal(journal);
    loop {
        let steps = histories.changes(rows.clone());
        if steps.is_empty() {
            return rows;
        }
        steps.iter().for_each(|changes| apply_changes(changes, &mut rows));
    }
}

/// The rows when the first facts had been reconciled, and the others were not. An app that was created later has the
/// row that precedes its creation.
fn rows_at(facts: &[Fact], reconciled: usize) -> Vec<(AppName, AppState)> {
    let creation = |fact: &Fact| match fact {
        Fact::AppCreated { app } => app.parse::<AppName>().ok(),
        // No creation.
        _ => None,
    };
    let (before, after) = facts.split_at(reconciled);
    let created_later: Vec<AppName> = after.iter().filter_map(creation).collect();
    let mut names: Vec<AppName> = before.iter().filter_map(creation).collect();
    names.push("a0".parse().unwrap());
    names.sort();
    names.dedup();
    names.retain(|name| !created_later.contains(name));
    let waiting = |name: AppName| (name, AppState::Waiting);
    let mut rows = reconcile(names.into_iter().map(waiting).collect(), &parsed(before));
    let mut later = created_later;
    later.sort();
    later.dedup();
    rows.extend(later.into_iter().map(|name| (name, AppState::Creating)));
    rows
}

fn end(rows: &[(AppName, AppState)], journal: &Parsed, sandbox: bool) -> Outcome {
    outcome::outcome(rows, journal, Observation { now: Timestamp(9999), restarted: false, sandbox })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn rows_are_the_same_after_a_compaction(
        steps in proptest::collection::vec((any::<u8>(), any::<u8>()), 0..120),
        (reconciled, compacted) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        has_ended: bool,
        sandbox: bool,
    ) {
        let mut facts = simulate(&steps);
        if has_ended {
            facts.extend([Fact::Stopping { reason: StopReason::Stop }, Fact::Ended]);
        }
        let whole = parsed(&facts);
        let bytes = |records: &[Record]| -> Vec<u8> {
            records.iter().flat_map(|record| journal::line(record).unwrap()).collect()
        };
        let at = compacted.index(facts.len() + 1);
        let mut short = journal::compact(&bytes(&whole.records[..at]), MAX_FACTS);
        short.extend(bytes(&whole.records[at..]));
        let short = journal::parse(&short);
        prop_assert_eq!(short.damaged, 0);
        let rows = rows_at(&facts, reconciled.index(facts.len() + 1));
        let after = reconcile(rows.clone(), &whole);
        prop_assert_eq!(reconcile(rows.clone(), &short), after.clone());
        // Of the rows that are behind, and of those that are not.
        for rows in [rows, after] {
            prop_assert_eq!(end(&rows, &short, sandbox), end(&rows, &whole, sandbox));
        }
        let (short, whole) = (AppHistories::from_journal(&short), AppHistories::from_journal(&whole));
        prop_assert_eq!(short.names().collect::<Vec<_>>(), whole.names().collect::<Vec<_>>());
        prop_assert_eq!(short.added_names().collect::<Vec<_>>(), whole.added_names().collect::<Vec<_>>());
    }
}
