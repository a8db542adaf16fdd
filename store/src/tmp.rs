//! `tmp/`: files and directories that are being created or deleted. Each is locked by the process that works on it; an
//! unlocked one was left by a dead process and is deleted.
//!
//! Creating a name and locking it are two steps. So a creator holds `tmp/` itself shared in between, and the collector
//! holds it exclusively while it determines which names are unlocked.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gantry_host::remove;
use rustix::fs::{IFlags, Mode, OFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

use crate::db::BUSY_TIMEOUT;
use crate::lock::{LockMode, lock_within, open_dir, still_named, try_lock};
use crate::pod_dir::DeletionTurn;
use crate::sweep::list_names;
use crate::{Layout, StoreError};

/// The maximum number collected at once: each takes a descriptor.
const MAX_BATCH: usize = 200;

/// The number of names that new pod directories share. With the flag of [`spread_directories`], ext4 chooses the block
/// group by a hash of the name: few names use few groups, whose bitmaps stay in memory.
const SLOTS: u128 = 32;

/// On ext4 without a journal, sets the flag `T` of chattr(1) on `tmp/`, with which ext4 spreads its directories over
/// the block groups. There, an allocation in a group searches past all inodes that were deleted within the last minute,
/// so starting a pod takes the longer the more pods have ended. With a journal there is no such search, and the flag
/// has ext4 visit all groups for each directory, so it is cleared.
pub(crate) fn spread_directories(tmp: &Path) {
    let Ok(dir) = open_dir(tmp) else { return };
    // Other file systems have no such flag, and it saves time only.
    let Some(has_journal) = has_ext4_journal(&dir) else { return };
    let spread = if has_journal { IFlags::empty() } else { IFlags::TOPDIR };
    let _slower_without_it = ioctl_getflags(&dir).and_then(|flags| {
        let wanted = (flags - IFlags::TOPDIR) | spread;
        if wanted == flags { Ok(()) } else { ioctl_setflags(&dir, wanted) }
    });
}

/// Whether the file system has a journal. `None`: it is not ext4, or sysfs does not say.
fn has_ext4_journal(dir: &OwnedFd) -> Option<bool> {
    let device = rustix::fs::fstat(dir).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = std::fs::read_link(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // The PID of the journal's thread, or `<none>`.
    let task = std::fs::read(Path::new("/sys/fs/ext4").join(link.file_name()?).join("journal_task")).ok()?;
    Some(!task.starts_with(b"<none>"))
}

/// A fresh name such as `layer-0f4c…`.
pub(crate) fn fresh_name(what: &str) -> Result<String, StoreError> {
    Ok(name(what, random(what)?))
}

fn name(what: &str, number: u128) -> String {
    format!("{what}-{number:032x}")
}

fn random(what: &str) -> Result<u128, StoreError> {
    let bytes = gantry_host::random::bytes().map_err(StoreError::io("get random bytes for", Path::new(what)))?;
    Ok(u128::from_ne_bytes(bytes))
}

/// Makes an empty directory in `tmp/` and locks it.
pub(crate) fn make_dir(layout: &Layout, what: &str, mode: Mode) -> Result<(OwnedFd, PathBuf), StoreError> {
    make(layout, what, None, |path| new_dir(path, mode))
}

/// Makes an empty pod directory in `tmp/`, mode 0700, and locks it. The name is reused: the caller keeps the lock
/// until it has renamed or deleted the directory.
pub(crate) fn make_pod_dir(layout: &Layout) -> Result<(OwnedFd, PathBuf), StoreError> {
    const WHAT: &str = "pod";
    let slot = name(WHAT, random(WHAT)? % SLOTS);
    make(layout, WHAT, Some(&slot), |path| new_dir(path, Mode::RWXU))
}

fn new_dir(path: &Path, mode: Mode) -> rustix::io::Result<OwnedFd> {
    rustix::fs::mkdir(path, Mode::RWXU)?;
    let dir = open_dir(path)?;
    // Not by mkdir, which the umask would change.
    rustix::fs::fchmod(&dir, mode)?;
    Ok(dir)
}

/// Makes an empty file in `tmp/` and locks it.
pub(crate) fn make_file(layout: &Layout, what: &str) -> Result<(File, PathBuf), StoreError> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (file, path) = make(layout, what, None, |path| rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR))?;
    Ok((File::from(file), path))
}

/// Makes a file or a directory and locks it. Its name is the preferred one, or a fresh one if that exists.
fn make(
    layout: &Layout,
    what: &str,
    preferred: Option<&str>,
    open: impl Fn(&Path) -> rustix::io::Result<OwnedFd>,
) -> Result<(OwnedFd, PathBuf), StoreError> {
    let dir = layout.tmp_dir();
    let tmp = open_dir(&dir).map_err(StoreError::io("open", &dir))?;
    lock_within(&tmp, LockMode::Shared, &dir, BUSY_TIMEOUT, &mut || {})?;
    let (made, path) = match preferred.map(|name| dir.join(name)).map(|path| (open(&path), path)) {
        None | Some((Err(Errno::EXIST), _)) => {
            let path = dir.join(fresh_name(what)?);
            (open(&path), path)
        }
        Some(made) => made,
    };
    let made = made.map_err(StoreError::io("create", &path))?;
    match try_lock(&made, LockMode::Exclusive) {
        Ok(true) => Ok((made, path)),
        Ok(false) => Err(StoreError::Locked { path, seconds: 0 }),
        Err(errno) => Err(StoreError::io("lock", &path)(errno)),
    }
}

/// Deletes a name in `tmp/` of any type; returns the bytes freed.
pub(crate) fn delete(layout: &Layout, path: &Path) -> Result<u64, StoreError> {
    let dir = layout.tmp_dir();
    let tmp = open_dir(&dir).map_err(StoreError::io("open", &dir))?;
    let name = path.file_name().map(std::ffi::OsStr::as_encoded_bytes).unwrap_or_default();
    let name = CString::new(name).map_err(|error| StoreError::io("delete", path)(std::io::Error::other(error)))?;
    remove::remove(tmp.as_fd(), &name).map_err(StoreError::io("delete", path))
}

/// A directory or file that was moved to `tmp/` for deletion. It stays locked while this value lives, so that no
/// collector deletes it at the same time.
#[derive(Debug)]
pub struct DirInDeletion {
    layout: Layout,
    path: PathBuf,
    /// The bytes freed so far.
    freed: AtomicU64,
    /// `None` for a file: unlinking it is one step.
    _lock: Option<OwnedFd>,
    turn: DeletionTurn,
}

impl DirInDeletion {
    /// A directory that was moved to this path in `tmp/`.
    pub(crate) fn new(layout: &Layout, path: PathBuf, lock: Option<OwnedFd>, turn: DeletionTurn) -> Self {
        Self { layout: layout.clone(), path, freed: AtomicU64::new(0), _lock: lock, turn }
    }

    /// Deletes it, whatever is in it; returns the bytes that all calls have freed. When that fails, the rest stays in
    /// `tmp/` for the next garbage collection.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn delete(&self) -> Result<u64, StoreError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let freed = delete(&self.layout, &self.path)?;
        Ok(self.freed.fetch_add(freed, Ordering::Relaxed) + freed)
    }
}

/// Locks a directory and then moves it to `tmp/`, under a fresh name that begins with `what`. `None`: it does not
/// exist, or another process has just moved it. The caller syncs the directory that it was in.
pub(crate) fn move_aside(layout: &Layout, path: &Path, what: &str) -> Result<Option<DirInDeletion>, StoreError> {
    let lock = match open_to_lock(path) {
        Err(error) if error.is_absent() => return Ok(None),
        other => other?,
    };
    if let Some(lock) = &lock {
        let begun = Instant::now();
        while !try_lock(lock, LockMode::Exclusive).map_err(StoreError::io("lock", path))? {
            if !still_named(lock, path).map_err(StoreError::io("examine", path))? {
                return Ok(None);
            }
            if begun.elapsed() >= BUSY_TIMEOUT {
                return Err(StoreError::Locked { path: path.to_owned(), seconds: BUSY_TIMEOUT.as_secs() });
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if !still_named(lock, path).map_err(StoreError::io("examine", path))? {
            return Ok(None);
        }
    }
    rename_aside(layout, path, what, lock)
}

/// The same for the directory of a layer, which is moved even if another process holds its lock: the fetch that has
/// unpacked it keeps it open. The caller has the right to the layer.
pub(crate) fn move_layer_aside(layout: &Layout, path: &Path, what: &str) -> Result<Option<DirInDeletion>, StoreError> {
    let lock = match open_to_lock(path) {
        Err(error) if error.is_absent() => return Ok(None),
        other => other?,
    };
    if let Some(lock) = &lock {
        let _or_by_a_fetch = try_lock(lock, LockMode::Exclusive).map_err(StoreError::io("lock", path))?;
    }
    rename_aside(layout, path, what, lock)
}

/// Opens a directory. `None`: the path is of another type.
fn open_to_lock(path: &Path) -> Result<Option<OwnedFd>, StoreError> {
    match open_dir(path) {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(errno) => Err(StoreError::io("open", path)(errno)),
    }
}

fn rename_aside(
    layout: &Layout,
    path: &Path,
    what: &str,
    lock: Option<OwnedFd>,
) -> Result<Option<DirInDeletion>, StoreError> {
    let aside = layout.tmp_dir().join(fresh_name(what)?);
    match rustix::fs::rename(path, &aside) {
        Ok(()) => Ok(Some(DirInDeletion::new(layout, aside, lock, DeletionTurn::default()))),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(StoreError::io("move", path)(errno)),
    }
}

/// Deletes names in `tmp/` with this prefix. `false`: another process works on one of them.
pub(crate) fn delete_begun(layout: &Layout, prefix: &str) -> Result<bool, StoreError> {
    let dir = layout.tmp_dir();
    for name in list_names(&dir)?.into_iter().filter(|name| name.starts_with(prefix)) {
        let path = dir.join(name);
        let lock = match open_dir(&path) {
            Ok(lock) => lock,
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(StoreError::io("open", &path)(errno)),
        };
        if !try_lock(&lock, LockMode::Exclusive).map_err(StoreError::io("lock", &path))? {
            return Ok(false);
        }
        delete(layout, &path)?;
    }
    Ok(true)
}

/// Deletes everything in `tmp/` that is not locked; returns the bytes freed. It continues after an error and returns it
/// at the end.
pub(crate) fn sweep(layout: &Layout) -> Result<u64, StoreError> {
    let mut freed = 0;
    loop {
        // Keep the locks until all is deleted, so that two collectors do not interfere with each other.
        let claimed = claim(layout)?;
        let all = claimed.len() < MAX_BATCH;
        let mut failed = None;
        for (_lock, path) in &claimed {
            match delete(layout, path) {
                Ok(bytes) => freed += bytes,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            Some(error) => return Err(error),
            None if all => return Ok(freed),
            None => {}
        }
    }
}

/// The unlocked entries of `tmp/`.
pub(crate) fn left(layout: &Layout) -> Result<Vec<PathBuf>, StoreError> {
    Ok(claim(layout)?.into_iter().map(|(_, path)| path).collect())
}

/// Locks what is unlocked in `tmp/`.
fn claim(layout: &Layout) -> Result<Vec<(OwnedFd, PathBuf)>, StoreError> {
    let dir = layout.tmp_dir();
    let tmp = open_dir(&dir).map_err(StoreError::io("open", &dir))?;
    lock_within(&tmp, LockMode::Exclusive, &dir, BUSY_TIMEOUT, &mut || {})?;
    let mut claimed = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(StoreError::io("list", &dir))? {
        let path = entry.map_err(StoreError::io("list", &dir))?.path();
        // O_NONBLOCK: opening a FIFO does not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let lock = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(lock) => lock,
            // Renamed into place or deleted by its owner in the meantime.
            Err(Errno::NOENT) => continue,
            // A link or a socket, which gantry does not create and which cannot be locked: use the lock of `tmp/`
            // itself.
            Err(Errno::LOOP | Errno::NXIO) => open_dir(&dir).map_err(StoreError::io("open", &dir))?,
            Err(errno) => return Err(StoreError::io("open", &path)(errno)),
        };
        let stands_in = still_named(&lock, &dir).map_err(StoreError::io("examine", &dir))?;
        let is_claimed = stands_in
            || try_lock(&lock, LockMode::Exclusive).map_err(StoreError::io("lock", &path))?
                // Another collector may have deleted it just before, and the name may be used again.
                && still_named(&lock, &path).map_err(StoreError::io("examine", &path))?;
        if is_claimed {
            claimed.push((lock, path));
        }
        if claimed.len() == MAX_BATCH {
            break;
        }
    }
    Ok(claimed)
}

/// Removes a file or directory in `tmp/` on drop, unless it was moved to its final name.
#[derive(Debug)]
pub(crate) struct Scrap {
    layout: Layout,
    path: Option<PathBuf>,
}

impl Scrap {
    pub(crate) fn new(layout: &Layout, path: PathBuf) -> Self {
        Self { layout: layout.clone(), path: Some(path) }
    }

    /// Moved to its final name: there is nothing left to remove.
    pub(crate) fn keep(mut self) {
        self.path = None;
    }
}

impl Drop for Scrap {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            // A file that cannot be removed is unlocked now, and the next collection reports why.
            let _ = delete(&self.layout, path);
        }
    }
}
