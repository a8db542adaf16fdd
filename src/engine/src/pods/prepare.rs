//! Creating a pod, and `prepare`: everything a pod needs, on disk and in a row, so that only a supervisor is missing.
//!
//! Both `run` and `prepare` are two calls: [`Engine::create`] makes an [`Embryo`]; [`Embryo::start`] starts it and
//! [`Embryo::prepare`] prepares it. Between them the caller knows the pod's id and nothing runs.
//!
//! The order is: fetch, plan (nothing is made yet); pod directory with its lock; row, which protects the images; files;
//! Prepared. A `kill -9` before the row leaves a directory without one, which `gc` collects; after it, a row whose lock
//! is free, which `reconcile` moves to AbortedPrepare and `gc` collects.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;

use gantry_contract::network::KubernetesNetworking;
use gantry_contract::plan::{ImageSize, Plan};
use gantry_fetch::config::{self, ConfigError, ImageConfig};
use gantry_fetch::source::MAX_DOCUMENT;
use gantry_fetch::{FetchError, Note, Platform, Progress, PullPolicy};
use gantry_model::image_ref::RefError;
use gantry_model::spec::{HOST_IMAGE_NAME, PodFlavor, SpecError};
use gantry_model::systemd::SdNotify;
use gantry_model::{
    AppId, AppName, AppSpec, Edge, ErrorKind, ImageId, ImageRef, Kind, NetMode, PodId, PodName, PodSpec,
    RequestedImage, VolumeName,
};
use gantry_store::{Change, ImageRow, InsertPodError, NewApp, NewPod, PodLock, PodRow, PodSchedule, ScheduleRun};
use thiserror::Error;

use crate::error::need_root;
use crate::host::sandbox_network::{SandboxNetwork, SandboxNetworking};
use crate::images::platform;
use crate::images::view::recorded_name;
use crate::pods::image_volumes;
use crate::pods::output::Show;
use crate::pods::plan::{self, Image, PlanError, Setting};
use crate::pods::plan_net;
use crate::pods::pod_dir;
use crate::pods::rm::RemovalSync;
use crate::pods::run::RunOptions;
use crate::pods::supervisor::WaitingSupervisor;
use crate::{Engine, EngineError, PodError};

/// A request to create a pod. Its specification is valid.
pub struct Prepare<'a> {
    spec: PodSpec,
    name: Option<PodName>,
    schedule: Option<PodSchedule>,
    policy: PullPolicy,
    progress: &'a dyn Progress,
    starts_now: bool,
    /// Whether the supervisor is spawned while the pod is created.
    spawns_early: bool,
    options: RunOptions,
    sandbox: Option<SandboxNetworking>,
}

impl<'a> Prepare<'a> {
    /// Validates the specification, before any change. `policy` decides when images are fetched, `progress` receives
    /// the events of the fetch.
    ///
    /// # Errors
    /// [`SpecError`].
    pub fn new(spec: PodSpec, policy: PullPolicy, progress: &'a dyn Progress) -> Result<Self, SpecError> {
        spec.validate()?;
        Ok(Self {
            spec,
            name: None,
            schedule: None,
            policy,
            progress,
            starts_now: false,
            spawns_early: false,
            options: RunOptions { show: Show::No, remove: false },
            sandbox: None,
        })
    }

    /// Gives the pod a name, which no other pod may have.
    #[must_use]
    pub fn named(self, name: Option<PodName>) -> Self {
        Self { name, ..self }
    }

    /// Creates the pod for a run of a schedule. It fails if the schedule has been changed, or the run was begun.
    #[must_use]
    pub(crate) fn for_schedule(self, run: ScheduleRun) -> Self {
        Self { schedule: Some(PodSchedule::Run(run)), ..self }
    }

    /// Attaches a sandbox to this network, and passes the settings to its plugins.
    #[must_use]
    pub fn on_network(mut self, network: SandboxNetwork, settings: KubernetesNetworking) -> Self {
        self.spec.net = Some(network.net.clone());
        Self { sandbox: Some(SandboxNetworking { network, settings }), ..self }
    }

    /// For a pod that is started at once, with these options: networks that cannot be used are an error before images
    /// are fetched, and a pod that is removed at its end is also removed if this process is killed. [`Embryo::start`]
    /// is next.
    #[must_use]
    pub fn to_be_started(self, options: RunOptions) -> Self {
        Self { starts_now: true, options, ..self }
    }

    /// As [`Self::to_be_started`]; the supervisor is spawned while the pod is created, which takes less time.
    #[must_use]
    pub fn to_be_started_early(self, options: RunOptions) -> Self {
        Self { spawns_early: true, ..self.to_be_started(options) }
    }
}

/// A pod could not be prepared. Nothing is left of it.
#[derive(Debug, Error)]
pub enum PrepareError {
    /// An image's name is invalid.
    #[error("app '{app}' cannot be prepared")]
    Reference {
        /// The app.
        app: AppName,
        /// The cause.
        #[source]
        source: RefError,
    },
    /// An image is not in the store and could not be fetched.
    #[error("app '{app}' cannot be prepared without its image")]
    Fetch {
        /// The app.
        app: AppName,
        /// The cause.
        #[source]
        source: Box<FetchError>,
    },
    /// The name of a volume's image is invalid.
    #[error("{description} cannot be prepared")]
    VolumeReference {
        /// The volume, and where the first app mounts it: the subject of a sentence.
        description: String,
        /// The cause.
        #[source]
        source: RefError,
    },
    /// The image of a volume is not in the store and could not be fetched.
    #[error("{description} cannot be prepared without its image")]
    FetchVolume {
        /// The volume, and where the first app mounts it: the subject of a sentence.
        description: String,
        /// The cause.
        #[source]
        source: Box<FetchError>,
    },
    /// An image is in the store, but its configuration is not.
    #[error(
        "app '{app}' cannot be prepared: the configuration of image {image} is missing; remove the image and fetch it again"
    )]
    ConfigMissing {
        /// The app.
        app: AppName,
        /// The image.
        image: gantry_model::ImageId,
    },
    /// An image's configuration cannot be used.
    #[error("app '{app}' cannot be prepared from image {image}")]
    Config {
        /// The app.
        app: AppName,
        /// The image.
        image: gantry_model::ImageId,
        /// The cause.
        #[source]
        source: ConfigError,
    },
    /// An image is for another architecture, without an emulator on this host.
    #[error(
        "app '{app}' cannot be prepared: its image is for {platform}, and this host runs {}; \
         install qemu-user-static with binfmt-support to emulate it, or fetch the image for this host", .host
    )]
    Platform {
        /// The app.
        app: AppName,
        /// The image's platform.
        platform: Box<Platform>,
        /// The host's platform.
        host: Box<Platform>,
    },
    /// An image is for a newer variant of the host's architecture.
    #[error(
        "app '{app}' cannot be prepared: its image is for {platform}, and this host's processor supports {host} at most; \
         fetch the image with '--platform {host}'"
    )]
    Variant {
        /// The app.
        app: AppName,
        /// The image's platform.
        platform: Box<Platform>,
        /// The host's platform.
        host: Box<Platform>,
    },
    /// The specification and the images do not give a valid plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The data directory's path is not UTF-8, as the plan's JSON requires.
    #[error("cannot prepare a pod in {}: the path is not UTF-8", .0.display())]
    Path(PathBuf),
    /// Its networks cannot be used.
    #[error(transparent)]
    Network(#[from] EngineError),
    /// Another process removed the pod in the meantime.
    #[error("pod {0} was removed while it was being prepared")]
    Gone(PodId),
    /// The store or the file system failed.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl PrepareError {
    /// The image of an app is for a platform that this host cannot execute.
    fn unrunnable(app: AppName, platform: Platform) -> Self {
        let (platform, host) = (Box::new(platform), Box::new(Platform::host()));
        if (&platform.os, &platform.architecture) == (&host.os, &host.architecture) {
            Self::Variant { app, platform, host }
        } else {
            Self::Platform { app, platform, host }
        }
    }
}

impl Kind for PrepareError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Reference { source, .. } | Self::VolumeReference { source, .. } => source.kind(),
            Self::Fetch { source, .. } | Self::FetchVolume { source, .. } => source.kind(),
            Self::ConfigMissing { .. } => ErrorKind::Damaged,
            Self::Config { source, .. } => source.kind(),
            Self::Platform { .. } | Self::Variant { .. } => ErrorKind::Invalid,
            Self::Plan(error) => error.kind(),
            Self::Path(_) => ErrorKind::Invalid,
            Self::Network(error) => error.kind(),
            Self::Gone(_) => ErrorKind::Refused,
            Self::Pod(error) => error.kind(),
        }
    }
}

/// A pod that was just created: a row (Embryo), a locked directory, a plan. When dropped, it is removed again.
pub struct Embryo<'e> {
    pub(crate) engine: &'e Engine,
    // Dropped before the guard, which removes the pod: this ends the supervisor.
    pub(crate) parts: EmbryoParts,
    pub(crate) undo: UndoGuard<'e>,
}

/// The contents of an [`Embryo`], without its guard.
pub(crate) struct EmbryoParts {
    pub(crate) row: PodRow,
    pub(crate) spec: PodSpec,
    pub(crate) plan: Plan,
    pub(crate) owner: EmbryoOwner,
    /// Those of its start.
    pub(crate) options: RunOptions,
}

/// The holder of the lock of a new pod, beside its guard.
pub(crate) enum EmbryoOwner {
    /// The engine.
    Engine(PodLock),
    /// The supervisor, which waits for the plan.
    Supervisor(WaitingSupervisor),
}

/// Removes a pod that was not completed. If a part cannot be removed now, its lock is free: `gc` collects it.
///
/// Shares the lock with the owner, so that no other process reconciles a failed start before its reason is recorded.
pub(crate) struct UndoGuard<'e> {
    engine: &'e Engine,
    id: PodId,
    /// `None`: disarmed.
    lock: Option<PodLock>,
}

impl UndoGuard<'_> {
    /// Keeps the pod, and closes the guard's handle of the lock.
    pub(crate) fn disarm(mut self) {
        self.lock = None;
    }
}

impl Drop for UndoGuard<'_> {
    fn drop(&mut self) {
        // The supervisor of a pod of `run --rm` that ran, and has ended, has unlocked it.
        if let Some(lock) = self.lock.take().filter(|lock| lock.retake()) {
            let _left_for_gc = self.engine.dispose_locked(self.id, Some(lock), RemovalSync::Nothing);
        }
    }
}

impl Embryo<'_> {
    /// The pod's id.
    #[must_use]
    pub fn id(&self) -> PodId {
        self.parts.row.id
    }

    /// Prepares the pod: [`Engine::start`] can start it later, also after a power cut.
    ///
    /// # Errors
    /// [`PrepareError`]; nothing is left of the pod then.
    pub fn prepare(self) -> Result<PodId, PrepareError> {
        let Self { engine, parts, undo } = self;
        let id = engine.complete(parts)?;
        undo.disarm();
        Ok(id)
    }
}

impl Engine {
    /// Creates a pod that is not started or prepared yet: [`Embryo::prepare`] or [`Embryo::start`] is next.
    ///
    /// # Errors
    /// [`PrepareError`]; nothing is left of the pod then.
    pub fn create(&self, mut request: Prepare<'_>) -> Result<Embryo<'_>, PrepareError> {
        need_root("prepare a pod")?;
        for app in &mut request.spec.apps {
            assign_id(app)?;
        }
        if request.spec.flavor == PodFlavor::Host {
            request.spec.net = Some(NetMode::Host);
        }
        let parent = plan::resolve_cgroup_parent(&request.spec, &self.options.cgroup_parent);
        self.check_cgroup_manager(&parent).map_err(PlanError::unavailable)?;
        let net = self.resolve_net(&mut request.spec).clone();
        // The specification was validated before the default network was filled in.
        if !request.spec.ports.is_empty() {
            gantry_model::net::takes_ports(&net).map_err(PlanError::from)?;
        }
        gantry_model::user_namespace::check(&request.spec).map_err(PlanError::from)?;
        // A sandbox's network has just been read.
        if request.starts_now && request.sandbox.is_none() {
            self.check_choice(&net)?;
        }
        self.check_storage_limits(request.spec.apps.iter())?;
        self.check_log_files(request.spec.log_dir.as_ref(), request.spec.apps.iter())?;
        let root = self.store.layout().root();
        if root.to_str().is_none() {
            return Err(PrepareError::Path(root.to_owned()));
        }
        request.name.as_ref().map_or(Ok(()), |name| self.check_name(name))?;
        let images = match request.spec.flavor {
            PodFlavor::Container => self.images_of(&request.spec, request.policy, request.progress)?,
            PodFlavor::Host => Vec::new(),
        };
        let volumes = self.resolve_image_volumes(&request.spec, request.policy, request.progress)?;
        let Prepare { spec, name, schedule, progress, sandbox, spawns_early, options, .. } = request;
        let configs = self.configs_of(&spec, &images)?;
        for path in configs.iter().flat_map(plan::ignored_volumes) {
            progress.notify(Note::VolumeIgnored { path: path.clone() });
        }
        let id = PodId::from_random(random()?);
        let mut plan = self.plan_of(&PodSpec { volumes, ..spec.clone() }, &images, &configs, id)?;
        if let Some(sandbox) = sandbox {
            sandbox.apply(id, &mut plan.net);
        }
        // Directory first: as soon as the row exists, a free lock means that the preparer is dead.
        let lock = self.store.make_pod_dir(id).map_err(PodError::store)?;
        let shared = self.share_lock(id, &lock);
        let undo = UndoGuard { engine: self, id, lock: Some(lock) };
        let lock = shared?;
        let show = (spawns_early && self.can_spawn_waiting(&plan)).then_some(options.show);
        let (owner, row) = self.insert_owned(id, lock, show, || {
            // Before the row, which outlives this process if it is killed.
            if options.remove {
                pod_dir::remove_when_ended(&self.pod_dir(id))?;
            }
            plan.user_ids = self.assign_user_ids(id, spec.userns)?;
            let pod = NewPod { name, schedule, ..new_pod(&spec, &plan, id, &images) };
            Ok(self.insert_with_volumes(&pod)?)
        })?;
        Ok(Embryo { engine: self, parts: EmbryoParts { row, spec, plan, owner, options }, undo })
    }

    /// Has `insert` write the row of a new pod. If its output can be shown, a supervisor is spawned meanwhile, which
    /// becomes the owner. On failure this handle of the lock is closed, and the supervisor has ended.
    fn insert_owned(
        &self,
        id: PodId,
        lock: PodLock,
        show: Option<Show>,
        insert: impl FnOnce() -> Result<PodRow, PrepareError>,
    ) -> Result<(EmbryoOwner, PodRow), PrepareError> {
        let Some(show) = show else {
            let row = insert()?;
            return Ok((EmbryoOwner::Engine(lock), row));
        };
        let launch = self.waiting_launch(id, lock, show).map_err(EngineError::from_cause)?;
        let (spawned, inserted) = launch.spawn_beside(insert);
        // If both fail, the reason to report is that of the row, such as a name in use.
        let row = inserted?;
        Ok((EmbryoOwner::Supervisor(spawned.map_err(EngineError::from_cause)?), row))
    }

    /// Fills in the default network. The pod's manifest names it from now on.
    pub(crate) fn resolve_net<'s>(&self, spec: &'s mut PodSpec) -> &'s NetMode {
        spec.net.get_or_insert_with(|| self.options.network.default.clone())
    }

    /// Writes the files of a new pod and moves it to Prepared, durably.
    fn complete(&self, embryo: EmbryoParts) -> Result<PodId, PrepareError> {
        let EmbryoParts { row, spec, plan, owner, options: _ } = embryo;
        let (id, dir) = (row.id, self.pod_dir(row.id));
        pod_dir::fill(&dir, &plan)?;
        pod_dir::write_manifest(&dir, &spec)?;
        let row = self.step(&row, Change::along(Edge::Prepare))?.ok_or(PrepareError::Gone(id))?;
        pod_dir::sync(&dir)?;
        let edge = Edge::Prepared(gantry_store::now());
        let row = self.step(&row, Change { durable: true, ..Change::along(edge) })?;
        drop(owner);
        row.map(|row| row.id).ok_or(PrepareError::Gone(id))
    }

    /// Writes the row; creates named volumes that do not exist. One that is removed in between is created again.
    fn insert_with_volumes(&self, pod: &NewPod) -> Result<PodRow, PodError> {
        const ATTEMPTS: usize = 3;
        let mut attempt = 1;
        loop {
            for name in &pod.volumes {
                self.create_missing_volume(name)?;
            }
            match self.store.insert_pod(pod) {
                Err(InsertPodError::NoSuchVolume(_)) if attempt < ATTEMPTS => attempt += 1,
                Err(InsertPodError::NameTaken { pod: holder, name })
                    if attempt < ATTEMPTS && self.frees_name(holder, &name)? =>
                {
                    attempt += 1;
                }
                done => return done.map_err(PodError::store),
            }
        }
    }

    pub(crate) fn create_missing_volume(&self, name: &VolumeName) -> Result<(), PodError> {
        if self.store.volume(name)?.is_none() {
            self.store.create_volume(name, &std::collections::BTreeMap::new())?;
        }
        Ok(())
    }

    /// The image of each app, fetched as the policy says; an image of several apps once.
    pub(crate) fn images_of(
        &self,
        spec: &PodSpec,
        policy: PullPolicy,
        progress: &dyn Progress,
    ) -> Result<Vec<ImageRow>, PrepareError> {
        let mut parsed = Vec::with_capacity(spec.apps.len());
        for app in &spec.apps {
            let text = app.image.as_ref().map_or("", RequestedImage::as_str);
            let reference: ImageRef =
                text.parse().map_err(|source| PrepareError::Reference { app: app.name.clone(), source })?;
            parsed.push((app, text, reference));
        }
        self.check_platform(spec)?;
        let mut known: HashMap<&str, ImageRow> = HashMap::new();
        let mut images = Vec::with_capacity(parsed.len());
        for (app, text, reference) in &parsed {
            let row = match known.get(text) {
                Some(row) => row.clone(),
                None => {
                    self.fetch(reference, policy, None, progress)
                        .map_err(|source| PrepareError::Fetch { app: app.name.clone(), source: Box::new(source) })?
                        .image
                }
            };
            known.insert(*text, row.clone());
            images.push(row);
        }
        Ok(images)
    }

    /// Refuses images for a platform that this host cannot execute. The fetch would move their names to images that no
    /// pod can run.
    fn check_platform(&self, spec: &PodSpec) -> Result<(), PrepareError> {
        match (&self.options.fetch.platform, spec.apps.first()) {
            (Some(platform), Some(app)) if !platform::can_run(platform) => {
                Err(PrepareError::unrunnable(app.name.clone(), platform.clone()))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn configs_of(&self, spec: &PodSpec, images: &[ImageRow]) -> Result<Vec<ImageConfig>, PrepareError> {
        let mut configs = Vec::with_capacity(images.len());
        for (app, row) in spec.apps.iter().zip(images) {
            let (app, image) = (app.name.clone(), row.id.clone());
            let config = match self.store.blob(&row.config, MAX_DOCUMENT).map_err(PodError::store)? {
                Some(bytes) => config::parse(&bytes).map_err(|source| PrepareError::Config { app, image, source })?,
                None => return Err(PrepareError::ConfigMissing { app, image }),
            };
            if let Some(platform) = platform::unrunnable_platform(&config) {
                return Err(PrepareError::unrunnable(spec.apps[configs.len()].name.clone(), platform));
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
        let no_image = ImageConfig::default();
        if spec.flavor == PodFlavor::Host {
            sized.resize(spec.apps.len(), Image { config: &no_image, chains: Vec::new(), size: None });
        }
        let setting = Setting {
            id,
            layout: self.store.layout(),
            network: &self.options.network,
            cgroup_parent: &self.options.cgroup_parent,
            log: self.options.log,
            stop_grace_ms: gantry_model::quantity::milliseconds(self.options.stop_grace),
        };
        Ok(plan::plan(spec, &sized, &setting)?)
    }

    /// The size of an image's layers. `None`: the size of one is unknown, because its row was lost and written again.
    pub(crate) fn size_of(&self, image: &ImageRow) -> Result<Option<ImageSize>, PodError> {
        let mut size = ImageSize { bytes: 0, entries: 0 };
        for layer in &image.layers {
            let Some(row) = self.store.layer(&layer.chain)? else { return Ok(None) };
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
}

fn new_pod(spec: &PodSpec, plan: &Plan, id: PodId, images: &[ImageRow]) -> NewPod {
    let app = |(app, image): (&AppSpec, Option<&ImageRow>)| {
        let planned = plan.apps.iter().find(|planned| planned.name == app.name.as_str());
        let mounts = planned.map_or(&[][..], |planned| &planned.mounts);
        new_app(app, image, image_volumes::images(mounts, &plan.volumes))
    };
    NewPod {
        id,
        created: gantry_store::now(),
        net: plan_net::mode(&plan.net),
        hostname: plan.hostname.clone(),
        name: None,
        namespace: plan.namespace.clone(),
        sandbox: spec.sandbox,
        apps: spec.apps.iter().zip(images.iter().map(Some).chain(std::iter::repeat(None))).map(app).collect(),
        user_annotations: spec.user_annotations.clone(),
        user_labels: spec.user_labels.clone(),
        volumes: spec.named_volumes(),
        cgroup: plan.pod_cgroup(),
        log_dir: plan.log_dir.clone(),
        schedule: None,
    }
}

/// The row of an app. Apps of host pods have no image. `volume_images`: the images that it mounts.
pub(crate) fn new_app(app: &AppSpec, image: Option<&ImageRow>, volume_images: BTreeSet<ImageId>) -> NewApp {
    NewApp {
        name: app.name.clone(),
        image: image.map(|image| image.id.clone()),
        image_name: match image {
            Some(image) => recorded_name(app.image.as_ref().map(RequestedImage::as_str), image),
            None => HOST_IMAGE_NAME.to_owned(),
        },
        id: app.id.clone(),
        annotations: app.user_annotations.clone(),
        notifies: app.options.sdnotify == SdNotify::App,
        restart: app.options.restart,
        labels: app.user_labels.clone(),
        log_path: app.options.log_path.clone(),
        volume_images,
    }
}

/// Gives an app an id, unless the caller has chosen one.
pub(crate) fn assign_id(app: &mut AppSpec) -> Result<(), PodError> {
    if app.id.is_none() {
        app.id = Some(AppId::from_random(random()?));
    }
    Ok(())
}

fn random<const LENGTH: usize>() -> Result<[u8; LENGTH], PodError> {
    gantry_host::random::bytes().map_err(PodError::io("read random numbers from", "the kernel"))
}
