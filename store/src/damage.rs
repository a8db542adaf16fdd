//! Checks the database before gantryd opens it.
//!
//! | found | result |
//! |---|---|
//! | no database, or an empty one, and pods, layers or backups beside it | damage |
//! | SQLite reports a damaged file, or one that is no database | damage |
//! | the integrity check of the whole file fails | damage |
//! | rows that gantry never writes | damage |
//! | fewer events or durable commits than `sequence` records: the WAL, or the end of it, is lost | damage |
//! | wrong owner, newer format, unknown feature, another program's database | an error that says what to do |
//! | the disk does not read or write, or is full | an error: the state of the database is unknown |
//!
//! This runs at every start, also after a clean shutdown: with 10 000 pods and 100 000 events (28 MB) the integrity
//! check takes a tenth of a second (10 MB: 42 ms), no pod waits for it, and disks damage pages of cleanly closed files,
//! too. The quick check would take two thirds of that, and miss a checkpoint that was cut short and whose WAL is lost:
//! then every page is in order, and indexes differ from their tables.

use std::path::Path;

use gantry_model::{BootId, ErrorKind, Kind as _};
use rusqlite::Connection;

use crate::backup::{INTEGRITY_CHECK, failing};
use crate::constraints;
use crate::db::{NamedFile, SchemaState, check_schema, connect, find_remains, read_counters};
use crate::high_water::HighWater;
use crate::migrate::STEPS;
use crate::reserve;
use crate::{Layout, OpenError, Store, StoreError};

/// Damage of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// For people: `the database …`.
    pub what: String,
    /// Whether only the newest commits are missing: the rest may be the best source of a restore.
    pub(crate) rolled_back: bool,
}

impl Damage {
    fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), rolled_back: false }
    }
}

/// Checks the database of a directory; `None`: it is sound, or does not exist yet.
pub(crate) fn find_damage(layout: &Layout, boot: &BootId) -> Result<Option<Damage>, OpenError> {
    match find_damage_once(layout, boot) {
        Err(OpenError::Store(error)) if error.kind() == ErrorKind::Damaged => {
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Ok(Some(Damage::new(format!("the database cannot be read: {cause}"))))
        }
        other => other,
    }
}

fn find_damage_once(layout: &Layout, boot: &BootId) -> Result<Option<Damage>, OpenError> {
    let file = NamedFile::find(&layout.db())?;
    if file.is_none_or(|file| file.len == 0) {
        let how = if file.is_some() { "empty" } else { "missing" };
        return Ok(
            find_remains(layout)?.map(|what| Damage::new(format!("the database is {how}, and there are {what}")))
        );
    }
    let mark = HighWater::load(layout)?;
    let db = match connect(layout, boot) {
        // The WAL index needs space. The caller may serve the database read-only for as long as it runs, so the reserve
        // goes first.
        Err(error) if error.is_full() => {
            reserve::spend(layout)?;
            connect(layout, boot)?
        }
        other => other?,
    };
    let conn = &db.conn;
    let looked = match check_schema(conn, layout, boot, STEPS) {
        // The marks in the header of gantry's own database may have been overwritten.
        Err(OpenError::Foreign { .. }) if is_ours(conn)? => {
            return Ok(Some(Damage::new("the header of the database is damaged")));
        }
        other => other?,
    };
    if !matches!(looked, SchemaState::Behind(0)) && rolled_back(conn, boot, mark.as_ref())? {
        let what = "the database was rolled back: its newest commits are missing".to_owned();
        return Ok(Some(Damage { what, rolled_back: true }));
    }
    if let Some(why) = failing(conn, INTEGRITY_CHECK).map_err(StoreError::sql("check the database"))? {
        return Ok(Some(Damage::new(format!("the database is damaged: {}", gantry_model::id::shown(&why)))));
    }
    match looked {
        SchemaState::Behind(0) => {
            Ok(find_remains(layout)?
                .map(|what| Damage::new(format!("the database has no tables, and there are {what}"))))
        }
        // Rows of an older format are read by the step that migrates them.
        SchemaState::Behind(version) if version < STEPS.len() => Ok(None),
        SchemaState::Behind(_) | SchemaState::Ready => {
            Ok(find_wrong_rows(db.conn)?.map(|what| Damage::new(format!("the database {what}"))))
        }
    }
}

/// Whether commits are missing whose WAL no longer exists.
fn rolled_back(conn: &Connection, boot: &BootId, mark: Option<&HighWater>) -> Result<bool, StoreError> {
    let counters = read_counters(conn).map_err(StoreError::sql("check the database"))?;
    Ok(counters.zip(mark).is_some_and(|(counters, mark)| mark.is_ahead_of(counters, boot)))
}

/// Reads every row that a start reads, of a database of the latest format: the check of the whole file verifies its
/// structure and does not notice a changed byte within a row. Rows that cannot be read are
/// [`DatabaseFailure::Damaged`](crate::DatabaseFailure::Damaged).
pub(crate) fn find_wrong_rows(conn: Connection) -> Result<Option<&'static str>, StoreError> {
    let states: u32 = conn
        .query_row("SELECT count(*) FROM state", [], |row| row.get(0))
        .map_err(StoreError::sql("check the database"))?;
    if states != 1 {
        return Ok(Some("does not know the number of the next event"));
    }
    if !constraints::violations(&conn).map_err(StoreError::sql("check the database"))?.is_empty() {
        return Ok(Some("has damaged rows"));
    }
    // Reading rows needs neither the path nor the boot.
    let store = Store::from_connection(conn, Layout::new(Path::new("")), &BootId(String::new()), None);
    store.last_seq()?;
    store.trimmed_seq()?;
    store.read_pods()?;
    store.images()?;
    Ok(None)
}

/// Whether it has gantry's tables.
fn is_ours(conn: &Connection) -> Result<bool, StoreError> {
    conn.query_row(
        "SELECT count(*) = 4 FROM sqlite_schema WHERE type = 'table' AND name IN ('pod', 'app', 'state', 'image_layer')",
        [],
        |row| row.get(0),
    )
    .map_err(StoreError::sql("check the database"))
}
