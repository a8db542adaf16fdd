//! Changes of limits, with an event for each.

use std::collections::BTreeMap;

use gantry_model::{AppName, EventKind, NewEvent, Timestamp};

use super::{AppRow, PodRow};
use crate::events;

/// A change of the limits of a running pod or of one of its apps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitUpdate {
    /// The app; `None`: the whole pod.
    pub app: Option<AppName>,
    /// When.
    pub at: Timestamp,
    /// The number of the start of the app that runs; `None`: it does not run, or the pod was changed.
    pub attempt: Option<u32>,
    /// The number of the change: the pod and each app count from 1.
    pub number: u32,
    /// The limits that are new, by name.
    pub changes: BTreeMap<String, String>,
}

impl LimitUpdate {
    /// The event; `app` is the row of its app.
    pub(super) fn to_event(&self, pod: &PodRow, app: Option<&AppRow>) -> NewEvent {
        let mut data = self.changes.clone();
        data.extend(self.attempt.map(|attempt| ("attempt".to_owned(), attempt.to_string())));
        let image = app.and_then(|app| app.image.as_ref());
        data.extend(image.map(|image| ("image_id".to_owned(), image.to_string())));
        match &self.app {
            Some(app) => {
                let (id, name) = (pod.id.to_string(), app.to_string());
                NewEvent { kind: EventKind::AppUpdated, at: self.at, id, name, data }
            }
            None => events::pod_event(pod, EventKind::PodUpdated, self.at, data),
        }
    }
}
