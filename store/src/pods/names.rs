//! Names of pods: unique, and held by pods that run, may run or have run.

use gantry_model::{ErrorKind, Kind, PhaseName, PodId, PodName};
use rusqlite::{Connection, OptionalExtension as _};
use thiserror::Error;

use super::has_name;
use super::list::load;
use super::row::Columns;
use crate::db::Sync;
use crate::{Store, StoreError};

/// A pod could not be renamed.
#[derive(Debug, Error)]
pub enum RenamePodError {
    /// There is no such pod.
    #[error("there is no pod {0}")]
    NotFound(PodId),
    /// The pod is being removed, or was never started and never will be.
    #[error("pod {pod} cannot be renamed: it is {phase}")]
    Refused {
        /// The pod.
        pod: PodId,
        /// Its phase.
        phase: PhaseName,
    },
    /// Another pod has the name.
    #[error("{}", taken_text(name, *pod))]
    Taken {
        /// The name.
        name: PodName,
        /// The pod that has it.
        pod: PodId,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for RenamePodError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Refused { .. } => ErrorKind::Refused,
            Self::Taken { .. } => ErrorKind::AlreadyExists,
            Self::Store(error) => error.kind(),
        }
    }
}

pub(super) fn taken_text(name: &PodName, pod: PodId) -> String {
    format!("pod {pod} has the name '{name}': choose another one, or rename or remove that pod")
}

/// The pod of this name.
pub(super) fn find(conn: &Connection, name: &PodName) -> rusqlite::Result<Option<PodId>> {
    conn.prepare_cached("SELECT id FROM pod WHERE name = ?1")?
        .query_row([name.as_str()], |row| Columns::new(row).parsed())
        .optional()
}

impl Store {
    /// The pod of this name.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pod_named(&self, name: &PodName) -> Result<Option<PodId>, StoreError> {
        find(&self.conn, name).map_err(StoreError::sql("find the pod"))
    }

    /// Gives a pod this name in place of the one it had, durably. The generation is raised, since it is the
    /// version of what clients see of the pod. A pod that has this name already stays unchanged.
    ///
    /// # Errors
    /// [`RenamePodError`].
    pub fn rename_pod(&self, id: PodId, name: &PodName) -> Result<(), RenamePodError> {
        const DOING: &str = "rename the pod";
        self.write(DOING, Sync::Now, |tx| {
            let sql = || StoreError::sql(DOING);
            let pod = load(tx, id).map_err(sql())?.ok_or(RenamePodError::NotFound(id))?;
            if !has_name(&pod.phase) {
                return Err(RenamePodError::Refused { pod: id, phase: pod.phase.name() });
            }
            match find(tx, name).map_err(sql())? {
                Some(other) if other != id => return Err(RenamePodError::Taken { name: name.clone(), pod: other }),
                Some(_) => return Ok(()),
                None => {}
            }
            let update = tx.prepare_cached("UPDATE pod SET name = ?2, generation = generation + 1 WHERE id = ?1");
            let updated = update.and_then(|mut update| update.execute([&id.to_string(), name.as_str()]));
            Ok(updated.map(drop).map_err(sql())?)
        })
    }
}
