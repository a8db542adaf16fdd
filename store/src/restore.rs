//! Preparing a data directory before its database is opened: detecting damage and replacing a damaged database.
//!
//! Only the keeper does this ([`DataDir::lock_keeper`]), under the lock on the data directory, so that no process
//! creates a new database in the meantime. Commands that start during a restore find the damaged database, or none and
//! wait for the lock. Commands that had it open fail when they write ([`StoreError::Replaced`]).
//!
//! # The steps of a restore
//!
//! 1. The newest good backup is copied to `tmp/`: where only the newest commits are missing, the database itself;
//!    without a backup, an empty database.
//! 2. The copy is migrated, gets a new numbering, and the caller fills it from the disk.
//! 3. The copy is checked and synced.
//! 4. `restored` is written: the record for the operator.
//! 5. `gantry.db`, then `-wal`, `-shm` and `-journal` are moved to `damaged/TIME/` and synced.
//! 6. The copy is renamed to `gantry.db` and synced.
//! 7. `sequence` gets the new numbering, and all but the newest three of `damaged/` are deleted.
//!
//! A `kill -9` before step 5 leaves the damaged database; `tmp/` is collected, and the next start overwrites
//! `restored`. Within step 5 it leaves no database beside pods, layers and backups: commands fail, and the next start
//! restores. After step 6 it leaves a restored database.
//!
//! After step 6 nothing fails: the next restore completes step 7.
//!
//! In step 5 the database file is moved first: without its WAL it might look intact, and be old. No WAL may remain
//! before step 6: SQLite would apply it to the new file.
//!
//! # Event numbers
//!
//! No number is used twice, although the numbers used since the backup are unknown. The number of an event is always
//! less than the microseconds since the epoch: the first numbering starts at 1, each later one at the current
//! microseconds, no host commits a million events a second for long, and a boot, which skips at most three million
//! numbers, takes longer than three seconds. So a new numbering starts at the current microseconds. In case the clock
//! was set back, it also starts at least [`BOOT_JUMP`](crate::db::BOOT_JUMP) above all numbers found in the damaged
//! database, the backups and the record of the last restore. Earlier events count as trimmed, so followers see the gap.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::path::Path;

use gantry_model::BootId;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use rustix::fs::{FlockOperation, Mode};

use crate::backup::{Backup, INTEGRITY_CHECK, QUICK_CHECK, Verdict, backups, examine, examine_content, next_seq};
use crate::damage::{self, Damage};
use crate::db::{
    BOOT_JUMP, BUSY_TIMEOUT, NamedFile, after_boot, connect_to, current_boot, make_db, make_dirs, make_root, open_root,
    resolved, set_wal,
};
use crate::high_water::HighWater;
use crate::keeper::{self, Keeper};
use crate::lock::{LockMode, lock_within, sync_dir};
use crate::migrate::{self, STEPS};
use crate::record::{self, Record};
use crate::tmp::{self, Scrap};
use crate::{Layout, OpenError, Store, StoreError, high_water, reserve};

/// The number of damaged databases to keep.
const MAX_DAMAGED: usize = 3;

/// A number that no numbering ever reaches: a record with a greater one is damaged itself.
const MAX_SEQ: u64 = 1 << 60;

const DOING: &str = "restore the database";

/// A data directory before its database is opened, for its keeper.
#[derive(Debug)]
pub struct DataDir {
    root: File,
    layout: Layout,
    boot: BootId,
}

/// The lock on a data directory. While it is held, no other process creates, migrates or restores the database.
#[derive(Debug)]
pub struct DataDirLock<'a>(&'a File);

impl Drop for DataDirLock<'_> {
    fn drop(&mut self) {
        // Closing the directory does it as well, a little later.
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

impl DataDir {
    /// Opens the data directory, creating it and its directories if they are absent. The database is not touched.
    ///
    /// # Errors
    /// [`OpenError`] when the directory is not one that gantry may use.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let dir = &resolved(dir);
        let boot = current_boot()?;
        let root = match open_root(dir) {
            Err(OpenError::Absent { .. }) => make_root(dir)?,
            other => other?,
        };
        let layout = Layout::new(dir);
        make_dirs(&layout)?;
        Ok(Self { root, layout, boot })
    }

    /// The paths.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// [`Store::lock_keeper`].
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn lock_keeper(&self) -> Result<Keeper, StoreError> {
        keeper::lock(&self.layout)
    }

    /// Takes the lock on the data directory.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when other processes create or migrate a database for ten seconds.
    pub fn lock(&self) -> Result<DataDirLock<'_>, StoreError> {
        lock_within(&self.root, LockMode::Exclusive, self.layout.root(), BUSY_TIMEOUT, &mut || {})?;
        Ok(DataDirLock(&self.root))
    }

    /// Checks whether the database is damaged, reading all of it. The caller holds the lock.
    ///
    /// # Errors
    /// [`OpenError`] when the database cannot be examined or is not gantry's.
    pub fn damage(&self) -> Result<Option<Damage>, OpenError> {
        damage::find_damage(&self.layout, &self.boot)
    }

    /// The sources for a restore of a damaged database, the best first; none: there is no good backup. Rows of an older
    /// format are not read before their migration: where those of the best source cannot be read, the next one is used.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn sources(&self, damage: &Damage) -> Result<Vec<Backup>, StoreError> {
        let good = |backup: Backup| rank(&backup.examine()).map(|rank| (backup, rank));
        let own = damage.rolled_back.then(|| [self.with_wal(), self.without_wal()]);
        let mut all: Vec<_> =
            own.into_iter().flatten().flatten().chain(backups(&self.layout)?.into_iter().filter_map(good)).collect();
        // The source with more events or durable commits is the newer one: a file may have had no writes for long, and
        // clocks are set back. Of equal ones the file itself, with its WAL before without, then the newest.
        all.sort_by_key(|(_, rank)| Reverse(*rank));
        Ok(all.into_iter().map(|(backup, _)| backup).collect())
    }

    /// The database with the commits that its WAL still has from the first on, if that is whole: later pages than those
    /// may have been copied into the file, so indexes are compared with their tables.
    fn with_wal(&self) -> Option<(Backup, (u64, u64))> {
        let conn = connect_to(&self.layout.db()).ok()?;
        let rank = rank(&examine_content(conn, INTEGRITY_CHECK))?;
        Some((self.own(&self.layout.wal(), true)?, rank))
    }

    /// The database file alone, if it is intact: a checkpoint may have been cut short.
    fn without_wal(&self) -> Option<(Backup, (u64, u64))> {
        let rank = rank(&examine(&self.layout.db(), INTEGRITY_CHECK))?;
        Some((self.own(&self.layout.db(), false)?, rank))
    }

    /// The database itself, dated by the last write to this file.
    fn own(&self, written: &Path, with_wal: bool) -> Option<Backup> {
        let at = fs::metadata(written).and_then(|found| found.modified()).ok()?;
        Some(Backup::own(self.layout.db(), at.into(), with_wal))
    }

    /// Whether all rows that a reader needs can be read from the damaged database.
    #[must_use]
    pub fn can_be_read(&self) -> bool {
        let read = || -> Result<(), OpenError> {
            let store = Store::open_read_only(self.layout.root())?;
            store.read_pods()?;
            store.images()?;
            store.trimmed_seq()?;
            store.events_after(store.last_seq()?.saturating_sub(1), 1)?;
            Ok(())
        };
        read().is_ok()
    }

    /// From now on writing is refused: opening for writing fails with [`OpenError::ReadOnly`] and this reason. The
    /// caller holds the lock.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn close_for_writing(&self, why: &str) -> Result<(), StoreError> {
        record::write(&self.layout, &self.layout.read_only(), why)
    }

    /// Reverts [`Self::close_for_writing`]. The caller holds the lock.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open_for_writing(&self) -> Result<(), StoreError> {
        let path = self.layout.read_only();
        match fs::remove_file(&path) {
            Ok(()) => sync_dir(self.layout.root()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(StoreError::io("remove", &path)(error)),
        }
    }

    /// Replaces the database by a copy of `source` (without one: by an empty one), which `fill` first completes from
    /// the directories on the disk. The caller holds the lock. The module documents the order.
    ///
    /// # Errors
    /// [`StoreError`], or the error of `fill`. Then the damaged database is still in place, or the next start
    /// continues.
    pub fn restore<E: From<StoreError>>(
        &self,
        damage: &Damage,
        source: Option<&Backup>,
        fill: impl FnOnce(Store) -> Result<Store, E>,
    ) -> Result<Record, E> {
        // Make room for the copy, in case the disk is full.
        reserve::spend(&self.layout)?;
        let (lock, dir) = tmp::make_dir(&self.layout, "restore", Mode::RWXU)?;
        let scrap = Scrap::new(&self.layout, dir.clone());
        let path = dir.join("gantry.db");
        let first = self.first_number()?;
        let conn = self.build(&path, source, first)?;
        let store = fill(Store::from_connection(conn, self.layout.clone(), &self.boot, None))?;
        finish(store.conn, &path)?;
        let at = crate::now();
        let aside = self.layout.damaged_dir().join(at.rfc3339().as_str());
        let record = Record {
            at,
            damage: damage.what.clone(),
            backup: source.map(|backup| (backup.path.clone(), backup.at)),
            aside,
            first_event: first,
        };
        record.save(&self.layout)?;
        self.move_aside(&record.aside)?;
        fs::rename(&path, self.layout.db()).map_err(StoreError::io("rename the database to", &self.layout.db()))?;
        sync_dir(self.layout.root())?;
        drop(scrap);
        drop(lock);
        // An error would mean that the database was not restored.
        let _left_for_the_next =
            [high_water::replace(&self.layout, &self.boot, first), self.drop_old(), reserve::fill(&self.layout)];
        Ok(record)
    }

    /// Builds the new database: of the latest format, in this boot, with a numbering of its own.
    fn build(&self, path: &Path, source: Option<&Backup>, first: u64) -> Result<Connection, StoreError> {
        match source {
            Some(backup) => backup.copy_to(path)?,
            None => make_db(path)?,
        }
        let sql = || StoreError::sql(DOING);
        let conn = connect_to(path)?;
        set_wal(&conn)?;
        // Synced once, when it is complete.
        conn.execute_batch("PRAGMA synchronous = OFF").map_err(sql())?;
        migrate::migrate(&conn, STEPS, |_| Ok(()))?;
        let tx = conn.unchecked_transaction().map_err(sql())?;
        tx.execute("DELETE FROM event", []).map_err(sql())?;
        tx.execute("DELETE FROM state", []).map_err(sql())?;
        // Above the mark that is replaced after the rename, and above what a process that still has the old database
        // open may raise it to: the restored database must never look rolled back.
        let mark = HighWater::load(&self.layout).ok().flatten().map(|mark| mark.durable);
        let durable = mark.filter(|&count| count < MAX_SEQ).unwrap_or(0) + BOOT_JUMP;
        tx.execute(
            "INSERT INTO state (one, boot, next_seq, trimmed, durable_commits) VALUES (1, ?1, ?2, ?3, ?4)",
            params![self.boot.0, first, first - 1, durable],
        )
        .map_err(sql())?;
        tx.commit().map_err(sql())?;
        Ok(conn)
    }

    /// See the module.
    fn first_number(&self) -> Result<u64, StoreError> {
        let of_backups = backups(&self.layout)?.into_iter().filter_map(|backup| next_seq(&backup.path));
        // Only for the numbering, so a failure does not prevent the restore.
        let of_last = Record::load(&self.layout).ok().flatten().map(|record| record.first_event);
        let of_mark = HighWater::load(&self.layout).ok().flatten().map(|mark| mark.next);
        let known = of_backups
            .chain(self.damaged_number())
            .chain(of_last)
            .chain(of_mark)
            .filter(|&seq| seq < MAX_SEQ)
            .max()
            .unwrap_or(1);
        let now = u64::try_from(crate::now().0 / 1000).unwrap_or(0);
        Ok(now.max(after_boot(known)))
    }

    /// The number in the damaged database, with its WAL if that can be read.
    fn damaged_number(&self) -> Option<u64> {
        let path = self.layout.db();
        NamedFile::find(&path).ok()?.filter(|file| file.len > 0)?;
        let whole = connect_to(&path).ok()?.query_row("SELECT next_seq FROM state", [], |row| row.get(0)).ok();
        whole.or_else(|| next_seq(&path))
    }

    fn move_aside(&self, aside: &Path) -> Result<(), StoreError> {
        let above = self.layout.damaged_dir();
        for dir in [above.as_path(), aside] {
            match rustix::fs::mkdir(dir, Mode::RWXU) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(errno) => return Err(StoreError::io("create", dir)(errno)),
            }
        }
        let db = self.layout.db();
        for name in ["gantry.db", "gantry.db-wal", "gantry.db-shm", "gantry.db-journal"] {
            let from = db.with_file_name(name);
            match rustix::fs::rename(&from, aside.join(name)) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(errno) => return Err(StoreError::io("move", &from)(errno)),
            }
            // One after the other on the disk as well: the module documents their order.
            sync_dir(self.layout.root())?;
        }
        sync_dir(aside)?;
        sync_dir(&above)
    }

    fn drop_old(&self) -> Result<(), StoreError> {
        let dir = self.layout.damaged_dir();
        let mut names = crate::sweep::list_names(&dir)?;
        // The names are times, so they sort by time.
        names.sort_by(|a, b| b.cmp(a));
        for name in names.into_iter().skip(MAX_DAMAGED) {
            let path = dir.join(name);
            fs::remove_dir_all(&path).map_err(StoreError::io("remove", &path))?;
        }
        Ok(())
    }
}

/// The events and durable commits of a good source; the greater, the newer.
fn rank(verdict: &Verdict) -> Option<(u64, u64)> {
    match verdict {
        Verdict::Good { next_seq, durable_commits } => Some((*next_seq, *durable_commits)),
        Verdict::Bad { .. } => None,
    }
}

/// Merges everything into the one file, checks it, and makes it durable.
fn finish(conn: Connection, path: &Path) -> Result<(), StoreError> {
    let sql = || StoreError::sql(DOING);
    conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).map_err(sql())?;
    conn.flush_prepared_statement_cache();
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(sql())?;
    conn.close().map_err(|(_, error)| error).map_err(sql())?;
    if let Verdict::Bad { why } = examine(path, QUICK_CHECK) {
        return Err(StoreError::damaged(DOING, why));
    }
    File::open(path).and_then(|file| file.sync_all()).map_err(StoreError::io("sync", path))?;
    path.parent().map_or(Ok(()), sync_dir)
}
