//! `gantry-stage1`: the supervisor of one running pod.
//!
//! It is started by the engine with a plan on stdin and the locked pod directory as an inherited descriptor, makes the
//! pod's namespaces, mounts, groups and PID 1, launches the apps through libcontainer, says one word up its stdout, and then
//! writes logs, answers the control socket and keeps the journal until the last app has ended.
//!
//! May import: the model, the contract and the crate of networks. Must never know: the database, images, tokio, threads.
//! Start reading at [`launch`] (how a pod comes to be), then [`supervise`] (how it lives and ends). In another role it is run
//! for what concerns networks and no running pod: [`role`]. In both, the process first executes itself again from a read-only mount,
//! so that no app can change the program on the host: [`reexec`].

mod app;
mod attaching;
mod cgroup;
mod confine;
mod control;
mod copy;
mod devices;
mod etc;
mod exec;
mod failure;
mod foreground;
mod inheritance;
mod init;
mod jail;
mod journal;
mod launch;
mod launcher;
mod logs;
mod network;
mod pace;
mod passing;
mod program;
mod reexec;
mod refusal;
mod role;
mod root;
mod seccomp;
mod spec;
mod supervise;
mod sys;
mod targets;
mod terminal;
mod trim;
mod user;
mod volumes;

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;

use gantry_contract::Failure;
use gantry_contract::journal::Fact;
use gantry_contract::plan::Plan;
use gantry_contract::up::Word;
use gantry_model::ErrorKind;

use crate::failure::{Attempt, Result, failure};
use crate::foreground::Foregrounds;
use crate::journal::Journal;
use crate::supervise::Supervisor;

/// The longest plan, in bytes.
const MOST_PLAN: u64 = 16 << 20;

const USAGE: &str = "usage: gantry-stage1 run --lock-fd N [--output-fd N] [--terminal-size ROWSxCOLUMNS]\n       gantry-stage1 network\n       gantry-stage1 version\n\
This is started by gantry, not by hand.";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["run", "--lock-fd", lock, ref options @ ..] => match reexec::ensure_read_only() {
            // Only now: what is taken over is not inherited any further.
            Ok(()) => match (inherited(lock), Options::parse(options)) {
                (Some(lock), Ok(options)) => run(lock, options),
                (None, _) => usage("the lock's descriptor is not open"),
                (_, Err(why)) => usage(why),
            },
            Err(why) => {
                say(&Word::Failed(why));
                ExitCode::FAILURE
            }
        },
        ["network"] => {
            name();
            role::run()
        }
        ["version"] => {
            println!("gantry-stage1 {} contract {}", env!("CARGO_PKG_VERSION"), gantry_contract::VERSION);
            ExitCode::SUCCESS
        }
        _ => usage("unknown arguments"),
    }
}

fn inherited(number: &str) -> Option<OwnedFd> {
    number.parse().ok().and_then(sys::inherited)
}

/// What concerns one start and not the pod.
#[derive(Default)]
struct Options {
    /// The pipe of the foreground, if there is one.
    output: Option<OwnedFd>,
    /// The size of the foreground's terminal: rows and columns.
    terminal_size: Option<(u16, u16)>,
}

impl Options {
    fn parse(words: &[&str]) -> std::result::Result<Self, &'static str> {
        let mut options = Self::default();
        let mut left = words;
        while let [name, value, rest @ ..] = left {
            match *name {
                "--output-fd" => {
                    options.output = Some(inherited(value).ok_or("the descriptor for the output is not open")?);
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

/// `lock` is held until this process ends; nothing has to be done with it.
#[expect(clippy::needless_pass_by_value, reason = "it is this function's to hold")]
fn run(lock: OwnedFd, options: Options) -> ExitCode {
    name();
    match start(&lock, options) {
        Ok((mut supervisor, ready)) => {
            say(&Word::Ready(ready));
            supervisor.let_go_of_stdio();
            supervisor.run();
            network::finish_elsewhere();
            // Dropping nothing: who closes the last descriptor of a file system waits until that is unmounted. What the end of
            // a process closes is unmounted when it is gone.
            sys::exit_now(0)
        }
        Err(why) => {
            say(&Word::Failed(why));
            network::finish_elsewhere();
            ExitCode::FAILURE
        }
    }
}

/// gantryd looks by this name who changed the host's tables, whatever the program's file is called.
fn name() {
    let _ = rustix::thread::set_name(c"gantry-stage1");
}

fn start(lock: &OwnedFd, options: Options) -> Result<(Supervisor, gantry_contract::up::Ready)> {
    let signals = sys::signalfd(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]).attempt(|| "cannot watch for signals")?;
    let kept: Vec<BorrowedFd<'_>> =
        [lock.as_fd(), signals.as_fd()].into_iter().chain(options.output.iter().map(AsFd::as_fd)).collect();
    inheritance::close_descriptors(&kept)?;
    inheritance::reset()?;
    let plan = read_plan()?;
    let mut foregrounds = Foregrounds::default();
    options.output.map_or(Ok(()), |pipe| foregrounds.add(pipe))?;
    let pod = launch::launch(plan, lock, options.terminal_size)?;
    let journal = Journal::create(&pod.jail.pod_dir);
    let socket = control::listen();
    match (journal, socket) {
        (Ok(journal), Ok(listener)) => {
            let ready = pod.ready();
            journal.append(Fact::Ready(ready.clone()));
            Ok((Supervisor::new(pod, journal, signals, listener, foregrounds), ready))
        }
        (Err(why), _) | (_, Err(why)) => {
            pod.undo();
            Err(why)
        }
    }
}

fn read_plan() -> Result<Plan> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(MOST_PLAN).read_to_end(&mut bytes).attempt(|| "cannot read the plan")?;
    serde_json::from_slice(&bytes).map_err(|error| failure(ErrorKind::Invalid, format!("the plan is damaged: {error}")))
}

/// Says the word. The engine may have gone, which is no reason to stop.
fn say(word: &Word) {
    let mut line = serde_json::to_vec(word).unwrap_or_else(|error| fallback(&error.to_string()));
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

fn fallback(why: &str) -> Vec<u8> {
    let word = Word::Failed(Failure { kind: "internal".to_owned(), message: why.to_owned(), app: None });
    serde_json::to_vec(&word).unwrap_or_default()
}
