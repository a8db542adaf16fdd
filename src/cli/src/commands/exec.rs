//! `gantry exec` and `gantry enter`.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use gantry_engine::{Engine, Exec as Process, ExecRequest, Stdio};
use gantry_model::terminal::DEFAULT_SIZE;
use gantry_model::{AppName, AppOutcome, ErrorKind, PodId};
use rustix::fs::OFlags;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::environment;
use crate::exit::ExitStatus;
use crate::failure::{Failure, io, print_stderr};
use crate::grammar::{check_variable_name, merged_environment, message};
use crate::pods::{OnePod, SelectedApp};
use crate::relay::{self, Flow, RelayEvent};
use crate::signals::Signals;
use crate::terminal::{self, DetachKeys, RawMode};

/// Arguments of `exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct Exec {
    /// Run the program in the background, without input, and discard its output
    #[arg(short, long)]
    detach: bool,
    /// Keep standard input open
    #[arg(short, long)]
    interactive: bool,
    /// Allocate a terminal
    #[arg(short, long)]
    tty: bool,
    /// The app; required if the pod has several
    #[arg(long)]
    app: Option<AppName>,
    /// User name or id, optionally with :GROUP
    #[arg(short, long)]
    user: Option<String>,
    /// Group name or id
    #[arg(long)]
    group: Option<String>,
    /// Working directory (absolute)
    #[arg(short, long, visible_alias = "working-dir", value_name = "DIR")]
    workdir: Option<String>,
    /// Set an environment variable; NAME alone takes the caller's value
    #[arg(short, long, visible_alias = "environment", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<Variable>,
    /// Set environment variables from a file of lines NAME=VALUE, or NAME for the caller's value; --env replaces them
    #[arg(long, visible_alias = "set-env-file", value_name = "FILE")]
    env_file: Vec<PathBuf>,
    /// Key sequence to detach from the program; empty: none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: DetachKeys,
    #[command(flatten)]
    pod: OnePod,
    /// Program and arguments [default: a shell]
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// The value of `--env`. `None`: the caller has no such variable.
type Variable = (String, Option<String>);

fn variable(text: &str) -> Result<Variable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, std::env::var(text).ok()),
    };
    check_variable_name(name).map_err(message)?;
    Ok((name.to_owned(), value))
}

/// Shells to try, in this order. If none exists, the error of the last one is reported.
const SHELLS: [&str; 3] = ["/bin/bash", "/bin/ash", "/bin/sh"];

/// Runs a program in an app and exits with its code.
impl RunCommand for Exec {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let env = self.environment()?;
        let engine = context.open("exec")?;
        let SelectedApp { pod: id, app, found_by, first } = self.pod.app(&engine, self.app.as_ref())?;
        let app = app.or(found_by);
        // With --latest and --uuid-file the first word belongs to the command.
        let command: Vec<String> = first.map(str::to_owned).into_iter().chain(self.command.iter().cloned()).collect();
        if self.detach {
            if command.is_empty() {
                return Err(Failure::usage("name the program that is to run in the background"));
            }
            return run_detached(&engine, id, self.request(app, command, env, self.tty));
        }
        let shell = command.is_empty();
        // A shell is interactive: give it a terminal if there is one here.
        let at_terminal = shell && rustix::termios::isatty(rustix::stdio::stdin());
        let keyboard = (self.interactive || shell).then_some(&self.detach_keys);
        let argv = if shell { vec![SHELLS[0].to_owned()] } else { command };
        let mut request = self.request(app, argv, env, self.tty || at_terminal);
        let mut candidates: &[&str] = if shell { &SHELLS[1..] } else { &[] };
        loop {
            match run_program(&engine, id, request.clone(), keyboard) {
                Err(failure) if failure.kind() == ErrorKind::CommandNotFound => {
                    let Some((next, rest)) = candidates.split_first() else { return Err(failure) };
                    request.argv = vec![(*next).to_owned()];
                    candidates = rest;
                }
                outcome => return outcome,
            }
        }
    }
}

impl Exec {
    /// The variables of files, then those of flags, which replace them.
    fn environment(&self) -> Result<Vec<(String, String)>, Failure> {
        let from_files = environment::read_files(&self.env_file)?;
        let given: Vec<_> = self.env.iter().cloned().filter_map(|(name, value)| Some((name, value?))).collect();
        Ok(merged_environment([&from_files[..], &given]))
    }

    fn request(&self, app: Option<AppName>, argv: Vec<String>, env: Vec<(String, String)>, tty: bool) -> ExecRequest {
        ExecRequest {
            app,
            argv,
            env,
            cwd: self.workdir.clone(),
            user: self.user.clone(),
            group: self.group.clone(),
            terminal: tty.then(|| terminal::rows_and_columns().unwrap_or(DEFAULT_SIZE)),
        }
    }
}

/// Starts the program, which runs on until it exits or its pod ends.
fn run_detached(engine: &Engine, id: PodId, request: ExecRequest) -> Result<ExitStatus, Failure> {
    let stdio = match request.terminal {
        Some(_) => Stdio::Terminal,
        None => null_streams().map_err(io("open", "/dev/null"))?,
    };
    let mut process = engine.exec(id, request, stdio)?;
    let master = process.master.take();
    process.detach(master.as_ref())?;
    Ok(ExitStatus::OK)
}

fn null_streams() -> std::io::Result<Stdio> {
    Ok(Stdio::Fds(relay::null(OFlags::RDONLY)?, relay::null(OFlags::WRONLY)?, relay::null(OFlags::WRONLY)?))
}

/// Runs the program; `keyboard` is set if it takes input.
fn run_program(
    engine: &Engine,
    id: PodId,
    request: ExecRequest,
    keyboard: Option<&DetachKeys>,
) -> Result<ExitStatus, Failure> {
    if request.terminal.is_some() {
        let process = engine.exec(id, request, Stdio::Terminal)?;
        return with_terminal(process, id, keyboard);
    }
    let interposed = relay::interpose(keyboard.is_some()).map_err(io("make", "pipes for standard streams"))?;
    let stdio = Stdio::Fds(interposed.stdin, interposed.stdout, interposed.stderr);
    let process = engine.exec(id, request, stdio)?;
    let mut flows = interposed.flows;
    if !flows.is_empty() {
        // No signals are caught: if this process is killed, the connection closes and the supervisor kills the program.
        relay::relay(&mut flows, process.as_fd(), None).map_err(io("pass on", "standard streams"))?;
    }
    ended(process)
}

fn with_terminal(mut process: Process, id: PodId, keyboard: Option<&DetachKeys>) -> Result<ExitStatus, Failure> {
    let failed = || io("use", "the terminal of the program");
    let Some(master) = process.master.take() else { return ended(process) };
    rustix::io::ioctl_fionbio(&master, true).map_err(|errno| failed()(errno.into()))?;
    // The supervisor kills the program when the connection closes with this process.
    terminal::restore_at_signals().map_err(failed())?;
    let mut resizes = Signals::catch([signal_hook::consts::SIGWINCH]).map_err(failed())?;
    let raw = match keyboard {
        Some(_) => RawMode::enter().map_err(failed())?,
        None => RawMode::enter_output().map_err(failed())?,
    };
    let copy = || master.try_clone().map_err(failed());
    let ours = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().map_err(failed());
    let mut flows = vec![Flow::out(copy()?, ours(rustix::stdio::stdout())?)];
    if let Some(keys) = keyboard {
        flows.push(Flow::typed(ours(rustix::stdio::stdin())?, copy()?, raw.is_some().then(|| keys.clone())));
    }
    let code = loop {
        match relay::relay(&mut flows, process.as_fd(), Some(resizes.as_fd())).map_err(failed())? {
            RelayEvent::Ended => break ended(process)?,
            RelayEvent::Detached => {
                process.detach(Some(&master))?;
                terminal::restore();
                print_stderr(&format!("gantry: detached from the program in pod {id}, which continues to run\n"));
                break ExitStatus::OK;
            }
            RelayEvent::OtherReady => {
                let _only_sigwinch = resizes.pending();
                terminal::resize(&master);
            }
        }
    };
    drop(raw);
    Ok(code)
}

fn ended(process: Process) -> Result<ExitStatus, Failure> {
    let how: AppOutcome = process.wait()?;
    Ok(ExitStatus::of_app(how.exit_code()))
}
