//! The pod's cgroups on cgroup v2, v1, and the hybrid of both, by descriptors that are opened before the supervisor
//! leaves the host's mount tree.
//!
//! | hierarchy | pod | app |
//! |---|---|---|
//! | v2 (alone) | `PARENT/UUID`, the supervisor in `PARENT/UUID/_supervisor` | `PARENT/UUID/APP` |
//! | v1 memory, cpu, cpuacct, pids, blkio; freezer without v2 | `PARENT/UUID` | `PARENT/UUID/APP` |
//! | v1 cpuset, hugetlb, if a limit needs them or the app is to see it | `PARENT/UUID` | `PARENT/UUID/APP` |
//! | v2 (alone), in a scope of systemd | `SLICE/gantry-UUID.scope/UUID` | `SLICE/gantry-UUID.scope/UUID/APP` |
//! | v2 beside v1 (`unified`) | as v2, without controllers: to kill processes and confine devices | as v2 |
//!
//! Beside v1, the supervisor stays in the root cgroup of v2 if it was started there.
//!
//! Processes of apps are born in their cgroups ([`AppCgroup::fork_into`]). Moving a process is slow
//! ([`crate::kernel_costs`]) and blocks the making of cgroups, so all cgroups are made first. A killed
//! supervisor leaves empty directories below `PARENT/UUID`, which the engine removes.

pub(crate) mod delegation;
pub(crate) mod devices;
pub(crate) mod kernel_log;
pub(crate) mod limits;
pub(crate) mod oom;
pub(crate) mod updated_limits;
pub(crate) mod view;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use gantry_contract::plan::Plan;
use gantry_host::cgroup::{Cgroup, CgroupSet, ReadCounters as _, is_removed};
use gantry_model::ErrorKind;
use gantry_model::spec::Limits;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::cgroup::devices::{Device, DeviceConfinement};
use crate::cgroup::limits::{BlockDevices, IneffectiveLimit, LimitedCgroup, LimitsOwner};
use crate::cgroup::view::CgroupView;
use crate::failure::{Attempt, Result, failure};
use crate::kernel_costs::CgroupMove;
use crate::pod::systemd;
use crate::sys::{self, ForkedChild, SingleThreaded};

/// The v1 hierarchies that pods use, besides `devices`.
const V1_CONTROLLERS: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", "blkio"];
/// The controllers that are used only for such a limit ([`limits::extra_controllers`]).
const EXTRA_CONTROLLERS: [&str; 2] = ["cpuset", "hugetlb"];
/// The controllers that are enabled on v2, unless a v1 hierarchy has them.
const V2_CONTROLLERS: [(&str, &str); 4] = [("memory", "memory"), ("cpu", "cpu"), ("pids", "pids"), ("io", "blkio")];
/// How often the processes of an app that forks are moved to another hierarchy.
const MAX_JOIN_ROUNDS: usize = 16;
/// The supervisor's own cgroup on v2. Names of apps have no underscore.
const SUPERVISOR: &str = "_supervisor";

/// The pod's cgroup in a hierarchy.
struct PodCgroup {
    /// The hierarchy's root, or the cgroup of the pod's scope.
    root: Cgroup,
    pod: Cgroup,
    /// Whether the supervisor is in a cgroup of the pod, or is being moved there.
    has_supervisor: bool,
}

/// The cgroups of a pod.
pub(crate) struct Cgroups {
    /// One per hierarchy, that of v2 first.
    hierarchies: Vec<PodCgroup>,
    /// `PARENT/UUID`, relative to a hierarchy's root; in a scope, `UUID`.
    path: String,
    /// Whether the pod is in a scope of systemd, whose cgroup takes the place of the hierarchy's root.
    in_scope: bool,
    /// `/proc/PID/cgroup` of the supervisor when it was started.
    started_in: String,
    /// The move of the supervisor on v2 while it takes place.
    moving: Option<CgroupMove>,
    /// The roots of v1 hierarchies that no limit has needed yet.
    spare_roots: Vec<Cgroup>,
    /// The warnings that were logged.
    warned: RefCell<Vec<String>>,
}

/// The cgroups of an app.
pub(crate) struct AppCgroup {
    cgroups: CgroupSet,
    /// Where its processes are on v2 if it manages its cgroups itself.
    delegated: Option<Cgroup>,
}

impl Cgroups {
    /// Makes the pod's cgroups, with the controllers that its limits need besides those of every pod.
    pub(crate) fn make(plan: &Plan) -> Result<Self> {
        if let Some(scope) = plan.cgroup_parent.scope_path(&plan.pod) {
            return Self::make_in_scope(plan, scope.trim_start_matches('/'));
        }
        let path = plan.pod_cgroup().trim_start_matches('/').to_owned();
        let all = [&V1_CONTROLLERS[..], &EXTRA_CONTROLLERS, &["freezer"]].concat();
        let roots = CgroupSet::open_roots(&all).attempt(|| "cannot open the cgroup hierarchies")?;
        if roots.is_empty() {
            return Err(failure(ErrorKind::Unavailable, "no cgroup hierarchy is mounted"));
        }
        let v2_controllers: Vec<&str> =
            V2_CONTROLLERS.into_iter().filter(|(_, v1)| roots.v1(v1).is_none()).map(|(v2, _)| v2).collect();
        // v2 freezes by itself.
        let freezer = if roots.v2().is_none() { &["freezer"][..] } else { &[] };
        let has_any = |root: &Cgroup, names: &[&str]| names.iter().any(|name| root.hierarchy().has_v1_controller(name));
        let is_used = |root: &Cgroup| root.is_v2() || has_any(root, &V1_CONTROLLERS) || has_any(root, freezer);
        let (roots, mut spare_roots): (Vec<Cgroup>, Vec<Cgroup>) = roots.into_iter().partition(is_used);
        spare_roots.retain(|root| has_any(root, &EXTRA_CONTROLLERS));
        let mut hierarchies = Vec::new();
        for root in roots {
            let pod = create(&root, &path)?;
            if root.is_v2() {
                root.enable_controllers(&path, &v2_controllers);
            }
            hierarchies.push(PodCgroup { root, pod, has_supervisor: false });
        }
        let warned = RefCell::default();
        let started_in = std::fs::read_to_string("/proc/self/cgroup").attempt(|| "cannot read /proc/self/cgroup")?;
        let mut cgroups = Self { hierarchies, path, in_scope: false, started_in, moving: None, spare_roots, warned };
        cgroups.require_controllers(&limits::extra_controllers_of_plan(plan))?;
        Ok(cgroups)
    }

    /// Makes the pod's cgroup in a scope of systemd, in which this process is from now on.
    fn make_in_scope(plan: &Plan, scope: &str) -> Result<Self> {
        let roots = CgroupSet::open_roots(&V1_CONTROLLERS).attempt(|| "cannot open the cgroup hierarchies")?;
        let Some(v2) = roots.v2().filter(|_| roots.iter().all(Cgroup::is_v2)) else {
            let why = format!("pods in {} need cgroup v2 alone", plan.cgroup_parent);
            return Err(failure(ErrorKind::Unavailable, why));
        };
        systemd::start_scope(plan.cgroup_parent.as_str(), &plan.pod, scope)?;
        let root = v2.open(scope).attempt(|| format!("cannot open the cgroup {}", v2.path_of(scope).display()))?;
        let pod = create(&root, &plan.pod)?;
        // The controllers of a cgroup's children can be enabled only while no process is in it.
        let supervisor = create(&pod, SUPERVISOR)?;
        supervisor.join().attempt(|| format!("cannot join the cgroup {supervisor}"))?;
        root.enable_controllers(&plan.pod, &V2_CONTROLLERS.map(|(v2, _)| v2));
        let mut cgroups = Self {
            hierarchies: vec![PodCgroup { root, pod, has_supervisor: true }],
            path: plan.pod.clone(),
            in_scope: true,
            started_in: String::new(),
            moving: None,
            spare_roots: Vec::new(),
            warned: RefCell::default(),
        };
        cgroups.require_controllers(&limits::extra_controllers_of_plan(plan))?;
        Ok(cgroups)
    }

    /// Starts moving this process out of the v2 cgroup that it was started in, so that the session or unit of the
    /// caller can end without it. The move takes place in the background until [`Self::finish_move`]; meanwhile, no
    /// cgroup can be made, and no process can be forked into one.
    pub(crate) fn start_move(&mut self, thread: SingleThreaded) -> Result<()> {
        let mut v2_groups = Vec::new();
        // Beside v1, the cgroup has no controllers: there is nothing to leave the root cgroup for.
        let has_v1 = self.hierarchies.iter().any(|hierarchy| !hierarchy.root.is_v2());
        let stays = |root: &Cgroup| has_v1 && root.hierarchy().find_path(&self.started_in) == Some("/");
        // In a scope, it is in its cgroup already.
        let is_to_be_moved = |one: &&mut PodCgroup| one.root.is_v2() && !one.has_supervisor && !stays(&one.root);
        for hierarchy in self.hierarchies.iter_mut().filter(is_to_be_moved) {
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
        let v1 = self.hierarchies.iter_mut().filter(|hierarchy| !hierarchy.root.is_v2());
        for hierarchy in v1.filter(|hierarchy| hierarchy.root.hierarchy().find_path(&self.started_in) != Some("/")) {
            hierarchy.pod.join().attempt(|| format!("cannot join the cgroup {}", hierarchy.pod))?;
            hierarchy.has_supervisor = true;
        }
        Ok(())
    }

    /// Starts moving this process back to the root of each hierarchy, so that [`Self::leave_and_remove`] need not wait
    /// for it. A failure shows there.
    pub(crate) fn start_leaving(&mut self, thread: SingleThreaded) {
        self.wait_for_move();
        if self.in_scope {
            return;
        }
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

    /// Waits until the supervisor has been moved, and moves the pod's PID 1 after it, which was forked before.
    pub(crate) fn finish_move(&mut self, init: Option<Pid>) -> Result<()> {
        let Some(moving) = self.moving.take() else { return Ok(()) };
        if !moving.wait().attempt(|| "cannot wait for the move to the supervisor's cgroup")? {
            let why = format!("cannot move the supervisor to the cgroup {}/{SUPERVISOR}", self.path);
            return Err(failure(ErrorKind::Internal, why));
        }
        let Some(init) = init else { return Ok(()) };
        for hierarchy in self.hierarchies.iter().filter(|hierarchy| hierarchy.root.is_v2()) {
            let cgroup = create(&hierarchy.pod, SUPERVISOR)?;
            cgroup.add(init).attempt(|| format!("cannot move the pod's PID 1 to the cgroup {cgroup}"))?;
        }
        Ok(())
    }

    /// How often the pod's memory limit could not be kept; `kills` processes of an app were killed.
    pub(crate) fn memory_failures(&self, kills: u64) -> u64 {
        let of_v1 = self.hierarchies.iter().find(|one| one.pod.hierarchy().has_v1_controller("memory"));
        let with_memory = of_v1.or_else(|| self.hierarchies.iter().find(|one| one.pod.is_v2()));
        with_memory.and_then(|one| one.pod.memory_failures(kills).ok()).unwrap_or(0)
    }

    /// Whether memory is limited by cgroup v2.
    pub(crate) fn has_v2_memory(&self) -> bool {
        !self.hierarchies.iter().any(|one| one.pod.hierarchy().has_v1_controller("memory"))
    }

    /// Makes the cgroups of an app. Its own limits follow when its process is made, which they must not apply to.
    pub(crate) fn app(&self, name: &str) -> Result<AppCgroup> {
        let cgroups = self.hierarchies.iter().map(|hierarchy| create(&hierarchy.pod, name)).collect::<Result<_>>()?;
        Ok(AppCgroup { cgroups, delegated: None })
    }

    /// Logs limits without effect, each cause once.
    pub(crate) fn warn(&self, ineffective: &[IneffectiveLimit]) {
        self.warn_once(limits::warnings(ineffective));
    }

    /// Logs warnings, each once.
    fn warn_once(&self, warnings: Vec<String>) {
        let mut warned = self.warned.borrow_mut();
        for warning in warnings {
            if !warned.contains(&warning) {
                tracing::warn!("{warning}");
                warned.push(warning);
            }
        }
    }

    /// The warnings that were logged.
    pub(crate) fn warnings(&self) -> Vec<String> {
        self.warned.borrow().clone()
    }

    /// The cgroups of the pod.
    pub(crate) fn open_pod(&self) -> Result<CgroupSet> {
        self.hierarchies.iter().map(|hierarchy| create(&hierarchy.root, &self.path)).collect()
    }

    /// Sets the limits of the new pod, or changes those that are set. Returns the limits without effect.
    pub(crate) fn set_pod_limits(
        &self,
        old: Option<&Limits>,
        new: &Limits,
        devices: &BlockDevices,
    ) -> Result<Vec<IneffectiveLimit>> {
        if new.is_empty() && old.is_none_or(Limits::is_empty) {
            return Ok(Vec::new());
        }
        let cgroups = self.open_pod()?;
        let limited = LimitedCgroup { cgroups: &cgroups, owner: LimitsOwner::Pod, devices };
        match old {
            None => limited.set(new),
            Some(old) => limited.change(old, new),
        }
    }

    /// Makes the pod's cgroup in the hierarchies of these controllers, if it is not there yet. Those of apps that exist
    /// follow by [`Self::extend_app`].
    pub(crate) fn require_controllers(&mut self, controllers: &[&str]) -> Result<()> {
        for controller in controllers {
            if self.hierarchies.iter().any(|known| known.root.hierarchy().has_v1_controller(controller)) {
                continue;
            }
            let has_controller = |root: &Cgroup| root.hierarchy().has_v1_controller(controller);
            if let Some(at) = self.spare_roots.iter().position(has_controller) {
                let pod = create(&self.spare_roots[at], &self.path)?;
                let root = self.spare_roots.swap_remove(at);
                self.hierarchies.push(PodCgroup { root, pod, has_supervisor: false });
            } else if let Some(v2) = self.hierarchies.iter().find(|known| known.root.is_v2()) {
                v2.root.enable_controllers(&self.path, &[controller]);
            }
        }
        Ok(())
    }

    /// Makes the pod's cgroup in the v1 hierarchy of cpuset for an app with limits by which programs size themselves:
    /// Java (until 25) looks at none of them unless it finds this hierarchy, too.
    pub(crate) fn require_view(&mut self, limits: &Limits) -> Result<()> {
        let is_v1 = self.spare_roots.iter().any(|root| root.hierarchy().has_v1_controller("cpuset"));
        if is_v1 && (limits.memory.is_some() || limits.cpu_bandwidth().is_some()) {
            self.require_controllers(&["cpuset"])?;
        }
        Ok(())
    }

    /// Makes the cgroups of an app in the hierarchies that it is not in yet, and moves its processes there.
    pub(crate) fn extend_app(&self, name: &str, app: &mut AppCgroup) -> Result<()> {
        for hierarchy in &self.hierarchies {
            if app.cgroups.iter().all(|known| known.hierarchy() != hierarchy.root.hierarchy()) {
                app.join_hierarchy(create(&hierarchy.pod, name)?)?;
            }
        }
        Ok(())
    }

    /// Confines the devices that processes of the pod may use to the default ones and these; `None`: the host has no
    /// way to.
    pub(crate) fn confine_devices(&self, given: &[Device]) -> Option<DeviceConfinement> {
        let v2 = self.v2().map(|pod| DeviceConfinement::attach(pod.as_fd(), given));
        let v2 = match v2 {
            Some(Ok(confinement)) => return Some(confinement),
            Some(Err(error)) => format!("the kernel refuses the program for cgroup v2: {error}"),
            None => "cgroup v2 is not mounted".to_owned(),
        };
        let v1 = match DeviceConfinement::join_v1(&self.path, given) {
            Ok((confinement, warnings)) => {
                self.warn_once(warnings);
                return Some(confinement);
            }
            Err(error) => error,
        };
        let warning = format!("the devices of the pod cannot be confined: {v2}; cgroup v1: {v1}");
        tracing::warn!("{warning}");
        if !given.is_empty() {
            self.warned.borrow_mut().push(warning);
        }
        None
    }

    /// Allows the processes of the pod more devices; `all` are the former ones and the new ones.
    pub(crate) fn extend_devices(&self, confinement: &mut DeviceConfinement, all: &[Device]) -> Result<()> {
        let extended = confinement.extend(self.v2().map(|pod| pod.as_fd()), all);
        let warnings = extended.attempt(|| "cannot allow the pod more devices")?;
        self.warn_once(warnings);
        Ok(())
    }

    /// Denies the processes of the pod the devices of `former` that are not in `left`.
    pub(crate) fn restrict_devices(
        &self,
        confinement: &mut DeviceConfinement,
        former: &[Device],
        left: &[Device],
    ) -> io::Result<()> {
        confinement.restrict(self.v2().map(|pod| pod.as_fd()), former, left)
    }

    /// The pod's cgroup of v2.
    fn v2(&self) -> Option<&Cgroup> {
        self.hierarchies.iter().find(|hierarchy| hierarchy.root.is_v2()).map(|hierarchy| &hierarchy.pod)
    }

    /// Removes an app's cgroups; returns whether all are removed. One that is not empty yet (EBUSY) is left, at last to
    /// the engine.
    pub(crate) fn remove(&self, app: &str) -> bool {
        let removed = self.hierarchies.iter().map(|hierarchy| hierarchy.pod.remove_tree(app));
        removed.fold(true, |all, removed| all & matches!(removed, Ok(()) | Err(Errno::NOENT)))
    }

    /// Removes the pod's cgroups after moving this process back to the root of each hierarchy. Those that are not empty
    /// are left to the engine. Their parent stays for the next pod. From a scope, the process must not move away: the
    /// scope ends with its last process, and systemd removes its cgroups.
    pub(crate) fn leave_and_remove(&mut self) {
        self.wait_for_move();
        if self.in_scope {
            return;
        }
        for hierarchy in &self.hierarchies {
            if hierarchy.remove(&self.path) == Err(Errno::BUSY) && hierarchy.has_supervisor {
                let _left_for_engine = hierarchy.root.join();
                let _left_for_engine = hierarchy.remove(&self.path);
            }
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
    /// Confines the devices that the app may use to the default ones and its own, by cgroup v2 alone; returns whether
    /// the host has a way to.
    pub(crate) fn confine_devices(&self, given: &[Device]) -> bool {
        self.cgroups.v2().is_some_and(|cgroup| DeviceConfinement::attach(cgroup.as_fd(), given).is_ok())
    }

    /// Delegates a part of it to the app, which has no processes yet.
    pub(crate) fn delegate(&mut self) -> Result<()> {
        self.delegated = Some(delegation::delegate(self.cgroups.v2())?);
        Ok(())
    }

    /// The cgroups that its processes start in.
    fn of_processes(&self) -> impl Iterator<Item = &Cgroup> {
        self.cgroups.iter().map(|cgroup| match &self.delegated {
            Some(delegated) if cgroup.is_v2() => delegated,
            _ => cgroup,
        })
    }

    /// Forks a process into the cgroups and runs `child` there. On v2 it is born in its cgroup, and on v1 it moves
    /// itself, so that it does not wait for a grace period ([`crate::kernel_costs`]). `child` gets the error of moving.
    pub(crate) fn fork_into(
        &self,
        thread: SingleThreaded,
        child: impl FnOnce(ForkedChild, io::Result<()>) -> Infallible,
    ) -> io::Result<Pid> {
        self.fork(thread, self.delegated.as_ref().or(self.cgroups.v2()), child)
    }

    /// As [`Self::fork_into`]; on v2, the new process is in the cgroup of `main`, the main process of an app that can
    /// move its processes.
    pub(crate) fn fork_beside(
        &self,
        thread: SingleThreaded,
        main: Pid,
        child: impl FnOnce(ForkedChild, io::Result<()>) -> Infallible,
    ) -> io::Result<Pid> {
        let root = self.delegated.as_ref().or(self.cgroups.v2());
        let beside = root.map_or(Ok(None), |root| delegation::open_cgroup_of(main, root))?;
        self.fork(thread, beside.as_ref().or(root), child)
    }

    /// Whether the app itself moves its processes between cgroups of v2.
    pub(crate) fn is_delegated(&self) -> bool {
        self.delegated.is_some()
    }

    fn fork(
        &self,
        thread: SingleThreaded,
        v2: Option<&Cgroup>,
        child: impl FnOnce(ForkedChild, io::Result<()>) -> Infallible,
    ) -> io::Result<Pid> {
        // The first attempt must not use up the closure.
        let child = Cell::new(Some(child));
        let run = |process: ForkedChild, is_born_inside: bool| match child.take() {
            Some(child) => child(process, self.join(v2.filter(|_| !is_born_inside))),
            None => sys::exit_now(127),
        };
        let born = v2.map(|cgroup| sys::fork_into_cgroup(thread, cgroup.as_fd(), |process| run(process, true)));
        match born {
            Some(Ok(pid)) => Ok(pid),
            // clone3 fails if the filter of a container that gantry runs in denies it, and at the app's limit of
            // processes, which does not apply to a process that is moved.
            Some(Err(_)) | None => sys::fork(thread, 0, |process| run(process, false)),
        }
    }

    /// Moves this process, which has one thread, to the cgroups of v1, and to this one of v2.
    fn join(&self, v2: Option<&Cgroup>) -> io::Result<()> {
        let v1 = self.cgroups.iter().filter(|cgroup| !cgroup.is_v2());
        v2.into_iter().chain(v1).try_for_each(Cgroup::join)
    }

    /// The app's view of them.
    pub(crate) fn view(&self, is_writable: bool) -> CgroupView {
        CgroupView::from_cgroups(&self.cgroups, is_writable)
    }

    /// Sets the limits of new cgroups, which have none; returns those that have no effect on this host.
    pub(crate) fn set_limits(&self, limits: &Limits, devices: &BlockDevices) -> Result<Vec<IneffectiveLimit>> {
        self.limited(devices).set(limits)
    }

    /// Replaces the limits that are set by others. After a failure, the former ones are set again.
    pub(crate) fn change_limits(
        &self,
        old: &Limits,
        new: &Limits,
        devices: &BlockDevices,
    ) -> Result<Vec<IneffectiveLimit>> {
        self.limited(devices).change(old, new)
    }

    /// On v1, gives an app without a list of processors or memory nodes the pod's. Fails silently while the pod's own
    /// does not include it; the caller repeats it after the pod's has changed.
    pub(crate) fn follow_cpuset(&self, own: &Limits, pod: &Limits) {
        let Some(cpuset) = self.cgroups.v1("cpuset") else { return };
        for (file, own, pod) in
            [("cpuset.cpus", &own.cpuset_cpus, &pod.cpuset_cpus), ("cpuset.mems", &own.cpuset_mems, &pod.cpuset_mems)]
        {
            let of_parent = || cpuset.read(&format!("../{file}")).unwrap_or_default().trim_end().to_owned();
            if own.is_none() {
                let list = pod.as_ref().map_or_else(of_parent, ToString::to_string);
                let _wider_than_the_pod = cpuset.write(file, &list);
            }
        }
    }

    /// The cgroups, for their limits.
    pub(crate) fn limited<'a>(&'a self, devices: &'a BlockDevices) -> LimitedCgroup<'a> {
        LimitedCgroup { cgroups: &self.cgroups, owner: LimitsOwner::App, devices }
    }

    /// Joins another hierarchy, with all its processes. Each move may wait for a grace period
    /// ([`crate::kernel_costs`]).
    fn join_hierarchy(&mut self, cgroup: Cgroup) -> Result<()> {
        for _ in 0..MAX_JOIN_ROUNDS {
            let members = self.cgroups.iter().next().map_or(Ok(Vec::new()), Cgroup::members);
            let members = members.attempt(|| "cannot list the processes of the app")?;
            let inside = cgroup.members().attempt(|| format!("cannot list the processes in the cgroup {cgroup}"))?;
            let outside: Vec<Pid> = members.into_iter().filter(|pid| !inside.contains(pid)).collect();
            if outside.is_empty() {
                self.cgroups.push(cgroup);
                return Ok(());
            }
            for pid in outside {
                match cgroup.add(pid) {
                    // It has exited.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    result => result.attempt(|| format!("cannot move a process to the cgroup {cgroup}"))?,
                }
            }
        }
        Err(failure(ErrorKind::Busy, format!("cannot move the app to the cgroup {cgroup}: it forks all the time")))
    }

    /// Its cgroup in the hierarchy with the memory controller.
    pub(crate) fn memory(&self) -> Option<&Cgroup> {
        self.cgroups.with_controller("memory")
    }

    /// How often its memory limit could not be kept; `kills` of its processes were killed.
    pub(crate) fn memory_failures(&self, kills: u64) -> u64 {
        self.memory().and_then(|cgroup| cgroup.memory_failures(kills).ok()).unwrap_or(0)
    }

    /// How many processes of the app the OOM killer has killed.
    pub(crate) fn oom_kills(&self) -> u64 {
        self.cgroups.memory_events().ok().flatten().unwrap_or_default().oom_kills
    }

    /// Its processes.
    pub(crate) fn members(&self) -> Vec<Pid> {
        self.of_processes().next().and_then(|cgroup| cgroup.members().ok()).unwrap_or_default()
    }

    /// Opens its processes, except those that exit meanwhile.
    pub(crate) fn open_members(&self) -> Vec<OwnedFd> {
        self.members().into_iter().filter_map(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).collect()
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
        let populated = match (&self.delegated, self.cgroups.v2()) {
            (Some(_), Some(v2)) => v2.is_populated(),
            _ => self.cgroups.has_members(),
        };
        match populated {
            Ok(has_members) => !has_members,
            Err(error) => is_removed(&error),
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
    let what = || format!("cannot make the cgroup {}", parent.path_of(path).display());
    let cgroup = parent.create(path).attempt(what)?;
    if parent.hierarchy().has_v1_controller("cpuset") {
        fill_cpuset(parent, path).attempt(what)?;
    }
    Ok(cgroup)
}

/// Gives each new cgroup on the path the processors and memory nodes of its parent: on v1 it has none, and no process
/// can be in it.
fn fill_cpuset(parent: &Cgroup, path: &str) -> io::Result<()> {
    let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
    for (dir, name) in ends.flat_map(|end| [(&path[..end], "cpuset.cpus"), (&path[..end], "cpuset.mems")]) {
        let file = format!("{dir}/{name}");
        if parent.read(&file)?.trim().is_empty() {
            parent.write(&file, parent.read(&format!("{dir}/../{name}"))?.trim())?;
        }
    }
    Ok(())
}
