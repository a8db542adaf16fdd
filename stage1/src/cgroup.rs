//! The pod's cgroups on cgroup v2, v1, and the hybrid of both, by descriptors that are opened before the supervisor
//! leaves the host's mount tree.
//!
//! | hierarchy | pod | app |
//! |---|---|---|
//! | v2 (alone) | `PARENT/UUID`, the supervisor in `PARENT/UUID/_supervisor` | `PARENT/UUID/APP` |
//! | v1 memory, cpu, cpuacct, pids, blkio; freezer without v2 | `PARENT/UUID` | `PARENT/UUID/APP` |
//! | v2 beside v1 (`unified`) | as v2, without controllers: to kill processes and confine devices | as v2 |
//!
//! libcontainer sees no hierarchy: it would parse the mount table 24 times, and it manages every cgroup that it sees.
//! Processes of apps join between their creation and their start. Moving a process is slow ([`crate::kernel_costs`])
//! and blocks the making of cgroups, so all cgroups are made first. A killed supervisor leaves empty directories below
//! `PARENT/UUID`, which the engine removes.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use gantry_host::cgroup::{Cgroup, CgroupSet};
use gantry_model::ErrorKind;
use gantry_model::spec::{DEFAULT_PIDS_LIMIT, Limits};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::devices::{self, Device};
use crate::failure::{Attempt, Result, failure};
use crate::kernel_costs::CgroupMove;
use crate::sys::{self, ForkedChild, SingleThreaded};

/// The v1 hierarchies that pods use, besides `devices`.
const V1_CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "blkio"];
/// The controllers that are enabled on v2, unless a v1 hierarchy has them.
const V2_CONTROLLERS: [(&str, &str); 4] = [("memory", "memory"), ("cpu", "cpu"), ("pids", "pids"), ("io", "blkio")];
/// The supervisor's own cgroup on v2. Names of apps have no underscore.
const SUPERVISOR: &str = "_supervisor";

/// The pod's cgroup in a hierarchy.
struct PodCgroup {
    root: Cgroup,
    pod: Cgroup,
    /// Whether the supervisor is in a cgroup of the pod, or is being moved there.
    has_supervisor: bool,
}

/// The cgroups of a pod.
pub(crate) struct Cgroups {
    /// One per hierarchy, that of v2 first.
    hierarchies: Vec<PodCgroup>,
    /// `PARENT/UUID`, relative to a hierarchy's root.
    path: String,
    parent: String,
    /// The move of the supervisor on v2 while it takes place.
    moving: Option<CgroupMove>,
}

/// The cgroups of an app.
pub(crate) struct AppCgroup {
    cgroups: CgroupSet,
}

impl Cgroups {
    /// Makes the pod's cgroups.
    pub(crate) fn make(parent: &str, pod: &str) -> Result<Self> {
        let parent = parent.trim_matches('/').to_owned();
        if parent.is_empty() || parent.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
            return Err(failure(ErrorKind::Invalid, "the cgroup parent must be a path of at least one element"));
        }
        let path = format!("{parent}/{pod}");
        let what = || "cannot open the cgroup hierarchies";
        let mut roots = CgroupSet::open_roots(&V1_CONTROLLERS).attempt(what)?;
        if roots.v2().is_none() {
            // v2 freezes by itself.
            let all: Vec<&str> = V1_CONTROLLERS.into_iter().chain(["freezer"]).collect();
            roots = CgroupSet::open_roots(&all).attempt(what)?;
        }
        if roots.is_empty() {
            return Err(failure(ErrorKind::Unavailable, "no cgroup hierarchy is mounted"));
        }
        let v2_controllers: Vec<&str> =
            V2_CONTROLLERS.into_iter().filter(|(_, v1)| roots.v1(v1).is_none()).map(|(v2, _)| v2).collect();
        let mut hierarchies = Vec::new();
        for root in roots {
            let pod = create(&root, &path)?;
            if root.is_v2() {
                root.enable_controllers(&path, &v2_controllers);
            }
            hierarchies.push(PodCgroup { root, pod, has_supervisor: false });
        }
        Ok(Self { hierarchies, path, parent, moving: None })
    }

    /// Starts moving this process out of the v2 cgroup that it was started in, so that the session or unit of the
    /// caller can end without it. The move takes place in the background until [`Self::finish_move`], and no cgroup can
    /// be made meanwhile.
    pub(crate) fn start_move(&mut self, thread: SingleThreaded) -> Result<()> {
        let mut v2_groups = Vec::new();
        for hierarchy in self.hierarchies.iter_mut().filter(|hierarchy| hierarchy.root.is_v2()) {
            let cgroup = create(&hierarchy.pod, SUPERVISOR)?;
            v2_groups.push(cgroup.open_procs().attempt(|| format!("cannot open the cgroup {cgroup}"))?);
            hierarchy.has_supervisor = true;
        }
        if !v2_groups.is_empty() {
            let moving = CgroupMove::start(thread, &v2_groups);
            self.moving = Some(moving.attempt(|| "cannot start moving the supervisor to its cgroup")?);
        }
        Ok(())
    }

    /// Joins the pod's v1 cgroups, unless this process is in the root cgroup. Processes forked before stay outside:
    /// after a failed start, the engine kills everything in the pod's cgroups, and the process that attaches the pod to
    /// its networks, which is forked before, may still have a bridge to remove.
    pub(crate) fn join_v1_groups(&mut self) -> Result<()> {
        let own = std::fs::read_to_string("/proc/self/cgroup").attempt(|| "cannot read /proc/self/cgroup")?;
        let v1 = self.hierarchies.iter_mut().filter(|hierarchy| !hierarchy.root.is_v2());
        for hierarchy in v1.filter(|hierarchy| hierarchy.root.hierarchy().find_path(&own) != Some("/")) {
            hierarchy.pod.join().attempt(|| format!("cannot join the cgroup {}", hierarchy.pod))?;
            hierarchy.has_supervisor = true;
        }
        Ok(())
    }

    /// Starts moving this process back to the root of each hierarchy, so that [`Self::leave_and_remove`] need not wait
    /// for it. A failure shows there.
    pub(crate) fn start_leaving(&mut self, thread: SingleThreaded) {
        self.wait_for_move();
        let mut v2_roots = Vec::new();
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.has_supervisor) {
            if hierarchy.root.is_v2() {
                v2_roots.extend(hierarchy.root.open_procs());
            } else {
                let _tried_again_later = hierarchy.root.join();
            }
        }
        if !v2_roots.is_empty() {
            self.moving = CgroupMove::start(thread, &v2_roots).ok();
        }
    }

    fn wait_for_move(&mut self) {
        if let Some(moving) = self.moving.take() {
            // Whether it has moved shows when the cgroup is removed.
            let _moved = moving.wait();
        }
    }

    /// Waits until the supervisor has been moved, and moves PID 1 after it, which may have been forked before.
    pub(crate) fn finish_move(&mut self, init: Pid) -> Result<()> {
        let Some(moving) = self.moving.take() else { return Ok(()) };
        if !moving.wait().attempt(|| "cannot wait for the move to the supervisor's cgroup")? {
            let why = format!("cannot move the supervisor to the cgroup {}/{SUPERVISOR}", self.path);
            return Err(failure(ErrorKind::Internal, why));
        }
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.root.is_v2()) {
            let cgroup = create(&hierarchy.pod, SUPERVISOR)?;
            cgroup.add(init).attempt(|| format!("cannot move the pod's PID 1 to the cgroup {cgroup}"))?;
        }
        Ok(())
    }

    /// Makes the cgroups of an app and sets its limits.
    pub(crate) fn app(&self, name: &str, limits: &Limits) -> Result<AppCgroup> {
        let cgroups = self.hierarchies.iter().map(|hierarchy| create(&hierarchy.pod, name)).collect::<Result<_>>()?;
        let app = AppCgroup { cgroups };
        app.set_limits(limits)?;
        Ok(app)
    }

    /// Confines the devices that processes of the pod may use; returns whether the host has a way to.
    /// On top of the default devices, they may use `given`.
    pub(crate) fn confine_devices(&self, given: &[Device]) -> bool {
        let v2 = self.hierarchies.iter().find(|hierarchy| hierarchy.root.is_v2());
        v2.is_some_and(|hierarchy| devices::attach(hierarchy.pod.as_fd(), given).is_ok())
            || devices::confine_v1(&self.path, given).is_ok()
    }

    /// Removes an app's cgroups; returns whether all are removed. One that is not empty yet (EBUSY) is left, at last to
    /// the engine.
    pub(crate) fn remove(&self, app: &str) -> bool {
        let removed = self.hierarchies.iter().map(|hierarchy| hierarchy.pod.remove(app));
        removed.fold(true, |all, removed| all & matches!(removed, Ok(()) | Err(Errno::NOENT)))
    }

    /// Removes the pod's cgroups after moving this process back to the root of each hierarchy. Those that are not empty
    /// are left to the engine.
    pub(crate) fn leave_and_remove(&mut self) {
        self.wait_for_move();
        for hierarchy in &self.hierarchies {
            if hierarchy.remove(&self.path) == Err(Errno::BUSY) && hierarchy.has_supervisor {
                let _left_for_engine = hierarchy.root.join();
                let _left_for_engine = hierarchy.remove(&self.path);
            }
            // It fails while other pods have cgroups there.
            let _in_use = hierarchy.root.remove(&self.parent);
        }
    }
}

impl PodCgroup {
    /// Removes the pod's cgroup and the supervisor's in it.
    fn remove(&self, path: &str) -> rustix::io::Result<()> {
        if self.has_supervisor {
            // If it is not empty, removing the parent fails as well.
            let _reported_below = self.pod.remove(SUPERVISOR);
        }
        self.root.remove(path)
    }
}

impl AppCgroup {
    /// Moves a process to the cgroups.
    pub(crate) fn add(&self, pid: Pid) -> Result<()> {
        let moved = self.cgroups.add(pid);
        moved.or_else(|(cgroup, error)| Err(error).attempt(|| format!("cannot move a process to the cgroup {cgroup}")))
    }

    /// Forks a process into the cgroups and runs `child` there. On v2 it is born in its cgroup, and on v1 it moves
    /// itself, so that it does not wait for a grace period ([`crate::kernel_costs`]). `child` gets the error of moving.
    pub(crate) fn fork_into(
        &self,
        thread: SingleThreaded,
        child: impl FnOnce(ForkedChild, io::Result<()>) -> Infallible,
    ) -> io::Result<Pid> {
        // The first attempt must not use up the closure.
        let child = Cell::new(Some(child));
        let run = |process: ForkedChild, is_born_inside: bool| match child.take() {
            Some(child) => child(process, self.join(is_born_inside)),
            None => sys::exit_now(127),
        };
        let v2 = self.cgroups.v2();
        let born = v2.map(|cgroup| sys::fork_into_cgroup(thread, cgroup.as_fd(), |process| run(process, true)));
        match born {
            Some(Ok(pid)) => Ok(pid),
            // clone3 fails if the filter of a container that gantry runs in denies it, and at the app's limit of
            // processes, which does not apply to a process that is moved.
            Some(Err(_)) | None => sys::fork(thread, 0, |process| run(process, false)),
        }
    }

    /// Moves this process, which has one thread, to the cgroups.
    fn join(&self, is_born_inside: bool) -> io::Result<()> {
        let mut cgroups = self.cgroups.iter().filter(|cgroup| !(is_born_inside && cgroup.is_v2()));
        cgroups.try_for_each(Cgroup::join)
    }

    /// Sets the limits; those that are not given stay. The app may be running.
    pub(crate) fn set_limits(&self, limits: &Limits) -> Result<()> {
        if let Some(bytes) = limits.memory {
            self.set_memory_limit(bytes, limits.memory_swap)?;
        }
        if let Some(milli) = limits.cpu_milli {
            let quota = cpu_quota(milli);
            self.set("cpu", ("cpu.cfs_quota_us", &quota.to_string()), ("cpu.max", &format!("{quota} 100000")))?;
        }
        if let Some(shares) = limits.cpu_shares {
            self.set("cpu", ("cpu.shares", &shares.to_string()), ("cpu.weight", &weight(shares).to_string()))?;
        }
        let pids = match limits.pids.unwrap_or(DEFAULT_PIDS_LIMIT) {
            0 => "max".to_owned(),
            pids => pids.to_string(),
        };
        let max = ("pids.max", &*pids);
        let limited = self.set("pids", max, max);
        // Neither the default limit nor its absence is required: a kernel without the controller runs the pod anyway.
        if limits.pids.is_some_and(|pids| pids > 0) {
            limited?;
        }
        Ok(())
    }

    /// Sets the limit of memory, and that of memory and swap together (-1: none). Without the latter, swap is
    /// forbidden: it would extend the memory limit. Kernels without swap accounting lack its files.
    fn set_memory_limit(&self, bytes: u64, with_swap: Option<i64>) -> Result<()> {
        let limit = bytes.to_string();
        let (v1, v2) = match with_swap.map(u64::try_from) {
            None => (limit.clone(), "0".to_owned()),
            Some(Ok(total)) => (total.to_string(), total.saturating_sub(bytes).to_string()),
            Some(Err(_)) => ("-1".to_owned(), "max".to_owned()),
        };
        let limit_swap = || match self.cgroups.with_controller("memory") {
            Some(cgroup) if cgroup.is_v2() => cgroup.write("memory.swap.max", &v2),
            Some(cgroup) => cgroup.write("memory.memsw.limit_in_bytes", &v1),
            None => Ok(()),
        };
        // On v1, the kernel keeps the limit of memory below that of memory and swap together: a limit that is raised
        // comes after the other, one that is lowered before it.
        let raised = limit_swap().is_ok();
        self.set("memory", ("memory.limit_in_bytes", &limit), ("memory.max", &limit))?;
        if !raised
            && let Err(error) = limit_swap()
            && with_swap.is_some()
        {
            tracing::warn!("--memory-swap has no effect: this kernel does not account for swap ({error})");
        }
        Ok(())
    }

    /// Sets a limit: the file and value of v1 and of v2.
    fn set(&self, controller: &str, v1: (&str, &str), v2: (&str, &str)) -> Result<()> {
        let unavailable = |state| {
            let text =
                format!("a {controller} limit was asked for and the {controller} cgroup controller is not {state}");
            Err(failure(ErrorKind::Unavailable, text))
        };
        let Some(cgroup) = self.cgroups.with_controller(controller) else { return unavailable("mounted") };
        let (file, value) = if cgroup.is_v2() { v2 } else { v1 };
        match cgroup.write(file, value) {
            // The cgroup lacks the controller's file: disabled at boot, or not enabled by an ancestor.
            Err(error) if error.kind() == io::ErrorKind::NotFound => unavailable("enabled"),
            result => result.attempt(|| format!("cannot set {file} to {value}")),
        }
    }

    /// How many processes of the app the OOM killer has killed.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.cgroups.memory_events().ok().flatten().unwrap_or_default().oom_kills
    }

    /// Opens its processes, except those that exit meanwhile.
    pub(crate) fn open_members(&self) -> Vec<OwnedFd> {
        let members = self.cgroups.iter().next().and_then(|cgroup| cgroup.members().ok()).unwrap_or_default();
        members.into_iter().filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
    }

    /// Freezes its processes, or thaws them. Either may take a moment.
    pub(crate) fn set_frozen(&self, frozen: bool) -> io::Result<()> {
        self.cgroups.set_frozen(frozen)
    }

    /// Whether its processes are frozen.
    pub(crate) fn is_frozen(&self) -> io::Result<bool> {
        // Reading the state of the v1 freezer completes the change from FREEZING to FROZEN.
        self.cgroups.is_frozen()
    }

    /// Whether no process is in it.
    pub(crate) fn is_empty(&self) -> bool {
        match self.cgroups.has_members() {
            Ok(has_members) => !has_members,
            // It was removed.
            Err(error) => error.raw_os_error() == Some(libc::ENODEV),
        }
    }

    /// Kills every process in it.
    pub(crate) fn kill(&self) {
        // The end of the pod's PID 1 kills what is left.
        let _left_for_pid_1 = self.cgroups.kill();
    }
}

/// Creates the cgroup `path` below another.
fn create(parent: &Cgroup, path: &str) -> Result<Cgroup> {
    parent.create(path).attempt(|| format!("cannot make the cgroup {}", parent.path_of(path).display()))
}

/// A CPU limit in thousandths of a processor as microseconds per period of 100 ms. The kernel's minimum is 1 ms
/// (`min_cfs_quota_period`); it refuses less with EINVAL.
fn cpu_quota(milli: u64) -> u64 {
    const MIN_QUOTA: u64 = 1000;
    milli.saturating_mul(100).max(MIN_QUOTA)
}

/// cgroup v1 shares (2 to 262144) as a v2 weight (1 to 10000), as the kubelet and runc convert them.
fn weight(shares: u64) -> u64 {
    1 + (shares.clamp(2, 262_144) - 2) * 9999 / 262_142
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_become_weights() {
        for (shares, want) in [(2, 1), (1024, 39), (262_144, 10_000), (0, 1)] {
            assert_eq!(weight(shares), want, "{shares}");
        }
    }

    #[test]
    fn cpu_limits_are_raised_to_the_kernel_minimum() {
        for (milli, want) in [(1, 1000), (9, 1000), (10, 1000), (11, 1100), (2500, 250_000), (u64::MAX, u64::MAX)] {
            assert_eq!(cpu_quota(milli), want, "{milli}m");
        }
    }
}
