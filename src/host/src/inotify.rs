//! inotify(7) on directories.
//!
//! Directories and not files, because the files that gantry follows are replaced: a watch stays with the inode of a
//! rotated log or of a WAL that SQLite has deleted, and a new file of the same name has none.

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// Bytes of changes read at a time.
const BUFFER: usize = 4096;

/// An inotify instance. Its descriptor is readable when changes are pending.
#[derive(Debug)]
pub struct Inotify(OwnedFd);

/// A watched directory of an [`Inotify`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WatchId(i32);

/// A change of a watched directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirChange<'a> {
    /// A file was written or created, or renamed into the directory or out of it.
    File {
        /// The directory.
        watch: WatchId,
        /// The name of the file.
        name: &'a OsStr,
    },
    /// The directory is no longer watched: it was deleted or unmounted, or the watch was removed.
    Ended(WatchId),
    /// The kernel's queue was full, and changes of any of the directories were lost.
    Lost,
}

impl Inotify {
    /// Creates an instance.
    ///
    /// # Errors
    /// EMFILE: the user has no instances left (sysctl `fs.inotify.max_user_instances`), or the process no descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?))
    }

    /// Watches a directory for files that are written, created, or renamed into it or out of it. A directory that is
    /// watched already keeps its watch.
    ///
    /// # Errors
    /// The error of inotify_add_watch(2). ENOSPC: the user has no watches left (sysctl `fs.inotify.max_user_watches`).
    pub fn watch(&self, dir: &Path) -> io::Result<WatchId> {
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVE | WatchFlags::ONLYDIR;
        Ok(WatchId(inotify::add_watch(&self.0, dir, flags)?))
    }

    /// Removes a watch.
    ///
    /// # Errors
    /// EINVAL: the watch has ended already, with its directory.
    pub fn unwatch(&self, watch: WatchId) -> io::Result<()> {
        Ok(inotify::remove_watch(&self.0, watch.0)?)
    }

    /// Passes all pending changes to `each`. Does not block.
    ///
    /// # Errors
    /// The error of read(2).
    pub fn read_changes(&self, mut each: impl FnMut(DirChange<'_>)) -> io::Result<()> {
        let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let watch = WatchId(event.wd());
            if event.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                each(DirChange::Lost);
            } else if event.events().contains(ReadFlags::IGNORED) {
                each(DirChange::Ended(watch));
            } else if let Some(name) = event.file_name() {
                each(DirChange::File { watch, name: OsStr::from_bytes(name.to_bytes()) });
            }
        }
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Inotify {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write as _;

    use super::*;

    /// The pending changes: the file's name, "ended" or "lost".
    fn pending(inotify: &Inotify) -> Vec<String> {
        let mut changes = Vec::new();
        inotify
            .read_changes(|change| {
                changes.push(match change {
                    DirChange::File { name, .. } => name.to_string_lossy().into_owned(),
                    DirChange::Ended(_) => "ended".to_owned(),
                    DirChange::Lost => "lost".to_owned(),
                });
            })
            .unwrap();
        changes.dedup();
        changes
    }

    #[test]
    fn reports_written_created_and_renamed_files() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("dir");
        fs::create_dir(&dir).unwrap();
        let inotify = Inotify::new().unwrap();
        let watch = inotify.watch(&dir).unwrap();
        assert_eq!(inotify.watch(&dir).unwrap(), watch, "a directory has one watch");
        assert!(pending(&inotify).is_empty());
        fs::write(dir.join("a"), "x").unwrap();
        fs::write(home.path().join("b"), "x").unwrap();
        assert_eq!(pending(&inotify), ["a"]);
        fs::rename(home.path().join("b"), dir.join("b")).unwrap();
        assert_eq!(pending(&inotify), ["b"]);
        fs::rename(dir.join("b"), home.path().join("b")).unwrap();
        assert_eq!(pending(&inotify), ["b"]);
        inotify.unwatch(watch).unwrap();
        fs::write(dir.join("a"), "y").unwrap();
        assert_eq!(pending(&inotify), ["ended"]);
        assert!(inotify.unwatch(watch).is_err());
    }

    #[test]
    fn reports_the_end_of_a_directory() {
        let home = tempfile::tempdir().unwrap();
        let inotify = Inotify::new().unwrap();
        assert_eq!(inotify.watch(&home.path().join("absent")).unwrap_err().kind(), io::ErrorKind::NotFound);
        let dir = home.path().join("dir");
        fs::create_dir(&dir).unwrap();
        inotify.watch(&dir).unwrap();
        fs::remove_dir(&dir).unwrap();
        assert_eq!(pending(&inotify), ["ended"]);
    }

    #[test]
    fn reports_lost_changes() {
        let home = tempfile::tempdir().unwrap();
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let mut files = ["a", "b"].map(|name| File::create(home.path().join(name)).unwrap());
        let inotify = Inotify::new().unwrap();
        inotify.watch(home.path()).unwrap();
        // Alternately, because the kernel merges equal changes that follow each other.
        for n in 0..=limit.trim().parse().unwrap() {
            files[n % 2].write_all(b"x").unwrap();
        }
        assert_eq!(pending(&inotify).last().unwrap(), "lost");
    }
}
