//! The health of apps, with an event for each change.

use std::collections::BTreeMap;

use gantry_model::{AppName, EventKind, HealthState, NewEvent, PodId, Timestamp};

use super::AppRow;
use super::row::Columns;

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
    pub(super) fn to_event(&self, pod: PodId, app: &AppRow) -> NewEvent {
        let kind = match self.state {
            HealthState::Starting => EventKind::AppHealthStarting,
            HealthState::Healthy => EventKind::AppHealthy,
            HealthState::Unhealthy => EventKind::AppUnhealthy,
        };
        let mut data = BTreeMap::from([("attempt".to_owned(), self.attempt.to_string())]);
        data.extend(app.image.as_ref().map(|image| ("image_id".to_owned(), image.to_string())));
        if self.failures > 0 {
            data.insert("failures".to_owned(), self.failures.to_string());
        }
        if !self.output.is_empty() {
            data.insert("output".to_owned(), self.output.clone());
        }
        NewEvent { kind, at: self.at, id: pod.to_string(), name: self.app.to_string(), data }
    }
}

/// Reads the columns `health` and `health_number`.
pub(super) fn read(columns: &mut Columns<'_, '_>) -> rusqlite::Result<HealthRecord> {
    let state = columns.text_option()?.and_then(HealthState::from_name);
    Ok(HealthRecord { state, number: columns.get()? })
}
