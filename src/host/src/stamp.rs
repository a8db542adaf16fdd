//! Stamps of files, for polling where inotify does not help: a missed change, or a symbolic link whose target changes.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

/// The metadata of a file that changes when it is written or replaced: device, inode, modification time and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    modified: SystemTime,
    size: u64,
}

impl FileStamp {
    /// Reads the stamp of a file, through symbolic links. `None` if the file does not exist or cannot be examined.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        let modified = metadata.modified().ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino(), modified, size: metadata.len() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_or_replacing_a_file_changes_its_stamp() {
        let home = tempfile::tempdir().unwrap();
        let (path, other) = (home.path().join("file"), home.path().join("other"));
        assert_eq!(FileStamp::read(&path), None);
        std::fs::write(&path, "1").unwrap();
        let first = FileStamp::read(&path);
        assert!(first.is_some() && first == FileStamp::read(&path));
        std::fs::write(&path, "22").unwrap();
        let second = FileStamp::read(&path);
        assert_ne!(first, second);
        std::fs::write(&other, "22").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(second, FileStamp::read(&path));
    }
}
