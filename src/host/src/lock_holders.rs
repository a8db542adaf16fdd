//! The processes that hold file locks (flock(2)). The kernel does not name the holders of a lock: they are found by
//! their descriptors.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::fs::{AtFlags, CWD, FileType, Statx, StatxFlags, statx};

/// A file under any path: major and minor number of its device, and its inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: (u32, u32),
    inode: u64,
}

impl FileId {
    /// The file of a path, through links. Does not wait for a network file system.
    ///
    /// # Errors
    /// Of statx(2).
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Self::from_statx(&examine(CWD, path)?))
    }

    /// An open file.
    ///
    /// # Errors
    /// Of statx(2).
    pub fn of_file(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from_statx(&examine(file, Path::new(""))?))
    }

    fn from_statx(stat: &Statx) -> Self {
        Self { device: (stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino }
    }
}

fn examine(at: impl AsFd, path: &Path) -> rustix::io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(at, path, flags, StatxFlags::INO | StatxFlags::TYPE)
}

/// A file on which a process holds a lock by one of its descriptors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldLock {
    /// The path of the file, as this process sees it.
    pub path: PathBuf,
    /// The file, whatever its path is now.
    pub file: FileId,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// The locks that a process holds on files of this name, by descriptors of its own or inherited ones; an open file
/// alone does not count. `process` is `/proc/PID`. What cannot be examined is left out, as is everything of a process
/// that has ended.
///
/// No file is opened: an app can have a FIFO of this name. Others are not even examined: stat(2) may block on a network
/// file system.
pub fn held_locks(process: &Path, name: &OsStr) -> impl Iterator<Item = HeldLock> {
    let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(move |descriptor| {
        // The path may differ in another mount namespace, but for its last component.
        let path = fs::read_link(descriptor.path()).ok().filter(|path| path.file_name() == Some(name))?;
        let stat = examine(CWD, &descriptor.path()).ok()?;
        // proc_pid_fdinfo(5): the locks that belong to this open file description.
        let info = fs::read_to_string(process.join("fdinfo").join(descriptor.file_name())).ok()?;
        info.lines().any(|line| line.starts_with("lock:")).then(|| HeldLock {
            path,
            file: FileId::from_statx(&stat),
            is_dir: FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Directory,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::lock::{LockMode, try_lock};

    #[test]
    fn locked_files_are_found_by_name() {
        let temp = tempfile::tempdir().unwrap();
        let name = OsStr::new("directory");
        fs::create_dir(temp.path().join(name)).unwrap();
        let held = || held_locks(Path::new("/proc/self"), name).collect::<Vec<_>>();
        let dir = File::open(temp.path().join(name)).unwrap();
        assert_eq!(held(), [], "it is only open");
        assert!(try_lock(&dir, LockMode::Shared).unwrap());
        let path = temp.path().join(name);
        let file = FileId::of_path(&path).unwrap();
        assert_eq!(held(), [HeldLock { path: path.clone(), file, is_dir: true }]);
        assert_eq!(FileId::of_file(&dir).unwrap(), file);
        assert_eq!(held_locks(Path::new("/proc/self"), OsStr::new("other")).count(), 0);
        // Under another path.
        fs::create_dir(temp.path().join("moved")).unwrap();
        fs::rename(&path, temp.path().join("moved").join(name)).unwrap();
        assert_eq!(held()[0].file, file);
    }
}
