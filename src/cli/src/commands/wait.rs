//! `gantry wait`.

use std::time::Duration;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{self, CommandKind};
use crate::failure::{CliError, Failure};
use crate::pods::Pods;
use crate::render::json;

/// Arguments of `wait`.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    pods: Pods,
    /// Wait at most for this long: 30s, 2m, or seconds
    #[arg(long, short, value_parser = super::stop::parse_duration, value_name = "DURATION")]
    time: Option<Duration>,
}

/// Waits until pods have exited and prints their exit codes. A pod that was never started has none.
impl RunCommand for Wait {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<u8, Failure> {
        let engine = context.open_to_read()?;
        self.pods.for_each(&engine, context.globals.debug, |id| {
            let limit = self.time.unwrap_or(Duration::MAX);
            let view = engine.wait(id, self.time)?.ok_or(CliError::TimedOut(id, "over", limit))?;
            match view.exit_code() {
                Some(code) => json::to_stdout(|out| writeln!(out, "{code}"))?,
                None => return Err(CliError::NeverStarted { id, phase: view.row.phase.name() }.into()),
            }
            Ok(exit::OK)
        })
    }
}
