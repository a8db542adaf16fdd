//! The end of a pod: from its journal to the states of its apps, its exit code and its reason. This is the one place
//! that computes an exit code.

use gantry_contract::journal::{Fact, Parsed, Record};
use gantry_model::{AppEnd, AppName, AppOutcome, AppState, PodEnd, Timestamp};

use crate::pods::transition::ready_record;

/// The end of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) apps: Vec<(AppName, AppState)>,
    pub(crate) at: Timestamp,
    pub(crate) end: PodEnd,
}

/// The circumstances in which the end is determined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observation {
    pub(crate) now: Timestamp,
    /// Whether the host has been restarted since the pod was started.
    pub(crate) restarted: bool,
}

/// The exits of apps of a running pod that the journal has and the row does not.
pub(crate) fn unrecorded_exits(apps: &[(AppName, AppState)], journal: &Parsed) -> Vec<(AppName, AppState)> {
    let news = |(name, state): &(AppName, AppState)| {
        let attempt = match state {
            AppState::Started { attempt, .. } => *attempt,
            _ => return None,
        };
        let (ended_attempt, end) = exit_of(name, journal)?;
        let started = started_at(name, state, journal);
        (ended_attempt == attempt).then(|| (name.clone(), AppState::Exited { started, end, attempt }))
    };
    apps.iter().filter_map(news).collect()
}

/// The end of a pod whose supervisor is dead.
pub(crate) fn outcome(apps: &[(AppName, AppState)], journal: &Parsed, seen: Observation) -> Outcome {
    let ended = journal.records.iter().find(|record| record.fact == Fact::Ended).map(|record| Timestamp(record.at));
    let lost_end = AppEnd { how: AppOutcome::Lost, oom: false, at: ended.unwrap_or(seen.now) };
    let mut states = Vec::with_capacity(apps.len());
    for (name, state) in apps {
        let started = started_at(name, state, journal);
        let state = match (exit_of(name, journal), state) {
            (Some((attempt, end)), _) => AppState::Exited { started, end, attempt },
            (None, AppState::Exited { .. }) => *state,
            (None, AppState::Started { attempt, .. }) => AppState::Exited { started, end: lost_end, attempt: *attempt },
            (None, AppState::Creating | AppState::Created) => *state,
            (None, AppState::Waiting) => AppState::Exited { started, end: lost_end, attempt: 0 },
        };
        states.push((name.clone(), state));
    }
    let lost = states.iter().find(|(_, state)| end_of(state).is_some_and(|end| end.how == AppOutcome::Lost));
    let last_exit = states.iter().filter_map(|(_, state)| end_of(state)).map(|end| end.at).max();
    let at = ended.or(if lost.is_some() { None } else { last_exit }).unwrap_or(seen.now);
    let failed = first_failed(&states, journal).or_else(|| lost.map(|(name, _)| (name.clone(), AppOutcome::Lost)));
    let reason = match (lost.is_some(), ended, seen.restarted) {
        (true, None, true) => "the host was restarted".to_owned(),
        (true, None, false) => "the supervisor was killed".to_owned(),
        _ => reason(journal, failed.as_ref().map(|(name, _)| name), &states),
    };
    let exit_code = failed.as_ref().map_or(0, |(_, how)| how.exit_code());
    Outcome { apps: states, at, end: PodEnd { exit_code, failed_app: failed.map(|(name, _)| name), reason } }
}

/// The last recorded end of an app, with its attempt.
fn exit_of(name: &AppName, journal: &Parsed) -> Option<(u32, AppEnd)> {
    journal.records.iter().rev().find_map(|record| match exit(record) {
        Some((app, attempt, end)) if app == name.as_str() => Some((attempt, end)),
        _ => None,
    })
}

fn exit(record: &Record) -> Option<(&str, u32, AppEnd)> {
    match &record.fact {
        Fact::AppExited { app, attempt, how, oom } => {
            Some((app, *attempt, AppEnd { how: (*how).into(), oom: *oom, at: Timestamp(record.at) }))
        }
        _ => None,
    }
}

fn started_at(name: &AppName, state: &AppState, journal: &Parsed) -> Option<Timestamp> {
    match state {
        AppState::Started { at, .. } => Some(*at),
        AppState::Exited { started, .. } => *started,
        AppState::Waiting | AppState::Creating | AppState::Created => {
            let app = ready_record(journal)?.apps.iter().find(|app| app.app == name.as_str())?;
            Some(Timestamp(app.at))
        }
    }
}

fn end_of(state: &AppState) -> Option<AppEnd> {
    match state {
        AppState::Exited { end, .. } => Some(*end),
        AppState::Waiting | AppState::Creating | AppState::Created | AppState::Started { .. } => None,
    }
}

/// The first app of the pod, in time, that failed.
fn first_failed(states: &[(AppName, AppState)], journal: &Parsed) -> Option<(AppName, AppOutcome)> {
    journal.records.iter().filter_map(exit).find(|(_, _, end)| !end.how.is_success()).and_then(|(app, _, end)| {
        let known = states.iter().find(|(name, _)| name.as_str() == app)?;
        Some((known.0.clone(), end.how))
    })
}

fn reason(journal: &Parsed, failed: Option<&AppName>, states: &[(AppName, AppState)]) -> String {
    let ran_out_of_memory = |app: &AppName| {
        let end = states.iter().find(|(name, _)| name == app).and_then(|(_, state)| end_of(state));
        end.is_some_and(|end| end.oom)
    };
    let asked = journal.records.iter().find_map(|record| match &record.fact {
        Fact::Stopping { reason } => Some(reason.as_str()),
        _ => None,
    });
    match (asked, failed) {
        (Some("stop"), _) => "stopped".to_owned(),
        (Some("kill"), _) => "killed".to_owned(),
        (Some("supervisor-signal"), _) => "the supervisor was told to end".to_owned(),
        (Some("app-failed") | None, Some(app)) if ran_out_of_memory(app) => format!("app {app} ran out of memory"),
        (Some("app-failed") | None, Some(app)) => format!("app {app} failed"),
        (Some("app-failed") | None, None) => "all apps ended".to_owned(),
        (Some(other), _) => gantry_model::id::shown(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_contract::{ProcessExit, start};

    fn name(text: &str) -> AppName {
        text.parse().unwrap()
    }

    fn running(names: &[&str]) -> Vec<(AppName, AppState)> {
        names.iter().map(|n| (name(n), AppState::Started { at: Timestamp(5), pid: 1, attempt: 0 })).collect()
    }

    fn journal(facts: Vec<Fact>) -> Parsed {
        let records = facts.into_iter().zip(100..).map(|(fact, at)| Record { at, fact }).collect();
        Parsed { records, damaged: 0 }
    }

    fn exited(app: &str, how: ProcessExit) -> Fact {
        Fact::AppExited { app: app.into(), attempt: 0, how, oom: false }
    }

    fn stopping(reason: &str) -> Fact {
        Fact::Stopping { reason: reason.into() }
    }

    /// Apps, facts, restarted → exit code, failed app, reason, time of the end.
    #[test]
    fn outcomes_follow_the_journal() {
        const NOW: i64 = 999;
        let code = ProcessExit::Code;
        type Row<'a> = (&'a [&'a str], Vec<Fact>, bool, (i32, Option<&'a str>, &'a str, i64));
        let rows: Vec<Row<'_>> = vec![
            (&["a"], vec![exited("a", code(0)), Fact::Ended], false, (0, None, "all apps ended", 101)),
            (&["a"], vec![exited("a", code(3)), Fact::Ended], false, (3, Some("a"), "app a failed", 101)),
            (
                &["a"],
                vec![exited("a", ProcessExit::Signal(9)), Fact::Ended],
                false,
                (137, Some("a"), "app a failed", 101),
            ),
            (
                &["a", "b"],
                vec![exited("b", code(7)), stopping("app-failed"), exited("a", ProcessExit::Signal(15)), Fact::Ended],
                false,
                (7, Some("b"), "app b failed", 103),
            ),
            (
                &["a"],
                vec![stopping("stop"), exited("a", ProcessExit::Signal(15)), Fact::Ended],
                false,
                (143, Some("a"), "stopped", 102),
            ),
            (&["a"], vec![stopping("stop"), exited("a", code(0)), Fact::Ended], false, (0, None, "stopped", 102)),
            (&["a"], vec![], false, (137, Some("a"), "the supervisor was killed", NOW)),
            (&["a"], vec![], true, (137, Some("a"), "the host was restarted", NOW)),
            (&["a", "b"], vec![exited("a", code(0))], false, (137, Some("b"), "the supervisor was killed", NOW)),
            (&["a", "b"], vec![exited("a", code(2))], false, (2, Some("a"), "the supervisor was killed", NOW)),
            (&["a"], vec![exited("a", code(0))], false, (0, None, "all apps ended", 100)),
            (&["a"], vec![exited("a", code(0))], true, (0, None, "all apps ended", 100)),
            (
                &["a"],
                vec![exited("x", code(9)), exited("a", code(0)), Fact::Ended],
                false,
                (0, None, "all apps ended", 102),
            ),
        ];
        for (apps, facts, restarted, (exit_code, failed, reason, at)) in rows {
            let shown = format!("{apps:?} {facts:?} {restarted}");
            let got = outcome(&running(apps), &journal(facts), Observation { now: Timestamp(NOW), restarted });
            let end = PodEnd { exit_code, failed_app: failed.map(name), reason: reason.to_owned() };
            assert_eq!((got.end, got.at), (end, Timestamp(at)), "{shown}");
            assert!(got.apps.iter().all(|(_, state)| matches!(state, AppState::Exited { .. })), "{shown}");
        }
    }

    #[test]
    fn an_oom_kill_is_the_reason() {
        let how = ProcessExit::Signal(9);
        let oom = Fact::AppExited { app: "a".into(), attempt: 0, how, oom: true };
        let got = outcome(
            &running(&["a"]),
            &journal(vec![oom, Fact::Ended]),
            Observation { now: Timestamp(9), restarted: false },
        );
        assert_eq!((got.end.exit_code, got.end.reason.as_str()), (137, "app a ran out of memory"));
    }

    #[test]
    fn an_unobserved_exit_is_lost() {
        let got = outcome(&running(&["a"]), &journal(vec![]), Observation { now: Timestamp(9), restarted: false });
        let end = AppEnd { how: AppOutcome::Lost, oom: false, at: Timestamp(9) };
        assert_eq!(got.apps, [(name("a"), AppState::Exited { started: Some(Timestamp(5)), end, attempt: 0 })]);
    }

    #[test]
    fn times_of_unobserved_pods_come_from_the_journal() {
        let ready = start::Ready {
            supervisor: 3,
            start_ticks: 4,
            init: 5,
            apps: vec![start::Started { app: "a".into(), attempt: 0, pid: 6, at: 50 }],
            networks: Vec::new(),
        };
        let journal = journal(vec![Fact::Ready(ready.clone()), exited("a", ProcessExit::Code(0)), Fact::Ended]);
        let got =
            outcome(&[(name("a"), AppState::Waiting)], &journal, Observation { now: Timestamp(9), restarted: false });
        let end = AppEnd { how: AppOutcome::Exited(0), oom: false, at: Timestamp(101) };
        assert_eq!(got.apps, [(name("a"), AppState::Exited { started: Some(Timestamp(50)), end, attempt: 0 })]);
        assert_eq!(
            crate::pods::transition::started_apps(&ready)[0].1,
            AppState::Started { at: Timestamp(50), pid: 6, attempt: 0 }
        );
    }

    #[test]
    fn only_unrecorded_exits_are_reported() {
        let journal = journal(vec![exited("a", ProcessExit::Code(1))]);
        let news = unrecorded_exits(&running(&["a", "b"]), &journal);
        assert_eq!(news.len(), 1);
        let states = [(name("a"), news[0].1)];
        assert!(unrecorded_exits(&states, &journal).is_empty(), "reported once");
    }
}
