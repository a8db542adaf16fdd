//! Runs a further program in an app, confined exactly as the app is: same namespaces, cgroups, capabilities, system call
//! filter and no-new-privileges. libcontainer's own exec joins no user namespace and loads no filter; this one takes
//! half a millisecond.

use std::convert::Infallible;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use gantry_contract::control;
use gantry_model::ErrorKind;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};
use rustix::thread::CapabilitySet;

use crate::app::App;
use crate::confine::{self, Command};
use crate::failure::{Attempt, Result, failure};
use crate::launcher::EXECVE_DEADLINE;
use crate::program::Unexecutable;
use crate::refusal::{self, Step};
use crate::sys::{self, Executable, Fork};
use crate::user::{self, Ids};
use crate::{passing, spec, terminal};

/// An exec until its program runs. Nothing of it is waited for: a process of the app can stop it (SIGSTOP), for as long
/// as it likes.
///
/// Two processes are on the way. The carrier is outside of the pod's PID namespace, where no app can see it; it enters
/// the app's cgroups and mounts, lets go of every right and every descriptor that is not the program's, loads the app's filter,
/// and only then forks the process that becomes the program. So an app that may trace what it sees finds nothing in it to take.
pub(crate) struct Starting {
    carrier: OwnedFd,
    /// Closed by the carrier's end and the program's execve; readable then, or when one of them says why not.
    pub(crate) failed: OwnedFd,
    /// When it is given up.
    pub(crate) deadline: Instant,
    messages: OwnedFd,
    /// The name of the program.
    program: String,
}

/// A program that was executed.
pub(crate) struct Program {
    /// Its PID on the host.
    pub(crate) pid: Pid,
    /// To wait for it and to end it.
    pub(crate) pidfd: OwnedFd,
    /// The master of its terminal, if it has one.
    pub(crate) master: Option<OwnedFd>,
}

impl Starting {
    /// Whether its outcome is known.
    pub(crate) fn is_decided(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.failed, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// What became of it, once `failed` is readable; and processes that are ending and have to be reaped.
    pub(crate) fn outcome(self) -> (Result<Program>, Vec<OwnedFd>) {
        let mut text = [0u8; 4096];
        let told =
            rustix::io::read(&self.failed, &mut text).attempt(|| "cannot learn whether the program was executed");
        match told {
            Ok(0) => match self.program() {
                Some(program) => (Ok(program), vec![self.carrier]),
                None => (Err(failure(ErrorKind::Internal, "an exec ended before its program began")), self.kill()),
            },
            Ok(n) => (Err(refusal::read(&text[..n], &self.program)), self.kill()),
            Err(why) => (Err(why), self.kill()),
        }
    }

    /// Kills what there is of it; gives back what has to be reaped.
    pub(crate) fn kill(self) -> Vec<OwnedFd> {
        let program = self.program().map(|program| program.pidfd);
        let all: Vec<OwnedFd> = program.into_iter().chain([self.carrier]).collect();
        for process in &all {
            let _ = rustix::process::pidfd_send_signal(process, rustix::process::Signal::KILL);
        }
        all
    }

    /// The process that the carrier forked, as far as it has said so.
    fn program(&self) -> Option<Program> {
        let (mut master, mut pid) = (None, None);
        while let Ok(message) = receive(&self.messages) {
            match message {
                Message::Terminal(fd) => master = Some(fd),
                Message::Pid(number) => pid = Pid::from_raw(number),
            }
        }
        let pid = pid.filter(|pid| is_child(*pid))?;
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Program { pid, pidfd, master })
    }
}

/// Whether this is a child of ours, running or not reaped yet. The number came from a process that an app may have
/// taken over by then; what is not our child is none of our business.
fn is_child(pid: Pid) -> bool {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).is_ok()
}

/// Executes `request` in `app`; `init` is the pod's PID 1, `stdio` the client's descriptors (none with a terminal).
pub(crate) fn exec(app: &App, init: &OwnedFd, request: &control::Exec, stdio: Vec<OwnedFd>) -> Result<Starting> {
    let Some(target) = &app.running else {
        return Err(failure(ErrorKind::Refused, format!("app '{}' has ended", app.plan.name)));
    };
    let stdio = match (<[OwnedFd; 3]>::try_from(stdio), request.terminal) {
        (Ok(three), None) => Some(three),
        (Err(none), Some(_)) if none.is_empty() => None,
        _ => return Err(failure(ErrorKind::Invalid, "an exec takes three descriptors, or a terminal and none")),
    };
    let what = || "cannot set up an exec";
    let (failed, teller) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(what)?;
    let (messages, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).attempt(what)?;
    sys::assert_single_threaded().attempt(what)?;
    let carrier = Carrier { app, target, init, request, ids: ids(app, request)?, stdio };
    let pid = match sys::fork(0).attempt(what)? {
        Fork::Child => {
            // It is in no PID namespace of the pod's, whose end would end it.
            let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
            let (teller, theirs) = out_of_the_way(teller, theirs).unwrap_or_else(|_| sys::exit_now(127));
            let Err(why) = carrier.run(&teller, &theirs);
            refusal::tell(&teller, &why);
            sys::exit_now(127)
        }
        Fork::Parent(pid) => pid,
    };
    let carrier = rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(what)?;
    let program = request.argv.first().cloned().unwrap_or_default();
    Ok(Starting { carrier, failed, deadline: Instant::now() + EXECVE_DEADLINE, messages, program })
}

/// The two descriptors that a carrier keeps, at numbers that nothing else has.
fn out_of_the_way(teller: OwnedFd, messages: OwnedFd) -> std::io::Result<(OwnedFd, OwnedFd)> {
    const HIGH: i32 = 500;
    let teller = rustix::io::fcntl_dupfd_cloexec(&teller, HIGH)?;
    let messages = rustix::io::fcntl_dupfd_cloexec(&messages, HIGH)?;
    Ok((teller, messages))
}

/// The app's ids unless the request names others.
fn ids(app: &App, request: &control::Exec) -> Result<Ids> {
    if request.user.is_none() && request.group.is_none() {
        return Ok(app.ids.clone());
    }
    let user = request.user.as_deref().or(app.plan.user.as_deref());
    user::resolve(&app.root, user, request.group.as_deref(), &app.plan.supplementary_gids)
}

/// The process that goes into the app and forks the program there.
struct Carrier<'a> {
    app: &'a App,
    target: &'a OwnedFd,
    init: &'a OwnedFd,
    request: &'a control::Exec,
    ids: Ids,
    stdio: Option<[OwnedFd; 3]>,
}

impl Carrier<'_> {
    /// Goes into the app and forks the program. It returns only what failed before that.
    fn run(&self, teller: &OwnedFd, messages: &OwnedFd) -> std::result::Result<Infallible, Unexecutable> {
        let entered = |error: std::io::Error| Unexecutable {
            kind: ErrorKind::of_io(&error).as_str(),
            message: format!("cannot enter app '{}': {error}", self.app.plan.name),
        };
        let command = Command { argv: self.request.argv.clone(), env: self.environment() };
        self.enter(messages).map_err(entered)?;
        self.change_dir().map_or(Ok(()), Err)?;
        self.take_identity().map_err(|error| Unexecutable {
            kind: "internal",
            message: format!("cannot become user {}: {error}", self.ids.uid),
        })?;
        sys::close_all_but(&[teller.as_fd(), messages.as_fd()]).map_err(entered)?;
        let program = confine::prepare(&command)?;
        self.app.confinement.lock_down(self.ids.uid)?;
        // From here on nothing is allocated.
        let (step, error) = match sys::fork(libc::CLONE_PARENT) {
            Ok(Fork::Child) => self.execute(&program),
            // The supervisor takes it for an end before the program began if this fails.
            Ok(Fork::Parent(pid)) => sys::exit_now(i32::from(send_pid(messages, pid).is_err())),
            Err(error) => (Step::Fork, error),
        };
        refusal::tell_step(teller, step, &error);
        sys::exit_now(127)
    }

    /// cgroups first, while they can be reached; then the pod's PID namespace, in which only what is forked from here on
    /// will be; then the app's mount namespace. The others are the supervisor's own.
    fn enter(&self, messages: &OwnedFd) -> std::io::Result<()> {
        self.app.cgroup.join()?;
        if let Some(score) = self.app.plan.oom_score_adj {
            std::fs::write("/proc/self/oom_score_adj", score.to_string())?;
        }
        sys::setns(self.init.as_fd(), libc::CLONE_NEWPID)?;
        sys::setns(self.target.as_fd(), libc::CLONE_NEWNS)?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        match (&self.stdio, self.request.terminal) {
            (Some(given), _) => take_stdio(given, &self.app.null, self.ids.uid),
            (None, size) => self.open_terminal(messages, size.unwrap_or((24, 80))),
        }
    }

    fn open_terminal(&self, to: &OwnedFd, size: (u16, u16)) -> std::io::Result<()> {
        let master = terminal::open_master()?;
        let peer = sys::terminal_peer(master.as_fd())?;
        terminal::set_size(&master, size)?;
        rustix::fs::fchown(&peer, Some(rustix::fs::Uid::from_raw(self.ids.uid)), None)?;
        passing::send(to, b"t", &[master.as_fd()], SendFlags::empty())?;
        set_stdio(&peer, &peer, &peer)
    }

    /// In the pod's PID namespace, with the app's rights: a session of its own, then the program. Returns only what failed.
    fn execute(&self, program: &Executable) -> (Step, std::io::Error) {
        let session = rustix::process::setsid().map_err(std::io::Error::from).and_then(|_| match &self.stdio {
            Some(_) => Ok(()),
            None => sys::controlling_terminal(rustix::stdio::stdin()),
        });
        match session {
            Ok(()) => self.app.confinement.execute(program),
            Err(error) => (Step::Session, error),
        }
    }

    /// The working directory must be inside the root: the kernel says so of one that is not by a path without a slash.
    fn change_dir(&self) -> Option<Unexecutable> {
        let dir = self.request.cwd.as_deref().unwrap_or(&self.app.plan.cwd);
        let shown = gantry_model::id::shown(dir);
        if let Err(error) = rustix::process::chdir(dir) {
            return Some(Unexecutable {
                kind: "invalid",
                message: format!("cannot change to the directory '{shown}': {error}"),
            });
        }
        let inside = std::env::current_dir().is_ok_and(|dir| dir.is_absolute());
        (!inside).then(|| Unexecutable {
            kind: "invalid",
            message: format!("the directory '{shown}' is outside of the app's root"),
        })
    }

    /// Bounding set while CAP_SETPCAP is there, ids while CAP_SETUID is, the other sets last.
    fn take_identity(&self) -> std::io::Result<()> {
        let confinement = &self.app.confinement;
        let mut sets = confinement.sets(self.ids.uid);
        let mut bounding = confinement.capabilities;
        if confinement.needs_admin() {
            let needed = CapabilitySet::SYS_ADMIN | CapabilitySet::SETPCAP;
            bounding |= needed;
            sets.effective |= needed;
            sets.permitted |= needed;
        }
        confine::drop_bounding(!bounding)?;
        rustix::thread::set_keep_capabilities(true)?;
        sys::set_ids(self.ids.uid, self.ids.gid, &self.ids.groups)?;
        rustix::thread::set_keep_capabilities(false)?;
        rustix::thread::clear_ambient_capability_set()?;
        Ok(rustix::thread::set_capabilities(None, sets)?)
    }

    /// The app's environment with the request's on top.
    fn environment(&self) -> Vec<String> {
        let name = |entry: &str| entry.split('=').next().map(str::to_owned);
        let mut env: Vec<String> = self.app.plan.env.clone();
        for entry in &self.request.env {
            env.retain(|old| name(old) != name(entry));
            env.push(entry.clone());
        }
        if self.request.user.is_some() {
            env.retain(|entry| !entry.starts_with("HOME="));
        }
        spec::environment(&env, &self.ids)
    }
}

/// The client's descriptors, made fit for the program: pipes become its user's, and the host's null device the app's own.
fn take_stdio(given: &[OwnedFd; 3], null: &OwnedFd, uid: u32) -> std::io::Result<()> {
    let mut own = [null; 3];
    for (own, fd) in own.iter_mut().zip(given) {
        if !terminal::is_null(fd)? {
            terminal::give(fd, uid)?;
            *own = fd;
        }
    }
    let [stdin, stdout, stderr] = own;
    set_stdio(stdin, stdout, stderr)
}

fn set_stdio(stdin: &OwnedFd, stdout: &OwnedFd, stderr: &OwnedFd) -> std::io::Result<()> {
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    Ok(rustix::stdio::dup2_stderr(stderr)?)
}

/// What a carrier says.
enum Message {
    /// The master of the program's terminal.
    Terminal(OwnedFd),
    /// The PID of the process that becomes the program.
    Pid(i32),
}

fn send_pid(socket: &OwnedFd, pid: Pid) -> std::io::Result<()> {
    let number = pid.as_raw_nonzero().get().to_ne_bytes();
    rustix::net::send(socket, &number, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The next message that is there already.
fn receive(socket: &OwnedFd) -> std::io::Result<Message> {
    let mut text = [0u8; 4];
    let received = passing::receive(socket, &mut text, RecvFlags::DONTWAIT)?;
    match (received.fds.into_iter().next(), received.bytes) {
        (Some(fd), _) => Ok(Message::Terminal(fd)),
        (None, 4) => Ok(Message::Pid(i32::from_ne_bytes(text))),
        (None, _) => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
    }
}
