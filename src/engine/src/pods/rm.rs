//! `rm`, and the removal of pods for all others: row to Garbage, then to deleting; cgroups; networks; directory; row.
//!
//! A `kill -9` leaves the pod unchanged, or as garbage, or (before anything of it is removed) as deleting; the next
//! `gc` or `rm` continues. So does a failure: the row says "deleting" until the last byte is gone, even if the
//! directory has lost its name already. The exception is a removal without sync (`run --rm`). The layers, volumes and
//! logs may be deleted before the end of the pod is recorded; the next command completes both. The row may be deleted
//! before the directory; `gc` deletes the rest of that in `tmp/`.
//!
//! # Power cuts
//!
//! `rm` syncs the step to deleting before it removes the directory, then the removal of the directory's name. In `gc`
//! only the second sync is made. A power cut can then preserve the removal of the directory and undo the steps of the
//! row. The first command after the boot removes the rows of pods whose directories are gone
//! ([`Engine::finish_cut_removals`]).
//!
//! Where nothing has to survive (`run --rm`, a start that failed), nothing is synced. A power cut can also undo the
//! removal of the directory, in part: it is an orphan then, which the next command or `gc` removes, or that of a pod
//! that was lost with the host, which `gc` collects.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use gantry_contract::journal::Parsed;
use gantry_host::parallel::run_beside;
use gantry_model::{Edge, ErrorKind, Kind, Phase, PodId};
use gantry_store::{Change, DirInDeletion, PodLock, PodRow, PodState, StoreError};
use thiserror::Error;

use crate::error::need_root;
use crate::host::process::Deadline;
use crate::pods::pod_dir;
use crate::pods::stop::StopError;
use crate::pods::storage_limit;
use crate::{Engine, EngineError, PodError};

/// What of a removal survives a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalSync {
    /// The step of the row, then the removal of the directory's name.
    StepAndName,
    /// The removal of the directory's name.
    Name,
    /// Nothing: no sync.
    Nothing,
}

/// Poll interval of waiting for a deletion by another process.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// The time `rm` waits for another process that removes the pod: its network plugins may each use their time limit.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(120);

/// A pod could not be removed.
#[derive(Debug, Error)]
pub enum RmError {
    /// It runs.
    #[error("pod {0} is currently running: stop it first, or remove it with --force")]
    Running(PodId),
    /// Another process prepares it.
    #[error("pod {0} is currently being prepared")]
    Preparing(PodId),
    /// Another process starts or deletes it.
    #[error("pod {0} is currently being started or deleted by another process")]
    Busy(PodId),
    /// It could not be stopped first.
    #[error("pod {id} cannot be removed because it cannot be stopped")]
    Stop {
        /// The pod.
        id: PodId,
        /// The reason.
        #[source]
        source: Box<StopError>,
    },
    /// Its cgroup cannot be removed.
    #[error("pod {id} cannot be removed completely")]
    Cgroup {
        /// The pod.
        id: PodId,
        /// The reason.
        #[source]
        source: EngineError,
    },
    /// Its networks cannot be removed from the host. The directory stays, because it holds the only record of them.
    #[error(
        "pod {id} cannot be removed completely; when the cause is gone, 'gantry gc' and 'gantry rm {id}' try again; \
         'gantry rm --force {id}' removes it although a network plugin fails"
    )]
    Network {
        /// The pod.
        id: PodId,
        /// The reason.
        #[source]
        source: EngineError,
    },
    /// The store or the file system failed.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl From<StoreError> for RmError {
    fn from(error: StoreError) -> Self {
        Self::Pod(error.into())
    }
}

impl Kind for RmError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Running(_) | Self::Preparing(_) => ErrorKind::Refused,
            Self::Busy(_) => ErrorKind::Busy,
            Self::Stop { source, .. } => source.kind(),
            Self::Cgroup { source, .. } => source.kind(),
            Self::Network { source, .. } => source.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// What [`Engine::rm`] does with a pod that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunningPod {
    /// It stays, and the call fails.
    Refuse,
    /// It is stopped, then removed.
    Stop,
}

impl Engine {
    /// Removes a pod.
    ///
    /// # Errors
    /// [`RmError`]. The next `rm` or `gc` finishes a removal that was begun.
    pub fn rm(&self, id: PodId, running: RunningPod) -> Result<(), RmError> {
        need_root("remove a pod")?;
        match self.reconcile_pod(id)?.phase {
            Phase::Running { .. } | Phase::Starting { .. } if running == RunningPod::Stop => {
                match self.stop(id, self.stop_grace(id, None)) {
                    Ok(_) => {}
                    // Another process stopped it, and has removed it.
                    Err(StopError::Pod(PodError::NotFound(_))) => return Ok(()),
                    Err(source) => return Err(RmError::Stop { id, source: Box::new(source) }),
                }
            }
            Phase::Running { .. } => return Err(RmError::Running(id)),
            // Reconciled, these two have a living preparer.
            Phase::Embryo | Phase::Preparing => return Err(RmError::Preparing(id)),
            // Reconciled, it has a living starter.
            Phase::Starting { .. } => return Err(RmError::Busy(id)),
            Phase::AbortedPrepare { .. } | Phase::Prepared { .. } | Phase::Exited { .. } | Phase::Garbage { .. } => {}
        }
        self.dispose_or_wait(id)
    }

    /// Removes a pod. If another process is already removing it (the `run --rm` that saw it end, a `gc`), waits for
    /// that removal.
    fn dispose_or_wait(&self, id: PodId) -> Result<(), RmError> {
        let deadline = Deadline::after(REMOVAL_TIMEOUT);
        loop {
            match self.dispose_synced(id, RemovalSync::StepAndName) {
                Err(RmError::Busy(_)) if !deadline.passed() && self.is_being_removed(id)? => {}
                done => return done,
            }
        }
    }

    fn is_being_removed(&self, id: PodId) -> Result<bool, PodError> {
        let row = self.store.pod(id)?;
        Ok(row.is_none_or(|row| match row.phase {
            Phase::Garbage { deleting, .. } => deleting.is_some(),
            other => other.is_over() && pod_dir::is_to_be_removed(&self.pod_dir(id)),
        }))
    }

    /// Removes a pod without syncing: one that could not be started, one of `run --rm` that has ended or was aborted,
    /// or an orphan.
    pub(crate) fn dispose(&self, id: PodId) -> Result<(), RmError> {
        self.dispose_synced(id, RemovalSync::Nothing)
    }

    /// Removes the rest of a dead pod: a row, a directory, or both.
    pub(crate) fn dispose_synced(&self, id: PodId, sync: RemovalSync) -> Result<(), RmError> {
        let lock = match self.lock_in_time(id)? {
            PodState::Free(lock) => Some(lock),
            PodState::Absent => None,
            PodState::Held => return Err(RmError::Busy(id)),
        };
        self.dispose_locked(id, lock, sync)
    }

    /// Removes the rest of a dead pod whose lock the caller holds. `None`: it has no directory, perhaps an entry of
    /// another type.
    pub(crate) fn dispose_locked(&self, id: PodId, lock: Option<PodLock>, sync: RemovalSync) -> Result<(), RmError> {
        // Read under the lock: the pod cannot be started from here on. The journal goes with the directory.
        let row = self.store.pod(id)?;
        let journal = match row.as_ref().map(|row| &row.phase) {
            Some(Phase::Running { .. }) if lock.is_some() => self.journal(id)?,
            // Only a running pod has facts that its row lacks.
            _ => Arc::default(),
        };
        self.options.journals.forget(id);
        let cgroup = row.as_ref().map_or_else(|| self.recorded_cgroup(id), |row| row.cgroup.clone());
        self.check_runs_nowhere_else(id, &cgroup).map_err(|source| RmError::Cgroup { id, source })?;
        let (row, full) = match row.map(|row| self.to_deleting(row, &journal, sync)).transpose() {
            // The disk is too full to record the step: delete the data first, which frees space.
            Err(error) if error.kind() == ErrorKind::Exhausted => (None, true),
            other => (other?.flatten(), false),
        };
        if lock.is_none() {
            // Before the steps below, which would follow a link. A record of networks behind it is out of reach then:
            // `gc` releases them.
            self.store.unlink_pod_entry(id, sync != RemovalSync::Nothing)?;
        }
        // Try both. The processes first, since they may be plugins of a killed supervisor.
        let cgroups = self.remove_cgroups(&cgroup);
        self.network_down(id).map_err(|source| RmError::Network { id, source })?;
        cgroups.map_err(|source| RmError::Cgroup { id, source })?;
        storage_limit::release(&self.pod_dir(id), None)?;
        let unnamed = match lock {
            Some(lock) => self.store.unname_pod_dir(lock, id, sync != RemovalSync::Nothing)?,
            None => {
                self.delete_rest(id)?;
                None
            }
        };
        if sync == RemovalSync::Nothing && !full {
            return self.sweep_while_deleting(unnamed, row);
        }
        if let Some(dir) = unnamed {
            dir.delete().map_err(PodError::store)?;
        }
        let row = if full {
            let row = self.store.pod(id)?;
            row.map(|row| self.to_deleting(row, &journal, sync)).transpose()?.flatten()
        } else {
            row
        };
        self.sweep(row)
    }

    /// Deletes the row. Not durable by itself: the next command removes a row that is being deleted and has no
    /// directory.
    fn sweep(&self, row: Option<PodRow>) -> Result<(), RmError> {
        if let Some(row) = row {
            self.step(&row, Change::along(Edge::Swept))?;
        }
        // The pod is removed; the next removal tries to fill it again.
        let _reserve_left_empty = self.store.refill_reserve();
        Ok(())
    }

    /// Deletes the row while another thread deletes the directory, which mostly waits for the disk. A kill leaves the
    /// directory without a row, in `tmp/`, for `gc`.
    fn sweep_while_deleting(&self, dir: Option<DirInDeletion>, row: Option<PodRow>) -> Result<(), RmError> {
        let Some(dir) = dir else { return self.sweep(row) };
        let (deleted, swept) = run_beside(|| dir.delete(), || self.sweep(row));
        deleted.map_err(PodError::store)?;
        swept
    }

    /// Deletes the rest of an earlier deletion. A deletion in progress is waited for, as in [`Self::lock_in_time`]
    /// before the directory has lost its name.
    fn delete_rest(&self, id: PodId) -> Result<(), RmError> {
        let deadline = Deadline::after(self.timeouts.lock);
        while !self.store.delete_rest_of_pod_dir(id)? {
            if deadline.passed() {
                return Err(RmError::Busy(id));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Moves a row to Garbage that is being deleted; the caller holds the lock, or the directory does not exist.
    /// `None`: the row is gone.
    fn to_deleting(&self, mut row: PodRow, journal: &Parsed, sync: RemovalSync) -> Result<Option<PodRow>, RmError> {
        loop {
            let now = gantry_store::now();
            let edges = match row.phase {
                Phase::Embryo | Phase::Preparing => vec![Edge::Aborted(now), Edge::Marked(now), Edge::Deleting(now)],
                Phase::AbortedPrepare { .. } | Phase::Exited { .. } => vec![Edge::Marked(now), Edge::Deleting(now)],
                Phase::Prepared { .. } => vec![Edge::Discarded(now), Edge::Deleting(now)],
                // The process that started it again is dead.
                Phase::Starting { .. } => vec![Edge::StartFailed],
                // Dead, since this process holds the lock; its end was not recorded yet.
                Phase::Running { .. } => match self.finalize(&row, journal)? {
                    Some(next) => {
                        row = next;
                        continue;
                    }
                    None => return Ok(None),
                },
                Phase::Garbage { deleting: None, .. } => vec![Edge::Deleting(now)],
                // By this call, or by a process that was killed.
                Phase::Garbage { deleting: Some(_), .. } => {
                    if sync == RemovalSync::StepAndName {
                        self.store.make_durable()?;
                    }
                    return Ok(Some(row));
                }
            };
            match self.steps(&row, edges.into_iter().map(Change::along).collect())? {
                Some(next) => row = next,
                None => return Ok(None),
            }
        }
    }
}
