//! The readiness of apps that report it themselves (`--sdnotify=app`).

use gantry_model::{AppName, EventKind, Generation, PodId, Readiness, Timestamp};

use super::{Moved, NewApp, StepError, load, row};
use crate::db::Sync;
use crate::{Store, StoreError, events};

/// The readiness of a new app, as stored.
pub(super) fn initial(app: &NewApp) -> Option<&'static str> {
    app.notifies.then_some(Readiness::Starting.as_str())
}

/// The report of an app that its attempt is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadyReport {
    /// The app.
    pub app: AppName,
    /// The number of the start.
    pub attempt: u32,
    /// When.
    pub at: Timestamp,
}

impl Store {
    /// Records that apps of a pod are ready, each with an event, if the pod's generation is still `seen`. A report of
    /// an attempt that is not the app's last, or that is recorded already, changes nothing.
    ///
    /// # Errors
    /// [`StepError`].
    pub fn record_ready(&self, id: PodId, seen: Generation, reports: &[ReadyReport]) -> Result<Moved, StepError> {
        const DOING: &str = "record that an app is ready";
        self.write(DOING, Sync::Soon, |tx| {
            let mut pod = match load(tx, id).map_err(StoreError::sql(DOING))? {
                Some(pod) if pod.generation == seen => pod,
                other => return Ok(Moved::Lost(other)),
            };
            let mut written = Vec::new();
            for report in reports {
                let is_due = |app: &&mut super::AppRow| {
                    app.name == report.app
                        && app.state.attempt() == Some(report.attempt)
                        && app.readiness == Some(Readiness::Starting)
                };
                let Some(app) = pod.apps.iter_mut().find(is_due) else { continue };
                app.readiness = Some(Readiness::Ready);
                written.push(events::app_event(id, app, EventKind::AppReady, report.at, Some(report.attempt), vec![]));
            }
            if written.is_empty() {
                return Ok(Moved::Yes(Some(pod)));
            }
            pod.generation = Generation(pod.generation.0 + 1);
            row::write_phase(tx, &pod)
                .and_then(|()| pod.apps.iter().try_for_each(|app| row::write_app(tx, &id.to_string(), app)))
                .and_then(|()| events::append(self, tx, &written))
                .map_err(StoreError::sql(DOING))?;
            Ok(Moved::Yes(Some(pod)))
        })
    }
}
