//! `gantry exec` and `gantry enter`.

use std::io::Write as _;
use std::os::fd::AsFd as _;

use gantry_engine::{Engine, Exec as Process, ExecRequest, Stdio};
use gantry_model::{AppName, ErrorKind, HowEnded, PodId};

use crate::context::Context;
use crate::exit;
use crate::failure::{Failure, io};
use crate::pods::OnePod;
use crate::relay::{self, Flow, Over};
use crate::signals::{ENDING, Signals};
use crate::terminal::{self, DetachKeys, RawMode};

/// Arguments of `exec`.
#[derive(Debug, clap::Args)]
pub(crate) struct Exec {
    /// Keep stdin open
    #[arg(short, long)]
    interactive: bool,
    /// Give the program a terminal
    #[arg(short, long)]
    tty: bool,
    /// The app; needed when the pod has several
    #[arg(long)]
    app: Option<AppName>,
    /// User: name or number, with :GROUP if wanted
    #[arg(short, long)]
    user: Option<String>,
    /// Group: name or number
    #[arg(long)]
    group: Option<String>,
    /// Working directory, absolute in the app
    #[arg(short, long, visible_alias = "working-dir", value_name = "DIR")]
    workdir: Option<String>,
    /// A variable on top of the app's; NAME alone takes the caller's
    #[arg(short, long, visible_alias = "environment", value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<Variable>,
    /// Keys that leave the program to itself; empty: none
    #[arg(long, value_name = "KEYS", default_value = "ctrl-p,ctrl-q")]
    detach_keys: DetachKeys,
    #[command(flatten)]
    pod: OnePod,
    /// Program and arguments; none: a shell, with a terminal when there is one here
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// One `--env`; `None`: the caller has no such variable.
type Variable = (String, Option<String>);

fn variable(text: &str) -> Result<Variable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, std::env::var(text).ok()),
    };
    gantry_model::spec::environment_name(name).map_err(|error| error.to_string())?;
    Ok((name.to_owned(), value))
}

/// Shells an image may have, best first; the last one's failure is the one that is told.
const SHELLS: [&str; 3] = ["/bin/bash", "/bin/ash", "/bin/sh"];

/// Runs a program in an app and ends with its code.
pub(crate) fn exec(context: &Context, args: Exec) -> Result<u8, Failure> {
    let engine = context.open("exec")?;
    let (id, first) = args.pod.id(&engine)?;
    // With --latest and --uuid-file the first word belongs to the command.
    let command: Vec<String> = first.map(str::to_owned).into_iter().chain(args.command).collect();
    let shell = command.is_empty();
    // Whoever enters wants to type.
    let at_terminal = shell && rustix::termios::isatty(rustix::stdio::stdin());
    let (tty, interactive) = (args.tty || at_terminal, args.interactive || shell);
    let size = terminal::size();
    let request = ExecRequest {
        app: args.app,
        argv: if shell { vec![SHELLS[0].to_owned()] } else { command },
        env: args.env.into_iter().filter_map(|(name, value)| Some((name, value?))).collect(),
        cwd: args.workdir,
        user: args.user,
        group: args.group,
        terminal: tty.then(|| size.map_or((24, 80), |size| (size.ws_row, size.ws_col))),
    };
    let mut candidates: &[&str] = if shell { &SHELLS[1..] } else { &[] };
    let mut request = request;
    let keyboard = interactive.then_some(&args.detach_keys);
    loop {
        match once(&engine, id, request.clone(), keyboard) {
            Err(failure) if failure.kind() == ErrorKind::CommandNotFound => {
                let Some((next, rest)) = candidates.split_first() else { return Err(failure) };
                request.argv = vec![(*next).to_owned()];
                candidates = rest;
            }
            outcome => return outcome,
        }
    }
}

/// Runs the program; `keyboard` is there if it takes input.
fn once(engine: &Engine, id: PodId, request: ExecRequest, keyboard: Option<&DetachKeys>) -> Result<u8, Failure> {
    if request.terminal.is_some() {
        let process = engine.exec(id, request, Stdio::Terminal)?;
        return with_terminal(process, id, keyboard);
    }
    let interposed = relay::interpose(keyboard.is_some()).map_err(io("make", "pipes for standard streams"))?;
    let stdio = Stdio::Fds(interposed.stdin, interposed.stdout, interposed.stderr);
    let process = engine.exec(id, request, stdio)?;
    let mut flows = interposed.flows;
    if !flows.is_empty() {
        // Our being killed closes the connection, and the supervisor then kills the process: no signals to catch.
        relay::relay(&mut flows, process.as_fd(), None).map_err(io("pass on", "standard streams"))?;
    }
    ended(process)
}

fn with_terminal(mut process: Process, id: PodId, keyboard: Option<&DetachKeys>) -> Result<u8, Failure> {
    let failed = || io("use", "the terminal of the program");
    let Some(master) = process.master.take() else { return ended(process) };
    relay::nonblocking(&master).map_err(failed())?;
    let caught = ENDING.into_iter().chain([signal_hook::consts::SIGWINCH]);
    let mut signals = Signals::catch(caught).map_err(failed())?;
    let raw = match keyboard {
        Some(_) => RawMode::enter().map_err(failed())?,
        None => RawMode::enter_output().map_err(failed())?,
    };
    let copy = || master.try_clone().map_err(failed());
    let ours = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().map_err(failed());
    let mut flows = vec![Flow::out(copy()?, ours(rustix::stdio::stdout())?)];
    if let Some(keys) = keyboard {
        flows.push(Flow::input(ours(rustix::stdio::stdin())?, copy()?, raw.is_some().then(|| keys.clone())));
    }
    let code = loop {
        match relay::relay(&mut flows, process.as_fd(), Some(signals.as_fd())).map_err(failed())? {
            Over::Ended => break ended(process)?,
            Over::Detached => {
                process.detach(&master)?;
                terminal::restore();
                // Nowhere to tell that standard error is gone.
                let _ = writeln!(std::io::stderr(), "gantry: detached from the program in pod {id}, which runs on");
                break exit::OK;
            }
            Over::Other => {
                let came = signals.take();
                if let Some(signal) = came.iter().find(|signal| ENDING.contains(signal)) {
                    break exit::of_signal(*signal);
                }
                terminal::resize(&master);
            }
        }
    };
    drop(raw);
    Ok(code)
}

fn ended(process: Process) -> Result<u8, Failure> {
    let how: HowEnded = process.wait()?;
    Ok(exit::of_app(how.exit_code()))
}
