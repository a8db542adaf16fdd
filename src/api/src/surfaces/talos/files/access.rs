//! Which paths a peer may open, and opening them.
//!
//! | path | administrator | other peers |
//! |---|---|---|
//! | in the data directory | resolved beneath it | the same |
//! | elsewhere | resolved as by any program | refused |
//!
//! Beneath the data directory a link that leads out of it fails: an app could make one to a file of the host, and an
//! administrator who reads a file of the app would get the host's.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use gantry_engine::model::id::shown;
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;
use tonic::Status;

use super::status_of;
use crate::request::check_text;

/// See the module.
#[derive(Debug, Clone)]
pub(in super::super) struct FileAccess {
    /// The data directory.
    data_dir: PathBuf,
    /// Whether the peer may open any path of the host.
    whole_host: bool,
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
    /// The rights of a peer: `whole_host` for an administrator.
    pub(in super::super) fn new(data_dir: &Path, whole_host: bool) -> Self {
        let absolute = || std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        Self { data_dir: std::fs::canonicalize(data_dir).unwrap_or_else(|_| absolute()), whole_host }
    }

    /// The path that a request without one means.
    fn default_path(&self) -> &Path {
        if self.whole_host { Path::new("/") } else { &self.data_dir }
    }

    /// Opens a path, following links. `operation` is the system call that errors name.
    ///
    /// # Errors
    /// NOT_FOUND, PERMISSION_DENIED, or another status of the kernel's error. INVALID_ARGUMENT: the path is too long.
    pub(super) fn open(&self, operation: &str, path: &str) -> Result<NamedFile, Status> {
        check_text("path", path)?;
        let clean = if path.is_empty() { self.default_path().to_owned() } else { clean(path) };
        let failed = |errno| status_of(operation, path, errno);
        let handle = match clean.strip_prefix(&self.data_dir) {
            Ok(below) => self.open_beneath(below).map_err(|errno| match errno {
                Errno::XDEV => {
                    Status::permission_denied(format!("{operation} {}: a link leaves the data directory", shown(path)))
                }
                errno => failed(errno),
            })?,
            Err(_) if self.whole_host => {
                rustix::fs::open(&clean, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?
            }
            Err(_) => {
                let (path, dir) = (shown(path), self.data_dir.display());
                return Err(Status::permission_denied(format!(
                    "not authorized: {path} is outside of {dir}, which only administrators may access"
                )));
            }
        };
        let stat = rustix::fs::fstat(&handle).map_err(failed)?;
        Ok(NamedFile { path: clean, handle, stat })
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

/// Makes a path absolute, and removes `.`, `..` and empty components without looking at the file system.
fn clean(path: &str) -> PathBuf {
    let mut clean = PathBuf::from("/");
    for component in Path::new(path).components() {
        match component {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => {
                clean.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    clean
}

/// Opens a regular file for reading, which an O_PATH descriptor names; it is the same file whatever its path leads to
/// now.
///
/// # Errors
/// EINVAL: it is not a regular file; errors of open(2).
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
        let code = |whole_host, path: String| {
            FileAccess::new(&data, whole_host).open("stat", &path).map_or_else(|status| status.code(), |_| Code::Ok)
        };
        let root = data.display().to_string();
        for whole_host in [false, true] {
            for (name, want) in [
                ("", Code::Ok),
                ("/file", Code::Ok),
                ("/in", Code::Ok),
                ("/out", Code::PermissionDenied),
                ("/absolute", Code::PermissionDenied),
                ("/none", Code::NotFound),
                ("/file/x", Code::InvalidArgument),
            ] {
                assert_eq!(code(whole_host, format!("{root}{name}")), want, "{name}");
            }
        }
        for path in ["/etc/passwd".to_owned(), format!("{root}/../secret"), "etc/passwd".to_owned()] {
            assert_eq!(code(false, path.clone()), Code::PermissionDenied, "{path}");
            assert_eq!(code(true, path.clone()), Code::Ok, "{path}");
        }
        assert_eq!(FileAccess::new(&data, false).open("lstat", "").unwrap().path, data.canonicalize().unwrap());
        assert_eq!(FileAccess::new(&data, true).open("lstat", "").unwrap().path, Path::new("/"));
    }

    proptest! {
        #[test]
        fn clean_paths_are_absolute(path in "[a./\u{0}ü]{0,24}") {
            let clean = clean(&path);
            prop_assert!(clean.is_absolute());
            prop_assert!(clean.components().skip(1).all(|part| matches!(part, Component::Normal(_))));
        }
    }
}
