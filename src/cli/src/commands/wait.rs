//! `gantry wait`.

use std::time::Duration;

use crate::context::Context;
use crate::exit;
use crate::failure::{CliError, Failure};
use crate::pods::Pods;
use crate::render::json;

/// Arguments of `wait`.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    pods: Pods,
    /// Wait at most for this long: 30s, 2m, or seconds
    #[arg(long, short, value_parser = super::stop::seconds, value_name = "DURATION")]
    time: Option<Duration>,
}

/// Waits until pods have ended, and prints the exit code of each. A pod that was never started has none.
pub(crate) fn wait(context: &Context, args: &Wait) -> Result<u8, Failure> {
    let engine = context.look()?;
    args.pods.each(&engine, context.globals.debug, |id| {
        let limit = args.time.unwrap_or(Duration::MAX);
        let view = engine.wait(id, args.time)?.ok_or(CliError::TimedOut(id, "over", limit))?;
        match view.exit_code() {
            Some(code) => json::to_stdout(|out| writeln!(out, "{code}"))?,
            None => return Err(CliError::NeverStarted { id, phase: view.row.phase.name() }.into()),
        }
        Ok(exit::OK)
    })
}
