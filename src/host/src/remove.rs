//! Deletes a directory with contents made by an app: any depth, any number of names, symbolic links anywhere.
//!
//! Every directory is opened beneath its parent and never across a mount (openat2(2), `RESOLVE_NO_XDEV`), so nothing
//! outside the tree is reached, not even through a forgotten mount. At most [`MAX_DEPTH`] descriptors are open: deeper
//! directories are first moved up to the top of the tree.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Dir, RenameFlags};
use rustix::io::{Errno, Result};

use crate::tree::{BLOCK, open_child};

/// The maximum number of levels whose parents stay open.
const MAX_DEPTH: usize = 64;

/// Deletes `name` of any type beneath `parent` and returns the bytes freed on disk. A missing name is no error.
///
/// # Errors
/// What was deleted before stays deleted.
pub fn remove(parent: BorrowedFd<'_>, name: &CStr) -> Result<u64> {
    let mut freed = 0;
    match unlink(parent, name, &mut freed) {
        Err(Errno::ISDIR) => {}
        Err(Errno::NOENT) => return Ok(0),
        other => return other.map(|()| freed),
    }
    let top = match open_child(parent, name) {
        // Another process deletes the same tree.
        Err(Errno::NOENT) => return Ok(0),
        other => other?,
    };
    let mut walk = Walk { top: top.as_fd(), moved: 0, freed: 0 };
    loop {
        walk.empty(top.as_fd(), 0)?;
        match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            // Directories were moved up, or names came in behind the reader: repeat.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(Errno::NOENT) | Ok(()) => return Ok(walk.freed),
            Err(errno) => return Err(errno),
        }
    }
}

/// Deletes what is in this directory, and leaves the directory.
///
/// # Errors
/// What was deleted before stays deleted.
pub fn remove_content(dir: BorrowedFd<'_>) -> Result<u64> {
    let mut walk = Walk { top: dir, moved: 0, freed: 0 };
    loop {
        walk.empty(dir, 0)?;
        let mut entries = Dir::read_from(dir)?;
        let is_name = |entry: &Result<rustix::fs::DirEntry>| {
            entry.as_ref().map_or(true, |entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
        };
        // Directories were moved up: repeat.
        match entries.find(is_name).transpose()? {
            Some(_) => {}
            None => return Ok(walk.freed),
        }
    }
}

struct Walk<'a> {
    top: BorrowedFd<'a>,
    /// How many directories were moved to the top; their names there.
    moved: u64,
    freed: u64,
}

impl Walk<'_> {
    fn empty(&mut self, dir: BorrowedFd<'_>, depth: usize) -> Result<()> {
        let entries = match Dir::read_from(dir) {
            // It opens "." again, which fails in a directory that another process has deleted.
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            match unlink(dir, name, &mut self.freed) {
                Err(Errno::ISDIR) if depth == MAX_DEPTH => self.move_up(dir, name)?,
                Err(Errno::ISDIR) => self.descend(dir, name, depth)?,
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn descend(&mut self, dir: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<()> {
        let child = match open_child(dir, name) {
            Err(Errno::NOENT) => return Ok(()),
            other => other?,
        };
        loop {
            self.empty(child.as_fd(), depth + 1)?;
            match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(Errno::NOENT) | Ok(()) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }

    fn move_up(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<()> {
        loop {
            let free = format!("deep-{}", self.moved);
            self.moved += 1;
            match rustix::fs::renameat_with(dir, name, self.top, &free, RenameFlags::NOREPLACE) {
                // The app has used the same name.
                Err(Errno::EXIST) => {}
                Err(Errno::NOENT) => return Ok(()),
                other => return other,
            }
        }
    }
}

/// Unlinks what is not a directory; `ISDIR` when it is one.
fn unlink(dir: BorrowedFd<'_>, name: &CStr, freed: &mut u64) -> Result<()> {
    let found = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    if rustix::fs::FileType::from_raw_mode(found.st_mode).is_dir() {
        return Err(Errno::ISDIR);
    }
    rustix::fs::unlinkat(dir, name, AtFlags::empty())?;
    if found.st_nlink == 1 {
        *freed += u64::try_from(found.st_blocks).unwrap_or(0) * BLOCK;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::Mode;
    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;

    #[test]
    fn deletion_stays_inside_a_hostile_tree() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/kept"), "x").unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        // Names that the deleter uses itself.
        fs::write(tree.join("deep-0"), vec![1; 8192]).unwrap();
        symlink("../outside", tree.join("link")).unwrap();
        symlink("/", tree.join("a/root")).unwrap();
        // Far deeper than there are descriptors, and than a path may be long.
        let mut at = open_dir(&tree);
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_child(at.as_fd(), c"d").unwrap();
        }
        let parent = open_dir(dir.path());
        assert_eq!(remove(parent.as_fd(), c"tree"), Ok(8192));
        assert!(!tree.exists());
        assert_eq!(fs::read_to_string(dir.path().join("outside/kept")).unwrap(), "x");
        assert_eq!(remove(parent.as_fd(), c"tree"), Ok(0));
    }

    #[test]
    fn clearing_keeps_the_directory_itself() {
        let dir = tempfile::tempdir().unwrap();
        let mut at = open_dir(dir.path());
        for _ in 0..200 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_child(at.as_fd(), c"d").unwrap();
        }
        fs::write(dir.path().join("file"), vec![1; 8192]).unwrap();
        assert_eq!(remove_content(open_dir(dir.path()).as_fd()), Ok(8192));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn concurrent_deletion_of_one_tree_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..20 {
            for n in 0..100 {
                fs::create_dir_all(dir.path().join(format!("tree/{n}/a/b"))).unwrap();
                fs::write(dir.path().join(format!("tree/{n}/a/file")), "x").unwrap();
            }
            let parent = open_dir(dir.path());
            let start = std::sync::Barrier::new(2);
            let delete = || {
                start.wait();
                remove(parent.as_fd(), c"tree")
            };
            let results = std::thread::scope(|scope| {
                let threads = [scope.spawn(delete), scope.spawn(delete)];
                threads.map(|thread| thread.join().unwrap())
            });
            assert!(results.iter().all(Result::is_ok), "round {round}: {results:?}");
            assert!(!dir.path().join("tree").exists());
        }
    }

    fn open_dir(path: &std::path::Path) -> OwnedFd {
        crate::project::open_directory(path).unwrap()
    }
}
