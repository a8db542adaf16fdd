//! The processes that hold the lock on a pod directory. The lock does not name its holders: they are found by their
//! descriptors.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use gantry_model::PodId;
use gantry_model::id::shown;

use crate::Engine;
use crate::host::process;

/// A process that holds the lock on a pod directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LockHolder {
    pub(crate) pid: u32,
    /// The name of its command, escaped.
    pub(crate) command: String,
    /// Whether a signal has stopped it.
    pub(crate) is_stopped: bool,
}

impl Engine {
    /// Another process that holds the lock on the directory of a pod, by a descriptor of its own or an inherited one.
    /// `None`: no process holds it now, or none can be examined.
    pub(crate) fn find_lock_holder(&self, id: PodId) -> Option<LockHolder> {
        let own = identity(&fs::symlink_metadata(self.pod_dir(id)).ok()?);
        let pids = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|pid| {
            *pid != std::process::id() && locked_dir(&pid.to_string(), id).is_some_and(|(_, locked)| locked == own)
        })
        .map(|pid| {
            let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            LockHolder { pid, command: shown(command.trim()), is_stopped: process::is_stopped(pid) }
        })
    }
}

/// Device and inode.
type Identity = (u64, u64);

/// Identifies a file under any path.
pub(crate) fn identity(metadata: &fs::Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

/// The directory of a pod that a process has open and locked: its path, device and inode.
pub(crate) fn locked_dir(pid: &str, id: PodId) -> Option<(PathBuf, Identity)> {
    let process = Path::new("/proc").join(pid);
    let descriptors = fs::read_dir(process.join("fd")).ok()?;
    descriptors.flatten().find_map(|descriptor| {
        let path = fs::read_link(descriptor.path()).ok()?;
        if path.file_name()?.to_str()? != id.to_string() {
            return None;
        }
        // The directory itself, whatever its path is now. It is not opened: a FIFO of an app may have such a name.
        let metadata = fs::metadata(descriptor.path()).ok().filter(fs::Metadata::is_dir)?;
        // proc_pid_fdinfo(5): the locks that belong to this open file description.
        let info = fs::read_to_string(process.join("fdinfo").join(descriptor.file_name())).ok()?;
        info.lines().any(|line| line.starts_with("lock:")).then(|| (path, identity(&metadata)))
    })
}
