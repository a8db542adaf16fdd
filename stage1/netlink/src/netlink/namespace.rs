//! Network namespaces: a descriptor of one, and doing something inside it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::error::{Attempt, Error, Result};

/// A network namespace, held open: it lives at least as long as this does.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// The calling thread's. Needs `/proc`.
    ///
    /// # Errors
    /// When `/proc/thread-self/ns/net` cannot be opened.
    pub fn own() -> Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// The one of a process, by its number in the PID namespace of `/proc`.
    ///
    /// # Errors
    /// When the process is gone ([`gantry_model::ErrorKind::NotFound`]) or may not be looked into.
    pub fn of_process(pid: Pid) -> Result<Self> {
        Self::at(Path::new(&format!("/proc/{}/ns/net", pid.as_raw_nonzero())))
    }

    /// The one a file stands for: `/proc/PID/ns/net`, or a place that was bound to (as CNI passes in CNI_NETNS).
    ///
    /// # Errors
    /// When it cannot be opened. That it is a network namespace shows when it is entered.
    pub fn at(path: &Path) -> Result<Self> {
        // A FIFO in its place must not make us wait.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .attempt(|| format!("open the network namespace '{}'", path.display()))?;
        Ok(Self { fd })
    }

    /// Two are the same when both device and inode number are.
    ///
    /// # Errors
    /// When one cannot be asked.
    pub fn is(&self, other: &Self) -> Result<bool> {
        let what = || "compare two network namespaces";
        let (one, two) = (rustix::fs::fstat(&self.fd).attempt(what)?, rustix::fs::fstat(&other.fd).attempt(what)?);
        Ok((one.st_dev, one.st_ino) == (two.st_dev, two.st_ino))
    }

    /// Does something with the calling thread inside this namespace, and goes back. Other threads are not affected; what
    /// `work` opens (sockets, files below `/proc/sys/net`) stays in this namespace.
    ///
    /// # Errors
    /// Those of `work`; and when the namespace cannot be entered (CAP_SYS_ADMIN is needed in both).
    ///
    /// # Aborts
    /// When the thread cannot go back, the process ends: whatever it did next, it would do in the wrong namespace, the pod's
    /// in place of the host's.
    pub fn enter<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let home = Self::own()?;
        self.go().attempt(|| "enter a network namespace")?;
        let _back = Back { home };
        work()
    }

    fn go(&self) -> rustix::io::Result<()> {
        move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network))
    }
}

impl From<OwnedFd> for Namespace {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<File> for Namespace {
    fn from(file: File) -> Self {
        Self { fd: file.into() }
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Goes back when it is dropped: also when `work` panics.
struct Back {
    home: Namespace,
}

impl Drop for Back {
    fn drop(&mut self) {
        if self.home.go().is_err() {
            std::process::abort();
        }
    }
}

/// The kernel's rules for the name of an interface (`dev_valid_name`): 1 to 15 bytes, no `/`, `:` or white space, not `.` or `..`;
/// and no `%`, which makes the kernel choose a number. No control character either, which the kernel would take.
///
/// # Errors
/// [`Error::Invalid`] when it breaks one.
pub fn check_name(name: &str) -> Result<()> {
    let bad = |byte: u8| matches!(byte, b'/' | b':' | b'%' | 0..=b' ' | 0x7f | 0xa0);
    let why = match name {
        "" => "it is empty",
        "." | ".." => "it is a directory's",
        _ if name.len() > 15 => "it is longer than 15 bytes",
        _ if name.bytes().any(bad) => "it has a character that no interface's name may have",
        _ => return Ok(()),
    };
    Err(Error::Invalid { what: format!("use '{}' as an interface's name", name.escape_debug()), why: why.to_owned() })
}

/// Whether this may be the name of an interface, for Linux (at most 15 bytes) and for CNI (no `/`, `:` or white space).
#[must_use]
pub fn is_interface_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 15
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':'))
}
