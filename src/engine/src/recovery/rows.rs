//! The rows of pods and apps, made again from the files in the pods' directories.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use gantry_contract::plan::{App, Plan};
use gantry_contract::{files, journal};
use gantry_model::error::chain;
use gantry_model::spec::{HOST_IMAGE_NAME, PodFlavor, VolumeKind, VolumeSpec};
use gantry_model::systemd::SdNotify;
use gantry_model::{AppName, ErrorKind, NetMode, PodId, PodSpec, RequestedImage, Timestamp, VolumeName};
use gantry_store::{AddAppError, NewApp, NewPod, PodRow, PodSchedule};

use crate::images::view::recorded_name;
use crate::pods::added::AddedApp;
use crate::pods::app_history::AppHistories;
use crate::pods::transition::ready_record;
use crate::pods::{image_volumes, plan_net, pod_dir};
use crate::recovery::images::Images;
use crate::schedules::SCHEDULE_LABEL;
use crate::{Engine, PodError, manifest};

/// Why no row can be written for a pod directory.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAdoptable {
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

impl Engine {
    /// Writes the row of a pod, as one of its schedule if that would create the same pod.
    pub(super) fn insert_adopted(&self, pod: NewPod) -> Result<PodRow, PodError> {
        let schedule = self.schedule_of(&pod)?;
        self.store.insert_pod(&NewPod { schedule, ..pod }).map_err(PodError::store)
    }

    /// The schedule that the label of a pod names, if the pod has the content of its present revision. Any user can set
    /// the label; a pod of other content is not the schedule's to stop and to remove.
    fn schedule_of(&self, pod: &NewPod) -> Result<Option<PodSchedule>, PodError> {
        let Some(name) = pod.user_labels.get(SCHEDULE_LABEL).and_then(|name| name.parse().ok()) else {
            return Ok(None);
        };
        let Some(row) = self.store.schedule(&name)? else { return Ok(None) };
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

    /// The row of a pod, from the files in its directory.
    pub(super) fn pod_of(&self, id: PodId, images: &Images) -> Result<NewPod, NotAdoptable> {
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

/// The specification in the manifest of a pod.
pub(super) fn manifest_of(engine: &Engine, id: PodId) -> Result<PodSpec, NotAdoptable> {
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

/// When a file was last changed; `None` if it cannot be read, or before 1970.
pub(super) fn modified(path: &Path) -> Option<Timestamp> {
    let time = std::fs::symlink_metadata(path).and_then(|found| found.modified()).ok()?;
    (time >= std::time::UNIX_EPOCH).then(|| time.into())
}
