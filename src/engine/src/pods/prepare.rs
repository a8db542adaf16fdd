//! `prepare`: everything a pod needs, on disk and in a row, so that starting it needs nothing but a supervisor.
//!
//! The order is: check, fetch, plan (nothing is made yet); pod directory with its lock; row, which protects the images;
//! files; Prepared. A `kill -9` before the row leaves a directory without one, which `gc` sweeps; after it, a row
//! whose lock is free, which `reconcile` calls aborted and `gc` sweeps.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use gantry_contract::plan::{ImageSize, Plan};
use gantry_fetch::config::{self, ConfigError, ImageConfig};
use gantry_fetch::source::MAX_DOCUMENT;
use gantry_fetch::{FetchError, Note, Platform, Progress, PullPolicy};
use gantry_model::image_ref::RefError;
use gantry_model::spec::SpecError;
use gantry_model::{AppName, Edge, ErrorKind, ImageRef, Kind, PodId, PodSpec};
use gantry_store::{Change, ImageRow, InsertPodError, NewApp, NewPod, PodLock, PodRow};
use thiserror::Error;

use crate::error::need_root;
use crate::images::platform;
use crate::images::view::recorded_name;
use crate::pods::plan::{self, Image, PlanError, Setting};
use crate::pods::plan_net;
use crate::pods::pod_dir;
use crate::{Engine, PodError};

/// A pod to prepare.
pub struct Prepare<'a> {
    /// What is asked for.
    pub spec: PodSpec,
    /// Whether images are fetched.
    pub policy: PullPolicy,
    /// Who hears of fetching.
    pub progress: &'a dyn Progress,
    /// Whether the prepared pod must survive a power loss before this returns (`run` does not care).
    pub durable: bool,
    /// Told the id before anything runs (`--uuid-file-save`).
    pub on_id: &'a dyn Fn(PodId) -> io::Result<()>,
}

/// A pod could not be prepared. Nothing is left of it.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// It makes no sense as asked for.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// An image's name is none.
    #[error("app '{app}' cannot be prepared")]
    Reference {
        /// Which app.
        app: AppName,
        /// Why.
        #[source]
        source: RefError,
    },
    /// An image could not be had.
    #[error("app '{app}' cannot be prepared without its image")]
    Fetch {
        /// Which app.
        app: AppName,
        /// Why.
        #[source]
        source: Box<FetchError>,
    },
    /// An image's configuration is not in the store though the image is.
    #[error(
        "app '{app}' cannot be prepared: the configuration of image {image} is missing; remove the image and fetch it again"
    )]
    ConfigMissing {
        /// Which app.
        app: AppName,
        /// Which image.
        image: gantry_model::ImageId,
    },
    /// An image's configuration cannot be used.
    #[error("app '{app}' cannot be prepared from image {image}")]
    Config {
        /// Which app.
        app: AppName,
        /// Which image.
        image: gantry_model::ImageId,
        /// Why.
        #[source]
        source: ConfigError,
    },
    /// An image is for another architecture, and nothing here emulates it.
    #[error(
        "app '{app}' cannot be prepared: its image is for {platform}, and this host runs {}; \
         install qemu-user-static with binfmt-support to emulate it, or fetch the image for this host", .host
    )]
    Platform {
        /// Which app.
        app: AppName,
        /// What its image is for.
        platform: Box<Platform>,
        /// What this host runs.
        host: Box<Platform>,
    },
    /// An image cannot be run as asked.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The data directory's name cannot be handed on.
    #[error("cannot prepare a pod in {}: the path is not UTF-8", .0.display())]
    Path(PathBuf),
    /// The caller could not take the id.
    #[error("cannot save the id of pod {id}")]
    SaveId {
        /// Which pod.
        id: PodId,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody removed the pod while it was being made.
    #[error("pod {0} was removed while it was being prepared")]
    Gone(PodId),
    /// The store or the file system failed.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for PrepareError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Spec(error) => error.kind(),
            Self::Reference { source, .. } => source.kind(),
            Self::Fetch { source, .. } => source.kind(),
            Self::ConfigMissing { .. } => ErrorKind::Damaged,
            Self::Config { source, .. } => source.kind(),
            Self::Platform { .. } => ErrorKind::Invalid,
            Self::Plan(error) => error.kind(),
            Self::Path(_) => ErrorKind::Invalid,
            Self::SaveId { source, .. } => ErrorKind::of_io(source),
            Self::Gone(_) => ErrorKind::Refused,
            Self::Pod(error) => error.kind(),
        }
    }
}

/// A pod with a directory, a row (Embryo) and a plan, and its lock.
pub(crate) struct Made {
    pub(crate) id: PodId,
    pub(crate) dir: PathBuf,
    pub(crate) lock: PodLock,
    pub(crate) row: PodRow,
}

impl Engine {
    /// Prepares a pod; `start` runs it.
    ///
    /// # Errors
    /// [`PrepareError`]; nothing is left of the pod then.
    pub fn prepare(&self, mut request: Prepare<'_>) -> Result<PodId, PrepareError> {
        self.settle_net(&mut request.spec);
        let made = self.make(&request)?;
        let id = made.id;
        self.complete(made, &request).inspect_err(|_| self.undo(id))?;
        Ok(id)
    }

    /// The networks of a pod of which nothing is said: the default of this moment, which its manifest says from now on.
    pub(crate) fn settle_net(&self, spec: &mut PodSpec) {
        spec.net.get_or_insert_with(|| self.options.network.default.clone());
    }

    fn complete(&self, made: Made, request: &Prepare<'_>) -> Result<(), PrepareError> {
        pod_dir::write_manifest(&made.dir, &request.spec)?;
        let row = self.to_preparing(made.row)?;
        if request.durable {
            pod_dir::sync(&made.dir)?;
        }
        let edge = Edge::Prepared(gantry_store::now());
        let row = self.step(&row, Change { durable: request.durable, ..Change::along(edge) })?;
        drop(made.lock);
        row.map(drop).ok_or(PrepareError::Gone(made.id))
    }

    pub(crate) fn to_preparing(&self, row: PodRow) -> Result<PodRow, PrepareError> {
        let moved = self.step(&row, Change::along(Edge::Prepare))?;
        moved.ok_or(PrepareError::Gone(row.id))
    }

    /// The part that `prepare` and `run` share: up to a row and a plan.
    pub(crate) fn make(&self, request: &Prepare<'_>) -> Result<Made, PrepareError> {
        need_root("prepare a pod")?;
        let spec = &request.spec;
        spec.validate()?;
        let root = self.store.layout().root();
        if root.to_str().is_none() {
            return Err(PrepareError::Path(root.to_owned()));
        }
        let images = self.images_of(request)?;
        let configs = self.configs_of(spec, &images)?;
        for path in configs.iter().flat_map(plan::ignored_volumes) {
            request.progress.notify(Note::VolumeIgnored { path: path.clone() });
        }
        let id = PodId::from_random(random()?);
        let plan = self.plan_of(spec, &images, &configs, id)?;
        self.on_disk(request, id, &plan, &images).inspect_err(|_| self.undo(id))
    }

    fn on_disk(
        &self,
        request: &Prepare<'_>,
        id: PodId,
        plan: &Plan,
        images: &[ImageRow],
    ) -> Result<Made, PrepareError> {
        let dir = self.pod_dir(id);
        // The directory first: from the row's first moment on, its free lock says that the preparer is dead.
        let lock = self.store.make_pod_dir(id).map_err(PodError::store)?;
        let row = self.insert_with_volumes(&new_pod(&request.spec, plan, id, images))?;
        (request.on_id)(id).map_err(|source| PrepareError::SaveId { id, source })?;
        pod_dir::fill(&dir, plan)?;
        Ok(Made { id, dir, lock, row })
    }

    /// Writes the row; makes named volumes that are not there. One that is removed in between is made again.
    fn insert_with_volumes(&self, pod: &NewPod) -> Result<PodRow, PodError> {
        const ATTEMPTS: usize = 3;
        let mut attempt = 1;
        loop {
            for name in &pod.volumes {
                if self.store.volume(name)?.is_none() {
                    self.store.create_volume(name, &std::collections::BTreeMap::new())?;
                }
            }
            match self.store.insert_pod(pod) {
                Err(InsertPodError::NoSuchVolume(_)) if attempt < ATTEMPTS => attempt += 1,
                done => return done.map_err(PodError::store),
            }
        }
    }

    /// The image of each app, fetched as the policy says; each once, however many apps it has.
    fn images_of(&self, request: &Prepare<'_>) -> Result<Vec<ImageRow>, PrepareError> {
        let mut parsed = Vec::with_capacity(request.spec.apps.len());
        for app in &request.spec.apps {
            let reference: ImageRef =
                app.image.parse().map_err(|source| PrepareError::Reference { app: app.name.clone(), source })?;
            parsed.push((app, reference));
        }
        let mut known: HashMap<&str, ImageRow> = HashMap::new();
        let mut images = Vec::with_capacity(parsed.len());
        for (app, reference) in &parsed {
            let row = match known.get(app.image.as_str()) {
                Some(row) => row.clone(),
                None => {
                    self.fetch(reference, request.policy, None, request.progress)
                        .map_err(|source| PrepareError::Fetch { app: app.name.clone(), source: Box::new(source) })?
                        .image
                }
            };
            known.insert(&app.image, row.clone());
            images.push(row);
        }
        Ok(images)
    }

    fn configs_of(&self, spec: &PodSpec, images: &[ImageRow]) -> Result<Vec<ImageConfig>, PrepareError> {
        let mut configs = Vec::with_capacity(images.len());
        for (app, row) in spec.apps.iter().zip(images) {
            let (app, image) = (app.name.clone(), row.id.clone());
            let config = match self.store.blob(&row.config, MAX_DOCUMENT).map_err(PodError::store)? {
                Some(bytes) => config::parse(&bytes).map_err(|source| PrepareError::Config { app, image, source })?,
                None => return Err(PrepareError::ConfigMissing { app, image }),
            };
            if let Some(platform) = platform::unrunnable_platform(&config) {
                let (app, platform, host) =
                    (spec.apps[configs.len()].name.clone(), Box::new(platform), Box::new(Platform::host()));
                return Err(PrepareError::Platform { app, platform, host });
            }
            configs.push(config);
        }
        Ok(configs)
    }

    fn plan_of(
        &self,
        spec: &PodSpec,
        images: &[ImageRow],
        configs: &[ImageConfig],
        id: PodId,
    ) -> Result<Plan, PrepareError> {
        let mut sized = Vec::with_capacity(images.len());
        for (row, config) in images.iter().zip(configs) {
            let chains = row.layers.iter().map(|layer| &layer.chain).collect();
            sized.push(Image { config, chains, size: self.size_of(row)? });
        }
        let setting = Setting {
            id,
            layout: self.store.layout(),
            network: &self.options.network,
            cgroup_parent: &self.options.cgroup_parent,
            log: self.options.log,
            stop_grace_ms: u64::try_from(self.options.stop_grace.as_millis()).unwrap_or(u64::MAX),
        };
        Ok(plan::plan(spec, &sized, &setting)?)
    }

    /// How much the layers of an image hold. `None`: of one it is not known, for its row was lost and made again.
    fn size_of(&self, image: &ImageRow) -> Result<Option<ImageSize>, PodError> {
        let mut size = ImageSize { bytes: 0, entries: 0 };
        for layer in &image.layers {
            let Some(row) = self.store.layer(&layer.chain).map_err(PodError::store)? else { return Ok(None) };
            if row.entries == 0 {
                let dir = self.store.layout().tree_dir(&layer.chain);
                let mut entries = std::fs::read_dir(&dir).map_err(PodError::io("list", dir))?;
                if entries.next().is_some() {
                    return Ok(None);
                }
            }
            size.bytes = size.bytes.saturating_add(row.size);
            size.entries = size.entries.saturating_add(row.entries);
        }
        Ok(Some(size))
    }

    /// Takes back what was made of a pod. What this cannot take back now has a free lock: `gc` takes it.
    pub(crate) fn undo(&self, id: PodId) {
        let _left_for_gc = self.dispose(id);
    }
}

fn new_pod(spec: &PodSpec, plan: &Plan, id: PodId, images: &[ImageRow]) -> NewPod {
    let app = |(app, image): (&gantry_model::AppSpec, &ImageRow)| NewApp {
        name: app.name.clone(),
        image: image.id.clone(),
        image_name: recorded_name(&app.image, image),
        annotations: app.user_annotations.clone(),
    };
    NewPod {
        id,
        created: gantry_store::now(),
        net: plan_net::mode(&plan.net),
        hostname: plan.hostname.clone(),
        apps: spec.apps.iter().zip(images).map(app).collect(),
        user_annotations: spec.user_annotations.clone(),
        user_labels: spec.user_labels.clone(),
        volumes: spec.named_volumes(),
    }
}

fn random() -> Result<[u8; 16], PodError> {
    let mut bytes = [0; 16];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match got.map_err(PodError::io("read random numbers from", Path::new("the kernel")))? {
        16 => Ok(bytes),
        _ => Err(PodError::io("read random numbers from", "the kernel")(io::Error::from(io::ErrorKind::UnexpectedEof))),
    }
}
