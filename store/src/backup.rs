//! Backups of the database in `backups/`: one before each migration, and those that gantryd makes on a timer.
//!
//! ```text
//! gantry-vFORMAT-TIME.db    made before a migration; the newest three are kept
//! timed-vFORMAT-TIME.db     made by gantryd; the newest three are kept
//! NAME.tmp                  an unfinished backup; the next one of its kind overwrites it
//! ```
//!
//! TIME is in nanoseconds since the epoch, with a fixed width, so that names sort by time. Each kind keeps three of its
//! own, so that neither displaces the other.
//!
//! A backup is one step of SQLite's backup interface, so it is one snapshot of the database. In WAL mode this blocks no
//! writer; the WAL grows until the copy is complete. (A copy in several steps starts over whenever another process
//! commits.) The copy is then checked, its rows are read as when opening the store, and it is synced and renamed: a
//! file with its final name is complete, durable and valid. A backup of a damaged database fails and replaces no older
//! one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gantry_model::{BootId, ErrorKind, Kind as _, Timestamp};
use rusqlite::backup::{Backup as Copying, StepResult};
use rusqlite::{Connection, OpenFlags};

use crate::damage::find_wrong_rows;
use crate::db::{BUSY_TIMEOUT, connect, connect_to, ignore_checks, make_db, read_counters, unknown_feature, uri};
use crate::lock::sync_dir;
use crate::migrate::{self, APPLICATION_ID, STEPS};
use crate::sweep::list_names;
use crate::{DatabaseFailure, Layout, Store, StoreError};

/// The number of copies of each kind to keep.
const MAX_BACKUPS: usize = 3;

/// How coarse the times of files may be: the kernel stamps a write with the last tick of its clock before it.
const CLOCK_TICK: Duration = Duration::from_millis(20);

const DOING: &str = "back up the database";

/// All but the comparison of each index with its table.
pub(crate) const QUICK_CHECK: &str = "PRAGMA quick_check(1)";

/// Whether each index matches its table as well.
pub(crate) const INTEGRITY_CHECK: &str = "PRAGMA integrity_check(1)";

/// A copy of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// The path.
    pub path: PathBuf,
    /// The time its creation began: it has all commits before that.
    pub at: Timestamp,
    /// The format of the database.
    pub format: usize,
    timed: bool,
    /// Of the database itself: whether its WAL belongs to it.
    with_wal: bool,
}

/// The result of examining a database without writers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It can be restored.
    Good {
        /// The number that its next event would have had.
        next_seq: u64,
        /// The number of durable commits in it.
        durable_commits: u64,
    },
    /// It cannot.
    Bad {
        /// The reason, for people.
        why: String,
    },
}

impl Backup {
    fn parse(path: PathBuf) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let timed = name.starts_with("timed-v");
        let rest = name.strip_prefix("timed-v").or_else(|| name.strip_prefix("gantry-v"))?;
        let (format, at) = rest.strip_suffix(".db")?.split_once('-')?;
        Some(Self { at: Timestamp(at.parse().ok()?), format: format.parse().ok()?, timed, path, with_wal: false })
    }

    /// A database file that is its own backup, with the commits that SQLite takes from its WAL or without.
    pub(crate) fn own(path: PathBuf, at: Timestamp, with_wal: bool) -> Self {
        Self { path, at, format: STEPS.len(), timed: false, with_wal }
    }

    /// Creates a database with this content.
    pub(crate) fn copy_to(&self, path: &Path) -> Result<(), StoreError> {
        if self.with_wal {
            return copy_to(&connect_to(&self.path)?, path);
        }
        // Not by a link: the copy is written to.
        let mut read = File::open(&self.path).map_err(StoreError::io("open", &self.path))?;
        make_db(path)?;
        let mut write = File::options().write(true).open(path).map_err(StoreError::io("open", path))?;
        std::io::copy(&mut read, &mut write).map(drop).map_err(StoreError::io("write", path))
    }

    /// Checks whether it can be restored, reading all of it.
    #[must_use]
    pub fn examine(&self) -> Verdict {
        examine(&self.path, QUICK_CHECK)
    }
}

/// All copies, newest first; none if their directory does not exist.
///
/// # Errors
/// [`StoreError::Io`].
pub fn backups(layout: &Layout) -> Result<Vec<Backup>, StoreError> {
    let dir = layout.backups_dir();
    let names = match list_names(&dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let mut all: Vec<Backup> = names.iter().filter_map(|name| Backup::parse(dir.join(name))).collect();
    all.sort_by(|a, b| (b.at, &b.path).cmp(&(a.at, &a.path)));
    Ok(all)
}

/// Checks that a database without writers is gantry's, has a known format, and passes this check.
pub(crate) fn examine(path: &Path, check: &str) -> Verdict {
    let look = || -> rusqlite::Result<Verdict> {
        let bad = |why: String| Ok(Verdict::Bad { why });
        let conn = open_immutable(path)?;
        let version = migrate::version(&conn)?;
        let id: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        if id != APPLICATION_ID || version == 0 {
            return bad("it is no database of gantry".to_owned());
        }
        if version > STEPS.len() {
            return bad(format!("it has format {version} and this gantry knows formats up to {}", STEPS.len()));
        }
        if let Some(feature) = unknown_feature(&conn)? {
            return bad(format!("it uses '{}', which this gantry does not know", gantry_model::id::shown(&feature)));
        }
        Ok(examine_content(conn, check))
    };
    look().unwrap_or_else(|error| Verdict::Bad { why: error.to_string() })
}

/// [`examine`] for one that is known to be gantry's and of a known format.
pub(crate) fn examine_content(conn: Connection, check: &str) -> Verdict {
    let look = move || -> rusqlite::Result<Verdict> {
        if let Some(why) = failing(&conn, check)? {
            return Ok(Verdict::Bad { why });
        }
        let Some(counters) = read_counters(&conn)? else {
            return Ok(Verdict::Bad { why: "it does not know the number of the next event".to_owned() });
        };
        let good = Verdict::Good { next_seq: counters.next, durable_commits: counters.durable };
        let version = migrate::version(&conn)?;
        let unreadable = unreadable(conn, version);
        Ok(unreadable.map_or(good, |error| Verdict::Bad { why: caused(&error) }))
    };
    look().unwrap_or_else(|error| Verdict::Bad { why: error.to_string() })
}

/// Why a required row cannot be read. Rows of an older format are read after their migration.
fn unreadable(conn: Connection, version: usize) -> Option<StoreError> {
    if version != STEPS.len() {
        return None;
    }
    match find_wrong_rows(conn) {
        Ok(None) => None,
        Ok(Some(what)) => Some(StoreError::damaged(DOING, format!("it {what}"))),
        Err(error) => Some(error),
    }
}

/// The cause below an error, without the advice on the database, which does not apply to a copy.
fn caused(error: &StoreError) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// The first fault that a check of the whole database reports. It leaves out the CHECK constraints of older databases,
/// which malformed JSON fails with an error: [`find_wrong_rows`] finds these rows.
pub(crate) fn failing(conn: &Connection, check: &str) -> rusqlite::Result<Option<String>> {
    ignore_checks(conn)?;
    let mut statement = conn.prepare(check)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let line: String = row.get(0)?;
        if line != "ok" {
            return Ok(Some(line.trim_start_matches("*** in database main ***").trim().to_owned()));
        }
    }
    Ok(None)
}

/// The number that the next event would have had, whatever else is wrong with the database.
pub(crate) fn next_seq(path: &Path) -> Option<u64> {
    let conn = open_immutable(path).ok()?;
    conn.query_row("SELECT next_seq FROM state", [], |row| row.get(0)).ok()
}

/// Opens a database without writers: takes no locks and creates no WAL.
fn open_immutable(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    Connection::open_with_flags(uri(path, "immutable=1"), flags)
}

/// Backs up the database before a migration, which holds the write lock.
pub(crate) fn before_migration(layout: &Layout, boot: &BootId, version: usize) -> Result<(), StoreError> {
    copy(&connect(layout, boot)?.conn, layout, "gantry", version).map(drop)
}

impl Store {
    /// Makes a copy of the database if there is none that gantryd made, or if the newest is at least this old and the
    /// database has changed since. `None`: it was not due.
    ///
    /// # Errors
    /// [`StoreError`]; [`DatabaseFailure::Damaged`] when the copy, and so the database, is damaged. The older copies
    /// stay.
    pub fn back_up_if_due(&self, interval: Duration) -> Result<Option<Backup>, StoreError> {
        let now = crate::now();
        // One from the future was made before the clock was set back: its age is unknown.
        let newest = backups(&self.layout)?.into_iter().find(|backup| backup.timed && backup.at <= now);
        if let Some(newest) = newest
            && (now.since(newest.at) < interval || !self.changed_since(newest.at)?)
        {
            return Ok(None);
        }
        let version = migrate::version(&self.conn).map_err(StoreError::sql(DOING))?;
        copy(&self.conn, &self.layout, "timed", version).map(Some)
    }

    /// Whether anything was committed since, by the times of the files. A checkpoint looks like a change, too.
    fn changed_since(&self, at: Timestamp) -> Result<bool, StoreError> {
        for path in [self.layout.db(), self.layout.wal()] {
            match fs::metadata(&path).and_then(|found| found.modified()) {
                Ok(time) if Timestamp::from(time) >= at.before(CLOCK_TICK) => return Ok(true),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(StoreError::io("examine", &path)(error)),
            }
        }
        Ok(false)
    }
}

fn copy(from: &Connection, layout: &Layout, kind: &str, version: usize) -> Result<Backup, StoreError> {
    let dir = layout.backups_dir();
    let at = crate::now();
    let temporary = dir.join(format!("{kind}.tmp"));
    remove(&temporary)?;
    let made = copy_to(from, &temporary).and_then(|()| {
        let path = dir.join(format!("{kind}-v{version}-{:020}.db", at.0));
        File::open(&temporary).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", &temporary))?;
        fs::rename(&temporary, &path).map_err(StoreError::io("rename the copy to", &path))?;
        sync_dir(&dir)?;
        Ok(path)
    });
    // Report the first failure; the next copy removes what cannot be removed now.
    let path = made.inspect_err(|_| drop(remove(&temporary)))?;
    let made = Backup { path, at, format: version, timed: kind == "timed", with_wal: false };
    drop_old(layout, &made)?;
    Ok(made)
}

/// Copies one snapshot, and checks the copy.
fn copy_to(from: &Connection, path: &Path) -> Result<(), StoreError> {
    make_db(path)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut to = Connection::open_with_flags(path, flags).map_err(StoreError::sql(DOING))?;
    // The file is synced once, at the end.
    to.execute_batch("PRAGMA synchronous = OFF").map_err(StoreError::sql(DOING))?;
    let copying = Copying::new(from, &mut to).map_err(StoreError::sql(DOING))?;
    let begun = Instant::now();
    loop {
        match copying.step(-1).map_err(StoreError::sql(DOING))? {
            StepResult::Done => break,
            // Only WAL recovery by another process blocks a reader, and not for long.
            _ if begun.elapsed() < BUSY_TIMEOUT => std::thread::sleep(Duration::from_millis(10)),
            _ => {
                return Err(StoreError::Database {
                    doing: DOING,
                    failure: DatabaseFailure::Busy,
                    source: "others kept the database locked".to_owned().into(),
                });
            }
        }
    }
    drop(copying);
    to.close().map_err(|(_, error)| error).map_err(StoreError::sql(DOING))?;
    let copied = open_immutable(path).map_err(StoreError::sql(DOING))?;
    if let Some(why) = failing(&copied, QUICK_CHECK).map_err(StoreError::sql(DOING))? {
        return Err(StoreError::damaged(DOING, why));
    }
    let version = migrate::version(&copied).map_err(StoreError::sql(DOING))?;
    unreadable(copied, version).map_or(Ok(()), Err)
}

fn remove(path: &Path) -> Result<(), StoreError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StoreError::io("remove the unfinished copy", path)(error))
        }
        _ => Ok(()),
    }
}

/// Deletes all but the newest of a kind. Keeps the one just made, whatever the clock says.
fn drop_old(layout: &Layout, made: &Backup) -> Result<(), StoreError> {
    let others = backups(layout)?.into_iter().filter(|other| other.timed == made.timed && other.path != made.path);
    for backup in others.skip(MAX_BACKUPS - 1) {
        fs::remove_file(&backup.path).map_err(StoreError::io("remove the old copy", &backup.path))?;
    }
    Ok(())
}
