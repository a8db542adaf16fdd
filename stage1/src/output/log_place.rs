//! The place of a log file: in the pod directory, or at a path that the caller of the pod has chosen.
//!
//! A chosen file is opened beneath the log directory, through no symbolic link and into no other mount. Missing
//! directories are made. The supervisor holds a lock on the file (flock(2)), so that a second pod with the path fails
//! instead of mixing its lines in.

use std::os::fd::OwnedFd;

use gantry_contract::Failure;
use gantry_contract::plan::LogLimits;
use gantry_model::id::shown;
use gantry_model::{AppLogPath, ErrorKind};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::failure::{Result, failure};

/// As the kubelet and containerd make them.
const DIR_MODE: Mode = Mode::from_raw_mode(0o755);
const FILE_MODE: Mode = Mode::from_raw_mode(0o640);

/// The place of a log file.
pub(crate) enum LogPlace {
    /// In the pod directory.
    Own {
        /// The directory of the app's logs.
        dir: OwnedFd,
        /// The name of the file.
        name: String,
        /// Its rotation.
        limits: LogLimits,
    },
    /// At a chosen path.
    Chosen {
        /// The log directory of the pod.
        root: OwnedFd,
        /// The path below it.
        path: AppLogPath,
    },
}

impl LogPlace {
    /// Opens the file for appending. `None`: it is the file that is `held`.
    pub(crate) fn open(&self, held: Option<&OwnedFd>) -> Result<Option<OwnedFd>> {
        match self {
            Self::Own { dir, name, .. } => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
                let file = rustix::fs::openat(dir, name, flags, FILE_MODE);
                file.map(Some).map_err(|errno| cannot_open("the log file", errno))
            }
            Self::Chosen { root, path } => open_chosen(root, path, held),
        }
    }

    /// Releases the lock of the file, if it has one.
    pub(crate) fn unlock(&self, file: &OwnedFd) {
        if matches!(self, Self::Chosen { .. }) {
            let _released_by_the_last_close = rustix::fs::flock(file, FlockOperation::Unlock);
        }
    }

    /// The size at which the file is rotated.
    pub(crate) fn max_bytes(&self) -> u64 {
        match self {
            Self::Own { limits, .. } => limits.max_bytes,
            Self::Chosen { .. } => u64::MAX,
        }
    }
}

fn cannot_open(what: &str, errno: Errno) -> Failure {
    let why = match errno {
        Errno::LOOP => "a part of its path is a symbolic link".to_owned(),
        Errno::XDEV => "a part of its path is a mount point".to_owned(),
        Errno::NXIO | Errno::ISDIR => "it is not a regular file".to_owned(),
        other => other.to_string(),
    };
    failure(ErrorKind::of_io(&errno.into()), format!("cannot open {what}: {why}"))
}

fn open_chosen(root: &OwnedFd, path: &AppLogPath, held: Option<&OwnedFd>) -> Result<Option<OwnedFd>> {
    let what = format!("the log file '{}' below the log directory of the pod", shown(path.as_str()));
    let failed = |errno| cannot_open(&what, errno);
    let file = open_beneath(root, path).map_err(failed)?;
    let stat = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(failed(Errno::NXIO));
    }
    let held = held.map(rustix::fs::fstat).transpose().map_err(failed)?;
    if held.is_some_and(|held| (held.st_dev, held.st_ino) == (stat.st_dev, stat.st_ino)) {
        return Ok(None);
    }
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Err(failure(
            ErrorKind::Busy,
            format!("cannot open {what}: another app writes it; choose another --log-path or --log-dir"),
        )),
        // A file system without locks.
        Err(Errno::NOTSUP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL) => Ok(Some(file)),
        Err(errno) => Err(failed(errno)),
    }
}

fn open_beneath(root: &OwnedFd, path: &AppLogPath) -> rustix::io::Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    let (dirs, name) = path.split();
    let mut dir = rustix::io::fcntl_dupfd_cloexec(root, 3)?;
    for part in dirs.iter().flat_map(|dirs| dirs.split('/')) {
        match rustix::fs::mkdirat(&dir, part, DIR_MODE) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let flags = OFlags::DIRECTORY | OFlags::PATH | OFlags::CLOEXEC;
        dir = rustix::fs::openat2(&dir, part, flags, Mode::empty(), resolve)?;
    }
    // NONBLOCK: opening a FIFO must not hang.
    let flags = OFlags::WRONLY
        | OFlags::CREATE
        | OFlags::APPEND
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::NOFOLLOW
        | OFlags::CLOEXEC;
    rustix::fs::openat2(&dir, name, flags, FILE_MODE, resolve)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::path::{Path, PathBuf};

    use super::*;

    fn directory(test: &str) -> (PathBuf, OwnedFd) {
        let path = std::env::temp_dir().join(format!("gantry-log-place-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let fd = rustix::fs::open(&path, OFlags::DIRECTORY, Mode::empty()).unwrap();
        (path, fd)
    }

    fn place(root: &Path, path: &str) -> LogPlace {
        let root = rustix::fs::open(root, OFlags::DIRECTORY, Mode::empty()).unwrap();
        LogPlace::Chosen { root, path: path.parse().unwrap() }
    }

    #[test]
    fn chosen_files_are_made_below_their_directory() {
        let (root, _fd) = directory("made");
        let file = place(&root, "a/b/0.log").open(None).unwrap().unwrap();
        let mode = |path: &str| std::fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("a"), mode("a/b"), mode("a/b/0.log")), (0o755, 0o755, 0o640));
        assert!(place(&root, "a/b/0.log").open(Some(&file)).unwrap().is_none(), "it was not renamed");
        let why = place(&root, "a/b/0.log").open(None).unwrap_err();
        assert!(why.kind == ErrorKind::Busy && why.message.contains("another app"), "{}", why.message);
        std::fs::rename(root.join("a/b/0.log"), root.join("a/b/0.log.1")).unwrap();
        place(&root, "a/b/0.log").open(Some(&file)).unwrap().unwrap();
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn links_and_special_files_are_refused() {
        let (root, _fd) = directory("refused");
        std::fs::create_dir_all(root.join("dir/0.log")).unwrap();
        std::fs::write(root.join("outside"), "x").unwrap();
        symlink("/tmp", root.join("link")).unwrap();
        symlink("outside", root.join("file")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, root.join("fifo"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        for (path, want) in [
            ("link/0.log", "symbolic link"),
            ("file", "symbolic link"),
            ("fifo", "not a regular file"),
            ("dir/0.log", "not a regular file"),
            ("outside/0.log", "Not a directory"),
        ] {
            let why = place(&root, path).open(None).unwrap_err().message;
            assert!(why.contains(want) && why.contains(path), "{path}: {why}");
        }
        assert_eq!(std::fs::read(root.join("outside")).unwrap(), b"x");
        std::fs::remove_dir_all(root).unwrap();
    }
}
