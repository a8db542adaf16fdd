//! Checks of log files at chosen paths, before a pod or an app is made. The supervisor opens them beneath their
//! directory ([`gantry_contract::plan::Plan::log_dir`]), and fails in the same cases; these errors come before anything
//! is changed.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use gantry_model::id::shown;
use gantry_model::{AppLogPath, AppSpec, ErrorKind, PodLogDir};
use gantry_store::{AppRow, PodRow};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::error::need_root;
use crate::{Engine, EngineError};

impl Engine {
    /// Fails if the log directory of a pod, or a log file of one of these apps below it, cannot be used.
    pub(crate) fn check_log_files<'a>(
        &self,
        dir: Option<&PodLogDir>,
        apps: impl Iterator<Item = &'a AppSpec>,
    ) -> Result<(), EngineError> {
        let Some(dir) = dir else { return Ok(()) };
        let root = self.open_log_dir(dir)?;
        for app in apps {
            let Some(path) = &app.options.log_path else { continue };
            if let Some(why) = unusable_path(&root, path) {
                let (path, dir) = (shown(path.as_str()), shown(dir.as_str()));
                let text = format!("the log file '{path}' of app '{}' below {dir} cannot be used: {why}", app.name);
                return Err(EngineError::new(ErrorKind::Refused, text));
            }
        }
        Ok(())
    }

    /// Makes the log directory of a pod with its missing parents, mode 0755. Does nothing if anything is at the path:
    /// that is checked when the pod is made.
    ///
    /// # Errors
    /// [`EngineError`]: it would be in gantry's data directory, or cannot be made.
    pub fn make_log_dir(&self, dir: &PodLogDir) -> Result<(), EngineError> {
        need_root("make a log directory").map_err(EngineError::from_cause)?;
        let path = dir.as_path();
        if std::fs::symlink_metadata(path).is_ok() {
            return Ok(());
        }
        if path.ancestors().find_map(|parent| parent.canonicalize().ok()).is_some_and(|it| self.is_data(&it)) {
            return Err(refused(dir, IN_DATA));
        }
        let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
        made.map_err(|error| refused(dir, &format!("it does not exist and cannot be made: {error}")))
    }

    /// Whether a path without symbolic links is in the data directory.
    fn is_data(&self, path: &Path) -> bool {
        self.store().layout().root().canonicalize().is_ok_and(|data| path.starts_with(data))
    }

    fn open_log_dir(&self, dir: &PodLogDir) -> Result<OwnedFd, EngineError> {
        let refused = |why: &str| refused(dir, why);
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match rustix::fs::openat(CWD, dir.as_path(), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Err(refused("it does not exist: make it first")),
            Err(errno) => return Err(refused(&errno.to_string())),
        };
        let stat = rustix::fs::fstat(&fd).map_err(|errno| refused(&errno.to_string()))?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {}
            FileType::Symlink => return Err(refused("it is a symbolic link: name the directory to which it leads")),
            // Files of any other type.
            _ => return Err(refused("it is not a directory")),
        }
        if dir.as_path().canonicalize().is_ok_and(|path| self.is_data(&path)) {
            return Err(refused(IN_DATA));
        }
        Ok(fd)
    }
}

/// Why a directory of the store is no log directory.
const IN_DATA: &str = "it is in gantry's data directory, whose logs are removed with their pods";

fn refused(dir: &PodLogDir, why: &str) -> EngineError {
    let text = format!("the log directory {} cannot be used: {why}", shown(dir.as_str()));
    EngineError::new(ErrorKind::Refused, text)
}

/// Fails if the path of an added app's log collides with that of an app of the pod.
pub(crate) fn check_added_log(app: &AppSpec, row: &PodRow) -> Result<(), EngineError> {
    let Some(path) = &app.options.log_path else { return Ok(()) };
    let is_taken = |known: &&AppRow| known.log_path.as_ref().is_some_and(|known| known.conflicts_with(path));
    match row.apps.iter().find(is_taken) {
        None => Ok(()),
        Some(other) => {
            let path = shown(path.as_str());
            let why = format!("--log-path={path} collides with the log of app '{}': choose another file", other.name);
            Err(EngineError::new(ErrorKind::AlreadyExists, why))
        }
    }
}

/// Why no log file can be at this path, which may not exist yet.
fn unusable_path(root: &OwnedFd, path: &AppLogPath) -> Option<String> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let stat = rustix::fs::openat2(root, path.as_path(), flags, Mode::empty(), resolve).and_then(rustix::fs::fstat);
    match stat {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile => {
            Some("it is not a regular file".to_owned())
        }
        Ok(_) | Err(Errno::NOENT) => None,
        Err(Errno::LOOP) => Some("a part of its path is a symbolic link".to_owned()),
        Err(Errno::XDEV) => Some("a part of its path is a mount point".to_owned()),
        Err(Errno::NOTDIR) => Some("a part of its path is not a directory".to_owned()),
        Err(errno) => Some(errno.to_string()),
    }
}
