//! Reports of the supervisor about a pod that runs: rows follow the journal.
//!
//! The supervisor journals each change of health and of limits and each kill by the OOM killer before it replies, and
//! [`Engine::reconcile`] records it with its event. A command that is killed in between leaves a row that is behind the
//! journal until the next reconciliation. Reports are numbered, so none is recorded twice.

use gantry_contract::journal::{Fact, Parsed};
use gantry_model::{AppName, AppState, Phase, Timestamp};
use gantry_store::{HealthChange, LimitUpdate, Moved, OomReport, PodRow, SupervisorReport};

use crate::pods::transition::was_replaced;
use crate::{Engine, PodError};

impl Engine {
    /// Records the reports in the journal that belong to the attempts which a running pod's row has. Called before each
    /// later state of an app is recorded, so that the events are in their order. `None`: there are none.
    pub(crate) fn record_reports(&self, row: &PodRow, journal: &Parsed) -> Result<Option<Moved>, PodError> {
        let reports = due_reports(row, journal);
        if reports.is_empty() || !matches!(row.phase, Phase::Running { .. }) {
            return Ok(None);
        }
        // The caller still learns it.
        let unstored = || {
            let mut row = row.clone();
            reports.iter().for_each(|report| report.apply_to(&mut row));
            Ok(Some(Moved::Yes(Some(row))))
        };
        if !self.row_writes.are_enabled() {
            return unstored();
        }
        match self.store.record_reports(row.id, row.generation, &reports).map_err(PodError::store) {
            // gantryd records it in the database that it restored.
            Err(error) if was_replaced(&error) => unstored(),
            recorded => recorded.map(Some),
        }
    }
}

/// Whether the journal has reports that a row does not have.
pub(crate) fn has_new_reports(row: &PodRow, journal: &Parsed) -> bool {
    !new_reports(row, journal).is_empty()
}

/// The new reports about the pod, and those that belong to the attempt which an app's row has, or to an earlier one.
fn due_reports(row: &PodRow, journal: &Parsed) -> Vec<SupervisorReport> {
    let mut reports = new_reports(row, journal);
    let state = |name: &AppName| row.apps.iter().find(|app| app.name == *name).map(|app| app.state);
    reports.retain(|report| match (report.app().map(state), report.attempt()) {
        (None, _) => true,
        (Some(None | Some(AppState::Creating)), _) => false,
        (Some(Some(_)), None) => true,
        (Some(Some(state)), Some(reported)) => state.attempt().is_some_and(|attempt| reported <= attempt),
    });
    reports
}

/// The reports that the row does not have, in their order. An app that was removed and added again counts from 1: the
/// reports before its removal are not its own.
fn new_reports(row: &PodRow, journal: &Parsed) -> Vec<SupervisorReport> {
    let mut reports: Vec<SupervisorReport> = Vec::new();
    for record in &journal.records {
        let at = Timestamp(record.at);
        let report = match &record.fact {
            Fact::AppRemoved { app } => {
                reports.retain(|report| report.app().is_none_or(|name| name.as_str() != app));
                continue;
            }
            Fact::HealthChanged { app, attempt, number, health, failures, output } => {
                let Ok(app) = app.parse::<AppName>() else { continue };
                let (attempt, number, state, failures) = (*attempt, *number, *health, *failures);
                let output = output.clone();
                SupervisorReport::Health(HealthChange { app, at, attempt, number, state, failures, output })
            }
            Fact::AppOomKilled { app, attempt, kills, total, level, main, victim } => {
                let Ok(app) = app.parse::<AppName>() else { continue };
                let (attempt, kills, total, level, main) = (*attempt, *kills, *total, *level, *main);
                let victim = victim.clone();
                SupervisorReport::Oom(OomReport { app, at, attempt, kills, total, level, main, victim })
            }
            Fact::LimitsUpdated { app, attempt, number, changes } => {
                let Ok(app) = app.as_deref().map(str::parse::<AppName>).transpose() else { continue };
                let (attempt, number, changes) = (*attempt, *number, changes.clone());
                SupervisorReport::Limits(LimitUpdate { app, at, attempt, number, changes })
            }
            // No reports.
            _ => continue,
        };
        if report.is_new(row) {
            reports.push(report);
        }
    }
    reports
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::pods::health::tests::row;
    use gantry_contract::journal::Record;
    use gantry_model::{HealthState, OomLevel};
    use gantry_store::{HealthRecord, OomRecord};

    fn changed(app: &str, number: u32, health: HealthState) -> Fact {
        Fact::HealthChanged { app: app.into(), attempt: 0, number, health, failures: 0, output: String::new() }
    }

    fn killed(total: u64) -> Fact {
        let (app, level) = ("a".into(), OomLevel::App);
        Fact::AppOomKilled { app, attempt: 0, kills: 1, total, level, main: false, victim: None }
    }

    fn numbers(row: &PodRow, facts: Vec<Fact>) -> Vec<u64> {
        let records = facts.into_iter().map(|fact| Record { at: 1, fact }).collect();
        let number = |report: &SupervisorReport| match report {
            SupervisorReport::Health(change) => u64::from(change.number),
            SupervisorReport::Oom(report) => report.total + 100,
            SupervisorReport::Limits(update) => u64::from(update.number) + 200,
        };
        due_reports(row, &Parsed { records, damaged: 0 }).iter().map(number).collect()
    }

    #[test]
    fn reports_are_recorded_once() {
        use HealthState::{Healthy, Starting};
        let mut row = row();
        let all = || vec![changed("a", 1, Starting), changed("b", 1, Starting), killed(2), changed("a", 2, Healthy)];
        assert_eq!(numbers(&row, all()), [1, 102, 2]);
        let state = std::mem::replace(&mut row.apps[0].state, AppState::Created);
        assert!(numbers(&row, all()).is_empty(), "its start comes first");
        row.apps[0].state = state;
        row.apps[0].health = HealthRecord { state: Some(Starting), number: 1 };
        row.apps[0].oom = OomRecord { kills: 2, level: Some(OomLevel::App), victim: None };
        assert_eq!(numbers(&row, all()), [2]);
        row.apps[0].health.number = 2;
        assert!(numbers(&row, all()).is_empty());
    }

    fn updated(app: Option<&str>, attempt: Option<u32>, number: u32) -> Fact {
        Fact::LimitsUpdated { app: app.map(str::to_owned), attempt, number, changes: BTreeMap::new() }
    }

    #[test]
    fn limit_changes_follow_the_states_of_apps() {
        let mut row = row();
        let all = || vec![updated(None, None, 1), updated(Some("a"), None, 1), updated(Some("a"), Some(0), 2)];
        assert_eq!(numbers(&row, all()), [201, 201, 202]);
        row.apps[0].state = AppState::Created;
        assert_eq!(numbers(&row, all()), [201, 201], "the start of the app comes first");
        row.apps[0].state = AppState::Creating;
        assert_eq!(numbers(&row, all()), [201], "its creation comes first");
        row.limit_changes = 1;
        row.apps[0].state = AppState::Created;
        row.apps[0].limit_changes = 1;
        assert!(numbers(&row, all()).is_empty());
        assert!(numbers(&row, vec![updated(None, None, 0)]).is_empty(), "an older supervisor does not count");
        let again = vec![updated(Some("a"), None, 2), Fact::AppRemoved { app: "a".into() }, updated(None, None, 2)];
        assert_eq!(numbers(&row, again), [202], "of the pod only");
    }

    #[test]
    fn reports_of_former_apps_are_ignored() {
        use HealthState::{Healthy, Starting};
        let removed = Fact::AppRemoved { app: "a".into() };
        let facts =
            vec![changed("a", 1, Starting), killed(1), changed("a", 2, Healthy), removed, changed("a", 1, Starting)];
        assert_eq!(numbers(&row(), facts), [1]);
    }
}
