//! Prepares the WAL index (`gantry.db-shm`) for SQLite, so that opening the database needs no disk space.
//!
//! The first process to open a database truncates the index to three bytes and rebuilds it. On a full disk another
//! writer may take the freed blocks before SQLite allocates them again. Worse, SQLite allocates space by writing the
//! last byte of each 4096. On a file system with smaller blocks the rest are holes, and on a full disk the first store
//! into a hole kills the process with SIGBUS.
//!
//! SQLite truncates only if no process holds a lock on byte 128 of the index (`UNIX_SHM_DMS` in its `os_unix.c`). So
//! the first opener takes that lock here and allocates the whole index once. Rebuilding it takes longer than most
//! commands, because SQLite reads and verifies every frame of the WAL. So the last process to close the database stamps
//! the index (`stamp.rs`), and the first opener clears its header, which makes SQLite rebuild the content in place,
//! only if the stamp does not match. It keeps a shared lock while the database is open.
//!
//! The locks are open file description locks (fcntl(2), `F_OFD_SETLK`), which conflict with SQLite's own even within
//! one process. Closing any descriptor of a file drops all POSIX locks, and so SQLite's, that the process has on the
//! file. So a process keeps a single descriptor of the index, and closes it after its last connection.

mod stamp;

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use gantry_host::file_id::FileId;
use gantry_model::BootId;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FallocateFlags, OFlags};

use crate::db::{BUSY_TIMEOUT, NamedFile};
use crate::{Layout, StoreError};

/// Where SQLite's locks show that a process uses the index.
const IN_USE_BYTE: libc::off_t = 128;

/// Two regions of 32 KiB: the frames of a WAL of 32 MiB, of which a checkpoint is due long before.
const REGIONS: u64 = 64 << 10;

/// The regions and the stamp.
const LENGTH: u64 = REGIONS + stamp::STAMP;

/// Both copies of the header, and the state of checkpoints and readers.
const HEADER: [u8; 136] = [0; 136];

/// The indexes that this process has open.
static OPENED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Opened {
    id: FileId,
    file: File,
    leases: usize,
    layout: Layout,
    boot: BootId,
    /// Whether it was locked and is not left over from another time.
    is_claimed: bool,
}

impl Opened {
    /// Stamps the index if this process is the last one to have it open. Without a stamp, the next opener rebuilds it.
    fn stamp_if_last(&self) {
        if self.is_claimed && matches!(try_lock(&self.file, libc::F_WRLCK), Ok(true)) {
            let _rebuilt_otherwise = stamp::write(&self.file, &self.layout, &self.boot);
        }
    }
}

/// Keeps the index unchanged while a connection is open; to be dropped after the connection. `None`: there is none to
/// keep.
#[derive(Debug)]
pub(crate) struct IndexLease(Option<FileId>);

impl Drop for IndexLease {
    fn drop(&mut self) {
        let Some(id) = self.0 else { return };
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        for index in opened.iter_mut().filter(|index| index.id == id) {
            index.leases -= 1;
            if index.leases == 0 {
                index.stamp_if_last();
            }
        }
        opened.retain(|index| index.leases > 0);
    }
}

/// Where SQLite keeps the index of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IndexPlace {
    /// In `gantry.db-shm`, shared with all other processes.
    File,
    /// In the reader's memory, because the disk has no room for the file. SQLite does that for a connection with
    /// `readonly_shm` as long as no process holds the lock on byte 128.
    Memory,
}

/// Allocates the index and, for the first opener, clears it unless its stamp matches. Call it before SQLite opens the
/// database.
pub(crate) fn prepare(layout: &Layout, boot: &BootId) -> Result<IndexLease, StoreError> {
    let (lease, claimed) = open_and_claim(layout, boot)?;
    claimed.map(|()| lease)
}

/// [`prepare`] for a connection that only reads, which needs no space on the disk.
pub(crate) fn prepare_to_read(layout: &Layout, boot: &BootId) -> Result<(IndexLease, IndexPlace), StoreError> {
    let (lease, claimed) = open_and_claim(layout, boot)?;
    match claimed {
        Ok(()) => Ok((lease, IndexPlace::File)),
        Err(error) if error.is_full() => Ok((lease, IndexPlace::Memory)),
        Err(error) => Err(error),
    }
}

/// The lease, which keeps the descriptor open, and whether the index was allocated and locked.
fn open_and_claim(layout: &Layout, boot: &BootId) -> Result<(IndexLease, Result<(), StoreError>), StoreError> {
    let path = layout.wal_index();
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = NamedFile::find(&path)?.and_then(|named| opened.iter_mut().find(|index| index.id == named.id));
    if let Some(index) = known {
        index.leases += 1;
        let claimed = claim(&index.file, layout, boot);
        index.is_claimed |= claimed.is_ok();
        return Ok((IndexLease(Some(index.id)), claimed));
    }
    let file = match open(&path) {
        Ok(file) => file,
        // SQLite can read without an index of its own.
        Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => return Ok((IndexLease(None), Ok(()))),
        Err(error) => return Err(StoreError::io("open", &path)(error)),
    };
    let id = FileId::of_file(&file).map_err(StoreError::io("examine", &path))?;
    let claimed = claim(&file, layout, boot);
    let is_claimed = claimed.is_ok();
    opened.push(Opened { id, file, leases: 1, layout: layout.clone(), boot: boot.clone(), is_claimed });
    Ok((IndexLease(Some(id)), claimed))
}

fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(path)
}

/// Takes the shared lock. When no process uses the index, resets it first, unless its stamp matches.
fn claim(file: &File, layout: &Layout, boot: &BootId) -> Result<(), StoreError> {
    let path = &layout.wal_index();
    let failed = || StoreError::io("lock", path);
    let begun = Instant::now();
    loop {
        if try_lock(file, libc::F_WRLCK).map_err(failed())? {
            let is_valid = stamp::matches(file, layout, boot).unwrap_or(false);
            let reset = if is_valid { Ok(()) } else { reset(file) };
            // Always possible from an exclusive lock. After a failure SQLite does it its own way.
            let then = if reset.is_ok() { libc::F_RDLCK } else { libc::F_UNLCK };
            try_lock(file, then).map_err(failed())?;
            return reset.map_err(StoreError::io("allocate", path));
        }
        if try_lock(file, libc::F_RDLCK).map_err(failed())? {
            return Ok(());
        }
        // Another process is resetting it.
        if begun.elapsed() >= BUSY_TIMEOUT {
            return Err(StoreError::Locked { path: path.to_owned(), seconds: BUSY_TIMEOUT.as_secs() });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn try_lock(file: &File, kind: libc::c_int) -> io::Result<bool> {
    let lock = libc::flock {
        l_type: i16::try_from(kind).map_err(io::Error::other)?,
        l_whence: i16::try_from(libc::SEEK_SET).map_err(io::Error::other)?,
        l_start: IN_USE_BYTE,
        l_len: 1,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(true),
        Err(nix::Error::EAGAIN | nix::Error::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Makes SQLite rebuild the index in place.
fn reset(file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    if found.len() > LENGTH {
        // SQLite enlarged it for an unusually long WAL.
        file.set_len(LENGTH)?;
    }
    if found.len() >= LENGTH && found.blocks() * 512 >= LENGTH {
        return file.write_all_at(&HEADER, 0);
    }
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, LENGTH) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
        Err(errno) => return Err(errno.into()),
    }
    // Allocation is not enough: the first store into a block that was never written may need space for the file's map.
    let zeros = vec![0; usize::try_from(LENGTH).map_err(io::Error::other)?];
    file.write_all_at(&zeros, 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;

    /// Whether the first opener would use the index as it is.
    fn is_stamped(layout: &Layout) -> bool {
        let index = File::open(layout.wal_index()).unwrap();
        stamp::matches(&index, layout, &crate::db::current_boot().unwrap()).unwrap_or(false)
    }

    fn features(store: &Store) -> u32 {
        store.conn.query_row("SELECT count(*) FROM feature", [], |row| row.get(0)).unwrap()
    }

    fn add_feature(store: &Store, name: &str) {
        store.conn.execute("INSERT INTO feature VALUES (?1, 'compatible')", [name]).unwrap();
    }

    #[test]
    fn last_process_stamps_the_index() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        let layout = store.layout().clone();
        let second = Store::open(layout.root()).unwrap();
        add_feature(&second, "one");
        drop(second);
        assert!(!is_stamped(&layout), "another connection is open");
        drop(store);
        assert!(is_stamped(&layout));
        let store = Store::open(layout.root()).unwrap();
        assert_eq!(features(&store), 1);
        drop(Store::open_read_only(layout.root()).unwrap());
        drop(store);
        assert!(is_stamped(&layout), "reading changes nothing");
    }

    #[test]
    fn changed_files_void_the_stamp() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        let layout = store.layout().clone();
        add_feature(&store, "one");
        drop(store);
        let wal = std::fs::read(layout.wal()).unwrap();
        let write = |path: &Path, at: u64| {
            File::options().write(true).open(path).unwrap().write_all_at(b"x", at).unwrap();
        };
        let changes: [(&str, &dyn Fn()); 5] = [
            ("times", &|| File::open(layout.db()).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap()),
            ("a longer WAL", &|| std::fs::write(layout.wal(), [&wal[..], &[0; 9]].concat()).unwrap()),
            ("a copied WAL", &|| {
                std::fs::remove_file(layout.wal()).unwrap();
                std::fs::write(layout.wal(), &wal).unwrap();
            }),
            ("another index", &|| write(&layout.wal_index(), REGIONS + 3)),
            ("no index", &|| std::fs::remove_file(layout.wal_index()).unwrap()),
        ];
        for (what, change) in changes {
            drop(Store::open(layout.root()).unwrap());
            assert!(is_stamped(&layout), "{what}");
            change();
            assert!(!layout.wal_index().exists() || !is_stamped(&layout), "{what}");
            assert_eq!(features(&Store::open(layout.root()).unwrap()), 1, "{what}");
        }
        // Even with a matching stamp: the checksums of all frames.
        let frames = (32..wal.len()).step_by(24 + 4096);
        let changed = frames.fold(wal.clone(), |mut wal, frame| {
            wal[frame + 16] ^= 1;
            wal
        });
        File::options().write(true).open(layout.wal()).unwrap().write_all_at(&changed, 0).unwrap();
        let index = File::options().read(true).write(true).open(layout.wal_index()).unwrap();
        stamp::write(&index, &layout, &crate::db::current_boot().unwrap()).unwrap();
        assert!(!is_stamped(&layout), "the last frame is another");
    }

    #[test]
    fn a_stamp_is_of_one_boot() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        let layout = store.layout().clone();
        drop(store);
        let index = File::open(layout.wal_index()).unwrap();
        assert!(!stamp::matches(&index, &layout, &BootId("another".into())).unwrap());
    }

    /// The process is killed after a commit: it stamps nothing.
    #[test]
    fn an_index_without_stamp_is_rebuilt() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        let layout = store.layout().clone();
        drop(store);
        let store = Store::open(layout.root()).unwrap();
        add_feature(&store, "one");
        OPENED
            .lock()
            .unwrap()
            .iter_mut()
            .filter(|index| index.layout == layout)
            .for_each(|index| index.is_claimed = false);
        drop(store);
        assert!(!is_stamped(&layout));
        assert_eq!(features(&Store::open(layout.root()).unwrap()), 1);
    }

    #[test]
    fn an_enlarged_index_shrinks_again() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        let layout = store.layout().clone();
        add_feature(&store, "one");
        drop(store);
        File::options().write(true).open(layout.wal_index()).unwrap().set_len(REGIONS + (32 << 10)).unwrap();
        for enlarged in [true, false] {
            assert_eq!(is_stamped(&layout), !enlarged);
            drop(Store::open(layout.root()).unwrap());
        }
    }

    fn blocks(layout: &Layout) -> u64 {
        std::fs::metadata(layout.wal_index()).unwrap().blocks() * 512
    }

    #[test]
    fn the_index_is_preallocated_and_kept() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        let layout = store.layout().clone();
        assert!(blocks(&layout) >= LENGTH, "{}", blocks(&layout));
        drop(store);
        let store = Store::open(layout.root()).unwrap();
        assert!(blocks(&layout) >= LENGTH, "SQLite truncated it");
        assert_eq!(store.last_seq().unwrap(), 0);
    }

    /// While no process uses the database, the contents of the index do not matter.
    #[test]
    fn a_stale_index_is_rebuilt() {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(&home.path().join("data")).unwrap();
        store.conn.execute_batch("INSERT INTO feature VALUES ('one', 'compatible')").unwrap();
        let layout = store.layout().clone();
        let stale = std::fs::read(layout.wal_index()).unwrap();
        store.conn.execute_batch("INSERT INTO feature VALUES ('two', 'compatible')").unwrap();
        drop(store);
        let file = File::options().write(true).open(layout.wal_index()).unwrap();
        file.write_all_at(&stale, 0).unwrap();
        let store = Store::open(layout.root()).unwrap();
        let features: u32 = store.conn.query_row("SELECT count(*) FROM feature", [], |row| row.get(0)).unwrap();
        assert_eq!(features, 2);
    }
}
