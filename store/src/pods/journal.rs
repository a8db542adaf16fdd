//! The stamps of the journals whose facts are all in the rows of pods.
//!
//! A list compares the stamp of each journal with the recorded one and reads only those that differ. Recording one
//! neither changes the pod nor writes an event; if a recorded stamp is lost, the next list reads the journal again.

use std::time::Duration;

use gantry_host::stamp::FileStamp;
use gantry_model::{Generation, PodId};
use rusqlite::params;

use crate::db::{BUSY_TIMEOUT, Sync};
use crate::{Store, StoreError};

/// The length of the column: the generation of the row, then the stamp.
const LENGTH: usize = size_of::<u64>() + FileStamp::LENGTH;

impl Store {
    /// Records the stamps of journals whose facts are all in the rows of these generations. A stamp counts until the
    /// row's next change. Pods that have changed meanwhile are skipped.
    ///
    /// # Errors
    /// [`StoreError`], at once when another process writes.
    pub fn record_journals(&self, journals: &[(PodId, Generation, FileStamp)]) -> Result<(), StoreError> {
        const DOING: &str = "record the journals of pods";
        self.conn.busy_timeout(Duration::ZERO).map_err(StoreError::sql(DOING))?;
        let recorded = self.write(DOING, Sync::Soon, |tx| {
            let mut update = tx
                .prepare_cached("UPDATE pod SET journal = ?3 WHERE id = ?1 AND generation = ?2")
                .map_err(StoreError::sql(DOING))?;
            for (id, generation, stamp) in journals {
                update
                    .execute(params![id.to_string(), generation.0, encode(*generation, *stamp)])
                    .map_err(StoreError::sql(DOING))?;
            }
            Ok(())
        });
        self.conn.busy_timeout(BUSY_TIMEOUT).map_err(StoreError::sql(DOING))?;
        recorded
    }
}

fn encode(generation: Generation, stamp: FileStamp) -> [u8; LENGTH] {
    let mut bytes = [0; LENGTH];
    let (of_row, of_file) = bytes.split_at_mut(size_of::<u64>());
    of_row.copy_from_slice(&generation.0.to_le_bytes());
    of_file.copy_from_slice(&stamp.to_bytes());
    bytes
}

/// The stamp in a column that was recorded for this generation of the row.
pub(super) fn decode(bytes: &[u8], generation: Generation) -> Option<FileStamp> {
    let (of_row, of_file) = bytes.split_first_chunk()?;
    if u64::from_le_bytes(*of_row) != generation.0 {
        return None;
    }
    FileStamp::from_bytes(of_file)
}
