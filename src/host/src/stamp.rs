//! Stamps of files, for polling where inotify does not help: a missed change, or a symbolic link whose target changes.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// The metadata of a file that changes when it is written or replaced: device, inode, modification time and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    device: u64,
    inode: u64,
    size: u64,
    /// Seconds since the epoch.
    modified: i64,
    modified_nanoseconds: i64,
}

impl From<&Metadata> for FileStamp {
    fn from(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: metadata.mtime(),
            modified_nanoseconds: metadata.mtime_nsec(),
        }
    }
}

impl FileStamp {
    /// The number of [bytes](Self::to_bytes).
    pub const LENGTH: usize = 5 * size_of::<u64>();

    /// Reads the stamp of a file, through symbolic links. `None` if the file does not exist or cannot be examined.
    #[must_use]
    pub fn read(path: &Path) -> Option<Self> {
        Some(Self::from(&std::fs::metadata(path).ok()?))
    }

    /// The stamp as bytes of a fixed length, to be stored.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LENGTH] {
        let Self { device, inode, size, modified, modified_nanoseconds } = self;
        let numbers = [device, inode, size, modified.cast_unsigned(), modified_nanoseconds.cast_unsigned()];
        let mut bytes = [0; Self::LENGTH];
        for (place, number) in bytes.chunks_exact_mut(size_of::<u64>()).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    /// The stamp that these bytes of [`Self::to_bytes`] represent; `None` if they are of another length.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LENGTH] = bytes.try_into().ok()?;
        let (numbers, _) = bytes.as_chunks();
        let [device, inode, size, modified, nanoseconds] = numbers else { return None };
        Some(Self {
            device: u64::from_le_bytes(*device),
            inode: u64::from_le_bytes(*inode),
            size: u64::from_le_bytes(*size),
            modified: i64::from_le_bytes(*modified),
            modified_nanoseconds: i64::from_le_bytes(*nanoseconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_stamps_are_read_back() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("file");
        std::fs::write(&path, "1").unwrap();
        let stamp = FileStamp::read(&path).unwrap();
        assert_eq!(FileStamp::from_bytes(&stamp.to_bytes()), Some(stamp));
        let before_the_epoch = FileStamp { modified: -1, ..stamp };
        assert_eq!(FileStamp::from_bytes(&before_the_epoch.to_bytes()), Some(before_the_epoch));
        assert_eq!(FileStamp::from_bytes(&stamp.to_bytes()[1..]), None);
    }

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
