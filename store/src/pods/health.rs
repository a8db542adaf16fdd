//! The health of apps, with an event for each change.

use std::collections::BTreeMap;

use gantry_model::{AppName, EventKind, Generation, HealthState, NewEvent, Phase, PodId, Timestamp};
use rusqlite::{Connection, params};

use super::row::Columns;
use super::{AppRow, Moved, PodRow, load};
use crate::db::Sync;
use crate::{Store, StoreError, events};

/// The health of an app, as recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HealthRecord {
    /// The state; `None`: the app has no health check, or was not started.
    pub state: Option<HealthState>,
    /// The number of the last recorded change; 0: none.
    pub number: u32,
}

/// A change of an app's health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthChange {
    /// The app.
    pub app: AppName,
    /// When.
    pub at: Timestamp,
    /// The number of the start of the app.
    pub attempt: u32,
    /// The number of the change: each app counts from 1.
    pub number: u32,
    /// The new state.
    pub state: HealthState,
    /// The number of failures in a row.
    pub failures: u32,
    /// The beginning of the output of the last probe.
    pub output: String,
}

impl AppRow {
    /// Its health while it runs.
    #[must_use]
    pub fn health(&self) -> Option<HealthState> {
        self.health.state.filter(|_| self.state.is_running())
    }
}

impl HealthChange {
    /// Whether it comes after those that the row has.
    #[must_use]
    pub fn is_new(&self, row: &PodRow) -> bool {
        row.apps.iter().any(|app| app.name == self.app && app.health.number < self.number)
    }

    /// Writes it to a row.
    pub fn apply_to(&self, row: &mut PodRow) {
        for app in row.apps.iter_mut().filter(|app| app.name == self.app) {
            app.health = HealthRecord { state: Some(self.state), number: self.number };
        }
    }

    fn to_event(&self, pod: PodId, app: &AppRow) -> NewEvent {
        let kind = match self.state {
            HealthState::Starting => EventKind::AppHealthStarting,
            HealthState::Healthy => EventKind::AppHealthy,
            HealthState::Unhealthy => EventKind::AppUnhealthy,
        };
        let mut data = BTreeMap::from([
            ("attempt".to_owned(), self.attempt.to_string()),
            ("image_id".to_owned(), app.image.to_string()),
        ]);
        if self.failures > 0 {
            data.insert("failures".to_owned(), self.failures.to_string());
        }
        if !self.output.is_empty() {
            data.insert("output".to_owned(), self.output.clone());
        }
        NewEvent { kind, at: self.at, id: pod.to_string(), name: self.app.to_string(), data }
    }
}

impl Store {
    /// Records changes of the health of a running pod's apps, in their order, if the pod's generation is still `seen`.
    /// Changes that the row has are skipped.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record_health(&self, id: PodId, seen: Generation, changes: &[HealthChange]) -> Result<Moved, StoreError> {
        const DOING: &str = "record the health of the pod's apps";
        self.write(DOING, Sync::Soon, |tx| {
            let before = match load(tx, id).map_err(StoreError::sql(DOING))? {
                Some(pod) if pod.generation == seen && matches!(pod.phase, Phase::Running { .. }) => pod,
                other => return Ok(Moved::Lost(other)),
            };
            let mut after = PodRow { generation: Generation(seen.0 + 1), ..before };
            let mut told = Vec::new();
            for change in changes {
                if !change.is_new(&after) {
                    continue;
                }
                let app = after.apps.iter().find(|app| app.name == change.app);
                told.extend(app.map(|app| change.to_event(id, app)));
                change.apply_to(&mut after);
            }
            write(tx, &after).and_then(|()| events::append(self, tx, &told)).map_err(StoreError::sql(DOING))?;
            Ok(Moved::Yes(Some(after)))
        })
    }
}

/// Reads the columns `health` and `health_number`.
pub(super) fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<HealthRecord> {
    let state = columns.get::<Option<String>>()?.and_then(|name| HealthState::from_name(&name));
    Ok(HealthRecord { state, number: columns.get()? })
}

fn write(conn: &Connection, pod: &PodRow) -> rusqlite::Result<()> {
    let id = pod.id.to_string();
    conn.prepare_cached("UPDATE pod SET generation = ?2 WHERE id = ?1")?.execute(params![id, pod.generation.0])?;
    let mut update =
        conn.prepare_cached("UPDATE app SET health = ?3, health_number = ?4 WHERE pod = ?1 AND name = ?2")?;
    pod.apps.iter().try_for_each(|app| {
        let HealthRecord { state, number } = app.health;
        update.execute(params![id, app.name.as_str(), state.map(HealthState::as_str), number]).map(drop)
    })
}
