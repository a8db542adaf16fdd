//! Network namespaces: a descriptor of one, and running code inside it.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::Pid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{Attempt, Error, Result};

/// An open descriptor of a network namespace, which keeps the namespace alive.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// The calling thread's namespace. Needs `/proc`.
    ///
    /// # Errors
    /// If `/proc/thread-self/ns/net` cannot be opened.
    pub fn own() -> Result<Self> {
        Self::at(Path::new("/proc/thread-self/ns/net"))
    }

    /// The namespace of a process, by its PID in the PID namespace of `/proc`.
    ///
    /// # Errors
    /// If the process is gone ([`gantry_model::ErrorKind::NotFound`]) or permission is denied.
    pub fn from_process(pid: Pid) -> Result<Self> {
        Self::at(Path::new(&format!("/proc/{}/ns/net", pid.as_raw_nonzero())))
    }

    /// The namespace of a file: `/proc/PID/ns/net`, or a bind mount of one (as CNI passes in CNI_NETNS).
    ///
    /// # Errors
    /// If the file cannot be opened. A file of another type fails in [`Self::enter`].
    pub fn at(path: &Path) -> Result<Self> {
        // Opening a FIFO must not block.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = rustix::fs::openat(CWD, path, flags, Mode::empty())
            .attempt(|| format!("open the network namespace '{}'", path.display()))?;
        Ok(Self { fd })
    }

    /// Whether both are the same namespace (same device and inode number).
    ///
    /// # Errors
    /// If fstat() fails.
    pub fn is(&self, other: &Self) -> Result<bool> {
        let what = || "compare two network namespaces";
        let (one, two) = (rustix::fs::fstat(&self.fd).attempt(what)?, rustix::fs::fstat(&other.fd).attempt(what)?);
        Ok((one.st_dev, one.st_ino) == (two.st_dev, two.st_ino))
    }

    /// Moves the calling thread into this namespace, runs `work`, and moves it back. Other threads are not affected.
    /// Everything that `work` opens (sockets, files below `/proc/sys/net`) stays bound to this namespace.
    ///
    /// # Errors
    /// The errors of `work`; if the namespace cannot be entered (needs CAP_SYS_ADMIN over both).
    ///
    /// # Aborts
    /// If the thread cannot return, the process aborts: it would otherwise configure the pod's namespace instead of the
    /// host's.
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

/// Returns to the home namespace on drop, also when `work` panics.
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

/// Checks the kernel's rules for interface names (`dev_valid_name`): 1 to 15 bytes, no `/`, `:` or white space, not
/// `.` or `..`. Also rejects `%`, which the kernel replaces by a number, and control characters, which it accepts.
///
/// # Errors
/// [`ErrorKind::Invalid`](gantry_model::ErrorKind::Invalid) if the name breaks a rule.
pub fn check_name(name: &str) -> Result<()> {
    let bad = |byte: u8| matches!(byte, b'/' | b':' | b'%' | 0..=b' ' | 0x7f | 0xa0);
    let why = match name {
        "" => "it is empty",
        "." | ".." => "it names a directory",
        _ if name.len() > 15 => "it is longer than 15 bytes",
        _ if name.bytes().any(bad) => "it contains a character that is not allowed",
        _ => return Ok(()),
    };
    Err(Error::invalid(format_args!("use '{}' as an interface's name", name.escape_debug()), why))
}

/// Whether this is a valid interface name for Linux (at most 15 bytes) and CNI (no `/`, `:` or white space).
#[must_use]
pub fn is_interface_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 15
        && text != "."
        && text != ".."
        && text.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'/' | b':'))
}
