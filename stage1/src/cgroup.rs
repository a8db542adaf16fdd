//! The pod's control groups: on cgroup v2, on v1, and on the hybrid of both, by descriptors opened before the
//! supervisor leaves the host's mount tree.
//!
//! | hierarchy | pod | app |
//! |---|---|---|
//! | v2 (alone) | `PARENT/UUID`, the supervisor in `PARENT/UUID/_supervisor` | `PARENT/UUID/APP` |
//! | v1 memory, cpu, cpuacct, pids, blkio | `PARENT/UUID` | `PARENT/UUID/APP` |
//! | v2 beside v1 (`unified`) | as v2, without controllers: to kill and to confine devices | as v2 |
//!
//! libcontainer is shown no hierarchy at all: it would parse the mount table 24 times and cannot leave a group alone.
//! A process joins between its creation and its start. Moving a process makes the kernel wait for a grace period (some
//! 10 ms), once for moves in quick succession, and while it waits nobody can make a group; so every group is made
//! first, and a helper moves the supervisor while the supervisor works on. What a `kill -9` leaves are empty directories under
//! `PARENT/UUID`; the engine removes them by the pod's UUID.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use gantry_contract::plan::Limits;
use gantry_model::ErrorKind;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::failure::{Attempt, Result, failure};
use crate::sys::{self, Fork};

const ROOT: &str = "/sys/fs/cgroup";
const CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "blkio"];
/// Not an app's name: those have no underscore.
const SUPERVISOR: &str = "_supervisor";

/// What a hierarchy is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// cgroup v2 with its controllers.
    Unified,
    /// cgroup v2 beside v1, without controllers of use.
    Tracking,
    /// One v1 controller (or the first of several mounted together).
    V1(&'static str),
}

struct Hierarchy {
    kind: Kind,
    root: OwnedFd,
    pod: OwnedFd,
    /// Whether the supervisor was moved into a group of the pod.
    moved: bool,
}

/// The groups of a pod.
pub(crate) struct Cgroups {
    hierarchies: Vec<Hierarchy>,
    /// `PARENT/UUID`, relative to a hierarchy's root.
    path: String,
    parent: String,
    /// The process that moves this one, while it does.
    mover: Option<OwnedFd>,
}

/// The groups of one app: a directory in each hierarchy.
pub(crate) struct AppCgroup {
    name: String,
    dirs: Vec<(Kind, OwnedFd)>,
}

impl Cgroups {
    /// Makes the pod's groups.
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
            hierarchies.push(Hierarchy { kind, root, pod, moved: false });
        }
        if hierarchies.is_empty() {
            return Err(failure(ErrorKind::Unavailable, format!("no cgroup hierarchy is mounted below {ROOT}")));
        }
        let cgroups = Self { hierarchies, path, parent, mover: None };
        cgroups.enable_controllers();
        Ok(cgroups)
    }

    /// On v2 a controller reaches a group only when every ancestor passes it on. One that cannot be passed on shows when a limit asks for it.
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
                    let _ = write(hierarchy.root.as_fd(), &file, controller);
                }
            }
        }
    }

    /// Begins to move this process out of the group it was started in, so that the session or unit that started the pod
    /// can end without it. No group can be made until [`Self::end_move`].
    pub(crate) fn begin_move(&mut self) -> Result<()> {
        let own = std::fs::read_to_string("/proc/self/cgroup").attempt(|| "cannot read /proc/self/cgroup")?;
        let mut groups = Vec::new();
        for hierarchy in &mut self.hierarchies {
            let leaf = matches!(hierarchy.kind, Kind::Unified | Kind::Tracking);
            if !leaf && in_root(&own, hierarchy.kind) {
                continue;
            }
            let what = || format!("cannot open the supervisor's cgroup below {}", shown(hierarchy.kind, &self.path));
            let dir = if leaf { &make_dir(&hierarchy.pod, SUPERVISOR).attempt(what)? } else { &hierarchy.pod };
            groups.push(open_procs(dir).attempt(what)?);
            hierarchy.moved = true;
        }
        self.mover = Some(mover(&groups).attempt(|| "cannot start moving the supervisor to its cgroup")?);
        Ok(())
    }

    /// Begins to move this process back to the root of each hierarchy, for [`Self::leave_and_remove`] to wait less. What it
    /// does not do is done there.
    pub(crate) fn begin_leave(&mut self) {
        self.wait_for_mover();
        let moved = self.hierarchies.iter().filter(|hierarchy| hierarchy.moved);
        let groups: rustix::io::Result<Vec<_>> = moved.map(|hierarchy| open_procs(&hierarchy.root)).collect();
        self.mover = groups.ok().and_then(|groups| mover(&groups).ok());
    }

    fn wait_for_mover(&mut self) {
        if let Some(mover) = self.mover.take() {
            let id = rustix::process::WaitId::PidFd(mover.as_fd());
            let _ = rustix::process::waitid(id, rustix::process::WaitIdOptions::EXITED);
        }
    }

    /// Waits until the supervisor has been moved, and moves PID 1 after it, which may have been made before.
    pub(crate) fn end_move(&mut self, init: Pid) -> Result<()> {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let Some(mover) = self.mover.take() else { return Ok(()) };
        let status = waitid(WaitId::PidFd(mover.as_fd()), WaitIdOptions::EXITED)
            .attempt(|| "cannot wait for the move to the cgroup")?;
        if status.and_then(|status| status.exit_status()) != Some(0) {
            return Err(failure(
                ErrorKind::Internal,
                format!("cannot move the supervisor to the cgroup {}", self.path),
            ));
        }
        let pid = init.as_raw_nonzero().to_string();
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.moved) {
            let leaf = matches!(hierarchy.kind, Kind::Unified | Kind::Tracking);
            let file = if leaf { format!("{SUPERVISOR}/cgroup.procs") } else { "cgroup.procs".to_owned() };
            write(hierarchy.pod.as_fd(), &file, &pid).attempt(|| "cannot move the pod's PID 1 to its cgroup")?;
        }
        Ok(())
    }

    /// Makes the groups of an app and sets its limits.
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

    /// Confines the devices that processes of the pod may use; whether the kernel offers a way to.
    pub(crate) fn confine_devices(&self) -> bool {
        let unified = self.hierarchies.iter().find(|h| matches!(h.kind, Kind::Unified | Kind::Tracking));
        if let Some(hierarchy) = unified
            && crate::devices::attach(hierarchy.pod.as_fd()).is_ok()
        {
            return true;
        }
        crate::devices::confine_v1(&self.parent, &self.path).is_ok()
    }

    /// Removes an app's groups. They are empty, or this fails with EBUSY and the engine does it later.
    pub(crate) fn remove(&self, app: &AppCgroup) {
        for hierarchy in &self.hierarchies {
            let _ = rustix::fs::unlinkat(&hierarchy.pod, &app.name, AtFlags::REMOVEDIR);
        }
    }

    /// Removes the pod's groups as far as they are empty: this process moves back to the root of each hierarchy to
    /// make them so. The last thing a supervisor does.
    pub(crate) fn leave_and_remove(&mut self) {
        self.wait_for_mover();
        for hierarchy in &self.hierarchies {
            if hierarchy.remove(&self.path) == Err(Errno::BUSY) && hierarchy.moved {
                let _ = write(hierarchy.root.as_fd(), "cgroup.procs", "0");
                let _ = hierarchy.remove(&self.path);
            }
            let _ = rustix::fs::unlinkat(&hierarchy.root, &self.parent, AtFlags::REMOVEDIR);
        }
    }
}

impl Hierarchy {
    /// Removes the pod's group and the supervisor's in it.
    fn remove(&self, path: &str) -> rustix::io::Result<()> {
        if self.moved {
            let _ = rustix::fs::unlinkat(&self.pod, SUPERVISOR, AtFlags::REMOVEDIR);
        }
        rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR)
    }
}

/// A process that moves this one into these groups and ends; 0: it did.
fn mover(groups: &[OwnedFd]) -> io::Result<OwnedFd> {
    let pid = std::process::id().to_string();
    match sys::fork(0)? {
        Fork::Child => {
            let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            let moved = groups.iter().all(|group| rustix::io::write(group, pid.as_bytes()).is_ok());
            sys::exit_now(i32::from(!moved))
        }
        Fork::Parent(mover) => Ok(rustix::process::pidfd_open(mover, rustix::process::PidfdFlags::empty())?),
    }
}

impl AppCgroup {
    fn dir(&self, fits: impl Fn(Kind) -> bool) -> Option<&OwnedFd> {
        self.dirs.iter().find(|(kind, _)| fits(*kind)).map(|(_, dir)| dir)
    }

    /// Moves a process in.
    pub(crate) fn add(&self, pid: Pid) -> Result<()> {
        let pid = pid.as_raw_nonzero().to_string();
        for (kind, dir) in &self.dirs {
            write(dir.as_fd(), "cgroup.procs", &pid)
                .attempt(|| format!("cannot move a process to the cgroup {}", shown(*kind, &self.name)))?;
        }
        Ok(())
    }

    /// Moves this process in.
    pub(crate) fn join(&self) -> io::Result<()> {
        self.dirs.iter().try_for_each(|(_, dir)| write(dir.as_fd(), "cgroup.procs", "0"))
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
                // The group is there and the controller's file is not: switched off at boot, or not passed on.
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
        if let Some(pids) = limits.pids.or(limits.pids_default) {
            let limited = set("pids", ("pids.max", pids.to_string()), ("pids.max", pids.to_string()));
            // Nobody asked for the default: a kernel that cannot do it is no reason to fail.
            if limits.pids.is_some() {
                limited?;
            }
        }
        Ok(())
    }

    /// A memory limit that swap can exceed is none. Kernels without swap accounting lack the files.
    fn forbid_swap(&self, bytes: u64) {
        if let Some(dir) = self.dir(|kind| kind == Kind::Unified) {
            let _ = write(dir.as_fd(), "memory.swap.max", "0");
        } else if let Some(dir) = self.dir(|kind| kind == Kind::V1("memory")) {
            let _ = write(dir.as_fd(), "memory.memsw.limit_in_bytes", &bytes.to_string());
        }
    }

    /// How many times the kernel killed a process of the app for want of memory.
    pub(crate) fn oom_kills(&self) -> u64 {
        let (file, dir) = match self.dir(|kind| kind == Kind::Unified) {
            Some(dir) => ("memory.events", Some(dir)),
            None => ("memory.oom_control", self.dir(|kind| kind == Kind::V1("memory"))),
        };
        let text = dir.and_then(|dir| read(dir, file).ok()).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok()).unwrap_or(0)
    }

    /// Whether no process is left in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.dirs.first().is_none_or(|(_, dir)| read(dir, "cgroup.procs").is_ok_and(|text| text.is_empty()))
    }

    /// Sends SIGKILL to every process in it: at once where the kernel offers that, else one by one, again while some are left.
    pub(crate) fn kill(&self) {
        if let Some(dir) = self.dir(|kind| matches!(kind, Kind::Unified | Kind::Tracking))
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

/// By a descriptor opened before the membership is looked at again: the number may be another's by now.
fn kill_member(dir: &OwnedFd, pid: Pid) {
    let Ok(pidfd) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else { return };
    let number = pid.as_raw_nonzero().to_string();
    if read(dir, "cgroup.procs").is_ok_and(|text| text.lines().any(|line| line == number)) {
        let _ = rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL);
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

/// The hierarchies at their conventional places (systemd's and docker's), each once.
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

/// Whether `/proc/self/cgroup` says that the process is in the root group of a v1 hierarchy.
fn in_root(own: &str, kind: Kind) -> bool {
    let Kind::V1(controller) = kind else { return false };
    own.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let names = fields.next().unwrap_or_default();
        names.split(',').any(|name| name == controller) && fields.next() == Some("/")
    })
}

/// `PARENT/POD`, made. Another pod's end may remove an empty `PARENT` in between: then again.
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
        // A parent that vanished while an element was made: the caller's next step finds out.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        other => Ok(other?),
    }
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
    fn a_cpu_limit_below_the_kernels_minimum_is_raised_to_it() {
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
