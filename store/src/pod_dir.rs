//! Pod directories and their locks. A held lock means that a process prepares, starts, runs or deletes the pod; a free
//! one means that the process is done or dead. The lock is on the directory itself, so its descriptor can be passed to
//! the supervisor.
//!
//! A directory is created and locked in `tmp/` and then renamed, so that it never appears unlocked. Deletion renames it
//! to `tmp/` first, so that it never appears without its facts. The data of a pod of `run --rm` is deleted before.
//!
//! gantry makes nothing but directories in `pods/`. An entry of another type, such as a link to a directory that was
//! moved away, counts as no directory: the lock and the removal of its pod do not follow it. The removal unlinks it.
//! Reading a file of the pod does follow a link.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use gantry_host::remove;
use gantry_model::{ErrorKind, Kind, PodId};
use rustix::fs::{Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use thiserror::Error;

use crate::lock::{LockMode, open_dir, still_named, sync_dir, try_lock};
use crate::tmp::{self, DirInDeletion, Scrap};
use crate::{Store, StoreError};

/// The exclusive lock on a pod directory. Ends when the last duplicate of its descriptor is closed.
#[derive(Debug)]
pub struct PodLock {
    fd: OwnedFd,
    /// Held by the thread of this process that deletes the content of the directory.
    turn: DeletionTurn,
}

/// Threads that delete one directory take turns. To remove a directory whose child another thread is just freeing, the
/// kernel scans the children again and again until that thread is done, which may wait for the disk.
pub(crate) type DeletionTurn = Arc<Mutex<()>>;

impl PodLock {
    fn new(fd: OwnedFd) -> Self {
        Self { fd, turn: DeletionTurn::default() }
    }

    /// The descriptor of the directory, which holds the lock.
    #[must_use]
    pub fn into_fd(self) -> OwnedFd {
        self.fd
    }

    /// A second handle of the same lock, which is held until both are closed, or one unlocks it (flock(2), LOCK_UN).
    ///
    /// # Errors
    /// No file descriptors are left.
    pub fn try_clone(&self) -> std::io::Result<Self> {
        Ok(Self { fd: self.fd.try_clone()?, turn: Arc::clone(&self.turn) })
    }

    /// Takes the lock again if another handle has unlocked it. `false`: another process has taken it since, or flock(2)
    /// failed.
    #[must_use]
    pub fn retake(&self) -> bool {
        try_lock(&self.fd, LockMode::Exclusive).unwrap_or(false)
    }

    /// A handle with which another thread deletes the pod's data. It shares the lock, which is held until the handle
    /// and this value are dropped.
    ///
    /// # Errors
    /// No file descriptors are left.
    pub fn data(&self) -> std::io::Result<PodData> {
        Ok(PodData { dir: self.fd.try_clone()?, turn: Arc::clone(&self.turn) })
    }
}

/// The layers, volumes and logs of a locked pod.
#[derive(Debug)]
pub struct PodData {
    dir: OwnedFd,
    turn: DeletionTurn,
}

impl PodData {
    /// Deletes the data and keeps the facts (journal, plan, networks), so that a kill before they are recorded loses
    /// none. The removal of the pod deletes what is left, or reports why it cannot.
    pub fn delete(&self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for name in [c"apps", c"volumes", c"logs"] {
            let _left_to_removal = remove::remove(self.dir.as_fd(), name);
        }
    }
}

impl AsFd for PodLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The state of a pod directory's lock.
#[derive(Debug)]
pub enum PodState {
    /// It was free; now the caller holds it.
    Free(PodLock),
    /// Another process holds it.
    Held,
    /// There is no directory; perhaps an entry of another type.
    Absent,
}

/// A pod directory could not be made.
#[derive(Debug, Error)]
pub enum MakePodDirError {
    /// There is one.
    #[error("there is a directory for pod {0} already")]
    Exists(PodId),
    /// The disk.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Kind for MakePodDirError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Exists(_) => ErrorKind::AlreadyExists,
            Self::Store(error) => error.kind(),
        }
    }
}

/// The prefix of names in `tmp/` that hold the rest of this pod's directory.
fn deleted(id: PodId) -> String {
    format!("deleted-pod-{id}")
}

impl Store {
    /// Makes the directory of a pod, mode 0700, and locks it. Its name is not durable yet: the caller syncs.
    ///
    /// # Errors
    /// [`MakePodDirError`].
    pub fn make_pod_dir(&self, id: PodId) -> Result<PodLock, MakePodDirError> {
        let (fd, temporary) = tmp::make_pod_dir(&self.layout)?;
        let scrap = Scrap::new(&self.layout, temporary.clone());
        let path = self.layout.pod_dir(&id);
        let cwd = rustix::fs::CWD;
        match rustix::fs::renameat_with(cwd, &temporary, cwd, &path, RenameFlags::NOREPLACE) {
            Ok(()) => scrap.keep(),
            Err(Errno::EXIST) => return Err(MakePodDirError::Exists(id)),
            Err(errno) => return Err(StoreError::io("create", &path)(errno).into()),
        }
        Ok(PodLock::new(fd))
    }

    /// Takes the lock of a pod directory if it is free.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn try_lock_pod(&self, id: PodId) -> Result<PodState, StoreError> {
        let path = self.layout.pod_dir(&id);
        let fd = match open_dir(&path) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(PodState::Absent),
            // Unless it is `pods/` that is no directory: then nothing is known of any pod.
            Err(Errno::NOTDIR | Errno::LOOP) if rustix::fs::lstat(&path).is_ok() => return Ok(PodState::Absent),
            Err(errno) => return Err(StoreError::io("open", &path)(errno)),
        };
        if !try_lock(&fd, LockMode::Exclusive).map_err(StoreError::io("lock", &path))? {
            return Ok(PodState::Held);
        }
        // It may have been deleted between the two calls above.
        let named = still_named(&fd, &path).map_err(StoreError::io("examine", &path))?;
        Ok(if named { PodState::Free(PodLock::new(fd)) } else { PodState::Absent })
    }

    /// Renames the directory of a pod into `tmp/`; that survives a power cut if `syncs_name`. Needs no space. `None`:
    /// there is none. [`Self::delete_rest_of_pod_dir`] continues a deletion that has failed.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn unname_pod_dir(
        &self,
        lock: PodLock,
        id: PodId,
        syncs_name: bool,
    ) -> Result<Option<DirInDeletion>, StoreError> {
        let path = self.layout.pod_dir(&id);
        if !still_named(&lock, &path).map_err(StoreError::io("examine", &path))? {
            // With a lock on another directory, this would delete a directory in use.
            return match rustix::fs::lstat(&path) {
                Err(Errno::NOENT) => Ok(None),
                Err(errno) => Err(StoreError::io("examine", &path)(errno)),
                Ok(_) => Err(StoreError::Locked { path, seconds: 0 }),
            };
        }
        let aside = self.layout.tmp_dir().join(tmp::fresh_name(&deleted(id))?);
        match rustix::fs::rename(&path, &aside) {
            Ok(()) => {}
            // A full disk has no room for another name: delete the pod's content first.
            Err(Errno::NOSPC) => {
                remove::remove_content(lock.as_fd()).map_err(StoreError::io("empty", &path))?;
                rustix::fs::rename(&path, &aside).map_err(StoreError::io("move", &path))?;
            }
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) if !self.layout.tmp_dir().is_dir() => {
                return Err(StoreError::io("move a pod to", &self.layout.tmp_dir())(errno));
            }
            Err(errno) => return Err(StoreError::io("move", &path)(errno)),
        }
        if syncs_name {
            sync_dir(&self.layout.pods_dir())?;
        }
        Ok(Some(DirInDeletion::new(&self.layout, aside, Some(lock.fd), lock.turn)))
    }

    /// Unlinks what has the name of a pod's directory and is none: a file, or a link, not what it points to. That
    /// survives a power cut if `syncs_name`.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Locked`] when it is a directory by now.
    pub fn unlink_pod_entry(&self, id: PodId, syncs_name: bool) -> Result<(), StoreError> {
        let path = self.layout.pod_dir(&id);
        match rustix::fs::unlink(&path) {
            Ok(()) if syncs_name => sync_dir(&self.layout.pods_dir()),
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(Errno::ISDIR) => Err(StoreError::Locked { path, seconds: 0 }),
            Err(errno) => Err(StoreError::io("unlink", &path)(errno)),
        }
    }

    /// Deletes `DIR/NAME` in the directory of a locked pod, whatever its apps have put there. A kill leaves a part, and
    /// a name that does not exist is no failure.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn delete_in_pod_dir(&self, lock: &PodLock, dir: &str, name: &str) -> Result<(), StoreError> {
        let path = Path::new(dir).join(name);
        let failed = || StoreError::io("delete", &path);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let parent = match rustix::fs::openat(lock, dir, flags, Mode::empty()) {
            Ok(parent) => parent,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(failed()(errno)),
        };
        let name = CString::new(name).map_err(|_| failed()(Errno::INVAL))?;
        remove::remove(parent.as_fd(), &name).map(drop).map_err(failed())
    }

    /// Continues a deletion that failed or was killed after the directory had lost its name. `false`: another process
    /// does.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn delete_rest_of_pod_dir(&self, id: PodId) -> Result<bool, StoreError> {
        tmp::delete_begun(&self.layout, &deleted(id))
    }

    /// The pods that have a directory, or another entry of that name, with or without a row. `check` reports names that
    /// are not pod ids.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn pod_dirs(&self) -> Result<Vec<PodId>, StoreError> {
        let dir = self.layout.pods_dir();
        let mut ids = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(StoreError::io("list", &dir))? {
            let name = entry.map_err(StoreError::io("list", &dir))?.file_name();
            ids.extend(name.to_str().and_then(|name| name.parse::<PodId>().ok()));
        }
        ids.sort();
        Ok(ids)
    }
}
