//! The cgroups of dead pods: kills the processes in them and removes them, in every hierarchy.
//!
//! A supervisor removes its apps' cgroups when they end; it cannot remove its own, and a killed supervisor removes
//! none. So finalizing a pod does it. Killed half-way, the next reconcile, `rm` or `gc` of the pod repeats it.

use std::path::PathBuf;

use gantry_host::cgroup::{self, Hierarchy};
use gantry_model::{ErrorKind, PodId};

use crate::host::process::Deadline;
use crate::{Engine, EngineError};

impl Engine {
    /// The host's hierarchies, read once.
    pub(crate) fn hierarchies(&self) -> &[Hierarchy] {
        self.hierarchies.get_or_init(|| cgroup::mounted_hierarchies().unwrap_or_default())
    }

    /// The existing directories of a pod's cgroup.
    pub(crate) fn pod_cgroups(&self, id: PodId) -> Vec<PathBuf> {
        let name = id.to_string();
        let dir = |hierarchy: &Hierarchy| self.cgroup_parent_in(hierarchy).join(&name);
        self.hierarchies().iter().map(dir).filter(|path| path.exists()).collect()
    }

    pub(crate) fn cgroup_parent_in(&self, hierarchy: &Hierarchy) -> PathBuf {
        hierarchy.root.join(self.options.cgroup_parent.trim_start_matches('/'))
    }

    /// Kills the processes in a dead pod's cgroups and removes them, and the parent when it is empty. The caller holds
    /// the pod's lock, so that no new process enters them.
    ///
    /// # Errors
    /// [`EngineError`] of the first that could not be removed; the others are removed nevertheless.
    pub(crate) fn remove_cgroups(&self, id: PodId) -> Result<(), EngineError> {
        let name = id.to_string();
        let mut first = Ok(());
        // For all together: they have the same processes.
        let deadline = Deadline::after(self.timeouts.cgroups);
        for hierarchy in self.hierarchies() {
            let parent = self.cgroup_parent_in(hierarchy);
            let path = parent.join(&name);
            match cgroup::remove_tree(&path, deadline.left().unwrap_or_default()) {
                Ok(true) => {
                    let _while_other_pods_are_in_it = rustix::fs::rmdir(&parent);
                }
                Ok(false) => {}
                Err(error) => {
                    let kind = match error.kind() {
                        std::io::ErrorKind::ResourceBusy => ErrorKind::Busy,
                        _ => ErrorKind::of_io(&error),
                    };
                    let text = format!("cannot remove cgroup {}", path.display());
                    first = first.and(Err(EngineError::new(kind, text).caused_by(error)));
                }
            }
        }
        first
    }
}
