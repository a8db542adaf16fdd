//! Removes apps of a pod that has ended: it has no supervisor that could do so.
//!
//! # What a kill leaves behind
//!
//! The files go first, and the row, by which the app is found again, last. Both locks are held, so that no process
//! starts the pod meanwhile.
//!
//! | killed after | found | becomes |
//! |---|---|---|
//! | the files, or some of them | Created or Exited, without files | the same; the next removal goes on |
//! | the record (`added.json`), the limits | the same | the same |
//! | the row | no app | |

use gantry_contract::files;
use gantry_model::{AppName, ErrorKind, FormerPhase, Phase, PodId};
use gantry_store::{AppChanges, Moved, PodRow};

use crate::pods::added::AddedApps;
use crate::pods::apps::need_image;
use crate::pods::pod_dir;
use crate::pods::storage_limit;
use crate::{Engine, EngineError, PodError};

/// Whether the pod has ended and is not being removed.
pub(crate) fn has_ended(phase: &Phase) -> bool {
    match phase {
        Phase::Exited { .. } | Phase::Garbage { was: FormerPhase::Exited { .. }, deleting: None, .. } => true,
        Phase::Embryo
        | Phase::Preparing
        | Phase::Prepared { .. }
        | Phase::Running { .. }
        | Phase::Starting { .. }
        | Phase::AbortedPrepare { .. }
        | Phase::Garbage { .. } => false,
    }
}

impl Engine {
    /// Removes an app of a pod that has ended, with its writable layer and its logs.
    ///
    /// # Errors
    /// [`EngineError`]: there is no such app; the pod was started again.
    pub(crate) fn remove_ended_app(&self, id: PodId, app: &AppName) -> Result<(), EngineError> {
        let apps_lock = self.lock_apps_or_fail(id)?;
        let lock = self.lock_pod(id).map_err(EngineError::from_cause)?;
        let lock = lock.ok_or_else(|| {
            let why = format!("pod {id} is being started or removed by another process: try again later");
            EngineError::new(ErrorKind::Busy, why)
        })?;
        let row = self.row_under_lock(id).map_err(EngineError::from_cause)?;
        check(&row, app)?;
        let added = self.added_apps(id).map_err(EngineError::from_cause)?;
        storage_limit::release(&self.pod_dir(id), Some(app)).map_err(EngineError::from_cause)?;
        let volumes = own_volumes(&added, app).map(|volume| (files::VOLUMES, volume));
        let name = app.to_string();
        for (dir, name) in [(files::APPS, name.clone()), (files::LOGS, name)].into_iter().chain(volumes) {
            let deleted = self.store.delete_in_pod_dir(&lock, dir, &name);
            deleted.map_err(|error| EngineError::from_cause(PodError::store(error)))?;
        }
        self.forget_added_app(id, app.as_str(), &apps_lock).map_err(EngineError::from_cause)?;
        self.forget_updated_limits(id, app).map_err(EngineError::from_cause)?;
        self.delete_ended_row(id, app).map_err(EngineError::from_cause)
    }

    fn delete_ended_row(&self, id: PodId, app: &AppName) -> Result<(), PodError> {
        loop {
            let row = self.row_under_lock(id)?;
            if row.apps.iter().all(|known| known.name != *app) {
                return Ok(());
            }
            match self.store.update_apps(id, row.generation, &[AppChanges::removal_of(app)]).map_err(PodError::store)? {
                Moved::Yes(_) => return Ok(()),
                // Another process annotated the pod, or marked it as garbage.
                Moved::Lost(_) => {}
            }
        }
    }

    /// Drops the limits of an app from the record, so that another app of the name does not get them.
    fn forget_updated_limits(&self, id: PodId, app: &AppName) -> Result<(), PodError> {
        let mut limits = self.updated_limits(id)?;
        if limits.apps.remove(app.as_str()).is_none() {
            return Ok(());
        }
        pod_dir::replace_durably(&self.pod_dir(id), files::LIMITS, pod_dir::NEW_LIMITS, &limits)
    }
}

fn check(row: &PodRow, app: &AppName) -> Result<(), EngineError> {
    let id = row.id;
    if !has_ended(&row.phase) {
        let why = format!("pod {id} was started again, or is being removed by another process");
        return Err(EngineError::new(ErrorKind::Busy, why));
    }
    match row.apps.iter().find(|known| known.name == *app) {
        Some(found) => need_image(id, found),
        None => Err(EngineError::new(ErrorKind::NotFound, format!("pod {id} has no app '{app}'"))),
    }
}

/// The directories in the pod directory of the volumes that an app brought along.
fn own_volumes(added: &AddedApps, app: &AppName) -> impl Iterator<Item = String> {
    let of_app = added.apps.iter().filter(move |added| added.app.name == app.as_str());
    let volumes = of_app.flat_map(|added| &added.volumes).filter(|volume| volume.kind.created_with().is_some());
    volumes.map(|volume| volume.name.to_string()).collect::<Vec<_>>().into_iter()
}
