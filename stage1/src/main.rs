//! `gantry-stage1`: the supervisor of one running pod.
//!
//! The engine starts it with a plan on stdin and the locked pod directory as an inherited descriptor. It makes the
//! pod's namespaces, mounts, cgroups and PID 1, starts the apps, and sends the start reply on stdout. Then it writes
//! logs, serves the control socket and appends to the journal until the last app has exited.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). Must never know: the database, images, tokio,
//! threads.
//!
//! Start reading at [`pod::launch`] (how a pod is started), then [`supervise`] (how it runs and ends). `gantry-stage1
//! network` works on the host's networks without a running pod: [`role`]. No app can change the program on the host:
//! the engine executes it from a read-only mount, and a program that was started otherwise executes itself again from
//! one ([`reexec`]).
//!
//! | module | contents |
//! |---|---|
//! | [`pod`] | the pod: namespaces, mount tree, PID 1, networks, the scope of systemd |
//! | [`app`] | an app: its process from creation to execve, its user, execs, probes, removal |
//! | [`files`] | an app's root, its file systems and volumes |
//! | [`cgroup`] | cgroups, limits, devices, kills by the OOM killer |
//! | [`output`] | log files, and clients that receive the output live |
//! | [`reaper`] | reaps processes, as far as no tracer holds them |
//! | [`supervise`] | the event loop, and the requests and events that it handles |
//! | [`control`], [`journal`], [`notify`] | the control socket, the journal, the notification sockets of apps |
//! | [`sys`] | system calls: all unsafe code |

mod app;
mod cgroup;
mod control;
mod failure;
mod files;
mod health;
mod journal;
mod kernel_costs;
mod notify;
mod output;
mod passing;
mod pod;
mod reaper;
mod reexec;
mod role;
mod seccomp;
mod supervise;
mod sys;
mod table;

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use gantry_contract::Failure;
use gantry_contract::journal::Fact;
use gantry_contract::plan::Plan;
use gantry_contract::start::StartReply;
use gantry_host::file::read_stream;
// Replaces musl's memcpy and memmove.
use gantry_memcpy as _;
use gantry_model::ErrorKind;

use crate::control::ControlSocket;
use crate::failure::{Attempt, Result, failure};
use crate::journal::Journal;
use crate::output::foreground::Foregrounds;
use crate::pod::user_namespace::UserNamespace;
use crate::supervise::Supervisor;
use crate::sys::{InheritedFds, SingleThreaded};

#[global_allocator]
static ALLOCATOR: sys::Allocator = sys::Allocator;

/// Maximum size of a plan, in bytes.
const MAX_PLAN: u64 = 16 << 20;

const USAGE: &str = "usage: gantry-stage1 run --lock-fd N [--output-fd N] [--terminal-size ROWSxCOLUMNS]\n       gantry-stage1 network\n       gantry-stage1 user-namespace DIRECTORY\n       gantry-stage1 version\n\
This is started by gantry, not by hand.";

/// Other crates log nothing: in an app's process, standard error is the app's.
const LOG_FILTER: &str = "off,gantry_stage1=info,gantry_net=info,gantry_netlink=info";

fn main() -> ExitCode {
    gantry_host::signals::set_dispositions();
    if let Ok(filter) = LOG_FILTER.parse() {
        gantry_logging::init(filter, gantry_logging::LogFormat::Text);
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", "--lock-fd", lock, ref options @ ..] => adopt_and_run(lock, options),
        ["network"] => {
            set_process_name();
            role::run()
        }
        ["user-namespace", directory] => {
            let line = serde_json::to_string(&UserNamespace::check_host(directory)).unwrap_or_default();
            println!("{line}");
            ExitCode::SUCCESS
        }
        ["version"] => {
            println!("gantry-stage1 {} contract {}", env!("CARGO_PKG_VERSION"), gantry_contract::VERSION);
            ExitCode::SUCCESS
        }
        _ => usage("unknown arguments"),
    }
}

/// Runs a pod with the inherited descriptors that the arguments name.
fn adopt_and_run(lock: &str, options: &[&str]) -> ExitCode {
    let inherited =
        reexec::ensure_read_only().and_then(|()| InheritedFds::list().attempt(|| "cannot list inherited descriptors"));
    let mut inherited = match inherited {
        Ok(inherited) => inherited,
        Err(why) => {
            send_reply(&StartReply::Failed(why));
            return ExitCode::FAILURE;
        }
    };
    match (adopt(&mut inherited, lock), Options::parse(options, &mut inherited)) {
        (Some(lock), Ok(options)) => {
            // Files that the caller had open (a lock file, a pipe) would stay open for the life of the pod.
            inherited.close();
            run(lock, options)
        }
        (None, _) => usage("the lock's descriptor is not open"),
        (_, Err(why)) => usage(why),
    }
}

fn adopt(inherited: &mut InheritedFds, number: &str) -> Option<OwnedFd> {
    inherited.adopt(number.parse().ok()?)
}

/// Options of one start. They are not part of the plan: they do not outlive the process that asks for the start.
#[derive(Default)]
struct Options {
    /// The pipe of the foreground, if there is one.
    output: Option<OwnedFd>,
    /// The size of the foreground's terminal: rows and columns.
    terminal_size: Option<(u16, u16)>,
}

impl Options {
    fn parse(words: &[&str], inherited: &mut InheritedFds) -> std::result::Result<Self, &'static str> {
        let mut options = Self::default();
        let mut left = words;
        while let [name, value, rest @ ..] = left {
            match *name {
                "--output-fd" => {
                    let pipe = adopt(inherited, value).ok_or("the descriptor for the output is not open")?;
                    options.output = Some(pipe);
                }
                "--terminal-size" => {
                    let size = value
                        .split_once('x')
                        .and_then(|(rows, columns)| Some((rows.parse().ok()?, columns.parse().ok()?)));
                    options.terminal_size = Some(size.ok_or("the size of the terminal is not ROWSxCOLUMNS")?);
                }
                _ => return Err("unknown options"),
            }
            left = rest;
        }
        if left.is_empty() { Ok(options) } else { Err("an option without a value") }
    }
}

fn usage(why: &str) -> ExitCode {
    eprintln!("gantry-stage1: {why}\n{USAGE}");
    ExitCode::from(125)
}

/// `lock` is held until this process exits, or until [`Supervisor::release`].
#[expect(clippy::needless_pass_by_value, reason = "it is owned for the life of the process")]
fn run(lock: OwnedFd, options: Options) -> ExitCode {
    set_process_name();
    let thread = match SingleThreaded::check().attempt(|| "cannot start a supervisor") {
        Ok(thread) => thread,
        Err(why) => {
            send_reply(&StartReply::Failed(why));
            return ExitCode::FAILURE;
        }
    };
    sys::open_supervisor_arena(thread);
    // The pod's UUID is recorded when the plan was read.
    let _span = tracing::info_span!("pod", pod = tracing::field::Empty).entered();
    match start(thread, &lock, options) {
        Ok((mut supervisor, ready)) => {
            send_reply(&StartReply::Ready(ready));
            sys::close_supervisor_arena(thread);
            supervisor.detach_stdio();
            supervisor.run();
            supervisor.finish(thread);
            supervisor.release(&lock);
            kernel_costs::finish_in_background(thread);
            // Without destructors: closing the last descriptor of a file system waits for its unmount, which at the end
            // of a process takes place afterwards.
            sys::exit_now(0)
        }
        Err(why) => {
            send_reply(&StartReply::Failed(why));
            kernel_costs::finish_in_background(thread);
            ExitCode::FAILURE
        }
    }
}

/// Sets the name by which gantryd recognizes changes of the host's nftables by this program, whatever its file is
/// called.
fn set_process_name() {
    // It fails only for a name that is too long.
    let _cannot_fail = rustix::thread::set_name(c"gantry-stage1");
}

fn start(
    thread: SingleThreaded,
    lock: &OwnedFd,
    options: Options,
) -> Result<(Supervisor, gantry_contract::start::Ready)> {
    let signals = sys::signalfd(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).attempt(|| "cannot watch for signals")?;
    pod::inheritance::reset(thread)?;
    let plan = read_plan()?;
    tracing::Span::current().record("pod", plan.pod.as_str());
    let mut foregrounds = Foregrounds::default();
    options.output.map_or(Ok(()), |pipe| foregrounds.add(pipe, None))?;
    let pod = pod::launch::launch(thread, plan, lock, options.terminal_size)?;
    let journal = Journal::create(&pod.jail.pod_dir);
    match (journal, ControlSocket::listen()) {
        (Ok(journal), Ok(control)) => {
            let ready = pod.ready();
            journal.append(Fact::Ready(ready.clone()));
            Ok((Supervisor::new(pod, journal, signals, control, foregrounds), ready))
        }
        (Err(why), _) | (_, Err(why)) => {
            pod.undo();
            Err(why)
        }
    }
}

fn read_plan() -> Result<Plan> {
    let bytes = read_stream(std::io::stdin().lock(), MAX_PLAN).attempt(|| "cannot read the plan")?;
    serde_json::from_slice(&bytes).map_err(|error| failure(ErrorKind::Invalid, format!("the plan is damaged: {error}")))
}

/// Sends the start reply. The supervisor goes on without the engine if that was killed.
fn send_reply(reply: &StartReply) {
    let mut line = serde_json::to_vec(reply).unwrap_or_else(|error| internal_failure(&error.to_string()));
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    let _engine_has_gone = out.write_all(&line).and_then(|()| out.flush());
}

fn internal_failure(why: &str) -> Vec<u8> {
    let reply = StartReply::Failed(Failure { kind: ErrorKind::Internal, message: why.to_owned(), app: None });
    serde_json::to_vec(&reply).unwrap_or_default()
}
