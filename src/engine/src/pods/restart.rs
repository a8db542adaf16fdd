//! Starting a pod again that has exited: on request (`start`, `restart`), or by gantryd, because its supervisor died
//! and an app of it has a restart policy.
//!
//! The pod keeps its directory: writable layers, volumes, logs. Attempts continue, so each start has exit records and
//! logs of its own. The supervisor gets the plan of the pod with the apps that were added and without those that were
//! removed, from memory; the plan in the directory stays that of the creation.
//!
//! # What a kill leaves behind
//!
//! The lock on the pod directory is held from the first step on, and passes to the supervisor: a pod is never started
//! twice. The starter shares the lock until the start or its failure is recorded. The journal of the former run goes
//! first, so that it is not taken for that of the new one; the row has all of it.
//!
//! | killed after | found | becomes |
//! |---|---|---|
//! | the journal was removed | Exited, lock free | the same |
//! | the row | Starting, lock free, no journal | Exited, with the former end |
//! | the supervisor was spawned | Starting, lock held | Running, when the journal says ready |
//! | the supervisor died, too | Starting, lock free, no ready record | Exited, with the former end; leftovers removed |
//! | it was ready, and died | Starting, lock free, journal says ready | Running, then Exited |
//!
//! A pod that waited for gantryd to start it waits again after a failure, longer each time. Whether it waits is part of
//! the step that records its end, which is repeated until it is recorded. So gantryd, which only reads rows, forgets no
//! pod.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use gantry_contract::journal::{Fact, Parsed};
use gantry_contract::plan::Plan;
use gantry_model::restart::{PodRestart, RestartPolicy, StartCause, StopRequest};
use gantry_model::{AppName, AppState, Edge, Phase, PodId, Timestamp};
use gantry_store::{Change, Moved, PodLock, PodRow};

use crate::error::need_root;
use crate::host::process::Deadline;
use crate::pods::kubelet::is_kubelet_sandbox;
use crate::pods::outcome::Outcome;
use crate::pods::output::Show;
use crate::pods::pod_dir;
use crate::pods::run::{RunOptions, Running, StartError, failure_reason, kill_unrecorded, running};
use crate::pods::storage_limit;
use crate::{Engine, PodError};

/// How long callers that can call again wait for a start by another process. A stop with a grace period waits for the
/// longest start instead: if it gave up, the pod would run on.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(90);
/// The pause before a pod is examined again that another process holds.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Why a start did not end, if nothing recorded it.
pub(crate) const START_INTERRUPTED: &str = "the process that started it was killed";

/// Whether gantryd starts the pod again when its supervisor died.
pub(crate) fn has_restart_policy(row: &PodRow) -> bool {
    row.apps.iter().any(|app| app.restart != RestartPolicy::No)
}

/// The apps of a pod that were stopped on request in the run that ended, or before it and not started since.
fn held_apps(row: &PodRow, journal: &Parsed) -> BTreeSet<AppName> {
    let mut stopped: BTreeMap<&str, bool> = BTreeMap::new();
    for record in &journal.records {
        match &record.fact {
            Fact::Ready(ready) => stopped.extend(ready.apps.iter().map(|app| (app.app.as_str(), false))),
            Fact::AppStarted(app) => drop(stopped.insert(&app.app, false)),
            Fact::AppStopping { app, unhealthy: false, .. } => drop(stopped.insert(app, true)),
            // It neither starts nor stops an app on request.
            _ => {}
        }
    }
    let is_held =
        |name: &AppName| stopped.get(name.as_str()).copied().unwrap_or_else(|| row.restart.held_apps.contains(name));
    row.apps.iter().map(|app| &app.name).filter(|name| is_held(name)).cloned().collect()
}

impl Engine {
    /// Starts a prepared pod, or an exited one again. `None`: it runs already.
    ///
    /// # Errors
    /// [`StartError`], also for the sandbox of a kubelet that has exited; then the pod is as before, and the processes
    /// of the start are gone.
    pub fn start_again(&self, id: PodId) -> Result<Option<Running>, StartError> {
        need_root("start a pod")?;
        let deadline = Deadline::after(START_TIMEOUT);
        loop {
            let row = self.wait_for_start(id, deadline)?;
            let started = match row.phase {
                Phase::Running { .. } => return Ok(None),
                Phase::Prepared { .. } => self.start(id, None, RunOptions { show: Show::No, remove: false }).map(Some),
                Phase::Exited { .. } if is_kubelet_sandbox(&row) => return Err(StartError::KubeletSandbox(id)),
                Phase::Exited { .. } => self.start_exited(id, StartCause::Request),
                Phase::Starting { .. } => return Err(StartError::Busy(id)),
                Phase::Embryo | Phase::Preparing | Phase::AbortedPrepare { .. } | Phase::Garbage { .. } => {
                    return Err(StartError::NotStartable { id, phase: row.phase.name() });
                }
            };
            match started {
                // Another process, perhaps gantryd, starts it: its start counts, or its failure.
                Err(StartError::Busy(_)) if !deadline.passed() => std::thread::sleep(BUSY_POLL_INTERVAL),
                other => return other,
            }
        }
    }

    /// Starts a pod again that waits for it, if it still does and its time has come. `None`: it does not wait.
    ///
    /// # Errors
    /// [`StartError`]; then the pod waits for the next try.
    pub fn start_waiting_pod(&self, id: PodId) -> Result<Option<Running>, StartError> {
        need_root("start a pod")?;
        match self.reconcile_pod(id)?.phase {
            Phase::Exited { .. } => self.start_exited(id, StartCause::Restart),
            // Another process started or removed it.
            _ => Ok(None),
        }
    }

    /// Starts an exited pod. `None`: it runs, or does not wait to be started.
    fn start_exited(&self, id: PodId, cause: StartCause) -> Result<Option<Running>, StartError> {
        let dir = self.pod_dir(id);
        let lock = self.lock_to_start(id)?;
        // Under the lock the row stays true, but for requests to stop the pod.
        let row = self.exited_row_under_lock(id)?;
        let is_due = match cause {
            StartCause::Request => true,
            StartCause::Restart => row.restart.at.is_some_and(|at| at <= gantry_store::now()),
        };
        match row.phase {
            Phase::Exited { .. } if is_due => {}
            Phase::Exited { .. } | Phase::Running { .. } => return Ok(None),
            ref other => return Err(StartError::NotStartable { id, phase: other.name() }),
        }
        if pod_dir::is_to_be_removed(&dir) {
            return Err(StartError::Removed(id));
        }
        let plan = match self.plan_to_start(&row) {
            Err(error) if cause == StartCause::Restart => {
                let _tried_again_at_once = self.postpone_start(&row, &error);
                return Err(error);
            }
            read => read?,
        };
        let _until_recorded = self.share_lock(id, &lock)?;
        pod_dir::forget_start(&dir)?;
        let restart = Some(row.restart.before_start(cause));
        let Some(row) = self.step(&row, Change { restart, ..Change::along(Edge::Restart) })? else {
            return Err(StartError::Busy(id));
        };
        if !matches!(row.phase, Phase::Starting { .. }) {
            return Err(StartError::Busy(id));
        }
        self.spawn_again(row, plan, lock).map(Some).inspect_err(|error| self.clean_up_failed_restart(id, error))
    }

    /// Has gantryd try again later to start a pod that cannot be started now. The pod is as before, but for its wait.
    fn postpone_start(&self, row: &PodRow, error: &StartError) -> Result<(), PodError> {
        let restart = row
            .restart
            .before_start(StartCause::Restart)
            .after_failed_start(failure_reason(error), gantry_store::now());
        // If another process has changed the row, its change counts.
        let _changed = self.store.set_restart(row.id, row.generation, restart, false)?;
        Ok(())
    }

    /// The row of a pod whose lock the caller holds, so that no supervisor runs: records the end of the last run, if
    /// that has failed so far. A full or read-only disk fails here.
    fn exited_row_under_lock(&self, id: PodId) -> Result<PodRow, PodError> {
        let row = self.row_under_lock(id)?;
        match row.phase {
            Phase::Running { .. } => {
                let journal = self.journal(id)?;
                self.finalize(&row, &journal)?.ok_or_else(|| PodError::NotFound(id.into()))
            }
            // It does not claim to run.
            _ => Ok(row),
        }
    }

    /// Spawns the supervisor of a pod whose row says Starting, and waits until it is ready.
    fn spawn_again(&self, row: PodRow, plan: Plan, lock: PodLock) -> Result<Running, StartError> {
        let (id, dir) = (row.id, self.pod_dir(row.id));
        // The end of the last run may not have removed all.
        self.remove_leftovers(id, &row.cgroup);
        let (row, plan) = self.resolve_plan(row, plan, None)?;
        let plan = self.restart_plan(&row, plan)?;
        if plan.apps.is_empty() && !plan.sandbox {
            return Err(StartError::NoApps(id));
        }
        storage_limit::check_limits(&dir, &plan.apps)?;
        let plan = pod_dir::plan_in_memory(&plan).map_err(PodError::io("pass on the plan of the pod in", &dir))?;
        let mut spawned = self.launch(id, &dir, plan, lock, Show::No)?.spawn()?;
        let ready = self.read_start_reply(&mut spawned)?;
        match self.mark_running(row, &ready) {
            Ok(Some(row)) if matches!(row.phase, Phase::Running { .. } | Phase::Exited { .. }) => {
                Ok(running(spawned, ready, None))
            }
            other => {
                kill_unrecorded(&mut spawned);
                Err(other.map_or_else(StartError::from, |_| StartError::Busy(id)))
            }
        }
    }

    /// The plan of the next start, from that of the creation: of the apps that the pod has, with their next attempts.
    /// Apps that were never started are held, and if gantryd starts the pod, those that were stopped on request.
    fn restart_plan(&self, row: &PodRow, plan: Plan) -> Result<Plan, PodError> {
        let mut plan = self.added_apps(row.id)?.onto_plan_of(plan, row);
        let held = &row.restart.held_apps;
        for app in &mut plan.apps {
            let Some(row) = row.apps.iter().find(|row| row.name.as_str() == app.name) else { continue };
            let attempt = row.state.attempt();
            app.is_held = row.state == AppState::Created || held.contains(&row.name);
            app.attempt = match (app.is_held, attempt) {
                (_, None) => 0,
                (true, Some(last)) => last,
                (false, Some(last)) => last.saturating_add(1),
            };
            (app.health_changes, app.oom_kills) = (row.health.number, row.oom.kills);
            app.limit_changes = row.limit_changes;
        }
        plan.limit_changes = row.limit_changes;
        // A damaged record costs the addresses only.
        let former = row.networks.read().unwrap_or_default();
        let addresses = former.iter().flat_map(|network| &network.addresses);
        plan.former_addresses = addresses.map(|address| address.address).collect();
        Ok(plan)
    }

    /// After a failed start: removes what it left, and records the failure. The caller holds the lock.
    fn clean_up_failed_restart(&self, id: PodId, error: &StartError) {
        if let Ok(row) = self.row_under_lock(id)
            && matches!(row.phase, Phase::Starting { .. })
        {
            let _left_to_reconcile = self.record_failed_start(&row, failure_reason(error));
        }
    }

    /// Moves a pod whose start failed back to Exited. The caller holds the lock, or the pod has no directory.
    pub(crate) fn record_failed_start(&self, row: &PodRow, failure: String) -> Result<Option<PodRow>, PodError> {
        self.remove_leftovers(row.id, &row.cgroup);
        if self.row_writes.are_enabled() && self.has_pod_dir(row.id) {
            pod_dir::forget_start(&self.pod_dir(row.id))?;
        }
        let mut row = row.clone();
        loop {
            let restart = Some(row.restart.after_failed_start(failure.clone(), gantry_store::now()));
            let change = Change { restart, failure: Some(failure.clone()), ..Change::along(Edge::StartFailed) };
            match self.step(&row, change)? {
                // A request to stop it came first.
                Some(moved) if matches!(moved.phase, Phase::Starting { .. }) => row = moved,
                other => return Ok(other),
            }
        }
    }

    /// The restarts of a pod after this end; `None`: unchanged.
    pub(crate) fn restart_after_end(
        &self,
        row: &PodRow,
        journal: &Parsed,
        outcome: &Outcome,
        now: Timestamp,
    ) -> Option<PodRestart> {
        if !has_restart_policy(row) {
            return None;
        }
        let held_apps = held_apps(row, journal);
        let policies = row.apps.iter().filter(|app| !held_apps.contains(&app.name)).map(|app| app.restart);
        let ran = row.phase.started_at().map_or(Duration::ZERO, |since| outcome.at.since(since));
        let is_lost = outcome.is_lost && !pod_dir::is_to_be_removed(&self.pod_dir(row.id));
        let restart = row.restart.after_end(is_lost, policies, ran, now);
        Some(PodRestart { held_apps, ..restart })
    }

    /// Records a request to stop the pod, so that gantryd does not start it again. Synced if the pod has exited and
    /// waits to be started again; otherwise the caller syncs the end.
    pub(crate) fn record_stop_request(&self, mut row: PodRow, request: StopRequest) -> Result<PodRow, PodError> {
        loop {
            let (id, restart) = (row.id, row.restart.after_stop_request(request));
            let is_over = row.phase.is_final() && !row.restart.is_waiting();
            if !has_restart_policy(&row) || restart == row.restart || is_over {
                return Ok(row);
            }
            match self.store.set_restart(id, row.generation, restart, row.phase.is_final())? {
                Moved::Yes(Some(moved)) => return Ok(moved),
                Moved::Lost(Some(moved)) => row = moved,
                Moved::Yes(None) | Moved::Lost(None) => return Err(PodError::NotFound(id.into())),
            }
        }
    }

    /// Waits until a start of this pod by another process has succeeded or failed.
    pub(crate) fn wait_for_start(&self, id: PodId, deadline: Deadline) -> Result<PodRow, PodError> {
        let is_decided = |phase: &Phase| !matches!(phase, Phase::Starting { .. });
        let view = self.wait_until(id, deadline, is_decided)?;
        view.map_or_else(|| self.reconcile_pod(id), |view| Ok(*view.row))
    }
}

#[cfg(test)]
mod tests {
    use gantry_contract::files;
    use gantry_model::restart::PodRestart;

    use super::*;
    use crate::pods::reconcile::tests::{embryo, engine, exited, plan_in, ready, write_journal};

    /// gantryd tries again later, but not at once.
    #[test]
    fn refused_starts_change_only_the_wait() {
        let temp = tempfile::tempdir().unwrap();
        let (engine, image) = engine(temp.path());
        let (row, lock) = embryo(&engine, &image, 1);
        let (id, dir) = (row.id, engine.pod_dir(row.id));
        let mut plan = plan_in(&engine, id, &gantry_model::NetMode::None);
        plan.pod_dir = temp.path().display().to_string();
        pod_dir::fill(&dir, &plan).unwrap();
        write_journal(&engine, id, vec![Fact::Ready(ready()), exited(3), Fact::Ended]);
        drop(lock);
        let row = engine.reconcile_pod(id).unwrap();
        let due = PodRestart { at: Some(Timestamp(1)), ..PodRestart::default() };
        let Moved::Yes(Some(row)) = engine.store.set_restart(id, row.generation, due, false).unwrap() else { panic!() };
        let events = || engine.store.events_after(0, 100).unwrap().len();
        let before = (row.phase, events());
        for start in [Engine::start_again, Engine::start_waiting_pod] {
            assert!(matches!(start(&engine, id), Err(StartError::PreparedElsewhere { .. })));
            let row = engine.store.pod(id).unwrap().unwrap();
            assert_eq!((row.phase, events()), before);
            assert!(dir.join(files::JOURNAL).exists());
        }
        let restart = engine.store.pod(id).unwrap().unwrap().restart;
        assert!(restart.at.is_some_and(|at| at > gantry_store::now()) && restart.tries == 1, "{restart:?}");
    }
}
