//! Starts a pod from its plan, as a list of steps. If one fails, the steps before it are undone.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use gantry_contract::plan::{self, Net, Plan};
use gantry_contract::start::{Ready, Started};
use gantry_model::ErrorKind;
use gantry_model::net::{DnsSpec, HostsSpec};
use gantry_model::spec::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::CapabilitySet;

use crate::app::{App, AppInput, AppOutput, OutputSource};
use crate::cgroup::{AppCgroup, Cgroups};
use crate::confine::{self, Command, Confinement};
use crate::devices::Device;
use crate::failure::{Attempt, OfApp, Result, failure};
use crate::init::{self, Init};
use crate::jail::{self, Jail};
use crate::journal::now;
use crate::launcher::{self, Stdio, reap_all};
use crate::logs::{Log, PartialLine, Stream};
use crate::network::{self, AttachError, PodNetwork};
use crate::pace::Pace;
use crate::spec::AppFiles;
use crate::sys::SingleThreaded;
use crate::table::Table;
use crate::user::{self, Ids};
use crate::volumes::AppMount;
use crate::{etc, root, seccomp, spec, sysctl, terminal, ulimits, volumes};

/// A pod whose apps were started.
pub(crate) struct Pod {
    /// Its plan.
    pub(crate) plan: Plan,
    /// Descriptors opened on the host or in the supervisor's mount tree.
    pub(crate) jail: Jail,
    /// Its cgroups.
    pub(crate) cgroups: Cgroups,
    /// Its networks, if it has some of its own.
    pub(crate) network: Option<PodNetwork>,
    /// Its PID 1.
    pub(crate) init: Init,
    /// Its apps, in the order of the plan.
    pub(crate) apps: Table<App>,
    thread: SingleThreaded,
}

/// Starts the pod of this plan. `lock` is the pod directory; terminals of apps get this size (rows, columns).
pub(crate) fn launch(
    thread: SingleThreaded,
    plan: Plan,
    lock: &OwnedFd,
    terminal_size: Option<(u16, u16)>,
) -> Result<Pod> {
    jail::check_kernel()?;
    if plan.version > gantry_contract::VERSION {
        let (known, version) = (gantry_contract::VERSION, plan.version);
        let why = format!("this supervisor knows plans up to version {known}, the plan has version {version}");
        return Err(failure(ErrorKind::Unavailable, why));
    }
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable).attempt(|| "cannot become not dumpable")?;
    let cgroups = Cgroups::make(&plan.cgroup_parent, &plan.pod)?;
    let mut launch = Launch { thread, cgroups, network: None, init: None, app_cgroups: Vec::new(), terminal_size };
    match launch.run(&plan, lock) {
        Ok((jail, apps)) => match launch.init {
            Some(init) => {
                let Launch { cgroups, network, .. } = launch;
                Ok(Pod { plan, jail, cgroups, network, init, apps, thread })
            }
            None => Err(failure(ErrorKind::Internal, "the pod runs without a PID 1")),
        },
        Err(why) => {
            launch.undo();
            Err(why)
        }
    }
}

/// A start in progress: what has to be undone if it fails.
struct Launch {
    thread: SingleThreaded,
    cgroups: Cgroups,
    network: Option<PodNetwork>,
    init: Option<Init>,
    /// The names of the apps that have cgroups.
    app_cgroups: Vec<String>,
    terminal_size: Option<(u16, u16)>,
}

impl Launch {
    fn run(&mut self, plan: &Plan, lock: &OwnedFd) -> Result<(Jail, Table<App>)> {
        let devices =
            plan.apps.iter().map(|app| Device::read_all(app).of_app(&app.name)).collect::<Result<Vec<_>>>()?;
        let devices_confined = self.cgroups.confine_devices(&devices.concat());
        let mut cgroups = Vec::with_capacity(plan.apps.len());
        for app in &plan.apps {
            self.app_cgroups.push(app.name.clone());
            cgroups.push(self.cgroups.app(&app.name, &app.options.limits).of_app(&app.name)?);
        }
        // The networks come before the jail: they need the host's files, such as the plugins.
        let (thread, groups) = (self.thread, &mut self.cgroups);
        self.network = network::enter(thread, plan, lock, || groups.start_move(thread))?;
        self.cgroups.join_v1_groups()?;
        let host = read_host_files(plan, self.network.is_some());
        let etc = self.initial_etc(plan, &host)?;
        let jail = jail::enter(plan)?;
        let init = self.init.insert(init::start(self.thread)?).pid;
        let mut created = Vec::with_capacity(plan.apps.len());
        for (((number, app), cgroup), devices) in plan.apps.iter().enumerate().zip(cgroups).zip(&devices) {
            let _span = tracing::info_span!("app", app = app.name).entered();
            let init = init.as_raw_nonzero().get();
            let terminal_size = self.terminal_size;
            let creation = AppCreation {
                plan,
                jail: &jail,
                app,
                number,
                devices,
                devices_confined,
                init,
                etc: &etc,
                terminal_size,
            };
            created.push(creation.run(cgroup).of_app(&app.name)?);
        }
        // In quick succession: then only the first move waits for a grace period (kernel_costs).
        self.cgroups.finish_move(init)?;
        for app in &created {
            app.cgroup.add(app.process.pid).of_app(&app.plan.name)?;
        }
        self.wait_for_networks(plan, &host, &mut created)?;
        sysctl::apply(plan)?;
        // All apps are locked down before the first is executed, which may have the right to trace the others.
        for app in &mut created {
            app.process.lock_down().of_app(&app.plan.name)?;
        }
        let mut apps = Table::default();
        for app in created {
            let name = app.plan.name.clone();
            apps.insert(app.execute().of_app(&name)?);
        }
        Ok((jail, apps))
    }

    /// The files of /etc that the apps are made with. While networks are pending, only those that can be changed later.
    fn initial_etc(&mut self, plan: &Plan, host: &etc::HostFiles) -> Result<Vec<etc::File>> {
        if plan.apps.iter().any(copies_etc) {
            self.finish_attaching()?;
        }
        let mut etc = etc_files(plan, host, self.network.as_ref())?;
        if matches!(self.network, Some(PodNetwork::Pending(_))) {
            // Without DNS settings of the networks, the image's own file must stay.
            etc.retain(|file| file.name != etc::RESOLV);
        }
        Ok(etc)
    }

    /// Waits for pending networks, and updates the files of /etc in all apps.
    fn wait_for_networks(&mut self, plan: &Plan, host: &etc::HostFiles, apps: &mut [CreatedApp]) -> Result<()> {
        if !self.finish_attaching()? {
            return Ok(());
        }
        let etc = etc_files(plan, host, self.network.as_ref())?;
        apps.iter_mut().try_for_each(|app| app.etc.write(&etc, &app.root, &app.mounts).of_app(&app.plan.name))
    }

    /// Waits for pending networks; returns whether there were any.
    fn finish_attaching(&mut self) -> Result<bool> {
        match self.network.take() {
            Some(PodNetwork::Pending(network)) => match network.wait() {
                Ok(network) => {
                    self.network = Some(PodNetwork::Attached(network));
                    Ok(true)
                }
                Err(AttachError { failure, remains }) => {
                    self.network = remains.map(|network| PodNetwork::Attached(*network));
                    Err(failure)
                }
            },
            other => {
                self.network = other;
                Ok(false)
            }
        }
    }

    /// Kills what was started, detaches the networks and removes the cgroups. Mounts and namespaces end with this
    /// process.
    fn undo(mut self) {
        if let Some(init) = &self.init {
            end_init(init);
        }
        detach_networks(self.thread, self.network.take(), &mut self.cgroups);
        for name in &self.app_cgroups {
            if let Ok(cgroup) = self.cgroups.app(name, &Limits::default()) {
                self.cgroups.remove(&cgroup);
            }
        }
        self.cgroups.leave_and_remove();
    }
}

/// Whether a volume of the app gets a copy of its /etc when it is made.
fn copies_etc(app: &plan::App) -> bool {
    app.mounts.iter().any(|mount| mount.seed && gantry_model::spec::normal(&mount.target) == "/etc")
}

/// Whether the pod uses DNS servers of the host: those of its resolv.conf, or gantry's resolver.
fn uses_host_dns(plan: &Plan) -> bool {
    match &plan.resolv {
        DnsSpec::None => false,
        DnsSpec::Host => true,
        DnsSpec::Given(dns) => dns.servers.is_empty() && plan.net != Net::None,
        DnsSpec::Network => plan.net != Net::None,
    }
}

/// Reads the host's files that the apps' /etc needs, while they are reachable.
fn read_host_files(plan: &Plan, has_networks: bool) -> etc::HostFiles {
    let mut host = etc::HostFiles::default();
    if uses_host_dns(plan) {
        host.resolv = root::read_host_file("/etc/resolv.conf");
        host.upstream_resolv = has_networks.then(|| root::read_host_file("/run/systemd/resolve/resolv.conf")).flatten();
    }
    if plan.hosts == HostsSpec::Host {
        host.hosts = root::read_host_file("/etc/hosts");
    }
    host
}

/// The files of the apps' /etc, as far as the networks are attached.
fn etc_files(plan: &Plan, host: &etc::HostFiles, network: Option<&PodNetwork>) -> Result<Vec<etc::File>> {
    let resolver = network.filter(|_| uses_host_dns(plan)).and_then(PodNetwork::resolver);
    etc::files(plan, host, network.map(PodNetwork::attached).unwrap_or_default(), resolver)
}

/// Detaches a pod in which no process runs any more. A failure leaves the pod's record, and the engine tries again.
fn detach_networks(thread: SingleThreaded, network: Option<PodNetwork>, cgroups: &mut Cgroups) {
    let Some(network) = network else { return };
    if network.has_plugins() {
        // Plugins take longer than the move, which then costs nothing.
        cgroups.start_leaving(thread);
    }
    if let Err(why) = network.detach() {
        tracing::warn!("{}", why.message);
    }
}

/// Timeout of the end of a PID namespace: a process may be stuck in the kernel.
const INIT_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often children are reaped while PID 1 exits.
const REAP_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

/// Kills PID 1, and with it every process of the pod, and waits until they are gone.
pub(crate) fn end_init(init: &Init) {
    let deadline = Instant::now() + INIT_EXIT_TIMEOUT;
    // It fails only if PID 1 has exited.
    let _already_ended = rustix::process::pidfd_send_signal(&init.pidfd, Signal::KILL);
    while Instant::now() < deadline {
        // PID 1 exits when every process of its namespace was reaped; apps and execs are children of this process.
        reap_all();
        let mut fds = [PollFd::new(&init.pidfd, PollFlags::IN)];
        if poll(&mut fds, Some(&REAP_INTERVAL)).is_ok_and(|ready| ready > 0) {
            reap_all();
            return;
        }
    }
}

/// The inputs of creating an app.
struct AppCreation<'a> {
    plan: &'a Plan,
    jail: &'a Jail,
    app: &'a plan::App,
    /// The app's position in the plan.
    number: usize,
    /// The devices of the host that it gets.
    devices: &'a [Device],
    devices_confined: bool,
    init: i32,
    etc: &'a [etc::File],
    terminal_size: Option<(u16, u16)>,
}

/// An app whose process waits for its execve.
struct CreatedApp {
    plan: plan::App,
    /// The mounts on top of gantry's.
    mounts: Vec<AppMount>,
    root: OwnedFd,
    null: OwnedFd,
    etc: root::Etc,
    ids: Ids,
    confinement: Confinement,
    cgroup: AppCgroup,
    process: launcher::CreatedApp,
    output: AppOutput,
    input: AppInput,
}

impl AppCreation<'_> {
    fn run(&self, cgroup: AppCgroup) -> Result<CreatedApp> {
        let root = root::mount_root(self.app)?;
        root::check_mount_points(&root)?;
        let ids = user::resolve(
            &root,
            self.app.user.as_deref(),
            self.app.group.as_deref(),
            &self.app.options.supplementary_gids,
        )?;
        root::make_working_dir(&root, &self.app.cwd)?;
        let mut etc = root::Etc::default();
        etc.write(self.etc, &root, &[])?;
        let mounts = volumes::prepare_mounts(self.plan, self.app, &root)?;
        let confinement = self.confinement()?;
        self.write_config(&mounts, &ids, &confinement)?;
        let mut stdio = self.stdio(ids.uid)?;
        let command = Command { argv: self.app.argv.clone(), env: spec::environment(&self.app.env, &ids) };
        let given = Stdio { fds: stdio.given.take(), console: stdio.console_path() };
        let process = launcher::create(&self.app.name, command, &confinement, ids.uid, given)?;
        self.set_oom_score(&process)?;
        let null = terminal::open_null(process.pid).attempt(|| "cannot open /dev/null of the app")?;
        let (sources, input) = stdio.supervisor_ends(self.terminal_size)?;
        let eager = self.app.options.terminal || self.app.options.stdin;
        let pace = Pace::new(self.app.options.limits.cpu_milli, Instant::now());
        let sources = sources.into_iter().collect();
        let output = AppOutput { app_number: self.number, log: self.open_log()?, sources, eager, flush_at: None, pace };
        Ok(CreatedApp {
            plan: self.app.clone(),
            mounts,
            root,
            null,
            etc,
            ids,
            confinement,
            cgroup,
            process,
            output,
            input,
        })
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
        ulimits::check(&self.app.options.ulimits, held)?;
        let ambient = confine::capability_set(&self.app.ambient_capabilities) & capabilities;
        let names: Vec<String> = confine::names(capabilities).into_iter().map(str::to_owned).collect();
        let new_privileges = self.app.options.new_privileges;
        let filters = seccomp::filters(&self.app.options.seccomp, &names, new_privileges)?;
        let ulimits = self.app.options.ulimits.clone().into();
        Ok(Confinement { capabilities, ambient, filters: filters.map(Rc::new), new_privileges, ulimits })
    }

    fn write_config(&self, mounts: &[AppMount], ids: &Ids, confinement: &Confinement) -> Result<()> {
        let files = AppFiles { mounts, devices: self.devices };
        let config = spec::config(self.plan, self.app, &files, ids, confinement, self.init);
        let path = format!("/bundles/{}/config.json", self.app.name);
        std::fs::write(&path, config.to_string()).attempt(|| format!("cannot write {path}"))
    }

    /// Sets the OOM score of the process. libcontainer would set one in the configuration for the supervisor.
    fn set_oom_score(&self, process: &launcher::CreatedApp) -> Result<()> {
        let Some(score) = self.app.options.oom_score_adj else { return Ok(()) };
        let path = format!("/proc/{}/oom_score_adj", process.pid.as_raw_nonzero());
        std::fs::write(path, score.to_string()).attempt(|| format!("cannot set oom_score_adj to {score}"))
    }

    fn open_log(&self) -> Result<Log> {
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

    /// Makes the app's stdio. Its user owns the pipes, so that it can open /dev/stdout by name, as with docker and
    /// podman.
    fn stdio(&self, uid: u32) -> Result<terminal::AppStdio> {
        if self.app.options.terminal {
            return terminal::AppStdio::terminal(&self.app.name);
        }
        let what = || "cannot make the app's pipes";
        let (out, out_app) = pipe().attempt(what)?;
        let (err, err_app) = pipe().attempt(what)?;
        for end in [&out_app, &err_app] {
            terminal::give_pipe_to(end, uid).attempt(what)?;
        }
        let (stdin_app, input) = if self.app.options.stdin {
            let (stdin_app, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(what)?;
            terminal::give_pipe_to(&stdin_app, uid).attempt(what)?;
            (stdin_app, AppInput::Pipe(Some(writer)))
        } else {
            (rustix::io::dup(&self.jail.null).attempt(what)?, AppInput::None)
        };
        let source = |fd, stream| OutputSource { fd, stream, partial: PartialLine::default() };
        let sources = vec![source(out, Stream::Stdout), source(err, Stream::Stderr)];
        Ok(terminal::AppStdio::pipes((stdin_app, out_app, err_app), sources, input))
    }
}

/// A pipe whose reading end, the supervisor's, is non-blocking.
fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::fs::fcntl_setfl(&reader, OFlags::NONBLOCK)?;
    Ok((reader, writer))
}

impl CreatedApp {
    fn execute(self) -> Result<App> {
        let (pid, pidfd) = self.process.execute()?;
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
    /// Ends a pod whose journal or control socket cannot be made.
    pub(crate) fn undo(mut self) {
        end_init(&self.init);
        self.detach_networks();
        self.remove_cgroups();
    }

    /// Detaches a pod in which no process runs any more. Afterwards this process is in the host's namespaces.
    pub(crate) fn detach_networks(&mut self) {
        detach_networks(self.thread, self.network.take(), &mut self.cgroups);
    }

    /// Removes the cgroups of a pod in which no process runs any more.
    pub(crate) fn remove_cgroups(&mut self) {
        for app in self.apps.values() {
            self.cgroups.remove(&app.cgroup);
        }
        self.cgroups.leave_and_remove();
    }

    /// The part of the start reply that describes the pod.
    pub(crate) fn ready(&self) -> Ready {
        let number = |pid: rustix::process::Pid| pid.as_raw_nonzero().get().unsigned_abs();
        let apps = self.apps.values().map(|app| Started {
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
