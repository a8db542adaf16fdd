//! Makes the process of an app, at the start of a pod ([`crate::app::first_apps`]) and while other apps of the pod run
//! (`supervise/creations.rs`).
//!
//! The process is made by a fork of the supervisor, the maker, so that neither filling a volume nor a process that is
//! stopped on its way (an app may send SIGSTOP to any process that it sees) blocks the event loop. The maker is born in
//! the app's cgroup, as everything that it forks: no process has to be moved, which is slow ([`crate::kernel_costs`]),
//! and killing the cgroup ends a creation at any point. When the process is locked down, the maker sends it to the
//! supervisor and exits; as a child subreaper, the supervisor inherits the process.
//!
//! | maker | supervisor |
//! |---|---|
//! | fills the volumes, resolves the targets of mounts; sends `f` | freezes the apps that may trace other processes; sends `f` |
//! | makes the process, which locks itself down; sends `+` with the process, or `-` and a failure | thaws them |
//!
//! An app with CAP_SYS_PTRACE could otherwise take over the process before it is locked down, when it still has the
//! supervisor's rights. Other apps cannot: the process is not dumpable, like the supervisor.

use std::convert::Infallible;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::Failure;
use gantry_model::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};

use crate::app::creation::ProcessInputs;
use crate::app::launcher::{MadeProcess, Stdio, WaitingProcess};
use crate::cgroup::AppCgroup;
use crate::failure::{Attempt, Result, failure};
use crate::files::root;
use crate::passing;
use crate::pod::user_namespace::UserNamespace;
use crate::sys::{self, ForkedChild, SingleThreaded};

/// Timeout of filling the app's volumes, with the wait for another pod that fills the same one.
const FILL_TIMEOUT: Duration = Duration::from_secs(600);

/// Timeout of making the process once the volumes are filled.
const CREATE_TIMEOUT: Duration = Duration::from_secs(15);

/// Timeout of the exit of a maker that has sent its result or was killed.
const EXIT_TIMEOUT: Timespec = Timespec { tv_sec: 2, tv_nsec: 0 };

/// Timeout of the children of a maker that has failed.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// How often they are reaped.
const REAP_INTERVAL: Duration = Duration::from_millis(1);

const FILLED: u8 = b'f';
const CREATED: u8 = b'+';
const FAILED: u8 = b'-';

/// A running maker.
pub(crate) struct Maker {
    /// The name of the app's program, for error messages.
    program: String,
    pidfd: OwnedFd,
    /// Readable when the maker has sent a message or has died.
    pub(crate) socket: OwnedFd,
    /// When it is killed.
    pub(crate) deadline: Instant,
}

/// A message of a maker.
pub(crate) enum MakerMessage {
    /// The volumes are filled; [`Maker::proceed`] makes the process, unless it was called before.
    Filled,
    /// The process is locked down and waits for its execve.
    Created(MadeProcess),
}

impl Maker {
    /// Starts making the process of an app whose cgroup no process is in. `beside_apps`: apps of the pod may run.
    pub(crate) fn start(inputs: ProcessInputs<'_>, stdio: Stdio, beside_apps: bool) -> Result<Self> {
        let what = || "cannot start the process that makes the app's";
        let thread = SingleThreaded::check().attempt(what)?;
        // The processes of a maker that has exited become children of this process.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).attempt(what)?;
        let (socket, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .attempt(what)?;
        let supervisor = rustix::process::getpid();
        let pid = inputs.app.cgroup.fork_into(thread, |process, joined| {
            // Without it the maker of a killed supervisor would go on until it sends its result.
            let _best_effort = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
            if rustix::process::getppid() != Some(supervisor) {
                sys::exit_now(1);
            }
            let made = joined.attempt(what).and_then(|()| run(&process, inputs, stdio, beside_apps, &theirs));
            let Err(why) = made;
            reap_children();
            let mut message = vec![FAILED];
            message.extend(serde_json::to_vec(&why).unwrap_or_default());
            let _supervisor_has_gone = rustix::net::send(&theirs, &message, SendFlags::NOSIGNAL);
            sys::exit_now(1)
        });
        let pidfd = rustix::process::pidfd_open(pid.attempt(what)?, PidfdFlags::empty()).attempt(what)?;
        Ok(Self { program: inputs.app.program(), pidfd, socket, deadline: Instant::now() + FILL_TIMEOUT })
    }

    /// Receives a message; `None` if there is none yet.
    pub(crate) fn receive(&self) -> Option<Result<MakerMessage>> {
        let mut bytes = [0u8; 16 << 10];
        let received = match passing::receive(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN) => return None,
            other => other,
        };
        let died = || failure(ErrorKind::Internal, "the process that makes the app's was killed");
        let Ok(received) = received else { return Some(Err(died())) };
        Some(match (bytes[..received.bytes].split_first(), received.fds) {
            (Some((&FILLED, _)), _) => Ok(MakerMessage::Filled),
            (Some((&CREATED, number)), fds) => read_created(number, fds, &self.program).ok_or_else(died),
            (Some((&FAILED, text)), _) => Err(serde_json::from_slice::<Failure>(text).unwrap_or_else(|_| died())),
            _ => Err(died()),
        })
    }

    /// Waits for a message.
    pub(crate) fn wait(&self) -> Result<MakerMessage> {
        loop {
            if let Some(message) = self.receive() {
                return message;
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failure(ErrorKind::TimedOut, "the app's process was not made in time"));
            }
            let timeout =
                Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(0), tv_nsec: left.subsec_nanos().into() };
            // If it is interrupted, the next round waits for the rest.
            let _readable_or_late = poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&timeout));
        }
    }

    /// Allows it to make the process.
    pub(crate) fn proceed(&mut self) -> Result<()> {
        self.deadline = Instant::now() + CREATE_TIMEOUT;
        rustix::net::send(&self.socket, &[FILLED], SendFlags::NOSIGNAL)
            .attempt(|| "cannot proceed with making the app's process")
            .map(drop)
    }

    /// Waits for the exit of a maker that has sent its result: until then, the process is its child. Returns what must
    /// be reaped.
    pub(crate) fn finish(self) -> OwnedFd {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        // A maker that hangs in the kernel is reaped later.
        let _exited_or_late = poll(&mut fds, Some(&EXIT_TIMEOUT));
        self.pidfd
    }

    /// Kills everything in the app's cgroup: the maker and the processes that it has made. Returns what must be reaped.
    pub(crate) fn kill(self, cgroup: &AppCgroup) -> Vec<OwnedFd> {
        let members = cgroup.open_members();
        cgroup.kill();
        let maker = self.finish();
        members.into_iter().chain([maker]).collect()
    }
}

fn read_created(number: &[u8], fds: Vec<OwnedFd>, program: &str) -> Option<MakerMessage> {
    let pid = Pid::from_raw(i32::from_ne_bytes(number.try_into().ok()?))?;
    let mut fds = fds.into_iter();
    let (report, permission, pidfd, null) = (fds.next()?, fds.next()?, fds.next()?, fds.next()?);
    let waiting = WaitingProcess { program: program.to_owned(), report, permission, pid, pidfd };
    Some(MakerMessage::Created(MadeProcess { waiting, null, terminal: fds.next() }))
}

/// Reaps the children of a maker that has failed. The supervisor, which inherits them, does not know those that have
/// exited; it kills the others with the cgroup.
fn reap_children() {
    let deadline = Instant::now() + REAP_TIMEOUT;
    while Instant::now() < deadline {
        match rustix::process::wait(WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) | Err(Errno::INTR) => std::thread::sleep(REAP_INTERVAL),
            Err(_) => return,
        }
    }
}

/// Runs in the maker. Returns only on failure.
fn run(
    process: &ForkedChild,
    inputs: ProcessInputs<'_>,
    stdio: Stdio,
    beside_apps: bool,
    socket: &OwnedFd,
) -> Result<Infallible> {
    let what = || "cannot prepare to make the app's process";
    let given = stdio.iter().flatten();
    let host = inputs.app.confinement.host.as_deref();
    let of_host = host.into_iter().flat_map(|host| [&host.root, &host.namespace]);
    let user = inputs.app.confinement.user.as_deref();
    let of_user = user.map(|user| &user.file);
    let kept = given.chain([socket]).chain(of_host).chain(of_user).map(|fd| fd.as_raw_fd());
    let kept: Vec<_> = kept.chain(inputs.pid_target().map(|process| process.as_raw_fd())).collect();
    process.close_all_but(&kept).attempt(what)?;
    let open_root = || {
        let path = root::root_path(&inputs.app.plan.name);
        rustix::fs::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).attempt(what)
    };
    let prepared = match host {
        Some(_) => Vec::new(),
        None if !beside_apps => inputs.prepare_mounts(&open_root()?)?,
        None => {
            let root = open_root()?;
            // An app that is started again has had write access to its root.
            root::check_mount_points(&root)?;
            let as_root = user.map(UserNamespace::as_root).transpose()?;
            root::make_working_dir(&root, &inputs.app.plan.cwd)?;
            drop(as_root);
            inputs.prepare_mounts_beside_apps(&root)?
        }
    };
    rustix::net::send(socket, &[FILLED], SendFlags::NOSIGNAL).attempt(what)?;
    let mut proceed = [0u8; 1];
    if !matches!(rustix::io::read(socket, &mut proceed), Ok(1)) {
        sys::exit_now(1);
    }
    process.start_arena();
    let made = match host {
        Some(host) => inputs.make(&host.root, &prepared, stdio)?,
        None => inputs.make(&open_root()?, &prepared, stdio)?,
    };
    let MadeProcess { waiting, null, terminal } = &made;
    let mut message = vec![CREATED];
    message.extend(waiting.pid.as_raw_nonzero().get().to_ne_bytes());
    let fds = [&waiting.report, &waiting.permission, &waiting.pidfd, null].into_iter().chain(terminal);
    let fds: Vec<_> = fds.map(|fd| fd.as_fd()).collect();
    passing::send(socket, &message, &fds, SendFlags::empty()).attempt(what)?;
    sys::exit_now(0)
}
