//! Whether another handle or process has committed.

use std::time::Duration;

use crate::{Store, StoreError};

impl Store {
    /// A number that changes with each commit of another handle or process. Every commit that ended before this call
    /// counts.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn data_version(&self) -> Result<i64, StoreError> {
        self.conn
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(StoreError::sql("look for commits"))
    }

    /// Makes operations fail at once where they would wait for another process.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn never_wait(&self) -> Result<(), StoreError> {
        self.conn.busy_timeout(Duration::ZERO).map_err(StoreError::sql("open the database"))
    }
}
