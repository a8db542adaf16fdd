//! `gantry start`.

use gantry_engine::{Engine, PodRow, is_kubelet_sandbox};
use gantry_model::{Phase, PodId};
use std::io::Write as _;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{Failure, warn};
use crate::pods::PodSet;
use crate::render::json;

/// Arguments of `start`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("all", |all| all.help("All exited and prepared pods, except sandboxes of a kubelet")))]
pub(crate) struct Start {
    #[command(flatten)]
    pods: PodSet,
}

/// Starts pods that have exited, or are prepared, and prints their ids. Starting a pod that runs succeeds.
impl RunCommand for Start {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("start")?;
        self.pods.for_each(context, &engine, is_startable, |id| {
            start_pod(&engine, id)?;
            json::to_stdout(|out| writeln!(out, "{id}"))?;
            Ok(ExitStatus::OK)
        })
    }
}

/// Selects the pods of `--all` and `--filter`.
fn is_startable(row: &PodRow) -> bool {
    matches!(row.phase, Phase::Exited { .. } | Phase::Prepared { .. }) && !is_kubelet_sandbox(row)
}

/// Starts a pod unless it runs, and prints warnings.
pub(super) fn start_pod(engine: &Engine, id: PodId) -> Result<(), Failure> {
    if let Some(running) = engine.start_again(id)? {
        running.ready.warnings.iter().for_each(|warning| warn(warning));
    }
    Ok(())
}
