//! A cgroup in one hierarchy.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Hierarchy, Version};

/// Attempts at creating a cgroup whose parent is removed at the same time.
const MAX_CREATE_ATTEMPTS: usize = 16;

/// The depth to which cgroups in a cgroup are followed.
const MAX_DEPTH: usize = 32;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A cgroup in one hierarchy: an open directory. Displays as its path on the host.
#[derive(Debug)]
pub struct Cgroup {
    hierarchy: Arc<Hierarchy>,
    /// Relative to the hierarchy's root; empty: the root cgroup.
    path: String,
    dir: OwnedFd,
}

impl Cgroup {
    pub(super) fn new(hierarchy: Arc<Hierarchy>, path: String, dir: OwnedFd) -> Self {
        Self { hierarchy, path, dir }
    }

    /// Its hierarchy.
    #[must_use]
    pub fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// Whether it is a cgroup of v2.
    #[must_use]
    pub fn is_v2(&self) -> bool {
        self.hierarchy.version == Version::V2
    }

    /// The path on the host of the cgroup `below` this one.
    #[must_use]
    pub fn path_of(&self, below: &str) -> PathBuf {
        let mut path = self.hierarchy.root.clone();
        path.extend([self.path.as_str(), below].into_iter().filter(|part| !part.is_empty()));
        path
    }

    /// Creates the cgroup `below` this one with its parents, each if it is absent, and opens it.
    ///
    /// # Errors
    /// Of mkdir(2) or open(2).
    pub fn create(&self, below: &str) -> io::Result<Self> {
        // Another process may remove a parent that is still empty.
        for _ in 1..MAX_CREATE_ATTEMPTS {
            match self.try_create(below) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                result => return result,
            }
        }
        self.try_create(below)
    }

    fn try_create(&self, below: &str) -> io::Result<Self> {
        let make = |path: &str| match rustix::fs::mkdirat(&self.dir, path, Mode::from_raw_mode(0o755)) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(error),
        };
        // Its parents usually exist.
        match make(below) {
            Err(Errno::NOENT) => prefixes(below).try_for_each(make)?,
            made => made?,
        }
        let dir = rustix::fs::openat(&self.dir, below, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let path = if self.path.is_empty() { below.to_owned() } else { format!("{}/{below}", self.path) };
        Ok(Self { hierarchy: Arc::clone(&self.hierarchy), path, dir })
    }

    /// Opens the cgroup `below` this one, which must exist.
    ///
    /// # Errors
    /// Of openat2(2).
    pub fn open(&self, below: &str) -> io::Result<Self> {
        // An absolute path fails with BENEATH. In `path_of`, it would replace the hierarchy's root.
        let (flags, beneath) = (OFlags::DIRECTORY | OFlags::CLOEXEC, ResolveFlags::BENEATH);
        let dir = rustix::fs::openat2(&self.dir, below, flags, Mode::empty(), beneath)?;
        let path = if self.path.is_empty() { below.to_owned() } else { format!("{}/{below}", self.path) };
        Ok(Self { hierarchy: Arc::clone(&self.hierarchy), path, dir })
    }

    /// Removes the cgroup `below` this one, and the cgroups in it: programs such as systemd make cgroups in their own.
    ///
    /// # Errors
    /// Of rmdir(2): [`Errno::BUSY`] if one of them has processes.
    pub fn remove_tree(&self, below: &str) -> rustix::io::Result<()> {
        match self.remove(below) {
            Err(Errno::BUSY) => {}
            result => return result,
        }
        let dir = rustix::fs::openat(&self.dir, below, DIRECTORY, Mode::empty())?;
        remove_children(dir.as_fd(), MAX_DEPTH)?;
        self.remove(below)
    }

    /// Whether a process is in it or below it (v2).
    ///
    /// # Errors
    /// Of reading `cgroup.events`.
    pub fn is_populated(&self) -> io::Result<bool> {
        Ok(self.read("cgroup.events")?.lines().any(|line| line == "populated 1"))
    }

    /// Removes the cgroup `below` this one. The cgroups of others in it stay, also if they are empty.
    ///
    /// # Errors
    /// Of rmdir(2): [`Errno::BUSY`] if it has processes or cgroups.
    pub fn remove(&self, below: &str) -> rustix::io::Result<()> {
        rustix::fs::unlinkat(&self.dir, below, AtFlags::REMOVEDIR)
    }

    /// Whether a process is in it or in a cgroup below it.
    ///
    /// # Errors
    /// Of reading its files.
    pub fn has_processes(&self) -> io::Result<bool> {
        has_members_below(self.dir.as_fd(), MAX_DEPTH)
    }

    /// On v2, enables controllers for the children of this cgroup and of each from it down to `below`: a cgroup has a
    /// controller only if all its ancestors enable it. A controller that cannot be enabled is skipped: setting its
    /// limits fails with [`io::ErrorKind::NotFound`].
    pub fn enable_controllers(&self, below: &str, controllers: &[&str]) {
        let dirs = std::iter::once(String::new()).chain(prefixes(below).map(|prefix| format!("{prefix}/")));
        for dir in dirs {
            for controller in controllers {
                let file = format!("{dir}cgroup.subtree_control");
                let _reported_with_the_limit = self.write(&file, &format!("+{controller}"));
            }
        }
    }

    /// Its processes. Those outside this PID namespace have no PID and are left out.
    ///
    /// # Errors
    /// Of reading `cgroup.procs`.
    pub fn members(&self) -> io::Result<Vec<Pid>> {
        Ok(parse_pids(&self.read("cgroup.procs")?))
    }

    /// Moves a process, with all its threads, to this cgroup. Waits for a grace period (8 to 20 ms), unless another
    /// process was moved just before.
    ///
    /// # Errors
    /// Of writing `cgroup.procs`.
    pub fn add(&self, pid: Pid) -> io::Result<()> {
        self.write("cgroup.procs", &pid.as_raw_nonzero().to_string())
    }

    /// Moves this process, which has a single thread, to this cgroup. On v1, a thread that moves itself through `tasks`
    /// takes no lock and waits for no grace period; v2 has no such way.
    ///
    /// # Errors
    /// Of writing the file.
    pub fn join(&self) -> io::Result<()> {
        self.write(if self.is_v2() { "cgroup.procs" } else { "tasks" }, "0")
    }

    /// Opens the file to which PIDs are written to move processes to this cgroup.
    ///
    /// # Errors
    /// Of open(2).
    pub fn open_procs(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.dir, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Opens one of its files to read it.
    ///
    /// # Errors
    /// Of open(2).
    pub fn open_file(&self, file: &str) -> io::Result<OwnedFd> {
        Ok(rustix::fs::openat(&self.dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Kills all processes in it and below it at once.
    ///
    /// # Errors
    /// Of writing `cgroup.kill`: [`io::ErrorKind::NotFound`] on v1, and before Linux 5.14.
    pub fn kill_tree(&self) -> io::Result<()> {
        self.write("cgroup.kill", "1")
    }

    /// Sends SIGKILL to each process in it and below it, once; returns how many there were. Processes forked meanwhile
    /// may be missed.
    ///
    /// # Errors
    /// Of reading the members, or of killing one.
    pub fn kill_members(&self) -> io::Result<usize> {
        kill_members_below(self.dir.as_fd(), MAX_DEPTH)
    }

    /// Freezes or thaws its processes: v2, Linux 5.2 (`cgroup.freeze`), or the v1 freezer. [`Self::is_frozen`] tells
    /// when all have stopped. A thawed cgroup stays frozen while a parent is. SIGKILL ends processes in a frozen cgroup
    /// of v2, and in one of v1 as soon as it is thawed.
    ///
    /// # Errors
    /// Of writing the file; [`io::ErrorKind::NotFound`] if the hierarchy cannot freeze.
    pub fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        match (self.is_v2(), frozen) {
            (true, frozen) => self.write("cgroup.freeze", if frozen { "1" } else { "0" }),
            (false, true) => self.write("freezer.state", "FROZEN"),
            (false, false) => self.write("freezer.state", "THAWED"),
        }
    }

    /// Whether all its processes are frozen.
    ///
    /// # Errors
    /// Of reading the file; [`io::ErrorKind::NotFound`] if the hierarchy cannot freeze.
    pub fn is_frozen(&self) -> io::Result<bool> {
        match self.is_v2() {
            true => Ok(self.read("cgroup.events")?.lines().any(|line| line == "frozen 1")),
            false => Ok(self.read("freezer.state")?.trim_end() == "FROZEN"),
        }
    }

    /// Writes one of its files.
    ///
    /// # Errors
    /// Of open(2) or write(2).
    pub fn write(&self, file: &str, value: &str) -> io::Result<()> {
        write_at(self.dir.as_fd(), file, value)
    }

    /// Reads one of its files.
    ///
    /// # Errors
    /// Of open(2) or read(2).
    pub fn read(&self, file: &str) -> io::Result<String> {
        read_at(self.dir.as_fd(), file)
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path_of("").display().fmt(f)
    }
}

/// `a`, `a/b`, `a/b/c` of `a/b/c`.
fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| end).chain([path.len()]).filter_map(|end| path.get(..end))
}

/// The cgroups in a cgroup. One that is removed meanwhile is left out.
fn open_children(dir: BorrowedFd<'_>) -> rustix::io::Result<Vec<(CString, OwnedFd)>> {
    let mut children = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_type() != FileType::Directory || matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        match rustix::fs::openat(dir, entry.file_name(), DIRECTORY, Mode::empty()) {
            Ok(child) => children.push((entry.file_name().to_owned(), child)),
            Err(Errno::NOENT) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(children)
}

/// Removes the cgroups in a cgroup, deepest first. Those with processes stay.
fn remove_children(dir: BorrowedFd<'_>, depth: usize) -> rustix::io::Result<()> {
    for (name, child) in open_children(dir)? {
        if depth > 0 {
            remove_children(child.as_fd(), depth - 1)?;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::BUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether a file of a cgroup could not be used because the cgroup was removed: it has no files any more (ENOENT), and
/// those that are open fail (ENODEV).
#[must_use]
pub fn is_removed(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV))
}

fn has_members_below(dir: BorrowedFd<'_>, depth: usize) -> io::Result<bool> {
    if !parse_pids(&read_at(dir, "cgroup.procs")?).is_empty() {
        return Ok(true);
    }
    if depth > 0 {
        for (_, child) in open_children(dir)? {
            match has_members_below(child.as_fd(), depth - 1) {
                Ok(false) => {}
                // It was removed meanwhile.
                Err(error) if is_removed(&error) => {}
                found => return found,
            }
        }
    }
    Ok(false)
}

fn kill_members_below(dir: BorrowedFd<'_>, depth: usize) -> io::Result<usize> {
    let mut count = kill_members(dir)?;
    if depth > 0 {
        for (_, child) in open_children(dir)? {
            match kill_members_below(child.as_fd(), depth - 1) {
                Ok(more) => count += more,
                // It was removed meanwhile.
                Err(error) if is_removed(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(count)
}

/// Sends SIGKILL to each process in a cgroup, once; returns how many there were.
pub(super) fn kill_members(dir: BorrowedFd<'_>) -> io::Result<usize> {
    let members = parse_pids(&read_at(dir, "cgroup.procs")?);
    for pid in &members {
        let pidfd = match rustix::process::pidfd_open(*pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // It has exited; INVAL: a thread has the PID now.
            Err(Errno::SRCH | Errno::INVAL) => continue,
            Err(error) => return Err(error.into()),
        };
        // The PID may have been reused: what counts is that it is a member after the pidfd was opened.
        if parse_pids(&read_at(dir, "cgroup.procs")?).contains(pid) {
            match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(members.len())
}

/// The PIDs in the text of `cgroup.procs`. A process outside the reader's PID namespace is shown as 0.
pub(super) fn parse_pids(text: &str) -> Vec<Pid> {
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

pub(super) fn write_at(dir: BorrowedFd<'_>, file: &str, value: &str) -> io::Result<()> {
    let file = rustix::fs::openat(dir, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value.as_bytes())?;
    Ok(())
}

pub(super) fn read_at(dir: BorrowedFd<'_>, file: &str) -> io::Result<String> {
    let file = rustix::fs::openat(dir, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(std::fs::File::from(file))
}
