//! A cgroup in all hierarchies.

use std::io;
use std::sync::Arc;

use rustix::process::Pid;

use super::{Cgroup, Version, mounted_hierarchies};

/// Rounds of killing the members of a v1 cgroup, whose members can fork between two rounds.
const MAX_KILL_ROUNDS: usize = 64;

/// The same cgroup in all hierarchies that are used: v2 first, then v1.
#[derive(Debug)]
pub struct CgroupSet {
    cgroups: Vec<Cgroup>,
}

impl FromIterator<Cgroup> for CgroupSet {
    fn from_iter<I: IntoIterator<Item = Cgroup>>(cgroups: I) -> Self {
        let mut cgroups: Vec<Cgroup> = cgroups.into_iter().collect();
        cgroups.sort_by_key(|cgroup| !cgroup.is_v2());
        Self { cgroups }
    }
}

impl IntoIterator for CgroupSet {
    type Item = Cgroup;
    type IntoIter = std::vec::IntoIter<Cgroup>;

    fn into_iter(self) -> Self::IntoIter {
        self.cgroups.into_iter()
    }
}

impl CgroupSet {
    /// Opens the root cgroups of the v2 hierarchy and of the v1 hierarchies with one of these controllers.
    ///
    /// # Errors
    /// Of reading the mount table, or of opening a root that is not covered by another mount.
    pub fn open_roots(controllers: &[&str]) -> io::Result<Self> {
        let is_used = |hierarchy: &Arc<super::Hierarchy>| match hierarchy.version {
            Version::V2 => true,
            Version::V1 => controllers.iter().any(|name| hierarchy.has_v1_controller(name)),
        };
        let hierarchies = mounted_hierarchies()?.into_iter().map(Arc::new).filter(is_used);
        let open = |hierarchy: Arc<super::Hierarchy>| match hierarchy.open_root() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            result => Some(result),
        };
        hierarchies.filter_map(open).collect()
    }

    /// Opens the cgroup `below` this one in each hierarchy that has it.
    ///
    /// # Errors
    /// Of open(2).
    pub fn open(&self, below: &str) -> io::Result<Self> {
        let open = |cgroup: &Cgroup| match cgroup.open(below) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            result => Some(result),
        };
        self.iter().filter_map(open).collect()
    }

    /// The cgroup of each hierarchy.
    pub fn iter(&self) -> std::slice::Iter<'_, Cgroup> {
        self.cgroups.iter()
    }

    /// Adds the cgroup of another v1 hierarchy.
    pub fn push(&mut self, cgroup: Cgroup) {
        self.cgroups.push(cgroup);
    }

    /// Whether no hierarchy is used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cgroups.is_empty()
    }

    /// The cgroup of v2.
    #[must_use]
    pub fn v2(&self) -> Option<&Cgroup> {
        self.cgroups.first().filter(|cgroup| cgroup.is_v2())
    }

    /// The cgroup of the v1 hierarchy that has this controller, by its name on v1 (`blkio`, not `io`).
    #[must_use]
    pub fn v1(&self, controller: &str) -> Option<&Cgroup> {
        self.cgroups.iter().find(|cgroup| cgroup.hierarchy().has_v1_controller(controller))
    }

    /// The cgroup that has the files of a controller: that of v1 if v1 has the controller, else that of v2, where the
    /// files are absent unless all ancestors enable the controller. `None`: the controller is not mounted.
    #[must_use]
    pub fn with_controller(&self, controller: &str) -> Option<&Cgroup> {
        self.v1(controller).or_else(|| self.v2())
    }

    /// Moves a process, with all its threads, to the cgroup, as [`Cgroup::add`].
    ///
    /// # Errors
    /// Of the first hierarchy that fails, with the cgroup.
    pub fn add(&self, pid: Pid) -> Result<(), (&Cgroup, io::Error)> {
        self.iter().try_for_each(|cgroup| cgroup.add(pid).map_err(|error| (cgroup, error)))
    }

    /// Whether a process is in it or in a cgroup below it.
    ///
    /// # Errors
    /// Of reading its files.
    pub fn has_members(&self) -> io::Result<bool> {
        // The hierarchies have the same members, at this level or below it.
        self.cgroups.first().map_or(Ok(false), Cgroup::has_processes)
    }

    /// Kills every process in it and below it: at once where the kernel can (v2, Linux 5.14), or else one by one until
    /// none is left. Without v2, thaws it.
    ///
    /// # Errors
    /// Of reading the members, or of killing one.
    pub fn kill(&self) -> io::Result<()> {
        if self.v2().is_some_and(|cgroup| cgroup.kill_tree().is_ok()) {
            return Ok(());
        }
        let Some(cgroup) = self.cgroups.first() else { return Ok(()) };
        for _ in 0..MAX_KILL_ROUNDS {
            if cgroup.kill_members()? == 0 {
                break;
            }
            // SIGKILL takes effect when a v1 cgroup is thawed.
            if let Some(freezer) = self.v1("freezer") {
                freezer.set_frozen(false)?;
            }
        }
        Ok(())
    }

    /// Freezes or thaws its processes, as [`Cgroup::set_frozen`]: by v2 if it is mounted, or else by the v1 freezer.
    ///
    /// # Errors
    /// Of writing the file; [`io::ErrorKind::NotFound`] if no hierarchy can freeze.
    pub fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        self.freezer()?.set_frozen(frozen)
    }

    /// Whether all its processes are frozen.
    ///
    /// # Errors
    /// Of reading the file; [`io::ErrorKind::NotFound`] if no hierarchy can freeze.
    pub fn is_frozen(&self) -> io::Result<bool> {
        self.freezer()?.is_frozen()
    }

    fn freezer(&self) -> io::Result<&Cgroup> {
        self.v2().or_else(|| self.v1("freezer")).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}
