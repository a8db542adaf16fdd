//! Adding apps to a running pod. [`crate::pods::apps`] has the table of what a kill leaves behind.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::Duration;

use gantry_contract::control::{AddApp, Reply, Request};
use gantry_contract::plan::Plan;
use gantry_fetch::config::ImageConfig;
use gantry_fetch::{Note, Progress, PullPolicy};
use gantry_model::id::shown;
use gantry_model::mount_options::Propagation;
use gantry_model::namespaces::UtsMode;
use gantry_model::restart::RestartPolicy;
use gantry_model::spec::{AddedAppSpec, PodFlavor, VolumeKind, VolumeSpec};
use gantry_model::user_namespace::UserNamespaceMode;
use gantry_model::{AppName, AppState, ErrorKind, PodId, PodSpec, VolumeName};
use gantry_store::{ImageRow, NewApp, PodRow};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::error::need_root;
use crate::host::devices;
use crate::logs::chosen::check_added_log;
use crate::pods::added::{AddedApp, AddedApps, AppsLock};
use crate::pods::apps::{need_running, unknown_apps};
use crate::pods::control::unexpected;
use crate::pods::image_volumes;
use crate::pods::plan::{self, AddedAppPlan};
use crate::pods::prepare::{assign_id, new_app};
use crate::pods::restart::has_restart_policy;
use crate::pods::storage_limit;
use crate::pods::update::block_devices;
use crate::{Engine, EngineError, PodError, PrepareError, manifest};

/// The time limit of creating an app. The supervisor gives up filling its volumes after ten minutes.
pub(crate) const CREATE_TIMEOUT: Duration = Duration::from_secs(660);
/// Descriptors of a message (unix(7), SCM_MAX_FD is 253).
const MAX_MOUNTS: usize = 250;

/// What an app that is added is made from.
struct AppSource {
    image: ImageRow,
    config: ImageConfig,
    /// The requested volumes; those of images have their layers.
    volumes: Vec<VolumeSpec>,
}

/// An app that can be added to a pod, while the lock on the pod's apps is held.
struct Addition {
    planned: AddedAppPlan,
    row: NewApp,
    named_volumes: BTreeSet<VolumeName>,
    /// The record of the added apps, with this one.
    record: AddedApps,
    /// Whether gantryd starts the app again after a power cut.
    is_durable: bool,
    /// The directory of named volumes.
    volumes_dir: String,
}

impl Engine {
    /// Adds an app to a running pod and returns when it is created: its root and mounts are made, and its program was
    /// found. [`Self::start_app`] starts it.
    ///
    /// # Errors
    /// [`EngineError`]; nothing is left of the app then, unless the supervisor is stopped ([`ControlError::Stopped`]):
    /// the first command on the pod after it is continued records the app or removes it.
    pub fn add_app(
        &self,
        id: PodId,
        spec: AddedAppSpec,
        policy: PullPolicy,
        progress: &dyn Progress,
    ) -> Result<(), EngineError> {
        self.add_app_and_start(id, spec, false, policy, progress)
    }

    /// Adds an app to a running pod, as [`Self::add_app`]; with `start`, starts it by the same request, so that both
    /// are recorded together.
    ///
    /// # Errors
    /// As [`Self::add_app`]; the app is left if only its start has failed.
    pub fn add_app_and_start(
        &self,
        id: PodId,
        mut spec: AddedAppSpec,
        start: bool,
        policy: PullPolicy,
        progress: &dyn Progress,
    ) -> Result<(), EngineError> {
        need_root("add an app to a pod").map_err(EngineError::from_cause)?;
        assign_id(&mut spec.app).map_err(EngineError::from_cause)?;
        self.check_storage_limits(std::iter::once(&spec.app))?;
        self.running_pod(id)?;
        // Before the lock: fetching an image may take minutes.
        let source = self.source_of_app(&spec, policy, progress)?;
        let lock = self.lock_apps_or_fail(id)?;
        let addition = self.plan_addition(id, &spec, source, &lock)?;
        for name in &addition.named_volumes {
            self.create_missing_volume(name).map_err(EngineError::from_cause)?;
        }
        self.store.add_app(id, &addition.row, &addition.named_volumes).map_err(EngineError::from_cause)?;
        let sent = self
            .write_added_apps(id, &addition.record, addition.is_durable, &lock)
            .map_err(EngineError::from_cause)
            .and_then(|()| self.create_planned_app(id, addition.planned, start, &addition.volumes_dir, &lock));
        let error = match sent {
            Ok(Reply::Done | Reply::AppStarted(_)) => return self.record_created_app(id, &spec, &lock),
            Ok(other) => EngineError::from_cause(unexpected(id, &other)),
            Err(error) => error,
        };
        self.settle_failed_add(id, &spec, start, error, &lock)
    }

    /// The image of an app and its volumes, fetched if the policy says so.
    fn source_of_app(
        &self,
        spec: &AddedAppSpec,
        policy: PullPolicy,
        progress: &dyn Progress,
    ) -> Result<AppSource, EngineError> {
        let app = PodSpec { apps: vec![spec.app.clone()], volumes: spec.volumes.clone(), ..PodSpec::default() };
        let images = self.images_of(&app, policy, progress).map_err(EngineError::from_cause)?;
        let configs = self.configs_of(&app, &images).map_err(EngineError::from_cause)?;
        let Some((image, config)) = images.into_iter().zip(configs).next() else {
            return Err(EngineError::new(ErrorKind::Internal, "the app has no image"));
        };
        for path in plan::ignored_volumes(&config) {
            progress.notify(Note::VolumeIgnored { path: path.clone() });
        }
        let volumes = self.resolve_image_volumes(&app, policy, progress).map_err(EngineError::from_cause)?;
        Ok(AppSource { image, config, volumes })
    }

    /// Undoes what a killed command has left, checks the request against the pod, and plans the app.
    fn plan_addition(
        &self,
        id: PodId,
        spec: &AddedAppSpec,
        source: AppSource,
        lock: &AppsLock,
    ) -> Result<Addition, EngineError> {
        let AppSource { image, config, volumes } = source;
        // A killed command may have left an app of this name.
        let (row, journal) = self.undo_adds_under_lock(id, lock).map_err(EngineError::from_cause)?;
        need_running(&row)?;
        let pod_plan = self.plan(id).map_err(EngineError::from_cause)?;
        let mut record = self.added_apps(id).map_err(EngineError::from_cause)?;
        let unlisted = unknown_apps(&row, &journal);
        record.apps.retain(|added| {
            let mut names = row.apps.iter().map(|known| &known.name).chain(&unlisted);
            names.any(|name| name.as_str() == added.app.name)
        });
        let added_volumes: Vec<VolumeSpec> = record.apps.iter().flat_map(|added| added.volumes.clone()).collect();
        check(spec, &row, &pod_plan, &added_volumes)?;
        self.check_log_files(pod_plan.log_dir.as_ref(), std::iter::once(&spec.app))?;
        let chains = image.layers.iter().map(|layer| &layer.chain).collect();
        let size = self.size_of(&image).map_err(EngineError::from_cause)?;
        let known: Vec<VolumeSpec> = pod_plan.volumes.into_iter().chain(added_volumes).collect();
        let asked = AddedAppSpec { app: spec.app.clone(), volumes };
        let planned =
            plan::added_app(&asked, &plan::Image { config: &config, chains, size }, &pod_plan.hostname, known.clone())
                .map_err(|error| EngineError::from_cause(PrepareError::from(error)))?;
        let volume_images = image_volumes::images(&planned.app.mounts, known.iter().chain(&planned.volumes));
        let named_volumes = PodSpec { volumes: planned.volumes.clone(), ..PodSpec::default() }.named_volumes();
        record.apps.push(AddedApp {
            app: planned.app.clone(),
            volumes: planned.volumes.clone(),
            manifest: manifest::app_to_value(&spec.app),
        });
        Ok(Addition {
            planned,
            row: new_app(&spec.app, Some(&image), volume_images),
            named_volumes,
            record,
            is_durable: has_restart_policy(&row) || spec.app.options.restart != RestartPolicy::No,
            volumes_dir: pod_plan.volumes_dir,
        })
    }

    /// Has the supervisor create an app that is on record.
    fn create_planned_app(
        &self,
        id: PodId,
        planned: AddedAppPlan,
        start: bool,
        volumes_dir: &str,
        lock: &AppsLock,
    ) -> Result<Reply, EngineError> {
        let mounts = clone_mounts(volumes_dir, &planned)?;
        let block_devices = block_devices(&planned.app.options.limits)?;
        let devices = devices::read_devices(&planned.app.options)?;
        // Last: the supervisor removes the directories that this makes only if it was asked to create the app.
        storage_limit::limit_app(&self.pod_dir(id), &planned.app).map_err(EngineError::from_cause)?;
        let AddedAppPlan { app, volumes } = planned;
        let request = AddApp { app, start, volumes, terminal_size: None, block_devices, devices };
        let meanwhile = || {
            self.remove_temporary_record(id, lock);
            self.store.compile_changes();
        };
        self.ask_app_and(id, &Request::AddApp(Box::new(request)), &mounts, CREATE_TIMEOUT, meanwhile)
            .map_err(EngineError::from_cause)
    }

    /// Records an app that the supervisor has created. gantryd starts an app with a restart policy again with its pod,
    /// so its row and the changed limits of the pod are made durable, as `added.json` is already.
    fn record_created_app(&self, id: PodId, spec: &AddedAppSpec, lock: &AppsLock) -> Result<(), EngineError> {
        // The journal has the creation.
        let _left_to_reconcile = self.reconcile_pod(id);
        if spec.app.options.restart == RestartPolicy::No {
            return Ok(());
        }
        let durable = self.store.make_durable().map_err(|error| EngineError::from_cause(PodError::store(error)));
        durable.and_then(|()| self.sync_updated_limits(id)).inspect_err(|_| self.undo_add(id, &spec.app.name, lock))
    }

    /// Undoes an addition that has failed with `error`, unless the app was created all the same: the start may be what
    /// has failed, or only the reply was lost.
    fn settle_failed_add(
        &self,
        id: PodId,
        spec: &AddedAppSpec,
        start: bool,
        error: EngineError,
        lock: &AppsLock,
    ) -> Result<(), EngineError> {
        let name: &AppName = &spec.app.name;
        let state = if start { self.app_of_running_pod(id, name) } else { Ok(AppState::Creating) };
        match state {
            Ok(AppState::Creating) | Err(_) => self.undo_add(id, name, lock),
            // The reply was lost.
            Ok(AppState::Started { .. }) => return self.record_created_app(id, spec, lock),
            // Only its start has failed.
            Ok(AppState::Waiting | AppState::Created | AppState::Exited { .. }) => {
                self.record_created_app(id, spec, lock)?;
            }
        }
        Err(error)
    }
}

/// A detached mount of the source of each host and named volume: the supervisor does not see the host's mounts. It
/// stays in the peer group of the mount that it is a clone of.
fn clone_mounts(volumes_dir: &str, planned: &AddedAppPlan) -> Result<Vec<OwnedFd>, EngineError> {
    let mut mounts = Vec::new();
    for volume in &planned.volumes {
        let (source, recursive) = match &volume.kind {
            VolumeKind::Host { source, recursive } => (source.clone(), *recursive),
            VolumeKind::Named { volume } => (format!("{volumes_dir}/{volume}"), false),
            VolumeKind::Anonymous | VolumeKind::Empty { .. } | VolumeKind::Image { .. } => continue,
        };
        check_peers(&source, gantry_contract::plan::propagation(&planned.app.mounts, volume))?;
        let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        if recursive {
            flags |= OpenTreeFlags::AT_RECURSIVE;
        }
        let opened = open_tree(CWD, source.as_str(), flags).map_err(|errno| {
            let error = std::io::Error::from(errno);
            let text = format!("cannot use '{}' as volume '{}'", shown(&source), volume.name);
            EngineError::new(ErrorKind::of_io(&error), text).caused_by(error)
        });
        mounts.push(opened?);
    }
    if mounts.len() > MAX_MOUNTS {
        let why = format!("{} volumes of the host are too many for one app: {MAX_MOUNTS} is the limit", mounts.len());
        return Err(EngineError::new(ErrorKind::Invalid, why));
    }
    Ok(mounts)
}

/// Refuses a source whose mount cannot propagate.
fn check_peers(source: &str, propagation: Propagation) -> Result<(), EngineError> {
    if !propagation.propagates() {
        return Ok(());
    }
    let groups = gantry_host::mounts::peer_groups(source.as_ref()).map_err(|error| {
        let text = format!("cannot inspect the mount of '{}'", shown(source));
        EngineError::new(ErrorKind::of_io(&error), text).caused_by(error)
    })?;
    propagation.check_source(source, groups.is_shared, groups.is_slave).map_err(EngineError::from_cause)
}

/// Checks the request against the pod: an added app mounts volumes that the pod was created with, or its own, whose
/// names no other app of the pod uses.
fn check(spec: &AddedAppSpec, row: &PodRow, plan: &Plan, added: &[VolumeSpec]) -> Result<(), EngineError> {
    let id = row.id;
    if plan.flavor == PodFlavor::Host {
        let why = format!("pod {id} was started with --stage1=host: apps cannot be added to it");
        return Err(EngineError::new(ErrorKind::Refused, why));
    }
    if row.apps.iter().any(|app| app.name == spec.app.name) {
        let why = format!(
            "pod {id} already has an app '{}': choose another name with --name, or remove that app first",
            spec.app.name
        );
        return Err(EngineError::new(ErrorKind::AlreadyExists, why));
    }
    if let Some(volume) = spec.volumes.iter().find(|new| added.iter().any(|known| known.name == new.name)) {
        let why = format!("pod {id} already has a volume '{}': choose another name", volume.name);
        return Err(EngineError::new(ErrorKind::AlreadyExists, why));
    }
    let pod = PodSpec {
        sandbox: true,
        volumes: plan.volumes.clone(),
        net: Some(row.net.clone()),
        hostname: (plan.uts == UtsMode::Pod).then(|| row.hostname.clone()),
        ipc: plan.ipc,
        uts: plan.uts,
        userns: plan.user_ids.map_or(UserNamespaceMode::Host, UserNamespaceMode::Mapped),
        privileged: plan.privileged,
        limits: plan.limits.clone(),
        log_dir: plan.log_dir.clone(),
        ..PodSpec::default()
    };
    check_added_log(&spec.app, row)?;
    spec.validate(&pod).map_err(EngineError::from_cause)
}
