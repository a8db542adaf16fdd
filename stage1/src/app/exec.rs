//! Runs an additional program in an app, with exactly the app's confinement: the same namespaces, cgroups,
//! capabilities, system call filter and no_new_privs.
//!
//! An exec takes two processes. The helper, a fork of the supervisor, stays outside the pod's PID namespace, where no
//! app can see it. It joins the app's cgroups and mount namespace, drops every right and descriptor that the program
//! does not get, loads the app's filter, and only then forks the program's process into the pod's PID namespace. An app
//! that may trace other processes (CAP_SYS_PTRACE) therefore finds only processes confined like itself.
//!
//! # The program's process is hostile
//!
//! An app may control it, or take its descriptors (pidfd_getfd(2)), before it executes the program. It has no socket:
//! through one it could send descriptors, and closing them may block for as long as the app likes (a socket with
//! SO_LINGER). Nor does it name itself: its PID could be that of another process.
//!
//! * The helper sends the master of the terminal through a socket that it closes before its fork.
//! * The kernel writes the PID to a file ([`sys::PidRecord`]) that only the supervisor and the helper have, before the
//!   process runs. So the PID is known also if the OOM killer chooses the helper, which is in the app's memory cgroup.
//! * The process first takes a permission, which exists once (an eventfd). A supervisor that gives up the exec takes it
//!   before it reads the PID: if there is no PID yet, the process finds no permission and exits.
//! * It reports failures through a pipe. What it can do to the descriptors does not make the supervisor's calls block.

use std::convert::Infallible;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::time::Instant;

use gantry_contract::control;
use gantry_host::file::in_memory;
use gantry_model::ErrorKind;
use gantry_model::namespaces::PidMode;
use gantry_model::terminal::{DEFAULT_SIZE, TERM};
use rustix::event::EventfdFlags;
use rustix::io::ReadWriteFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};

use crate::app::App;
use crate::app::confine::{self, Command};
use crate::app::launcher::EXECVE_TIMEOUT;
use crate::app::refusal::{self, Step};
use crate::app::user::{self, Ids, UserRequest};
use crate::app::{terminal, ulimits};
use crate::failure::{Attempt, Result, failure};
use crate::passing;
use crate::pod::inheritance;
use crate::pod::user_namespace::UserNamespace;
use crate::sys::{self, Executable, ForkedChild, PidRecord, SingleThreaded};

/// An exec whose program has not been executed yet. The supervisor does not block on it: an app can stop the program's
/// process (SIGSTOP) for any length of time.
pub(crate) struct PendingExec {
    helper_pidfd: OwnedFd,
    /// The reading end of a pipe that the helper and the program's process write an error to. Both have closed it when
    /// the program is executed.
    pub(crate) failed: OwnedFd,
    /// When the exec times out.
    pub(crate) deadline: Instant,
    /// The file with the PID of the program's process; 0: it was not forked yet.
    program_pid: OwnedFd,
    /// The permission to execute the program: 1, or 0 after it was taken.
    permission: OwnedFd,
    /// The socket through which the helper sends the master of the program's terminal, if it has one.
    terminal: Option<OwnedFd>,
    /// The name of the program, for error messages.
    program: String,
}

/// A program that was executed.
pub(crate) struct ExecProcess {
    /// Its PID on the host.
    pub(crate) pid: Pid,
    /// To wait for it and to kill it.
    pub(crate) pidfd: OwnedFd,
    /// The master of its terminal, if it has one.
    pub(crate) master: Option<OwnedFd>,
}

impl PendingExec {
    /// The result, once `failed` is readable, and the pidfds of processes that are ending and must be reaped.
    pub(crate) fn outcome(self) -> (Result<ExecProcess>, Vec<OwnedFd>) {
        let mut text = [0u8; 4096];
        let error = match rustix::io::read(&self.failed, &mut text) {
            Ok(0) => {
                if let Some((pid, pidfd)) = self.open_program() {
                    let master = self.terminal.as_ref().and_then(receive_master);
                    return (Ok(ExecProcess { pid, pidfd, master }), vec![self.helper_pidfd]);
                }
                failure(ErrorKind::Internal, "the process that starts the program was killed")
            }
            Ok(n) => refusal::read(&text[..n], &self.program),
            Err(error) => {
                failure(ErrorKind::of_io(&error.into()), format!("cannot read the result of an exec: {error}"))
            }
        };
        (Err(error), self.kill())
    }

    /// Kills its processes; returns the pidfds of those that must be reaped.
    pub(crate) fn kill(self) -> Vec<OwnedFd> {
        // Does not block if the program's process has made the descriptor blocking. It fails if that process has taken
        // the permission: then its PID is known.
        let mut number = [0u8; 8];
        let mut number = [IoSliceMut::new(&mut number)];
        let _taken_by_either = rustix::io::preadv2(&self.permission, &mut number, u64::MAX, ReadWriteFlags::NOWAIT);
        let program = self.open_program().map(|(_, pidfd)| pidfd);
        let all: Vec<OwnedFd> = program.into_iter().chain([self.helper_pidfd]).collect();
        for process in &all {
            // It fails only if the process has ended.
            let _already_ended = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
        }
        all
    }

    /// Opens the program's process, a child of the supervisor that was not reaped yet, if it was forked.
    fn open_program(&self) -> Option<(Pid, OwnedFd)> {
        let mut number = [0u8; size_of::<i32>()];
        rustix::io::pread(&self.program_pid, &mut number, 0).ok()?;
        let pid = Pid::from_raw(i32::from_ne_bytes(number))?;
        Some((pid, rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?))
    }
}

/// Receives the master of the terminal, which the helper has sent before its fork.
fn receive_master(terminal: &OwnedFd) -> Option<OwnedFd> {
    passing::receive(terminal, &mut [0u8; 1], RecvFlags::DONTWAIT).ok()?.fds.into_iter().next()
}

/// Starts `request` in `app`. `init` is the pidfd of the pod's PID 1, if any; `stdio` are the client's stdin, stdout
/// and stderr, or empty for a program with a terminal.
pub(crate) fn exec(
    app: &App,
    init: Option<&OwnedFd>,
    request: &control::Exec,
    stdio: Vec<OwnedFd>,
) -> Result<PendingExec> {
    let (Some(target), Some(null)) = (&app.running, &app.null) else {
        let then = if app.restarts.is_pending() { " and is about to be started again: try again then" } else { "" };
        return Err(failure(ErrorKind::Refused, format!("app '{}' has ended{then}", app.plan.name)));
    };
    let stdio = match (<[OwnedFd; 3]>::try_from(stdio), request.terminal) {
        (Ok(three), None) => Some(three),
        (Err(none), Some(_)) if none.is_empty() => None,
        _ => return Err(failure(ErrorKind::Invalid, "an exec takes three descriptors, or none with a terminal")),
    };
    let what = || "cannot set up an exec";
    // An app may read what is in the pipe between the supervisor's poll and its read.
    let (failed, failed_writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).attempt(what)?;
    let program_pid: OwnedFd = in_memory("exec", &0i32.to_ne_bytes()).attempt(what)?.into();
    let permission = rustix::event::eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).attempt(what)?;
    let (terminal, helper_terminal) = match request.terminal {
        Some(_) => Some(terminal_sockets().attempt(what)?).unzip(),
        None => (None, None),
    };
    let thread = SingleThreaded::check().attempt(what)?;
    let ids = ids(app, request)?;
    let host_uid = app.confinement.user.as_ref().map_or(Ok(ids.uid), |user| user.host_uid(ids.uid))?;
    let helper = Helper { thread, app, target, null, init, request, ids, host_uid, stdio, terminal: helper_terminal };
    let child = |process: ForkedChild, joined| {
        // The end of the pod's PID namespace does not kill it. Without the signal it would only exit later.
        let _best_effort = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        let kept = move_descriptors(&failed_writer, &permission).unwrap_or_else(|_| sys::exit_now(127));
        let Err(why) = helper.run(&process, joined, &program_pid, &kept);
        refusal::send(&kept.failed, &why);
        sys::exit_now(127)
    };
    let pid = match main_process(app) {
        Some(main) if app.plan.options.privileged || app.cgroup.is_delegated() => {
            app.cgroup.fork_beside(thread, main, child)
        }
        _ => app.cgroup.fork_into(thread, child),
    };
    let pid = pid.attempt(what)?;
    let helper_pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(what)?;
    let program = request.argv.first().cloned().unwrap_or_default();
    let deadline = Instant::now() + EXECVE_TIMEOUT;
    Ok(PendingExec { helper_pidfd, failed, deadline, program_pid, permission, terminal, program })
}

/// The app's main process.
fn main_process(app: &App) -> Option<Pid> {
    app.started.as_ref().and_then(|started| Pid::from_raw(started.pid.cast_signed()))
}

fn terminal_sockets() -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

/// The descriptors that the helper keeps for the program's process.
struct KeptDescriptors {
    /// The writing end of [`PendingExec::failed`].
    failed: OwnedFd,
    /// [`PendingExec::permission`].
    permission: OwnedFd,
}

/// Moves these descriptors to high numbers, which stdio does not overwrite.
fn move_descriptors(failed: &OwnedFd, permission: &OwnedFd) -> std::io::Result<KeptDescriptors> {
    const HIGH: i32 = 500;
    let failed = rustix::io::fcntl_dupfd_cloexec(failed, HIGH)?;
    let permission = rustix::io::fcntl_dupfd_cloexec(permission, HIGH)?;
    Ok(KeptDescriptors { failed, permission })
}

/// The app's ids unless the request names others.
fn ids(app: &App, request: &control::Exec) -> Result<Ids> {
    if request.user.is_none() && request.group.is_none() {
        return Ok(app.ids.clone());
    }
    let user = request.user.as_deref().or(app.plan.user.as_deref());
    let group = request.group.as_deref();
    let of_app = UserRequest::of_app(&app.plan, app.confinement.user.as_deref());
    user::resolve(&app.root, &UserRequest { user, group, ..of_app })
}

/// The process that joins the app and forks the program's process there.
struct Helper<'a> {
    thread: SingleThreaded,
    app: &'a App,
    target: &'a OwnedFd,
    null: &'a OwnedFd,
    init: Option<&'a OwnedFd>,
    request: &'a control::Exec,
    ids: Ids,
    /// The id of the user on the host.
    host_uid: u32,
    stdio: Option<[OwnedFd; 3]>,
    /// The socket for the master of the terminal, if the program has one.
    terminal: Option<OwnedFd>,
}

impl Helper<'_> {
    /// Joins the app and forks the program's process. Returns only on failure.
    fn run(
        &self,
        process: &ForkedChild,
        joined: std::io::Result<()>,
        program_pid: &OwnedFd,
        kept: &KeptDescriptors,
    ) -> Result<Infallible> {
        let what = || format!("cannot enter app '{}'", self.app.plan.name);
        process.start_arena();
        let record = PidRecord::map(program_pid.as_fd()).attempt(what)?;
        let command = Command { argv: self.request.argv.clone(), env: self.environment() };
        joined.and_then(|()| self.enter()).attempt(what)?;
        confine::enter_dir(self.request.cwd.as_deref().unwrap_or(&self.app.plan.cwd))?;
        let confinement = &self.app.confinement;
        let is_admin = confinement.needs_admin();
        confinement.become_user(&self.ids, is_admin)?;
        process.close_all_but(&[kept.failed.as_raw_fd(), kept.permission.as_raw_fd()]).attempt(what)?;
        let program = confine::prepare(&command)?;
        confinement.lock_down(self.ids.uid, is_admin)?;
        // The app's filter may deny the system calls that an allocation makes.
        let forked = sys::fork_recorded(self.thread, libc::CLONE_PARENT, &record, |_| {
            let (step, error) = self.execute(&program, &kept.permission);
            refusal::send_step(&kept.failed, step, &error);
            sys::exit_now(127)
        });
        if let Err(error) = &forked {
            refusal::send_step(&kept.failed, Step::Fork, error);
        }
        sys::exit_now(if forked.is_ok() { 0 } else { 127 })
    }

    /// Joins the app's PID namespace, which applies to processes forked from here on, the app's mount and cgroup
    /// namespaces, and last the pod's user namespace, if it has one: entering the others takes rights of the host. The
    /// supervisor is in the other namespaces already.
    fn enter(&self) -> std::io::Result<()> {
        // The program's process stays in this process's group until it starts its own session. An app that already
        // traces it could make it signal the supervisor's group: kill(0, …) crosses PID namespaces.
        rustix::process::setsid()?;
        let score = self.app.plan.options.oom_score_adj.unwrap_or(0);
        match std::fs::write("/proc/self/oom_score_adj", score.to_string()) {
            // As for the app, whose creation has warned of it.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            other => other?,
        }
        ulimits::raise(&self.app.plan.options.ulimits)?;
        let pids = match self.app.confinement.namespaces.pid {
            PidMode::Pod if self.app.plan.options.pid_target.is_some() => Some(self.target),
            PidMode::Pod => self.init,
            PidMode::App => Some(self.target),
            PidMode::Host => None,
        };
        pids.map_or(Ok(()), |process| sys::setns(process.as_fd(), libc::CLONE_NEWPID))?;
        sys::setns(self.target.as_fd(), libc::CLONE_NEWNS | libc::CLONE_NEWCGROUP)?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        // Apps share no keys.
        inheritance::join_new_keyring()?;
        let user = self.app.confinement.user.as_deref();
        // As the host's root: the pipes are those of the client.
        if let Some(given) = &self.stdio {
            set_client_stdio(given, self.null, self.host_uid)?;
        }
        user.map_or(Ok(()), UserNamespace::join)?;
        // As root of the pod: the terminal is one of the app's.
        match &self.terminal {
            Some(socket) => self.open_terminal(socket, self.request.terminal.unwrap_or(DEFAULT_SIZE)),
            None => Ok(()),
        }
    }

    fn open_terminal(&self, to: &OwnedFd, size: (u16, u16)) -> std::io::Result<()> {
        let master = terminal::open_master()?;
        let peer = sys::terminal_peer(master.as_fd())?;
        terminal::set_size(&master, size)?;
        rustix::fs::fchown(&peer, Some(rustix::fs::Uid::from_raw(self.ids.uid)), None)?;
        passing::send(to, b"t", &[master.as_fd()], SendFlags::empty())?;
        terminal::set_stdio([&peer; 3])
    }

    /// Runs in the program's process, with the app's rights: starts a session and executes the program. Returns only on
    /// failure.
    fn execute(&self, program: &Executable, permission: &OwnedFd) -> (Step, std::io::Error) {
        if rustix::io::read(permission, &mut [0u8; 8]).is_err() {
            // The supervisor has given up this exec and could not find this process any more.
            sys::exit_now(127);
        }
        let session = rustix::process::setsid().map_err(std::io::Error::from).and_then(|_| match &self.stdio {
            Some(_) => Ok(()),
            None => sys::controlling_terminal(rustix::stdio::stdin()),
        });
        match session {
            Ok(()) => self.app.confinement.execute(program),
            Err(error) => (Step::Session, error),
        }
    }

    /// The app's environment, overridden by the request's. In a terminal, `TERM` is set.
    fn environment(&self) -> Vec<String> {
        let name = |entry: &str| entry.split('=').next().map(str::to_owned);
        let mut env: Vec<String> = self.app.plan.env.clone();
        if self.request.user.is_some() {
            // Another user has another home directory, unless the request names it.
            env.retain(|entry| !entry.starts_with("HOME="));
        }
        for entry in &self.request.env {
            env.retain(|old| name(old) != name(entry));
            env.push(entry.clone());
        }
        if self.stdio.is_none() && env.iter().all(|entry| !entry.starts_with("TERM=")) {
            env.push(format!("TERM={TERM}"));
        }
        confine::environment(&env, &self.ids)
    }
}

/// Makes the client's descriptors the program's stdio. The program's user becomes the owner of pipes; the app's null
/// device replaces the host's.
fn set_client_stdio(given: &[OwnedFd; 3], null: &OwnedFd, uid: u32) -> std::io::Result<()> {
    for fd in given {
        if !terminal::is_null(fd)? {
            terminal::give_pipe_to(fd, uid)?;
        }
    }
    terminal::set_stdio(terminal::replace_null(given, null)?)
}

#[cfg(test)]
#[path = "exec_tests.rs"]
mod tests;
