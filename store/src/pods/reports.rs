//! Reports of a supervisor about apps that run: changes of health, kills by the OOM killer. Each is recorded once, with
//! its event.

use gantry_model::{AppName, Generation, HealthState, OomLevel, Phase, PodId};
use rusqlite::{Connection, params};

use super::health::{HealthChange, HealthRecord};
use super::oom::{OomRecord, OomReport};
use super::{Moved, PodRow, load};
use crate::db::Sync;
use crate::{Store, StoreError, events};

/// A report about an app.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppReport {
    /// Its health has changed.
    Health(HealthChange),
    /// The OOM killer killed processes of it.
    Oom(OomReport),
}

impl AppReport {
    /// The app.
    #[must_use]
    pub fn app(&self) -> &AppName {
        match self {
            Self::Health(change) => &change.app,
            Self::Oom(report) => &report.app,
        }
    }

    /// The number of the start of the app.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        match self {
            Self::Health(change) => change.attempt,
            Self::Oom(report) => report.attempt,
        }
    }

    /// Whether it comes after those that the row has.
    #[must_use]
    pub fn is_new(&self, row: &PodRow) -> bool {
        row.apps.iter().any(|app| {
            app.name == *self.app()
                && match self {
                    Self::Health(change) => app.health.number < change.number,
                    Self::Oom(report) => app.oom.kills < report.total,
                }
        })
    }

    /// Writes it to a row.
    pub fn apply_to(&self, row: &mut PodRow) {
        for app in row.apps.iter_mut().filter(|app| app.name == *self.app()) {
            match self {
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
    /// Records reports about the apps of a running pod, in their order, if the pod's generation is still `seen`.
    /// Those that the row has are skipped.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record_reports(&self, id: PodId, seen: Generation, reports: &[AppReport]) -> Result<Moved, StoreError> {
        const DOING: &str = "record the state of the pod's apps";
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
                let app = after.apps.iter().find(|app| app.name == *report.app());
                written.extend(app.map(|app| match report {
                    AppReport::Health(change) => change.to_event(id, app),
                    AppReport::Oom(report) => report.to_event(id, app),
                }));
                report.apply_to(&mut after);
            }
            write(tx, &after).and_then(|()| events::append(self, tx, &written)).map_err(StoreError::sql(DOING))?;
            Ok(Moved::Yes(Some(after)))
        })
    }
}

fn write(conn: &Connection, pod: &PodRow) -> rusqlite::Result<()> {
    let id = pod.id.to_string();
    conn.prepare_cached("UPDATE pod SET generation = ?2 WHERE id = ?1")?.execute(params![id, pod.generation.0])?;
    let mut update = conn.prepare_cached(
        "UPDATE app SET health = ?3, health_number = ?4, oom_kills = ?5, oom_level = ?6, \
         oom_victim = ?7, oom_victim_pid = ?8 WHERE pod = ?1 AND name = ?2",
    )?;
    pod.apps.iter().try_for_each(|app| {
        let HealthRecord { state, number } = app.health;
        let OomRecord { kills, level, ref victim } = app.oom;
        let (victim, victim_pid) =
            (victim.as_ref().map(|victim| &victim.name), victim.as_ref().map(|victim| victim.pid));
        let (state, level) = (state.map(HealthState::as_str), level.map(OomLevel::as_str));
        update.execute(params![id, app.name.as_str(), state, number, kills, level, victim, victim_pid]).map(drop)
    })
}
