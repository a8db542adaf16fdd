//! Apps of a running pod: started, stopped, restarted and removed while it runs; [`crate::pods::app_add`] adds them.
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
//! | add | the request; the supervisor is stopped | the same | the same, once it is continued |
//! | add | the creation | Creating, journal says created | Created |
//! | start, restart | the request | Created or Exited, journal says started | running, attempt + 1 |
//! | stop, restart | the request | running, journal says exited | Exited |
//! | remove | the request | Exited, journal says removed | no row; its entry in `added.json` goes with it |
//! | remove, of a pod that has ended | | see [`crate::pods::ended_apps`] |
//! | any of them | the database was replaced by a backup | no row, on record in `added.json`, journal says created | a row again |
//! | any | | the pod has ended | Creating: no row. Created: stays. Running: Exited |

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use gantry_contract::control::{Reply, Request};
use gantry_contract::journal::Parsed;
use gantry_contract::start;
use gantry_model::quantity::milliseconds;
use gantry_model::{AppName, AppState, ErrorKind, Kind as _, Phase, PodId};
use gantry_store::{AppChanges, AppRow, Moved, PodRow};

use crate::error::need_root;
use crate::host::process::Deadline;
use crate::pods::added::AppsLock;
use crate::pods::app_history::AppHistories;
use crate::pods::control::{ControlError, unexpected};
use crate::pods::ended_apps::has_ended;
use crate::pods::exec::{ExecError, select_app};
use crate::pods::kubelet;
use crate::pods::restart::has_restart_policy;
use crate::pods::stopped::stopped_supervisor;
use crate::pods::storage_limit;
use crate::{Engine, EngineError, PodError};

/// How often the start of an app is tried whose restart policy starts it at the same time.
const MAX_START_TRIES: u32 = 5;

/// The time another process may take to add an app or to remove one.
const LOCK_TIMEOUT: Duration = Duration::from_secs(120);
/// The time limit of adding, starting and removing an app.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The time a stop may take beyond the grace period.
const STOP_SLACK: Duration = Duration::from_secs(10);
/// The pauses between requests while the supervisor works on another one for the same app.
const MIN_BUSY_INTERVAL: Duration = Duration::from_millis(2);
const MAX_BUSY_INTERVAL: Duration = Duration::from_millis(100);
impl Engine {
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
    /// [`EngineError`], also for a container of a kubelet that was started before.
    pub fn start_app(&self, id: PodId, app: &AppName) -> Result<(), EngineError> {
        need_root("start an app").map_err(EngineError::from_cause)?;
        let mut tries = 0;
        loop {
            let pod = self.running_pod(id)?;
            let known = app_of(&pod, app)?;
            if known.state.is_running() {
                return Ok(());
            }
            kubelet::check_start(&pod, known)?;
            let attempt = next_attempt(id, app, &known.state)?;
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
            AppState::Waiting | AppState::Creating | AppState::Created => Ok(()),
            AppState::Started { .. } | AppState::Exited { .. } => self.stop_started_app(id, app, grace).map(drop),
        }
    }

    /// Stops an app that was started. Returns the pod after it; `None`: a pod of `run --rm`, which has ended with its
    /// last app and was removed.
    fn stop_started_app(&self, id: PodId, app: &AppName, grace: Duration) -> Result<Option<PodRow>, EngineError> {
        // The event is not worth a failure: what it announces follows.
        let _stops_without_event = self.store.record_stopping(id, Some(app));
        let request = Request::StopApp { app: app.to_string(), grace_ms: milliseconds(grace) };
        match self.ask_app(id, &request, &[], grace.saturating_add(STOP_SLACK)) {
            Ok(Reply::Done) => match self.reconcile_pod(id) {
                Ok(row) => Ok(Some(row)),
                Err(PodError::NotFound(_)) => Ok(None),
                Err(error) => Err(EngineError::from_cause(error)),
            },
            Ok(other) => Err(EngineError::from_cause(unexpected(id, &other))),
            Err(error) if is_refusal(&error) || matches!(error, ControlError::Stopped { .. }) => {
                Err(EngineError::from_cause(error))
            }
            // The app may have been the last of its pod, whose supervisor then ends.
            Err(error) => match self.wait(id, Some(STOP_SLACK)) {
                Ok(Some(view)) => Ok(Some(*view.row)),
                Err(PodError::NotFound(_)) => Ok(None),
                Ok(None) | Err(_) => Err(EngineError::from_cause(error)),
            },
        }
    }

    /// Stops an app that runs, and starts it. The pod does not end in between.
    ///
    /// # Errors
    /// [`EngineError`], also for a container of a kubelet that was started before, and for an app of a pod that is
    /// paused with other apps.
    pub fn restart_app(&self, id: PodId, app: &AppName, grace: Duration) -> Result<(), EngineError> {
        need_root("restart an app").map_err(EngineError::from_cause)?;
        let checked = check_restart(&self.running_pod(id)?, app)?;
        self.restart_checked(id, app, checked, grace)
    }

    /// Restarts an app that [`check_restart`] has checked.
    fn restart_checked(
        &self,
        id: PodId,
        app: &AppName,
        (state, attempt): (AppState, u32),
        grace: Duration,
    ) -> Result<(), EngineError> {
        if !state.is_running() {
            return self.start_app(id, app);
        }
        // The event is not worth a failure: what it announces follows.
        let _stops_without_event = self.store.record_stopping(id, Some(app));
        let request = Request::RestartApp { app: app.to_string(), attempt, grace_ms: milliseconds(grace) };
        self.ask_to_start(id, app, attempt, &request, grace.saturating_add(REQUEST_TIMEOUT))
    }

    /// As [`Self::restart_app`], for an app of a pod that is restarted as a whole: if the pod is paused, resumes all of
    /// it first, since no app of a paused pod is started.
    ///
    /// # Errors
    /// [`EngineError`]. If the app cannot be restarted, a paused pod stays so.
    pub fn resume_to_restart(&self, id: PodId, app: &AppName, grace: Duration) -> Result<(), EngineError> {
        need_root("restart an app").map_err(EngineError::from_cause)?;
        let pod = self.running_pod(id)?;
        let checked = check_restart(&pod, app)?;
        if pod.paused {
            self.unpause(id, None)?;
        }
        self.restart_checked(id, app, checked, grace)
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
            if self.stop_to_remove(id, app)? {
                return Ok(());
            }
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

    /// Stops a running app that is to be removed. If its pod ends with it, also removes it. Returns whether it is
    /// removed.
    fn stop_to_remove(&self, id: PodId, app: &AppName) -> Result<bool, EngineError> {
        let row = self.stop_started_app(id, app, self.stop_grace(id, Some(app)))?;
        let has_ended = row.map_or(Ok(true), |row| self.wait_for_end_without_apps(&row));
        match has_ended {
            Ok(true) | Err(PodError::NotFound(_)) => {}
            Ok(false) => return Ok(false),
            Err(error) => return Err(EngineError::from_cause(error)),
        }
        match self.remove_ended_app(id, app) {
            // With its pod (`run --rm`), or by another process.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
            removed => removed.map(|()| true),
        }
    }

    /// Waits for the end of a pod whose last active app was stopped. Returns whether the pod has ended.
    fn wait_for_end_without_apps(&self, row: &PodRow) -> Result<bool, PodError> {
        let is_active = |app: &AppRow| match app.state {
            AppState::Waiting | AppState::Creating | AppState::Started { .. } => true,
            AppState::Created | AppState::Exited { .. } => app.state.is_restarting(),
        };
        match row.sandbox || row.apps.iter().any(is_active) {
            true => Ok(has_ended(&row.phase)),
            false => Ok(self.wait(row.id, Some(STOP_SLACK))?.is_some()),
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
        if !self.row_writes.are_enabled() || !is_abandoned {
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
    pub(super) fn undo_adds_under_lock(&self, id: PodId, lock: &AppsLock) -> Result<(PodRow, Arc<Parsed>), PodError> {
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
        let row = self.store.pod(id)?;
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
        let Some(row) = self.store.pod(id)? else { return Ok(()) };
        let is_unused = |name: &&AppName| row.apps.iter().all(|app| app.name != **name);
        removed.iter().filter(is_unused).try_for_each(|name| self.forget_added_app(id, name.as_str(), &lock))
    }

    /// Undoes the addition of an app that may or may not have been created. A failure leaves the row as it is, to be
    /// undone by the next reconciliation; so does a supervisor that is stopped.
    pub(super) fn undo_add(&self, id: PodId, app: &AppName, lock: &AppsLock) {
        if stopped_supervisor(&self.pod_dir(id)).is_some() {
            return;
        }
        // Also if it was refused: the supervisor may get an earlier request later.
        let _left_to_reconcile = self
            .ask_to_remove(id, app, self.timeouts.network)
            .map_err(EngineError::from_cause)
            .and_then(|()| self.forget_unmade_app(id, app, lock));
    }

    /// Removes all that an app which the supervisor does not have has left in the pod's directory and in its row. A
    /// failed step does not stop the others; the first failure is returned.
    fn forget_unmade_app(&self, id: PodId, app: &AppName, lock: &AppsLock) -> Result<(), EngineError> {
        let released = storage_limit::release(&self.pod_dir(id), Some(app)).map_err(EngineError::from_cause);
        let forgotten = self.forget_added_app(id, app.as_str(), lock).map_err(EngineError::from_cause);
        let deleted = self.delete_app_row(id, app).map_err(EngineError::from_cause);
        released.and(forgotten).and(deleted)
    }

    /// Deletes the row of an app that the supervisor does not have.
    fn delete_app_row(&self, id: PodId, app: &AppName) -> Result<(), PodError> {
        loop {
            let Some(row) = self.store.pod(id)? else { return Ok(()) };
            let is_there = row.apps.iter().any(|known| known.name == *app);
            if !is_there || !matches!(row.phase, Phase::Running { .. }) {
                return Ok(());
            }
            match self.store.update_apps(id, row.generation, &[AppChanges::removal_of(app)]).map_err(PodError::store)? {
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

    pub(super) fn running_pod(&self, id: PodId) -> Result<PodRow, EngineError> {
        let row = self.reconcile_pod(id).map_err(EngineError::from_cause)?;
        need_running(&row).map(|()| row)
    }

    pub(crate) fn app_of_running_pod(&self, id: PodId, app: &AppName) -> Result<AppState, EngineError> {
        self.find_app_of_running_pod(id, app).map(|row| row.state)
    }

    fn find_app_of_running_pod(&self, id: PodId, app: &AppName) -> Result<AppRow, EngineError> {
        app_of(&self.running_pod(id)?, app).cloned()
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
    pub(super) fn ask_app_and(
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
}

/// Fails unless the pod runs.
pub(super) fn need_running(row: &PodRow) -> Result<(), EngineError> {
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

/// The app of this name.
fn app_of<'a>(pod: &'a PodRow, app: &AppName) -> Result<&'a AppRow, EngineError> {
    select_app(pod, Some(app)).map_err(EngineError::from_cause)?;
    let no_app = || EngineError::new(ErrorKind::NotFound, format!("pod {} has no app '{app}'", pod.id));
    pod.apps.iter().find(|known| known.name == *app).ok_or_else(no_app)
}

/// The state of an app, and the number of the attempt with which it is restarted; fails if it cannot be.
fn check_restart(pod: &PodRow, app: &AppName) -> Result<(AppState, u32), EngineError> {
    let known = app_of(pod, app)?;
    kubelet::check_start(pod, known)?;
    next_attempt(pod.id, app, &known.state).map(|attempt| (known.state, attempt))
}

/// The number of the next start of an app; of one that runs, if it is restarted.
fn next_attempt(id: PodId, app: &AppName, state: &AppState) -> Result<u32, EngineError> {
    match state {
        AppState::Waiting | AppState::Creating => {
            let why = format!("app '{app}' of pod {id} is not created yet: try again later");
            Err(EngineError::new(ErrorKind::Busy, why))
        }
        AppState::Started { attempt, .. } => attempt.checked_add(1).ok_or_else(|| no_attempt_left(id, app)),
        AppState::Created | AppState::Exited { .. } => state.next_attempt().ok_or_else(|| no_attempt_left(id, app)),
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
