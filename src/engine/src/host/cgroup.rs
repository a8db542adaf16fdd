//! The cgroups of dead pods: kills the processes in them and removes them, in every hierarchy.
//!
//! A supervisor removes its apps' cgroups when they end; it cannot remove its own, and a killed supervisor removes
//! none. So finalizing a pod does it. Killed half-way, the next reconcile, `rm` or `gc` of the pod repeats it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gantry_host::cgroup::{self, Hierarchy};
use gantry_host::file_id::FileId;
use gantry_host::lock_holders::HeldLock;
use gantry_model::cgroup::{CgroupManager, CgroupParent};
use gantry_model::error::chain;
use gantry_model::{ErrorKind, PodId};
use gantry_store::Layout;

use crate::host::lock_holder::locked_dir;
use crate::host::process::Deadline;
use crate::{Engine, EngineError, info};

/// The supervisor's own cgroup below the pod's, on cgroup v2 alone.
const SUPERVISOR_CGROUP: &str = "_supervisor";
/// Exists while systemd is the service manager (sd_booted(3)).
const SYSTEMD_RUNS: &str = "/run/systemd/system";

impl Engine {
    /// The host's hierarchies, read once.
    ///
    /// # Errors
    /// They cannot be read, perhaps only this time: no descriptors are left.
    pub(crate) fn hierarchies(&self) -> Result<&[Hierarchy], EngineError> {
        if let Some(known) = self.hierarchies.get() {
            return Ok(known);
        }
        let failed = |error: io::Error| {
            EngineError::new(ErrorKind::of_io(&error), "cannot read the mounted cgroup hierarchies").caused_by(error)
        };
        let read = cgroup::mounted_hierarchies().map_err(failed)?;
        Ok(self.hierarchies.get_or_init(|| read))
    }

    /// The path of a pod's cgroup as its row records it; without a row, as its plan says.
    pub(crate) fn recorded_cgroup(&self, id: PodId) -> String {
        if let Ok(Some(row)) = self.store.pod(id) {
            return row.cgroup;
        }
        match self.plan(id) {
            Ok(plan) => plan.pod_cgroup(),
            // It never ran, or is damaged: the usual place.
            Err(_) => self.options.cgroup_parent.pod_path(&id.to_string()),
        }
    }

    /// Whether this host can place pods below a parent: scopes of systemd need cgroup v2 alone. Elsewhere systemd moves
    /// processes only in its own hierarchy, and the controllers are in others.
    ///
    /// # Errors
    /// The missing part of the host, and the remedy.
    pub(crate) fn check_cgroup_manager(&self, parent: &CgroupParent) -> Result<(), String> {
        if parent.manager() == CgroupManager::Cgroupfs {
            return Ok(());
        }
        if !Path::new(SYSTEMD_RUNS).exists() {
            return Err(format!(
                "pods in {parent} need systemd as the host's service manager: use --cgroup-manager=cgroupfs"
            ));
        }
        match info::cgroup_layout(self.hierarchies().map_err(|error| chain(&error))?) {
            "v2" => Ok(()),
            layout => Err(format!(
                "pods in {parent} need cgroup v2 alone, this host has the layout {layout}: use --cgroup-manager=cgroupfs"
            )),
        }
    }

    /// The existing directories of a pod's cgroup.
    ///
    /// # Errors
    /// The hierarchies cannot be read.
    pub(crate) fn pod_cgroups(&self, cgroup: &str) -> Result<Vec<PathBuf>, EngineError> {
        let dirs = self.hierarchies()?.iter().map(|hierarchy| dir_in(hierarchy, cgroup));
        Ok(dirs.filter(|path| path.exists()).collect())
    }

    /// Fails if a pod of this id runs from another data directory, of which this one is a copy. Its processes, cgroups
    /// and networks must not be touched. The caller holds the lock on the pod's directory here, not on that one.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`], with the other directory.
    pub(crate) fn check_runs_nowhere_else(&self, id: PodId, cgroup: &str) -> Result<(), EngineError> {
        let Some(other) = self.find_other_pod_dir(id, cgroup) else { return Ok(()) };
        let text = format!(
            "pod {id} runs from {}, and {} is in a copy of that data directory: stop the pod there first",
            other.display(),
            self.pod_dir(id).display()
        );
        Err(EngineError::new(ErrorKind::Refused, text))
    }

    /// The directory that the supervisor in the pod's cgroup has locked, unless it is the one of this data directory.
    fn find_other_pod_dir(&self, id: PodId, cgroup: &str) -> Option<PathBuf> {
        let own = FileId::of_path(&self.pod_dir(id)).ok().filter(|_| self.pod_dir(id).is_dir());
        // Without a directory here, the one that was moved out of this data directory may be found.
        let is_elsewhere = |path: &Path| own.is_some() || is_in_data_dir(path, id) && path != self.pod_dir(id);
        let is_other = |held: &HeldLock| Some(held.file) != own && is_elsewhere(&held.path);
        // A supervisor joins only some of the hierarchies of v1.
        self.hierarchies().ok()?.iter().find_map(|hierarchy| {
            let path = dir_in(hierarchy, cgroup);
            let mut pids = fs::read_to_string(path.join("cgroup.procs")).ok()?;
            pids.push_str(&fs::read_to_string(path.join(SUPERVISOR_CGROUP).join("cgroup.procs")).unwrap_or_default());
            pids.lines().filter_map(|pid| locked_dir(pid, id)).find(is_other).map(|held| held.path)
        })
    }

    /// Kills the processes in a dead pod's cgroups and removes them. The caller holds the pod's lock, so that no new
    /// process enters them.
    ///
    /// # Errors
    /// [`EngineError`] of the first that could not be removed; the others are removed nevertheless.
    pub(crate) fn remove_cgroups(&self, cgroup: &str) -> Result<(), EngineError> {
        let mut first = Ok(());
        // For all together: they have the same processes.
        let deadline = Deadline::after(self.timeouts.cgroups);
        for hierarchy in self.hierarchies()? {
            let path = dir_in(hierarchy, cgroup);
            if let Err(error) = cgroup::remove_tree(&path, deadline.left().unwrap_or_default()) {
                let kind = match error.kind() {
                    io::ErrorKind::ResourceBusy => ErrorKind::Busy,
                    _ => ErrorKind::of_io(&error),
                };
                let text = format!("cannot remove cgroup {}", path.display());
                first = first.and(Err(EngineError::new(kind, text).caused_by(error)));
            }
        }
        first
    }

    /// Removes the configured parent of the pods' cgroups if it is empty. Pods leave it, because making and removing it
    /// takes as long as their own.
    pub(crate) fn remove_empty_cgroup_parent(&self) {
        let parent = &self.options.cgroup_parent;
        if parent.manager() == CgroupManager::Cgroupfs {
            // Of no consequence: the next pod uses it, or the next command removes it.
            for hierarchy in self.hierarchies().unwrap_or_default() {
                let _absent_or_in_use = rustix::fs::rmdir(dir_in(hierarchy, parent.as_str()));
            }
        }
    }
}

/// Whether a path is that of a pod's directory in a data directory.
fn is_in_data_dir(path: &Path, id: PodId) -> bool {
    let layout = path.ancestors().nth(2).map(Layout::new);
    layout.is_some_and(|layout| layout.pod_dir(&id) == path && layout.db().exists())
}

/// The directory of a cgroup in a hierarchy.
fn dir_in(hierarchy: &Hierarchy, cgroup: &str) -> PathBuf {
    hierarchy.root.join(cgroup.trim_start_matches('/'))
}
