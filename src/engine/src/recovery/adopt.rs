//! Making rows from what lies on the disk, after the database was replaced by an older one or an empty one.
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
//! | the same, locked | left alone: it runs. `doctor` tells of it |
//!
//! A pod is what its plan says, for the plan names its layers, and layers without an image would be swept; its
//! manifest adds what only people asked for. When a row is there, the row is right, and `reconcile` brings it up to
//! the facts as always. Doing it twice changes nothing.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::Path;

use gantry_contract::plan::{Plan, VolumeKind};
use gantry_contract::{files, journal};
use gantry_fetch::manifest::{self as image_manifest, Parsed};
use gantry_fetch::source::{MAX_DOCUMENT, digest_of};
use gantry_model::id::Algorithm;
use gantry_model::query::PodQuery;
use gantry_model::{
    Digest, Edge, ErrorKind, ImageId, Kind as _, NetMode, Phase, PodId, PodSpec, Timestamp, VolumeName,
};
use gantry_store::{
    Change, CommitImageError, ImageRow, LayerRef, LayerRow, Layout, NewApp, NewImage, NewPod, PodRow, PodState, Store,
};

use crate::images::view::recorded_name;
use crate::pods::plan_net;
use crate::pods::pod_dir;
use crate::pods::transition::ready_record;
use crate::{Engine, PodError, manifest};

/// What was found on the disk and is on record again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Adopted {
    /// Pods that have rows again.
    pub pods: Vec<PodId>,
    /// Pods whose rows went, because their directories are gone.
    pub gone: Vec<PodId>,
    /// Images that have rows again, and no names.
    pub images: Vec<ImageId>,
    /// Images whose rows went, because their files are gone.
    pub images_gone: Vec<ImageId>,
    /// Pod directories that were moved to `lost-pods/`, and why.
    pub lost: Vec<(PodId, String)>,
    /// Pod directories that are locked, and have no row for this reason.
    pub stay: Vec<(PodId, String)>,
}

impl Adopted {
    /// Both together; of pods that were looked at twice, the later look counts.
    pub(crate) fn and(mut self, later: Self) -> Self {
        self.pods.extend(later.pods);
        self.gone.extend(later.gone);
        self.images.extend(later.images);
        self.lost.extend(later.lost);
        self.stay = later.stay;
        self
    }

    /// For people, one line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for (what, ids) in [
            ("on record again, from its directory: pod", &self.pods),
            ("off the record, for its directory is gone: pod", &self.gone),
        ] {
            lines.extend(ids.iter().map(|id| format!("{what} {id}")));
        }
        for (what, ids) in [
            ("on record again, without a name: image", &self.images),
            ("off the record, for its files are gone: image", &self.images_gone),
        ] {
            lines.extend(ids.iter().map(|id| format!("{what} {id}")));
        }
        let lost =
            |(id, why): &(PodId, String)| format!("moved to lost-pods, for it cannot be a pod again: {id}: {why}");
        lines.extend(self.lost.iter().map(lost));
        let stays = |(id, why): &(PodId, String)| format!("somebody is at pod {id}, and it is not on record: {why}");
        lines.extend(self.stay.iter().map(stays));
        lines
    }
}

/// What became of one directory.
pub(crate) enum Became {
    /// A pod with a new row.
    Pod,
    /// What it was: its row is there, or it is not to have one.
    Nothing,
    /// It is in `lost-pods/` now.
    Lost(String),
    /// Somebody is at it.
    Stays(String),
}

/// The images of the store by the names of their layers' directories, topmost first, as plans have them.
pub(crate) struct Images(HashMap<Vec<String>, Vec<ImageRow>>);

impl Images {
    pub(crate) fn of(store: &Store) -> Result<Self, PodError> {
        let mut by_layers: HashMap<Vec<String>, Vec<ImageRow>> = HashMap::new();
        for image in store.images().map_err(PodError::store)? {
            let layers = image.layers.iter().rev().map(|layer| Layout::tree_name(&layer.chain)).collect();
            by_layers.entry(layers).or_default().push(image);
        }
        Ok(Self(by_layers))
    }

    /// The image with these layers; of several the one that is called so, else the newest.
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
    /// Brings the rows of a database that was just replaced up to what lies on the disk.
    pub(crate) fn adopt_all(&self) -> Result<Adopted, PodError> {
        self.store.adopt_volumes()?;
        // Pods first: an image is let go only when no pod has it. Images before pods: a pod needs its image.
        let gone = self.forget_pods(|_| true)?;
        let images_gone = self.forget_images()?;
        let images = self.adopt_images()?;
        Ok(Adopted { gone, images, images_gone, ..self.adopt_pods(&self.store.pod_dirs()?)? })
    }

    /// Once in each boot: removes the rows of what an earlier boot has removed from the disk, where a power cut took the
    /// rows' own removal back. Pods that are being prepared get their directories after their rows, and are let be.
    pub(crate) fn finish_cut_removals(&self) -> Result<(), PodError> {
        if !self.store.needs_recovery()? || !self.store.layout().pods_dir().is_dir() {
            return Ok(());
        }
        self.forget_pods(|phase| !matches!(phase, Phase::Embryo | Phase::Preparing))?;
        self.store.forget_lost_layers()?;
        Ok(self.store.note_recovery()?)
    }

    /// Pods whose directories are gone, as far as they are `due`.
    fn forget_pods(&self, due: impl Fn(&Phase) -> bool) -> Result<Vec<PodId>, PodError> {
        let mut gone = Vec::new();
        let rows = self.store.pods(&PodQuery::default()).map_err(PodError::store)?;
        for row in rows.into_iter().filter(|row| due(&row.phase)) {
            // Only where it is known to be gone: a disk that fails says nothing.
            let dir = self.pod_dir(row.id);
            match std::fs::symlink_metadata(&dir) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(PodError::io("look at", dir)(error)),
                Ok(_) => continue,
            }
            match self.dispose(row.id) {
                Ok(()) => gone.push(row.id),
                // A cgroup that cannot be removed now: the row stays, and `gc` comes back to it.
                // So does one whose bytes cannot be deleted, or are being deleted.
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
                // Damaged, not removed: `doctor` says so.
                Err(gantry_store::RemoveImageError::InUse { .. }) => {}
                Err(error) => return Err(PodError::store(error)),
            }
        }
        self.store.forget_lost_layers().map_err(PodError::store)?;
        Ok(gone)
    }

    /// Images whose documents and layers all lie here.
    pub(crate) fn adopt_images(&self) -> Result<Vec<ImageId>, PodError> {
        let mut adopted = Vec::new();
        for id in self.store.unknown_blobs().map_err(PodError::store)? {
            let Some((image, layers)) = self.read_image(&id)? else { continue };
            let at = modified(&self.store.layout().blob(&id)).unwrap_or_else(gantry_store::now);
            self.store.adopt_layers(&layers).map_err(PodError::store)?;
            match self.store.commit_image(&image, at) {
                Ok(_) => adopted.push(id),
                // Swept meanwhile by a command that had the damaged database open.
                Err(CommitImageError::NoSuchLayer { .. } | CommitImageError::NoSuchBlob { .. }) => {}
                Err(error) => return Err(PodError::store(error)),
            }
        }
        Ok(adopted)
    }

    /// The image of which this blob is the manifest, if it is one and all of it is here.
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
            // How much is in them was not written down but in the row that is lost.
            rows.push(LayerRow { chain, diff_id: diff_id.clone(), parent, size: 0, entries: 0 });
        }
        let compressed = manifest.layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        let size = compressed.saturating_add((bytes.len() + config_bytes.len()) as u64);
        let config = manifest.config.digest.clone();
        Ok(Some((NewImage { id: id.clone(), config, format: manifest.format, layers, size, names: Vec::new() }, rows)))
    }

    /// A document that lies here and is what its name says.
    fn document(&self, digest: &Digest) -> Result<Option<Vec<u8>>, PodError> {
        match self.store.blob(digest, MAX_DOCUMENT) {
            Ok(bytes) => Ok(bytes),
            Err(gantry_store::BlobError::Store(error)) => Err(PodError::store(error)),
            Err(gantry_store::BlobError::Damaged { .. } | gantry_store::BlobError::TooLarge { .. }) => Ok(None),
            Err(error) => Err(PodError::store(error)),
        }
    }

    /// Gives pods their rows that a database in use does not know; images too where there are such pods, or it was just
    /// `restored`: commands that had the damaged one open may have made some until it was replaced. No failure keeps
    /// gantryd from its start: it is told for each pod, and the next start tries again.
    pub(crate) fn adopt_late(&self, restored: bool) -> Adopted {
        // What cannot be listed now is nothing new to whoever lists it next.
        let ids = self.lost_rows().unwrap_or_default();
        if ids.is_empty() && !restored {
            return Adopted::default();
        }
        // Without its image a pod would be given up, so that images that cannot be adopted keep the pods waiting.
        let adopted = self.store.settle_volumes().map_err(PodError::from).and_then(|()| self.adopt_images());
        let adopted = adopted.and_then(|images| Ok(Adopted { images, ..self.adopt_pods(&ids)? }));
        adopted.unwrap_or_else(|error| {
            let stay = ids.into_iter().map(|id| (id, error.to_string())).collect();
            Adopted { stay, ..Adopted::default() }
        })
    }

    /// Directories of pods that have no row and had one. Most have theirs: only the names are compared.
    fn lost_rows(&self) -> Result<Vec<PodId>, PodError> {
        let rows = self.store.pods(&PodQuery::default()).map_err(PodError::store)?;
        let known: HashSet<PodId> = rows.iter().map(|row| row.id).collect();
        let mut ids = self.store.pod_dirs().map_err(PodError::store)?;
        ids.retain(|id| !known.contains(id) && self.was_pod(*id));
        Ok(ids)
    }

    /// Whether what lies in this directory was a pod: a row is written before the manifest, and before a supervisor is
    /// started. What cannot be read says no less.
    pub(crate) fn was_pod(&self, id: PodId) -> bool {
        let manifest = std::fs::symlink_metadata(self.pod_dir(id).join(pod_dir::MANIFEST));
        let absent = manifest.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
        !absent || self.journal(id).map_or(true, |journal| ready_record(&journal).is_some())
    }

    /// Gives these pod directories their rows.
    pub(crate) fn adopt_pods(&self, ids: &[PodId]) -> Result<Adopted, PodError> {
        let images = Images::of(&self.store)?;
        let mut adopted = Adopted::default();
        for &id in ids {
            match self.adopt_pod(id, &images) {
                Ok(Became::Pod) => adopted.pods.push(id),
                Ok(Became::Nothing) => {}
                Ok(Became::Lost(why)) => adopted.lost.push((id, why)),
                Ok(Became::Stays(why)) => adopted.stay.push((id, why)),
                // Of the whole database, not of this pod.
                Err(error) if matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::Busy | ErrorKind::Damaged) => {
                    return Err(error);
                }
                Err(error) => adopted.stay.push((id, error.to_string())),
            }
        }
        Ok(adopted)
    }

    /// Gives one pod directory its row. See the module.
    pub(crate) fn adopt_pod(&self, id: PodId, images: &Images) -> Result<Became, PodError> {
        let row = self.store.pod(id).map_err(PodError::store)?;
        let unfinished = |row: &PodRow| matches!(row.phase, Phase::Embryo | Phase::Preparing);
        if row.as_ref().is_some_and(|row| !unfinished(row)) {
            return Ok(Became::Nothing);
        }
        let mut state = self.store.try_lock_pod(id).map_err(PodError::store)?;
        let journal = self.journal(id);
        let ready = journal.as_ref().is_ok_and(|journal| ready_record(journal).is_some());
        if matches!(state, PodState::Held) && !ready {
            // Perhaps by somebody who only looks.
            state = self.lock_in_time(id)?;
        }
        let lock = match state {
            PodState::Absent => return Ok(Became::Nothing),
            PodState::Free(lock) => Some(lock),
            PodState::Held => None,
        };
        let journal = match journal {
            Ok(journal) => journal,
            // Unreadable: whatever it ran, nobody can say so.
            Err(error) => return self.give_up(id, lock, error.to_string()),
        };
        match (row, lock) {
            (Some(_), _) if ready => Ok(Became::Nothing),
            (Some(_), None) => Ok(Became::Nothing),
            // Whoever makes it knows a database that is gone, and will take it back.
            (None, None) if !ready => Ok(Became::Stays("it is being started".to_owned())),
            (Some(row), Some(lock)) => {
                if manifest_of(self, id).is_ok() && self.plan(id).is_ok() {
                    self.to_prepared(row)?;
                }
                drop(lock);
                Ok(Became::Nothing)
            }
            (None, None) => self.adopt_running(id, &journal, images),
            (None, Some(lock)) => match self.pod_of(id, images) {
                Ok(pod) => {
                    let row = self.store.insert_pod(&pod).map_err(PodError::store)?;
                    if ready {
                        // The lock is ours: probing it would find us.
                        self.reconcile_with(row, false, &journal)?;
                    } else {
                        self.to_prepared(row)?;
                    }
                    drop(lock);
                    Ok(Became::Pod)
                }
                Err(Not::APod) if !ready => Ok(Became::Nothing),
                Err(why) => self.give_up(id, Some(lock), why.to_string()),
            },
        }
    }

    fn adopt_running(&self, id: PodId, journal: &journal::Parsed, images: &Images) -> Result<Became, PodError> {
        match self.pod_of(id, images) {
            Ok(pod) => {
                let row = self.store.insert_pod(&pod).map_err(PodError::store)?;
                self.reconcile_with(row, true, journal)?;
                Ok(Became::Pod)
            }
            Err(why) => Ok(Became::Stays(why.to_string())),
        }
    }

    fn give_up(&self, id: PodId, lock: Option<gantry_store::PodLock>, why: String) -> Result<Became, PodError> {
        let Some(lock) = lock else { return Ok(Became::Stays(why)) };
        self.remove_leftovers(id);
        self.store.move_to_lost(lock, id).map_err(PodError::store)?;
        Ok(Became::Lost(why))
    }

    /// A row of a pod that is complete on disk; the caller holds its lock.
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

    /// What the files of a pod directory say about the pod.
    fn pod_of(&self, id: PodId, images: &Images) -> Result<NewPod, Not> {
        let spec = manifest_of(self, id);
        let plan = match self.plan(id) {
            Ok(plan) => plan,
            Err(_) if matches!(spec, Err(Not::APod)) => return Err(Not::APod),
            Err(error) => return Err(Not::Readable(error.to_string())),
        };
        let ran = self.pod_dir(id).join(files::JOURNAL).exists();
        let spec = match spec {
            Ok(spec) => Some(spec),
            // What has run is told by its plan and its journal; what has not is worth nothing without its manifest.
            Err(_) if ran => None,
            Err(why) => return Err(why),
        };
        let apps = apps(&plan, spec.as_ref(), images)?;
        let volumes = self.volumes_of(&plan).map_err(|error| Not::Readable(error.to_string()))?;
        let made = [pod_dir::MANIFEST, files::PLAN].iter().find_map(|name| modified(&self.pod_dir(id).join(name)));
        Ok(NewPod {
            id,
            created: made.unwrap_or_else(gantry_store::now),
            net: net_of(&plan)?,
            hostname: plan.hostname,
            apps,
            user_annotations: spec.as_ref().map(|spec| spec.user_annotations.clone()).unwrap_or_default(),
            user_labels: spec.map(|spec| spec.user_labels).unwrap_or_default(),
            volumes,
        })
    }

    /// The named volumes of a plan, without those that are gone: the pod is not, and says so when it is started.
    fn volumes_of(&self, plan: &Plan) -> Result<BTreeSet<VolumeName>, PodError> {
        let mut there = BTreeSet::new();
        for volume in &plan.volumes {
            let VolumeKind::Named { volume, .. } = &volume.kind else { continue };
            if let Ok(name) = volume.parse::<VolumeName>()
                && self.store.volume(&name)?.is_some()
            {
                there.insert(name);
            }
        }
        Ok(there)
    }
}

/// Why no row can be made.
#[derive(Debug, thiserror::Error)]
enum Not {
    /// It was never complete.
    #[error("it has no manifest: it was never complete")]
    APod,
    /// A file is damaged.
    #[error("{0}")]
    Readable(String),
    /// Nobody knows which image these layers are.
    #[error("no image here has the layers of its app '{0}'")]
    Image(String),
}

fn manifest_of(engine: &Engine, id: PodId) -> Result<PodSpec, Not> {
    match pod_dir::read(&engine.pod_dir(id).join(pod_dir::MANIFEST), manifest::MOST_OURS) {
        Ok(bytes) => manifest::parse_ours(&bytes).map_err(|error| Not::Readable(format!("its manifest: {error}"))),
        Err(error) if ErrorKind::of_io(&error) == ErrorKind::NotFound => Err(Not::APod),
        Err(error) => Err(Not::Readable(format!("its manifest: {error}"))),
    }
}

fn apps(plan: &Plan, spec: Option<&PodSpec>, images: &Images) -> Result<Vec<NewApp>, Not> {
    let app = |app: &gantry_contract::plan::App| {
        let name = app.name.parse().map_err(|_| Not::Readable(format!("its plan names an app '{}'", app.name)))?;
        let asked = spec.and_then(|spec| spec.apps.iter().find(|asked| asked.name == name));
        let annotations = asked.map(|asked| asked.user_annotations.clone()).unwrap_or_default();
        let asked = asked.map(|asked| asked.image.clone());
        let image = images.find(&app.layers, asked.as_deref()).ok_or_else(|| Not::Image(app.name.clone()))?;
        let image_name = recorded_name(asked.as_deref().unwrap_or_default(), image);
        Ok(NewApp { name, image: image.id.clone(), image_name, annotations })
    };
    plan.apps.iter().map(app).collect()
}

/// The networks of a plan, as far as a row can keep them.
fn net_of(plan: &Plan) -> Result<NetMode, Not> {
    let net = plan_net::mode(&plan.net).to_string().parse();
    net.map_err(|error| Not::Readable(format!("the networks in its plan: {error}")))
}

fn modified(path: &Path) -> Option<Timestamp> {
    let time = std::fs::symlink_metadata(path).and_then(|found| found.modified()).ok()?;
    (time >= std::time::UNIX_EPOCH).then(|| time.into())
}
