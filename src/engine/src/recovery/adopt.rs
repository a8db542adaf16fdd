//! Re-imports pods, images and volumes from the disk after the database was replaced by an older or an empty one.
//! Idempotent.
//!
//! | found | becomes |
//! |---|---|
//! | a row of a pod whose directory is gone | nothing: it was removed since |
//! | an image whose layers or documents are gone, without pods | nothing: it was removed since |
//! | a manifest, its configuration and all its layers, without a row | an image without a name |
//! | a pod directory, locked, its journal says ready | a pod that is running |
//! | a pod directory, unlocked, its journal says ready | a pod that has exited, as its journal says |
//! | a pod directory, unlocked, with plan and manifest | a prepared pod |
//! | the same, and its row says that it is being prepared | a prepared pod: the backup was made in the middle |
//! | a pod directory without a manifest that never ran | left to `gc`: its preparer was killed before it was a pod |
//! | a pod directory, unlocked, of which no pod can be made | moved to `lost-pods/` |
//! | the same, locked | left alone: it runs. `doctor` reports it |
//! | an app that was added to a running pod, without a row | a row, when the pod is reconciled ([`crate::pods::apps`]) |
//!
//! The plan of a pod decides: it names the layers, and layers without an image would be collected. The manifest adds
//! user annotations and labels; a pod with the label and the content of a schedule belongs to it again. An existing row
//! is right, and `reconcile` corrects it as usual.

use std::collections::HashSet;

use gantry_contract::journal;
use gantry_model::error::chain;
use gantry_model::query::PodQuery;
use gantry_model::{Edge, ErrorKind, ImageId, Kind as _, Phase, PodId};
use gantry_store::{Change, PodRow, PodState};

use crate::pods::pod_dir;
use crate::pods::transition::ready_record;
use crate::recovery::images::Images;
use crate::recovery::rows::{NotAdoptable, manifest_of};
use crate::{Engine, PodError};

/// The objects that were re-imported from the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Pods that have rows again.
    pub pods: Vec<PodId>,
    /// Pods whose rows were deleted, because their directories are gone.
    pub gone: Vec<PodId>,
    /// Images that have rows again, and no names.
    pub images: Vec<ImageId>,
    /// Images whose rows were deleted, because their files are gone.
    pub images_gone: Vec<ImageId>,
    /// Pod directories that were moved to `lost-pods/`, and why.
    pub lost: Vec<(PodId, String)>,
    /// Pod directories that another process has locked, and why they have no row.
    pub locked: Vec<(PodId, String)>,
    /// Pod directories that could not be imported now, and the error with its causes.
    pub failed: Vec<(PodId, String)>,
}

impl Adopted {
    /// Merges two results. The later one has tried the pods again that were locked or failed.
    pub(crate) fn and(mut self, later: Self) -> Self {
        let Self { pods, gone, images, images_gone, lost, locked, failed } = later;
        self.pods.extend(pods);
        self.gone.extend(gone);
        self.images.extend(images);
        self.images_gone.extend(images_gone);
        self.lost.extend(lost);
        Self { locked, failed, ..self }
    }

    /// One line each, as shown to users.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for (what, ids) in [
            ("imported again from its directory: pod", &self.pods),
            ("row deleted, because its directory is gone: pod", &self.gone),
        ] {
            lines.extend(ids.iter().map(|id| format!("{what} {id}")));
        }
        for (what, ids) in [
            ("imported again from its files, without a name: image", &self.images),
            ("row deleted, because its files are gone: image", &self.images_gone),
        ] {
            lines.extend(ids.iter().map(|id| format!("{what} {id}")));
        }
        let lost =
            |(id, why): &(PodId, String)| format!("moved to lost-pods, because it cannot be imported: {id}: {why}");
        lines.extend(self.lost.iter().map(lost));
        let locked =
            |(id, why): &(PodId, String)| format!("pod {id} is locked by another process and has no row: {why}");
        lines.extend(self.locked.iter().map(locked));
        let failed = |(id, why): &(PodId, String)| {
            format!("cannot import pod {id} from its directory: {why}; the next start of gantryd tries again")
        };
        lines.extend(self.failed.iter().map(failed));
        lines
    }
}

/// The outcome of adopting one directory.
pub(crate) enum Adoption {
    /// A pod with a new row.
    Pod,
    /// The pod has its row, or the directory never was a pod.
    NotNeeded,
    /// The directory was moved to `lost-pods/`, for this reason.
    Lost(String),
    /// Another process holds the pod's lock, and no row can be written, for this reason.
    Locked(String),
}

impl Engine {
    /// Reconciles a database that was just replaced with the disk.
    pub(crate) fn adopt_all(&self) -> Result<Adopted, PodError> {
        self.store.adopt_volumes()?;
        // Rows of removed pods go first, since they protect images; images are adopted before the pods that need them.
        let gone = self.forget_pods(|_| true)?;
        let images_gone = self.forget_images()?;
        let images = self.adopt_images()?;
        Ok(Adopted { gone, images, images_gone, ..self.adopt_pods(&self.store.pod_dirs()?)? })
    }

    /// Once in each boot: removes the rows of objects that an earlier boot removed from the disk, if a power cut undid
    /// the removal of the rows. Pods in preparation are left alone: their rows come before their directories.
    pub(crate) fn finish_cut_removals(&self) -> Result<(), PodError> {
        if !self.store.needs_recovery()? || !self.store.layout().pods_dir().is_dir() {
            return Ok(());
        }
        self.forget_pods(|phase| !matches!(phase, Phase::Embryo | Phase::Preparing))?;
        self.store.forget_lost_layers()?;
        Ok(self.store.note_recovery()?)
    }

    /// Removes the rows of pods whose directories are gone, if `due`.
    fn forget_pods(&self, due: impl Fn(&Phase) -> bool) -> Result<Vec<PodId>, PodError> {
        let mut gone = Vec::new();
        let rows = self.store.pods(&PodQuery::default())?;
        for row in rows.into_iter().filter(|row| due(&row.phase)) {
            // Only if the directory certainly does not exist: a failing disk proves nothing.
            let dir = self.pod_dir(row.id);
            match std::fs::symlink_metadata(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(PodError::io("look at", dir)(error)),
                Ok(_) => continue,
            }
            match self.dispose(row.id) {
                Ok(()) => gone.push(row.id),
                // The cgroup cannot be removed now, or another process is deleting the directory: `gc` tries again.
                Err(crate::RmError::Cgroup { .. } | crate::RmError::Busy(_)) => {}
                Err(crate::RmError::Pod(error)) => return Err(error),
                Err(error) => return Err(PodError::store(error)),
            }
        }
        Ok(gone)
    }

    /// Adopts pods that a database in use does not have; images too if there are such pods, or if the database was just
    /// `restored`: commands that had the damaged one open may have made some until it was replaced. Failures do not
    /// keep gantryd from starting: they are reported for each pod, and the next start tries again.
    pub(crate) fn adopt_late(&self, restored: bool) -> Adopted {
        // A directory that cannot be listed is reported by the next operation that needs it.
        let ids = self.lost_rows().unwrap_or_default();
        if ids.is_empty() && !restored {
            return Adopted::default();
        }
        // A pod without its image would be given up. So if images cannot be adopted, the pods wait.
        let adopted = self.store.settle_volumes().map_err(PodError::from).and_then(|()| self.adopt_images());
        let adopted = adopted.and_then(|images| Ok(Adopted { images, ..self.adopt_pods(&ids)? }));
        adopted.unwrap_or_else(|error| {
            let failed = ids.into_iter().map(|id| (id, chain(&error))).collect();
            Adopted { failed, ..Adopted::default() }
        })
    }

    /// Pod directories whose rows were lost.
    fn lost_rows(&self) -> Result<Vec<PodId>, PodError> {
        let rows = self.store.pods(&PodQuery::default())?;
        let known: HashSet<PodId> = rows.iter().map(|row| row.id).collect();
        let mut ids = self.store.pod_dirs()?;
        ids.retain(|id| !known.contains(id) && self.was_pod(*id));
        Ok(ids)
    }

    /// Whether this directory had a row: it is written before the manifest and before a supervisor starts. Files that
    /// cannot be read count.
    pub(crate) fn was_pod(&self, id: PodId) -> bool {
        let manifest = std::fs::symlink_metadata(self.pod_dir(id).join(pod_dir::MANIFEST));
        let absent = manifest.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        !absent || self.journal(id).map_or(true, |journal| ready_record(&journal).is_some())
    }

    /// Adopts these pod directories.
    pub(crate) fn adopt_pods(&self, ids: &[PodId]) -> Result<Adopted, PodError> {
        let images = Images::read(&self.store)?;
        let mut adopted = Adopted::default();
        for &id in ids {
            match self.adopt_pod(id, &images) {
                Ok(Adoption::Pod) => adopted.pods.push(id),
                Ok(Adoption::NotNeeded) => {}
                Ok(Adoption::Lost(why)) => adopted.lost.push((id, why)),
                Ok(Adoption::Locked(why)) => adopted.locked.push((id, why)),
                // A failure of the whole database, not of this pod.
                Err(error) if matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::Busy | ErrorKind::Damaged) => {
                    return Err(error);
                }
                Err(error) => adopted.failed.push((id, chain(&error))),
            }
        }
        Ok(adopted)
    }

    /// Adopts one pod directory, as in the table in the module's head.
    pub(crate) fn adopt_pod(&self, id: PodId, images: &Images) -> Result<Adoption, PodError> {
        let row = self.store.pod(id)?;
        let unfinished = |row: &PodRow| matches!(row.phase, Phase::Embryo | Phase::Preparing);
        if row.as_ref().is_some_and(|row| !unfinished(row)) {
            return Ok(Adoption::NotNeeded);
        }
        let mut state = self.store.try_lock_pod(id)?;
        let journal = self.journal(id);
        let ready = journal.as_ref().is_ok_and(|journal| ready_record(journal).is_some());
        if matches!(state, PodState::Held) && !ready {
            // Perhaps by a prober.
            state = self.lock_in_time(id)?;
        }
        let lock = match state {
            PodState::Absent => return Ok(Adoption::NotNeeded),
            PodState::Free(lock) => Some(lock),
            PodState::Held => None,
        };
        let journal = match journal {
            Ok(journal) => journal,
            // Without its journal the pod's history is unknown.
            Err(error) => return self.give_up(id, lock, chain(&error)),
        };
        match (row, lock) {
            (Some(_), _) if ready => Ok(Adoption::NotNeeded),
            (Some(_), None) => Ok(Adoption::NotNeeded),
            // Its creator has the replaced database open, will fail and undo it.
            (None, None) if !ready => Ok(Adoption::Locked("it is being started".to_owned())),
            (Some(row), Some(lock)) => {
                if manifest_of(self, id).is_ok() && self.plan(id).is_ok() {
                    self.to_prepared(row)?;
                }
                drop(lock);
                Ok(Adoption::NotNeeded)
            }
            (None, None) => self.adopt_running(id, &journal, images),
            (None, Some(lock)) => match self.pod_of(id, images) {
                Ok(pod) => {
                    let row = self.insert_adopted(pod)?;
                    if ready {
                        // This process holds the lock: a probe would find it held.
                        self.reconcile_with(row, false, &journal)?;
                    } else {
                        self.to_prepared(row)?;
                    }
                    drop(lock);
                    Ok(Adoption::Pod)
                }
                Err(NotAdoptable::Incomplete) if !ready => Ok(Adoption::NotNeeded),
                Err(why) => self.give_up(id, Some(lock), why.to_string()),
            },
        }
    }

    fn adopt_running(&self, id: PodId, journal: &journal::Parsed, images: &Images) -> Result<Adoption, PodError> {
        match self.pod_of(id, images) {
            Ok(pod) => {
                let row = self.insert_adopted(pod)?;
                self.reconcile_with(row, true, journal)?;
                Ok(Adoption::Pod)
            }
            Err(why) => Ok(Adoption::Locked(why.to_string())),
        }
    }

    fn give_up(&self, id: PodId, lock: Option<gantry_store::PodLock>, why: String) -> Result<Adoption, PodError> {
        let Some(lock) = lock else { return Ok(Adoption::Locked(why)) };
        self.remove_leftovers(id, &self.recorded_cgroup(id));
        self.store.move_to_lost(lock, id)?;
        Ok(Adoption::Lost(why))
    }

    /// Moves the row of a pod that is complete on disk to Prepared. The caller holds its lock.
    fn to_prepared(&self, mut row: PodRow) -> Result<(), PodError> {
        if matches!(row.phase, Phase::Embryo) {
            let change = Change::along(Edge::Prepare);
            match self.step(&row, change)? {
                Some(next) => row = next,
                None => return Ok(()),
            }
        }
        let edge = Edge::Prepared(row.created);
        self.step(&row, Change::along(edge)).map(drop)
    }
}
