//! The pod's cgroups on cgroup v2, v1, and the hybrid of both, by descriptors that are opened before the supervisor
//! leaves the host's mount tree.
//!
//! | hierarchy | pod | app |
//! |---|---|---|
//! | v2 (alone) | `PARENT/UUID`, the supervisor in `PARENT/UUID/_supervisor` | `PARENT/UUID/APP` |
//! | v1 memory, cpu, cpuacct, pids, blkio | `PARENT/UUID` | `PARENT/UUID/APP` |
//! | v2 beside v1 (`unified`) | as v2, without controllers: to kill processes and confine devices | as v2 |
//!
//! libcontainer sees no hierarchy: it would parse the mount table 24 times, and it manages every cgroup that it sees.
//! Processes of apps join between their creation and their start. Moving a process is slow ([`crate::kernel_costs`])
//! and blocks the making of cgroups, so all cgroups are made first. A killed supervisor leaves empty directories below
//! `PARENT/UUID`, which the engine removes.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gantry_model::ErrorKind;
use gantry_model::spec::{DEFAULT_PIDS_LIMIT, Limits};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::failure::{Attempt, Result, failure};
use crate::kernel_costs::CgroupMove;
use crate::sys::{self, ForkedChild, SingleThreaded};

const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "blkio"];
/// The supervisor's own cgroup on v2. Names of apps have no underscore.
const SUPERVISOR: &str = "_supervisor";

/// A kind of hierarchy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// cgroup v2 with its controllers.
    Unified,
    /// cgroup v2 beside v1: the controllers are on v1.
    Tracking,
    /// One v1 controller (or the first of several mounted together).
    V1(&'static str),
}

struct Hierarchy {
    kind: Kind,
    root: OwnedFd,
    pod: OwnedFd,
    /// Whether the supervisor is in a cgroup of the pod, or is being moved there.
    has_supervisor: bool,
}

/// The cgroups of a pod.
pub(crate) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    /// `PARENT/UUID`, relative to a hierarchy's root.
    path: String,
    parent: String,
    /// The move of the supervisor on v2 while it takes place.
    moving: Option<CgroupMove>,
}

/// The cgroups of an app: a directory in each hierarchy.
pub(crate) struct AppCgroup {
    name: String,
    dirs: Vec<(Kind, OwnedFd)>,
}

impl Cgroups {
    /// Makes the pod's cgroups.
    pub(crate) fn make(parent: &str, pod: &str) -> Result<Self> {
        let parent = parent.trim_matches('/').to_owned();
        if parent.is_empty() || parent.split('/').any(|part| part.is_empty() || part == "." || part == "..") {
            return Err(failure(ErrorKind::Invalid, "the cgroup parent must be a path of at least one element"));
        }
        let path = format!("{parent}/{pod}");
        let mut hierarchies = Vec::new();
        for (kind, root) in mounted()? {
            let pod =
                make_below(&root, &parent, pod).attempt(|| format!("cannot make the cgroup {}", shown(kind, &path)))?;
            hierarchies.push(Hierarchy { kind, root, pod, has_supervisor: false });
        }
        if hierarchies.is_empty() {
            return Err(failure(ErrorKind::Unavailable, format!("no cgroup hierarchy is mounted below {ROOT}")));
        }
        let cgroups = Self { hierarchies, path, parent, moving: None };
        cgroups.enable_controllers();
        Ok(cgroups)
    }

    /// On v2 a cgroup has a controller only if all its ancestors enable it for their children. A controller that cannot
    /// be enabled is reported when a limit needs it.
    fn enable_controllers(&self) {
        for hierarchy in self.hierarchies.iter().filter(|h| h.kind == Kind::Unified) {
            let mut levels = vec![String::new()];
            for part in self.path.split('/') {
                let last = levels.last().map(String::as_str).unwrap_or_default();
                levels.push(if last.is_empty() { part.to_owned() } else { format!("{last}/{part}") });
            }
            for level in levels {
                let file = if level.is_empty() {
                    "cgroup.subtree_control".to_owned()
                } else {
                    format!("{level}/cgroup.subtree_control")
                };
                for controller in ["+memory", "+cpu", "+pids", "+io"] {
                    let _reported_with_the_limit = write(hierarchy.root.as_fd(), &file, controller);
                }
            }
        }
    }

    /// Starts moving this process out of the v2 cgroup that it was started in, so that the session or unit of the
    /// caller can end without it. The move takes place in the background until [`Self::finish_move`], and no cgroup can
    /// be made meanwhile.
    pub(crate) fn start_move(&mut self, thread: SingleThreaded) -> Result<()> {
        let mut v2_groups = Vec::new();
        for hierarchy in self.hierarchies.iter_mut().filter(|hierarchy| hierarchy.kind.is_v2()) {
            let what = || format!("cannot open the supervisor's cgroup below {}", shown(hierarchy.kind, &self.path));
            let dir = make_dir(&hierarchy.pod, SUPERVISOR).attempt(what)?;
            v2_groups.push(open_procs(&dir).attempt(what)?);
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
        let v1 = self.hierarchies.iter_mut().filter(|hierarchy| !hierarchy.kind.is_v2());
        for hierarchy in v1.filter(|hierarchy| !in_root(&own, hierarchy.kind)) {
            join_v1(&hierarchy.pod)
                .attempt(|| format!("cannot join the cgroup {}", shown(hierarchy.kind, &self.path)))?;
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
            if hierarchy.kind.is_v2() {
                v2_roots.extend(open_procs(&hierarchy.root));
            } else {
                let _tried_again_later = join_v1(&hierarchy.root);
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
        let pid = init.as_raw_nonzero().to_string();
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.kind.is_v2()) {
            write(hierarchy.pod.as_fd(), &format!("{SUPERVISOR}/cgroup.procs"), &pid)
                .attempt(|| "cannot move the pod's PID 1 to its cgroup")?;
        }
        Ok(())
    }

    /// Makes the cgroups of an app and sets its limits.
    pub(crate) fn app(&self, name: &str, limits: &Limits) -> Result<AppCgroup> {
        let mut dirs = Vec::with_capacity(self.hierarchies.len());
        for hierarchy in &self.hierarchies {
            let dir = make_dir(&hierarchy.pod, name).attempt(|| {
                format!("cannot make the cgroup {}", shown(hierarchy.kind, &format!("{}/{name}", self.path)))
            })?;
            dirs.push((hierarchy.kind, dir));
        }
        let group = AppCgroup { name: name.to_owned(), dirs };
        group.limit(limits)?;
        Ok(group)
    }

    /// Confines the devices that processes of the pod may use; returns whether the host has a way to.
    pub(crate) fn confine_devices(&self) -> bool {
        let unified = self.hierarchies.iter().find(|hierarchy| hierarchy.kind.is_v2());
        if let Some(hierarchy) = unified
            && crate::devices::attach(hierarchy.pod.as_fd()).is_ok()
        {
            return true;
        }
        crate::devices::confine_v1(&self.parent, &self.path).is_ok()
    }

    /// Removes an app's cgroups. One that is not empty yet (EBUSY) is left to the engine.
    pub(crate) fn remove(&self, app: &AppCgroup) {
        for hierarchy in &self.hierarchies {
            let _left_for_engine = rustix::fs::unlinkat(&hierarchy.pod, &app.name, AtFlags::REMOVEDIR);
        }
    }

    /// Removes the pod's cgroups after moving this process back to the root of each hierarchy. Those that are not empty
    /// are left to the engine.
    pub(crate) fn leave_and_remove(&mut self) {
        self.wait_for_move();
        for hierarchy in &self.hierarchies {
            if hierarchy.remove(&self.path) == Err(Errno::BUSY) && hierarchy.has_supervisor {
                let _left_for_engine = if hierarchy.kind.is_v2() {
                    write(hierarchy.root.as_fd(), "cgroup.procs", "0")
                } else {
                    join_v1(&hierarchy.root)
                };
                let _left_for_engine = hierarchy.remove(&self.path);
            }
            // It fails while other pods have cgroups there.
            let _in_use = rustix::fs::unlinkat(&hierarchy.root, &self.parent, AtFlags::REMOVEDIR);
        }
    }
}

impl Hierarchy {
    /// Removes the pod's cgroup and the supervisor's in it.
    fn remove(&self, path: &str) -> rustix::io::Result<()> {
        if self.has_supervisor {
            // If it is not empty, removing the parent fails as well.
            let _reported_below = rustix::fs::unlinkat(&self.pod, SUPERVISOR, AtFlags::REMOVEDIR);
        }
        rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)
    }
}

impl Kind {
    fn is_v2(self) -> bool {
        matches!(self, Self::Unified | Self::Tracking)
    }
}

impl AppCgroup {
    fn dir(&self, fits: impl Fn(Kind) -> bool) -> Option<&OwnedFd> {
        self.dirs.iter().find(|(kind, _)| fits(*kind)).map(|(_, dir)| dir)
    }

    /// Moves a process to the cgroups.
    pub(crate) fn add(&self, pid: Pid) -> Result<()> {
        let pid = pid.as_raw_nonzero().to_string();
        for (kind, dir) in &self.dirs {
            write(dir.as_fd(), "cgroup.procs", &pid)
                .attempt(|| format!("cannot move a process to the cgroup {}", shown(*kind, &self.name)))?;
        }
        Ok(())
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
        let v2 = self.dir(Kind::is_v2);
        let born = v2.map(|dir| sys::fork_into_cgroup(thread, dir.as_fd(), |process| run(process, true)));
        match born {
            Some(Ok(pid)) => Ok(pid),
            // clone3 fails if the filter of a container that gantry runs in denies it, and at the app's limit of
            // processes, which does not apply to a process that is moved.
            Some(Err(_)) | None => sys::fork(thread, 0, |process| run(process, false)),
        }
    }

    /// Moves this process, which has one thread, to the cgroups.
    fn join(&self, is_born_inside: bool) -> io::Result<()> {
        self.dirs.iter().try_for_each(|(kind, dir)| match kind.is_v2() {
            true if is_born_inside => Ok(()),
            true => write(dir.as_fd(), "cgroup.procs", "0"),
            false => join_v1(dir),
        })
    }

    fn limit(&self, limits: &Limits) -> Result<()> {
        let set = |controller: &'static str, v2: (&str, String), v1: (&str, String)| {
            let unified = self.dir(|kind| kind == Kind::Unified);
            let legacy = || self.dir(|kind| kind == Kind::V1(controller));
            let (dir, (file, value)) = match (unified, legacy()) {
                (Some(dir), _) => (dir, v2),
                (None, Some(dir)) => (dir, v1),
                (None, None) => {
                    return Err(failure(
                        ErrorKind::Unavailable,
                        format!(
                            "a {controller} limit was asked for and the {controller} cgroup controller is not mounted"
                        ),
                    ));
                }
            };
            match write(dir.as_fd(), file, &value) {
                // The cgroup lacks the controller's file: disabled at boot, or not enabled by an ancestor.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(failure(
                    ErrorKind::Unavailable,
                    format!("a {controller} limit was asked for and the {controller} cgroup controller is not enabled"),
                )),
                other => other.attempt(|| format!("cannot set {file} to {value}")),
            }
        };
        if let Some(bytes) = limits.memory {
            set("memory", ("memory.max", bytes.to_string()), ("memory.limit_in_bytes", bytes.to_string()))?;
            self.forbid_swap(bytes);
        }
        if let Some(milli) = limits.cpu_milli {
            let quota = cpu_quota(milli);
            set("cpu", ("cpu.max", format!("{quota} 100000")), ("cpu.cfs_quota_us", quota.to_string()))?;
        }
        if let Some(shares) = limits.cpu_shares {
            set("cpu", ("cpu.weight", weight(shares).to_string()), ("cpu.shares", shares.to_string()))?;
        }
        let pids = limits.pids.unwrap_or(DEFAULT_PIDS_LIMIT);
        if pids > 0 {
            let limited = set("pids", ("pids.max", pids.to_string()), ("pids.max", pids.to_string()));
            // The default limit is not required: a kernel without the controller runs the pod without it.
            if limits.pids.is_some() {
                limited?;
            }
        }
        Ok(())
    }

    /// Swap would otherwise extend the memory limit. Kernels without swap accounting lack the files.
    fn forbid_swap(&self, bytes: u64) {
        if let Some(dir) = self.dir(|kind| kind == Kind::Unified) {
            let _without_swap_accounting = write(dir.as_fd(), "memory.swap.max", "0");
        } else if let Some(dir) = self.dir(|kind| kind == Kind::V1("memory")) {
            let _without_swap_accounting = write(dir.as_fd(), "memory.memsw.limit_in_bytes", &bytes.to_string());
        }
    }

    /// How many processes of the app the OOM killer has killed.
    pub(crate) fn oom_kills(&self) -> u64 {
        let (file, dir) = match self.dir(|kind| kind == Kind::Unified) {
            Some(dir) => ("memory.events", Some(dir)),
            None => ("memory.oom_control", self.dir(|kind| kind == Kind::V1("memory"))),
        };
        let text = dir.and_then(|dir| read(dir, file).ok()).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Whether no process is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.dirs.first().is_none_or(|(_, dir)| read(dir, "cgroup.procs").is_ok_and(|text| text.is_empty()))
    }

    /// Kills every process in it: by `cgroup.kill` (v2, Linux 5.14), or else one by one until none is left.
    pub(crate) fn kill(&self) {
        if let Some(dir) = self.dir(Kind::is_v2)
            && write(dir.as_fd(), "cgroup.kill", "1").is_ok()
        {
            return;
        }
        for _ in 0..64 {
            let Some((_, dir)) = self.dirs.first() else { return };
            let Ok(text) = read(dir, "cgroup.procs") else { return };
            let pids: Vec<Pid> = text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect();
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                kill_member(dir, pid);
            }
        }
    }
}

/// Kills a member of a cgroup. The PID may have been reused, so the membership is checked after the pidfd was opened.
fn kill_member(dir: &OwnedFd, pid: Pid) {
    let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
    let number = pid.as_raw_nonzero().to_string();
    if read(dir, "cgroup.procs").is_ok_and(|text| text.lines().any(|line| line == number)) {
        // It fails only if the process has exited.
        let _already_ended = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
    }
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

/// The hierarchies at their conventional paths (those of systemd and docker), each once.
fn mounted() -> Result<Vec<(Kind, OwnedFd)>> {
    const CGROUP2: u64 = 0x6367_7270;
    let root = open_dir(ROOT).attempt(|| format!("cannot open {ROOT}"))?;
    let is_v2 = |dir: &OwnedFd| rustix::fs::fstatfs(dir).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(CGROUP2));
    if is_v2(&root) {
        return Ok(vec![(Kind::Unified, root)]);
    }
    let mut found: Vec<(Kind, OwnedFd)> = Vec::new();
    if let Ok(dir) = open_dir(&format!("{ROOT}/unified"))
        && is_v2(&dir)
    {
        found.push((Kind::Tracking, dir));
    }
    let mut devices = Vec::new();
    let own = rustix::fs::fstat(&root).attempt(|| format!("cannot stat {ROOT}"))?.st_dev;
    for controller in CONTROLLERS {
        let Ok(dir) = open_dir(&format!("{ROOT}/{controller}")) else { continue };
        let device = rustix::fs::fstat(&dir).attempt(|| format!("cannot stat {ROOT}/{controller}"))?.st_dev;
        if device != own && !devices.contains(&device) {
            devices.push(device);
            found.push((Kind::V1(controller), dir));
        }
    }
    Ok(found)
}

/// Whether the process of this `/proc/self/cgroup` is in the root cgroup of a v1 hierarchy.
fn in_root(own: &str, kind: Kind) -> bool {
    let Kind::V1(controller) = kind else { return false };
    own.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let names = fields.next().unwrap_or_default();
        names.split(',').any(|name| name == controller) && fields.next() == Some("/")
    })
}

/// Makes `PARENT/POD`. The end of another pod may remove an empty `PARENT` in between, hence the retries.
fn make_below(root: &OwnedFd, parent: &str, pod: &str) -> io::Result<OwnedFd> {
    for _ in 0..16 {
        let mut path = String::new();
        for part in parent.split('/') {
            path = if path.is_empty() { part.to_owned() } else { format!("{path}/{part}") };
            ignore_existing(rustix::fs::mkdirat(root, &path, Mode::from_raw_mode(0o755)))?;
        }
        match make_dir(root, &format!("{parent}/{pod}")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound))
}

fn make_dir(at: &OwnedFd, path: &str) -> io::Result<OwnedFd> {
    ignore_existing(rustix::fs::mkdirat(at, path, Mode::from_raw_mode(0o755)))?;
    Ok(rustix::fs::openat(at, path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn ignore_existing(result: rustix::io::Result<()>) -> io::Result<()> {
    match result {
        Err(rustix::io::Errno::EXIST) => Ok(()),
        // A parent was removed meanwhile: the caller's next step fails.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
}

/// Moves this process, which has one thread, to a v1 cgroup. A thread that moves itself through `tasks` need not wait
/// for a grace period.
fn join_v1(group: &OwnedFd) -> io::Result<()> {
    write(group.as_fd(), "tasks", "0")
}

fn open_procs(group: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(group, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

fn open_dir(path: &str) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

fn write(at: impl AsFd, file: &str, value: &str) -> io::Result<()> {
    let file = rustix::fs::openat(at, file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(&file, value.as_bytes())?;
    Ok(())
}

fn read(at: &OwnedFd, file: &str) -> io::Result<String> {
    let file = rustix::fs::openat(at, file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    io::read_to_string(std::fs::File::from(file))
}

fn shown(kind: Kind, path: &str) -> String {
    match kind {
        Kind::Unified => format!("{ROOT}/{path}"),
        Kind::Tracking => format!("{ROOT}/unified/{path}"),
        Kind::V1(controller) => format!("{ROOT}/{controller}/{path}"),
    }
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

    #[test]
    fn the_own_group_is_read_per_controller() {
        let own = "5:cpu,cpuacct:/\n4:memory:/session\n0::/x\n";
        assert!(in_root(own, Kind::V1("cpu")) && in_root(own, Kind::V1("cpuacct")));
        assert!(!in_root(own, Kind::V1("memory")) && !in_root(own, Kind::V1("pids")));
    }
}
