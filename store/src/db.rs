//! Opening the data directory and its database; transactions.
//!
//! Every command opens the store, so opening an existing one costs a handful of system calls and three small
//! statements. Creating, migrating and entering a new boot happen on a slow path, under the lock on the data directory.

mod error;
mod refuse;

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gantry_host::boot::{BOOT_ID, read_boot_id};
use gantry_host::file_id::FileId;
use gantry_model::{BootId, Timestamp};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Transaction, TransactionBehavior};
use rustix::fs::{FlockOperation, Mode, OFlags};

pub use error::OpenError;
pub(crate) use refuse::find_remains;
use refuse::{is_wal_empty, refuse_lost, refuse_read_only, refuse_rolled_back, refuse_torn_checkpoint};

use crate::constraints;
use crate::high_water::HighWater;
use crate::keeper::KEEPER_LOCK;
use crate::lock::{LockMode, lock_within, open_lock_file, sync_dir};
use crate::migrate::{self, APPLICATION_ID, FEATURES, STEPS};
use crate::pods::restarts;
use crate::wal_index::{IndexLease, IndexPlace};
use crate::{Layout, StoreError, backup, high_water, reserve, tmp, wal_index};

/// The time a statement waits for other writers, and opening for the lock on the data directory.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Event numbers jump by at least this much at a new boot. More events than this cannot be written between two syncs,
/// so the numbers of events that a power cut took back are never given to others.
pub(crate) const BOOT_JUMP: u64 = 1_000_000;

/// The commit after which the WAL has this many pages (of 4 KiB) copies them into the database file, with two syncs.
/// The first opener of a boot, and the one after a `kill -9` of the last process, read the whole WAL.
pub(crate) const WAL_PAGES: u32 = 1000;

/// The length to which a WAL is cut that grew beyond it, because a backup or a reader kept it from being checkpointed.
/// Not shorter than a usual WAL, so that its blocks stay allocated for commits on a full disk.
pub(crate) const WAL_BYTES: u32 = 2 * WAL_PAGES * 4120;

/// Whether writing a row skips the constraints of its table: those of `constraints.rs`, and the CHECK constraints in
/// the schema of older databases. Checking took a sixth of the instructions of starting a pod. The types of the model
/// already guarantee the constraints; debug builds check them, so tests would find a violation.
/// Examining and migrating a database, and copying it to a backup or from one, always checks them.
const IGNORES_CHECKS: bool = !cfg!(debug_assertions);

/// A data directory, opened. `Send`, not `Sync`: open one per thread.
#[derive(Debug)]
pub struct Store {
    pub(crate) conn: Connection,
    pub(crate) layout: Layout,
    pub(crate) boot: BootId,
    /// The file that was opened; `None` while a database is built that has no name yet (`restore.rs`).
    pub(crate) file: Option<FileId>,
    /// Held from the first `put_blob` to the next `commit_image`; see `blobs.rs`.
    pub(crate) blob_lease: RefCell<Option<OwnedFd>>,
    /// The number of the next event as of this handle's last commit; see `high_water.rs`.
    raised: Cell<u64>,
    /// The time of the wall clock in tests.
    pub(crate) clock: Cell<Option<Timestamp>>,
    // After `conn`.
    _index: Option<IndexLease>,
}

/// A connection to the database of a data directory, and its hold on the index beside the WAL.
pub(crate) struct Connected {
    pub(crate) conn: Connection,
    // After `conn`.
    index: IndexLease,
}

/// The file that a path names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamedFile {
    pub(crate) id: FileId,
    /// Bytes, at that moment.
    pub(crate) len: u64,
}

impl NamedFile {
    /// The file of this name; `None` when there is none.
    pub(crate) fn find(path: &Path) -> Result<Option<Self>, StoreError> {
        match fs::symlink_metadata(path) {
            Ok(found) => Ok(Some(Self { id: FileId::from(&found), len: found.len() })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StoreError::io("examine", path)(error)),
        }
    }
}

/// How far a commit is on its way to the disk when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sync {
    /// Survives the death of every process; a power cut may take it back.
    Soon,
    /// Survives a power cut, and so does all that was committed before it.
    Now,
}

/// The counters of a database that the high-water mark is compared with (`high_water.rs`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counters {
    /// The number of the next event.
    pub(crate) next: u64,
    /// The number of durable commits.
    pub(crate) durable: u64,
}

/// The state of the database's schema.
pub(crate) enum SchemaState {
    Ready,
    /// New, old, or of another boot.
    Behind(usize),
}

/// The wall clock.
#[must_use]
pub fn now() -> Timestamp {
    std::time::SystemTime::now().into()
}

impl Store {
    /// Opens the data directory, creating it if it is absent, migrating it if it is old.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let boot = current_boot()?;
        Self::open_as(dir, boot, STEPS)
    }

    /// [`Self::open`] in a given boot and with a given list of steps, so that tests can have others.
    pub(crate) fn open_as(dir: &Path, boot: BootId, steps: &[&str]) -> Result<Self, OpenError> {
        let dir = &resolved(dir);
        let layout = Layout::new(dir);
        let opened = Self::open_once(dir, &boot, steps).map_err(|error| match error {
            OpenError::Store(error) => OpenError::Store(error.or_full(|| reserve::is_exhausted(&layout))),
            other => other,
        });
        match opened {
            Err(OpenError::Store(error)) if error.is_full() => {
                // Opening needs shared memory and a page of the WAL, which fit into the reserve.
                reserve::spend(&layout)?;
                Self::open_once(dir, &boot, steps)
            }
            other => other,
        }
    }

    fn open_once(dir: &Path, boot: &BootId, steps: &[&str]) -> Result<Self, OpenError> {
        let layout = Layout::new(dir);
        let root = match open_root(dir) {
            Err(OpenError::Absent { .. }) => make_root(dir)?,
            other => other?,
        };
        refuse_read_only(&layout)?;
        // An empty database is not opened: SQLite would take its WAL for that of another file and delete it.
        if let Some(file) = NamedFile::find(&layout.db())?.filter(|file| file.len > 0) {
            let (mark, wal_is_empty) = (HighWater::load(&layout)?, is_wal_empty(&layout)?);
            let db = connect(&layout, boot)?;
            if matches!(check_schema(&db.conn, &layout, boot, steps)?, SchemaState::Ready) {
                refuse_rolled_back(&db.conn, &layout, boot, mark.as_ref())?;
                if wal_is_empty {
                    refuse_torn_checkpoint(&db.conn)?;
                }
                reserve::fill(&layout)?;
                return Self::from_connected(db, layout, boot, Some(file.id));
            }
        }
        let (db, file) = make_ready(&root, &layout, boot, steps)?;
        Self::from_connected(db, layout, boot, file)
    }

    fn from_connected(db: Connected, layout: Layout, boot: &BootId, file: Option<FileId>) -> Result<Self, OpenError> {
        let checks = if IGNORES_CHECKS { ignore_checks(&db.conn) } else { constraints::enforce(&db.conn) };
        checks.map_err(StoreError::sql("open the database"))?;
        Ok(Self { _index: Some(db.index), ..Self::from_connection(db.conn, layout, boot, file) })
    }

    pub(crate) fn from_connection(conn: Connection, layout: Layout, boot: &BootId, file: Option<FileId>) -> Self {
        Self {
            conn,
            layout,
            boot: boot.clone(),
            file,
            blob_lease: RefCell::new(None),
            raised: Cell::new(0),
            clock: Cell::new(None),
            _index: None,
        }
    }

    /// Opens an existing data directory for reading. Every writing operation fails with
    /// [`DatabaseFailure::ReadOnly`](crate::DatabaseFailure::ReadOnly).
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Absent`] when there is no store yet.
    pub fn open_read_only(dir: &Path) -> Result<Self, OpenError> {
        let (dir, boot) = (&resolved(dir), current_boot()?);
        let layout = Layout::new(dir);
        open_root(dir)?;
        let Some(file) = NamedFile::find(&layout.db())?.filter(|file| file.len > 0) else {
            refuse_lost(&layout)?;
            return Err(OpenError::Absent { dir: dir.to_owned() });
        };
        let db = connect_to_read(&layout, &boot)?;
        match check_schema(&db.conn, &layout, &boot, STEPS)? {
            // Killed between making the file and its first table: nothing was ever stored.
            SchemaState::Behind(0) => return Err(OpenError::Absent { dir: dir.to_owned() }),
            SchemaState::Behind(found) if found < STEPS.len() => {
                return Err(OpenError::older(&layout.db(), found));
            }
            // A new boot matters to writers only.
            SchemaState::Behind(_) | SchemaState::Ready => {}
        }
        let store = Self::from_connected(db, layout, &boot, Some(file.id))?;
        store.conn.execute_batch("PRAGMA query_only = ON").map_err(StoreError::sql("open the database"))?;
        Ok(store)
    }

    /// Whether the database that was opened is still the one of its directory: gantryd may have replaced a damaged one
    /// by a restored one. Long-lived readers have to reopen it then; writing fails with [`StoreError::Replaced`].
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn is_current(&self) -> Result<bool, StoreError> {
        let Some(ours) = self.file else { return Ok(true) };
        Ok(NamedFile::find(&self.layout.db())?.is_some_and(|named| named.id == ours))
    }

    /// Stops the clock that gives events their times, for tests.
    pub fn stop_clock(&self, at: Timestamp) {
        self.clock.set(Some(at));
    }

    /// The current time.
    pub(crate) fn now(&self) -> Timestamp {
        self.clock.get().unwrap_or_else(now)
    }

    /// The paths.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The current boot.
    #[must_use]
    pub fn boot(&self) -> &BootId {
        &self.boot
    }

    /// Runs `body` in one write transaction, which is rolled back when `body` fails.
    pub(crate) fn write<T, E: From<StoreError>>(
        &self,
        doing: &'static str,
        sync: Sync,
        body: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let _synced = (sync == Sync::Now).then(|| Synced::begin(&self.conn, doing)).transpose()?;
        let tx =
            Transaction::new_unchecked(&self.conn, TransactionBehavior::Immediate).map_err(StoreError::sql(doing))?;
        // A commit to a database that was moved away would be acknowledged and lost.
        if !self.is_current()? {
            return Err(StoreError::Replaced { doing }.into());
        }
        let value = body(&tx)?;
        if sync == Sync::Now {
            count_durable(&tx).map_err(StoreError::sql(doing))?;
        }
        let counters = read_counters(&tx).map_err(StoreError::sql(doing))?.unwrap_or_default();
        let committed = tx.commit().map_err(StoreError::sql(doing));
        committed.map_err(|error| error.or_full(|| reserve::is_exhausted(&self.layout)))?;
        if sync == Sync::Now || self.raised.replace(counters.next) != counters.next {
            self.raise_high_water(counters, sync);
        }
        Ok(value)
    }

    /// Runs `body` on one snapshot of the database.
    pub(crate) fn read<T, E: From<StoreError>>(
        &self,
        doing: &'static str,
        body: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let tx = self.conn.unchecked_transaction().map_err(StoreError::sql(doing))?;
        body(&tx)
    }
}

/// While this lives, a commit is synced before it returns.
struct Synced<'a>(&'a Connection);

impl<'a> Synced<'a> {
    fn begin(conn: &'a Connection, doing: &'static str) -> Result<Self, StoreError> {
        conn.execute_batch("PRAGMA synchronous = FULL").map_err(StoreError::sql(doing))?;
        Ok(Self(conn))
    }
}

impl Drop for Synced<'_> {
    fn drop(&mut self) {
        // Should this ever fail, commits stay synced: slower, and as safe.
        let _ = self.0.execute_batch("PRAGMA synchronous = NORMAL");
    }
}

/// Has statements and checks of the connection ignore the CHECK constraints that older databases have in their schema.
pub(crate) fn ignore_checks(conn: &Connection) -> rusqlite::Result<()> {
    conn.execute_batch("PRAGMA ignore_check_constraints = ON")
}

/// The counters; `None` where no boot was entered yet.
pub(crate) fn read_counters(conn: &Connection) -> rusqlite::Result<Option<Counters>> {
    conn.prepare_cached("SELECT next_seq, durable_commits FROM state")?
        .query_row([], |row| Ok(Counters { next: row.get(0)?, durable: row.get(1)? }))
        .optional()
}

/// Makes a durable commit that writes no event count all the same: it is missed when it is lost.
fn count_durable(tx: &Transaction<'_>) -> rusqlite::Result<()> {
    tx.prepare_cached("UPDATE state SET durable_commits = durable_commits + 1")?.execute([]).map(drop)
}

pub(crate) fn current_boot() -> Result<BootId, OpenError> {
    read_boot_id().map(BootId).map_err(boot_unknown)
}

/// The path of the data directory without symbolic links among its parents (`/var/lib` may be on another disk), because
/// SQLite follows none. The directory itself must not be a symbolic link.
pub(crate) fn resolved(dir: &Path) -> PathBuf {
    // Missing directories are created below the nearest existing parent.
    let parents =
        dir.ancestors().skip(1).map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let known = parents.enumerate().find_map(|(above, parent)| Some((above, parent.canonicalize().ok()?)));
    // If it does not exist, opening it reports the cause.
    let Some((above, parent)) = known else { return dir.to_owned() };
    let named: Vec<_> = dir.components().rev().take(above + 1).collect();
    parent.join(named.into_iter().rev().collect::<PathBuf>())
}

fn boot_unknown(source: io::Error) -> OpenError {
    let hint = if source.kind() == io::ErrorKind::NotFound { ": is /proc mounted?" } else { "" };
    let message = format!("cannot read the boot id from {BOOT_ID}{hint}");
    // Whatever the error is: no object is missing.
    OpenError::Unusable { message, kind: gantry_model::ErrorKind::Unavailable, source: Some(source) }
}

fn failed(doing: &str, dir: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let message = format!("cannot {doing} the data directory {}", dir.display());
    move |source| OpenError::io(message, source)
}

/// Opens the data directory and checks its type, owner and mode.
pub(crate) fn open_root(dir: &Path) -> Result<File, OpenError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir, flags, Mode::empty()).map_err(|errno| match errno {
        rustix::io::Errno::NOENT => OpenError::Absent { dir: dir.to_owned() },
        rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP => OpenError::not_a_directory(dir),
        errno => failed("open", dir)(errno.into()),
    })?;
    let root = File::from(root);
    let found = root.metadata().map_err(failed("examine", dir))?;
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        return Err(OpenError::owner(dir, found.uid(), user));
    }
    if found.mode() & 0o077 != 0 {
        return Err(OpenError::mode(dir, found.mode() & 0o7777));
    }
    Ok(root)
}

pub(crate) fn make_root(dir: &Path) -> Result<File, OpenError> {
    let failed = || failed("create", dir);
    if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::create_dir_all(parent).map_err(failed())?;
    }
    make_dir(dir).map_err(failed())?;
    open_root(dir)
}

/// Creates a directory of mode 0700, unless it exists.
fn make_dir(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Opens the database file, which exists.
pub(crate) fn connect(layout: &Layout, boot: &BootId) -> Result<Connected, StoreError> {
    let index = wal_index::prepare(layout, boot)?;
    connect_to(&layout.db()).map(|conn| Connected { conn, index })
}

/// [`connect`] for a reader, which works on a full disk, too.
fn connect_to_read(layout: &Layout, boot: &BootId) -> Result<Connected, StoreError> {
    let (index, place) = wal_index::prepare_to_read(layout, boot)?;
    let conn = match place {
        IndexPlace::File => connect_to(&layout.db())?,
        IndexPlace::Memory => connect_with(&uri(&layout.db(), "readonly_shm=1"), OpenFlags::SQLITE_OPEN_URI)?,
    };
    Ok(Connected { conn, index })
}

/// Opens a database file anywhere.
pub(crate) fn connect_to(path: &Path) -> Result<Connection, StoreError> {
    connect_with(path, OpenFlags::empty())
}

/// The URI of a database file, with parameters for SQLite (<https://sqlite.org/uri.html>).
pub(crate) fn uri(path: &Path, parameters: &str) -> PathBuf {
    let mut uri = b"file:".to_vec();
    for &byte in path.as_os_str().as_bytes() {
        // The three that mean something in a URI's path.
        match byte {
            b'%' | b'?' | b'#' => uri.extend(format!("%{byte:02X}").into_bytes()),
            byte => uri.push(byte),
        }
    }
    uri.push(b'?');
    uri.extend(parameters.as_bytes());
    PathBuf::from(OsString::from_vec(uri))
}

fn connect_with(path: &Path, more: OpenFlags) -> Result<Connection, StoreError> {
    let sql = || StoreError::sql("open the database");
    #[cfg(target_env = "musl")]
    crate::sys::share_allocator();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let conn = Connection::open_with_flags(path, flags | more).map_err(sql())?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(sql())?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, true).map_err(sql())?;
    // Without this every command would copy the WAL into the database, with two fsyncs, on its way out.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(sql())?;
    // Otherwise SQLite prepares a statement again when its parameters are bound: they might fit a partial index.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map_err(sql())?;
    conn.set_prepared_statement_cache_capacity(64);
    // No mapping of the database (mmap_size is 0): a page that the disk cannot read would raise a signal instead of an
    // error.
    conn.execute_batch(&format!(
        "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = {WAL_PAGES}; PRAGMA journal_size_limit = {WAL_BYTES}"
    ))
    .map_err(sql())?;
    Ok(conn)
}

/// Checks whether the database can be used as it is; an error means that it never can. The check is one transaction,
/// because another process may be creating or migrating the database.
pub(crate) fn check_schema(
    conn: &Connection,
    layout: &Layout,
    boot: &BootId,
    steps: &[&str],
) -> Result<SchemaState, OpenError> {
    let sql = || StoreError::sql("open the database");
    let path = || layout.db();
    let conn = &conn.unchecked_transaction().map_err(sql())?;
    let version = migrate::version(conn).map_err(sql())?;
    if version == 0 {
        // Created and not migrated yet; or an empty database of another program, which does no harm.
        let tables: u32 = conn.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sql())?;
        return if tables == 0 { Ok(SchemaState::Behind(0)) } else { Err(OpenError::Foreign { path: path() }) };
    }
    let id: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0)).map_err(sql())?;
    if id != APPLICATION_ID {
        return Err(OpenError::Foreign { path: path() });
    }
    if version > steps.len() {
        return Err(OpenError::newer(&path(), version, steps.len()));
    }
    if let Some(feature) = unknown_feature(conn).map_err(sql())? {
        return Err(OpenError::feature(&path(), &feature));
    }
    let ready = version == steps.len() && is_of_boot(conn, boot)?;
    Ok(if ready { SchemaState::Ready } else { SchemaState::Behind(version) })
}

/// Whether this boot was already entered.
fn is_of_boot(conn: &Connection, boot: &BootId) -> Result<bool, StoreError> {
    let same = conn.query_row("SELECT boot = ?1 FROM state", [&boot.0], |row| row.get(0)).optional();
    same.map(|same| same.unwrap_or(false)).map_err(StoreError::sql("open the database"))
}

pub(crate) fn unknown_feature(conn: &Connection) -> rusqlite::Result<Option<String>> {
    let mut statement = conn.prepare("SELECT name FROM feature WHERE kind = 'incompatible'")?;
    let names = statement.query_map([], |row| row.get::<_, String>(0))?;
    for name in names {
        let name = name?;
        if !FEATURES.contains(&name.as_str()) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The slow path: makes what is missing, migrates, and moves to a new boot, one process at a time.
/// A `kill -9` at any point leaves less than everything, and the next opener comes here again.
fn make_ready(
    root: &File,
    layout: &Layout,
    boot: &BootId,
    steps: &[&str],
) -> Result<(Connected, Option<FileId>), OpenError> {
    lock_within(root, LockMode::Exclusive, layout.root(), BUSY_TIMEOUT, &mut || {})?;
    let done = make_ready_locked(root, layout, boot, steps);
    // The caller drops `root` with the lock; release it at once, whatever happened.
    rustix::fs::flock(root, FlockOperation::Unlock).map_err(StoreError::io("unlock", layout.root()))?;
    done
}

fn make_ready_locked(
    root: &File,
    layout: &Layout,
    boot: &BootId,
    steps: &[&str],
) -> Result<(Connected, Option<FileId>), OpenError> {
    // Check again: gantryd may have found the database damaged, or restored it, during the wait.
    refuse_read_only(layout)?;
    if NamedFile::find(&layout.db())?.is_none_or(|file| file.len == 0) {
        refuse_lost(layout)?;
    }
    make_dirs(layout)?;
    // Now, so that gantryd needs no space for it.
    let keeper = layout.locks_dir().join(KEEPER_LOCK);
    drop(open_lock_file(&keeper)?);
    let wal_is_empty = is_wal_empty(layout)?;
    make_file(root, layout, boot)?;
    let file = NamedFile::find(&layout.db())?.map(|file| file.id);
    let mark = HighWater::load(layout)?;
    let db = connect(layout, boot)?;
    let conn = &db.conn;
    if let SchemaState::Behind(version) = check_schema(conn, layout, boot, steps)? {
        if version == 0
            && let Some(what) = find_remains(layout)?
        {
            return Err(OpenError::lost(&layout.db(), "empty", what));
        }
        if version > 0 {
            refuse_rolled_back(conn, layout, boot, mark.as_ref())?;
            if wal_is_empty {
                refuse_torn_checkpoint(conn)?;
            }
        }
        if version < steps.len() {
            // Writers of another version may not interleave: WAL mode is set before the first step.
            migrate::migrate(conn, steps, |from| backup::before_migration(layout, boot, from))?;
        }
        let counters = enter_boot(conn, boot, mark.as_ref())?;
        // In a new store there are no removals to finish.
        let recovered = if version == 0 { Some(boot) } else { mark.as_ref().map(|mark| &mark.recovered) };
        high_water::enter_boot(layout, boot, recovered, counters);
        let _added_by_a_later_removal = reserve::add_spare_pages(conn, layout);
        copy_wal_into_file(conn);
        reserve::fill(layout)?;
    }
    Ok((db, file))
}

/// Makes the directories.
pub(crate) fn make_dirs(layout: &Layout) -> Result<(), StoreError> {
    let blobs = layout.blobs_dir();
    let dirs = [
        layout.backups_dir(),
        layout.pods_dir(),
        layout.trees_dir(),
        layout.tmp_dir(),
        layout.locks_dir(),
        blobs.join("sha256"),
        blobs.join("sha512"),
    ];
    make_dir(&blobs).map_err(StoreError::io("create", &blobs))?;
    for dir in dirs {
        make_dir(&dir).map_err(StoreError::io("create", &dir))?;
    }
    tmp::spread_directories(&layout.tmp_dir());
    Ok(())
}

/// Creates the database file if it does not exist, and makes it durable with the directories, so that a committed row
/// never outlives its directory.
fn make_file(root: &File, layout: &Layout, boot: &BootId) -> Result<(), StoreError> {
    let path = layout.db();
    if !path.exists() {
        make_db(&path)?;
    }
    // Stays in the file's header; setting it again costs one read.
    let db = connect(layout, boot)?;
    set_wal(&db.conn)?;
    if migrate::version(&db.conn).map_err(StoreError::sql("open the database"))? == 0 {
        return rustix::fs::syncfs(root).map_err(StoreError::io("sync the file system of", layout.root()));
    }
    // In an existing store, at most some directories are new: made now, or by a process that was killed here. Writing
    // back the whole file system at a boot could take longer than others wait for the lock.
    sync_dir(layout.root())?;
    sync_dir(&layout.blobs_dir())
}

/// Creates an empty database file.
pub(crate) fn make_db(path: &Path) -> Result<(), StoreError> {
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    made.map(drop).map_err(StoreError::io("create", path))
}

pub(crate) fn set_wal(conn: &Connection) -> Result<(), StoreError> {
    let mode: String = conn
        .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
        .map_err(StoreError::sql("make the database"))?;
    if mode != "wal" {
        let source = format!("journal mode is '{mode}' and must be 'wal'").into();
        return Err(StoreError::Database {
            doing: "set the journal mode",
            failure: crate::DatabaseFailure::Other,
            source,
        });
    }
    Ok(())
}

/// Records the boot and moves the event sequence ahead. Synced, because the same numbers would be given again if a
/// power cut undid the jump. A new database continues the numbering of the one before it. Returns the counters.
fn enter_boot(conn: &Connection, boot: &BootId, mark: Option<&HighWater>) -> Result<Counters, StoreError> {
    let sql = || StoreError::sql("note the new boot");
    let _synced = Synced::begin(conn, "note the new boot")?;
    let tx = Transaction::new_unchecked(conn, TransactionBehavior::Immediate).map_err(sql())?;
    let state = tx
        .query_row("SELECT boot, next_seq FROM state", [], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?)))
        .optional()
        .map_err(sql())?;
    match state {
        None => {
            let first = mark.map_or(1, |mark| after_boot(mark.next));
            // Not below the mark of a former database, which is replaced later.
            let durable = mark.map_or(0, |mark| mark.durable);
            tx.execute(
                "INSERT INTO state (one, boot, next_seq, trimmed, durable_commits) VALUES (1, ?1, ?2, ?2 - 1, ?3)",
                rusqlite::params![boot.0, first, durable],
            )
        }
        Some((known, _)) if known == boot.0 => Ok(0),
        Some((_, next)) => {
            restarts::release_stopped_until_boot(&tx, now()).map_err(sql())?;
            tx.execute("UPDATE state SET boot = ?1, next_seq = ?2", rusqlite::params![boot.0, after_boot(next)])
        }
    }
    .map_err(sql())?;
    let counters = read_counters(&tx).map_err(sql())?.unwrap_or(Counters { next: 1, durable: 0 });
    tx.commit().map_err(sql())?;
    Ok(counters)
}

/// Copies the WAL into the database file, once per boot. Then the file has the schema whatever happens to the WAL, and
/// both files have blocks that later commits write to again, also on a full disk.
fn copy_wal_into_file(conn: &Connection) {
    let begun = Instant::now();
    let copied = || {
        // Whether another process checkpoints, the number of pages in the WAL, and how many of them are copied.
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        })
        .map(|(busy, pages, copied)| busy == 0 && pages == copied)
    };
    // A reader of an older snapshot or another checkpoint may keep it from copying everything. A later checkpoint
    // copies the rest: opening the store does not wait for it for long.
    while let Ok(false) = copied()
        && begun.elapsed() < Duration::from_secs(1)
    {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The first number of a new boot: a multiple of [`BOOT_JUMP`] that is at least that much above the numbers given so
/// far.
pub(crate) fn after_boot(next: u64) -> u64 {
    (next / BOOT_JUMP + 2) * BOOT_JUMP
}
