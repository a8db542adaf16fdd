//! The events of requests to stop.

use std::collections::BTreeMap;

use gantry_model::{AppName, AppState, EventKind, Phase, PodId};

use super::list::load;
use crate::db::Sync;
use crate::{Store, StoreError, events};

impl Store {
    /// Writes the event of a request to stop a pod (`app` is `None`) or an app, if the pod is running, and so is the
    /// app. A power cut may take it back, but ends the pod.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record_stopping(&self, id: PodId, app: Option<&AppName>) -> Result<(), StoreError> {
        const DOING: &str = "record a request to stop";
        self.write(DOING, Sync::Soon, |tx| {
            let Some(pod) = load(tx, id).map_err(StoreError::sql(DOING))? else { return Ok(()) };
            if !matches!(pod.phase, Phase::Running { .. }) {
                return Ok(());
            }
            let now = crate::now();
            let event = match app {
                None => Some(events::pod_event(&pod, EventKind::PodStopping, now, BTreeMap::new())),
                Some(name) => pod.apps.iter().find(|row| row.name == *name).and_then(|row| match row.state {
                    AppState::Started { attempt, .. } => {
                        Some(events::app_event(id, row, EventKind::AppStopping, now, Some(attempt), vec![]))
                    }
                    AppState::Waiting | AppState::Creating | AppState::Created | AppState::Exited { .. } => None,
                }),
            };
            event.map_or(Ok(()), |event| events::append(self, tx, &[event]).map_err(StoreError::sql(DOING)))
        })
    }
}
