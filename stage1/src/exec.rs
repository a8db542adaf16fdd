//! Runs a further program in an app, confined exactly as the app is: same namespaces, cgroups, capabilities, system call
//! filter and no-new-privileges. libcontainer's own exec joins no user namespace and loads no filter; this one takes
//! half a millisecond.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use gantry_contract::control;
use gantry_model::ErrorKind;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags};
use rustix::termios::Winsize;
use rustix::thread::CapabilitySet;

use crate::app::App;
use crate::confine::{self, Command};
use crate::failure::{Attempt, Result, failure};
use crate::launcher::{EXECVE_DEADLINE, refusal, tell};
use crate::program::Unexecutable;
use crate::sys::{self, Fork};
use crate::user::{self, Ids};
use crate::{spec, terminal};

/// A process on its way to become the program.
pub(crate) struct Executed {
    /// To wait for it and to end it.
    pub(crate) pidfd: OwnedFd,
    /// What is left of the way.
    pub(crate) starting: Starting,
}

/// Until execve. Never waited for: a process of the app can stop this one (SIGSTOP), for as long as it likes.
pub(crate) struct Starting {
    /// Its PID on the host.
    pub(crate) pid: Pid,
    /// Closed by execve; readable when it comes to that, or when it did not.
    pub(crate) failed: OwnedFd,
    /// When it is given up.
    pub(crate) deadline: Instant,
    /// Brings the master of its terminal, if it has one.
    terminal: Option<OwnedFd>,
}

impl Starting {
    /// What became of it, once `failed` is readable: the master of the terminal, if there is one.
    pub(crate) fn outcome(&self) -> Result<Option<OwnedFd>> {
        let mut text = [0u8; 4096];
        match rustix::io::read(&self.failed, &mut text).attempt(|| "cannot learn whether the program was executed")? {
            0 => self.terminal.as_ref().map(receive).transpose(),
            n => Err(refusal(&text[..n])),
        }
    }
}

/// Executes `request` in `app`; `init` is the pod's PID 1, `stdio` the client's descriptors (none with a terminal).
pub(crate) fn exec(app: &App, init: &OwnedFd, request: &control::Exec, stdio: Vec<OwnedFd>) -> Result<Executed> {
    let Some(target) = &app.running else {
        return Err(failure(ErrorKind::Refused, format!("app '{}' has ended", app.plan.name)));
    };
    let stdio = match (<[OwnedFd; 3]>::try_from(stdio), request.terminal) {
        (Ok(three), None) => Some(three),
        (Err(none), Some(_)) if none.is_empty() => None,
        _ => return Err(failure(ErrorKind::Invalid, "an exec takes three descriptors, or a terminal and none")),
    };
    let child = Child { app, target, request, ids: ids(app, request)?, stdio };
    let what = || "cannot set up an exec";
    let (failed, teller) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).attempt(what)?;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).attempt(what)?;
    let pid = match fork_into(init).attempt(|| "cannot enter the pod's PID namespace")? {
        Fork::Child => {
            drop((failed, ours));
            let why = child.run(&theirs);
            tell(&teller, &why);
            sys::exit_now(127)
        }
        Fork::Parent(pid) => pid,
    };
    drop((teller, theirs, child));
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).attempt(what)?;
    let terminal = request.terminal.is_some().then_some(ours);
    Ok(Executed { pidfd, starting: Starting { pid, failed, deadline: Instant::now() + EXECVE_DEADLINE, terminal } })
}

/// The app's ids unless the request names others.
fn ids(app: &App, request: &control::Exec) -> Result<Ids> {
    if request.user.is_none() && request.group.is_none() {
        return Ok(app.ids.clone());
    }
    let user = request.user.as_deref().or(app.plan.user.as_deref());
    user::resolve(&app.root, user, request.group.as_deref(), &app.plan.supplementary_gids)
}

/// A fork whose child is in the pod's PID namespace; this process stays where it is.
fn fork_into(init: &OwnedFd) -> std::io::Result<Fork> {
    sys::assert_single_threaded()?;
    let own = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    sys::setns(init.as_fd(), libc::CLONE_NEWPID)?;
    let forked = sys::fork(0);
    if !matches!(forked, Ok(Fork::Child)) {
        sys::setns(own.as_fd(), libc::CLONE_NEWPID)?;
    }
    forked
}

/// What the child of the fork does before it is the program.
struct Child<'a> {
    app: &'a App,
    target: &'a OwnedFd,
    request: &'a control::Exec,
    ids: Ids,
    stdio: Option<[OwnedFd; 3]>,
}

impl Child<'_> {
    /// Becomes the program; returns only why it could not.
    fn run(&self, terminal: &OwnedFd) -> Unexecutable {
        if let Err(error) = self.enter(terminal) {
            let message = format!("cannot enter app '{}': {error}", self.app.plan.name);
            return Unexecutable { kind: ErrorKind::of_io(&error).as_str(), message };
        }
        if let Some(why) = self.change_dir() {
            return why;
        }
        if let Err(error) = self.take_identity() {
            return Unexecutable { kind: "internal", message: format!("cannot become user {}: {error}", self.ids.uid) };
        }
        let command = Command { argv: self.request.argv.clone(), env: self.environment() };
        confine::become_program(&command, &self.app.confinement, self.ids.uid)
    }

    /// cgroups first, while they can be reached; then the app's mount namespace (the others are the supervisor's own).
    fn enter(&self, terminal: &OwnedFd) -> std::io::Result<()> {
        self.app.cgroup.join()?;
        if let Some(score) = self.app.plan.oom_score_adj {
            std::fs::write("/proc/self/oom_score_adj", score.to_string())?;
        }
        sys::setns(self.target.as_fd(), libc::CLONE_NEWNS)?;
        rustix::process::setsid()?;
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
        match (&self.stdio, self.request.terminal) {
            (Some(given), _) => take_stdio(given, self.ids.uid),
            (None, size) => self.open_terminal(terminal, size.unwrap_or((24, 80))),
        }
    }

    fn open_terminal(&self, to: &OwnedFd, (rows, columns): (u16, u16)) -> std::io::Result<()> {
        let master = terminal::open_master()?;
        let peer = sys::terminal_peer(master.as_fd())?;
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&master, size)?;
        rustix::fs::fchown(&peer, Some(rustix::fs::Uid::from_raw(self.ids.uid)), None)?;
        sys::controlling_terminal(peer.as_fd())?;
        send(to, &master)?;
        set_stdio(&peer, &peer, &peer)
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
fn take_stdio(given: &[OwnedFd; 3], uid: u32) -> std::io::Result<()> {
    let mut own = [None, None, None];
    for (own, fd) in own.iter_mut().zip(given) {
        *own = terminal::own_null(fd)?;
        terminal::give(fd, uid)?;
    }
    let [stdin, stdout, stderr] = [0, 1, 2].map(|n| own[n].as_ref().unwrap_or(&given[n]));
    set_stdio(stdin, stdout, stderr)
}

fn set_stdio(stdin: &OwnedFd, stdout: &OwnedFd, stderr: &OwnedFd) -> std::io::Result<()> {
    rustix::stdio::dup2_stdin(stdin)?;
    rustix::stdio::dup2_stdout(stdout)?;
    Ok(rustix::stdio::dup2_stderr(stderr)?)
}

/// Sends one descriptor over a socket.
fn send(socket: &OwnedFd, fd: &OwnedFd) -> std::io::Result<()> {
    let fds = [fd.as_fd()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(b"t")], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn receive(socket: &OwnedFd) -> Result<OwnedFd> {
    let mut text = [0u8; 8];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    rustix::net::recvmsg(socket, &mut [std::io::IoSliceMut::new(&mut text)], &mut ancillary, flags)
        .attempt(|| "cannot receive the terminal of an exec")?;
    let fd = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fd.ok_or_else(|| failure(ErrorKind::Internal, "an exec with a terminal sent none"))
}
