//! Apps that are added to running pods. Their rows are removed, and their states changed, by [`Store::update_apps`].

use std::collections::BTreeSet;

use gantry_model::{AppName, ErrorKind, ImageId, Kind, Phase, PodId, VolumeName};
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use thiserror::Error;

use super::{NewApp, PodRow, Step, load, row};
use crate::db::Sync;
use crate::{Store, StoreError};

const DOING: &str = "add the app to the pod";

/// An app could not be added to a pod.
#[derive(Debug, Error)]
pub enum AddAppError {
    /// The pod does not run.
    #[error("pod {id} is {phase}: apps can be added only to a running pod")]
    NotRunning {
        /// The pod.
        id: PodId,
        /// Its phase, or `removed`.
        phase: &'static str,
    },
    /// The pod has an app of this name.
    #[error("pod {id} already has an app '{app}': choose another name, or remove that app first")]
    Exists {
        /// The pod.
        id: PodId,
        /// The app.
        app: AppName,
    },
    /// The image was removed in between, or never existed.
    #[error("image {image} of app '{app}' is not in the store: fetch it again")]
    NoSuchImage {
        /// The app.
        app: AppName,
        /// The image.
        image: ImageId,
    },
    /// A volume was removed in between, or never existed.
    #[error("there is no volume '{0}'")]
    NoSuchVolume(VolumeName),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for AddAppError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotRunning { .. } => ErrorKind::Refused,
            Self::Exists { .. } => ErrorKind::AlreadyExists,
            Self::NoSuchImage { .. } | Self::NoSuchVolume(_) => ErrorKind::NotFound,
            Self::Store(error) => error.kind(),
        }
    }
}

impl Step<'_> {
    /// Whether a change of apps alone is possible in this phase.
    pub(super) fn may_apply_in(&self, phase: &Phase) -> bool {
        match phase {
            Phase::Running { .. } => true,
            Phase::Exited { .. } | Phase::Garbage { deleting: None, .. } => self.apps.states.is_empty(),
            Phase::Embryo
            | Phase::Preparing
            | Phase::Prepared { .. }
            | Phase::Starting { .. }
            | Phase::AbortedPrepare { .. }
            | Phase::Garbage { .. } => false,
        }
    }
}

impl Store {
    /// The apps whose ids have this prefix, at most `limit`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn apps_with_id(&self, prefix: &str, limit: usize) -> Result<Vec<(PodId, AppName)>, StoreError> {
        const DOING: &str = "find the app";
        let find = |conn: &Connection| -> rusqlite::Result<Vec<(PodId, AppName)>> {
            let mut select = conn.prepare_cached(
                "SELECT pod, name FROM app WHERE app_id >= ?1 AND app_id < ?1 || 'g' ORDER BY app_id LIMIT ?2",
            )?;
            let read = |row: &Row<'_>| {
                let mut columns = row::Columns::new(row);
                Ok((columns.parsed()?, columns.parsed()?))
            };
            select.query_map(params![prefix, i64::try_from(limit).unwrap_or(i64::MAX)], read)?.collect()
        };
        self.read(DOING, |tx| find(tx).map_err(StoreError::sql(DOING)))
    }

    /// Sets an annotation of an app. Returns whether the pod has the app.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn annotate_app(&self, id: PodId, app: &AppName, key: &str, value: &str) -> Result<bool, StoreError> {
        const DOING: &str = "annotate the app";
        self.write(DOING, Sync::Soon, |tx| {
            let Some(pod) = load(tx, id).map_err(StoreError::sql(DOING))? else { return Ok(false) };
            let Some(row) = pod.apps.into_iter().find(|row| row.name == *app) else { return Ok(false) };
            let mut annotations = row.annotations;
            annotations.insert(key.to_owned(), value.to_owned());
            let id = id.to_string();
            let update =
                || -> rusqlite::Result<()> {
                    tx.prepare_cached("UPDATE pod SET generation = generation + 1 WHERE id = ?1")?.execute([&id])?;
                    tx.prepare_cached("UPDATE app SET annotations = ?3 WHERE pod = ?1 AND name = ?2")?
                        .execute(params![id, app.as_str(), row::map_text(&annotations)?])?;
                    Ok(())
                };
            update().map(|()| true).map_err(StoreError::sql(DOING))
        })
    }

    /// Sets an annotation of a pod. Returns whether there is the pod.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn annotate_pod(&self, id: PodId, key: &str, value: &str) -> Result<bool, StoreError> {
        const DOING: &str = "annotate the pod";
        self.write(DOING, Sync::Soon, |tx| {
            let Some(mut pod) = load(tx, id).map_err(StoreError::sql(DOING))? else { return Ok(false) };
            pod.user_annotations.insert(key.to_owned(), value.to_owned());
            tx.prepare_cached("UPDATE pod SET generation = generation + 1 WHERE id = ?1")
                .and_then(|mut update| update.execute([id.to_string()]))
                .and_then(|_| row::write_annotations(tx, &pod))
                .map_err(StoreError::sql(DOING))?;
            Ok(true)
        })
    }

    /// Inserts an app of a running pod in the state Creating. From now on its image and its volumes cannot be removed.
    /// Returns the pod's new row.
    ///
    /// # Errors
    /// [`AddAppError`].
    pub fn add_app(&self, id: PodId, app: &NewApp, volumes: &BTreeSet<VolumeName>) -> Result<PodRow, AddAppError> {
        self.write(DOING, Sync::Soon, |tx| {
            let sql = || StoreError::sql(DOING);
            let phase = match load(tx, id).map_err(sql())? {
                Some(PodRow { phase: Phase::Running { .. }, apps, .. }) => {
                    if apps.iter().any(|known| known.name == app.name) {
                        return Err(AddAppError::Exists { id, app: app.name.clone() });
                    }
                    None
                }
                Some(pod) => Some(pod.phase.name().as_str()),
                None => Some("removed"),
            };
            if let Some(phase) = phase {
                return Err(AddAppError::NotRunning { id, phase });
            }
            if let Some(image) = insert(tx, id, app, self.now().0).map_err(sql())? {
                return Err(AddAppError::NoSuchImage { app: app.name.clone(), image });
            }
            if let Some(image) = row::refer_to_images(tx, &id.to_string(), app).map_err(sql())? {
                return Err(AddAppError::NoSuchImage { app: app.name.clone(), image });
            }
            if let Some(missing) = row::refer_to_volumes(tx, &id.to_string(), Some(&app.name), volumes).map_err(sql())?
            {
                return Err(AddAppError::NoSuchVolume(missing));
            }
            load(tx, id).map_err(sql())?.ok_or(AddAppError::NotRunning { id, phase: "removed" })
        })
    }
}

/// Inserts the row behind those of the pod's other apps, as a change of the pod. Returns its image if the store lacks
/// it.
fn insert(tx: &Transaction<'_>, id: PodId, app: &NewApp, now: i64) -> rusqlite::Result<Option<ImageId>> {
    let id = id.to_string();
    tx.prepare_cached("UPDATE pod SET generation = generation + 1 WHERE id = ?1")?.execute([&id])?;
    let position = tx
        .prepare_cached("SELECT position + 1 FROM app WHERE pod = ?1 ORDER BY position DESC LIMIT 1")?
        .query_row([&id], |row| row.get(0))
        .optional()?
        .unwrap_or(0);
    row::insert_app(tx, &id, position, app, Some(now))
}
