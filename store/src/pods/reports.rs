//! Reports of a supervisor about a pod that runs: changes of health and of limits, kills by the OOM killer. Each is
//! recorded once, with its event.

use gantry_model::{AppName, Generation, HealthState, OomLevel, Phase, PodId};
use rusqlite::{Connection, params};

use super::health::{HealthChange, HealthRecord};
use super::limits::LimitUpdate;
use super::oom::{OomRecord, OomReport};
use super::{AppRow, Moved, PodRow, load};
use crate::db::Sync;
use crate::{Store, StoreError, events};

/// A report about a pod or one of its apps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SupervisorReport {
    /// The health of an app has changed.
    Health(HealthChange),
    /// The OOM killer killed processes of an app.
    Oom(OomReport),
    /// Limits were changed.
    Limits(LimitUpdate),
}

impl SupervisorReport {
    /// The app; `None`: it is about the pod.
    #[must_use]
    pub fn app(&self) -> Option<&AppName> {
        match self {
            Self::Health(change) => Some(&change.app),
            Self::Oom(report) => Some(&report.app),
            Self::Limits(update) => update.app.as_ref(),
        }
    }

    /// The number of the start of the app; `None`: it did not run, or the report is about the pod.
    #[must_use]
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Self::Health(change) => Some(change.attempt),
            Self::Oom(report) => Some(report.attempt),
            Self::Limits(update) => update.attempt,
        }
    }

    fn row_of_app<'a>(&self, row: &'a PodRow) -> Option<&'a AppRow> {
        let name = self.app()?;
        row.apps.iter().find(|app| app.name == *name)
    }

    /// Whether it comes after those that the row has.
    #[must_use]
    pub fn is_new(&self, row: &PodRow) -> bool {
        match self {
            Self::Health(change) => self.row_of_app(row).is_some_and(|app| app.health.number < change.number),
            Self::Oom(report) => self.row_of_app(row).is_some_and(|app| app.oom.kills < report.total),
            Self::Limits(update @ LimitUpdate { app: Some(_), .. }) => {
                self.row_of_app(row).is_some_and(|app| app.limit_changes < update.number)
            }
            Self::Limits(update) => row.limit_changes < update.number,
        }
    }

    /// Writes it to a row.
    pub fn apply_to(&self, row: &mut PodRow) {
        if let Self::Limits(update @ LimitUpdate { app: None, .. }) = self {
            row.limit_changes = update.number;
        }
        for app in row.apps.iter_mut().filter(|app| Some(&app.name) == self.app()) {
            match self {
                Self::Limits(update) => app.limit_changes = update.number,
                Self::Health(change) => {
                    app.health = HealthRecord { state: Some(change.state), number: change.number };
                }
                Self::Oom(report) => {
                    let (kills, level, victim) = (report.total, Some(report.level), report.victim.clone());
                    app.oom = OomRecord { kills, level, victim };
                }
            }
        }
    }
}

impl Store {
    /// Records reports about a running pod and its apps, in their order, if the pod's generation is still `seen`.
    /// Those that the row has are skipped.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record_reports(
        &self,
        id: PodId,
        seen: Generation,
        reports: &[SupervisorReport],
    ) -> Result<Moved, StoreError> {
        const DOING: &str = "record what the pod's supervisor reports";
        self.write(DOING, Sync::Soon, |tx| {
            let before = match load(tx, id).map_err(StoreError::sql(DOING))? {
                Some(pod) if pod.generation == seen && matches!(pod.phase, Phase::Running { .. }) => pod,
                other => return Ok(Moved::Lost(other)),
            };
            let mut after = PodRow { generation: Generation(seen.0 + 1), ..before };
            let mut written = Vec::new();
            for report in reports {
                if !report.is_new(&after) {
                    continue;
                }
                let app = report.row_of_app(&after);
                written.extend(match report {
                    SupervisorReport::Health(change) => app.map(|app| change.to_event(id, app)),
                    SupervisorReport::Oom(report) => app.map(|app| report.to_event(id, app)),
                    SupervisorReport::Limits(update) => Some(update.to_event(&after, app)),
                });
                report.apply_to(&mut after);
            }
            write(tx, &after).and_then(|()| events::append(self, tx, &written)).map_err(StoreError::sql(DOING))?;
            Ok(Moved::Yes(Some(after)))
        })
    }
}

fn write(conn: &Connection, pod: &PodRow) -> rusqlite::Result<()> {
    let id = pod.id.to_string();
    conn.prepare_cached("UPDATE pod SET generation = ?2, limit_changes = ?3 WHERE id = ?1")?.execute(params![
        id,
        pod.generation.0,
        pod.limit_changes
    ])?;
    let mut update = conn.prepare_cached(
        "UPDATE app SET health = ?3, health_number = ?4, oom_kills = ?5, oom_level = ?6, \
         oom_victim = ?7, oom_victim_pid = ?8, limit_changes = ?9 WHERE pod = ?1 AND name = ?2",
    )?;
    pod.apps.iter().try_for_each(|app| {
        let HealthRecord { state, number } = app.health;
        let OomRecord { kills, level, ref victim } = app.oom;
        let (victim, victim_pid) =
            (victim.as_ref().map(|victim| &victim.name), victim.as_ref().map(|victim| victim.pid));
        let (state, level) = (state.map(HealthState::as_str), level.map(OomLevel::as_str));
        let changes = app.limit_changes;
        update
            .execute(params![id, app.name.as_str(), state, number, kills, level, victim, victim_pid, changes])
            .map(drop)
    })
}
