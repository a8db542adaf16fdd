//! Creates an app: first all but its process ([`AppCreation::prepare`]), then a process that waits for its execve
//! ([`ProcessInputs::make`]). A process that is forked for it makes the app's process ([`crate::app::maker`]); only the
//! process of a host pod that starts is made by the supervisor itself.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Instant;

use gantry_contract::plan::{self, LogLimits, Plan};
use gantry_contract::start::Started;
use gantry_model::ErrorKind;
use gantry_model::namespaces::PidMode;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::PipeFlags;
use rustix::process::Pid;
use rustix::thread::CapabilitySet;

use crate::app::confine::{self, Command, Confinement};
use crate::app::launcher::{self, MadeProcess, Stdio, WaitingProcess};
use crate::app::own_namespaces::AppNamespaces;
use crate::app::terminal::AppStdio;
use crate::app::user::{self, UserRequest};
use crate::app::{App, AppInput, AppOutput, OutputSource};
use crate::app::{own_namespaces, terminal, ulimits};
use crate::cgroup::AppCgroup;
use crate::cgroup::limits::IneffectiveLimit;
use crate::cgroup::oom::OomTracker;
use crate::failure::{Attempt, Result, failure};
use crate::files::file_systems::FileSystems;
use crate::files::volumes::AppMount;
use crate::files::{mounts, root, volumes};
use crate::health::AppHealth;
use crate::journal::now;
use crate::notify::{self, NotifySocket};
use crate::output::logs::{Log, PartialLine, Stream};
use crate::pod::jail::{HostFileSystem, Jail};
use crate::pod::resources::AppResources;
use crate::pod::user_namespace::UserNamespace;
use crate::pod::{Pod, etc};
use crate::seccomp::FilterInputs;
use crate::supervise::Restarts;

/// The logs of this many attempts of an app are kept.
const KEPT_ATTEMPTS: u32 = 5;

/// How often the targets of mounts are resolved while other apps may change them.
const MAX_RESOLVE_ATTEMPTS: usize = 64;

/// Kinds of failure that do not come from a path that changes.
const PERMANENT: [ErrorKind; 3] = [ErrorKind::Exhausted, ErrorKind::TimedOut, ErrorKind::Busy];

/// The inputs of creating an app.
pub(crate) struct AppCreation<'a> {
    /// Its pod.
    pub(crate) pod: &'a Pod,
    /// Its part of the plan.
    pub(crate) app: &'a plan::App,
    /// Its number in the output protocol.
    pub(crate) number: u16,
    /// What it has of the host.
    pub(crate) resources: AppResources,
    /// The files of /etc.
    pub(crate) etc: &'a [etc::File],
    /// The initial size of its terminal (rows, columns).
    pub(crate) terminal_size: Option<(u16, u16)>,
}

/// The settings of the logs of all apps.
#[derive(Clone, Copy)]
pub(crate) struct LogSettings<'a> {
    /// Rotation of the files in the pod directory.
    pub(crate) limits: LogLimits,
    /// The directory of files at chosen paths.
    pub(crate) dir: Option<&'a OwnedFd>,
}

impl<'a> LogSettings<'a> {
    /// Those of a pod.
    pub(crate) fn of_pod(plan: &Plan, jail: &'a Jail) -> Self {
        Self { limits: plan.log, dir: jail.log_dir.as_ref() }
    }
}

impl AppCreation<'_> {
    /// Makes all of the app but its process. Returns also the files of its /etc that gantry has written.
    pub(crate) fn prepare(self) -> Result<(App, root::Etc)> {
        let Self { pod, app, number, resources: AppResources { mut cgroup, devices }, .. } = self;
        let devices_confined = pod.resources.confine_app(&pod.plan, app, &cgroup, &devices);
        let user = pod.jail.user.as_deref();
        user.map_or(Ok(()), |_| UserNamespace::check_app(app))?;
        let root = match &pod.jail.host {
            Some(host) => rustix::io::fcntl_dupfd_cloexec(&host.root, 3).attempt(|| "cannot open the host's root")?,
            None => {
                let root = root::mount_root(app, user)?;
                root::check_mount_points(&root)?;
                root
            }
        };
        let ids = user::resolve(&root, &UserRequest::of_app(app, user))?;
        let mut etc = root::Etc::default();
        let as_root = user.map(UserNamespace::as_root).transpose()?;
        if pod.jail.host.is_none() {
            root::make_working_dir(&root, &app.cwd)?;
            etc.write(self.etc, &root, &[])?;
        }
        if AppNamespaces::manages_cgroup(app) {
            own_namespaces::check_user(&ids)?;
            etc.write(&[etc::machine_id(&pod.plan.pod)], &root, &[])?;
            cgroup.delegate()?;
        }
        drop(as_root);
        let confinement = confinement(pod, app, devices_confined)?;
        remove_old_logs(app, app.attempt);
        let log = open_log(app, app.attempt, LogSettings::of_pod(&pod.plan, &pod.jail))?;
        let notify = notify::has_socket(app).then(|| NotifySocket::create(&app.name)).transpose()?;
        let now = Instant::now();
        let app = App {
            root,
            null: None,
            ids,
            confinement,
            devices,
            cgroup,
            waiting: None,
            running: None,
            is_paused: false,
            started: None,
            exit: None,
            output: AppOutput::new(app, number, log, now),
            input: AppInput::None,
            oom_kills_before: 0,
            oom: OomTracker::with_total(app.oom_kills),
            stop: None,
            restarts: Restarts::default(),
            operation: None,
            notify,
            volumes: Vec::new(),
            health: AppHealth::new(&app.options.health, app.health_changes, now),
            terminal_size: self.terminal_size,
            plan: app.clone(),
        };
        Ok((app, etc))
    }
}

/// The confinement of an app. `devices_confined`: its devices are, or all are allowed on purpose.
fn confinement(pod: &Pod, app: &plan::App, devices_confined: bool) -> Result<Confinement> {
    let held = confine::held_capabilities().attempt(|| "cannot read the supervisor's capabilities")?;
    let required = confine::capability_set(&app.required_capabilities);
    if !held.contains(required) {
        let lacking = confine::names(required - held).join(", ");
        return Err(failure(ErrorKind::Unavailable, format!("this host's root lacks {lacking}")));
    }
    let mut capabilities = confine::capability_set(&app.capabilities) & held;
    if !devices_confined {
        if required.contains(CapabilitySet::MKNOD) {
            let why = "it has no devices controller that would keep the app from the host's disks";
            return Err(failure(ErrorKind::Unavailable, format!("CAP_MKNOD cannot be given on this host: {why}")));
        }
        capabilities -= CapabilitySet::MKNOD;
    }
    ulimits::check(&app.options.ulimits, held)?;
    let ambient = confine::capability_set(&app.ambient_capabilities) & capabilities;
    let new_privileges = app.options.new_privileges;
    let filters = pod.filters.get_or_compile(&FilterInputs {
        seccomp: app.options.seccomp.clone(),
        capabilities,
        new_privileges,
        has_storage_limit: app.options.storage_limit.is_some(),
    })?;
    let ulimits = app.options.ulimits.clone().into();
    let namespaces = AppNamespaces::from_app(app);
    let (host, user) = (pod.jail.host.clone(), pod.jail.user.clone());
    Ok(Confinement { capabilities, ambient, filters, new_privileges, ulimits, namespaces, host, user })
}

/// Whether a path is below another one, as written.
fn is_path_inside(path: &str, outer: &str) -> bool {
    path.strip_prefix(outer.trim_end_matches('/')).is_some_and(|rest| rest.len() > 1 && rest.starts_with('/'))
}

/// Opens the log of an attempt.
fn open_log(app: &plan::App, attempt: u32, log: LogSettings<'_>) -> Result<Log> {
    let name = &app.name;
    // Readers find an added app by its directory, also if its log is elsewhere.
    let path = format!("/pod/{}/{name}", gantry_contract::files::LOGS);
    match rustix::fs::mkdirat(CWD, &path, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error).attempt(|| format!("cannot make the log directory of '{name}'")),
    }
    if let Some(chosen) = &app.options.log_path {
        let missing = || failure(ErrorKind::Invalid, "an app has a log path, and its pod no log directory");
        let root = rustix::io::fcntl_dupfd_cloexec(log.dir.ok_or_else(missing)?, 3)
            .attempt(|| "cannot use the log directory of the pod")?;
        return Log::open_chosen(root, chosen.clone());
    }
    let dir = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
        .attempt(|| format!("cannot open the log directory of '{name}'"))?;
    Ok(Log::open(dir, format!("{attempt}.log"), log.limits))
}

/// Removes the log of the attempt that is too old to be kept, when a later one is made.
pub(crate) fn remove_old_logs(app: &plan::App, attempt: u32) {
    let (None, Some(old)) = (&app.options.log_path, attempt.checked_sub(KEPT_ATTEMPTS)) else { return };
    let path = format!("/pod/{}/{}", gantry_contract::files::LOGS, app.name);
    let Ok(dir) = rustix::fs::open(&path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()) else {
        return;
    };
    let remove = |name: &str| rustix::fs::unlinkat(&dir, name, rustix::fs::AtFlags::empty());
    let _may_not_exist = remove(&format!("{old}.log"));
    // Rotated files are numbered without gaps.
    (1_u32..).map_while(|number| remove(&format!("{old}.log.{number}")).ok()).for_each(drop);
}

/// The inputs of making an app's process.
#[derive(Clone, Copy)]
pub(crate) struct ProcessInputs<'a> {
    /// The pod's plan.
    pub(crate) plan: &'a Plan,
    /// The app.
    pub(crate) app: &'a App,
    /// The pidfd of the process whose PID namespace the app joins: the pod's PID 1, or the app's target. A pidfd,
    /// because its PID could be that of another one by then. `None` in a host pod.
    pub(crate) pid_target: Option<BorrowedFd<'a>>,
}

impl ProcessInputs<'_> {
    /// Makes the missing volumes of the app, and returns its mounts with their targets resolved in its root.
    pub(crate) fn prepare_mounts(&self, root: &OwnedFd) -> Result<Vec<AppMount>> {
        if self.app.confinement.host.is_some() {
            return Ok(Vec::new());
        }
        volumes::prepare_mounts(self.plan, &self.app.plan, root, self.user())
    }

    /// The same while other apps run. They may exchange directories and links in a volume inside of which another
    /// volume is mounted; a target that leads to a forbidden place at one moment need not do so at the next.
    pub(crate) fn prepare_mounts_beside_apps(&self, root: &OwnedFd) -> Result<Vec<AppMount>> {
        let targets = || self.app.plan.mounts.iter().map(|mount| mount.target.as_str());
        let is_inside = |target: &str| targets().any(|outer| is_path_inside(target, outer));
        let mut attempts = if targets().any(is_inside) { MAX_RESOLVE_ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            match self.prepare_mounts(root) {
                Err(why) if attempts > 0 && !PERMANENT.contains(&why.kind) => {
                    std::thread::sleep(mounts::RETRY_INTERVAL);
                }
                result => return result,
            }
        }
    }

    /// Makes a process that waits for its execve. `root` is the app's, `mounts` are its volumes.
    pub(crate) fn make(&self, root: &OwnedFd, mounts: &[AppMount], stdio: Stdio) -> Result<MadeProcess> {
        if let Some(host) = &self.app.confinement.host {
            return self.make_on_host(host, None, stdio);
        }
        let file_systems =
            FileSystems::prepare(self.plan, &self.app.plan, root, &self.app.devices, mounts, self.user())?;
        launcher::create(self, &file_systems, &self.command(), stdio)
    }

    fn command(&self) -> Command {
        Command { argv: self.app.plan.argv.clone(), env: confine::environment(&self.app.plan.env, &self.app.ids) }
    }

    /// The pod's user namespace, if it has one of its own.
    fn user(&self) -> Option<&UserNamespace> {
        self.app.confinement.user.as_deref()
    }

    /// The pidfd of a process in the PID namespace that the process joins, or in which it makes its own; `None`: it
    /// stays in the host's.
    pub(crate) fn pid_target(&self) -> Option<BorrowedFd<'_>> {
        self.pid_target.filter(|_| self.app.plan.options.pid != PidMode::Host)
    }

    /// Makes a process of a host pod, which waits for its execve in the host's mount namespace. `cgroup` is the app's,
    /// unless this process is in it.
    pub(crate) fn make_on_host(
        &self,
        host: &HostFileSystem,
        cgroup: Option<&AppCgroup>,
        stdio: Stdio,
    ) -> Result<MadeProcess> {
        let null = rustix::fs::openat(&host.root, "dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .attempt(|| "cannot open the host's /dev/null")?;
        let waiting = launcher::create_on_host(self, cgroup, self.command(), &host.namespace, stdio)?;
        Ok(MadeProcess { waiting, null, terminal: None })
    }

    /// Sets the OOM score of the process, which has inherited the supervisor's.
    ///
    /// Lowering one needs CAP_SYS_RESOURCE, which the root of some virtual machines and containers lacks. The app runs
    /// with the lowest score that is permitted then, as with other runtimes: kubelets ask for -997.
    /// [`App::ineffective_oom_score`] finds that.
    pub(crate) fn set_oom_score(&self, process: Pid) -> Result<()> {
        let score = self.app.plan.options.oom_score_adj.unwrap_or(0);
        match std::fs::write(oom_score_path(process), score.to_string()) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Ok(()),
            other => other.attempt(|| format!("cannot set oom_score_adj to {score}")),
        }
    }
}

fn oom_score_path(process: Pid) -> String {
    format!("/proc/{}/oom_score_adj", process.as_raw_nonzero())
}

/// A pipe whose reading end, the supervisor's, is non-blocking.
fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

impl App {
    /// The id on the host of its user.
    fn host_uid(&self) -> Result<u32> {
        self.confinement.user.as_ref().map_or(Ok(self.ids.uid), |user| user.host_uid(self.ids.uid))
    }

    /// Makes the stdio of a process. Its user owns the pipes, so that it can open /dev/stdout by name, as with docker
    /// and podman. `null` is the host's null device.
    pub(crate) fn make_stdio(&self, null: &OwnedFd) -> Result<AppStdio> {
        let uid = self.host_uid()?;
        let options = &self.plan.options;
        if options.terminal {
            return Ok(AppStdio::terminal());
        }
        let what = || "cannot make the app's pipes";
        let (out, out_app) = pipe().attempt(what)?;
        let (err, err_app) = pipe().attempt(what)?;
        for end in [&out_app, &err_app] {
            terminal::give_pipe_to(end, uid).attempt(what)?;
        }
        let (stdin_app, input) = if options.stdin {
            let (stdin_app, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(what)?;
            terminal::give_pipe_to(&stdin_app, uid).attempt(what)?;
            (stdin_app, AppInput::Pipe(Some(writer)))
        } else {
            (rustix::io::fcntl_dupfd_cloexec(null, 3).attempt(what)?, AppInput::None)
        };
        let source = |fd, stream| OutputSource { fd, stream, partial: PartialLine::default(), peer: None };
        let sources = vec![source(out, Stream::Stdout), source(err, Stream::Stderr)];
        Ok(AppStdio::pipes([stdin_app, out_app, err_app], sources, input))
    }

    /// The inputs of making a process.
    pub(crate) fn process_inputs<'a>(
        &'a self,
        plan: &'a Plan,
        pid_target: Option<BorrowedFd<'a>>,
    ) -> ProcessInputs<'a> {
        ProcessInputs { plan, app: self, pid_target }
    }

    /// The name of its program, for error messages.
    pub(crate) fn program(&self) -> String {
        self.plan.argv.first().cloned().unwrap_or_default()
    }

    /// Takes over a process that was made for it, with the supervisor's ends of its stdio. After a failure, the process
    /// waits as well.
    pub(crate) fn adopt(&mut self, made: MadeProcess, stdio: AppStdio) -> Result<()> {
        let MadeProcess { waiting, null, terminal } = made;
        self.waiting = Some(waiting);
        self.null = Some(null);
        let (sources, input) = stdio.supervisor_ends(terminal, self.terminal_size)?;
        for source in sources {
            self.output.sources.insert(source);
        }
        self.input = input;
        Ok(())
    }

    /// The requested OOM score, if the process that was made has another one.
    pub(crate) fn ineffective_oom_score(&self) -> Option<IneffectiveLimit> {
        let (asked, waiting) = self.plan.options.oom_score_adj.zip(self.waiting.as_ref())?;
        // A process that was killed meanwhile has none; its end is found elsewhere.
        let score = std::fs::read_to_string(oom_score_path(waiting.pid)).ok()?;
        let cause = || format!("lowering it to {asked} needs CAP_SYS_RESOURCE, which this root lacks");
        (score.trim() != asked.to_string()).then(|| IneffectiveLimit::new("--oom-score-adj", cause()))
    }

    /// Moves on to another attempt, and to its log.
    pub(crate) fn begin_attempt(&mut self, attempt: u32, log: LogSettings<'_>) -> Result<()> {
        if self.output.log.is_of_one_attempt() {
            self.output.log = open_log(&self.plan, attempt, log)?;
        }
        self.plan.attempt = attempt;
        remove_old_logs(&self.plan, attempt);
        Ok(())
    }

    /// Records that the waiting process has executed the app's program.
    pub(crate) fn record_start(&mut self, waiting: WaitingProcess, attempt: u32) -> Started {
        let pid = waiting.pid.as_raw_nonzero().get().unsigned_abs();
        let started = Started { app: self.plan.name.clone(), attempt, pid, at: now() };
        self.running = Some(waiting.pidfd);
        self.started = Some(started.clone());
        self.exit = None;
        if let Some(health) = &mut self.health {
            health.begin(attempt, Instant::now());
        }
        self.restarts.record_start();
        started
    }
}
