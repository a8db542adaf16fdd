//! Which paths a peer may open, and opening them.
//!
//! | path | administrator | names, for other peers | contents, for operators |
//! |---|---|---|---|
//! | in the log directory of a pod | resolved beneath the data directory | the same | resolved beneath it, without links |
//! | elsewhere in the data directory | resolved beneath it | the same | refused |
//! | elsewhere | resolved as by any program | refused | refused |
//!
//! The data directory has secrets: environments in plans and in the database, volumes, the files of apps. The log
//! directories have the output of apps only, which Logs sends to readers, too.
//!
//! Beneath the data directory a link that leads out of it fails: an app could make one to a file of the host, and an
//! administrator who reads a file of the app would get the host's.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use gantry_engine::split_log_path;
use gantry_model::id::shown;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tonic::Status;

use super::status_of;
use crate::clean_path::clean_path;
use crate::request::check_text;

/// See the module.
#[derive(Debug, Clone)]
pub(in super::super) struct FileAccess {
    /// The data directory.
    data_dir: PathBuf,
    scope: FileScope,
}

/// The paths that a peer may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum FileScope {
    /// Any path of the host.
    Host,
    /// Paths in the data directory, for calls that send no contents.
    DataDir,
    /// Paths in the log directories of pods.
    PodLogs,
}

/// A file that a request names, opened with O_PATH.
#[derive(Debug)]
pub(super) struct NamedFile {
    /// The path: absolute, without `.`, `..` and empty components.
    pub(super) path: PathBuf,
    pub(super) handle: OwnedFd,
    pub(super) stat: Stat,
}

impl FileAccess {
    /// The rights of a peer.
    pub(in super::super) fn new(data_dir: &Path, scope: FileScope) -> Self {
        let absolute = || std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self { data_dir: std::fs::canonicalize(data_dir).unwrap_or_else(|_| absolute()), scope }
    }

    /// The path that a request without one means.
    fn default_path(&self) -> &Path {
        match self.scope {
            FileScope::Host => Path::new("/"),
            FileScope::DataDir | FileScope::PodLogs => &self.data_dir,
        }
    }

    /// Opens a path, following links. `operation` is the system call that errors name.
    ///
    /// # Errors
    /// `NOT_FOUND`, `PERMISSION_DENIED`, or another status of the kernel's error, and `INVALID_ARGUMENT` if the path is
    /// too long.
    pub(super) fn open(&self, operation: &str, path: &str) -> Result<NamedFile, Status> {
        check_text("path", path)?;
        let clean = if path.is_empty() { self.default_path().to_owned() } else { clean_path(path).into() };
        let failed = |errno| status_of(operation, path, errno);
        let below = clean.strip_prefix(&self.data_dir).ok();
        let handle = match (self.scope, below) {
            (FileScope::Host | FileScope::DataDir, Some(below)) => {
                self.open_beneath(below).map_err(|errno| match errno {
                    Errno::XDEV => {
                        let path = shown(path);
                        Status::permission_denied(format!("{operation} {path}: a link leaves the data directory"))
                    }
                    errno => failed(errno),
                })?
            }
            (FileScope::Host, None) => {
                rustix::fs::open(&clean, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?
            }
            (FileScope::DataDir, None) => {
                let (path, dir) = (shown(path), self.data_dir.display());
                return Err(Status::permission_denied(format!(
                    "not authorized: {path} is outside of {dir}, which only administrators may access"
                )));
            }
            (FileScope::PodLogs, below) => match below.and_then(split_log_path) {
                Some((dir, below)) => self.open_log(&dir, &below).map_err(failed)?,
                None => {
                    let (path, dir) = (shown(path), self.data_dir.display());
                    return Err(Status::permission_denied(format!(
                        "not authorized: {path} is not in {dir}/pods/UUID/logs of a pod, and only administrators may \
                         read other files"
                    )));
                }
            },
        };
        let stat = rustix::fs::fstat(&handle).map_err(failed)?;
        Ok(NamedFile { path: clean, handle, stat })
    }

    /// Opens the log directory of a pod, or a file in it.
    fn open_log(&self, dir: &Path, below: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let data_dir = rustix::fs::open(&self.data_dir, flags | OFlags::DIRECTORY, Mode::empty())?;
        let dir = rustix::fs::openat2(&data_dir, dir, flags | OFlags::DIRECTORY, Mode::empty(), resolve)?;
        if below.as_os_str().is_empty() {
            return Ok(dir);
        }
        rustix::fs::openat2(&dir, below, flags, Mode::empty(), resolve)
    }

    fn open_beneath(&self, below: &Path) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.data_dir, flags | OFlags::DIRECTORY, Mode::empty())?;
        if below.as_os_str().is_empty() {
            return Ok(dir);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        rustix::fs::openat2(&dir, below, flags, Mode::empty(), resolve)
    }
}

impl NamedFile {
    /// The last name of the path; `.` for the root.
    pub(super) fn base_name(&self) -> Vec<u8> {
        self.path.file_name().map_or_else(|| b".".to_vec(), |name| name.as_bytes().to_vec())
    }
}

/// Opens a regular file for reading, which an O_PATH descriptor names; it is the same file whatever its path leads to
/// now.
///
/// # Errors
/// `EINVAL` if it is not a regular file, and the errors of open(2).
pub(super) fn open_to_read(handle: &OwnedFd, stat: &Stat) -> Result<std::fs::File, Errno> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    // Files of tracefs and /proc/kmsg block like a FIFO.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    rustix::fs::open(path, flags, Mode::empty()).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;

    #[test]
    fn other_peers_stay_in_the_data_directory() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("file"), "x").unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        for (name, target) in [("in", "file"), ("out", "../secret"), ("absolute", "/etc/passwd")] {
            std::os::unix::fs::symlink(target, data.join(name)).unwrap();
        }
        let code = |scope, path: String| {
            FileAccess::new(&data, scope).open("stat", &path).map_or_else(|status| status.code(), |_| Code::Ok)
        };
        let root = data.display().to_string();
        for scope in [FileScope::DataDir, FileScope::Host] {
            for (name, want) in [
                ("", Code::Ok),
                ("/file", Code::Ok),
                ("/in", Code::Ok),
                ("/out", Code::PermissionDenied),
                ("/absolute", Code::PermissionDenied),
                ("/none", Code::NotFound),
                ("/file/x", Code::InvalidArgument),
            ] {
                assert_eq!(code(scope, format!("{root}{name}")), want, "{name}");
            }
        }
        for path in ["/etc/passwd".to_owned(), format!("{root}/../secret"), "etc/passwd".to_owned()] {
            assert_eq!(code(FileScope::DataDir, path.clone()), Code::PermissionDenied, "{path}");
            assert_eq!(code(FileScope::Host, path.clone()), Code::Ok, "{path}");
        }
        let root = |scope| FileAccess::new(&data, scope).open("lstat", "").unwrap().path;
        assert_eq!(root(FileScope::DataDir), data.canonicalize().unwrap());
        assert_eq!(root(FileScope::Host), Path::new("/"));
    }

    #[test]
    fn operators_read_log_directories_only() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("pods/6733c088-a507-4694-aabf-ec79c0a8ac9a");
        std::fs::create_dir_all(pod.join("logs/web")).unwrap();
        std::fs::create_dir_all(dir.path().join("pods/other/logs")).unwrap();
        for name in ["plan.json", "supervisor.log", "logs/web/0.log"] {
            std::fs::write(pod.join(name), "x").unwrap();
        }
        for (name, target) in [("up", "../plan.json"), ("host", "/etc/passwd"), ("web-link", "web")] {
            std::os::unix::fs::symlink(target, pod.join("logs").join(name)).unwrap();
        }
        let access = FileAccess::new(dir.path(), FileScope::PodLogs);
        let code = |path: String| access.open("stat", &path).map_or_else(|status| status.code(), |_| Code::Ok);
        let pod = pod.display();
        for (name, want) in [
            ("logs", Code::Ok),
            ("logs/web", Code::Ok),
            ("logs/web/../web/0.log", Code::Ok),
            ("logs/web/1.log", Code::NotFound),
            ("logs/web/0.log/x", Code::InvalidArgument),
            ("logs/up", Code::FailedPrecondition),
            ("logs/host", Code::FailedPrecondition),
            ("logs/web-link/0.log", Code::FailedPrecondition),
            ("logs/../plan.json", Code::PermissionDenied),
            ("plan.json", Code::PermissionDenied),
            ("supervisor.log", Code::PermissionDenied),
            ("logs-of-others", Code::PermissionDenied),
            ("", Code::PermissionDenied),
        ] {
            assert_eq!(code(format!("{pod}/{name}")), want, "{name}");
        }
        let root = dir.path().display();
        for path in
            ["/etc/passwd".to_owned(), format!("{root}"), format!("{root}/pods"), format!("{root}/pods/other/logs")]
        {
            assert_eq!(code(path.clone()), Code::PermissionDenied, "{path}");
        }
    }

    /// A data directory with a pod, links out of both, and a file beside it.
    fn make_hostile_tree(dir: &Path) -> PathBuf {
        let data = dir.join("data");
        let logs = data.join(POD).join("logs");
        std::fs::create_dir_all(logs.join("web")).unwrap();
        for path in [dir.join("secret"), data.join("file"), data.join(POD).join("file"), logs.join("web/file")] {
            std::fs::write(path, "x").unwrap();
        }
        for (at, target) in [
            (data.join("link"), "../secret"),
            (data.join("up"), ".."),
            (data.join("in"), "pods"),
            (logs.join("link"), "../file"),
            (logs.join("up"), ".."),
            (logs.join("in"), "web"),
            (logs.join("web/link"), "/etc/passwd"),
        ] {
            std::os::unix::fs::symlink(target, at).unwrap();
        }
        data.canonicalize().unwrap()
    }

    const POD: &str = "pods/6733c088-a507-4694-aabf-ec79c0a8ac9a";

    #[test]
    fn opened_files_are_in_the_scope() {
        let dir = tempfile::tempdir().unwrap();
        let data = make_hostile_tree(dir.path());
        const PARTS: &[&str] =
            &["file", "link", "up", "in", "logs", "web", "pods", "..", ".", "", "secret", POD, "data"];
        let path = proptest::collection::vec(proptest::sample::select(PARTS), 0..8);
        let roots = proptest::sample::select(vec![data.clone(), data.join(POD), data.join(POD).join("logs")]);
        proptest!(|(root in roots, path in path)| {
            let path = format!("{}/{}", root.display(), path.join("/"));
            let logs = data.join(POD).join("logs");
            for (scope, top) in [(FileScope::Host, None), (FileScope::DataDir, Some(&data)), (FileScope::PodLogs, Some(&logs))] {
                let Ok(file) = FileAccess::new(&data, scope).open("stat", &path) else { continue };
                let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.handle.as_raw_fd())).unwrap();
                // Outside of the data directory, an administrator opens what the path names.
                prop_assert!(top.is_none_or(|top| opened.starts_with(top)), "{} {}", path, opened.display());
                prop_assert!(opened.starts_with(&data) || !file.path.starts_with(&data), "{} {}", path, opened.display());
            }
        });
    }

    proptest! {
        #[test]
        fn any_path_is_opened_or_refused(path: String) {
            for scope in [FileScope::Host, FileScope::DataDir, FileScope::PodLogs] {
                let _opened_or_refused = FileAccess::new(Path::new("/nonexistent"), scope).open("stat", &path).is_ok();
            }
        }
    }
}
