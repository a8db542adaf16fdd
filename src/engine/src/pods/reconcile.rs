//! Bringing a pod's row up to the facts: its lock, its journal, its supervisor. Doing it twice changes nothing.
//!
//! # Locks
//!
//! The lock on a pod directory says that somebody is at the pod: its preparer, its supervisor, or whoever deletes it. The
//! kernel frees it when the holder dies. Probing takes it for a moment, so another prober may find it held although
//! nobody lives; where the row names a supervisor that is dead, this module waits for its turn instead.
//!
//! # Who was killed when, and what this makes of it
//!
//! | killed | found | becomes |
//! |---|---|---|
//! | the preparer, or `run` before it spawned | Embryo or Preparing, lock free | AbortedPrepare |
//! | `run` after it spawned | Embryo, Preparing or Prepared, lock held, journal says ready | Running |
//! | the same, and the pod has ended since | the same, lock free | Running, then Exited |
//! | a supervisor that had not become ready | Embryo or Preparing, lock free | AbortedPrepare |
//! | a supervisor of a running pod, or the host | Running, lock free | Exited |
//!
//! A Prepared pod whose lock is free and whose journal does not say ready stays Prepared.

use std::time::Duration;

use gantry_contract::journal::{Fact, Parsed};
use gantry_contract::up;
use gantry_model::{AppName, AppState, BootId, Edge, ErrorKind, Phase, PodId, PodPrefix, Process, Timestamp};
use gantry_store::{Change, Moved, Networks, PodLock, PodRow, PodState};

use crate::Engine;
use crate::error::PodError;
use crate::host::process::{self, Deadline};
use crate::logs::repair;
use crate::pods::outcome::{self, Seen};
use crate::pods::pod_dir;

/// What the facts ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// The row is true.
    Nothing,
    /// Its preparation died.
    Abort,
    /// It runs, and the row does not say so.
    Run,
    /// It ran and ended, and the row does not even say that it ran.
    RunAndEnd,
    /// It ended.
    End,
    /// It runs; some apps may have ended.
    Apps,
}

/// The table in the module's head.
fn due(phase: &Phase, held: bool, ready: bool) -> Due {
    match (phase, held, ready) {
        (Phase::Embryo | Phase::Preparing | Phase::Prepared { .. }, true, true) => Due::Run,
        (Phase::Embryo | Phase::Preparing | Phase::Prepared { .. }, false, true) => Due::RunAndEnd,
        (Phase::Embryo | Phase::Preparing, false, false) => Due::Abort,
        (Phase::Running { .. }, false, _) => Due::End,
        (Phase::Running { .. }, true, _) => Due::Apps,
        (Phase::Embryo | Phase::Preparing | Phase::Prepared { .. }, true, false)
        | (Phase::Prepared { .. }, false, false) => Due::Nothing,
        (Phase::AbortedPrepare { .. } | Phase::Exited { .. } | Phase::Garbage { .. }, _, _) => Due::Nothing,
    }
}

impl Engine {
    /// The row of this pod, brought up to the facts.
    ///
    /// # Errors
    /// [`PodError`], also when there is no such pod.
    pub(crate) fn current(&self, id: PodId) -> Result<PodRow, PodError> {
        let row = self.store.pod(id).map_err(PodError::store)?;
        row.map(|row| self.reconcile(row)).transpose()?.flatten().ok_or(PodError::NotFound(PodPrefix::from(id)))
    }

    /// This row, brought up to the facts; `None` when it went meanwhile.
    pub(crate) fn reconcile(&self, row: PodRow) -> Result<Option<PodRow>, PodError> {
        if row.phase.is_final() {
            return Ok(Some(row));
        }
        let id = row.id;
        let reconciled = self.reconcile_to_facts(row)?;
        let has_ended = reconciled.as_ref().is_some_and(|row| matches!(row.phase, Phase::Exited { .. }));
        if has_ended && self.writes.get() && pod_dir::is_to_be_removed(&self.pod_dir(id)) {
            // The caller still learns how it ended.
            let _left_for_gc = self.dispose(id);
        }
        Ok(reconciled)
    }

    fn reconcile_to_facts(&self, row: PodRow) -> Result<Option<PodRow>, PodError> {
        match self.reconcile_stored(row.clone()) {
            // Looking at a pod must not need room on the disk. The next one who can writes it down.
            Err(error) if self.tolerant && cannot_be_written(&error) => {
                self.unwritten.replace(Some(gantry_model::error::messages(&error).join(": ")));
                let writes = self.writes.replace(false);
                let shown = self.reconcile_stored(row);
                self.writes.set(writes);
                shown
            }
            other => other,
        }
    }

    fn reconcile_stored(&self, row: PodRow) -> Result<Option<PodRow>, PodError> {
        let lock = match self.probe(&row)? {
            PodState::Free(lock) => Some(lock),
            PodState::Held => None,
            PodState::Absent => return self.bring(row, false, &Parsed::default()),
        };
        let journal = self.journal(row.id)?;
        // The lock stays with us to the end: nobody starts the pod or deletes it while its row is moved.
        let moved = self.bring(row, lock.is_none(), &journal);
        drop(lock);
        moved
    }

    /// Who is at this pod. Waits for others that only probe, where the supervisor is known to be dead.
    fn probe(&self, row: &PodRow) -> Result<PodState, PodError> {
        let state = self.store.try_lock_pod(row.id).map_err(PodError::store)?;
        let Phase::Running { supervisor, .. } = &row.phase else { return Ok(state) };
        if !matches!(state, PodState::Held) || self.lives(supervisor) {
            return Ok(state);
        }
        self.lock_patiently(row.id)
    }

    /// Whether this very process runs (a zombie does not).
    pub(crate) fn lives(&self, supervisor: &Process) -> bool {
        use std::os::fd::AsFd as _;
        let Some(fd) = process::open(supervisor, self.store.boot()) else { return false };
        matches!(process::readable(&[fd.as_fd()], Deadline::after(Duration::ZERO)), Ok(None))
    }

    /// Takes a pod's lock, waiting a little for somebody who holds it for a moment.
    pub(crate) fn lock_patiently(&self, id: PodId) -> Result<PodState, PodError> {
        let deadline = Deadline::after(self.patience.lock);
        let mut pause = Duration::from_millis(1);
        loop {
            let state = self.store.try_lock_pod(id).map_err(PodError::store)?;
            if !matches!(state, PodState::Held) || deadline.passed() {
                return Ok(state);
            }
            // Only others' probing leads here, which takes less than a millisecond each.
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }

    /// The lock, or who has it.
    pub(crate) fn take_lock(&self, id: PodId) -> Result<Option<PodLock>, PodError> {
        match self.lock_patiently(id)? {
            PodState::Free(lock) => Ok(Some(lock)),
            PodState::Held | PodState::Absent => Ok(None),
        }
    }

    /// Moves a row to what its lock and its journal say.
    pub(crate) fn bring(&self, row: PodRow, held: bool, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        let ready = outcome::ready(journal);
        match (due(&row.phase, held, ready.is_some()), ready) {
            (Due::Nothing, _) => Ok(Some(row)),
            (Due::Apps, _) => self.note_apps(row, journal),
            (Due::Abort, _) => {
                self.remove_leftovers(row.id);
                self.step(&row, Change::along(Edge::Aborted(gantry_store::now())))
            }
            (Due::End, _) => self.end_under_lock(&row, journal),
            (Due::Run, Some(ready)) => self.mark_running(row, ready),
            (Due::RunAndEnd, Some(ready)) => match self.mark_running(row, ready)? {
                Some(row) if matches!(row.phase, Phase::Running { .. }) => {
                    // In which boot it ran is written nowhere yet; its time has to tell.
                    let at = row.phase.started_at().unwrap_or_default();
                    self.end(&row, journal, at < process::booted_at().before(CLOCK_SLACK))
                }
                other => Ok(other),
            },
            (Due::Run | Due::RunAndEnd, None) => Ok(Some(row)),
        }
    }

    /// Moves a row over every phase that lies before Running. Also the last act of a start.
    pub(crate) fn mark_running(&self, mut row: PodRow, ready: &up::Ready) -> Result<Option<PodRow>, PodError> {
        let at = ready.apps.iter().map(|app| Timestamp(app.at)).min().unwrap_or_else(gantry_store::now);
        let boot: BootId = self.store.boot().clone();
        let supervisor = Process { pid: ready.supervisor, start_ticks: ready.start_ticks, boot };
        loop {
            let (edge, apps, networks) = match row.phase {
                Phase::Embryo => (Edge::Prepare, Vec::new(), Networks::default()),
                Phase::Preparing => (Edge::Prepared(at), Vec::new(), Networks::default()),
                Phase::Prepared { .. } => (
                    Edge::Started { at, supervisor: supervisor.clone() },
                    outcome::started(ready),
                    outcome::networks(ready).map_err(PodError::store)?,
                ),
                _ => return Ok(Some(row)),
            };
            match self.step(&row, Change { apps, networks, ..Change::along(edge) })? {
                Some(next) => row = next,
                None => return Ok(None),
            }
        }
    }

    /// The supervisor is gone: its cgroups and networks go, then the row says so. Killed in between, the next one does all again.
    fn end(&self, row: &PodRow, journal: &Parsed, restarted: bool) -> Result<Option<PodRow>, PodError> {
        self.remove_cgroups_or_leave(row.id);
        // A supervisor that came to its end has tried already, and a plugin that hung then would hang again.
        if !journal.records.iter().any(|record| matches!(record.fact, Fact::Ended)) {
            self.network_down_or_leave(row.id);
            if self.writes.get() {
                // `doctor --deep` tells of a log that could not be repaired.
                let _left_as_it_is = repair::repair(&self.pod_dir(row.id));
            }
        }
        let now = gantry_store::now();
        let outcome = outcome::outcome(&app_states(row), journal, Seen { now, restarted });
        let edge = Edge::Ended { at: outcome.at, end: outcome.end };
        let change = Change { apps: outcome.apps, ..Change::along(edge) };
        match self.step(row, change.clone()) {
            // Who waits for the pod is still told how it ended; gantryd writes it down in the database it restored.
            Err(error) if was_replaced(&error) => Ok(Some(moved(row, change))),
            other => other,
        }
    }

    /// For the holder of the lock: the end of a pod whose row still says that it runs.
    pub(crate) fn end_under_lock(&self, row: &PodRow, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        let restarted = boot_of(row).is_some_and(|boot| boot != self.store.boot());
        self.end(row, journal, restarted)
    }

    /// Apps of a running pod that ended.
    fn note_apps(&self, row: PodRow, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        let news = outcome::ended_meanwhile(&app_states(&row), journal);
        if news.is_empty() {
            return Ok(Some(row));
        }
        if !self.writes.get() {
            return Ok(Some(with_apps(row, &news)));
        }
        match self.store.update_apps(row.id, row.generation, &news).map_err(PodError::store) {
            // As at the pod's end: the journal has the news, and gantryd stores it in the database it restored.
            Err(error) if was_replaced(&error) => Ok(Some(with_apps(row, &news))),
            moved => moved.map(outcome_of),
        }
    }

    /// What a supervisor that died at its start left on the host. First the processes, plugins among them, then what they made.
    pub(crate) fn remove_leftovers(&self, id: PodId) {
        self.remove_cgroups_or_leave(id);
        self.network_down_or_leave(id);
    }

    /// Left-over cgroups do not keep a row from telling the truth: `rm`, `gc` and `doctor` come back to them.
    pub(crate) fn remove_cgroups_or_leave(&self, id: PodId) {
        if self.writes.get() {
            let _left_for_gc = self.remove_cgroups(id);
        }
    }

    /// One step; the row after it, or as somebody else made it; `None` when it is gone.
    pub(crate) fn step(&self, row: &PodRow, change: Change) -> Result<Option<PodRow>, PodError> {
        if !self.writes.get() {
            return Ok(Some(moved(row, change)));
        }
        let moved = self.store.step(row.id, row.generation, change).map_err(PodError::store)?;
        Ok(outcome_of(moved))
    }
}

/// How far wall clocks may have been set while the host was up before a pod seems to be of an earlier boot.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

fn boot_of(row: &PodRow) -> Option<&BootId> {
    match &row.phase {
        Phase::Running { supervisor, .. } => Some(&supervisor.boot),
        _ => None,
    }
}

/// Whether somebody has restored the database since it was opened.
fn was_replaced(error: &PodError) -> bool {
    use gantry_store::{StepError, StoreError};
    let PodError::Store(cause) = error else { return false };
    matches!(cause.get::<StepError>(), Some(StepError::Store(StoreError::Replaced { .. })))
}

/// Whether the database takes nothing now: the disk is full, or may only be read.
pub(crate) fn cannot_be_written(error: &PodError) -> bool {
    let PodError::Store(cause) = error else { return false };
    matches!(cause.kind(), ErrorKind::Exhausted | ErrorKind::Denied)
}

/// A row after a step that is not stored.
fn moved(row: &PodRow, change: Change) -> PodRow {
    let mut moved = with_apps(row.clone(), &change.apps);
    if matches!(change.edge, Edge::Started { .. }) {
        moved.networks = change.networks;
    }
    if let Ok(gantry_model::phase::Stepped::To(phase)) = gantry_model::step(&row.phase, change.edge) {
        moved.phase = phase;
    }
    moved
}

fn outcome_of(moved: Moved) -> Option<PodRow> {
    match moved {
        Moved::Yes(row) | Moved::Lost(row) => row,
    }
}

fn app_states(row: &PodRow) -> Vec<(AppName, AppState)> {
    row.apps.iter().map(|app| (app.name.clone(), app.state)).collect()
}

fn with_apps(mut row: PodRow, states: &[(AppName, AppState)]) -> PodRow {
    for app in &mut row.apps {
        if let Some((_, state)) = states.iter().find(|(name, _)| *name == app.name) {
            app.state = *state;
        }
    }
    row
}

#[cfg(test)]
#[path = "reconcile_tests.rs"]
mod tests;
