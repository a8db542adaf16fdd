//! From a plan to a running pod: a straight list of steps. Whatever fails, what was made before is unmade.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use gantry_contract::plan::{self, Hosts, Net, Plan, Resolv};
use gantry_contract::up::{Ready, Started};
use gantry_model::ErrorKind;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::CapabilitySet;

use crate::app::{App, Input, Output, Source};
use crate::cgroup::{AppCgroup, Cgroups};
use crate::confine::{self, Command, Confinement};
use crate::failure::{Attempt, OfApp, Result, failure};
use crate::init::{self, Init};
use crate::jail::{self, Jail};
use crate::journal::now;
use crate::launcher::{self, Created, Stdio, reap_all};
use crate::logs::{Log, Pending, Stream};
use crate::network::{self, Network};
use crate::pace::Pace;
use crate::user::{self, Ids};
use crate::{etc, root, seccomp, spec, terminal, volumes};

/// A pod whose apps run.
pub(crate) struct Pod {
    /// What was asked for.
    pub(crate) plan: Plan,
    /// Descriptors of the pod's place.
    pub(crate) jail: Jail,
    /// Its groups.
    pub(crate) cgroups: Cgroups,
    /// Its networks, if it has some of its own.
    pub(crate) network: Option<Network>,
    /// Its PID 1.
    pub(crate) init: Init,
    /// Its apps.
    pub(crate) apps: Vec<App>,
}

/// Runs the plan. `lock` is the pod directory; apps' terminals get this size (rows, columns).
pub(crate) fn launch(plan: Plan, lock: &OwnedFd, terminal_size: Option<(u16, u16)>) -> Result<Pod> {
    jail::check_kernel()?;
    if plan.version > gantry_contract::VERSION {
        return Err(failure(
            ErrorKind::Unavailable,
            format!(
                "this supervisor understands plans up to version {}, the plan is of version {}",
                gantry_contract::VERSION,
                plan.version
            ),
        ));
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).attempt(|| "cannot become not dumpable")?;
    let cgroups = Cgroups::make(&plan.cgroup_parent, &plan.pod)?;
    let mut starting = Starting { cgroups, network: None, init: None, groups: Vec::new(), terminal_size };
    match starting.run(&plan, lock) {
        Ok((jail, apps)) => match starting.init {
            Some(init) => Ok(Pod { plan, jail, cgroups: starting.cgroups, network: starting.network, init, apps }),
            None => Err(failure(ErrorKind::Internal, "the pod runs without a PID 1")),
        },
        Err(why) => {
            starting.undo();
            Err(why)
        }
    }
}

/// What was made so far.
struct Starting {
    cgroups: Cgroups,
    network: Option<Network>,
    init: Option<Init>,
    groups: Vec<String>,
    terminal_size: Option<(u16, u16)>,
}

impl Starting {
    fn run(&mut self, plan: &Plan, lock: &OwnedFd) -> Result<(Jail, Vec<App>)> {
        let devices_confined = self.cgroups.confine_devices();
        let mut groups = Vec::with_capacity(plan.apps.len());
        for app in &plan.apps {
            self.groups.push(app.name.clone());
            groups.push(self.cgroups.app(&app.name, &app.limits).of_app(&app.name)?);
        }
        self.cgroups.begin_move()?;
        // While the move is waited for by its helper, and while plugins can still be seen.
        self.network = network::enter(plan, lock)?;
        let of_host = of_host(plan, self.network.is_some());
        let etc = self.first_etc(plan, &of_host)?;
        if let Some(network) = &mut self.network {
            network.left_home();
        }
        let jail = jail::enter(plan)?;
        let init = self.init.insert(init::start()?).pid;
        let mut waiting = Vec::with_capacity(plan.apps.len());
        for (app, cgroup) in plan.apps.iter().zip(groups) {
            let init = init.as_raw_nonzero().get();
            let terminal_size = self.terminal_size;
            let making = Making { plan, jail: &jail, app, devices_confined, init, etc: &etc, terminal_size };
            waiting.push(making.create(cgroup).of_app(&app.name)?);
        }
        // One right after the other: the kernel waits for the first only.
        self.cgroups.end_move(init)?;
        for app in &waiting {
            app.cgroup.add(app.created.pid).of_app(&app.plan.name)?;
        }
        self.wait_for_networks(plan, &of_host, &mut waiting)?;
        // All of them before any is executed, which could have the right to trace the others.
        for app in &mut waiting {
            app.created.lock_down().of_app(&app.plan.name)?;
        }
        let mut apps = Vec::with_capacity(waiting.len());
        for app in waiting {
            let name = app.plan.name.clone();
            apps.push(app.start().of_app(&name)?);
        }
        Ok((jail, apps))
    }

    /// What the apps' /etc says while they are made; of pending networks, as far as that can be changed later.
    fn first_etc(&mut self, plan: &Plan, of_host: &etc::OfHost) -> Result<Vec<etc::File>> {
        if let Some(network) = self.network.as_mut().filter(|_| plan.apps.iter().any(copies_etc)) {
            network.wait()?;
        }
        let mut etc = etc_files(plan, of_host, self.network.as_ref())?;
        if self.network.as_ref().is_some_and(Network::is_pending) {
            // Whether there will be one is not known yet, and the image's own may have to stay.
            etc.retain(|file| file.name != etc::RESOLV);
        }
        Ok(etc)
    }

    /// Waits for pending networks, and has the /etc of the apps say what came of it.
    fn wait_for_networks(&mut self, plan: &Plan, of_host: &etc::OfHost, apps: &mut [Waiting]) -> Result<()> {
        let Some(network) = self.network.as_mut().filter(|network| network.is_pending()) else { return Ok(()) };
        network.wait()?;
        let etc = etc_files(plan, of_host, Some(network))?;
        apps.iter_mut().try_for_each(|app| app.etc.write(&etc, &app.root, &app.plan.mounts).of_app(&app.plan.name))
    }

    /// Ends what was started, takes its networks away and removes the groups. The mounts and namespaces go with this process.
    fn undo(mut self) {
        if let Some(init) = &self.init {
            end_init(init);
        }
        take_away(&mut self.network, &mut self.cgroups);
        for name in &self.groups {
            if let Ok(group) = self.cgroups.app(name, &plan::Limits::default()) {
                self.cgroups.remove(&group);
            }
        }
        self.cgroups.leave_and_remove();
    }
}

/// Whether a volume of the app gets a copy of its /etc when it is made.
fn copies_etc(app: &plan::App) -> bool {
    app.mounts.iter().any(|mount| mount.seed && gantry_model::spec::normal(&mount.target) == "/etc")
}

/// Whether the host is asked for names: by its resolv.conf, or by the resolver on a gateway.
fn asks_host(plan: &Plan) -> bool {
    match &plan.resolv {
        Resolv::None => false,
        Resolv::Host => true,
        Resolv::Given(dns) => dns.servers.is_empty() && plan.net != Net::None,
        Resolv::Network => plan.net != Net::None,
    }
}

/// What the apps' /etc needs of the host's, read while it can be seen.
fn of_host(plan: &Plan, networks: bool) -> etc::OfHost {
    let mut host = etc::OfHost::default();
    if asks_host(plan) {
        host.resolv = root::host_file("/etc/resolv.conf");
        host.behind = networks.then(|| root::host_file("/run/systemd/resolve/resolv.conf")).flatten();
    }
    if plan.hosts == Hosts::Host {
        host.hosts = root::host_file("/etc/hosts");
    }
    host
}

/// What the apps' /etc says, as far as the networks are there.
fn etc_files(plan: &Plan, host: &etc::OfHost, network: Option<&Network>) -> Result<Vec<etc::File>> {
    let resolver = network.filter(|_| asks_host(plan)).and_then(Network::resolver);
    etc::files(plan, host, network.map(Network::attached).unwrap_or_default(), resolver)
}

/// Takes away the networks of a pod in which nothing runs any more. What cannot be is in the pod's record, and the engine
/// comes back to it.
fn take_away(network: &mut Option<Network>, cgroups: &mut Cgroups) {
    let Some(mut network) = network.take() else { return };
    if network.is_run_by_plugins() {
        // They take so long that nobody waits for this then.
        cgroups.begin_leave();
    }
    if let Err(why) = network.down() {
        // Not eprintln!, which panics when stderr cannot be written.
        let _ = writeln!(std::io::stderr(), "gantry-stage1: {}", why.message);
    }
}

/// Kills PID 1, and with it every process of the pod, and waits until the kernel has done so. A process that cannot die
/// (stuck in the kernel) is not waited for longer than some seconds.
pub(crate) fn end_init(init: &Init) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let _ = rustix::process::pidfd_send_signal(&init.pidfd, Signal::KILL);
    while Instant::now() < deadline {
        // The kernel waits for every process of the namespace to be reaped: the apps and execs are children of this process.
        reap_all();
        let wait = rustix::event::Timespec { tv_sec: 0, tv_nsec: 5_000_000 };
        let mut fds = [rustix::event::PollFd::new(&init.pidfd, rustix::event::PollFlags::IN)];
        if rustix::event::poll(&mut fds, Some(&wait)).is_ok_and(|ready| ready > 0) {
            reap_all();
            return;
        }
    }
}

/// One app while it is made.
struct Making<'a> {
    plan: &'a Plan,
    jail: &'a Jail,
    app: &'a plan::App,
    devices_confined: bool,
    init: i32,
    etc: &'a [etc::File],
    terminal_size: Option<(u16, u16)>,
}

/// An app that waits for its start.
struct Waiting {
    plan: plan::App,
    root: OwnedFd,
    null: OwnedFd,
    etc: root::Etc,
    ids: Ids,
    confinement: Confinement,
    cgroup: AppCgroup,
    created: Created,
    output: Output,
    input: Input,
}

impl Making<'_> {
    fn create(&self, cgroup: AppCgroup) -> Result<Waiting> {
        let root = root::mount_root(self.app)?;
        root::check_mount_points(&root)?;
        let ids =
            user::resolve(&root, self.app.user.as_deref(), self.app.group.as_deref(), &self.app.supplementary_gids)?;
        root::working_dir(&root, &self.app.cwd)?;
        let mut etc = root::Etc::default();
        etc.write(self.etc, &root, &[])?;
        let app = plan::App { mounts: volumes::place(self.plan, self.app, &root)?, ..self.app.clone() };
        let confinement = self.confinement()?;
        self.write_config(&app, &ids, &confinement)?;
        let mut stdio = self.stdio(ids.uid)?;
        let command = Command { argv: self.app.argv.clone(), env: spec::environment(&self.app.env, &ids) };
        let given = Stdio { fds: stdio.given.take(), console: stdio.console_path() };
        let created = launcher::create(&self.app.name, command, &confinement, ids.uid, given)?;
        self.set_oom_score(&created)?;
        let null = terminal::open_null(created.pid).attempt(|| "cannot open /dev/null of the app")?;
        let (sources, input) = stdio.ours(self.terminal_size)?;
        let eager = self.app.terminal || self.app.stdin;
        let pace = Pace::new(self.app.limits.cpu_milli, Instant::now());
        let output = Output { log: self.log()?, sources, eager, flush_at: None, pace };
        Ok(Waiting { plan: app, root, null, etc, ids, confinement, cgroup, created, output, input })
    }

    fn confinement(&self) -> Result<Confinement> {
        let held = confine::held_capabilities().attempt(|| "cannot read the supervisor's capabilities")?;
        let required = confine::capability_set(&self.app.required_capabilities);
        if !held.contains(required) {
            let lacking = confine::names(required - held).join(", ");
            return Err(failure(ErrorKind::Unavailable, format!("this host's root lacks {lacking}")));
        }
        let mut capabilities = confine::capability_set(&self.app.capabilities) & held;
        if !self.devices_confined {
            if required.contains(CapabilitySet::MKNOD) {
                let why = "it has no devices controller that would keep the app from the host's disks";
                return Err(failure(ErrorKind::Unavailable, format!("CAP_MKNOD cannot be given on this host: {why}")));
            }
            capabilities -= CapabilitySet::MKNOD;
        }
        let ambient = confine::capability_set(&self.app.ambient_capabilities) & capabilities;
        let names: Vec<String> = confine::names(capabilities).into_iter().map(str::to_owned).collect();
        let new_privileges = self.app.new_privileges;
        let filters = seccomp::filters(&self.app.seccomp, &names, new_privileges)?;
        Ok(Confinement { capabilities, ambient, filters: filters.map(Rc::new), new_privileges })
    }

    fn write_config(&self, app: &plan::App, ids: &Ids, confinement: &Confinement) -> Result<()> {
        let config = spec::config(self.plan, app, ids, confinement, self.init);
        let path = format!("/bundles/{}/config.json", self.app.name);
        std::fs::write(&path, config.to_string()).attempt(|| format!("cannot write {path}"))
    }

    /// Written to the process, never to the configuration: libcontainer would set it for the supervisor.
    fn set_oom_score(&self, created: &Created) -> Result<()> {
        let Some(score) = self.app.oom_score_adj else { return Ok(()) };
        let path = format!("/proc/{}/oom_score_adj", created.pid.as_raw_nonzero());
        std::fs::write(path, score.to_string()).attempt(|| format!("cannot set oom_score_adj to {score}"))
    }

    fn log(&self) -> Result<Log> {
        let name = &self.app.name;
        let path = format!("/pod/{}/{name}", gantry_contract::files::LOGS);
        match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error).attempt(|| format!("cannot make the log directory of '{name}'")),
        }
        let dir = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
            .attempt(|| format!("cannot open the log directory of '{name}'"))?;
        Ok(Log::open(dir, format!("{}.log", self.app.attempt), self.plan.log))
    }

    /// The app's ends are its user's, so that it can open /dev/stdout by name, as with docker and podman.
    fn stdio(&self, uid: u32) -> Result<terminal::Ends> {
        if self.app.terminal {
            return terminal::Ends::terminal(&self.app.name);
        }
        let what = || "cannot make the app's pipes";
        let (out, out_app) = pipe().attempt(what)?;
        let (err, err_app) = pipe().attempt(what)?;
        for end in [&out_app, &err_app] {
            terminal::give(end, uid).attempt(what)?;
        }
        let (stdin_app, input) = if self.app.stdin {
            let (stdin_app, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(what)?;
            terminal::give(&stdin_app, uid).attempt(what)?;
            (stdin_app, Input::Pipe(Some(writer)))
        } else {
            (rustix::io::dup(&self.jail.null).attempt(what)?, Input::None)
        };
        let source = |fd, stream| Source { fd, stream, pending: Pending::default() };
        let sources = vec![source(out, Stream::Stdout), source(err, Stream::Stderr)];
        Ok(terminal::Ends::pipes((stdin_app, out_app, err_app), sources, input))
    }
}

/// A pipe whose reading end, ours, does not block.
fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
    Ok((reader, writer))
}

impl Waiting {
    fn start(self) -> Result<App> {
        let (pid, pidfd) = self.created.execute()?;
        Ok(App {
            plan: self.plan,
            root: self.root,
            null: self.null,
            ids: self.ids,
            confinement: self.confinement,
            cgroup: self.cgroup,
            pid,
            running: Some(pidfd),
            started: now(),
            output: self.output,
            input: self.input,
        })
    }
}

impl Pod {
    /// Ends a pod that was launched and cannot be supervised.
    pub(crate) fn undo(mut self) {
        end_init(&self.init);
        self.take_networks_away();
        self.remove_groups();
    }

    /// Takes away the networks of a pod in which nothing runs any more, from the host's namespaces, in which this process is
    /// from then on.
    pub(crate) fn take_networks_away(&mut self) {
        take_away(&mut self.network, &mut self.cgroups);
    }

    /// Removes the groups of a pod in which nothing runs any more.
    pub(crate) fn remove_groups(&mut self) {
        for app in &self.apps {
            self.cgroups.remove(&app.cgroup);
        }
        self.cgroups.leave_and_remove();
    }

    /// What there is to tell about the running pod.
    pub(crate) fn ready(&self) -> Ready {
        let number = |pid: rustix::process::Pid| pid.as_raw_nonzero().get().unsigned_abs();
        let apps = self.apps.iter().map(|app| Started {
            app: app.plan.name.clone(),
            attempt: app.plan.attempt,
            pid: number(app.pid),
            at: app.started,
        });
        Ready {
            supervisor: std::process::id(),
            start_ticks: start_ticks().unwrap_or(0),
            init: number(self.init.pid),
            apps: apps.collect(),
            networks: self.network.as_ref().map(|network| network.attached().to_vec()).unwrap_or_default(),
        }
    }
}

/// This process's start time in clock ticks since boot.
fn start_ticks() -> Option<u64> {
    gantry_contract::start_ticks(&std::fs::read_to_string("/proc/self/stat").ok()?)
}
