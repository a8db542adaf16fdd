//! The transitions of a pod: `prepare`, `run` and `rm` make them deliberately, and `reconcile` completes them for
//! commands that were killed in between.
//!
//! Each is a compare-and-set on the row's generation. A read-only engine makes no step: it returns the row as it would
//! be, so that callers see the same facts.

use gantry_contract::journal::{Fact, Parsed};
use gantry_contract::start;
use gantry_model::{AppName, AppState, BootId, Edge, ErrorKind, Phase, PodId, Process, Timestamp};
use gantry_store::{AppChanges, AppRow, Change, Moved, Networks, PodRow, StepError, StoreError};

use crate::logs::repair;
use crate::pods::app_history::AppHistories;
use crate::pods::outcome::{self, Observation};
use crate::pods::reports::has_new_reports;
use crate::pods::restart::has_restart_policy;
use crate::pods::wait::has_end;
use crate::{Engine, PodError};

impl Engine {
    /// Moves a row along one edge. Returns the new row, also when another process moved it first; `None` when it is
    /// gone.
    pub(crate) fn step(&self, row: &PodRow, change: Change) -> Result<Option<PodRow>, PodError> {
        self.steps(row, vec![change])
    }

    /// As [`Self::step`], along several edges in one transaction.
    pub(crate) fn steps(&self, row: &PodRow, changes: Vec<Change>) -> Result<Option<PodRow>, PodError> {
        if !self.row_writes.are_enabled() {
            return Ok(Some(changes.into_iter().fold(row.clone(), |row, change| row_after(&row, change))));
        }
        let moved = self.store.steps(row.id, row.generation, &changes).map_err(PodError::store)?;
        Ok(row_of(moved))
    }

    /// Moves a row through every phase before Running, then to Running. The last act of a start.
    pub(crate) fn mark_running(&self, mut row: PodRow, ready: &start::Ready) -> Result<Option<PodRow>, PodError> {
        let at = ready.apps.iter().map(|app| Timestamp(app.at)).min().unwrap_or_else(gantry_store::now);
        let boot: BootId = self.store.boot().clone();
        let supervisor = Process { pid: ready.supervisor, start_ticks: ready.start_ticks, boot };
        loop {
            let before = match row.phase {
                Phase::Embryo => vec![Edge::Prepare, Edge::Prepared(at)],
                Phase::Preparing => vec![Edge::Prepared(at)],
                Phase::Prepared { .. } | Phase::Starting { .. } => Vec::new(),
                Phase::AbortedPrepare { .. } | Phase::Running { .. } | Phase::Exited { .. } | Phase::Garbage { .. } => {
                    return Ok(Some(row));
                }
            };
            let started = Change {
                apps: started_apps(ready).into(),
                networks: attached_networks(ready).map_err(PodError::store)?,
                // gantryd starts the pod again after a reboot: it is acknowledged only when that is certain.
                durable: has_restart_policy(&row),
                ..Change::along(Edge::Started { at, supervisor: supervisor.clone() })
            };
            let changes = before.into_iter().map(Change::along).chain([started]).collect();
            // Another process may have moved it to one of the phases before.
            match self.steps(&row, changes)? {
                Some(next) => row = next,
                None => return Ok(None),
            }
        }
    }

    /// Brings the apps of a running pod up to the journal, step by step, with the reports about each of their attempts.
    pub(crate) fn record_app_changes(&self, mut row: PodRow, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        let histories = AppHistories::from_journal(journal);
        loop {
            match self.record_reports(&row, journal)? {
                None => {}
                Some(Moved::Yes(Some(moved))) => row = moved,
                Some(Moved::Lost(Some(moved))) => {
                    let journal = self.journal(moved.id)?;
                    return self.record_app_changes(moved, &journal);
                }
                Some(Moved::Yes(None) | Moved::Lost(None)) => return Ok(None),
            }
            row = match self.record_readiness(row, journal)? {
                Some(row) => row,
                None => return Ok(None),
            };
            let mut changes = histories.changes(app_states(&row));
            if changes.is_empty() || !matches!(row.phase, Phase::Running { .. }) {
                return Ok(Some(row));
            }
            // Reports belong between two of the steps.
            let may_be_reported = has_new_reports(&row, journal) || row.apps.iter().any(|app| app.readiness.is_some());
            if changes.len() > 1 && may_be_reported {
                changes.truncate(1);
            }
            if !self.row_writes.are_enabled() {
                row = with_app_changes(row, &changes);
                continue;
            }
            match self.store.update_apps(row.id, row.generation, &changes).map_err(PodError::store) {
                // As in `finalize`: the journal has the changes, and gantryd writes them into the database it restored.
                Err(error) if was_replaced(&error) => row = with_app_changes(row, &changes),
                Err(error) => return Err(error),
                Ok(Moved::Yes(Some(moved))) => {
                    row = moved;
                    let removed: Vec<_> = changes.into_iter().flat_map(|changes| changes.removed).collect();
                    if !removed.is_empty() {
                        self.forget_removed_apps(row.id, &removed)?;
                    }
                }
                // The row may be newer than the journal that was read: an app may have been removed, and another one
                // of its name added.
                Ok(Moved::Lost(Some(moved))) => {
                    let journal = self.journal(moved.id)?;
                    return self.record_app_changes(moved, &journal);
                }
                Ok(Moved::Yes(None) | Moved::Lost(None)) => return Ok(None),
            }
        }
    }

    /// Gives up the preparation of a pod: removes its resources from the host, then records the phase.
    pub(crate) fn abort(&self, row: &PodRow, failure: Option<String>) -> Result<Option<PodRow>, PodError> {
        self.remove_leftovers(row.id, &row.cgroup);
        if self.row_writes.are_enabled() && self.has_pod_dir(row.id) {
            self.remove_temporary_files(row.id);
        }
        self.step(row, Change { failure, ..Change::along(Edge::Aborted(gantry_store::now())) })
    }

    /// Records the end of a running pod whose supervisor is dead: removes its cgroups and networks, repairs its logs,
    /// then moves the row to Exited. The caller holds the pod's lock, or the pod has no directory to lock. After a kill
    /// in between, the next caller repeats all of it.
    pub(crate) fn finalize(&self, row: &PodRow, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        let restarted = match &row.phase {
            Phase::Running { supervisor, .. } => supervisor.boot != *self.store.boot(),
            // Only a running pod has a boot to compare.
            _ => false,
        };
        self.finalize_as_of(row, journal, restarted)
    }

    /// As [`Self::finalize`], where the row does not record the boot in which the pod ran.
    pub(crate) fn finalize_as_of(
        &self,
        row: &PodRow,
        journal: &Parsed,
        restarted: bool,
    ) -> Result<Option<PodRow>, PodError> {
        let is_elsewhere = self.check_runs_nowhere_else(row.id, &row.cgroup).is_err();
        if !is_elsewhere {
            self.remove_cgroups_or_leave(&row.cgroup);
        }
        // What is in place of a directory is not followed. A journal with the end is in one.
        let has_dir = has_end(journal) || self.has_pod_dir(row.id);
        // A supervisor that ended by itself has detached its networks; where a plugin hung, it would hang again.
        if !has_end(journal) && has_dir {
            if !is_elsewhere {
                self.network_down_or_leave(row.id);
            }
            if self.row_writes.are_enabled() {
                // `doctor --deep` reports a log that could not be repaired.
                let _left_for_doctor = repair::repair(&self.pod_dir(row.id), row);
            }
        }
        if self.row_writes.are_enabled() && has_dir {
            self.remove_temporary_files(row.id);
        }
        let Some(mut row) = self.record_readiness(row.clone(), journal)? else { return Ok(None) };
        // Usually the end of each app is one change, which is part of the step.
        if AppHistories::from_journal(journal).is_far_ahead(&app_states(&row)) || has_new_reports(&row, journal) {
            match self.record_app_changes(row, journal)? {
                Some(recorded) if matches!(recorded.phase, Phase::Running { .. }) => row = recorded,
                other => return Ok(other),
            }
        }
        let now = gantry_store::now();
        let observation = Observation { now, restarted, sandbox: row.sandbox };
        let outcome = outcome::outcome(&app_states(&row), journal, observation);
        let restart = self.restart_after_end(&row, journal, &outcome, now);
        let edge = Edge::Ended { at: outcome.at, end: outcome.end };
        let change = Change { apps: outcome.apps, restart, ..Change::along(edge) };
        match self.step(&row, change.clone()) {
            // The caller still learns how the pod ended; gantryd records it in the database it restored.
            Err(error) if was_replaced(&error) => Ok(Some(row_after(&row, change))),
            // Another process changed the row without finalizing it, such as an `app add` that came too late.
            Ok(Some(row)) if matches!(row.phase, Phase::Running { .. }) => {
                self.finalize_as_of(&row, journal, restarted)
            }
            other => other,
        }
    }

    /// Removes the leftovers of a supervisor that died during its start: first the processes, which may be plugins,
    /// then the networks they created.
    pub(crate) fn remove_leftovers(&self, id: PodId, cgroup: &str) {
        if self.check_runs_nowhere_else(id, cgroup).is_err() {
            return;
        }
        self.remove_cgroups_or_leave(cgroup);
        if self.has_pod_dir(id) {
            self.network_down_or_leave(id);
        }
    }

    /// Removes the pod's cgroups. Failure does not keep the row from being moved: `rm`, `gc` and `doctor` try again.
    pub(crate) fn remove_cgroups_or_leave(&self, cgroup: &str) {
        if self.row_writes.are_enabled() {
            let _left_for_gc = self.remove_cgroups(cgroup);
        }
    }
}

/// The supervisor's start reply, if the journal has one: the pod became ready.
pub(crate) fn ready_record(journal: &Parsed) -> Option<&start::Ready> {
    journal.records.iter().find_map(|record| match &record.fact {
        Fact::Ready(ready) => Some(ready),
        // Not the start reply.
        _ => None,
    })
}

/// The states of the apps of a pod that became ready.
pub(crate) fn started_apps(ready: &start::Ready) -> Vec<(AppName, AppState)> {
    let state = |app: &start::Started| {
        let state = AppState::Started { at: Timestamp(app.at), pid: app.pid, attempt: app.attempt };
        Some((app.app.parse().ok()?, state))
    };
    ready.apps.iter().filter_map(state).collect()
}

/// The networks to which a pod that became ready is attached.
fn attached_networks(ready: &start::Ready) -> Result<Networks, StoreError> {
    Networks::from_list(&ready.networks)
}

/// Whether the database was restored by another process since it was opened.
pub(crate) fn was_replaced(error: &PodError) -> bool {
    let PodError::Store(cause) = error else { return false };
    matches!(cause.get::<StepError>(), Some(StepError::Store(StoreError::Replaced { .. })))
        || matches!(cause.get::<StoreError>(), Some(StoreError::Replaced { .. }))
}

/// Whether the database cannot be written now: the disk is full or read-only.
pub(crate) fn cannot_be_written(error: &PodError) -> bool {
    let PodError::Store(cause) = error else { return false };
    matches!(cause.kind(), ErrorKind::Exhausted | ErrorKind::Denied)
}

/// A row after a step that is not stored.
fn row_after(row: &PodRow, change: Change) -> PodRow {
    let mut moved = with_app_changes(row.clone(), std::slice::from_ref(&change.apps));
    if matches!(change.edge, Edge::Started { .. }) {
        moved.networks = change.networks;
    }
    if let Ok(gantry_model::phase::Stepped::To(phase)) = gantry_model::step(&row.phase, change.edge) {
        moved.phase = phase;
        if let Some(restart) = change.restart {
            moved.restart = restart;
        }
        moved.paused &= matches!(moved.phase, Phase::Running { .. });
    }
    moved
}

fn row_of(moved: Moved) -> Option<PodRow> {
    match moved {
        Moved::Yes(row) | Moved::Lost(row) => row,
    }
}

fn app_states(row: &PodRow) -> Vec<(AppName, AppState)> {
    row.apps.iter().map(|app| (app.name.clone(), app.state)).collect()
}

fn with_app_changes(mut row: PodRow, steps: &[AppChanges]) -> PodRow {
    steps.iter().for_each(|step| step.apply_to(&mut row.apps, |app| &app.name, AppRow::set_state));
    row
}
