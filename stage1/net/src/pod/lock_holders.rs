//! The processes that hold a file lock (flock(2)), by a descriptor of their own or an inherited one.

use std::io;
use std::os::fd::OwnedFd;

use gantry_host::file_id::FileId;
use gantry_host::lock_holders::held_locks;
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
    let locked = FileId::of_file(file)?;
    let path = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file)))?;
    let name = path.file_name().unwrap_or_default();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let process = entry?;
        let number = process.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = number.and_then(Pid::from_raw).filter(|pid| *pid != rustix::process::getpid()) else {
            continue;
        };
        // It may have ended in the meantime.
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else { continue };
        if held_locks(&process.path(), name).any(|held| held.file == locked) {
            found.push((pid, pidfd));
        }
    }
    Ok(LockHolders(found))
}
