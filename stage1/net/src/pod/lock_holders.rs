//! The processes that hold a file lock (flock(2)), by a descriptor of their own or an inherited one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

/// The process name of supervisors, which run the plugins.
const SUPERVISOR: &str = "gantry-stage1";

/// Processes, each with a pidfd that was opened before the process was examined.
pub(super) struct LockHolders(Vec<(Pid, OwnedFd)>);

impl LockHolders {
    pub(super) fn kill(&self) {
        for (_, pidfd) in &self.0 {
            // It may have ended, or be stuck in the kernel: then the lock times out.
            let _may_have_ended = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        self.0.iter().map(|(pid, _)| pid.as_raw_nonzero().get()).collect()
    }

    /// Whether a supervisor is among them, which enforces the timeout of its plugins.
    pub(super) fn include_supervisor(&self) -> bool {
        let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.pids().iter().any(|pid| name(pid).trim() == SUPERVISOR)
    }
}

/// Finds all processes that hold the lock of this file, except this one.
pub(super) fn find_lock_holders(file: &OwnedFd) -> io::Result<LockHolders> {
    let inode = inode(file.as_fd(), Path::new(""))?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let process = entry?;
        let number = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw).filter(|pid| *pid != rustix::process::getpid()) else {
            continue;
        };
        // It may have ended in the meantime.
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if has_locked(&process.path(), &path, inode) {
            found.push((pid, pidfd));
        }
    }
    Ok(LockHolders(found))
}

/// Whether a process holds the lock by one of its descriptors; an open file alone does not count.
///
/// Only descriptors with the file's name are examined: stat(2) of others may block on a network file system.
fn has_locked(process: &Path, path: &Path, file: Inode) -> bool {
    let Ok(entries) = std::fs::read_dir(process.join("fd")) else { return false };
    entries.flatten().any(|entry| {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        // The path may differ in another mount namespace.
        let same = target.file_name() == path.file_name() && inode(CWD, &entry.path()).is_ok_and(|it| it == file);
        // proc_pid_fdinfo(5): the locks that belong to this open file description.
        let info = || std::fs::read_to_string(process.join("fdinfo").join(entry.file_name())).unwrap_or_default();
        same && info().lines().any(|line| line.starts_with("lock:"))
    })
}

/// Major and minor number of the device, and the inode number.
type Inode = (u32, u32, u64);

fn inode(at: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Inode> {
    let stat = rustix::fs::statx(at, path, AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}
