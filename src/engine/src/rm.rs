//! `rm`, and the one way in which a pod goes: row to Garbage and on to deleting, cgroups, networks, directory, row.
//!
//! A `kill -9` leaves a pod that is still what it was, or garbage, or (from the moment before the first thing of it goes)
//! deleting; the next `gc` or `rm` goes on.

use gantry_model::{Edge, ErrorKind, Kind, Phase, PodId};
use gantry_store::{Change, PodLock, PodRow, PodState};
use thiserror::Error;

use crate::cgroup::CgroupError;
use crate::error::need_root;
use crate::stop::StopError;
use crate::{Engine, NetworkError, PodError};

/// A pod could not be removed.
#[derive(Debug, Error)]
pub enum RmError {
    /// It runs.
    #[error("pod {0} is currently running: stop it first, or remove it with --force")]
    Running(PodId),
    /// Somebody prepares it.
    #[error("pod {0} is currently being prepared")]
    Preparing(PodId),
    /// Somebody starts or deletes it.
    #[error("pod {0} is currently being started or deleted by somebody else")]
    Busy(PodId),
    /// It could not be stopped before.
    #[error("pod {id} cannot be removed because it cannot be stopped")]
    Stop {
        /// Which pod.
        id: PodId,
        /// Why not.
        #[source]
        source: Box<StopError>,
    },
    /// Its cgroup cannot be removed.
    #[error("pod {id} cannot be removed completely")]
    Cgroup {
        /// Which pod.
        id: PodId,
        /// Why not.
        #[source]
        source: CgroupError,
    },
    /// What it has of its networks on the host cannot be taken away. Its directory stays: the record in it is all that tells
    /// what that is.
    #[error(
        "pod {id} cannot be removed completely; when the cause is gone, 'gantry gc' and 'gantry rm {id}' try again; \
         'gantry rm --force {id}' removes it although a network plugin fails"
    )]
    Network {
        /// Which pod.
        id: PodId,
        /// Why not.
        #[source]
        source: NetworkError,
    },
    /// The store or the file system failed.
    #[error(transparent)]
    Pod(#[from] PodError),
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

impl Engine {
    /// Removes a pod that does not run, whatever it is; with `force`, stops a running one first.
    ///
    /// # Errors
    /// [`RmError`]. A removal that was begun is finished by the next `rm` or `gc`.
    pub fn rm(&self, id: PodId, force: bool) -> Result<(), RmError> {
        need_root("remove a pod")?;
        match self.current(id)?.phase {
            Phase::Running { .. } if force => {
                self.stop(id, self.options.stop_grace, false)
                    .map_err(|source| RmError::Stop { id, source: Box::new(source) })?;
            }
            Phase::Running { .. } => return Err(RmError::Running(id)),
            // Brought up to the facts, these two have a living preparer.
            Phase::Embryo | Phase::Preparing => return Err(RmError::Preparing(id)),
            Phase::AbortedPrepare { .. } | Phase::Prepared { .. } | Phase::Exited { .. } | Phase::Garbage { .. } => {}
        }
        self.dispose_durably(id, true)
    }

    /// Takes a pod away without syncing: for one that `run` could not run.
    pub(crate) fn dispose(&self, id: PodId) -> Result<(), RmError> {
        self.dispose_durably(id, false)
    }

    /// Takes a dead pod away, whatever is left of it: a row, a directory, or both.
    pub(crate) fn dispose_durably(&self, id: PodId, durable: bool) -> Result<(), RmError> {
        let lock = match self.lock_patiently(id)? {
            PodState::Free(lock) => Some(lock),
            PodState::Absent => None,
            PodState::Held => return Err(RmError::Busy(id)),
        };
        // Read under the lock: nobody starts it from here on.
        let row = self.store.pod(id).map_err(PodError::store)?;
        let row = row.map(|row| self.to_deleting(row)).transpose()?.flatten();
        // Both, whatever becomes of the other; the processes first, plugins of a killed supervisor among them.
        let cgroups = self.remove_cgroups(id);
        self.network_down(id).map_err(|source| RmError::Network { id, source })?;
        cgroups.map_err(|source| RmError::Cgroup { id, source })?;
        if let Some(lock) = lock {
            self.delete_dir(lock, id)?;
        }
        if let Some(row) = row {
            self.step(&row, Change { durable, ..Change::along(Edge::Swept) })?;
        }
        Ok(())
    }

    fn delete_dir(&self, lock: PodLock, id: PodId) -> Result<(), PodError> {
        self.store.delete_pod_dir(lock, id).map_err(PodError::store)
    }

    /// Walks a row to Garbage that is being deleted; the caller holds the lock, or there is no directory to lock. `None`:
    /// it is gone.
    fn to_deleting(&self, mut row: PodRow) -> Result<Option<PodRow>, RmError> {
        loop {
            let now = gantry_store::now();
            let edge = match row.phase {
                Phase::Embryo | Phase::Preparing => Edge::Aborted(now),
                Phase::AbortedPrepare { .. } | Phase::Exited { .. } => Edge::Marked(now),
                Phase::Prepared { .. } => Edge::Discarded(now),
                // Dead, for the lock is ours; its end was not noticed yet.
                Phase::Running { .. } => match self.end_under_lock(&row, &self.journal(row.id)?)? {
                    Some(next) => {
                        row = next;
                        continue;
                    }
                    None => return Ok(None),
                },
                Phase::Garbage { deleting: None, .. } => Edge::Deleting(now),
                // Begun by somebody who was killed since.
                Phase::Garbage { deleting: Some(_), .. } => return Ok(Some(row)),
            };
            match self.step(&row, Change::along(edge))? {
                Some(next) => row = next,
                None => return Ok(None),
            }
        }
    }
}
