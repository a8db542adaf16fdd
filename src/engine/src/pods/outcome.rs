//! The end of a pod: from its journal to the states of its apps, its exit code and its reason. This is the one place
//! that computes an exit code.

use gantry_contract::journal::{Fact, Parsed, StopReason};
use gantry_model::{AppEnd, AppName, AppOutcome, AppState, OomLevel, PodEnd, Timestamp};
use gantry_store::AppChanges;

use crate::pods::app_history::{AppFailure, AppHistories, FailureCause};

/// The end of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The last states of its apps. Those that were removed or never created have no place in the record of the pod.
    pub(crate) apps: AppChanges,
    pub(crate) at: Timestamp,
    pub(crate) end: PodEnd,
    /// Whether the pod ended neither by itself nor on request: its supervisor was killed or received a signal, or the
    /// host was restarted.
    pub(crate) is_lost: bool,
}

/// The circumstances in which the end is determined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Observation {
    pub(crate) now: Timestamp,
    /// Whether the host has been restarted since the pod was started.
    pub(crate) restarted: bool,
    /// Whether the pod is a sandbox, which does not fail with an app.
    pub(crate) sandbox: bool,
}

/// The exit code of a pod whose end was not recorded, as of SIGKILL.
const LOST_EXIT_CODE: i32 = 137;

/// The end of a pod whose supervisor is dead.
pub(crate) fn outcome(apps: &[(AppName, AppState)], journal: &Parsed, seen: Observation) -> Outcome {
    let histories = AppHistories::from_journal(journal);
    let ended = journal.records.iter().find(|record| record.fact == Fact::Ended).map(|record| Timestamp(record.at));
    let lost_end = AppEnd { how: AppOutcome::Lost, oom: false, at: ended.unwrap_or(seen.now), restart_at: None };
    let mut changes = AppChanges::default();
    // An app was to be started again by its restart policy.
    let mut was_restarting = false;
    for (name, row) in apps {
        let last = match histories.last_state(name, row) {
            _ if histories.is_removed(name, row) => None,
            AppState::Creating => None,
            AppState::Started { at, attempt, .. } => {
                Some(AppState::Exited { started: Some(at), end: lost_end, attempt })
            }
            AppState::Waiting => Some(AppState::Exited { started: None, end: lost_end, attempt: 0 }),
            AppState::Exited { started, end, attempt } => {
                was_restarting |= end.restart_at.is_some();
                Some(AppState::Exited { started, end: AppEnd { restart_at: None, ..end }, attempt })
            }
            AppState::Created => Some(AppState::Created),
        };
        match last {
            Some(state) => changes.states.push((name.clone(), state)),
            None => changes.removed.push(name.clone()),
        }
    }
    let states = &changes.states;
    let exits = || states.iter().filter_map(|(name, state)| Some((name, state, end_of(state)?)));
    let lost = exits().find(|(_, _, end)| end.how == AppOutcome::Lost).map(|(name, ..)| name);
    let supervisor_died = ended.is_none() && (lost.is_some() || seen.sandbox || was_restarting);
    let last_exit = exits().max_by_key(|(_, _, end)| end.at);
    let at = ended.or(last_exit.filter(|_| !supervisor_died).map(|(_, _, end)| end.at)).unwrap_or(seen.now);
    let failed = match seen.sandbox {
        true => None,
        false => histories.first_failure(apps.iter().map(|(name, _)| name)).or_else(|| {
            let failure = AppFailure { how: AppOutcome::Lost, cause: FailureCause::Itself };
            lost.map(|name| (name, failure))
        }),
    };
    // The app that ended the pod, also if it exited with 0 when its health check stopped it.
    let unhealthy = last_exit.filter(|(name, state, _)| histories.is_stopped_unhealthy(name, state));
    let blamed = failed
        .map(|(name, failure)| (name, failure.cause))
        .or(unhealthy.map(|(name, ..)| (name, FailureCause::HealthCheck)));
    let reason = match (supervisor_died, seen.restarted) {
        (true, true) => "the host was restarted".to_owned(),
        (true, false) => "the supervisor was killed".to_owned(),
        (false, _) => reason(journal, blamed, states),
    };
    let is_killed = supervisor_died || stop_reason(journal) == Some(&StopReason::InitKilled);
    let unrecorded = if is_killed { LOST_EXIT_CODE } else { 0 };
    let is_lost = match stop_reason(journal) {
        Some(StopReason::Stop | StopReason::Kill) => false,
        Some(StopReason::SupervisorSignal | StopReason::InitKilled) => true,
        Some(StopReason::AppFailed | StopReason::Other(_)) | None => supervisor_died,
    };
    let exit_code = failed.map_or(unrecorded, |(_, failure)| failure.how.exit_code());
    let end = PodEnd { exit_code, failed_app: failed.map(|(name, _)| name.clone()), reason };
    Outcome { apps: changes, at, end, is_lost }
}

/// Why the supervisor stopped the pod, if it did.
fn stop_reason(journal: &Parsed) -> Option<&StopReason> {
    journal.records.iter().find_map(|record| match &record.fact {
        Fact::Stopping { reason } => Some(reason),
        // Not a stop request.
        _ => None,
    })
}

fn end_of(state: &AppState) -> Option<AppEnd> {
    match state {
        AppState::Exited { end, .. } => Some(*end),
        AppState::Waiting | AppState::Creating | AppState::Created | AppState::Started { .. } => None,
    }
}

fn reason(journal: &Parsed, blamed: Option<(&AppName, FailureCause)>, states: &[(AppName, AppState)]) -> String {
    let ran_out_of_memory = |app: &AppName| {
        let end = states.iter().find(|(name, _)| name == app).and_then(|(_, state)| end_of(state));
        end.is_some_and(|end| end.oom)
    };
    match (stop_reason(journal), blamed) {
        (Some(StopReason::Stop), _) => "stopped".to_owned(),
        (Some(StopReason::Kill), _) => "killed".to_owned(),
        (Some(StopReason::InitKilled), _) => "its PID 1 was killed".to_owned(),
        (Some(StopReason::SupervisorSignal), _) => "the supervisor was told to end".to_owned(),
        (Some(StopReason::AppFailed) | None, Some((app, FailureCause::HealthCheck))) => {
            format!("app {app} is unhealthy: stopped by its health check")
        }
        (Some(StopReason::AppFailed) | None, Some((app, FailureCause::Itself))) if ran_out_of_memory(app) => {
            format!("app {app} ran out of memory{}", reached_limit(journal, app))
        }
        (Some(StopReason::AppFailed) | None, Some((app, FailureCause::Itself))) => format!("app {app} failed"),
        (Some(StopReason::AppFailed) | None, None) => "all apps ended".to_owned(),
        (Some(StopReason::Other(word)), _) => gantry_model::id::shown(word),
    }
}

/// The limit that was reached when the OOM killer last killed a process of the app, as the end of a sentence.
fn reached_limit(journal: &Parsed, app: &AppName) -> &'static str {
    let level = journal.records.iter().rev().find_map(|record| match &record.fact {
        Fact::AppOomKilled { app: killed, level, .. } if killed == app.as_str() => Some(*level),
        // No kill of this app.
        _ => None,
    });
    match level {
        None => "",
        Some(OomLevel::App) => ": its memory limit was reached",
        Some(OomLevel::Pod) => ": the memory limit of the pod was reached",
        Some(OomLevel::Host) => ": a memory limit above the pod was reached, or the host had none left",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_contract::journal::Record;
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
        Fact::AppExited { app: app.into(), attempt: 0, how, oom: false, restart_at: None }
    }

    /// An exit after which a restart is pending.
    fn waiting(app: &str, how: ProcessExit) -> Fact {
        Fact::AppExited { app: app.into(), attempt: 0, how, oom: false, restart_at: Some(200) }
    }

    fn stopping(reason: StopReason) -> Fact {
        Fact::Stopping { reason }
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
                vec![
                    exited("b", code(7)),
                    stopping(StopReason::AppFailed),
                    exited("a", ProcessExit::Signal(15)),
                    Fact::Ended,
                ],
                false,
                (7, Some("b"), "app b failed", 103),
            ),
            (
                &["a"],
                vec![stopping(StopReason::Stop), exited("a", ProcessExit::Signal(15)), Fact::Ended],
                false,
                (143, Some("a"), "stopped", 102),
            ),
            (
                &["a"],
                vec![stopping(StopReason::Stop), exited("a", code(0)), Fact::Ended],
                false,
                (0, None, "stopped", 102),
            ),
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
            let got = outcome(
                &running(apps),
                &journal(facts),
                Observation { now: Timestamp(NOW), restarted, sandbox: false },
            );
            let end = PodEnd { exit_code, failed_app: failed.map(name), reason: reason.to_owned() };
            assert_eq!((got.end, got.at), (end, Timestamp(at)), "{shown}");
            assert_eq!(
                got.is_lost,
                matches!(reason, "the supervisor was killed" | "the host was restarted"),
                "{shown}"
            );
            assert!(got.apps.states.iter().all(|(_, state)| matches!(state, AppState::Exited { .. })), "{shown}");
        }
    }

    #[test]
    fn an_oom_kill_is_the_reason() {
        let how = ProcessExit::Signal(9);
        let oom = || Fact::AppExited { app: "a".into(), attempt: 0, how, oom: true, restart_at: None };
        let got = outcome(
            &running(&["a"]),
            &journal(vec![oom(), Fact::Ended]),
            Observation { now: Timestamp(9), restarted: false, sandbox: false },
        );
        assert_eq!((got.end.exit_code, got.end.reason.as_str()), (137, "app a ran out of memory"));
        let level = OomLevel::Pod;
        let killed =
            Fact::AppOomKilled { app: "a".into(), attempt: 0, kills: 1, total: 1, level, main: true, victim: None };
        let reason = "app a ran out of memory: the memory limit of the pod was reached";
        let seen = Observation { now: Timestamp(9), restarted: false, sandbox: false };
        let got = outcome(&running(&["a"]), &journal(vec![killed, oom(), Fact::Ended]), seen);
        assert_eq!(got.end.reason, reason);
    }

    /// Stop reasons and whether the end was recorded → whether the pod was lost.
    #[test]
    fn a_pod_that_was_stopped_is_not_lost() {
        for (asked, has_ended, want) in [
            (StopReason::Stop, false, false),
            (StopReason::Kill, false, false),
            (StopReason::SupervisorSignal, true, true),
            (StopReason::SupervisorSignal, false, true),
            (StopReason::AppFailed, true, false),
            (StopReason::AppFailed, false, true),
        ] {
            let facts = [stopping(asked.clone())].into_iter().chain(has_ended.then_some(Fact::Ended)).collect();
            let seen = Observation { now: Timestamp(9), restarted: false, sandbox: false };
            assert_eq!(outcome(&running(&["a"]), &journal(facts), seen).is_lost, want, "{asked:?} {has_ended}");
        }
    }

    #[test]
    fn an_unobserved_exit_is_lost() {
        let got = outcome(
            &running(&["a"]),
            &journal(vec![]),
            Observation { now: Timestamp(9), restarted: false, sandbox: false },
        );
        let end = AppEnd { how: AppOutcome::Lost, oom: false, at: Timestamp(9), restart_at: None };
        assert_eq!(got.apps.states, [(name("a"), AppState::Exited { started: Some(Timestamp(5)), end, attempt: 0 })]);
    }

    #[test]
    fn a_restart_that_never_came_is_lost() {
        let planned = waiting("a", ProcessExit::Code(1));
        let seen = Observation { now: Timestamp(9), restarted: false, sandbox: false };
        let got = outcome(&running(&["a"]), &journal(vec![planned.clone()]), seen);
        assert_eq!((got.end.exit_code, got.end.reason.as_str()), (137, "the supervisor was killed"));
        assert_eq!(end_of(&got.apps.states[0].1).map(|end| end.restart_at), Some(None));
        // The stop of the pod makes the exit the last one.
        let got = outcome(&running(&["a"]), &journal(vec![planned, stopping(StopReason::Stop), Fact::Ended]), seen);
        assert_eq!((got.end.exit_code, got.end.reason.as_str(), got.is_lost), (1, "stopped", false));
    }

    #[test]
    fn a_killed_init_is_a_lost_pod() {
        let seen = |sandbox| Observation { now: Timestamp(9), restarted: false, sandbox };
        for (facts, sandbox) in [
            (vec![waiting("a", ProcessExit::Signal(9)), stopping(StopReason::InitKilled), Fact::Ended], false),
            (vec![waiting("a", ProcessExit::Code(1)), stopping(StopReason::InitKilled), Fact::Ended], false),
            (vec![stopping(StopReason::InitKilled), exited("a", ProcessExit::Signal(9)), Fact::Ended], false),
            (vec![stopping(StopReason::InitKilled), exited("a", ProcessExit::Signal(9)), Fact::Ended], true),
        ] {
            let got = outcome(&running(&["a"]), &journal(facts), seen(sandbox));
            assert_eq!((got.end.exit_code, got.is_lost), (137, true), "{sandbox}");
            assert_eq!(got.end.reason, "its PID 1 was killed");
        }
    }

    /// An app that waits for its restart fails by the stop of its pod, after the app whose failure caused the stop.
    #[test]
    fn a_waiting_app_fails_after_others() {
        let facts = vec![
            waiting("a", ProcessExit::Code(1)),
            exited("b", ProcessExit::Code(7)),
            stopping(StopReason::AppFailed),
            Fact::Ended,
        ];
        let seen = Observation { now: Timestamp(9), restarted: false, sandbox: false };
        let got = outcome(&running(&["a", "b"]), &journal(facts), seen);
        assert_eq!((got.end.exit_code, got.end.failed_app), (7, Some(name("b"))));
    }

    #[test]
    fn an_unhealthy_app_that_is_stopped_has_failed() {
        let seen = Observation { now: Timestamp(9), restarted: false, sandbox: false };
        for (unhealthy, want) in [(true, 143), (false, 0)] {
            let facts = vec![
                Fact::AppStopping { app: "a".into(), attempt: 0, unhealthy },
                exited("a", ProcessExit::Signal(15)),
                Fact::Ended,
            ];
            assert_eq!(outcome(&running(&["a"]), &journal(facts), seen).end.exit_code, want);
        }
    }

    /// Facts → exit code, failed app, reason.
    #[test]
    fn health_checks_are_reasons() {
        const STOPPED: &str = "app a is unhealthy: stopped by its health check";
        let seen = Observation { now: Timestamp(9), restarted: false, sandbox: false };
        let unhealthy = |attempt| Fact::AppStopping { app: "a".into(), attempt, unhealthy: true };
        let by_client = || Fact::AppStopping { app: "a".into(), attempt: 0, unhealthy: false };
        let restarted = || start::Started { app: "a".into(), attempt: 1, pid: 7, at: 50 };
        let again =
            Fact::AppExited { app: "a".into(), attempt: 1, how: ProcessExit::Code(3), oom: false, restart_at: None };
        let killed = ProcessExit::Signal(9);
        for (facts, exit_code, reason) in [
            (vec![unhealthy(0), exited("a", ProcessExit::Signal(15))], 143, STOPPED),
            (vec![unhealthy(0), exited("a", killed), stopping(StopReason::AppFailed)], 137, STOPPED),
            (vec![unhealthy(0), exited("a", ProcessExit::Code(0))], 0, STOPPED),
            (vec![unhealthy(0), by_client(), exited("a", ProcessExit::Code(3))], 0, "all apps ended"),
            (vec![unhealthy(0), exited("a", killed), stopping(StopReason::Stop)], 137, "stopped"),
            (vec![unhealthy(0), waiting("a", killed), Fact::AppStarted(restarted()), again], 3, "app a failed"),
            (vec![unhealthy(0), exited("a", ProcessExit::Code(0)), exited("b", killed)], 137, "app b failed"),
            (
                vec![unhealthy(0), exited("a", ProcessExit::Code(0)), exited("b", ProcessExit::Code(0))],
                0,
                "all apps ended",
            ),
        ] {
            let shown = format!("{facts:?}");
            let facts: Vec<_> = facts.into_iter().chain([Fact::Ended]).collect();
            let apps = match facts.iter().any(|fact| fact.app() == Some("b")) {
                true => running(&["a", "b"]),
                false => running(&["a"]),
            };
            let end = outcome(&apps, &journal(facts), seen).end;
            assert_eq!((end.exit_code, end.reason.as_str()), (exit_code, reason), "{shown}");
        }
    }

    #[test]
    fn times_of_unobserved_pods_come_from_the_journal() {
        let ready = start::Ready {
            supervisor: 3,
            start_ticks: 4,
            init: 5,
            apps: vec![start::Started { app: "a".into(), attempt: 0, pid: 6, at: 50 }],
            networks: Vec::new(),
            warnings: Vec::new(),
        };
        let journal = journal(vec![Fact::Ready(ready.clone()), exited("a", ProcessExit::Code(0)), Fact::Ended]);
        let got = outcome(
            &[(name("a"), AppState::Waiting)],
            &journal,
            Observation { now: Timestamp(9), restarted: false, sandbox: false },
        );
        let end = AppEnd { how: AppOutcome::Exited(0), oom: false, at: Timestamp(101), restart_at: None };
        assert_eq!(got.apps.states, [(name("a"), AppState::Exited { started: Some(Timestamp(50)), end, attempt: 0 })]);
        assert_eq!(
            crate::pods::transition::started_apps(&ready)[0].1,
            AppState::Started { at: Timestamp(50), pid: 6, attempt: 0 }
        );
    }

    /// Facts, whether the sandbox's end was recorded → exit code, reason, states, removed rows.
    #[test]
    fn a_sandbox_does_not_fail_with_its_apps() {
        let created = |app: &str| Fact::AppCreated { app: app.into() };
        let started =
            |app: &str, attempt| Fact::AppStarted(start::Started { app: app.into(), attempt, pid: 6, at: 50 });
        let facts = || {
            let exited = |attempt, code| Fact::AppExited {
                app: "a".into(),
                attempt,
                how: ProcessExit::Code(code),
                oom: false,
                restart_at: None,
            };
            vec![created("a"), started("a", 0), exited(0, 3), started("a", 1), created("b"), stopping(StopReason::Stop)]
        };
        let rows: Vec<_> =
            ["a", "b", "c"].iter().map(|app| (name(app), AppState::Creating)).chain(running(&["d"])).collect();
        let removed = Fact::AppRemoved { app: "d".into() };
        let seen = Observation { now: Timestamp(999), restarted: false, sandbox: true };
        for (more, exit_code, reason) in
            [(vec![removed.clone(), Fact::Ended], 0, "stopped"), (vec![removed], 137, "the supervisor was killed")]
        {
            let got = outcome(&rows, &journal(facts().into_iter().chain(more).collect()), seen);
            assert_eq!(got.end, PodEnd { exit_code, failed_app: None, reason: reason.to_owned() });
            assert_eq!(got.apps.removed, [name("c"), name("d")]);
            let states: Vec<_> = got.apps.states.iter().map(|(_, state)| (state.name(), state.attempt())).collect();
            assert_eq!(states, [("exited", Some(1)), ("created", None)]);
        }
    }
}
