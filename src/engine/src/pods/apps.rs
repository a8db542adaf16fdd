//! Apps of a running pod: added, started, stopped, restarted and removed while it runs.
//!
//! # What a kill leaves behind
//!
//! The row of an added app comes first, as an intention: it protects the image. Everything else is in the supervisor's
//! journal before it is in a row, and [`Engine::reconcile`] brings rows up to the journal. The lock on `apps.lock` is
//! held from the intention to its outcome, and during a removal: a row in the state Creating while the lock is free is
//! abandoned.
//!
//! | operation | killed after | found | becomes |
//! |---|---|---|---|
//! | add | the row | Creating, lock free, no creation in the journal | no app, no row |
//! | add | the record (`added.json`) | the same | the same; the next add or removal drops the entry |
//! | add | the request | the same; the supervisor may create the app later | the same: the supervisor removes it |
//! | add | the creation | Creating, journal says created | Created |
//! | start, restart | the request | Created or Exited, journal says started | running, attempt + 1 |
//! | stop, restart | the request | running, journal says exited | Exited |
//! | remove | the request | Exited, journal says removed | no row; its entry in `added.json` goes with it |
//! | remove, of a pod that has ended | | see [`crate::pods::ended_apps`] |
//! | any of them | the database was replaced by a backup | no row, on record in `added.json`, journal says created | a row again |
//! | any | | the pod has ended | Creating: no row. Created: stays. Running: Exited |

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gantry_contract::control::{AddApp, Reply, Request};
use gantry_contract::journal::Parsed;
use gantry_contract::plan::Plan;
use gantry_contract::start;
use gantry_fetch::{Progress, PullPolicy};
use gantry_model::id::shown;
use gantry_model::mount_options::Propagation;
use gantry_model::namespaces::UtsMode;
use gantry_model::restart::RestartPolicy;
use gantry_model::spec::{AddedAppSpec, PodFlavor, VolumeKind, VolumeSpec};
use gantry_model::user_namespace::UserNamespaceMode;
use gantry_model::{AppName, AppState, ErrorKind, Kind as _, Phase, PodId, PodSpec};
use gantry_store::{AppRow, Moved, PodRow};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::error::need_root;
use crate::host::devices;
use crate::host::process::Deadline;
use crate::logs::chosen::check_added_log;
use crate::pods::added::{AddedApp, AddedApps, AppsLock};
use crate::pods::app_history::AppHistories;
use crate::pods::control::{ControlError, unexpected};
use crate::pods::ended_apps::has_ended;
use crate::pods::exec::{ExecError, select_app};
use crate::pods::image_volumes;
use crate::pods::plan::{self, AddedAppPlan};
use crate::pods::prepare::{assign_id, new_app};
use crate::pods::restart::has_restart_policy;
use crate::pods::storage_limit;
use crate::pods::update::block_devices;
use crate::{Engine, EngineError, PodError, PrepareError, manifest};

/// How often the start of an app is tried whose restart policy starts it at the same time.
const MAX_START_TRIES: u32 = 5;

/// The time another process may take to add an app or to remove one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);
/// The time limit of adding, starting and removing an app.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit of creating an app. The supervisor gives up filling its volumes after ten minutes.
const CREATE_TIMEOUT: Duration = Duration::from_secs(660);
/// The time a stop may take beyond the grace period.
const STOP_SLACK: Duration = Duration::from_secs(10);
/// The pauses between requests while the supervisor works on another one for the same app.
const MIN_BUSY_INTERVAL: Duration = Duration::from_millis(2);
const MAX_BUSY_INTERVAL: Duration = Duration::from_millis(100);
/// Descriptors of a message (unix(7), SCM_MAX_FD is 253).
const MAX_MOUNTS: usize = 250;

impl Engine {
    /// Adds an app to a running pod and returns when it is created: its root and mounts are made, and its program was
    /// found. [`Self::start_app`] starts it.
    ///
    /// # Errors
    /// [`EngineError`]; nothing is left of the app then.
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
    /// [`EngineError`]; nothing is left of the app then, unless only its start has failed.
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
        let app = PodSpec { apps: vec![spec.app.clone()], volumes: spec.volumes.clone(), ..PodSpec::default() };
        let images = self.images_of(&app, policy, progress).map_err(EngineError::from_cause)?;
        let configs = self.configs_of(&app, &images).map_err(EngineError::from_cause)?;
        let (Some(image), Some(config)) = (images.first(), configs.first()) else {
            return Err(EngineError::new(ErrorKind::Internal, "the app has no image"));
        };
        for path in plan::ignored_volumes(config) {
            progress.notify(gantry_fetch::Note::VolumeIgnored { path: path.clone() });
        }
        let volumes = self.resolve_image_volumes(&spec.volumes, policy, progress).map_err(EngineError::from_cause)?;
        let lock = self.lock_apps_or_fail(id)?;
        // A killed command may have left an app of this name.
        let (row, journal) = self.undo_adds_under_lock(id, &lock).map_err(EngineError::from_cause)?;
        need_running(&row)?;
        let (plan, mut added) = self.plan_and_added_apps(id)?;
        let unlisted = unknown_apps(&row, &journal);
        added.apps.retain(|app| {
            let mut names = row.apps.iter().map(|known| &known.name).chain(&unlisted);
            names.any(|name| name.as_str() == app.app.name)
        });
        let names: Vec<VolumeSpec> = added.apps.iter().flat_map(|app| app.volumes.clone()).collect();
        check(&spec, &row, &plan, &names)?;
        self.check_log_files(plan.log_dir.as_ref(), std::iter::once(&spec.app))?;
        let chains = image.layers.iter().map(|layer| &layer.chain).collect();
        let size = self.size_of(image).map_err(EngineError::from_cause)?;
        let image_of_app = plan::Image { config, chains, size };
        let known: Vec<VolumeSpec> = plan.volumes.iter().chain(&names).cloned().collect();
        let asked = AddedAppSpec { app: spec.app.clone(), volumes };
        let planned = plan::added_app(&asked, &image_of_app, &plan.hostname, known.clone())
            .map_err(|error| EngineError::from_cause(PrepareError::from(error)))?;
        let volume_images = image_volumes::images(&planned.app.mounts, known.iter().chain(&planned.volumes));
        let new = new_app(&spec.app, Some(image), volume_images);
        let named: BTreeSet<_> = PodSpec { volumes: planned.volumes.clone(), ..PodSpec::default() }.named_volumes();
        for name in &named {
            self.create_missing_volume(name).map_err(EngineError::from_cause)?;
        }
        self.store.add_app(id, &new, &named).map_err(EngineError::from_cause)?;
        added.apps.push(AddedApp {
            app: planned.app.clone(),
            volumes: planned.volumes.clone(),
            manifest: manifest::app_to_value(&spec.app),
        });
        let name = &spec.app.name;
        let durable = has_restart_policy(&row) || spec.app.options.restart != RestartPolicy::No;
        let sent = self
            .write_added_apps(id, &added, durable, &lock)
            .map_err(EngineError::from_cause)
            .and_then(|()| self.create_planned_app(id, planned, start, &plan.volumes_dir, &lock));
        let error = match sent {
            Ok(Reply::Done | Reply::AppStarted(_)) => return self.record_created_app(id, &spec, &lock),
            Ok(other) => EngineError::from_cause(unexpected(id, &other)),
            Err(error) => error,
        };
        let state = if start { self.app_of_running_pod(id, name) } else { Ok(AppState::Creating) };
        match state {
            Ok(AppState::Creating) | Err(_) => self.undo_add(id, name, &lock),
            // The reply was lost.
            Ok(AppState::Started { .. }) => return self.record_created_app(id, &spec, &lock),
            // Only its start has failed.
            Ok(AppState::Waiting | AppState::Created | AppState::Exited { .. }) => {
                self.record_created_app(id, &spec, &lock)?;
            }
        }
        Err(error)
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
        storage_limit::limit_app(&self.pod_dir(id), &planned.app).map_err(EngineError::from_cause)?;
        let mounts = self.clone_mounts(volumes_dir, &planned)?;
        let block_devices = block_devices(&planned.app.options.limits)?;
        let devices = devices::read_devices(&planned.app.options)?;
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

    /// The app of this name; without a name, the pod's only app.
    ///
    /// # Errors
    /// [`ExecError`]: the pod has no such app, no apps at all, or several and none is named.
    pub fn select_app(&self, id: PodId, app: Option<&AppName>) -> Result<AppName, ExecError> {
        select_app(&self.reconcile_pod(id)?, app)
    }

    /// Starts an app that was created or has exited. Does nothing if it runs.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn start_app(&self, id: PodId, app: &AppName) -> Result<(), EngineError> {
        need_root("start an app").map_err(EngineError::from_cause)?;
        let mut tries = 0;
        loop {
            let state = self.app_of_running_pod(id, app)?;
            if state.is_running() {
                return Ok(());
            }
            let attempt = next_attempt(id, app, &state)?;
            let request = Request::StartApp { app: app.to_string(), attempt };
            tries += 1;
            match self.ask_to_start(id, app, attempt, &request, REQUEST_TIMEOUT) {
                // The restart policy used the number meanwhile, and the app has exited again.
                Err(error)
                    if tries < MAX_START_TRIES
                        && error.kind() == ErrorKind::Refused
                        && self.app_of_running_pod(id, app)?.attempt() >= Some(attempt) => {}
                result => return result,
            }
        }
    }

    /// Stops an app: its stop signal, and SIGKILL after the grace period. Returns when it has exited. Does nothing if
    /// it does not run.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn stop_app(&self, id: PodId, app: &AppName, grace: Duration) -> Result<(), EngineError> {
        need_root("stop an app").map_err(EngineError::from_cause)?;
        // An app that has exited may be about to be restarted.
        match self.app_of_running_pod(id, app)? {
            AppState::Waiting | AppState::Creating | AppState::Created => return Ok(()),
            AppState::Started { .. } | AppState::Exited { .. } => {}
        }
        // The event is not worth a failure: what it announces follows.
        let _stops_without_event = self.store.record_stopping(id, Some(app));
        let request = Request::StopApp { app: app.to_string(), grace_ms: milliseconds(grace) };
        match self.ask_app(id, &request, &[], grace.saturating_add(STOP_SLACK)) {
            Ok(Reply::Done) => self.reconcile_pod(id).map(drop).map_err(EngineError::from_cause),
            Ok(other) => Err(EngineError::from_cause(unexpected(id, &other))),
            Err(error) if is_refusal(&error) => Err(EngineError::from_cause(error)),
            // The app may have been the last of its pod, whose supervisor then ends.
            Err(error) => match self.wait(id, Some(STOP_SLACK)) {
                Ok(Some(_)) | Err(PodError::NotFound(_)) => Ok(()),
                Ok(None) | Err(_) => Err(EngineError::from_cause(error)),
            },
        }
    }

    /// Stops an app that runs, and starts it. The pod does not end in between.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn restart_app(&self, id: PodId, app: &AppName, grace: Duration) -> Result<(), EngineError> {
        need_root("restart an app").map_err(EngineError::from_cause)?;
        let state = self.app_of_running_pod(id, app)?;
        let AppState::Started { attempt, .. } = state else { return self.start_app(id, app) };
        let attempt = attempt.checked_add(1).ok_or_else(|| no_attempt_left(id, app))?;
        // The event is not worth a failure: what it announces follows.
        let _stops_without_event = self.store.record_stopping(id, Some(app));
        let request = Request::RestartApp { app: app.to_string(), attempt, grace_ms: milliseconds(grace) };
        self.ask_to_start(id, app, attempt, &request, grace.saturating_add(REQUEST_TIMEOUT))
    }

    /// Removes an app from a pod that runs or has ended, with its writable layer and its logs; with `force`, stops it
    /// first.
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn remove_app(&self, id: PodId, app: &AppName, force: bool) -> Result<(), EngineError> {
        need_root("remove an app").map_err(EngineError::from_cause)?;
        if has_ended(&self.reconcile_pod(id).map_err(EngineError::from_cause)?.phase) {
            return self.remove_ended_app(id, app);
        }
        let chosen = self.find_app_of_running_pod(id, app)?;
        need_image(id, &chosen)?;
        if chosen.state.is_running() {
            if !force {
                let why = format!("app '{app}' of pod {id} is running: stop it first, or remove it with --force");
                return Err(EngineError::new(ErrorKind::Refused, why));
            }
            self.stop_app(id, app, self.stop_grace(id, Some(app)))?;
        }
        let lock = self.lock_apps_or_fail(id)?;
        let (row, _) = self.undo_adds_under_lock(id, &lock).map_err(EngineError::from_cause)?;
        let app_now = self.find_app_of_running_pod(id, app)?;
        let changed = match app_now.added == chosen.added {
            false => Some("was removed by another process, and another app of this name was added"),
            true => app_now.state.is_running().then_some("was started again by another process"),
        };
        if let Some(changed) = changed {
            return Err(EngineError::new(ErrorKind::Refused, format!("app '{app}' of pod {id} {changed}")));
        }
        self.ask_to_remove(id, app, REQUEST_TIMEOUT).map_err(EngineError::from_cause)?;
        // Killed before this, the removal of the pod removes the limit.
        storage_limit::release(&self.pod_dir(id), Some(app)).map_err(EngineError::from_cause)?;
        self.forget_added_app(id, app.as_str(), &lock).map_err(EngineError::from_cause)?;
        // Deletes the row, since the journal has the removal.
        self.reconcile_pod(id).map_err(EngineError::from_cause)?;
        match has_restart_policy(&row) {
            true => self.make_removal_durable(id),
            false => Ok(()),
        }
    }

    /// Makes the removal of an app from a pod durable that gantryd starts again: its row, and the record of limits.
    fn make_removal_durable(&self, id: PodId) -> Result<(), EngineError> {
        self.store.make_durable().map_err(|error| EngineError::from_cause(PodError::store(error)))?;
        self.sync_updated_limits(id)
    }

    /// Undoes what commands left that were killed while they added an app. Called when the row is up to the journal.
    /// Does nothing while a process adds an app: then rows and journal differ for a moment.
    pub(crate) fn undo_abandoned_adds(&self, row: PodRow, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        let is_abandoned =
            row.apps.iter().any(|app| app.state == AppState::Creating) || !unknown_apps(&row, journal).is_empty();
        if !self.writes.get() || !is_abandoned {
            return Ok(Some(row));
        }
        let id = row.id;
        let lock = match self.lock_apps(id, Duration::ZERO) {
            Ok(Some(lock)) => lock,
            Ok(None) | Err(PodError::NotFound(_)) => return Ok(Some(row)),
            Err(error) => return Err(error),
        };
        match self.undo_adds_under_lock(id, &lock) {
            Ok((row, _)) => Ok(Some(row)),
            Err(PodError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same, for the holder of the lock: rows and journal are what the dead process left. Returns both as they are
    /// then.
    fn undo_adds_under_lock(&self, id: PodId, lock: &AppsLock) -> Result<(PodRow, Arc<Parsed>), PodError> {
        self.remove_temporary_record(id, lock);
        let (row, journal) = self.row_up_to_journal(id)?;
        let creating = row.apps.iter().filter(|app| app.state == AppState::Creating).map(|app| &app.name);
        let creating: Vec<_> = creating.collect();
        // An app that is on record lost its row with the database; another one was created after its row was deleted.
        let unknown = unknown_apps(&row, &journal);
        let is_clean = creating.is_empty() && unknown.is_empty();
        if is_clean || !matches!(row.phase, Phase::Running { .. }) {
            return Ok((row, journal));
        }
        for app in creating {
            self.undo_add(id, app, lock);
        }
        let recorded = self.added_apps(id)?;
        for app in &unknown {
            match recorded.apps.iter().find(|known| known.app.name == app.as_str()) {
                Some(recorded) => self.adopt_added_app(id, recorded)?,
                None => self.undo_add(id, app, lock),
            }
        }
        self.row_up_to_journal(id)
    }

    fn row_up_to_journal(&self, id: PodId) -> Result<(PodRow, Arc<Parsed>), PodError> {
        let journal = self.journal(id)?;
        let row = self.store.pod(id).map_err(PodError::store)?;
        let row = row.map(|row| self.record_app_changes(row, &journal)).transpose()?.flatten();
        Ok((row.ok_or(PodError::NotFound(id.into()))?, journal))
    }

    /// Drops removed apps from the record, where the command that removed them was killed. The command itself holds the
    /// lock until it has done so.
    pub(crate) fn forget_removed_apps(&self, id: PodId, removed: &[AppName]) -> Result<(), PodError> {
        let lock = match self.lock_apps(id, Duration::ZERO) {
            Ok(Some(lock)) => lock,
            Ok(None) | Err(PodError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        self.remove_temporary_record(id, &lock);
        // Another app of the name may have been added meanwhile.
        let Some(row) = self.store.pod(id).map_err(PodError::store)? else { return Ok(()) };
        let is_unused = |name: &&AppName| row.apps.iter().all(|app| app.name != **name);
        removed.iter().filter(is_unused).try_for_each(|name| self.forget_added_app(id, name.as_str(), &lock))
    }

    /// Undoes the addition of an app that may or may not have been created. A failure leaves the row as it is, to be
    /// undone by the next reconciliation.
    fn undo_add(&self, id: PodId, app: &AppName, lock: &AppsLock) {
        // Also if it was refused: the supervisor may get an earlier request later.
        let _left_to_reconcile = self
            .ask_to_remove(id, app, self.timeouts.network)
            .map_err(EngineError::from_cause)
            .and_then(|()| self.forget_added_app(id, app.as_str(), lock).map_err(EngineError::from_cause))
            .and_then(|()| self.delete_app_row(id, app).map_err(EngineError::from_cause));
    }

    /// Deletes the row of an app that the supervisor does not have.
    fn delete_app_row(&self, id: PodId, app: &AppName) -> Result<(), PodError> {
        loop {
            let Some(row) = self.store.pod(id).map_err(PodError::store)? else { return Ok(()) };
            let is_there = row.apps.iter().any(|known| known.name == *app);
            if !is_there || !matches!(row.phase, Phase::Running { .. }) {
                return Ok(());
            }
            let removed = std::slice::from_ref(app);
            match self.store.update_apps(id, row.generation, &[], removed).map_err(PodError::store)? {
                Moved::Yes(_) => return Ok(()),
                // Another process changed the pod first.
                Moved::Lost(_) => {}
            }
        }
    }

    pub(crate) fn lock_apps_or_fail(&self, id: PodId) -> Result<AppsLock, EngineError> {
        let lock = self.lock_apps(id, LOCK_TIMEOUT).map_err(EngineError::from_cause)?;
        lock.ok_or_else(|| {
            let why = format!("another process is adding an app to pod {id} or removing one: try again later");
            EngineError::new(ErrorKind::Busy, why)
        })
    }

    fn running_pod(&self, id: PodId) -> Result<PodRow, EngineError> {
        let row = self.reconcile_pod(id).map_err(EngineError::from_cause)?;
        need_running(&row).map(|()| row)
    }

    pub(crate) fn app_of_running_pod(&self, id: PodId, app: &AppName) -> Result<AppState, EngineError> {
        self.find_app_of_running_pod(id, app).map(|row| row.state)
    }

    fn find_app_of_running_pod(&self, id: PodId, app: &AppName) -> Result<AppRow, EngineError> {
        let row = self.running_pod(id)?;
        select_app(&row, Some(app)).map_err(EngineError::from_cause)?;
        row.apps
            .into_iter()
            .find(|known| known.name == *app)
            .ok_or_else(|| EngineError::new(ErrorKind::NotFound, format!("pod {id} has no app '{app}'")))
    }

    /// Sends a request that starts an attempt of an app, and records the start. Another process may have started the
    /// same attempt, which may even have exited.
    fn ask_to_start(
        &self,
        id: PodId,
        app: &AppName,
        attempt: u32,
        request: &Request,
        within: Duration,
    ) -> Result<(), EngineError> {
        let reply = self.ask_app(id, request, &[], within);
        // Whether it succeeds or not: the journal has the start.
        let row = self.reconcile_pod(id);
        match reply {
            Ok(Reply::AppStarted(start::Started { .. })) => Ok(()),
            Ok(other) => Err(EngineError::from_cause(unexpected(id, &other))),
            Err(error) => {
                let apps = row.map(|row| row.apps).unwrap_or_default();
                let state = apps.iter().find(|known| known.name == *app).map(|known| &known.state);
                let was_started = state.is_some_and(|state| {
                    // Without a refusal, the reply was lost: the start that the journal has was this one.
                    state.attempt().is_some_and(|last| last >= attempt) && (state.is_running() || !is_refusal(&error))
                });
                if was_started { Ok(()) } else { Err(EngineError::from_cause(error)) }
            }
        }
    }

    fn ask_to_remove(&self, id: PodId, app: &AppName, within: Duration) -> Result<(), ControlError> {
        match self.ask_app(id, &Request::RemoveApp { app: app.to_string() }, &[], within)? {
            Reply::Done => Ok(()),
            other => Err(unexpected(id, &other)),
        }
    }

    /// Sends a request, and repeats it while the supervisor works on another one for the same app.
    pub(super) fn ask_app(
        &self,
        id: PodId,
        request: &Request,
        mounts: &[OwnedFd],
        within: Duration,
    ) -> Result<Reply, ControlError> {
        self.ask_app_and(id, request, mounts, within, || {})
    }

    /// As [`Self::ask_app`], but calls `work` while the supervisor handles the request, and again for each repetition.
    fn ask_app_and(
        &self,
        id: PodId,
        request: &Request,
        mounts: &[OwnedFd],
        within: Duration,
        work: impl Fn(),
    ) -> Result<Reply, ControlError> {
        let mounts: Vec<_> = mounts.iter().map(OwnedFd::as_fd).collect();
        let ask = || {
            let connection = self.connect_within(id, within)?;
            connection.send(request, &mounts)?;
            work();
            Ok(connection.receive(within)?.0)
        };
        let deadline = Deadline::after(within);
        let mut pause = MIN_BUSY_INTERVAL;
        loop {
            match ask() {
                Err(ControlError::Failed { kind: ErrorKind::Busy, .. }) if !deadline.passed() => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(MAX_BUSY_INTERVAL);
                }
                other => return other,
            }
        }
    }

    /// A detached mount of the source of each host and named volume: the supervisor does not see the host's mounts. It
    /// stays in the peer group of the mount that it is a clone of.
    fn clone_mounts(&self, volumes_dir: &str, planned: &AddedAppPlan) -> Result<Vec<OwnedFd>, EngineError> {
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
            let why =
                format!("{} volumes of the host are too many for one app: {MAX_MOUNTS} is the limit", mounts.len());
            return Err(EngineError::new(ErrorKind::Invalid, why));
        }
        Ok(mounts)
    }

    fn plan_and_added_apps(&self, id: PodId) -> Result<(Plan, AddedApps), EngineError> {
        let plan = self.plan(id).map_err(EngineError::from_cause)?;
        Ok((plan, self.added_apps(id).map_err(EngineError::from_cause)?))
    }
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

/// Fails unless the pod runs.
fn need_running(row: &PodRow) -> Result<(), EngineError> {
    match &row.phase {
        Phase::Running { .. } => Ok(()),
        other => {
            let (id, phase) = (row.id, other.name());
            let why = format!("pod {id} is {phase}: only the apps of a running pod can be changed");
            Err(EngineError::new(ErrorKind::Refused, why))
        }
    }
}

/// The apps that the supervisor added and that have no row.
pub(crate) fn unknown_apps(row: &PodRow, journal: &Parsed) -> Vec<AppName> {
    let histories = AppHistories::from_journal(journal);
    histories.added_names().filter(|name| row.apps.iter().all(|app| app.name != *name)).collect()
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

fn next_attempt(id: PodId, app: &AppName, state: &AppState) -> Result<u32, EngineError> {
    match state {
        AppState::Waiting | AppState::Creating => {
            let why = format!("app '{app}' of pod {id} is not created yet: try again later");
            Err(EngineError::new(ErrorKind::Busy, why))
        }
        AppState::Created | AppState::Started { .. } | AppState::Exited { .. } => {
            state.next_attempt().ok_or_else(|| no_attempt_left(id, app))
        }
    }
}

fn no_attempt_left(id: PodId, app: &AppName) -> EngineError {
    EngineError::new(
        ErrorKind::Exhausted,
        format!("app '{app}' of pod {id} was started too often: remove it and add it again"),
    )
}

/// Refuses to remove an app that has no root of its own.
pub(crate) fn need_image(id: PodId, app: &AppRow) -> Result<(), EngineError> {
    if app.image.is_some() {
        return Ok(());
    }
    let name = &app.name;
    let why = format!("app '{name}' of pod {id} runs on the host's file system: it is removed with its pod");
    Err(EngineError::new(ErrorKind::Refused, why))
}

/// Whether the supervisor replied, and refused the request.
fn is_refusal(error: &ControlError) -> bool {
    matches!(error, ControlError::Failed { .. } | ControlError::Version { .. } | ControlError::TooLong { .. })
}

pub(crate) fn milliseconds(grace: Duration) -> u64 {
    u64::try_from(grace.as_millis()).unwrap_or(u64::MAX)
}
