//! Schedules: pods that are kept running, or started at certain times.
//!
//! # The row comes first
//!
//! Enabling, disabling and destroying change the row durably. Then, and in gantryd after every commit and when a time
//! has come, [`Engine::apply_schedule`] compares the row with its pods and brings the pods in line. It may be killed at
//! any point and run in several processes at once.
//!
//! | killed after | found | becomes |
//! |---|---|---|
//! | the row was enabled | no pod of this revision | a pod is created and started |
//! | the pod was inserted, which begins the run | a pod being prepared, lock free | preparation aborted, then another pod, also of a timer |
//! | the same, and the database was restored since | the pod, adopted as prepared | the pod is removed, then as the line above |
//! | the pod was started | a running pod | the same |
//! | the row was enabled with other content | pods of a former revision | stopped and removed; then as the first line |
//! | the row was disabled | pods that run | stopped, and kept for their logs |
//! | the row was destroyed | pods without a schedule | stopped and removed |
//!
//! A run of a timer begins once. If its process is killed before the supervisor was spawned, another pod takes the
//! place of the first one in the same run; a spawned supervisor completes the start by itself. Apps are executed twice
//! only if the supervisor is killed, too, or the host, between their execution and the ready record. A run of
//! `--on-boot` alone is over with its boot.
//!
//! An app of a schedule without a timer gets the restart policy `always`, unless it has another one. So the supervisor
//! starts it again, and gantryd starts the pod again that was lost, also by a reboot (`pods/restart.rs`).

mod calendar;
mod view;

use std::collections::BTreeSet;
use std::time::Duration;

use gantry_fetch::PullPolicy;
use gantry_fetch::progress::Silent;
use gantry_model::error::chain;
use gantry_model::restart::{PodRestart, RestartPolicy, StopRequest, due_time, pod_backoff};
use gantry_model::schedule::{Overlap, Timer, validate_comment};
use gantry_model::spec::SpecError;
use gantry_model::{ErrorKind, Kind, Phase, PhaseName, PodId, PodSpec, ScheduleName, Timestamp};
use gantry_store::{InsertPodError, Moved, NewSchedule, PodRow, SchedulePod, ScheduleRow, ScheduleRun, StoreError};
use thiserror::Error;

use calendar::CalendarEvent;

pub use view::{EndedApp, ScheduleState, ScheduleView};

use crate::error::need_root;
use crate::host::process::{Deadline, booted_at};
use crate::manifest;
use crate::pods::output::Show;
use crate::pods::prepare::{Prepare, PrepareError};
use crate::pods::rm::{RmError, RunningPod};
use crate::pods::run::{RunOptions, Running, StartError};
use crate::pods::stop::StopError;
use crate::{Engine, ManifestError, Observer, PodError};

/// The label of a pod with the name of its schedule, which users read and filter by.
pub const SCHEDULE_LABEL: &str = "gantry/schedule";

/// The ended pods of a timer that are kept for their logs.
const MAX_ENDED_PODS: usize = 3;
/// The maximum length of a recorded reason, in bytes.
const MAX_FAILURE: usize = 1024;
/// The time in which a pod that is being prepared or removed by another process is waited for.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// Poll interval of that wait.
const BUSY_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// An operation on a schedule failed.
#[derive(Debug, Error)]
pub enum ScheduleError {
    /// No such schedule.
    #[error("there is no schedule '{0}': 'gantry schedule list' lists the schedules")]
    NotFound(ScheduleName),
    /// The specification of its pods is invalid.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A calendar event is invalid.
    #[error("--on-calendar: {0}")]
    Calendar(String),
    /// The recorded specification of its pods cannot be read.
    #[error("the pod of schedule '{name}' cannot be read")]
    Manifest {
        /// The schedule.
        name: ScheduleName,
        /// The cause.
        #[source]
        source: ManifestError,
    },
    /// A pod could not be created for it.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// Its pod could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A pod of it could not be stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// A pod of it could not be removed.
    #[error(transparent)]
    Rm(#[from] RmError),
    /// The store failed, or the caller lacks permission.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl From<StoreError> for ScheduleError {
    fn from(error: StoreError) -> Self {
        Self::Pod(error.into())
    }
}

impl Kind for ScheduleError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Spec(error) => error.kind(),
            Self::Calendar(_) => ErrorKind::Invalid,
            Self::Manifest { source, .. } => source.kind(),
            Self::Prepare(error) => error.kind(),
            Self::Start(error) => error.kind(),
            Self::Stop(error) => error.kind(),
            Self::Rm(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// A step that brings the pods of a schedule in line with its row.
#[derive(Debug, PartialEq, Eq)]
enum Action {
    /// Stops a pod, which stays.
    Stop(PodId),
    /// Stops a pod if it runs, and removes it.
    Remove(PodId),
    /// Creates and starts a pod of the schedule's manifest, after this many failed starts.
    Start { run: ScheduleRun, manifest: String, failures: u32 },
    /// Records that a run is skipped.
    Skip(ScheduleRun),
    /// Records that runs were handled until now, and not until a later time.
    BringForward(ScheduleRun),
}

/// The present time and boot.
struct Moment {
    now: Timestamp,
    boot: String,
    booted: Timestamp,
}

/// Whether the pod runs or will run without any further action of its schedule.
fn is_live(pod: &SchedulePod) -> bool {
    match pod.phase {
        PhaseName::Embryo | PhaseName::Preparing => true,
        PhaseName::Starting | PhaseName::Running => true,
        PhaseName::Exited => pod.restart_at.is_some(),
        PhaseName::AbortedPrepare | PhaseName::Prepared | PhaseName::Garbage | PhaseName::Deleting => false,
    }
}

/// Whether the start of the pod was interrupted. A schedule starts every pod that it prepares; but a pod whose row was
/// lost with a database is prepared after its adoption.
fn was_interrupted(pod: &SchedulePod) -> bool {
    matches!(pod.phase, PhaseName::AbortedPrepare | PhaseName::Prepared)
}

/// The pod that began a run of a timer, and whose start was interrupted. `pods`: of the schedule's revision.
fn interrupted_pod(row: &ScheduleRow, pods: &[&SchedulePod], moment: &Moment) -> Option<PodId> {
    let timer = row.timer.as_ref()?;
    let is_over = |pod: &SchedulePod| timer.is_only_on_boot() && pod.created < moment.booted;
    let is_interrupted = |pod: &&&SchedulePod| was_interrupted(pod) && !pod.has_failed && !is_over(pod);
    pods.iter().rfind(is_interrupted).map(|pod| pod.id)
}

/// The time of the next run or try, which may have passed; `None`: none is planned. `pods`: of its revision.
fn next_run(row: &ScheduleRow, pods: &[&SchedulePod], moment: &Moment) -> Option<Timestamp> {
    if !row.enabled {
        return None;
    }
    match &row.timer {
        Some(_) if interrupted_pod(row, pods, moment).is_some() => Some(row.handled_at),
        Some(timer) => next_timed_run(row, timer, moment),
        // A pod that was stopped on request stays so.
        None if pods.iter().any(|pod| !was_interrupted(pod) && pod.phase != PhaseName::Garbage) => None,
        None => Some(match row.retry_at {
            Some(at) => due_time(at, pod_backoff(row.failures), moment.now),
            // The clock may have been set back.
            None => row.enabled_at.min(moment.now),
        }),
    }
}

/// The time of the next run by the timer, which may have passed; `None`: none is planned.
fn next_timed_run(row: &ScheduleRow, timer: &Timer, moment: &Moment) -> Option<Timestamp> {
    // The clock may have been set back.
    let handled = row.handled_at.min(moment.now);
    let events = timer.calendar.iter().filter_map(|text| CalendarEvent::parse(text).ok());
    let by_clock = events.filter_map(|event| event.next_event(handled)).chain(timer.next_period(handled)).min();
    let is_boot_handled = row.handled_boot.as_deref() == Some(&moment.boot);
    let after_boot = timer.boot_run(moment.booted).filter(|_| !is_boot_handled);
    match by_clock.filter(|due| after_boot.is_none_or(|after_boot| *due < after_boot)) {
        Some(due) => Some(timer.delay_run(&row.name, due)),
        None => after_boot.map(|due| timer.delay_boot_run(&row.name, &moment.boot, due)),
    }
}

/// Whether the row has handled runs of the future: the clock was set back. The next periodic run would stay ahead.
fn is_ahead(row: &ScheduleRow, now: Timestamp) -> bool {
    row.enabled && row.timer.is_some() && due_time(row.handled_at, Duration::ZERO, now) != row.handled_at
}

/// The actions that are due. `pods`: all pods of the schedule, the oldest first.
fn due_actions(row: Option<&ScheduleRow>, pods: &[SchedulePod], moment: &Moment) -> Vec<Action> {
    let mut actions = Vec::new();
    let is_current = |pod: &&SchedulePod| row.is_some_and(|row| row.revision == pod.revision);
    let is_gone = |pod: &&SchedulePod| pod.phase == PhaseName::Garbage;
    // Also those whose removal was begun: its process may have been killed.
    actions.extend(pods.iter().filter(|pod| !is_current(pod)).map(|pod| Action::Remove(pod.id)));
    let Some(row) = row else { return actions };
    let current: Vec<&SchedulePod> = pods.iter().filter(is_current).collect();
    let live: Vec<&SchedulePod> = current.iter().copied().filter(|pod| is_live(pod)).collect();
    if !row.enabled {
        actions.extend(live.iter().map(|pod| Action::Stop(pod.id)));
    }
    let ended: Vec<PodId> = current.iter().filter(|pod| !is_live(pod) && !is_gone(pod)).map(|pod| pod.id).collect();
    let interrupted = current.iter().filter(|pod| was_interrupted(pod)).map(|pod| pod.id);
    match &row.timer {
        Some(_) => actions.extend(ended.iter().rev().skip(MAX_ENDED_PODS).map(|id| Action::Remove(*id))),
        None => actions.extend(interrupted.map(Action::Remove)),
    }
    let run = |boot, interrupted| ScheduleRun {
        name: row.name.clone(),
        revision: row.revision,
        runs: row.runs,
        at: moment.now,
        boot,
        interrupted,
    };
    if is_ahead(row, moment.now) {
        // What is due follows from the changed row.
        actions.push(Action::BringForward(run(None, None)));
        return actions;
    }
    if next_run(row, &current, moment).is_none_or(|at| at > moment.now) {
        return actions;
    }
    let boot_run = row.timer.as_ref().and_then(|timer| timer.boot_run(moment.booted));
    let boot = boot_run.filter(|due| *due <= moment.now).map(|_| moment.boot.clone());
    let run = run(boot, interrupted_pod(row, &current, moment));
    match &row.timer {
        // It has begun, and a pod was started by other means meanwhile.
        Some(_) if !live.is_empty() && run.interrupted.is_some() => {}
        Some(timer) if !live.is_empty() => match timer.overlap {
            Overlap::Refuse => actions.push(Action::Skip(run)),
            // It stays due until the pod has ended.
            Overlap::Queue => {}
        },
        _ => actions.push(Action::Start { run, manifest: row.manifest.clone(), failures: row.failures }),
    }
    actions
}

impl Engine {
    /// Enables a schedule of pods with this specification durably, and starts its pod if that is due. Enabling it again
    /// with the same content changes nothing, but that a pod that runs always and was stopped on request waits to be
    /// started; other content replaces the pod.
    ///
    /// # Errors
    /// [`ScheduleError`] if it was not enabled. A failed start is recorded and tried again by gantryd.
    pub fn enable_schedule(
        &self,
        name: ScheduleName,
        mut spec: PodSpec,
        timer: Option<Timer>,
        comment: String,
    ) -> Result<bool, ScheduleError> {
        need_root("enable a schedule")?;
        timer.as_ref().map_or(Ok(()), Timer::validate)?;
        for text in timer.iter().flat_map(|timer| &timer.calendar) {
            let event = CalendarEvent::parse(text).map_err(ScheduleError::Calendar)?;
            if event.next_event(gantry_store::now()).is_none() {
                let text = gantry_model::id::shown(text);
                return Err(ScheduleError::Calendar(format!("the calendar event '{text}' never comes")));
            }
        }
        validate_comment(&comment)?;
        if timer.is_none() {
            for app in &mut spec.apps {
                if app.options.restart == RestartPolicy::No {
                    app.options.restart = RestartPolicy::Always;
                }
            }
        }
        spec.user_labels.insert(SCHEDULE_LABEL.to_owned(), name.to_string());
        spec.validate()?;
        let manifest = manifest::to_value(&spec).to_string();
        let new = NewSchedule { name, manifest, timer, comment };
        let is_changed = self.store.enable_schedule(&new, gantry_store::now())?;
        if !is_changed && new.timer.is_none() {
            self.release_stopped_pod(&new.name)?;
        }
        Ok(is_changed)
    }

    /// Makes the pod of a schedule without a timer wait to be started, if it was stopped on request: durably, and now.
    fn release_stopped_pod(&self, name: &ScheduleName) -> Result<(), ScheduleError> {
        for pod in self.current_pods(name)? {
            loop {
                let row = match self.reconcile_pod(pod) {
                    Err(PodError::NotFound(_)) => break,
                    row => row?,
                };
                if !is_stopped_on_request(&row) {
                    break;
                }
                let restart = PodRestart { at: Some(gantry_store::now()), ..PodRestart::default() };
                match self.store.set_restart(pod, row.generation, restart, true)? {
                    Moved::Yes(_) => break,
                    // Another process has changed it: examine it again.
                    Moved::Lost(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Starts the pod of a schedule without a timer that waits to be started, if its time has come. `None`: none does,
    /// or gantryd was faster.
    ///
    /// # Errors
    /// [`ScheduleError`]. A failed start is recorded and tried again by gantryd.
    pub fn start_released_pod(&self, name: &ScheduleName) -> Result<Option<Running>, ScheduleError> {
        for pod in self.current_pods(name)? {
            match self.start_waiting_pod(pod) {
                Ok(None) | Err(StartError::Busy(_) | StartError::Pod(PodError::NotFound(_))) => {}
                started => return Ok(started?),
            }
        }
        Ok(None)
    }

    /// The pods of the present revision of an enabled schedule without a timer.
    fn current_pods(&self, name: &ScheduleName) -> Result<Vec<PodId>, ScheduleError> {
        let row = self.store.schedule(name)?;
        let Some(row) = row.filter(|row| row.enabled && row.timer.is_none()) else { return Ok(Vec::new()) };
        let pods = self.store.schedule_pods(Some(name))?;
        Ok(pods.into_iter().filter(|pod| pod.revision == row.revision).map(|pod| pod.id).collect())
    }

    /// Disables a schedule durably and stops its pods, which stay for their logs. Disabling it again changes nothing.
    ///
    /// # Errors
    /// [`ScheduleError`]. If a pod could not be stopped, gantryd tries again.
    pub fn disable_schedule(&self, name: &ScheduleName) -> Result<(), ScheduleError> {
        need_root("disable a schedule")?;
        if !self.store.disable_schedule(name)? {
            return Err(ScheduleError::NotFound(name.clone()));
        }
        self.apply_schedule(name).map(drop)
    }

    /// Deletes a schedule durably, and stops and removes its pods.
    ///
    /// # Errors
    /// [`ScheduleError`]. If a pod could not be removed, gantryd tries again.
    pub fn destroy_schedule(&self, name: &ScheduleName) -> Result<(), ScheduleError> {
        need_root("destroy a schedule")?;
        if !self.store.delete_schedule(name)? {
            return Err(ScheduleError::NotFound(name.clone()));
        }
        self.apply_schedule(name).map(drop)
    }

    /// All schedules, by name.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn schedules(&self) -> Result<Vec<ScheduleView>, ScheduleError> {
        let rows = self.store.schedules()?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let pods = self.store.schedule_pods(None)?;
        let moment = self.moment();
        let view = |row: ScheduleRow| {
            let of_row = |pod: &&SchedulePod| pod.schedule == row.name && pod.revision == row.revision;
            let current: Vec<&SchedulePod> = pods.iter().filter(of_row).collect();
            let next_run = next_run(&row, &current, &moment);
            let newest_pod = current.last().map_or(Ok(None), |pod| self.store.pod(pod.id))?;
            Ok(ScheduleView { pods: current.into_iter().cloned().collect(), newest_pod, next_run, row })
        };
        rows.into_iter().map(view).collect()
    }

    /// The schedules with actions that are due, or will be, each with the time; the earliest first.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn due_schedules(&self) -> Result<Vec<(ScheduleName, Timestamp)>, ScheduleError> {
        let rows = self.store.schedules()?;
        let pods = self.store.schedule_pods(None)?;
        let moment = self.moment();
        let mut due = Vec::new();
        let destroyed = pods.iter().filter(|pod| !rows.iter().any(|row| row.name == pod.schedule));
        let orphans: BTreeSet<&ScheduleName> = destroyed.map(|pod| &pod.schedule).collect();
        for name in orphans {
            due.push((name.clone(), moment.now));
        }
        for row in &rows {
            let own: Vec<SchedulePod> = pods.iter().filter(|pod| pod.schedule == row.name).cloned().collect();
            if !due_actions(Some(row), &own, &moment).is_empty() {
                due.push((row.name.clone(), moment.now));
                continue;
            }
            let current: Vec<&SchedulePod> = own.iter().filter(|pod| pod.revision == row.revision).collect();
            // A queued run waits for a commit, not for a time.
            due.extend(next_run(row, &current, &moment).filter(|at| *at > moment.now).map(|at| (row.name.clone(), at)));
        }
        due.sort_by_key(|(_, at)| *at);
        Ok(due)
    }

    /// Returns the pod that the action has started.
    fn perform(&self, action: Action) -> Result<Option<Running>, ScheduleError> {
        match action {
            Action::Stop(id) => self.stop_scheduled_pod(id)?,
            Action::Remove(id) => self.remove_scheduled_pod(id)?,
            Action::Skip(run) => self.store.skip_schedule_run(&run)?,
            Action::BringForward(run) => self.store.bring_schedule_forward(&run)?,
            Action::Start { run, manifest, failures } => return self.start_run(run, &manifest, failures),
        }
        Ok(None)
    }

    /// Brings the pods of a schedule in line with its row: removes those of former revisions, stops those of a disabled
    /// schedule, and starts the pod that is due. Returns the pods that it has started.
    ///
    /// # Errors
    /// The first [`ScheduleError`], after the other actions. A failed start is recorded, and due again later.
    pub fn apply_schedule(&self, name: &ScheduleName) -> Result<Vec<Running>, ScheduleError> {
        need_root("apply a schedule")?;
        /// A change during an action makes others due.
        const MAX_ROUNDS: usize = 4;
        let mut started = Vec::new();
        for _ in 0..MAX_ROUNDS {
            let row = self.store.schedule(name)?;
            let pods = self.store.schedule_pods(Some(name))?;
            for pod in pods.iter().filter(|pod| is_live(pod) || pod.phase == PhaseName::Prepared) {
                // A preparer that was killed leaves a pod that only looks alive, or as if it had not started it.
                match self.reconcile_pod(pod.id) {
                    Ok(_) | Err(PodError::NotFound(_)) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            let pods = match pods.is_empty() {
                true => pods,
                false => self.store.schedule_pods(Some(name))?,
            };
            let actions = due_actions(row.as_ref(), &pods, &self.moment());
            if actions.is_empty() {
                break;
            }
            let mut first_error = None;
            for action in actions {
                if first_error.is_some() && matches!(action, Action::Start { .. }) {
                    continue;
                }
                match self.perform(action) {
                    Ok(running) => started.extend(running),
                    Err(error) => {
                        first_error.get_or_insert(error);
                    }
                }
            }
            if let Some(error) = first_error {
                return Err(error);
            }
        }
        Ok(started)
    }

    fn moment(&self) -> Moment {
        Moment { now: gantry_store::now(), boot: self.store.boot().0.clone(), booted: booted_at() }
    }

    /// Creates and starts the pod of a run. `None`: another process has begun it, or the schedule was changed.
    fn start_run(&self, run: ScheduleRun, manifest: &str, failures: u32) -> Result<Option<Running>, ScheduleError> {
        let started = self.create_and_start(&run, manifest);
        let (failure, retry_at) = match &started {
            Ok(_) if failures == 0 => return started,
            Ok(None) => return started,
            Ok(Some(_)) => (None, None),
            Err(error) => {
                let mut text = chain(error).to_string();
                text.truncate(text.floor_char_boundary(MAX_FAILURE));
                (Some(text), Some(gantry_store::now().after(pod_backoff(failures.saturating_add(1)))))
            }
        };
        self.store.record_schedule_start(&run, failure.as_deref(), retry_at)?;
        started
    }

    fn create_and_start(&self, run: &ScheduleRun, manifest: &str) -> Result<Option<Running>, ScheduleError> {
        let spec = manifest::parse_ours(manifest.as_bytes())
            .map_err(|source| ScheduleError::Manifest { name: run.name.clone(), source })?;
        let options = RunOptions { show: Show::No, remove: false };
        let request = Prepare::new(spec, PullPolicy::New, &Silent)?.to_be_started(options).for_schedule(run.clone());
        let pod = match self.create(request) {
            Ok(pod) => pod,
            Err(PrepareError::Pod(error)) if is_schedule_changed(&error) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        Ok(Some(pod.start()?))
    }

    /// Stops a pod; one that another process prepares, as soon as it runs.
    fn stop_scheduled_pod(&self, id: PodId) -> Result<(), ScheduleError> {
        let deadline = Deadline::after(BUSY_TIMEOUT);
        loop {
            match self.stop(id, self.stop_grace(id, None)) {
                Ok(_) | Err(StopError::Pod(PodError::NotFound(_))) => return Ok(()),
                Err(StopError::NotStarted { .. }) if self.is_aborted(id) => return Ok(()),
                Err(StopError::NotStarted { .. }) if !deadline.passed() => std::thread::sleep(BUSY_POLL_INTERVAL),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn is_aborted(&self, id: PodId) -> bool {
        self.reconcile_pod(id).is_ok_and(|row| row.phase.is_final())
    }

    fn remove_scheduled_pod(&self, id: PodId) -> Result<(), ScheduleError> {
        let deadline = Deadline::after(BUSY_TIMEOUT);
        loop {
            match self.rm(id, RunningPod::Stop) {
                Ok(()) | Err(RmError::Pod(PodError::NotFound(_))) => return Ok(()),
                Err(RmError::Preparing(_) | RmError::Busy(_)) if !deadline.passed() => {
                    std::thread::sleep(BUSY_POLL_INTERVAL);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Observer {
    /// All schedules, by name.
    ///
    /// # Errors
    /// [`ScheduleError`].
    pub fn schedules(&self) -> Result<Vec<ScheduleView>, ScheduleError> {
        self.engine.schedules()
    }
}

/// Whether a pod has ended because it, or an app of it, was stopped on request, and stays so.
fn is_stopped_on_request(row: &PodRow) -> bool {
    let PodRestart { at, stop_request, held_apps, .. } = &row.restart;
    let is_requested = *stop_request == Some(StopRequest::UntilStarted) || !held_apps.is_empty();
    matches!(row.phase, Phase::Exited { .. }) && at.is_none() && is_requested
}

fn is_schedule_changed(error: &PodError) -> bool {
    match error {
        PodError::Store(cause) => matches!(cause.get::<InsertPodError>(), Some(InsertPodError::ScheduleChanged(_))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(count: i64) -> Timestamp {
        Timestamp(count * 1_000_000_000)
    }

    fn row(timer: Option<Timer>) -> ScheduleRow {
        ScheduleRow {
            name: "a".parse().unwrap(),
            revision: 2,
            enabled: true,
            enabled_at: seconds(100),
            manifest: "{}".into(),
            timer,
            comment: String::new(),
            runs: 4,
            last_run: None,
            handled_at: seconds(100),
            handled_boot: None,
            failures: 0,
            failure: None,
            retry_at: None,
        }
    }

    fn pod(n: u8, revision: u64, phase: PhaseName) -> SchedulePod {
        let (id, schedule) = (PodId::from_random([n; 16]), "a".parse().unwrap());
        SchedulePod { id, schedule, revision, phase, created: seconds(n.into()), restart_at: None, has_failed: false }
    }

    fn at(now: i64) -> Moment {
        Moment { now: seconds(now), boot: "boot".into(), booted: seconds(50) }
    }

    fn verbs(row: Option<&ScheduleRow>, pods: &[SchedulePod], now: i64) -> Vec<(&'static str, Option<PodId>)> {
        let verb = |action: Action| match action {
            Action::Stop(id) => ("stop", Some(id)),
            Action::Remove(id) => ("remove", Some(id)),
            Action::Start { .. } => ("start", None),
            Action::Skip(_) => ("skip", None),
            Action::BringForward(_) => ("bring forward", None),
        };
        due_actions(row, pods, &at(now)).into_iter().map(verb).collect()
    }

    #[test]
    fn a_pod_of_the_present_revision_runs() {
        let always = row(None);
        assert_eq!(verbs(Some(&always), &[], 100), [("start", None)]);
        assert_eq!(verbs(Some(&always), &[pod(1, 2, PhaseName::Running)], 100), []);
        assert_eq!(verbs(Some(&always), &[pod(1, 2, PhaseName::Exited)], 100), [], "stopped on request");
        let old = pod(1, 1, PhaseName::Running);
        assert_eq!(verbs(Some(&always), std::slice::from_ref(&old), 100), [("remove", Some(old.id)), ("start", None)]);
        let begun = pod(2, 2, PhaseName::Garbage);
        let removals = [("remove", Some(old.id)), ("remove", Some(begun.id))];
        assert_eq!(verbs(None, &[old.clone(), begun], 100), removals, "a removal that was begun is finished");
        let aborted = pod(3, 2, PhaseName::AbortedPrepare);
        assert_eq!(
            verbs(Some(&always), std::slice::from_ref(&aborted), 100),
            [("remove", Some(aborted.id)), ("start", None)]
        );
        let waiting = ScheduleRow { retry_at: Some(seconds(200)), ..always.clone() };
        assert_eq!(verbs(Some(&waiting), &[], 199), []);
        assert_eq!(verbs(Some(&waiting), &[], 200), [("start", None)]);
        let failed = ScheduleRow { failures: 4, ..waiting };
        assert_eq!(verbs(Some(&failed), &[], 192), [], "its delay is 8 s");
        assert_eq!(verbs(Some(&failed), &[], 190), [("start", None)], "the clock was set back");
        assert_eq!(verbs(Some(&always), &[], 90), [("start", None)], "the clock was set back");
        let disabled = ScheduleRow { enabled: false, ..always };
        let running = pod(1, 2, PhaseName::Running);
        assert_eq!(verbs(Some(&disabled), std::slice::from_ref(&running), 100), [("stop", Some(running.id))]);
        assert_eq!(verbs(Some(&disabled), &[pod(1, 2, PhaseName::Exited)], 100), []);
    }

    #[test]
    fn timers_start_refuse_and_queue_runs() {
        let timer = Timer { every: Some(Duration::from_secs(10)), ..Timer::default() };
        let refusing = row(Some(timer.clone()));
        assert_eq!(verbs(Some(&refusing), &[], 109), []);
        // A missed run is caught up once, however many periods have passed.
        assert_eq!(verbs(Some(&refusing), &[], 990), [("start", None)]);
        assert_eq!(verbs(Some(&refusing), &[pod(1, 2, PhaseName::Running)], 110), [("skip", None)]);
        let queueing = row(Some(Timer { overlap: Overlap::Queue, ..timer }));
        assert_eq!(verbs(Some(&queueing), &[pod(1, 2, PhaseName::Running)], 110), []);
        assert_eq!(verbs(Some(&queueing), &[pod(1, 2, PhaseName::Exited)], 110), [("start", None)]);
        let ended: Vec<_> = (1..=5).map(|n| pod(n, 2, PhaseName::Exited)).collect();
        assert_eq!(verbs(Some(&refusing), &ended, 109), [("remove", Some(ended[1].id)), ("remove", Some(ended[0].id))]);
        let boot = row(Some(Timer { on_boot: Some(Duration::from_secs(60)), ..Timer::default() }));
        assert_eq!(verbs(Some(&boot), &[], 109), []);
        assert_eq!(verbs(Some(&boot), &[], 110), [("start", None)]);
        let handled = ScheduleRow { handled_boot: Some("boot".into()), ..boot };
        assert_eq!(verbs(Some(&handled), &[], 110), []);
    }

    #[test]
    fn interrupted_runs_are_begun_again() {
        let started = |row: &ScheduleRow, pods: &[SchedulePod]| -> Vec<Option<PodId>> {
            let actions = due_actions(Some(row), pods, &at(105)).into_iter();
            let start = actions.filter_map(|action| match action {
                Action::Start { run, .. } => Some(run.interrupted),
                Action::Stop(_) | Action::Remove(_) | Action::Skip(_) | Action::BringForward(_) => None,
            });
            start.collect()
        };
        let aborted = SchedulePod { created: seconds(60), ..pod(9, 2, PhaseName::AbortedPrepare) };
        let timer = Timer { every: Some(Duration::from_secs(10)), ..Timer::default() };
        let periodic = row(Some(timer));
        assert_eq!(started(&periodic, std::slice::from_ref(&aborted)), [Some(aborted.id)], "before the period is over");
        assert_eq!(started(&periodic, &[aborted.clone(), pod(10, 2, PhaseName::Running)]), []);
        let failed = SchedulePod { has_failed: true, ..aborted.clone() };
        let former = SchedulePod { revision: 0, ..aborted.clone() };
        assert_eq!(started(&periodic, &[failed, former]), []);
        let disabled = ScheduleRow { enabled: false, ..periodic };
        assert_eq!(started(&disabled, std::slice::from_ref(&aborted)), []);
        // The run of a boot is over with the boot.
        let timer = Timer { on_boot: Some(Duration::ZERO), ..Timer::default() };
        let boot = ScheduleRow { handled_boot: Some("boot".into()), ..row(Some(timer)) };
        let former = SchedulePod { created: seconds(40), ..aborted.clone() };
        assert_eq!(started(&boot, std::slice::from_ref(&aborted)), [Some(aborted.id)]);
        assert_eq!(started(&boot, &[former]), []);
    }

    #[test]
    fn clocks_set_back_do_not_stop_timers() {
        let timer = Timer { every: Some(Duration::from_secs(10)), ..Timer::default() };
        let ahead = ScheduleRow { handled_at: seconds(3700), ..row(Some(timer)) };
        assert_eq!(verbs(Some(&ahead), &[], 100), [("bring forward", None)]);
        assert_eq!(verbs(Some(&ahead), &[], 3699), [], "a small step of the clock passes by itself");
        assert_eq!(verbs(Some(&ScheduleRow { enabled: false, ..ahead.clone() }), &[], 100), []);
        let brought = ScheduleRow { handled_at: seconds(100), ..ahead };
        assert_eq!(verbs(Some(&brought), &[], 109), []);
        assert_eq!(verbs(Some(&brought), &[], 110), [("start", None)]);
    }

    #[test]
    fn adopted_prepared_pods_block_no_run() {
        let prepared = SchedulePod { created: seconds(60), ..pod(1, 2, PhaseName::Prepared) };
        let verbs = |row: &ScheduleRow| verbs(Some(row), std::slice::from_ref(&prepared), 105);
        assert_eq!(verbs(&row(None)), [("remove", Some(prepared.id)), ("start", None)]);
        let timer = Timer { every: Some(Duration::from_secs(10)), ..Timer::default() };
        assert_eq!(verbs(&row(Some(timer))), [("start", None)], "the run is begun again");
    }

    #[test]
    fn the_delay_of_a_boot_run_is_stable() {
        let timer = Timer {
            on_boot: Some(Duration::ZERO),
            randomized_delay: Some(Duration::from_secs(100)),
            ..Timer::default()
        };
        let row = row(Some(timer));
        let moment = |nanos: i64| Moment { booted: Timestamp(seconds(50).0 + nanos), ..at(60) };
        let [first, second] = [0, 7].map(|nanos| next_run(&row, &[], &moment(nanos)).unwrap());
        assert_eq!(second.0 - first.0, 7);
    }
}
