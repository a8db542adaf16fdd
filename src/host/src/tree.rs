//! The space that a directory tree uses on the disk.

use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::file_id::FileId;

/// The bytes of a block in `st_blocks` (inode(7)).
pub(crate) const BLOCK: u64 = 512;
/// The entries between two calls of the function that ends a walk.
const STEP: u64 = 1024;
/// The names of directories that a walk remembers at most, which bounds its memory in a hostile tree.
const MAX_PENDING: usize = 1 << 18;

/// What the files of a directory tree use.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct TreeUsage {
    /// Allocated bytes. A file with several names counts once.
    pub bytes: u64,
    /// Files, directories and links.
    pub entries: u64,
    /// Whether the tree was read to its end: it was not larger than the limit, and did not change while it was read.
    pub is_complete: bool,
}

/// Reads the usage of what is in a directory, of at most `max_entries` names, without following links or crossing
/// mounts. Any depth takes two descriptors. The tree may belong to a running, hostile app: a directory that is moved
/// while it is read ends the walk.
///
/// # Errors
/// Of reading the directory itself; what vanishes below it is no error.
pub fn measure(dir: BorrowedFd<'_>, max_entries: u64) -> io::Result<TreeUsage> {
    measure_while(dir, max_entries, &mut || true)
}

/// Like [`measure`]; calls `proceed` every 1024 entries, and ends the walk when that returns false.
///
/// # Errors
/// Those of [`measure`].
pub fn measure_while(
    dir: BorrowedFd<'_>,
    max_entries: u64,
    proceed: &mut dyn FnMut() -> bool,
) -> io::Result<TreeUsage> {
    let usage = TreeUsage { is_complete: true, ..TreeUsage::default() };
    let mut walk = Walk { usage, links: HashSet::new(), max_entries, pending: 0, proceed, has_ended: false };
    let mut current =
        rustix::fs::openat(dir, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut levels = vec![walk.read_level(&current)?];
    while let Some(level) = levels.last_mut().filter(|_| !walk.has_ended) {
        if let Some(name) = level.pending.pop() {
            walk.pending -= 1;
            // One that cannot be opened has vanished, was replaced by a link, or is a mount point.
            let Ok(child) = open_child(current.as_fd(), &name) else { continue };
            match walk.read_level(&child) {
                Ok(level) => {
                    levels.push(level);
                    current = child;
                }
                Err(_) => walk.usage.is_complete = false,
            }
            continue;
        }
        levels.pop();
        let Some(parent) = levels.last() else { break };
        let Some(opened) = open_parent(&current, parent.id) else {
            // The directory was moved: the rest of its parents cannot be reached from here.
            walk.usage.is_complete = false;
            break;
        };
        current = opened;
    }
    Ok(walk.usage)
}

/// A directory whose subdirectories are being read.
struct Level {
    id: FileId,
    /// Its subdirectories that are left.
    pending: Vec<CString>,
}

struct Walk<'a> {
    usage: TreeUsage,
    /// Files with several names.
    links: HashSet<FileId>,
    max_entries: u64,
    /// The names in all levels.
    pending: usize,
    proceed: &'a mut dyn FnMut() -> bool,
    /// Whether the limit was reached, or the walk was ended.
    has_ended: bool,
}

impl Walk<'_> {
    fn read_level(&mut self, dir: &OwnedFd) -> io::Result<Level> {
        let mut level = Level { id: FileId::from(&rustix::fs::fstat(dir)?), pending: Vec::new() };
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.usage.entries >= self.max_entries || !self.may_proceed() {
                self.usage.is_complete = false;
                self.has_ended = true;
                break;
            }
            let Ok(stat) = rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            self.count(&stat);
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                if self.pending >= MAX_PENDING {
                    self.usage.is_complete = false;
                    continue;
                }
                level.pending.push(name.to_owned());
                self.pending += 1;
            }
        }
        Ok(level)
    }

    fn may_proceed(&mut self) -> bool {
        !self.usage.entries.is_multiple_of(STEP) || (self.proceed)()
    }

    fn count(&mut self, stat: &Stat) {
        self.usage.entries += 1;
        let is_dir = FileType::from_raw_mode(stat.st_mode).is_dir();
        if is_dir || stat.st_nlink <= 1 || self.links.insert(FileId::from(stat)) {
            self.usage.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK;
        }
    }
}

/// Opens a directory beneath another without following anything and without crossing a mount.
pub(crate) fn open_child(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}

/// The parent of a directory, if it is still this one.
fn open_parent(dir: &OwnedFd, expected: FileId) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = retry(|| rustix::fs::openat(dir, c"..", flags, Mode::empty())).ok()?;
    let stat = rustix::fs::fstat(&parent).ok()?;
    (FileId::from(&stat) == expected).then_some(parent)
}

fn retry<T>(call: impl Fn() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn open(path: &std::path::Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }

    #[test]
    fn links_count_once_and_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(dir.path().join("outside"), vec![1; 1 << 20]).unwrap();
        symlink("../outside", tree.join("link")).unwrap();
        symlink("/", tree.join("a/root")).unwrap();
        let before = measure(open(&tree).as_fd(), 100).unwrap();
        fs::write(tree.join("a/file"), vec![1; 8192]).unwrap();
        fs::hard_link(tree.join("a/file"), tree.join("a/b/same")).unwrap();
        let after = measure(open(&tree).as_fd(), 100).unwrap();
        assert!(before.is_complete && after.is_complete);
        assert_eq!((after.bytes - before.bytes, after.entries - before.entries), (8192, 2));
    }

    #[test]
    fn a_walk_can_be_ended() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..3 * STEP {
            fs::write(dir.path().join(number.to_string()), "").unwrap();
        }
        let mut steps = 0;
        let mut proceed = || {
            steps += 1;
            steps <= 2
        };
        let usage = measure_while(open(dir.path()).as_fd(), u64::MAX, &mut proceed).unwrap();
        assert_eq!((usage.entries, usage.is_complete), (2 * STEP, false));
    }

    #[test]
    fn trees_of_any_depth_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut at = open(dir.path());
        for _ in 0..3000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            at = open_child(at.as_fd(), c"d").unwrap();
        }
        drop(at);
        fs::write(dir.path().join("file"), "x").unwrap();
        let usage = measure(open(dir.path()).as_fd(), 10_000).unwrap();
        assert_eq!((usage.entries, usage.is_complete), (3001, true));
        let limited = measure(open(dir.path()).as_fd(), 1000).unwrap();
        assert_eq!((limited.entries, limited.is_complete), (1000, false));
        // The standard library's remove_dir_all would recurse.
        std::process::Command::new("rm").arg("-rf").arg(dir.path().join("d")).status().unwrap();
    }
}
