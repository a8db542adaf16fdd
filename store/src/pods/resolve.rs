//! The beginning of an id, resolved to the one pod with such an id.

use gantry_model::{ErrorKind, Kind, PodId, PodPrefix};
use rusqlite::{Connection, params};
use thiserror::Error;

use super::row;
use crate::{Store, StoreError};

/// The prefix of an id does not name one pod.
#[derive(Debug, Error)]
pub enum ResolveError {
    /// No pod's id begins so.
    #[error("there is no pod {prefix}: 'gantry list' lists the pods")]
    NotFound {
        /// The prefix.
        prefix: PodPrefix,
    },
    /// Several do.
    #[error("{prefix} is the beginning of {matches} pods, among them {}: give more digits", list(some))]
    Ambiguous {
        /// The prefix.
        prefix: PodPrefix,
        /// How many pods have ids with this prefix.
        matches: u64,
        /// Some of them.
        some: Vec<PodId>,
    },
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for ResolveError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound { .. } => ErrorKind::NotFound,
            Self::Ambiguous { .. } => ErrorKind::Invalid,
            Self::Store(error) => error.kind(),
        }
    }
}

fn list(ids: &[PodId]) -> String {
    ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Store {
    /// The one pod whose id has this prefix.
    ///
    /// # Errors
    /// [`ResolveError`].
    pub fn resolve(&self, prefix: &PodPrefix) -> Result<PodId, ResolveError> {
        /// Enough to recognise the intended one.
        const SHOWN: usize = 5;
        const DOING: &str = "find the pod";
        let found = |conn: &Connection| -> rusqlite::Result<(Vec<PodId>, u64)> {
            let mut some =
                conn.prepare_cached(&format!("SELECT id FROM pod WHERE {BEGINS_SO} ORDER BY id LIMIT ?2"))?;
            let some = some.query_map(params![prefix.as_str(), SHOWN], |row| row::Columns::new(row).parsed())?;
            let ids: Vec<PodId> = some.collect::<rusqlite::Result<_>>()?;
            let matches = match ids.len() {
                SHOWN => conn
                    .prepare_cached(&format!("SELECT count(*) FROM pod WHERE {BEGINS_SO}"))?
                    .query_row([prefix.as_str()], |row| row.get(0))?,
                fewer => u64::try_from(fewer).unwrap_or(u64::MAX),
            };
            Ok((ids, matches))
        };
        let (ids, matches) = self.read(DOING, |tx| found(tx).map_err(StoreError::sql(DOING)))?;
        match ids[..] {
            [] => Err(ResolveError::NotFound { prefix: prefix.clone() }),
            [id] => Ok(id),
            _ => Err(ResolveError::Ambiguous { prefix: prefix.clone(), matches, some: ids }),
        }
    }
}

/// In the order of bytes every id that begins with the prefix lies before the prefix and a 'g'.
const BEGINS_SO: &str = "id >= ?1 AND id < ?1 || 'g'";
