//! The seam to libcontainer: create and start an app, nothing else. The nine rules for calling it are kept here.
//!
//! 1. There is one thread, checked before every create.
//! 2. The cgroup path is absolute and ours, and no hierarchy is visible.
//! 3. HOME and PATH are always set.
//! 4. Our executor resets signals, loads the filter and reports through a socket of ours.
//! 5. `oom_score_adj` is written by us, between create and start.
//! 6. The configuration holds nothing that 0.7.0 ignores.
//! 7. After an error every child is reaped; its state is on a tmpfs that goes with the pod.
//! 8. Nothing logs from here.
//! 9. A pidfd is opened right after create, before anything could reap.
//!
//! While an app waits for its execve, another of its pod may run and may trace it (CAP_SYS_PTRACE). By then it has none of the
//! supervisor's descriptors (the pod directory's, the hierarchies' of cgroups, those of the host's namespaces), no capability that
//! is not the app's, and its filter: every app of a pod is locked down before the first one is executed.

use std::collections::HashMap;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use gantry_model::ErrorKind;
use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};

use crate::confine::{self, Command, Confinement};
use crate::failure::{Attempt, Result, chain, failure};
use crate::{refusal, sys};

/// How long a started process may take to reach its execve.
pub(crate) const EXECVE_TIMEOUT: Duration = Duration::from_secs(20);

/// What an app's process is given.
pub(crate) struct Stdio {
    /// Its stdin, stdout and stderr; `None` with a terminal.
    pub(crate) fds: Option<(OwnedFd, OwnedFd, OwnedFd)>,
    /// With a terminal: the path of the socket to which its master is sent.
    pub(crate) console: Option<String>,
}

/// An app that libcontainer has made and that waits for its start.
pub(crate) struct Created {
    container: Container,
    /// The name of its program.
    program: String,
    /// Through which the process says how far it is, and is told to go on.
    channel: OwnedFd,
    /// Its main process, on the host.
    pub(crate) pid: Pid,
    /// To wait for it and to signal it.
    pub(crate) pidfd: OwnedFd,
}

/// Makes the app whose `config.json` is in `/bundles/NAME`: namespaces, mounts, ids; everything but the execve.
pub(crate) fn create(
    app: &str,
    command: Command,
    confinement: &Confinement,
    uid: u32,
    stdio: Stdio,
) -> Result<Created> {
    sys::assert_single_threaded().attempt(|| "cannot make a container")?;
    let (channel, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .attempt(|| "cannot make a socket pair")?;
    let program = command.argv.first().cloned().unwrap_or_default();
    let executor = Become {
        command: Rc::new(command),
        confinement: confinement.clone(),
        uid,
        foreign: foreign(&theirs, &stdio)?.into(),
        channel: Rc::new(theirs),
    };
    let container = build(app, executor, stdio).map_err(|error| {
        reap_all();
        failure(ErrorKind::Internal, format!("cannot make the container: {}", chain(&error)))
    })?;
    let pid = container.pid().and_then(|pid| Pid::from_raw(pid.as_raw()));
    let pid = pid.ok_or_else(|| failure(ErrorKind::Internal, "libcontainer made a container without a process"))?;
    let pidfd =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(|| "cannot open the container's process")?;
    Ok(Created { container, program, channel, pid, pidfd })
}

/// What the supervisor has open and an app has no use for: all but what is made for this one.
fn foreign(channel: &OwnedFd, stdio: &Stdio) -> Result<Vec<RawFd>> {
    let given = stdio.fds.iter().flat_map(|(stdin, stdout, stderr)| [stdin, stdout, stderr]);
    let own: Vec<RawFd> = given.chain([channel]).map(|fd| fd.as_raw_fd()).collect();
    let mut open = sys::descriptors().attempt(|| "cannot list the supervisor's descriptors")?;
    open.retain(|fd| !own.contains(fd));
    Ok(open)
}

fn build(
    app: &str,
    executor: Become,
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

/// What a process says when it is locked down, and what it is told then.
const GO: u8 = b'+';

impl Created {
    /// Has the process find its program and give up what the app does not have, and waits until it did. It is executed by
    /// [`Self::execute`].
    pub(crate) fn lock_down(&mut self) -> Result<()> {
        self.container
            .start()
            .map_err(|error| failure(ErrorKind::Internal, format!("cannot start the container: {}", chain(&error))))?;
        match self.hear()?.as_slice() {
            [GO] => Ok(()),
            [] => Err(failure(ErrorKind::Internal, "the container's process ended before it was confined")),
            told => Err(refusal::read(told, &self.program)),
        }
    }

    /// Executes the program and waits until that is done.
    pub(crate) fn execute(self) -> Result<(Pid, OwnedFd)> {
        let what = || "cannot tell the container's process to go on";
        rustix::net::send(&self.channel, &[GO], SendFlags::NOSIGNAL).attempt(what)?;
        match self.hear()?.as_slice() {
            // execve closed the other end.
            [] => Ok((self.pid, self.pidfd)),
            told => Err(refusal::read(told, &self.program)),
        }
    }

    /// What the process says next; nothing at its end.
    fn hear(&self) -> Result<Vec<u8>> {
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
            // One write of the process's, so one read.
            let mut buffer = [0u8; 8192];
            match rustix::io::read(&self.channel, &mut buffer) {
                Ok(length) => return Ok(buffer[..length].to_vec()),
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(error) => return Err(error).attempt(|| "cannot learn whether the program was executed"),
            }
        }
    }
}

/// Takes the exit status of every child that has ended. After a failed create libcontainer leaves two.
pub(crate) fn reap_all() {
    while let Ok(Some(_)) = rustix::process::wait(rustix::process::WaitOptions::NOHANG) {}
}

/// Runs in the container's process: in place of libcontainer's own way of executing the program.
#[derive(Clone)]
struct Become {
    command: Rc<Command>,
    confinement: Confinement,
    uid: u32,
    /// The supervisor's descriptors.
    foreign: Rc<[RawFd]>,
    channel: Rc<OwnedFd>,
}

impl Executor for Become {
    fn exec(&self, _: &Spec) -> std::result::Result<(), ExecutorError> {
        match confine::prepare(&self.command).and_then(|program| {
            self.confinement.lock_down(self.uid)?;
            Ok(program)
        }) {
            Ok(program) => {
                let mut go = [0u8; 1];
                let told =
                    rustix::io::write(&*self.channel, &[GO]).and_then(|_| rustix::io::read(&*self.channel, &mut go));
                if told == Ok(1) {
                    let (step, error) = self.confinement.execute(&program);
                    refusal::tell_step(&*self.channel, step, &error);
                }
            }
            Err(why) => refusal::tell(&*self.channel, &why),
        }
        sys::exit_now(127)
    }

    /// Called in the container's process before it waits for its start, and before any app of the pod has started.
    fn validate(&self, _: &Spec) -> std::result::Result<(), ExecutorValidationError> {
        sys::close_all_of(&self.foreign);
        Ok(())
    }

    /// The environment goes to execve directly; the process's own is left alone.
    fn setup_envs(&self, _: HashMap<String, String>) -> std::result::Result<(), ExecutorSetEnvsError> {
        Ok(())
    }
}
