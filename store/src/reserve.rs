//! A megabyte of disk space, released when the disk is full: opening a database and recording a removal need a few
//! pages, without which a full disk could not be emptied.
//!
//! `DIR/reserve` is created when there is room (by each opener, and after each removal) and deleted when there is none.
//! It has no content, so neither a crash nor its absence matters: without it, a removal deletes data before it is
//! recorded.
//!
//! The database file has unused pages as well. Without them, a row that needs a new page lengthens the file, which a
//! full disk does not allow. Then SQLite cannot copy the WAL into the file, and so never writes the WAL from its
//! beginning again: each further commit needs new blocks, although it only deletes.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind::{AlreadyExists, NotFound, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use rustix::fs::FallocateFlags;

use crate::tmp::{self, Scrap};
use crate::{Layout, StoreError};

const BYTES: u64 = 1 << 20;
/// The free space below which none is set aside, in bytes. Below it, hardly anything but a removal succeeds.
pub const MIN_ROOM: u64 = 2 * BYTES;

/// Unused pages of the database file, of 4 KiB: those of a thousand events.
const SPARE_PAGES: u64 = 64;
/// The free space below which the database file gets no unused pages, in bytes. They are written twice, to the WAL and
/// to the file; if the second failed, the WAL would grow for lack of them.
const SPARE_ROOM: u64 = 4 * SPARE_PAGES * 4096;

fn path(layout: &Layout) -> PathBuf {
    layout.root().join("reserve")
}

/// Sets the space aside unless it already is. Does nothing without [`MIN_ROOM`], or on a file system that
/// cannot allocate or is read-only.
pub(crate) fn fill(layout: &Layout) -> Result<(), StoreError> {
    let path = path(layout);
    if path.exists() {
        return Ok(());
    }
    if room(layout)? < MIN_ROOM {
        return Ok(());
    }
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(file) => file,
        Err(error) if matches!(error.kind(), AlreadyExists | StorageFull | QuotaExceeded | ReadOnlyFilesystem) => {
            return Ok(());
        }
        Err(error) => return Err(StoreError::io("create", &path)(error)),
    };
    if rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, BYTES).is_err() { spend(layout) } else { Ok(()) }
}

/// The free space of the file system in bytes.
fn room(layout: &Layout) -> Result<u64, StoreError> {
    let room = rustix::fs::statvfs(layout.root());
    let room = room.map_err(StoreError::io("examine the file system of", layout.root()))?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

/// Gives the database file unused pages if it has few and the disk has room. The next checkpoint writes them to the
/// file; returns whether it has to.
pub(crate) fn add_spare_pages(conn: &Connection, layout: &Layout) -> Result<bool, StoreError> {
    let sql = || StoreError::sql("give the database unused pages");
    let unused: u64 = conn
        .prepare_cached("PRAGMA freelist_count")
        .and_then(|mut count| count.query_row([], |row| row.get(0)))
        .map_err(sql())?;
    if unused >= SPARE_PAGES / 2 || room(layout)? < SPARE_ROOM {
        return Ok(false);
    }
    // With this, deleted pages are written; without it, they would stay holes in the file.
    conn.execute_batch("PRAGMA secure_delete = ON").map_err(sql())?;
    let added = || -> rusqlite::Result<()> {
        let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate)?;
        tx.execute_batch("CREATE TABLE spare (pages BLOB)")?;
        tx.execute("INSERT INTO spare VALUES (zeroblob(?1))", [SPARE_PAGES * 4096])?;
        tx.execute_batch("DROP TABLE spare")?;
        tx.commit()
    };
    let added = added().map_err(sql());
    conn.execute_batch("PRAGMA secure_delete = OFF").map_err(sql())?;
    added.map(|()| true)
}

/// Whether not even a few pages can be written: the disk is full, or a quota is exhausted.
pub(crate) fn is_exhausted(layout: &Layout) -> bool {
    const PAGES: u64 = 64 << 10;
    let probe = || {
        let (mut file, path) = tmp::make_file(layout, "probe")?;
        let _scrap = Scrap::new(layout, path.clone());
        let written = io::copy(&mut io::repeat(0).take(PAGES), &mut file).and_then(|_| file.sync_data());
        written.map_err(StoreError::io("write", &path))
    };
    matches!(probe(), Err(StoreError::Io { source, .. }) if matches!(source.kind(), StorageFull | QuotaExceeded))
}

/// Gives the space back.
pub(crate) fn spend(layout: &Layout) -> Result<(), StoreError> {
    let path = path(layout);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != NotFound => Err(StoreError::io("delete", &path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn database_files_have_unused_pages() {
        use std::os::unix::fs::MetadataExt as _;

        let home = tempfile::tempdir().unwrap();
        let store = crate::Store::open(&home.path().join("data")).unwrap();
        let number = |pragma: &str| store.conn.query_row(pragma, [], |row| row.get::<_, u64>(0)).unwrap();
        assert!(number("PRAGMA freelist_count") >= SPARE_PAGES / 2);
        store.conn.execute_batch("CREATE TABLE used (pages BLOB)").unwrap();
        store.conn.execute("INSERT INTO used VALUES (zeroblob(?1))", [2 * SPARE_PAGES * 4096]).unwrap();
        assert!(number("PRAGMA freelist_count") < SPARE_PAGES / 2);
        store.refill_reserve().unwrap();
        assert!(number("PRAGMA freelist_count") >= SPARE_PAGES / 2);
        let blocks = fs::metadata(store.layout().db()).unwrap().blocks() * 512;
        assert!(blocks >= number("PRAGMA page_count") * 4096, "the file has holes: {blocks}");
        let tables = "SELECT count(*) FROM sqlite_schema WHERE name = 'spare'";
        assert_eq!(number(tables), 0);
    }

    #[test]
    fn probing_for_space_leaves_nothing() {
        let home = tempfile::tempdir().unwrap();
        let store = crate::Store::open(&home.path().join("data")).unwrap();
        assert!(!is_exhausted(store.layout()));
        assert_eq!(fs::read_dir(store.layout().tmp_dir()).unwrap().count(), 0);
    }
}
