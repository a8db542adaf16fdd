//! Makes the processes of apps.
//!
//! The maker ([`crate::app::maker`]) prepares what needs the supervisor's rights, and forks the app's process into the
//! app's namespaces. That process sets up the rest in this order, and reports each error through a pipe:
//!
//! 1. a session, its stdio, the pod's user namespace if it has one, its own mount namespace;
//! 2. its file systems ([`crate::files::file_systems`]), and its view of its cgroups ([`crate::cgroup::view`]), which
//!    the maker makes meanwhile;
//! 3. it closes the supervisor's descriptors, and the socket to the maker, and enters the working directory;
//! 4. the app's user; from here on it has the app's capabilities only, and [`confine::ADMIN`] if its filter is loaded
//!    without no_new_privs;
//! 5. it finds its program, and locks itself down ([`Confinement::lock_down`]): signals, limits, the remaining
//!    capabilities, the system call filter;
//! 6. it waits for the permission to execute the program.
//!
//! From 3 on it has pipes only. Another app may control it then, or take its descriptors, and could send descriptors
//! through a socket: closing them may block the supervisor for as long as that app likes (a socket with SO_LINGER).
//!
//! While an app waits for its execve, another app of its pod may run and may trace it (CAP_SYS_PTRACE). Therefore every
//! app of a pod is locked down before the first one is executed: it has none of the supervisor's descriptors (pod
//! directory, cgroup hierarchies, the host's namespaces), only its own capabilities, and its filter. While an app is
//! added to a running pod, the apps that may trace it are frozen until it is locked down ([`crate::app::maker`]).

use std::convert::Infallible;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use gantry_contract::Failure;
use gantry_model::ErrorKind;
use gantry_model::namespaces::PidMode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, WaitOptions};

use crate::app::confine::{self, Command, Confinement};
use crate::app::creation::ProcessInputs;
use crate::app::{App, own_namespaces, refusal, terminal, ulimits};
use crate::cgroup::AppCgroup;
use crate::cgroup::view::CgroupView;
use crate::failure::{Attempt, Result, failure};
use crate::files::file_systems::{FileSystems, Opened};
use crate::passing;
use crate::pod::inheritance;
use crate::pod::user_namespace::UserNamespace;
use crate::sys::{self, Executable, ForkedChild, SingleThreaded};

/// Timeout of a started process to reach its execve.
pub(crate) const EXECVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The message with which a process sends its `/dev/null`, and the master of its terminal if it has one.
const OPENED: u8 = b'o';

/// The message with which the maker sends the mounts of the app's view of its cgroups.
const VIEW: u8 = b'v';

/// The message with which the first process of a PID namespace is sent to the maker.
const FORKED: u8 = b'f';

/// The message with which a process reports that it is locked down, and with which it is allowed to execute its
/// program.
const PROCEED: u8 = b'+';

/// stdin, stdout and stderr of an app's process; `None` with a terminal.
pub(crate) type Stdio = Option<[OwnedFd; 3]>;

/// A process that is locked down and waits for its execve.
pub(crate) struct WaitingProcess {
    /// The name of its program, for error messages.
    pub(crate) program: String,
    /// The reading end, non-blocking, of the pipe through which the process reports its progress.
    pub(crate) report: OwnedFd,
    /// The writing end, non-blocking, of the pipe through which it gets the permission to proceed.
    pub(crate) permission: OwnedFd,
    /// The PID of its main process on the host.
    pub(crate) pid: Pid,
    /// To wait for it and to signal it.
    pub(crate) pidfd: OwnedFd,
}

/// The other ends of the pipes, which the process has.
struct ProcessPipes {
    report: OwnedFd,
    permission: OwnedFd,
}

impl ProcessPipes {
    fn as_raw_fds(&self) -> [RawFd; 2] {
        [self.report.as_raw_fd(), self.permission.as_raw_fd()]
    }
}

/// Makes the pipes of a process: the ends of [`WaitingProcess`], first `report`, and those of the process.
///
/// Another app that controls the process may open either pipe in /proc, read what a poll has announced, or fill it.
fn waiting_pipes() -> rustix::io::Result<([OwnedFd; 2], ProcessPipes)> {
    let (report, its_report) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    let (its_permission, permission) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&permission, true)?;
    Ok(([report, permission], ProcessPipes { report: its_report, permission: its_permission }))
}

/// The process of an app, with what the supervisor keeps of its file systems.
pub(crate) struct MadeProcess {
    /// The process.
    pub(crate) waiting: WaitingProcess,
    /// Its `/dev/null`, opened before its program is executed: the app may replace the file later.
    pub(crate) null: OwnedFd,
    /// The master of its terminal, if it has one.
    pub(crate) terminal: Option<OwnedFd>,
}

/// Makes the process of an app in its namespaces. This process, the maker, is in the app's cgroup.
pub(crate) fn create(
    inputs: &ProcessInputs<'_>,
    file_systems: &FileSystems<'_>,
    command: &Command,
    stdio: Stdio,
) -> Result<MadeProcess> {
    let what = || "cannot make the app's process";
    let thread = SingleThreaded::check().attempt(what)?;
    let (channel, its_end) = channel_pair().attempt(what)?;
    let (pipes, its_pipes) = waiting_pipes().attempt(what)?;
    let App { plan: app, confinement, cgroup, .. } = inputs.app;
    ulimits::raise(&app.options.ulimits).attempt(|| "cannot raise the limits of the app")?;
    if let Some(target) = inputs.pid_target() {
        sys::setns(target, libc::CLONE_NEWPID).attempt(|| "cannot enter the PID namespace of the app")?;
    }
    let view = made_by_maker(confinement).then(|| cgroup.view(app.options.privileged));
    // Without the namespace, the mounts would show every cgroup of the host.
    let has_namespace = view.is_none() || sys::unshare(libc::CLONE_NEWCGROUP).is_ok();
    let child = |process: ForkedChild| {
        let Err(why) = run(&process, inputs, file_systems, command, stdio, (&its_end, &its_pipes));
        refusal::send(&its_pipes.report, &why);
        sys::exit_now(127)
    };
    let pid = match confinement.namespaces.pid {
        PidMode::App => fork_first(thread, confinement.user.as_deref(), file_systems, child)?,
        PidMode::Pod | PidMode::Host => sys::fork(thread, libc::CLONE_NEWNS, child).attempt(what)?,
    };
    // From here on the channel and the pipes end with the process.
    drop((its_end, its_pipes));
    let waiting = WaitingProcess::new(inputs.app, pipes, pid)?;
    inputs.set_oom_score(pid)?;
    if let Some(view) = view {
        let mounts = if has_namespace { view.make_mounts().unwrap_or_default() } else { Vec::new() };
        let mounts: Vec<_> = mounts.iter().map(OwnedFd::as_fd).collect();
        // A process that has ended has sent why.
        let _reported_below = passing::send(&channel, &[VIEW], &mounts, SendFlags::empty());
    }
    let mut fds = match receive_opened(&channel)? {
        Some(fds) => fds,
        None => return Err(waiting.read_refusal()?),
    };
    let terminal = app.options.terminal.then(|| fds.pop()).flatten();
    let null = fds.pop();
    let null = null.ok_or_else(|| failure(ErrorKind::Internal, "the app's process sent no null device"))?;
    waiting.wait_for_lock_down()?;
    Ok(MadeProcess { waiting, null, terminal })
}

/// Receives what a process keeps open for the supervisor; `None`: it has ended, and reported why.
fn receive_opened(channel: &OwnedFd) -> Result<Option<Vec<OwnedFd>>> {
    let deadline = Instant::now() + EXECVE_TIMEOUT;
    loop {
        wait_until_readable(channel, deadline)?;
        let mut message = [0u8; 1];
        match passing::receive(channel, &mut message, RecvFlags::DONTWAIT) {
            Ok(received) => return Ok((received.bytes == 1 && message == [OPENED]).then_some(received.fds)),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // It has ended without reading what the maker has sent.
            Err(Errno::CONNRESET) => return Ok(None),
            Err(error) => return Err(error).attempt(|| "cannot receive from the app's process"),
        }
    }
}

/// Forks the first process of a PID namespace nested in the pod's. The maker cannot do that itself: it has entered the
/// pod's PID namespace only for its children (pid_namespaces(7)). So it forks a process there, which forks this one. If
/// the pod has a user namespace, that process joins it first, so that the new namespace belongs to it.
fn fork_first(
    thread: SingleThreaded,
    user: Option<&UserNamespace>,
    file_systems: &FileSystems<'_>,
    child: impl FnOnce(ForkedChild) -> Infallible,
) -> Result<Pid> {
    let what = || "cannot make the app's process";
    let (receiver, sender) = channel_pair().attempt(what)?;
    let of_forker = if user.is_some() { libc::CLONE_NEWNS } else { 0 };
    let fork = |_: ForkedChild| {
        let flags = libc::CLONE_NEWNS | libc::CLONE_NEWPID | libc::CLONE_PARENT;
        let joined = user.map_or(Ok(()), |user| join(user, file_systems));
        let forked = joined.and_then(|()| {
            let pid = sys::fork(thread, flags, child).attempt(what)?;
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(what)
        });
        match &forked {
            Ok(process) => {
                let _maker_has_gone = passing::send(&sender, &[FORKED], &[process.as_fd()], SendFlags::empty());
            }
            Err(why) => refusal::send(&sender, why),
        }
        sys::exit_now(0)
    };
    let forker = sys::fork(thread, of_forker, fork).attempt(what)?;
    drop(sender);
    let mut report = [0; 8192];
    let received = passing::receive(&receiver, &mut report, RecvFlags::empty());
    let _reaped = rustix::process::waitpid(Some(forker), WaitOptions::empty());
    let received = received.attempt(what)?;
    match (received.fds.first(), &report[..received.bytes]) {
        (Some(process), _) => pid_of(process).attempt(what),
        (None, []) => Err(ended_early()),
        (None, report) => Err(refusal::read(report, "")),
    }
}

/// Attaches the mounts whose flags are to be locked, then joins the pod's user namespace.
fn join(user: &UserNamespace, file_systems: &FileSystems<'_>) -> Result<()> {
    file_systems.attach_before_joining(user)?;
    user.join().attempt(|| "cannot enter the user namespace")
}

/// The PID of a process in this PID namespace (proc_pid_fdinfo(5)).
fn pid_of(process: &OwnedFd) -> std::io::Result<Pid> {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.as_raw_fd()))?;
    let number = text.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    number.and_then(Pid::from_raw).ok_or_else(|| std::io::Error::from_raw_os_error(libc::ESRCH))
}

fn channel_pair() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

fn ended_early() -> Failure {
    failure(ErrorKind::Internal, "the app's process ended before it was confined")
}

/// Runs in the app's process. Returns only on failure.
fn run(
    process: &ForkedChild,
    inputs: &ProcessInputs<'_>,
    file_systems: &FileSystems<'_>,
    command: &Command,
    stdio: Stdio,
    (channel, pipes): (&OwnedFd, &ProcessPipes),
) -> Result<Infallible> {
    let App { plan: app, confinement, ids, cgroup, .. } = inputs.app;
    enter(inputs, file_systems, stdio, channel)?;
    if confinement.namespaces.manages_cgroup {
        own_namespaces::enter_delegated_cgroup().attempt(|| "cannot mount the app's cgroup")?;
    } else {
        attach_view(&cgroup.view(app.options.privileged), made_by_maker(confinement), channel)?;
    }
    file_systems.complete()?;
    // Before the working directory, which could otherwise be one of the supervisor's (CVE-2024-21626).
    process.close_all_but(&pipes.as_raw_fds()).attempt(|| "cannot close the supervisor's descriptors")?;
    // As root, because the app's user may lack the right; where root lacks it, as the user.
    let as_root = confine::enter_dir(&app.cwd);
    confinement.become_user(ids, confinement.needs_admin())?;
    as_root.or_else(|_| confine::enter_dir(&app.cwd))?;
    let program = confine::prepare(command)?;
    confinement.lock_down(ids.uid, confinement.needs_admin())?;
    wait_and_execute(pipes, confinement, &program);
    sys::exit_now(127)
}

/// Whether the maker makes the app's view of its cgroups.
fn made_by_maker(confinement: &Confinement) -> bool {
    confinement.user.is_none() && !confinement.namespaces.manages_cgroup
}

/// Mounts the app's view of its cgroups, which the maker sends, or which this process makes.
fn attach_view(view: &CgroupView, made_by_maker: bool, channel: &OwnedFd) -> Result<()> {
    let mounts = if made_by_maker {
        let received =
            passing::receive(channel, &mut [0; 1], RecvFlags::empty()).attempt(|| "cannot receive mounts")?;
        if received.bytes == 0 {
            return Err(ended_early());
        }
        received.fds
    } else {
        let made = sys::unshare(libc::CLONE_NEWCGROUP).and_then(|()| view.make_mounts());
        made.unwrap_or_default()
    };
    // An app that does not see its cgroup runs nevertheless.
    let _without_a_view = view.attach_mounts(&mounts);
    Ok(())
}

/// Enters the namespaces and the file systems of the app, and sends what the supervisor keeps of them.
fn enter(inputs: &ProcessInputs<'_>, file_systems: &FileSystems<'_>, stdio: Stdio, channel: &OwnedFd) -> Result<()> {
    let what = || "cannot set up the app's process";
    rustix::process::setsid().attempt(what)?;
    // Apps share no keys.
    inheritance::join_new_keyring().attempt(|| "cannot join a new session keyring")?;
    let namespaces = &inputs.app.confinement.namespaces;
    // The first process of a PID namespace was forked in the user namespace.
    if let Some(user) = inputs.app.confinement.user.as_ref().filter(|_| namespaces.pid != PidMode::App) {
        join(user, file_systems)?;
        sys::unshare(libc::CLONE_NEWNS).attempt(|| "cannot make a mount namespace")?;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let Opened { null, terminal } = file_systems.enter(&namespaces.covered, inputs.app.ids.uid)?;
    match (&stdio, &terminal) {
        (_, Some((_, peer))) => sys::controlling_terminal(peer.as_fd())
            .and_then(|()| terminal::set_stdio([peer, peer, peer]))
            .attempt(|| "cannot open the app's terminal")?,
        (Some(given), None) => terminal::replace_null(given, &null).and_then(terminal::set_stdio).attempt(what)?,
        (None, None) => return Err(failure(ErrorKind::Internal, "an app has neither pipes nor a terminal")),
    }
    let fds: Vec<_> =
        [&null].into_iter().chain(terminal.as_ref().map(|(master, _)| master)).map(|fd| fd.as_fd()).collect();
    passing::send(channel, &[OPENED], &fds, SendFlags::empty()).attempt(what)
}

/// Makes a process of a host pod: in `mount_namespace`, the host's. It finds its program and then waits for its execve.
/// `cgroup`: to be made in; `None`: this process is in the app's cgroup.
pub(crate) fn create_on_host(
    inputs: &ProcessInputs<'_>,
    cgroup: Option<&AppCgroup>,
    command: Command,
    mount_namespace: &OwnedFd,
    stdio: Stdio,
) -> Result<WaitingProcess> {
    let what = || "cannot make the app's process";
    let thread = SingleThreaded::check().attempt(what)?;
    let (pipes, its_pipes) = waiting_pipes().attempt(what)?;
    let Some(stdio) = stdio else {
        return Err(failure(ErrorKind::Invalid, "an app of a host pod cannot have a terminal"));
    };
    let App { plan: app, confinement, ids, .. } = inputs.app;
    let run = |process: ForkedChild, joined: std::io::Result<()>| {
        let enter = || -> std::io::Result<()> {
            joined?;
            rustix::process::setsid()?;
            ulimits::raise(&confinement.ulimits)?;
            sys::setns(mount_namespace.as_fd(), libc::CLONE_NEWNS)?;
            rustix::process::umask(Mode::from_raw_mode(0o022));
            terminal::set_stdio(stdio.each_ref())?;
            sys::set_ids(ids.uid, ids.gid, &ids.groups)?;
            process.close_all_but(&its_pipes.as_raw_fds())
        };
        match enter() {
            Ok(()) => run_on_host(&its_pipes, &command, confinement, ids.uid, &app.cwd),
            Err(error) => refusal::send(
                &its_pipes.report,
                &failure(ErrorKind::of_io(&error), format!("cannot set up the app's process: {error}")),
            ),
        }
        sys::exit_now(127)
    };
    let pid = match cgroup {
        Some(cgroup) => cgroup.fork_into(thread, run),
        None => sys::fork(thread, 0, |process| run(process, Ok(()))),
    };
    let pid = pid.attempt(what)?;
    // From here on the pipes end with the process.
    drop(its_pipes);
    let waiting = WaitingProcess::new(inputs.app, pipes, pid)?;
    inputs.set_oom_score(waiting.pid)?;
    waiting.wait_for_lock_down()?;
    Ok(waiting)
}

/// Runs in a process of a host pod, as its user. Returns only on failure.
fn run_on_host(pipes: &ProcessPipes, command: &Command, confinement: &Confinement, uid: u32, cwd: &str) {
    let prepared = confine::enter_dir(cwd).and_then(|()| confine::prepare(command)).and_then(|program| {
        confinement.lock_down(uid, false)?;
        Ok(program)
    });
    match prepared {
        Ok(program) => wait_and_execute(pipes, confinement, &program),
        Err(why) => refusal::send(&pipes.report, &why),
    }
}

/// Reports that the process is locked down, waits for the permission and executes the program. Returns only on failure.
fn wait_and_execute(pipes: &ProcessPipes, confinement: &Confinement, program: &Executable) {
    let reported = rustix::io::write(&pipes.report, &[PROCEED]);
    let proceed = reported.and_then(|_| rustix::io::read(&pipes.permission, &mut [0u8; 1]));
    if proceed == Ok(1) {
        let (step, error) = confinement.execute(program);
        refusal::send_step(&pipes.report, step, &error);
    }
}

/// Waits until a message, or the end of a socket or pipe, can be read.
fn wait_until_readable(fd: &OwnedFd, deadline: Instant) -> Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(0), tv_nsec: left.subsec_nanos().into() };
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    if left.is_zero() || poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready == 0) {
        return Err(failure(ErrorKind::TimedOut, "the program was not executed in time"));
    }
    Ok(())
}

impl WaitingProcess {
    /// A process that was just forked, and that has not been reaped.
    fn new(app: &App, [report, permission]: [OwnedFd; 2], pid: Pid) -> Result<Self> {
        let pidfd =
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(|| "cannot open the app's process")?;
        Ok(Self { program: app.program(), report, permission, pid, pidfd })
    }

    /// Waits until the process is locked down.
    fn wait_for_lock_down(&self) -> Result<()> {
        match self.receive()?.as_slice() {
            [PROCEED] => Ok(()),
            report => Err(self.refusal(report)),
        }
    }

    /// Receives why the process has ended before it was locked down.
    fn read_refusal(&self) -> Result<Failure> {
        Ok(self.refusal(&self.receive()?))
    }

    fn refusal(&self, report: &[u8]) -> Failure {
        if report.is_empty() { ended_early() } else { refusal::read(report, &self.program) }
    }

    /// Lets the process execute its program.
    pub(crate) fn proceed(&self) -> Result<()> {
        let what = || "cannot make the app's process execute its program";
        rustix::io::write(&self.permission, &[PROCEED]).attempt(what).map(drop)
    }

    /// Waits until the program was executed, after [`Self::proceed`].
    pub(crate) fn wait_for_outcome(&self) -> Result<()> {
        self.outcome_of(&self.receive()?)
    }

    /// Whether the program was executed, after [`Self::proceed`]; `None`: this is not known yet.
    pub(crate) fn outcome(&self) -> Option<Result<()>> {
        Some(self.try_receive()?.and_then(|report| self.outcome_of(&report)))
    }

    fn outcome_of(&self, report: &[u8]) -> Result<()> {
        match report {
            // execve closed the other end.
            [] => Ok(()),
            report => Err(refusal::read(report, &self.program)),
        }
    }

    /// Waits for the next report; empty if the process has closed its end.
    fn receive(&self) -> Result<Vec<u8>> {
        let deadline = Instant::now() + EXECVE_TIMEOUT;
        loop {
            wait_until_readable(&self.report, deadline)?;
            if let Some(report) = self.try_receive() {
                return report;
            }
        }
    }

    /// Receives the next report; `None` if there is none yet.
    fn try_receive(&self) -> Option<Result<Vec<u8>>> {
        let mut buffer = [0u8; 8192];
        match rustix::io::read(&self.report, &mut buffer) {
            Ok(length) => Some(Ok(buffer[..length].to_vec())),
            Err(Errno::INTR | Errno::AGAIN) => None,
            Err(error) => Some(Err(error).attempt(|| "cannot read whether the program was executed")),
        }
    }
}
