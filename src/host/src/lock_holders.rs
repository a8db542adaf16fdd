//! The processes that hold file locks (flock(2)). The kernel does not name the holders of a lock: they are found by
//! their descriptors.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType};

use crate::file_id::{FileId, examine};

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
            file: FileId::from(&stat),
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
