//! Who has a lock: the processes that have the descriptor by which a file is locked (flock(2)), inherited or their own.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

/// What a supervisor calls itself, and who else runs plugins.
const STARTER: &str = "gantry-stage1";

/// Processes, each with a descriptor from before it was looked at.
pub(super) struct Holders(Vec<(Pid, OwnedFd)>);

impl Holders {
    pub(super) fn kill(&self) {
        for (_, pidfd) in &self.0 {
            // Gone meanwhile, or not to be killed: then the deadline comes.
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    pub(super) fn pids(&self) -> Vec<i32> {
        self.0.iter().map(|(pid, _)| pid.as_raw_nonzero().get()).collect()
    }

    /// Whether one of them runs plugins, and sees to it that they end.
    pub(super) fn have_starter(&self) -> bool {
        let name = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        self.pids().iter().any(|pid| name(pid).trim() == STARTER)
    }
}

/// Everybody but this process who has the file locked.
pub(super) fn holders(file: &OwnedFd) -> io::Result<Holders> {
    let inode = inode(file.as_fd(), Path::new(""))?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))?;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let process = entry?;
        let number = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw).filter(|pid| *pid != rustix::process::getpid()) else {
            continue;
        };
        // What ended meanwhile has nothing.
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if has_locked(&process.path(), &path, inode) {
            found.push((pid, pidfd));
        }
    }
    Ok(Holders(found))
}

/// Whether a process has the file locked by one of its descriptors; to have it open only is no matter.
///
/// Only descriptors are looked at that have the file's name: to look at others may take as long as a network file system likes.
fn has_locked(process: &Path, path: &Path, file: Inode) -> bool {
    let Ok(entries) = std::fs::read_dir(process.join("fd")) else { return false };
    entries.flatten().any(|entry| {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        // Of another mount namespace it may have another path.
        let same = target.file_name() == path.file_name() && inode(CWD, &entry.path()).is_ok_and(|it| it == file);
        // proc_pid_fdinfo(5): the locks that belong to this open file description.
        let info = || std::fs::read_to_string(process.join("fdinfo").join(entry.file_name())).unwrap_or_default();
        same && info().lines().any(|line| line.starts_with("lock:"))
    })
}

/// Major and minor number of the device, and the inode's.
type Inode = (u32, u32, u64);

fn inode(at: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Inode> {
    let stat = rustix::fs::statx(at, path, AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}
