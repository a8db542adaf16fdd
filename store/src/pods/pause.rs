//! Whether pods and apps are paused, with the events of each change.

use std::collections::BTreeMap;

use gantry_model::{AppState, EventKind, Generation, NewEvent, Phase, PodId, Timestamp};
use rusqlite::{Connection, params};

use super::{Moved, PodRow, load};
use crate::db::Sync;
use crate::{Store, StoreError, events};

/// The parts of a pod that are paused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PauseState {
    /// Whether the pod is paused as a whole.
    pub pod: bool,
    /// The names of the paused apps.
    pub apps: std::collections::BTreeSet<String>,
}

impl PauseState {
    /// Writes the state to a row, which keeps only what its phase and the states of its apps allow.
    pub fn apply_to(&self, row: &mut PodRow) {
        row.paused = self.pod && matches!(row.phase, Phase::Running { .. });
        for app in &mut row.apps {
            app.paused = app.state.is_running() && self.apps.contains(app.name.as_str());
        }
    }
}

impl Store {
    /// Records what of a running pod is paused, if its generation is still `seen`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn record_pauses(&self, id: PodId, seen: Generation, state: &PauseState) -> Result<Moved, StoreError> {
        const DOING: &str = "record that the pod is paused";
        self.write(DOING, Sync::Soon, |tx| {
            let before = match load(tx, id).map_err(StoreError::sql(DOING))? {
                Some(pod) if pod.generation == seen => pod,
                other => return Ok(Moved::Lost(other)),
            };
            let mut after = PodRow { generation: Generation(seen.0 + 1), ..before.clone() };
            state.apply_to(&mut after);
            write(tx, &after)
                .and_then(|()| events::append(self, tx, &of_changes(&before, &after, crate::now())))
                .map_err(StoreError::sql(DOING))?;
            Ok(Moved::Yes(Some(after)))
        })
    }
}

fn write(conn: &Connection, pod: &PodRow) -> rusqlite::Result<()> {
    let id = pod.id.to_string();
    conn.prepare_cached("UPDATE pod SET paused = ?2, generation = ?3 WHERE id = ?1")?.execute(params![
        id,
        pod.paused,
        pod.generation.0
    ])?;
    let mut update = conn.prepare_cached("UPDATE app SET paused = ?3 WHERE pod = ?1 AND name = ?2")?;
    pod.apps.iter().try_for_each(|app| update.execute(params![id, app.name.as_str(), app.paused]).map(drop))
}

/// The events of a change: those of the apps first, then that of the pod.
fn of_changes(before: &PodRow, after: &PodRow, now: Timestamp) -> Vec<NewEvent> {
    let id = after.id.to_string();
    let event = |kind, name: &str, data| NewEvent { kind, at: now, id: id.clone(), name: name.to_owned(), data };
    let changed = before.apps.iter().zip(&after.apps).filter(|(before, after)| before.paused != after.paused);
    let of_apps = changed.map(|(_, app)| {
        let kind = if app.paused { EventKind::AppPaused } else { EventKind::AppResumed };
        let mut data: BTreeMap<_, _> =
            app.image.iter().map(|image| ("image_id".to_owned(), image.to_string())).collect();
        if let AppState::Started { attempt, .. } = app.state {
            data.insert("attempt".to_owned(), attempt.to_string());
        }
        event(kind, app.name.as_str(), data)
    });
    let of_pod = (before.paused != after.paused).then(|| {
        let kind = if after.paused { EventKind::PodPaused } else { EventKind::PodResumed };
        events::pod_event(after, kind, now, BTreeMap::new())
    });
    of_apps.chain(of_pod).collect()
}
