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

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use gantry_contract::plan::{App, Plan};
use gantry_contract::{files, journal};
use gantry_fetch::manifest::{self as image_manifest, Parsed};
use gantry_fetch::source::{MAX_DOCUMENT, digest_of};
use gantry_model::error::chain;
use gantry_model::id::Algorithm;
use gantry_model::query::PodQuery;
use gantry_model::spec::{HOST_IMAGE_NAME, PodFlavor, VolumeKind, VolumeSpec};
use gantry_model::systemd::SdNotify;
use gantry_model::{
    AppName, Digest, Edge, ErrorKind, ImageId, Kind as _, NetMode, Phase, PodId, PodSpec, RequestedImage, Timestamp,
    VolumeName,
};
use gantry_store::{
    AddAppError, Change, CommitImageError, ImageRow, LayerRef, LayerRow, Layout, NewApp, NewImage, NewPod, PodRow,
    PodSchedule, PodState, Store,
};

use crate::images::view::recorded_name;
use crate::pods::added::AddedApp;
use crate::pods::app_history::AppHistories;
use crate::pods::image_volumes;
use crate::pods::plan_net;
use crate::pods::pod_dir;
use crate::pods::transition::ready_record;
use crate::schedules::SCHEDULE_LABEL;
use crate::{Engine, PodError, manifest};

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

/// The images of the store by the names of their layers' directories, topmost first, as in plans.
pub(crate) struct Images(HashMap<Vec<String>, Vec<ImageRow>>);

impl Images {
    pub(crate) fn read(store: &Store) -> Result<Self, PodError> {
        let mut by_layers: HashMap<Vec<String>, Vec<ImageRow>> = HashMap::new();
        for image in store.images().map_err(PodError::store)? {
            let layers = image.layers.iter().rev().map(|layer| Layout::tree_name(&layer.chain)).collect();
            by_layers.entry(layers).or_default().push(image);
        }
        Ok(Self(by_layers))
    }

    /// The image with these layers; of several, the one with this name, else the newest.
    fn find(&self, layers: &[String], called: Option<&str>) -> Option<&ImageRow> {
        let all = self.0.get(layers)?;
        let is_called = |image: &&ImageRow| {
            let id = image.id.to_string();
            called.is_some_and(|called| called == id || image.names.iter().any(|name| name.ends_with(called)))
        };
        all.iter().find(is_called).or_else(|| all.last())
    }
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
        let rows = self.store.pods(&PodQuery::default()).map_err(PodError::store)?;
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

    fn forget_images(&self) -> Result<Vec<ImageId>, PodError> {
        let mut gone = Vec::new();
        for image in self.store.images().map_err(PodError::store)? {
            if self.store.has_files_of(&image).map_err(PodError::store)? {
                continue;
            }
            match self.store.remove_image(&image.id) {
                Ok(_) => gone.push(image.id),
                // Damaged, not removed: `doctor` reports it.
                Err(gantry_store::RemoveImageError::InUse { .. }) => {}
                Err(error) => return Err(PodError::store(error)),
            }
        }
        self.store.forget_lost_layers().map_err(PodError::store)?;
        Ok(gone)
    }

    /// Adopts images of which the manifest, the configuration and all layers are on the disk.
    pub(crate) fn adopt_images(&self) -> Result<Vec<ImageId>, PodError> {
        let mut adopted = Vec::new();
        for id in self.store.unknown_blobs().map_err(PodError::store)? {
            let Some((image, layers)) = self.read_image(&id)? else { continue };
            let at = modified(&self.store.layout().blob(&id)).unwrap_or_else(gantry_store::now);
            self.store.adopt_layers(&layers).map_err(PodError::store)?;
            match self.store.commit_image(&image, at) {
                Ok(_) => adopted.push(id),
                // Collected in the meantime by a command that had the damaged database open.
                Err(CommitImageError::NoSuchLayer { .. } | CommitImageError::NoSuchBlob { .. }) => {}
                Err(error) => return Err(PodError::store(error)),
            }
        }
        Ok(adopted)
    }

    /// The image of which this blob is the manifest, if it is one and the image is complete on the disk.
    fn read_image(&self, id: &Digest) -> Result<Option<(NewImage, Vec<LayerRow>)>, PodError> {
        let Some(bytes) = self.document(id)? else { return Ok(None) };
        let Ok(Parsed::Manifest(manifest)) = image_manifest::parse("", &bytes) else { return Ok(None) };
        let Some(config_bytes) = self.document(&manifest.config.digest)? else { return Ok(None) };
        let Ok(config) = gantry_fetch::config::parse(&config_bytes) else { return Ok(None) };
        if config.diff_ids.len() != manifest.layers.len() {
            return Ok(None);
        }
        let (mut layers, mut rows) = (Vec::new(), Vec::<LayerRow>::new());
        for (blob, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            let parent = rows.last().map(|row| row.chain.clone());
            // OCI image specification, config.md, "Layer ChainID".
            let chain = match &parent {
                Some(parent) => digest_of(Algorithm::Sha256, format!("{parent} {diff_id}").as_bytes()),
                None => diff_id.clone(),
            };
            if !self.store.layout().tree_dir(&chain).is_dir() {
                return Ok(None);
            }
            layers.push(LayerRef { chain: chain.clone(), diff_id: diff_id.clone(), blob: blob.digest.clone() });
            // Size and number of entries were recorded only in the lost row.
            rows.push(LayerRow { chain, diff_id: diff_id.clone(), parent, size: 0, entries: 0 });
        }
        let compressed = manifest.layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        let size = compressed.saturating_add((bytes.len() + config_bytes.len()) as u64);
        let config = manifest.config.digest.clone();
        Ok(Some((NewImage { id: id.clone(), config, format: manifest.format, layers, size, names: Vec::new() }, rows)))
    }

    /// A blob that matches its digest.
    fn document(&self, digest: &Digest) -> Result<Option<Vec<u8>>, PodError> {
        match self.store.blob(digest, MAX_DOCUMENT) {
            Ok(bytes) => Ok(bytes),
            Err(gantry_store::BlobError::Store(error)) => Err(PodError::store(error)),
            Err(gantry_store::BlobError::Damaged { .. } | gantry_store::BlobError::TooLarge { .. }) => Ok(None),
            Err(error) => Err(PodError::store(error)),
        }
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
        let rows = self.store.pods(&PodQuery::default()).map_err(PodError::store)?;
        let known: HashSet<PodId> = rows.iter().map(|row| row.id).collect();
        let mut ids = self.store.pod_dirs().map_err(PodError::store)?;
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
        let row = self.store.pod(id).map_err(PodError::store)?;
        let unfinished = |row: &PodRow| matches!(row.phase, Phase::Embryo | Phase::Preparing);
        if row.as_ref().is_some_and(|row| !unfinished(row)) {
            return Ok(Adoption::NotNeeded);
        }
        let mut state = self.store.try_lock_pod(id).map_err(PodError::store)?;
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

    /// Writes the row of a pod, as one of its schedule if that would create the same pod.
    fn insert_adopted(&self, pod: NewPod) -> Result<PodRow, PodError> {
        let schedule = self.schedule_of(&pod)?;
        self.store.insert_pod(&NewPod { schedule, ..pod }).map_err(PodError::store)
    }

    /// The schedule that the label of a pod names, if the pod has the content of its present revision. Any user can set
    /// the label; a pod of other content is not the schedule's to stop and to remove.
    fn schedule_of(&self, pod: &NewPod) -> Result<Option<PodSchedule>, PodError> {
        let Some(name) = pod.user_labels.get(SCHEDULE_LABEL).and_then(|name| name.parse().ok()) else {
            return Ok(None);
        };
        let Some(row) = self.store.schedule(&name).map_err(PodError::store)? else { return Ok(None) };
        let (Ok(spec), Ok(scheduled)) = (manifest_of(self, pod.id), manifest::parse_ours(row.manifest.as_bytes()))
        else {
            return Ok(None);
        };
        let is_same = without_defaults(spec, &scheduled) == scheduled;
        Ok(is_same.then_some(PodSchedule::Lost { name, revision: row.revision }))
    }

    /// Writes the row of an app that was added to a running pod, and whose row was lost with the database. Without its
    /// image the app stays without a row until the image is here again.
    pub(crate) fn adopt_added_app(&self, id: PodId, added: &AddedApp) -> Result<(), PodError> {
        let images = Images::read(&self.store)?;
        let Ok(name) = added.app.name.parse() else { return Ok(()) };
        let requested = added.manifest.get("image").and_then(serde_json::Value::as_str);
        let Some(image) = images.find(&added.app.layers, requested) else { return Ok(()) };
        let map = |field: &str| {
            let map = added.manifest.get(field).cloned().map(serde_json::from_value);
            map.and_then(Result::ok).unwrap_or_default()
        };
        let app = NewApp {
            name,
            id: added.app.id.clone(),
            image: Some(image.id.clone()),
            image_name: recorded_name(requested, image),
            annotations: map("annotations"),
            labels: map("labels"),
            notifies: added.app.options.sdnotify == SdNotify::App,
            restart: added.app.options.restart,
            log_path: added.app.options.log_path.clone(),
            volume_images: image_volumes::images(&added.app.mounts, &added.volumes),
        };
        let volumes = self.existing_volumes(&added.volumes)?;
        match self.store.add_app(id, &app, &volumes) {
            // Another process was faster, or the pod has ended.
            Ok(_) | Err(AddAppError::Exists { .. } | AddAppError::NotRunning { .. }) => Ok(()),
            // Removed since.
            Err(AddAppError::NoSuchImage { .. } | AddAppError::NoSuchVolume(_)) => Ok(()),
            Err(AddAppError::Store(error)) => Err(PodError::from(error)),
        }
    }

    fn give_up(&self, id: PodId, lock: Option<gantry_store::PodLock>, why: String) -> Result<Adoption, PodError> {
        let Some(lock) = lock else { return Ok(Adoption::Locked(why)) };
        self.remove_leftovers(id, &self.recorded_cgroup(id));
        self.store.move_to_lost(lock, id).map_err(PodError::store)?;
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

    /// The row of a pod, from the files in its directory.
    fn pod_of(&self, id: PodId, images: &Images) -> Result<NewPod, NotAdoptable> {
        let spec = manifest_of(self, id);
        let plan = match self.plan(id) {
            Ok(plan) => plan,
            Err(_) if matches!(spec, Err(NotAdoptable::Incomplete)) => return Err(NotAdoptable::Incomplete),
            Err(error) => return Err(NotAdoptable::Damaged(chain(&error))),
        };
        let ran = self.pod_dir(id).join(files::JOURNAL).exists();
        let added = self.added_apps(id).unwrap_or_default();
        let spec = match spec {
            Ok(mut spec) => {
                // These were removed before others of their names were added.
                spec.apps.retain(|requested| added.apps.iter().all(|added| added.app.name != requested.name.as_str()));
                Some(spec)
            }
            // For a pod that has run, plan and journal suffice; one that has not needs its manifest.
            Err(_) if ran => None,
            Err(why) => return Err(why),
        };
        let existing = match self.journal(id) {
            Ok(journal) if ran => existing_apps(&journal),
            _ => None,
        };
        let exists =
            |app: &App| existing.as_ref().is_none_or(|existing| existing.iter().any(|name| name.as_str() == app.name));
        let plan = added.onto(plan, exists);
        let apps = apps(&plan, spec.as_ref(), images)?;
        let volumes = self.existing_volumes(&plan.volumes).map_err(|error| NotAdoptable::Damaged(chain(&error)))?;
        let created = [pod_dir::MANIFEST, files::PLAN].iter().find_map(|name| modified(&self.pod_dir(id).join(name)));
        Ok(NewPod {
            id,
            created: created.unwrap_or_else(gantry_store::now),
            net: net_of(&plan)?,
            cgroup: plan.pod_cgroup(),
            log_dir: plan.log_dir,
            hostname: plan.hostname,
            name: None,
            namespace: plan.namespace,
            sandbox: plan.sandbox,
            apps,
            user_annotations: spec.as_ref().map(|spec| spec.user_annotations.clone()).unwrap_or_default(),
            user_labels: spec.map(|spec| spec.user_labels).unwrap_or_default(),
            volumes,
            schedule: None,
        })
    }

    /// The named volumes among these that exist. Starting a pod without one of its volumes fails.
    fn existing_volumes(&self, volumes: &[VolumeSpec]) -> Result<BTreeSet<VolumeName>, PodError> {
        let mut existing = BTreeSet::new();
        for volume in volumes {
            let VolumeKind::Named { volume } = &volume.kind else { continue };
            if self.store.volume(volume)?.is_some() {
                existing.insert(volume.clone());
            }
        }
        Ok(existing)
    }
}

/// Why no row can be written for a pod directory.
#[derive(Debug, thiserror::Error)]
enum NotAdoptable {
    /// It was never complete.
    #[error("it has no manifest: it was never complete")]
    Incomplete,
    /// A file is damaged.
    #[error("{0}")]
    Damaged(String),
    /// No image in the store has these layers.
    #[error("no image here has the layers of its app '{0}'")]
    UnknownImage(String),
}

fn manifest_of(engine: &Engine, id: PodId) -> Result<PodSpec, NotAdoptable> {
    match pod_dir::read(&engine.pod_dir(id).join(pod_dir::MANIFEST), manifest::MAX_STORED_MANIFEST) {
        Ok(bytes) => manifest::parse_ours(&bytes)
            .map_err(|error| NotAdoptable::Damaged(format!("its manifest: {}", chain(&error)))),
        Err(error) if ErrorKind::of_io(&error) == ErrorKind::NotFound => Err(NotAdoptable::Incomplete),
        Err(error) => Err(NotAdoptable::Damaged(format!("its manifest: {}", chain(&error)))),
    }
}

/// The specification of a pod without what its creation has filled in, if it was created with `requested`.
fn without_defaults(mut spec: PodSpec, requested: &PodSpec) -> PodSpec {
    if requested.net.is_none() || requested.flavor == PodFlavor::Host {
        spec.net.clone_from(&requested.net);
    }
    for (app, requested) in spec.apps.iter_mut().zip(&requested.apps) {
        if requested.id.is_none() {
            app.id = None;
        }
    }
    spec
}

/// The names of the apps that were created and not removed; `None`: the supervisor was not ready.
fn existing_apps(journal: &journal::Parsed) -> Option<HashSet<AppName>> {
    ready_record(journal).map(|_| AppHistories::from_journal(journal).names().collect())
}

fn apps(plan: &Plan, spec: Option<&PodSpec>, images: &Images) -> Result<Vec<NewApp>, NotAdoptable> {
    let app = |app: &App| {
        let name =
            app.name.parse().map_err(|_| NotAdoptable::Damaged(format!("its plan names an app '{}'", app.name)))?;
        let requested_app = spec.and_then(|spec| spec.apps.iter().find(|app| app.name == name));
        let annotations = requested_app.map(|app| app.user_annotations.clone()).unwrap_or_default();
        let labels = requested_app.map(|app| app.user_labels.clone()).unwrap_or_default();
        let requested = requested_app.and_then(|app| app.image.as_ref()).map(RequestedImage::as_str);
        let (image, image_name) = match plan.flavor {
            PodFlavor::Host => (None, HOST_IMAGE_NAME.to_owned()),
            PodFlavor::Container => {
                let image =
                    images.find(&app.layers, requested).ok_or_else(|| NotAdoptable::UnknownImage(app.name.clone()))?;
                (Some(image.id.clone()), recorded_name(requested, image))
            }
        };
        Ok(NewApp {
            name,
            id: app.id.clone(),
            image,
            image_name,
            annotations,
            labels,
            notifies: app.options.sdnotify == SdNotify::App,
            restart: app.options.restart,
            log_path: app.options.log_path.clone(),
            volume_images: image_volumes::images(&app.mounts, &plan.volumes),
        })
    };
    plan.apps.iter().map(app).collect()
}

/// The networks of a plan, if a row can keep them.
fn net_of(plan: &Plan) -> Result<NetMode, NotAdoptable> {
    let net = plan_net::mode(&plan.net).to_string().parse();
    net.map_err(|error| NotAdoptable::Damaged(format!("the networks in its plan: {error}")))
}

fn modified(path: &Path) -> Option<Timestamp> {
    let time = std::fs::symlink_metadata(path).and_then(|found| found.modified()).ok()?;
    (time >= std::time::UNIX_EPOCH).then(|| time.into())
}
