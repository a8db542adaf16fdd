//! Creates an app: first all but its process ([`AppCreation::prepare`]), then a process that waits for its execve
//! ([`ProcessInputs::make`]). A process that is forked for it makes the app's process ([`crate::app::maker`]); only the
//! process of a host pod that starts is made by the supervisor itself.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
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
use crate::app::launcher::{self, MadeProcess, Stdio, WaitingApp};
use crate::app::own_namespaces::AppNamespaces;
use crate::app::user::{self, Ids, UserRequest};
use crate::app::{App, AppInput, AppOutput, OutputSource, ReadSize};
use crate::app::{own_namespaces, terminal, ulimits};
use crate::cgroup::AppCgroup;
use crate::cgroup::devices::Device;
use crate::cgroup::oom::OomTracker;
use crate::failure::{Attempt, Result, failure};
use crate::files::file_systems::FileSystems;
use crate::files::volumes::AppMount;
use crate::files::{mounts, root, volumes};
use crate::health::AppHealth;
use crate::journal::now;
use crate::notify::{self, NotifySocket};
use crate::output::logs::{Log, PartialLine, Stream};
use crate::output::pace::Pace;
use crate::pod::etc;
use crate::pod::jail::{HostFileSystem, Jail};
use crate::pod::user_namespace::UserNamespace;
use crate::seccomp::{FilterCache, FilterInputs};

/// The logs of this many attempts of an app are kept.
const KEPT_ATTEMPTS: u32 = 5;

/// How often the targets of mounts are resolved while other apps may change them.
const MAX_RESOLVE_ATTEMPTS: usize = 64;

/// Kinds of failure that do not come from a path that changes.
const PERMANENT: [ErrorKind; 3] = [ErrorKind::Exhausted, ErrorKind::TimedOut, ErrorKind::Busy];

/// The inputs of creating an app.
pub(crate) struct AppCreation<'a> {
    /// The app.
    pub(crate) app: &'a plan::App,
    /// The pod's UUID.
    pub(crate) pod: &'a str,
    /// Its number in the output protocol.
    pub(crate) number: u16,
    /// The devices of the host that it gets.
    pub(crate) devices: Vec<Device>,
    /// Whether its devices are confined, or all allowed on purpose.
    pub(crate) devices_confined: bool,
    /// The files of /etc.
    pub(crate) etc: &'a [etc::File],
    /// The settings of its log.
    pub(crate) log: LogSettings<'a>,
    /// The host's file system, in a host pod.
    pub(crate) host: Option<&'a Rc<HostFileSystem>>,
    /// The pod's user namespace, if it has one of its own.
    pub(crate) user: Option<&'a Rc<UserNamespace>>,
    /// The system call filters of the pod's apps.
    pub(crate) filters: &'a FilterCache,
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

/// An app without a process.
pub(crate) struct PreparedApp {
    /// Its part of the plan.
    pub(crate) plan: plan::App,
    /// Its root, as mounted in the supervisor's tree (without the volumes).
    pub(crate) root: OwnedFd,
    /// The files of its /etc that gantry has written.
    pub(crate) etc: root::Etc,
    /// Its user, groups and home directory.
    pub(crate) ids: Ids,
    /// Its capabilities and system call filters.
    pub(crate) confinement: Confinement,
    /// The devices of the host that it gets.
    pub(crate) devices: Vec<Device>,
    /// Its cgroups.
    pub(crate) cgroup: AppCgroup,
    number: u16,
    log: Log,
    notify: Option<NotifySocket>,
}

impl AppCreation<'_> {
    /// Makes all of the app but its process.
    pub(crate) fn prepare(self, mut cgroup: AppCgroup) -> Result<PreparedApp> {
        let user = self.user.map(Rc::as_ref);
        user.map_or(Ok(()), |_| UserNamespace::check_app(self.app))?;
        let root = match self.host {
            Some(host) => rustix::io::fcntl_dupfd_cloexec(&host.root, 3).attempt(|| "cannot open the host's root")?,
            None => {
                let root = root::mount_root(self.app, user)?;
                root::check_mount_points(&root)?;
                root
            }
        };
        let ids = user::resolve(&root, &UserRequest::of_app(self.app, user))?;
        let mut etc = root::Etc::default();
        let as_root = user.map(UserNamespace::as_root).transpose()?;
        if self.host.is_none() {
            root::make_working_dir(&root, &self.app.cwd)?;
            etc.write(self.etc, &root, &[])?;
        }
        if AppNamespaces::manages_cgroup(self.app) {
            own_namespaces::check_user(&ids)?;
            etc.write(&[etc::machine_id(self.pod)], &root, &[])?;
            cgroup.delegate()?;
        }
        drop(as_root);
        let confinement = self.confinement()?;
        remove_old_logs(self.app, self.app.attempt);
        let log = open_log(self.app, self.app.attempt, self.log)?;
        let notify = notify::has_socket(self.app).then(|| NotifySocket::create(&self.app.name)).transpose()?;
        Ok(PreparedApp {
            plan: self.app.clone(),
            root,
            etc,
            ids,
            confinement,
            devices: self.devices,
            cgroup,
            number: self.number,
            log,
            notify,
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
        let new_privileges = self.app.options.new_privileges;
        let filters = self.filters.get_or_compile(&FilterInputs {
            seccomp: self.app.options.seccomp.clone(),
            capabilities,
            new_privileges,
            has_storage_limit: self.app.options.storage_limit.is_some(),
        })?;
        let ulimits = self.app.options.ulimits.clone().into();
        let namespaces = AppNamespaces::from_app(self.app);
        let (host, user) = (self.host.cloned(), self.user.cloned());
        Ok(Confinement { capabilities, ambient, filters, new_privileges, ulimits, namespaces, host, user })
    }
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
    /// The app's part of it.
    pub(crate) app: &'a plan::App,
    /// The app's user, groups and home directory.
    pub(crate) ids: &'a Ids,
    /// The app's capabilities and system call filters.
    pub(crate) confinement: &'a Confinement,
    /// The devices of the host that the app gets.
    pub(crate) devices: &'a [Device],
    /// The app's cgroups.
    pub(crate) cgroup: &'a AppCgroup,
    /// The pidfd of the process whose PID namespace the app joins: the pod's PID 1, or the app's target. A pidfd,
    /// because its PID could be that of another one by then. `None` in a host pod.
    pub(crate) pid_target: Option<BorrowedFd<'a>>,
}

impl ProcessInputs<'_> {
    /// Makes the missing volumes of the app, and returns its mounts with their targets resolved in its root.
    pub(crate) fn prepare_mounts(&self, root: &OwnedFd) -> Result<Vec<AppMount>> {
        if self.confinement.host.is_some() {
            return Ok(Vec::new());
        }
        volumes::prepare_mounts(self.plan, self.app, root, self.user())
    }

    /// The same while other apps run. They may exchange directories and links in a volume inside of which another
    /// volume is mounted; a target that leads to a forbidden place at one moment need not do so at the next.
    pub(crate) fn prepare_mounts_beside_apps(&self, root: &OwnedFd) -> Result<Vec<AppMount>> {
        let targets = || self.app.mounts.iter().map(|mount| mount.target.as_str());
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
        if let Some(host) = &self.confinement.host {
            return self.make_on_host(host, None, stdio);
        }
        let file_systems = FileSystems::prepare(self.plan, self.app, root, self.devices, mounts, self.user())?;
        launcher::create(self, &file_systems, &self.command(), stdio)
    }

    fn command(&self) -> Command {
        Command { argv: self.app.argv.clone(), env: confine::environment(&self.app.env, self.ids) }
    }

    /// The pod's user namespace, if it has one of its own.
    fn user(&self) -> Option<&UserNamespace> {
        self.confinement.user.as_deref()
    }

    /// The pidfd of a process in the PID namespace that the process joins, or in which it makes its own; `None`: it
    /// stays in the host's.
    pub(crate) fn pid_target(&self) -> Option<BorrowedFd<'_>> {
        self.pid_target.filter(|_| self.app.options.pid != PidMode::Host)
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
    pub(crate) fn set_oom_score(&self, process: Pid) -> Result<()> {
        let asked = self.app.options.oom_score_adj;
        let score = asked.unwrap_or(0);
        let path = format!("/proc/{}/oom_score_adj", process.as_raw_nonzero());
        match std::fs::write(path, score.to_string()) {
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                if asked.is_some() {
                    tracing::warn!("oom_score_adj of '{}' is not lowered to {score}: {error}", self.app.name);
                }
                Ok(())
            }
            other => other.attempt(|| format!("cannot set oom_score_adj to {score}")),
        }
    }
}

/// Makes an app's stdio. Its user owns the pipes, so that it can open /dev/stdout by name, as with docker and podman.
pub(crate) fn make_stdio(app: &plan::App, null: &OwnedFd, uid: u32) -> Result<terminal::AppStdio> {
    if app.options.terminal {
        return Ok(terminal::AppStdio::terminal());
    }
    let what = || "cannot make the app's pipes";
    let (out, out_app) = pipe().attempt(what)?;
    let (err, err_app) = pipe().attempt(what)?;
    for end in [&out_app, &err_app] {
        terminal::give_pipe_to(end, uid).attempt(what)?;
    }
    let (stdin_app, input) = if app.options.stdin {
        let (stdin_app, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(what)?;
        terminal::give_pipe_to(&stdin_app, uid).attempt(what)?;
        (stdin_app, AppInput::Pipe(Some(writer)))
    } else {
        (rustix::io::fcntl_dupfd_cloexec(null, 3).attempt(what)?, AppInput::None)
    };
    let source = |fd, stream| OutputSource { fd, stream, partial: PartialLine::default(), peer: None };
    let sources = vec![source(out, Stream::Stdout), source(err, Stream::Stderr)];
    Ok(terminal::AppStdio::pipes([stdin_app, out_app, err_app], sources, input))
}

/// A pipe whose reading end, the supervisor's, is non-blocking.
fn pipe() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((reader, writer))
}

impl PreparedApp {
    /// The id on the host of its user.
    pub(crate) fn host_uid(&self) -> Result<u32> {
        host_uid(&self.confinement, &self.ids)
    }

    /// The inputs of making its process.
    pub(crate) fn process_inputs<'a>(
        &'a self,
        plan: &'a Plan,
        pid_target: Option<BorrowedFd<'a>>,
    ) -> ProcessInputs<'a> {
        let Self { plan: app, ids, confinement, devices, cgroup, .. } = self;
        ProcessInputs { plan, app, ids, confinement, devices, cgroup, pid_target }
    }

    /// The app, with the ends of the stdio of its first process, and the initial size of its terminals.
    pub(crate) fn into_app(
        self,
        null: OwnedFd,
        (sources, input): (Vec<OutputSource>, AppInput),
        terminal_size: Option<(u16, u16)>,
    ) -> App {
        let eager = self.plan.options.terminal || self.plan.options.stdin;
        let pace = Pace::new(self.plan.options.limits.cpu_limit_milli(), Instant::now());
        let sources = sources.into_iter().collect();
        let (app_number, read_size) = (self.number, ReadSize::default());
        let output = AppOutput { app_number, log: self.log, sources, eager, flush_at: None, pace, read_size };
        let health = AppHealth::new(&self.plan.options.health, self.plan.health_changes, Instant::now());
        let oom = OomTracker::with_total(self.plan.oom_kills);
        App {
            plan: self.plan,
            root: self.root,
            null: Some(null),
            ids: self.ids,
            confinement: self.confinement,
            devices: self.devices,
            cgroup: self.cgroup,
            waiting: None,
            running: None,
            is_paused: false,
            started: None,
            exit: None,
            output,
            input,
            oom_kills_before: 0,
            oom,
            stop: None,
            restarts: crate::supervise::Restarts::default(),
            operation: None,
            notify: self.notify,
            volumes: Vec::new(),
            health,
            terminal_size,
        }
    }
}

/// The id on the host of an app's user.
fn host_uid(confinement: &Confinement, ids: &Ids) -> Result<u32> {
    confinement.user.as_ref().map_or(Ok(ids.uid), |user| user.host_uid(ids.uid))
}

impl App {
    /// The id on the host of its user.
    pub(crate) fn host_uid(&self) -> Result<u32> {
        host_uid(&self.confinement, &self.ids)
    }

    /// The inputs of making another process.
    pub(crate) fn process_inputs<'a>(
        &'a self,
        plan: &'a Plan,
        pid_target: Option<BorrowedFd<'a>>,
    ) -> ProcessInputs<'a> {
        let Self { plan: app, ids, confinement, devices, cgroup, .. } = self;
        ProcessInputs { plan, app, ids, confinement, devices, cgroup, pid_target }
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
    pub(crate) fn record_start(&mut self, waiting: WaitingApp, attempt: u32) -> Started {
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
