//! The gantryd daemon: configuration, wiring, the keeper loop. Synchronous.
//!
//! May import `gantry_model` and `gantry_engine`. Holds no policy of its own: what is done with a pod is the engine's,
//! when it is done is here. Pods never depend on it: it may be killed, upgraded and started again while they run, and
//! whatever it leaves undone is found by the next look at the facts, its own or a command's.
//!
//! Start reading at [`keeper`] (the loop), then [`watcher`] (what wakes it) and [`collector`] (garbage and backups).
//! It always starts: [`condition`] is what it says of a damaged database, `open_for_keeping` what it does about it.
#![forbid(unsafe_code)]

mod collector;
mod condition;
mod keeper;
mod log;
mod notify;
mod signals;
mod watcher;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::Parser as _;
use gantry_engine::{Keeping, Settings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::keeper::Keeper;
use crate::signals::Signals;

/// gantryd keeps the rows of pods true, collects garbage and backs up the database. Pods run without it.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "gantryd", version, after_help = "Exit codes: 0 told to end, 1 failed, 2 bad command line.")]
pub(crate) struct Args {
    /// Data directory [default: /var/lib/gantry; environment: GANTRY_DIR]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Configuration file [default: /etc/gantry/config.toml; environment: GANTRY_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Args {
    /// What these flags, the environment and the configuration file come to now.
    pub(crate) fn settings(&self) -> Result<Settings, gantry_engine::SettingsError> {
        Settings::read(self.dir.as_deref(), self.config.as_deref())
    }
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            log::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns when a signal asked for it. A collection that is under way then ends with the process, as it would with a
/// `kill -9`: the next one goes on where it was.
fn run(args: Args) -> anyhow::Result<()> {
    let settings = args.settings()?;
    if !rustix::process::geteuid().is_root() {
        bail!("gantryd needs root");
    }
    // Before anything is done, so that a signal never finds it half-way.
    let signals = Signals::catch().context("cannot catch signals")?;
    let keeping = gantry_engine::open_for_keeping(settings.options.clone())?;
    condition::say(&keeping);
    let Keeping { engine, condition, lock: _lock, .. } = keeping;
    let dir = settings.options.dir.display();
    raise_descriptor_limit();
    let ended = if condition.can_write() {
        let mut keeper = Keeper::new(args, settings.clone(), engine, signals)?;
        keeper.begin();
        log::info(&format!("keeping {dir}"));
        notify::tell("READY=1");
        keeper.run()
    } else {
        log::warning(&format!("only serving {dir}: pods run on, nobody settles them"));
        notify::tell("READY=1");
        condition::only_serve(&signals, &condition)
    };
    notify::tell("STOPPING=1");
    ended?;
    log::info("told to end; pods run on");
    Ok(())
}

/// One descriptor per running pod: the soft limit that services usually get would end at about a thousand of them.
fn raise_descriptor_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        log::warning(&format!("cannot raise the limit of open files: {errno}"));
    }
}
