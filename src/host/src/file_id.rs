//! The identity of a file, whatever its path is.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Stat, Statx, StatxFlags, makedev, statx};

/// A file under any path: its device and inode. A later file may have the inode number of a deleted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file of a path, through links. Does not wait for a network file system.
    ///
    /// # Errors
    /// Of statx(2).
    pub fn of_path(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&examine(CWD, path)?))
    }

    /// An open file.
    ///
    /// # Errors
    /// Of statx(2).
    pub fn of_file(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::from(&examine(file, Path::new(""))?))
    }
}

impl From<&Metadata> for FileId {
    fn from(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

impl From<&Stat> for FileId {
    fn from(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

impl From<&Statx> for FileId {
    fn from(stat: &Statx) -> Self {
        Self { device: makedev(stat.stx_dev_major, stat.stx_dev_minor), inode: stat.stx_ino }
    }
}

/// Examines a file for its identity and type, through links, without waiting for a network file system.
pub(crate) fn examine(at: impl AsFd, path: &Path) -> rustix::io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(at, path, flags, StatxFlags::INO | StatxFlags::TYPE)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn every_way_to_examine_gives_one_id() {
        let temp = tempfile::tempdir().unwrap();
        // Another device, too.
        for path in [temp.path(), Path::new("/proc"), Path::new("/dev/null")] {
            let id = FileId::of_path(path).unwrap();
            assert_eq!(FileId::of_file(File::open(path).unwrap()).unwrap(), id);
            assert_eq!(FileId::from(&path.metadata().unwrap()), id);
            assert_eq!(FileId::from(&rustix::fs::stat(path).unwrap()), id);
        }
        assert_ne!(FileId::of_path(temp.path()).unwrap(), FileId::of_path(Path::new("/proc")).unwrap());
    }
}
