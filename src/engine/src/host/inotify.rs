//! inotify on directories.

use std::ffi::OsStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// An inotify instance. Readable when events are pending.
#[derive(Debug)]
pub(crate) struct Inotify(OwnedFd);

impl Inotify {
    /// Fails when the user has no instances left (sysctl `fs.inotify.max_user_instances`).
    pub(crate) fn new() -> rustix::io::Result<Self> {
        inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).map(Self)
    }

    /// Watches a directory for files that are written, created or renamed into it.
    pub(crate) fn watch(&self, dir: &Path) -> rustix::io::Result<()> {
        let flags = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        inotify::add_watch(&self.0, dir, flags).map(drop)
    }

    /// Reads all pending events; `each` gets the name of the file, or `None` when events were lost. Returns whether
    /// more events can come: not when a watched directory was removed or unmounted.
    pub(crate) fn drain(&self, mut each: impl FnMut(Option<&OsStr>)) -> bool {
        let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => return false,
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => each(None),
                Ok(event) => each(event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()))),
                Err(Errno::WOULDBLOCK | Errno::INTR) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl AsFd for Inotify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
