//! Restarts of pods by gantryd.

use gantry_model::restart::PodRestart;
use gantry_model::{Generation, PodId, Timestamp};
use rusqlite::{Connection, params};

use super::{Moved, load, row};
use crate::db::Sync;
use crate::{Store, StoreError};

/// At the first use in a new boot: the pods that were stopped until then wait to be started, now. Those that did not
/// end before the host did are reconciled as if they had not been requested to stop.
pub(crate) fn release_stopped_until_boot(conn: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    conn.execute(
        "UPDATE pod SET generation = generation + 1, stop_requested = 0, restart_tries = 0,
            restart_at = CASE phase WHEN 'exited' THEN ?1 END WHERE stop_requested = ?2",
        params![now.0, row::STOPPED_UNTIL_BOOT],
    )
    .map(drop)
}

impl Store {
    /// The pods that wait to be started again, each with its time and the number of tries before, the earliest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn pods_to_restart(&self) -> Result<Vec<(PodId, Timestamp, u32)>, StoreError> {
        const DOING: &str = "list the pods that are to be started again";
        let list = |conn: &Connection| -> rusqlite::Result<Vec<(PodId, Timestamp, u32)>> {
            let mut select = conn.prepare_cached(
                "SELECT id, restart_at, restart_tries FROM pod
                    WHERE restart_at IS NOT NULL AND phase = 'exited' ORDER BY restart_at",
            )?;
            let read = |row: &rusqlite::Row<'_>| {
                let mut columns = row::Columns::new(row);
                Ok((columns.parsed()?, Timestamp(columns.get()?), columns.get()?))
            };
            select.query_map([], read)?.collect()
        };
        self.read(DOING, |tx| list(tx).map_err(StoreError::sql(DOING)))
    }

    /// Changes the restarts of a pod, if its generation is still `seen`; with `durable`, before this returns.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn set_restart(
        &self,
        id: PodId,
        seen: Generation,
        restart: PodRestart,
        durable: bool,
    ) -> Result<Moved, StoreError> {
        const DOING: &str = "record when the pod is started again";
        let sync = if durable { Sync::Now } else { Sync::Soon };
        self.write(DOING, sync, |tx| {
            let sql = || StoreError::sql(DOING);
            let mut pod = match load(tx, id).map_err(sql())? {
                Some(pod) if pod.generation == seen => pod,
                other => return Ok(Moved::Lost(other)),
            };
            pod.restart = restart;
            pod.generation = Generation(pod.generation.0 + 1);
            row::write_phase(tx, &pod).map_err(sql())?;
            Ok(Moved::Yes(Some(pod)))
        })
    }
}
