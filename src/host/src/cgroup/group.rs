//! A cgroup in one hierarchy.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Hierarchy, Version};

/// Attempts at creating a cgroup whose parent is removed at the same time.
const MAX_CREATE_ATTEMPTS: usize = 16;

/// The depth to which cgroups in a cgroup are followed: each level takes a descriptor, of usually 1024, and a stack
/// frame. An app that is systemd cannot nest cgroups that deep (`cgroup.max.depth`); a privileged app can.
pub(super) const MAX_DEPTH: usize = 256;

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
        has_members_below(self.dir.as_fd())
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

    /// The processes in it and below it. Those outside this PID namespace have no PID and are left out.
    ///
    /// # Errors
    /// Of reading `cgroup.procs`.
    pub fn members(&self) -> io::Result<Vec<Pid>> {
        let mut members = Vec::new();
        visit_all(self.dir.as_fd(), |dir| {
            members.extend(read_members(dir)?);
            Ok(())
        })?;
        Ok(members)
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
        let mut count = 0;
        visit_all(self.dir.as_fd(), |dir| {
            count += kill_members(dir)?;
            Ok(())
        })?;
        Ok(count)
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

/// The cgroups in a cgroup, each opened when it is reached. One that is removed meanwhile is left out.
fn children(dir: BorrowedFd<'_>) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<(CString, OwnedFd)>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if entry.file_type() == FileType::Directory && !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            names.push(entry.file_name().to_owned());
        }
    }
    Ok(names.into_iter().filter_map(move |name| match rustix::fs::openat(dir, &name, DIRECTORY, Mode::empty()) {
        Ok(child) => Some(Ok((name, child))),
        Err(Errno::NOENT) => None,
        Err(error) => Some(Err(error)),
    }))
}

/// Removes the cgroups in a cgroup, deepest first. Those with processes stay. By descriptors, because names may add up
/// to paths that are too long for the kernel.
pub(super) fn remove_children(dir: BorrowedFd<'_>, depth: usize) -> rustix::io::Result<()> {
    for child in children(dir)? {
        let (name, child) = child?;
        if depth > 0 {
            remove_children(child.as_fd(), depth - 1)?;
        }
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT | Errno::BUSY | Errno::NOTEMPTY) => {}
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

/// Visits a cgroup and those below it, until `visit` breaks. A cgroup that is removed meanwhile is left out.
pub(super) fn visit_tree(
    dir: BorrowedFd<'_>,
    depth: usize,
    visit: &mut impl FnMut(BorrowedFd<'_>) -> io::Result<ControlFlow<()>>,
) -> io::Result<ControlFlow<()>> {
    if visit(dir)?.is_break() {
        return Ok(ControlFlow::Break(()));
    }
    if depth > 0 {
        for child in children(dir)? {
            match visit_tree(child?.1.as_fd(), depth - 1, visit) {
                Ok(ControlFlow::Continue(())) => {}
                Err(error) if is_removed(&error) => {}
                ended => return ended,
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// Visits a cgroup and all those below it.
pub(super) fn visit_all(
    top: BorrowedFd<'_>,
    mut visit: impl FnMut(BorrowedFd<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut visit = |dir: BorrowedFd<'_>| visit(dir).map(ControlFlow::Continue);
    let _never_breaks = visit_tree(top, MAX_DEPTH, &mut visit)?;
    Ok(())
}

pub(super) fn has_members_below(dir: BorrowedFd<'_>) -> io::Result<bool> {
    let mut find_member = |dir: BorrowedFd<'_>| {
        let is_empty = read_members(dir)?.is_empty();
        Ok(if is_empty { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    };
    Ok(visit_tree(dir, MAX_DEPTH, &mut find_member)?.is_break())
}

/// Sends SIGKILL to each process in a cgroup, once; returns how many there were.
pub(super) fn kill_members(dir: BorrowedFd<'_>) -> io::Result<usize> {
    let members = read_members(dir)?;
    for pid in &members {
        let pidfd = match rustix::process::pidfd_open(*pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // It has exited; INVAL: a thread has the PID now.
            Err(Errno::SRCH | Errno::INVAL) => continue,
            Err(error) => return Err(error.into()),
        };
        // The PID may have been reused: what counts is that it is a member after the pidfd was opened.
        if read_members(dir)?.contains(pid) {
            match rustix::process::pidfd_send_signal(&pidfd, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(members.len())
}

/// The processes in a cgroup. Those of a threaded cgroup are listed in the domain above it.
pub(super) fn read_members(dir: BorrowedFd<'_>) -> io::Result<Vec<Pid>> {
    match read_at(dir, "cgroup.procs") {
        Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => Ok(Vec::new()),
        text => Ok(parse_pids(&text?)),
    }
}

/// Whether cgroups in a cgroup are nested deeper than this.
pub(super) fn is_deeper_than(dir: BorrowedFd<'_>, depth: usize) -> rustix::io::Result<bool> {
    for child in children(dir)? {
        let (_, child) = child?;
        if depth == 0 || is_deeper_than(child.as_fd(), depth - 1)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The PIDs in the text of `cgroup.procs`. A process outside the reader's PID namespace is shown as 0.
fn parse_pids(text: &str) -> Vec<Pid> {
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
