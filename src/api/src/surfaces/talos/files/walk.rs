//! Visits a directory tree: depth first, names in order. Follows no link, and opens nothing but directories.
//!
//! A tree can be changed or be made to exhaust memory while it is visited. Each name is resolved once, in the open
//! directory; a directory gives a bounded number of names at a time (so the order of a larger one is that of its
//! parts); directories that are nested too deeply are reported and not visited.

use std::ffi::CString;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::Interrupted;
use super::access::NamedFile;

/// Names of a directory that are sorted at a time.
const MAX_NAMES: usize = 4096;
/// Maximum depth of directories. Each takes two descriptors.
const MAX_DEPTH: usize = 256;
/// File systems without files on a disk, by `f_type` of statfs(2): procfs, sysfs, cgroup, cgroup2, debugfs, tracefs,
/// securityfs, bpf, configfs, efivarfs, pstore, devpts.
const PSEUDO: [i64; 12] = [
    0x9fa0,
    0x6265_6572,
    0x0027_e0eb,
    0x6367_7270,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xcafe_4a11,
    0x6265_6570,
    0xde5e_81e4,
    0x6165_676c,
    0x1cd1,
];
/// autofs: visiting a directory mounts it.
const AUTOFS: i64 = 0x0187;

/// A file of the tree.
pub(super) struct WalkFile<'a> {
    /// The path from the root of the walk; empty for the root.
    pub(super) path: &'a [u8],
    /// The number of directories above it, below the root.
    pub(super) depth: usize,
    pub(super) stat: Stat,
    /// Opened with O_PATH.
    pub(super) handle: &'a OwnedFd,
    /// Whether its file system has no disk.
    pub(super) is_pseudo: bool,
}

impl WalkFile<'_> {
    /// The type.
    pub(super) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.stat.st_mode)
    }

    /// Whether it is a directory.
    pub(super) fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Its size in bytes; 0 for files of /proc, where `/proc/kcore` is as large as the address space.
    pub(super) fn size(&self) -> u64 {
        if self.is_pseudo { 0 } else { u64::try_from(self.stat.st_size).unwrap_or(0) }
    }

    /// The target of a symbolic link.
    pub(super) fn link_target(&self) -> Option<Vec<u8>> {
        if self.file_type() != FileType::Symlink {
            return None;
        }
        rustix::fs::readlinkat(self.handle, c"", Vec::new()).ok().map(CString::into_bytes)
    }
}

/// Receives the files of a tree.
pub(super) trait Visitor {
    /// A file, or a directory before its contents. Returns whether the contents are visited.
    fn enter(&mut self, file: &WalkFile<'_>) -> Result<bool, Interrupted>;

    /// A directory after its contents, also if they were not visited.
    fn leave(&mut self, _directory: &WalkFile<'_>) -> Result<(), Interrupted> {
        Ok(())
    }

    /// A file or the contents of a directory that cannot be read; the walk continues.
    fn report(&mut self, path: &[u8], depth: usize, text: &str) -> Result<(), Interrupted>;

    /// Called before each file: fails if the call is over.
    fn check(&mut self) -> Result<(), Interrupted>;
}

/// Visits the tree below `root`.
pub(super) fn walk(root: &NamedFile, visitor: &mut dyn Visitor) -> Result<(), Interrupted> {
    let mut path = Vec::new();
    visit(&root.handle, root.stat, &mut path, 0, Filesystem::of_root(&root.handle, &root.stat), visitor)
}

/// The file system of a file.
#[derive(Debug, Clone, Copy)]
struct Filesystem {
    device: u64,
    is_pseudo: bool,
    is_automount: bool,
}

impl Filesystem {
    fn of_root(handle: &OwnedFd, stat: &Stat) -> Self {
        let kind = rustix::fs::fstatfs(handle).map_or(0, |found| found.f_type);
        Self { device: stat.st_dev, is_pseudo: PSEUDO.contains(&kind), is_automount: kind == AUTOFS }
    }

    /// That of a file in a directory of this file system.
    fn below(self, handle: &OwnedFd, stat: &Stat) -> Self {
        if stat.st_dev == self.device { self } else { Self::of_root(handle, stat) }
    }
}

fn visit(
    handle: &OwnedFd,
    stat: Stat,
    path: &mut Vec<u8>,
    depth: usize,
    filesystem: Filesystem,
    visitor: &mut dyn Visitor,
) -> Result<(), Interrupted> {
    let file = WalkFile { path: &path.clone(), depth, stat, handle, is_pseudo: filesystem.is_pseudo };
    let descends = visitor.enter(&file)?;
    if !file.is_dir() {
        return Ok(());
    }
    if descends && depth >= MAX_DEPTH {
        visitor.report(path, depth, "directories are nested too deeply")?;
    } else if descends && !filesystem.is_automount {
        visit_contents(handle, path, depth, filesystem, visitor)?;
    }
    visitor.leave(&file)
}

fn visit_contents(
    directory: &OwnedFd,
    path: &mut Vec<u8>,
    depth: usize,
    filesystem: Filesystem,
    visitor: &mut dyn Visitor,
) -> Result<(), Interrupted> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::openat(directory, c".", flags, Mode::empty());
    let mut contents = match opened.and_then(Dir::new) {
        Ok(contents) => contents,
        Err(errno) => return visitor.report(path, depth, &super::error_text(errno)),
    };
    let length = path.len();
    loop {
        let names = match next_names(&mut contents) {
            Ok(names) => names,
            Err(errno) => return visitor.report(path, depth, &super::error_text(errno)),
        };
        if names.is_empty() {
            return Ok(());
        }
        for name in names {
            visitor.check()?;
            if length > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name.as_bytes());
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(directory, &name, flags, Mode::empty())
                .and_then(|handle| Ok((rustix::fs::statat(&handle, c"", AtFlags::EMPTY_PATH)?, handle)));
            match opened {
                Ok((stat, handle)) => {
                    visit(&handle, stat, path, depth + 1, filesystem.below(&handle, &stat), visitor)?;
                }
                // Removed since it was listed.
                Err(Errno::NOENT) => {}
                Err(errno) => visitor.report(path, depth + 1, &super::error_text(errno))?,
            }
            path.truncate(length);
        }
    }
}

/// The next names of a directory, in order; none at its end.
fn next_names(contents: &mut Dir) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    while names.len() < MAX_NAMES {
        let Some(entry) = contents.next().transpose()? else { break };
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::super::access::{FileAccess, FileScope};
    use super::*;

    #[derive(Default)]
    struct Recorder {
        seen: Vec<String>,
        reports: usize,
    }

    impl Visitor for Recorder {
        fn enter(&mut self, file: &WalkFile<'_>) -> Result<bool, Interrupted> {
            self.seen.push(String::from_utf8_lossy(file.path).into_owned());
            Ok(true)
        }

        fn report(&mut self, _path: &[u8], _depth: usize, _text: &str) -> Result<(), Interrupted> {
            self.reports += 1;
            Ok(())
        }

        fn check(&mut self) -> Result<(), Interrupted> {
            Ok(())
        }
    }

    #[test]
    fn trees_are_visited_in_order_without_following_links() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("b/c")).unwrap();
        std::fs::write(dir.path().join("b/file"), "x").unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("a")).unwrap();
        let access = FileAccess::new(dir.path(), FileScope::DataDir);
        let mut recorder = Recorder::default();
        walk(&access.open("lstat", "").unwrap(), &mut recorder).unwrap();
        assert_eq!(recorder.seen, ["", "a", "b", "b/c", "b/file"]);
    }

    #[test]
    fn deep_trees_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let mut parent = rustix::fs::open(dir.path(), OFlags::PATH, Mode::empty()).unwrap();
        for _ in 0..MAX_DEPTH + 10 {
            rustix::fs::mkdirat(&parent, c"d", Mode::RWXU).unwrap();
            parent = rustix::fs::openat(&parent, c"d", OFlags::PATH, Mode::empty()).unwrap();
        }
        let mut recorder = Recorder::default();
        walk(&FileAccess::new(dir.path(), FileScope::DataDir).open("lstat", "").unwrap(), &mut recorder).unwrap();
        assert_eq!((recorder.seen.len(), recorder.reports), (MAX_DEPTH + 1, 1));
    }
}
