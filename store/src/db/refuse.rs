//! Databases that must not be opened: served read-only, rolled back, torn, or lost.

use std::{fs, io};

use gantry_model::BootId;
use rusqlite::Connection;

use super::{NamedFile, OpenError, read_counters};
use crate::high_water::HighWater;
use crate::{Layout, StoreError, backup};

/// Refuses to write while gantryd serves a damaged database.
pub(super) fn refuse_read_only(layout: &Layout) -> Result<(), OpenError> {
    let path = layout.read_only();
    match fs::read_to_string(&path) {
        Ok(why) => Err(OpenError::ReadOnly { dir: layout.root().to_owned(), why: why.trim().to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::io("read", &path)(error).into()),
    }
}

/// Refuses a database that has lost commits. `mark` was read before the database was: it is never ahead of a whole one.
pub(super) fn refuse_rolled_back(
    conn: &Connection,
    layout: &Layout,
    boot: &BootId,
    mark: Option<&HighWater>,
) -> Result<(), OpenError> {
    let counters = read_counters(conn).map_err(StoreError::sql("open the database"))?;
    match counters.zip(mark) {
        Some((counters, mark)) if mark.is_ahead_of(counters, boot) => Err(OpenError::rolled_back(&layout.db())),
        _ => Ok(()),
    }
}

/// Whether the database has no WAL, or one without content. No gantry leaves such a WAL after the first commit: it is
/// not truncated, and closing the database does not delete it. To be called before SQLite opens the database and
/// creates the WAL.
pub(super) fn is_wal_empty(layout: &Layout) -> Result<bool, StoreError> {
    Ok(NamedFile::find(&layout.wal())?.is_none_or(|wal| wal.len == 0))
}

/// Refuses a database that lost its WAL during a checkpoint: the file has some pages of the newest commits and lacks
/// others. The high-water mark does not show that when the page of the counters was copied. Indexes then differ from
/// their tables.
pub(super) fn refuse_torn_checkpoint(conn: &Connection) -> Result<(), StoreError> {
    const DOING: &str = "open the database";
    match backup::failing(conn, backup::INTEGRITY_CHECK).map_err(StoreError::sql(DOING))? {
        Some(why) => Err(StoreError::damaged(DOING, why)),
        None => Ok(()),
    }
}

/// Refuses a database without content whose directory has some: a new database in its place would not know the content,
/// and garbage collection would delete all of it.
pub(super) fn refuse_lost(layout: &Layout) -> Result<(), OpenError> {
    let how = if NamedFile::find(&layout.db())?.is_some() { "empty" } else { "missing" };
    match find_remains(layout)? {
        Some(what) => Err(OpenError::lost(&layout.db(), how, what)),
        None => Ok(()),
    }
}

/// The contents of a data directory that need rows in the database.
pub(crate) fn find_remains(layout: &Layout) -> Result<Option<&'static str>, StoreError> {
    let dirs = [(layout.pods_dir(), "pods"), (layout.trees_dir(), "layers"), (layout.volumes_dir(), "volumes")];
    for (dir, what) in dirs {
        let entry = match fs::read_dir(&dir) {
            Ok(mut entries) => entries.next().transpose(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        };
        if entry.map_err(StoreError::io("list", &dir))?.is_some() {
            return Ok(Some(what));
        }
    }
    Ok((!backup::backups(layout)?.is_empty()).then_some("backups"))
}
