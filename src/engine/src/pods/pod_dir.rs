//! The files of a pod directory: writes those of a new pod, and reads those that the supervisor wrote.
//!
//! The directory has mode 0700 and belongs to root; apps see only what is below `apps/` and `volumes/`, which nothing
//! here follows.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gantry_contract::{files, journal, plan::Plan};
use gantry_host::file::{self, is_absent, read_open_file, read_truncated, sync_path};
use gantry_host::lock::{LockMode, lock_within};
use gantry_model::spec::PodFlavor;
use gantry_model::{PodId, PodSpec};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::Serialize;

use crate::pods::storage_limit;
use crate::{Engine, PodError, manifest};

/// The pod's manifest as requested (see [`crate::manifest`]). The supervisor does not read it.
pub(crate) const MANIFEST: &str = "pod.json";

/// A file that the caller of a command holds locked ([`crate::pods::host_command`]).
const OWNER: &str = "owner";
/// Why a file of another kind is not read.
const NOT_REGULAR: &str = "it is not a regular file";
/// How long another process may hold that lock to find out whether the caller is gone.
const OWNER_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The bytes of a supervisor's log that an error shows at most.
const MAX_SHOWN_LOG: u32 = 400;

/// A plan that is about to replace another one.
const NEW_PLAN: &str = "plan.json.new";
/// A record of added apps ([`crate::pods::added`]) that is about to replace another one.
pub(crate) const NEW_ADDED: &str = "added.json.new";
/// A record of changed limits ([`gantry_contract::limits`]) that is about to replace another one, or the older one
/// after the supervisor has exchanged them.
pub(crate) const NEW_LIMITS: &str = "limits.json.new";

pub(crate) const MAX_JOURNAL: u64 = 64 << 20;
pub(crate) const MAX_PLAN: u64 = 64 << 20;

impl Engine {
    pub(crate) fn pod_dir(&self, id: PodId) -> PathBuf {
        self.store.layout().pod_dir(&id)
    }

    /// Whether the pod has a directory, rather than an entry of another type or none.
    pub(crate) fn has_pod_dir(&self, id: PodId) -> bool {
        self.pod_dir(id).symlink_metadata().is_ok_and(|entry| entry.is_dir())
    }

    /// The supervisor's journal; empty when it has not written one yet. One that is lost ([`is_lost`]) is empty, too:
    /// such a pod can be listed, stopped and removed, and ends as if its supervisor had been killed.
    pub(crate) fn journal(&self, id: PodId) -> Result<Arc<journal::Parsed>, PodError> {
        match self.try_read_journal(id) {
            Ok(journal) => Ok(journal),
            Err(error) if is_lost(&error) => Ok(Arc::default()),
            Err(error) => Err(PodError::io("read the journal", self.pod_dir(id).join(files::JOURNAL))(error)),
        }
    }

    /// Drops the journal of a pod from the memory that the engines of a daemon share. For a pod that no longer runs:
    /// another process may have recorded its end, or removed it.
    pub fn forget_journal(&self, id: PodId) {
        self.options.journals.forget(id);
    }

    /// Why the pod's journal exists and cannot be read.
    pub(crate) fn journal_damage(&self, id: PodId) -> Option<io::Error> {
        self.try_read_journal(id).err().filter(|error| !is_absent(error))
    }

    fn try_read_journal(&self, id: PodId) -> io::Result<Arc<journal::Parsed>> {
        open(&self.pod_dir(id).join(files::JOURNAL)).and_then(|file| self.options.journals.read(id, file))
    }

    /// The journal as an open file, which stays readable after the pod was removed.
    pub(crate) fn open_journal(&self, id: PodId) -> Result<File, PodError> {
        let path = self.pod_dir(id).join(files::JOURNAL);
        open(&path).map_err(PodError::io("open the journal", path))
    }

    /// Removes the temporary files of killed processes, and the older record of limits. The caller holds the pod's
    /// lock.
    pub(crate) fn remove_temporary_files(&self, id: PodId) {
        let dir = self.pod_dir(id);
        for name in [NEW_PLAN, NEW_LIMITS, files::NEW_JOURNAL] {
            let _absent_or_left_for_rm = std::fs::remove_file(dir.join(name));
        }
        // A command that holds the lock is about to rename it.
        if dir.join(NEW_ADDED).exists()
            && let Ok(Some(lock)) = self.lock_apps(id, Duration::ZERO)
        {
            self.remove_temporary_record(id, &lock);
        }
    }

    /// The plan of a prepared pod.
    pub(crate) fn plan(&self, id: PodId) -> Result<Plan, PodError> {
        let path = self.pod_dir(id).join(files::PLAN);
        let damaged = |why: String| PodError::Damaged { id, file: files::PLAN, why };
        let bytes = read(&path, MAX_PLAN).map_err(|error| match error.kind() {
            // `run` does not sync: a power cut may have removed the file.
            io::ErrorKind::NotFound => damaged("it is not there".to_owned()),
            _ => PodError::io("read the plan", &path)(error),
        })?;
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))
    }

    /// The last lines of a supervisor's stderr, escaped.
    pub(crate) fn supervisor_said(&self, id: PodId) -> String {
        let bytes = read_end(&self.pod_dir(id).join(files::SUPERVISOR_LOG), MAX_SHOWN_LOG).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines: Vec<String> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(gantry_model::id::shown).collect();
        lines[lines.len().saturating_sub(3)..].join("; ")
    }
}

/// Whether the file is missing, is not a file, is too long, or cannot be read from the disk.
pub(crate) fn is_lost(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP, Errno::NXIO, Errno::IO];
    error.kind() == io::ErrorKind::InvalidData || Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}

/// Reads an open journal.
pub(crate) fn read_journal(file: &File) -> io::Result<journal::Parsed> {
    use std::io::Seek as _;
    let mut file = file;
    file.rewind()?;
    Ok(journal::parse(&read_truncated(file, MAX_JOURNAL)?))
}

/// Makes the directories a supervisor expects and writes the plan.
pub(crate) fn fill(dir: &Path, plan: &Plan) -> Result<(), PodError> {
    let names = match plan.flavor {
        // The supervisor makes the directory of volumes for the first one.
        PodFlavor::Container => &[files::LOGS, files::APPS][..],
        PodFlavor::Host => &[files::LOGS],
    };
    for name in names {
        let path = dir.join(name);
        rustix::fs::mkdir(&path, rustix::fs::Mode::RWXU).map_err(PodError::io("make directory", path))?;
    }
    storage_limit::limit_apps(dir, &plan.apps)?;
    let temporary = write_temporary(dir, NEW_PLAN, plan)?;
    let path = dir.join(files::PLAN);
    std::fs::rename(temporary, &path).map_err(PodError::io("write", path))
}

/// Writes the plan in place of an older one, which may be durable.
pub(crate) fn replace_plan(dir: &Path, plan: &Plan) -> Result<(), PodError> {
    replace_durably(dir, files::PLAN, NEW_PLAN, plan)
}

/// Writes a record as JSON to the temporary file `new`; returns its path.
fn write_temporary(dir: &Path, new: &str, record: &impl Serialize) -> Result<PathBuf, PodError> {
    let temporary = dir.join(new);
    let bytes = serde_json::to_vec(record).map_err(io::Error::from).map_err(PodError::io("write", &temporary))?;
    write(&temporary, &bytes).map_err(PodError::io("write", &temporary))?;
    Ok(temporary)
}

/// Writes a record as JSON in place of an older one, by way of the temporary file `new`. A power cut leaves the older
/// record or this one. Without the sync before the rename, it may leave an empty file (XFS, or ext4 with
/// `noauto_da_alloc`).
pub(crate) fn replace_durably(dir: &Path, name: &str, new: &str, record: &impl Serialize) -> Result<(), PodError> {
    let (path, temporary) = (dir.join(name), write_temporary(dir, new, record)?);
    sync_path(&temporary).map_err(PodError::io("sync", &temporary))?;
    std::fs::rename(temporary, &path).map_err(PodError::io("write", path))?;
    sync_path(dir).map_err(PodError::io("sync", dir))
}

/// As [`replace_durably`], for a record that needs no order on the disk: a power cut may leave it empty, and the older
/// record may be left under the name `new` ([`gantry_host::file::exchange`]).
pub(crate) fn exchange(dir: &Path, name: &str, new: &str, record: &impl Serialize) -> Result<(), PodError> {
    let (path, temporary) = (dir.join(name), write_temporary(dir, new, record)?);
    file::exchange(CWD, &temporary, &path).map_err(PodError::io("write", path))
}

/// Writes the manifest of a new pod.
pub(crate) fn write_manifest(dir: &Path, spec: &PodSpec) -> Result<(), PodError> {
    let path = dir.join(MANIFEST);
    write(&path, &manifest::to_bytes(spec)).map_err(PodError::io("write", path))
}

/// Makes a pod directory durable: its files, itself, and its name in `pods/`.
pub(crate) fn sync(dir: &Path) -> Result<(), PodError> {
    let above = dir.parent().unwrap_or(dir);
    for path in [dir.join(files::PLAN), dir.join(MANIFEST), dir.to_owned(), above.to_owned()] {
        sync_path(&path).map_err(PodError::io("sync", path))?;
    }
    Ok(())
}

/// Opens the plan as the stdin of a supervisor.
pub(crate) fn open_plan(dir: &Path) -> Result<File, PodError> {
    let path = dir.join(files::PLAN);
    open(&path).map_err(PodError::io("open", path))
}

/// A plan in memory, as the stdin of a supervisor.
pub(crate) fn plan_in_memory(plan: &Plan) -> io::Result<File> {
    gantry_host::file::in_memory("plan", &serde_json::to_vec(plan)?)
}

/// Opens the log for a supervisor's stderr. Fails without blocking if a FIFO without a reader has its name.
pub(crate) fn open_supervisor_log(dir: &Path) -> Result<File, PodError> {
    let path = dir.join(files::SUPERVISOR_LOG);
    // NONBLOCK: open(2) of a FIFO must not block.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(&path);
    let file = file.map_err(|error| match Errno::from_io_error(&error) {
        // Also a socket.
        Some(Errno::NXIO) => invalid(NOT_REGULAR),
        _ => error,
    });
    file.map_err(PodError::io("open", path))
}

/// Removes the leftovers of a failed start, so that its journal is not taken for that of the next start.
pub(crate) fn forget_start(dir: &Path) -> Result<(), PodError> {
    for name in [files::JOURNAL, files::CONTROL, files::REMOVE_WHEN_ENDED] {
        let path = dir.join(name);
        let removed = match std::fs::remove_file(&path) {
            // Damage: see `is_lost`.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => std::fs::remove_dir_all(&path),
            other => other,
        };
        match removed {
            Ok(()) => {}
            Err(error) if is_absent(&error) => {}
            Err(error) => return Err(PodError::io("remove", path)(error)),
        }
    }
    Ok(())
}

/// Marks the pod to be removed as soon as it has ended, by the first process that notices.
pub(crate) fn remove_when_ended(dir: &Path) -> Result<(), PodError> {
    let path = dir.join(files::REMOVE_WHEN_ENDED);
    write(&path, b"").map_err(PodError::io("write", path))
}

/// Makes and locks the file of the pod's owner. Closing it releases the lock.
pub(crate) fn lock_owner(dir: &Path) -> Result<OwnedFd, PodError> {
    let path = dir.join(OWNER);
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let locked = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from).and_then(|file| {
        match lock_within(&file, LockMode::Exclusive, OWNER_LOCK_TIMEOUT, |_| Ok(()))? {
            true => Ok(file),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    });
    locked.map_err(PodError::io("lock", path))
}

/// The file of the pod's owner; `None`: the pod has none.
pub(crate) fn open_owner(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match rustix::fs::open(dir.join(OWNER), flags, Mode::empty()) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Whether the pod is marked to be removed when it has ended.
pub(crate) fn is_to_be_removed(dir: &Path) -> bool {
    rustix::fs::access(dir.join(files::REMOVE_WHEN_ENDED), rustix::fs::Access::EXISTS).is_ok()
}

/// Reads a regular file of at most this many bytes. Symbolic links are not followed; anything but a regular file (a
/// FIFO, a device) fails with [`io::ErrorKind::InvalidData`].
pub(crate) fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    read_open_file(open_any(path)?, most).map_err(|error| match error.kind() {
        io::ErrorKind::FileTooLarge => invalid(error.to_string()),
        _ => error,
    })
}

/// Reads the last `most` bytes of a regular file, or all if it is shorter; errors as of [`read`].
fn read_end(path: &Path, most: u32) -> io::Result<Vec<u8>> {
    use std::io::Seek as _;
    let mut file = open(path)?;
    let start = file.metadata()?.len().saturating_sub(most.into());
    file.seek(io::SeekFrom::Start(start))?;
    read_truncated(file, most.into())
}

/// Opens a regular file for reading; errors as of [`read`].
fn open(path: &Path) -> io::Result<File> {
    let file = open_any(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(invalid(NOT_REGULAR)) }
}

/// Opens a regular file, a directory, a FIFO or a device for reading.
fn open_any(path: &Path) -> io::Result<File> {
    // NONBLOCK: open(2) of a FIFO must not block.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map(File::from).map_err(|errno| match errno {
        // A symbolic link, and a socket.
        Errno::LOOP | Errno::NXIO => invalid(NOT_REGULAR),
        other => other.into(),
    })
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW.bits().cast_signed();
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)?
        .write_all(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_files_are_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(read(&path, 4).is_err());
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, dir.path().join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("socket")).unwrap();
        for other in ["link", "fifo", "socket", "."] {
            let error = read(&dir.path().join(other), 10).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{other}: {error}");
        }
        let mode = std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
