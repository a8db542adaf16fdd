//! The apps of a pod as its supervisor's journal has them: which ones exist, and the states that each went through.
//!
//! A name may be used again after its app was removed. A row in the state Creating is younger than every removal of its
//! name in the journal, because a row is deleted only after the removal was journaled. Any other row belongs to the
//! last app of its name.

use std::collections::BTreeMap;

use gantry_contract::journal::{Fact, Parsed, StopReason};
use gantry_contract::start;
use gantry_model::{AppEnd, AppName, AppOutcome, AppState, Timestamp};
use gantry_store::AppChanges;

/// Bounds a transaction.
const MAX_STEPS: usize = 64;

/// The histories of all apps of a pod, by name.
#[derive(Debug, Default)]
pub(crate) struct AppHistories<'a>(BTreeMap<&'a str, AppHistory>);

/// The history of the last app of a name.
#[derive(Debug, Default)]
struct AppHistory {
    /// Its states, in order. The start and the end of an attempt are one state, the end, unless reports come between.
    states: Vec<AppState>,
    /// Whether it was added to the running pod.
    added: bool,
    /// Whether it was removed from the pod.
    removed: bool,
    /// The attempts whose next exit was requested.
    stopping: Vec<u32>,
    /// The last attempt about which the supervisor reports something. Its start and its end are two states: the reports
    /// come between them.
    reported: Option<u32>,
    /// The last attempt that the health check of the app stopped.
    unhealthy: Option<u32>,
    /// The place in the journal of its first failure, and the failure.
    failure: Option<(usize, AppFailure)>,
    /// How its last exit failed, if a restart is pending.
    restarting: Option<AppFailure>,
}

/// The failure of an app.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AppFailure {
    /// The end of the app.
    pub(crate) how: AppOutcome,
    /// What ended it.
    pub(crate) cause: FailureCause,
}

/// What ended an app that has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// It ended by itself, or nothing is known about a cause.
    Itself,
    /// It was unhealthy, and its health check stopped or killed it.
    HealthCheck,
}

impl AppHistory {
    fn push(&mut self, state: AppState) {
        match (self.states.last_mut(), state) {
            (
                Some(AppState::Exited { started: started @ None, attempt: known, .. }),
                AppState::Started { at, attempt, .. },
            ) if *known == attempt => *started = Some(at),
            (Some(last @ AppState::Created), AppState::Started { .. }) => *last = state,
            (Some(last @ AppState::Started { .. }), AppState::Exited { started: _, end, attempt })
                if last.attempt() == Some(attempt) =>
            {
                let exited = AppState::Exited { started: started_at(last), end, attempt };
                match self.reported == Some(attempt) {
                    true => self.states.push(exited),
                    false => *last = exited,
                }
            }
            // The state follows, and does not complete, the last one.
            _ => self.states.push(state),
        }
    }

    fn exited(&mut self, place: usize, attempt: u32, end: AppEnd) {
        let is_failure = !end.how.is_success() && !self.stopping.contains(&attempt);
        let cause = match self.unhealthy == Some(attempt) {
            true => FailureCause::HealthCheck,
            false => FailureCause::Itself,
        };
        let failure = is_failure.then_some(AppFailure { how: end.how, cause });
        match end.restart_at {
            None => self.failure = self.failure.or(failure.map(|failure| (place, failure))),
            Some(_) => self.restarting = failure,
        }
        self.push(AppState::Exited { started: None, end, attempt });
    }

    fn started(&mut self, state: AppState) {
        self.restarting = None;
        self.push(state);
    }

    /// An app was asked to stop, which cancels its next start, too.
    fn stop(&mut self, attempt: u32) {
        self.stopping.push(attempt);
        self.unhealthy = None;
        self.restarting = None;
        self.cancel_restart();
    }

    /// Its pod is stopped: the restart that was pending does not come, and the app has failed now. If PID 1 was killed,
    /// that is the failure.
    fn stop_with_pod(&mut self, place: usize, reason: &StopReason) {
        let is_failure = match reason {
            StopReason::InitKilled => false,
            StopReason::Stop
            | StopReason::Kill
            | StopReason::AppFailed
            | StopReason::SupervisorSignal
            | StopReason::Other(_) => true,
        };
        let failure = self.restarting.take().filter(|_| is_failure);
        self.failure = self.failure.or(failure.map(|failure| (place, failure)));
        self.cancel_restart();
    }

    /// Its health check stops it, and decides about its next start.
    fn stop_unhealthy(&mut self, attempt: u32) {
        self.unhealthy = Some(attempt);
        self.cancel_restart();
    }

    fn cancel_restart(&mut self) {
        if let Some(AppState::Exited { started, end: end @ AppEnd { restart_at: Some(_), .. }, attempt }) =
            self.states.last()
        {
            let end = AppEnd { restart_at: None, ..*end };
            self.states.push(AppState::Exited { started: *started, end, attempt: *attempt });
        }
    }

    /// The states after that of the row, in order.
    fn states_after<'s>(&'s self, row: &'s AppState) -> impl Iterator<Item = AppState> + 's {
        let of_earlier_app = self.removed && *row == AppState::Creating;
        self.states.iter().filter(move |next| !of_earlier_app && row.precedes(next)).map(|next| match *next {
            AppState::Exited { started: None, end, attempt } if row.attempt() == Some(attempt) => {
                AppState::Exited { started: started_at(row), end, attempt }
            }
            next => next,
        })
    }
}

impl<'a> AppHistories<'a> {
    pub(crate) fn from_journal(journal: &'a Parsed) -> Self {
        let mut apps: BTreeMap<&str, AppHistory> = BTreeMap::new();
        let started =
            |app: &start::Started| AppState::Started { at: Timestamp(app.at), pid: app.pid, attempt: app.attempt };
        for (place, record) in journal.records.iter().enumerate() {
            match &record.fact {
                Fact::Ready(ready) => {
                    for app in &ready.apps {
                        apps.entry(&app.app).or_default().started(started(app));
                    }
                }
                Fact::AppCreated { app } => {
                    let history = AppHistory { states: vec![AppState::Created], added: true, ..AppHistory::default() };
                    apps.insert(app, history);
                }
                Fact::AppStarted(app) => apps.entry(&app.app).or_default().started(started(app)),
                Fact::AppStopping { app, attempt, unhealthy: true } => {
                    apps.entry(app).or_default().stop_unhealthy(*attempt);
                }
                Fact::AppStopping { app, attempt, unhealthy: false } => apps.entry(app).or_default().stop(*attempt),
                Fact::AppExited { app, attempt, how, oom, restart_at } => {
                    let restart_at = restart_at.map(Timestamp);
                    let end = AppEnd { how: (*how).into(), oom: *oom, at: Timestamp(record.at), restart_at };
                    apps.entry(app).or_default().exited(place, *attempt, end);
                }
                Fact::AppRemoved { app } => apps.entry(app).or_default().removed = true,
                Fact::Stopping { reason } => apps.values_mut().for_each(|app| app.stop_with_pod(place, reason)),
                // See `pods::reports` and `pods::readiness`.
                Fact::HealthChanged { app, attempt, .. }
                | Fact::AppOomKilled { app, attempt, .. }
                | Fact::LimitsUpdated { app: Some(app), attempt: Some(attempt), .. }
                | Fact::AppReady { app, attempt } => apps.entry(app).or_default().reported = Some(*attempt),
                Fact::Failed(_)
                | Fact::Paused { .. }
                | Fact::Resumed { .. }
                | Fact::LimitsUpdated { .. }
                | Fact::LogDropped { .. }
                | Fact::Ended
                | Fact::Unknown => {}
            }
        }
        Self(apps)
    }

    /// The names of the apps that exist.
    pub(crate) fn names(&self) -> impl Iterator<Item = AppName> + '_ {
        let existing = self.0.iter().filter(|(_, history)| !history.removed && !history.states.is_empty());
        existing.filter_map(|(name, _)| name.parse().ok())
    }

    /// The last state of an app; its row's, if the journal has no later one.
    pub(crate) fn last_state(&self, name: &AppName, row: &AppState) -> AppState {
        self.0.get(name.as_str()).and_then(|history| history.states_after(row).last()).unwrap_or(*row)
    }

    /// Whether this row belongs to an app that was removed.
    pub(crate) fn is_removed(&self, name: &AppName, row: &AppState) -> bool {
        *row != AppState::Creating && self.0.get(name.as_str()).is_some_and(|history| history.removed)
    }

    /// The changes from these rows to the journal, step by step, so that each attempt is reported. At most
    /// [`MAX_STEPS`]; empty if there are none.
    pub(crate) fn changes(&self, mut rows: Vec<(AppName, AppState)>) -> Vec<AppChanges> {
        let mut steps = Vec::new();
        while steps.len() < MAX_STEPS {
            let changes = self.next_changes(&rows);
            if changes.is_empty() {
                break;
            }
            apply_changes(&changes, &mut rows);
            steps.push(changes);
        }
        steps
    }

    /// The next change of each row.
    fn next_changes(&self, rows: &[(AppName, AppState)]) -> AppChanges {
        let mut changes = AppChanges::default();
        for (name, row) in rows {
            let next = self.0.get(name.as_str()).and_then(|history| history.states_after(row).next());
            match next {
                Some(next) => changes.states.push((name.clone(), next)),
                None if self.is_removed(name, row) => changes.removed.push(name.clone()),
                None => {}
            }
        }
        changes
    }

    /// Whether a row is more than one change behind.
    pub(crate) fn is_far_ahead(&self, rows: &[(AppName, AppState)]) -> bool {
        let changes = |(name, row): &(AppName, AppState)| {
            let states = self.0.get(name.as_str()).map_or(0, |history| history.states_after(row).take(2).count());
            states + usize::from(self.is_removed(name, row))
        };
        rows.iter().any(|row| changes(row) > 1)
    }

    /// Whether the health check of an app stopped its attempt that has this last state.
    pub(crate) fn is_stopped_unhealthy(&self, name: &AppName, state: &AppState) -> bool {
        let unhealthy = self.0.get(name.as_str()).and_then(|history| history.unhealthy);
        unhealthy.is_some() && unhealthy == state.attempt()
    }

    /// The names of the apps that were added to the running pod and not removed.
    pub(crate) fn added_names(&self) -> impl Iterator<Item = AppName> + '_ {
        let existing = self.0.iter().filter(|(_, history)| history.added && !history.removed);
        existing.filter_map(|(name, _)| name.parse().ok())
    }

    /// The first failure of any of these apps. An exit that was requested is none.
    pub(crate) fn first_failure<'n>(
        &self,
        apps: impl IntoIterator<Item = &'n AppName>,
    ) -> Option<(&'n AppName, AppFailure)> {
        // The pod outlived the failure of an app that was removed since.
        let history = |name: &AppName| self.0.get(name.as_str()).filter(|history| !history.removed);
        let failure = |name: &'n AppName| Some((history(name)?.failure?, name));
        let first = apps.into_iter().filter_map(failure).min_by_key(|((place, _), _)| *place);
        first.map(|((_, failure), name)| (name, failure))
    }
}

/// Applies one step to the rows.
pub(crate) fn apply_changes(changes: &AppChanges, rows: &mut Vec<(AppName, AppState)>) {
    changes.apply_to(rows, |(name, _)| name, |(_, state), next| *state = next);
}

fn started_at(state: &AppState) -> Option<Timestamp> {
    match state {
        AppState::Started { at, .. } => Some(*at),
        AppState::Exited { started, .. } => *started,
        AppState::Waiting | AppState::Creating | AppState::Created => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_contract::ProcessExit;
    use gantry_contract::journal::Record;

    fn name(text: &str) -> AppName {
        text.parse().unwrap()
    }

    fn journal(facts: Vec<Fact>) -> Parsed {
        let records = facts.into_iter().zip(100..).map(|(fact, at)| Record { at, fact }).collect();
        Parsed { records, damaged: 0 }
    }

    fn created(app: &str) -> Fact {
        Fact::AppCreated { app: app.into() }
    }

    fn started(app: &str, attempt: u32) -> Fact {
        Fact::AppStarted(start::Started { app: app.into(), attempt, pid: 7, at: 50 })
    }

    fn exited(app: &str, attempt: u32, code: u8) -> Fact {
        Fact::AppExited { app: app.into(), attempt, how: ProcessExit::Code(code), oom: false, restart_at: None }
    }

    fn removed(app: &str) -> Fact {
        Fact::AppRemoved { app: app.into() }
    }

    /// Applies the changes one by one; returns the names of the states, `-` for the removal.
    fn walk(facts: Vec<Fact>, row: AppState) -> String {
        let journal = journal(facts);
        let histories = AppHistories::from_journal(&journal);
        let mut walked = Vec::new();
        for AppChanges { states, removed } in histories.changes(vec![(name("a"), row)]) {
            walked.extend(removed.iter().map(|_| "-".to_owned()));
            for (_, state) in states {
                let attempt = state.attempt().map(|attempt| attempt.to_string()).unwrap_or_default();
                walked.push(format!("{}{attempt}", state.name()));
            }
        }
        walked.join(" ")
    }

    #[test]
    fn rows_follow_the_journal_attempt_by_attempt() {
        let running = AppState::Started { at: Timestamp(5), pid: 1, attempt: 0 };
        let life = || vec![created("a"), started("a", 0), exited("a", 0, 1), started("a", 1), exited("a", 1, 0)];
        let whole = || life().into_iter().chain([removed("a")]).collect::<Vec<_>>();
        for (facts, row, want) in [
            (vec![], AppState::Creating, ""),
            (vec![created("a")], AppState::Creating, "created"),
            (vec![created("b")], AppState::Creating, ""),
            (vec![created("a"), started("a", 0)], AppState::Creating, "running0"),
            (life(), AppState::Creating, "exited0 exited1"),
            (life(), AppState::Created, "exited0 exited1"),
            (life(), running, "exited0 exited1"),
            (life()[..4].to_vec(), running, "exited0 running1"),
            (whole(), running, "exited0 exited1 -"),
            (vec![created("a"), removed("a")], AppState::Created, "-"),
            // A new app of the name, whose creation is not journaled yet.
            (whole(), AppState::Creating, ""),
            (whole().into_iter().chain([created("a")]).collect(), AppState::Creating, "created"),
        ] {
            let shown = format!("{facts:?} {row:?}");
            assert_eq!(walk(facts, row), want, "{shown}");
        }
    }

    #[test]
    fn reports_come_between_start_and_exit() {
        let health = |attempt| Fact::HealthChanged {
            app: "a".into(),
            attempt,
            number: attempt + 1,
            health: gantry_model::HealthState::Unhealthy,
            failures: 1,
            output: String::new(),
        };
        let running = AppState::Started { at: Timestamp(5), pid: 1, attempt: 0 };
        let facts =
            vec![exited("a", 0, 1), health(1), started("a", 1), exited("a", 1, 1), started("a", 2), exited("a", 2, 0)];
        assert_eq!(walk(facts, running), "exited0 running1 exited1 exited2");
    }

    #[test]
    fn a_requested_exit_is_no_failure() {
        let stopping = Fact::AppStopping { app: "a".into(), attempt: 0, unhealthy: false };
        let facts =
            vec![created("a"), started("a", 0), stopping, exited("a", 0, 9), started("b", 0), exited("b", 0, 4)];
        let journal = journal(facts);
        let histories = AppHistories::from_journal(&journal);
        let (a, b) = (name("a"), name("b"));
        assert_eq!(histories.first_failure([&a]), None);
        assert_eq!(
            histories.first_failure([&a, &b]),
            Some((&b, AppFailure { how: AppOutcome::Exited(4), cause: FailureCause::Itself }))
        );
    }

    #[test]
    fn row_or_journal_records_a_start() {
        let journal = journal(vec![exited("a", 0, 0)]);
        let histories = AppHistories::from_journal(&journal);
        let row = AppState::Started { at: Timestamp(5), pid: 1, attempt: 0 };
        let AppState::Exited { started, .. } = histories.last_state(&name("a"), &row) else { panic!() };
        assert_eq!(started, Some(Timestamp(5)));
        assert_eq!(histories.names().collect::<Vec<_>>(), [name("a")]);
    }
}

#[cfg(test)]
#[path = "compaction_tests.rs"]
mod compaction_tests;
