//! Creates and starts apps through libcontainer. No other module calls it, and all calls follow nine rules:
//!
//! 1. The process has one thread, checked before every create.
//! 2. The cgroup path is absolute and below gantry's parent, and libcontainer sees no hierarchy.
//! 3. HOME and PATH are always set.
//! 4. gantry's executor resets signals, loads the filter and reports through a socket of its own.
//! 5. The supervisor writes `oom_score_adj`, between create and start.
//! 6. The configuration holds nothing that libcontainer 0.7.0 ignores.
//! 7. After an error every child is reaped. libcontainer's state is on a tmpfs that is unmounted with the pod.
//! 8. Events of libcontainer are not logged: in an app's process, standard error is the app's.
//! 9. A pidfd is opened right after create, before the process can be reaped.
//!
//! While an app waits for its execve, another app of its pod may run and may trace it (CAP_SYS_PTRACE). Therefore every
//! app of a pod is locked down before the first one is executed: it has none of the supervisor's descriptors (pod
//! directory, cgroup hierarchies, the host's namespaces), only its own capabilities, and its filter. While an app is
//! added to a running pod, the apps that may trace it are frozen until it is locked down ([`crate::maker`]).

use std::collections::HashMap;
use std::convert::Infallible;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use gantry_model::ErrorKind;
use gantry_model::error::chain;
use gantry_model::namespaces::PidMode;
use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags};

use crate::cgroup::AppCgroup;
use crate::cgroup_view::CgroupView;
use crate::confine::{self, Command, Confinement};
use crate::creation::ProcessInputs;
use crate::failure::{Attempt, Result, failure};
use crate::sys::{self, Executable, ForkMark, ForkedChild, SingleThreaded};
use crate::{own_namespaces, passing, refusal, ulimits};

/// Timeout of a started process to reach its execve.
pub(crate) const EXECVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The lowest number of a channel's descriptor in a process of a host pod, which stdio does not overwrite.
const MIN_CHANNEL: RawFd = 3;

/// Timeout of the exit of a process that has forked the first process of a PID namespace.
const FORK_TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// The stdio of an app's process.
pub(crate) struct Stdio {
    /// stdin, stdout and stderr; `None` with a terminal.
    pub(crate) fds: Option<(OwnedFd, OwnedFd, OwnedFd)>,
    /// With a terminal: the path of the socket that libcontainer sends its master to.
    pub(crate) console: Option<String>,
}

/// An app whose process waits for its start.
pub(crate) struct CreatedApp {
    /// The container that waits for its start; `None`: the process is in none and locks itself down.
    container: Option<Container>,
    /// Its process.
    pub(crate) waiting: WaitingApp,
}

/// A process that waits: until [`CreatedApp::lock_down`] for its start, afterwards for its execve.
pub(crate) struct WaitingApp {
    /// The name of its program, for error messages.
    pub(crate) program: String,
    /// The socket through which the process reports its progress and gets the permission to proceed.
    pub(crate) channel: OwnedFd,
    /// The PID of its main process on the host.
    pub(crate) pid: Pid,
    /// To wait for it and to signal it.
    pub(crate) pidfd: OwnedFd,
}

/// Makes the container of the app whose `config.json` is in `/bundles/NAME`: namespaces, mounts, ids; everything but
/// the execve.
pub(crate) fn create(
    app: &str,
    command: Command,
    confinement: &Confinement,
    uid: u32,
    view: CgroupView,
    stdio: Stdio,
) -> Result<CreatedApp> {
    let _thread = SingleThreaded::check().attempt(|| "cannot make a container")?;
    let (channel, its_end) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .attempt(|| "cannot make a socket pair")?;
    if confinement.namespaces.pid == PidMode::App {
        // The app's process is forked by the one that libcontainer makes; its message tells which it is.
        sockopt::set_socket_passcred(&channel, true).attempt(|| "cannot make a socket pair")?;
    }
    let program = command.argv.first().cloned().unwrap_or_default();
    let has_terminal = stdio.console.is_some();
    let executor = AppExecutor {
        command: Rc::new(command),
        confinement: confinement.clone(),
        uid,
        view: Rc::new(view),
        has_terminal,
        mark: Rc::new(ForkMark::new().attempt(|| "cannot mark the supervisor's process")?),
        supervisor_fds: supervisor_fds(&its_end, &stdio)?.into(),
        channel: Rc::new(its_end),
    };
    let container = build(app, executor, stdio).map_err(|error| {
        reap_all();
        failure(ErrorKind::Internal, format!("cannot make the container: {}", chain(&error)))
    })?;
    let pid = container.pid().and_then(|pid| Pid::from_raw(pid.as_raw()));
    let pid = pid.ok_or_else(|| failure(ErrorKind::Internal, "libcontainer made a container without a process"))?;
    let pidfd =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(|| "cannot open the container's process")?;
    Ok(CreatedApp { container: Some(container), waiting: WaitingApp { program, channel, pid, pidfd } })
}

/// Makes a process of a host pod: in `mount_namespace`, the host's. It finds its program and then waits for its execve.
/// `cgroup`: to be made in; `None`: this process is in the app's cgroup.
pub(crate) fn create_on_host(
    inputs: &ProcessInputs<'_>,
    cgroup: Option<&AppCgroup>,
    command: Command,
    mount_namespace: &OwnedFd,
    stdio: Stdio,
) -> Result<CreatedApp> {
    let what = || "cannot make the app's process";
    let thread = SingleThreaded::check().attempt(what)?;
    let (channel, its_end) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).attempt(what)?;
    let Some((stdin, stdout, stderr)) = stdio.fds else {
        return Err(failure(ErrorKind::Invalid, "an app of a host pod cannot have a terminal"));
    };
    let program = command.argv.first().cloned().unwrap_or_default();
    let &ProcessInputs { app, confinement, ids, .. } = inputs;
    let run = |process: ForkedChild, joined: std::io::Result<()>| {
        let enter = || -> std::io::Result<OwnedFd> {
            joined?;
            rustix::process::setsid()?;
            ulimits::raise(&confinement.ulimits)?;
            sys::setns(mount_namespace.as_fd(), libc::CLONE_NEWNS)?;
            rustix::process::umask(Mode::from_raw_mode(0o022));
            let channel = rustix::io::fcntl_dupfd_cloexec(&its_end, MIN_CHANNEL)?;
            rustix::stdio::dup2_stdin(&stdin)?;
            rustix::stdio::dup2_stdout(&stdout)?;
            rustix::stdio::dup2_stderr(&stderr)?;
            sys::set_ids(ids.uid, ids.gid, &ids.groups)?;
            process.close_all_but(&[0, 1, 2, channel.as_raw_fd()])?;
            Ok(channel)
        };
        match enter() {
            Ok(channel) => run_on_host(&channel, &command, confinement, ids.uid, &app.cwd),
            Err(error) => refusal::send(
                &its_end,
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
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(what)?;
    Ok(CreatedApp { container: None, waiting: WaitingApp { program, channel, pid, pidfd } })
}

/// Runs in a process of a host pod, as its user. Returns only on failure.
fn run_on_host(channel: &OwnedFd, command: &Command, confinement: &Confinement, uid: u32, cwd: &str) {
    let prepared = confine::enter_dir(cwd).and_then(|()| confine::prepare(command)).and_then(|program| {
        confinement.lock_down(uid, false)?;
        Ok(program)
    });
    match prepared {
        Ok(program) => wait_and_execute(channel, confinement, &program),
        Err(why) => refusal::send(channel, &why),
    }
}

/// Reports that the process is locked down, waits for the permission and executes the program. Returns only on failure.
fn wait_and_execute(channel: &OwnedFd, confinement: &Confinement, program: &Executable) {
    let mut reply = [0u8; 1];
    let proceed = rustix::io::write(channel, &[PROCEED]).and_then(|_| rustix::io::read(channel, &mut reply));
    if proceed == Ok(1) {
        let (step, error) = confinement.execute(program);
        refusal::send_step(channel, step, &error);
    }
}

/// The supervisor's descriptors, except those made for this app.
fn supervisor_fds(channel: &OwnedFd, stdio: &Stdio) -> Result<Vec<RawFd>> {
    let given = stdio.fds.iter().flat_map(|(stdin, stdout, stderr)| [stdin, stdout, stderr]);
    let own: Vec<RawFd> = given.chain([channel]).map(|fd| fd.as_raw_fd()).collect();
    let mut open = sys::descriptors().attempt(|| "cannot list the supervisor's descriptors")?;
    open.retain(|fd| !own.contains(fd));
    Ok(open)
}

fn build(
    app: &str,
    executor: AppExecutor,
    stdio: Stdio,
) -> std::result::Result<Container, libcontainer::error::LibcontainerError> {
    let mut builder = ContainerBuilder::new(app.to_owned(), SyscallType::default()).with_executor(executor);
    if let Some((stdin, stdout, stderr)) = stdio.fds {
        builder = builder.with_stdin(stdin).with_stdout(stdout).with_stderr(stderr);
    }
    builder
        .with_root_path("/state")?
        .with_console_socket(stdio.console)
        .validate_id()?
        .as_init(format!("/bundles/{app}"))
        .with_systemd(false)
        .with_detach(true)
        .build()
}

/// The byte by which a process reports that it is locked down, and by which it is allowed to execute its program.
const PROCEED: u8 = b'+';

impl CreatedApp {
    /// Makes the process find its program and drop everything that the app does not get. [`WaitingApp::proceed`]
    /// makes it execute the program.
    pub(crate) fn lock_down(&mut self) -> Result<()> {
        if let Some(container) = &mut self.container {
            container.start().map_err(|error| {
                failure(ErrorKind::Internal, format!("cannot start the container: {}", chain(&error)))
            })?;
        }
        let (report, sender) = self.waiting.receive()?;
        match report.as_slice() {
            [PROCEED] => sender.map_or(Ok(()), |sender| self.waiting.follow(sender)),
            [] => Err(failure(ErrorKind::Internal, "the container's process ended before it was confined")),
            report => Err(refusal::read(report, &self.waiting.program)),
        }
    }
}

impl WaitingApp {
    /// Lets the process execute its program.
    pub(crate) fn proceed(&self) -> Result<()> {
        let what = || "cannot make the container's process execute its program";
        rustix::net::send(&self.channel, &[PROCEED], SendFlags::NOSIGNAL).attempt(what).map(drop)
    }

    /// Receives whether the program was executed, after [`Self::proceed`]. Blocks until then.
    pub(crate) fn outcome(&self) -> Result<()> {
        match self.receive()?.0.as_slice() {
            // execve closed the other end.
            [] => Ok(()),
            report => Err(refusal::read(report, &self.program)),
        }
    }

    /// Replaces the process by the one that it forked and that has sent a message, and reaps it.
    fn follow(&mut self, sender: Pid) -> Result<()> {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        if sender == self.pid {
            return Ok(());
        }
        let what = || "cannot find the first process of the app's PID namespace";
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // It exits right after the fork. A process that hangs in the kernel is reaped with the pod.
        let _exited_or_late = poll(&mut fds, Some(&FORK_TIMEOUT));
        let _reaped = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
        // A child of this process only: the number may come from a process that an app controls.
        waitid(WaitId::Pid(sender), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT)
            .attempt(what)?;
        self.pidfd = rustix::process::pidfd_open(sender, PidfdFlags::empty()).attempt(what)?;
        self.pid = sender;
        Ok(())
    }

    /// Receives the next message, with its sender if the kernel reports it; empty if the process has closed its end.
    fn receive(&self) -> Result<(Vec<u8>, Option<Pid>)> {
        let deadline = Instant::now() + EXECVE_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = rustix::event::Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
                tv_nsec: left.subsec_nanos().into(),
            };
            let mut fds = [PollFd::new(&self.channel, PollFlags::IN)];
            if left.is_zero() || poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready == 0) {
                return Err(failure(ErrorKind::TimedOut, "the program was not executed in time"));
            }
            // Every message is one write, and the next one follows only after a reply.
            let mut buffer = [0u8; 8192];
            match passing::receive(&self.channel, &mut buffer, RecvFlags::empty()) {
                Ok(received) => return Ok((buffer[..received.bytes].to_vec(), received.sender)),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error).attempt(|| "cannot read whether the program was executed"),
            }
        }
    }
}

/// Reaps every child that has ended. A failed create of libcontainer leaves two.
pub(crate) fn reap_all() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Runs in the container's process and executes the program.
#[derive(Clone)]
struct AppExecutor {
    command: Rc<Command>,
    confinement: Confinement,
    uid: u32,
    view: Rc<CgroupView>,
    has_terminal: bool,
    mark: Rc<ForkMark>,
    supervisor_fds: Rc<[RawFd]>,
    channel: Rc<OwnedFd>,
}

impl AppExecutor {
    /// Executes the program in this process.
    fn execute(&self) -> ! {
        match confine::prepare(&self.command).and_then(|program| {
            self.confinement.lock_down(self.uid, true)?;
            Ok(program)
        }) {
            Ok(program) => wait_and_execute(&self.channel, &self.confinement, &program),
            Err(why) => refusal::send(&*self.channel, &why),
        }
        sys::exit_now(127)
    }

    /// Forks the first process of a new PID namespace, which executes the program, and exits.
    fn fork_first_process(&self) -> Result<Infallible> {
        let cannot = |error: std::io::Error| {
            failure(ErrorKind::of_io(&error), format!("cannot make the app's own namespaces: {error}"))
        };
        let thread = SingleThreaded::check().map_err(cannot)?;
        let namespaces = &self.confinement.namespaces;
        if namespaces.manages_cgroup {
            own_namespaces::enter_delegated_cgroup().map_err(cannot)?;
        } else {
            // An app that does not see its cgroup runs nevertheless.
            let _without_a_view = self.view.enter();
        }
        let forked = sys::fork(thread, libc::CLONE_NEWPID | libc::CLONE_PARENT, |_| {
            if let Err(error) = own_namespaces::set_up_first_process(namespaces, self.has_terminal) {
                refusal::send(&*self.channel, &cannot(error));
                sys::exit_now(127)
            }
            self.execute()
        });
        forked.map_err(cannot)?;
        sys::exit_now(0)
    }
}

impl Executor for AppExecutor {
    fn exec(&self, _: &Spec) -> std::result::Result<(), ExecutorError> {
        if self.confinement.namespaces.pid == PidMode::App {
            let Err(why) = self.fork_first_process();
            refusal::send(&*self.channel, &why);
            sys::exit_now(127)
        }
        // An app that does not see its cgroup runs nevertheless.
        let _without_a_view = self.view.enter();
        self.execute()
    }

    /// libcontainer calls this in the container's process before that waits for its start.
    fn validate(&self, _: &Spec) -> std::result::Result<(), ExecutorValidationError> {
        let process = self.mark.forked_child();
        let process =
            process.ok_or_else(|| ExecutorValidationError::ArgValidationError("not a forked process".into()))?;
        process.close(&self.supervisor_fds);
        Ok(())
    }

    /// The environment is an argument of execve. The process's own is not changed.
    fn setup_envs(&self, _: HashMap<String, String>) -> std::result::Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
