//! The processes that hold the lock on a pod directory.

use std::fs;
use std::path::Path;

use gantry_host::file_id::FileId;
use gantry_host::lock_holders::{HeldLock, held_locks};
use gantry_model::PodId;
use gantry_model::id::shown;

use crate::Engine;
use crate::host::process::{self, StoppedProcess};

/// A process that holds the lock on a pod directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockHolder {
    pub(crate) pid: u32,
    /// The name of its command, escaped.
    pub(crate) command: String,
    /// That it is stopped, if it is.
    pub(crate) stopped: Option<StoppedProcess>,
}

impl Engine {
    /// Another process that holds the lock on the directory of a pod, by a descriptor of its own or an inherited one.
    /// `None`: no process holds it now, or none can be examined.
    pub(crate) fn find_lock_holder(&self, id: PodId) -> Option<LockHolder> {
        let own = FileId::of_path(&self.pod_dir(id)).ok().filter(|_| self.has_pod_dir(id))?;
        let pids = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|pid| {
            *pid != std::process::id() && locked_dir(&pid.to_string(), id).is_some_and(|held| held.file == own)
        })
        .map(|pid| {
            let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            LockHolder { pid, command: shown(command.trim()), stopped: process::stopped(pid) }
        })
    }
}

/// The directory of a pod that a process has open and locked.
pub(crate) fn locked_dir(pid: &str, id: PodId) -> Option<HeldLock> {
    let process = Path::new("/proc").join(pid);
    held_locks(&process, id.to_string().as_ref()).find(|held| held.is_dir)
}
