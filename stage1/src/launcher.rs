//! The seam to libcontainer: create and start an app, nothing else. The nine rules for calling it are kept here.
//!
//! 1. There is one thread, checked before every create.
//! 2. The cgroup path is absolute and ours, and no hierarchy is visible.
//! 3. HOME and PATH are always set.
//! 4. Our executor resets signals, loads the filter and reports through a pipe of ours.
//! 5. `oom_score_adj` is written by us, between create and start.
//! 6. The configuration holds nothing that 0.7.0 ignores.
//! 7. After an error every child is reaped; its state is on a tmpfs that goes with the pod.
//! 8. Nothing logs from here.
//! 9. A pidfd is opened right after create, before anything could reap.
//!
//! While an app waits for its start, another of its pod may run and may trace it (CAP_SYS_PTRACE). It has none of the
//! supervisor's descriptors by then: the pod directory's, the hierarchies' of cgroups, those of the host's namespaces.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd, RawFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use gantry_model::ErrorKind;
use libcontainer::container::Container;
use libcontainer::container::builder::ContainerBuilder;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::syscall::syscall::SyscallType;
use libcontainer::workload::{Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};

use crate::confine::{self, Command, Confinement};
use crate::failure::{Attempt, Result, chain, failure};
use crate::sys;

/// How long a started process may take to reach its execve.
pub(crate) const EXECVE_DEADLINE: Duration = Duration::from_secs(20);

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
    failure: OwnedFd,
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
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(|| "cannot make a pipe")?;
    let executor = Become {
        command: Rc::new(command),
        confinement: confinement.clone(),
        uid,
        foreign: foreign(&writer, &stdio)?.into(),
        failure: Rc::new(writer),
    };
    let container = build(app, executor, stdio).map_err(|error| {
        reap_all();
        failure(ErrorKind::Internal, format!("cannot make the container: {}", chain(&error)))
    })?;
    let pid = container.pid().and_then(|pid| Pid::from_raw(pid.as_raw()));
    let pid = pid.ok_or_else(|| failure(ErrorKind::Internal, "libcontainer made a container without a process"))?;
    let pidfd =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(|| "cannot open the container's process")?;
    Ok(Created { container, failure: reader, pid, pidfd })
}

/// What the supervisor has open and an app has no use for: all but what is made for this one.
fn foreign(failure: &OwnedFd, stdio: &Stdio) -> Result<Vec<RawFd>> {
    let given = stdio.fds.iter().flat_map(|(stdin, stdout, stderr)| [stdin, stdout, stderr]);
    let own: Vec<RawFd> = given.chain([failure]).map(|fd| fd.as_raw_fd()).collect();
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

impl Created {
    /// Lets the process go on and waits until it has become the program, or said why it could not.
    pub(crate) fn start(mut self) -> Result<(Pid, OwnedFd)> {
        self.container
            .start()
            .map_err(|error| failure(ErrorKind::Internal, format!("cannot start the container: {}", chain(&error))))?;
        wait_for_execve(&self.failure)?;
        Ok((self.pid, self.pidfd))
    }
}

/// Reads the pipe that execve closes: nothing in it means that the program runs.
fn wait_for_execve(pipe: &OwnedFd) -> Result<()> {
    let deadline = Instant::now() + EXECVE_DEADLINE;
    let mut text = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = rustix::event::Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(0),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(pipe, PollFlags::IN)];
        if left.is_zero() || poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready == 0) {
            return Err(failure(ErrorKind::TimedOut, "the program was not executed in time"));
        }
        let mut buffer = [0u8; 4096];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(&buffer[..n]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(error).attempt(|| "cannot learn whether the program was executed"),
        }
    }
    if text.is_empty() { Ok(()) } else { Err(refusal(&text)) }
}

/// What [`tell`] said.
pub(crate) fn refusal(text: &[u8]) -> gantry_contract::Failure {
    let text = String::from_utf8_lossy(text);
    let (kind, message) = text.split_once('\t').unwrap_or(("internal", &text));
    gantry_contract::Failure { kind: kind.to_owned(), message: message.to_owned(), app: None }
}

/// Says through the pipe why a program was not executed.
pub(crate) fn tell(pipe: impl AsFd, why: &crate::program::Unexecutable) {
    let _ = rustix::io::write(pipe, format!("{}\t{}", why.kind, why.message).as_bytes());
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
    failure: Rc<OwnedFd>,
}

impl Executor for Become {
    fn exec(&self, _: &Spec) -> std::result::Result<(), ExecutorError> {
        let why = confine::become_program(&self.command, &self.confinement, self.uid);
        tell(self.failure.as_fd(), &why);
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
