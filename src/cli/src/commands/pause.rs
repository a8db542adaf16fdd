//! `gantry pause` and `gantry unpause`.

use gantry_engine::Engine;
use gantry_model::{AppName, PodId};
use std::io::Write as _;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods::find_target;
use crate::render::json;

/// Arguments of `pause`.
#[derive(Debug, clap::Args)]
pub(crate) struct Pause {
    #[command(flatten)]
    targets: PauseTargets,
}

/// Arguments of `unpause`.
#[derive(Debug, clap::Args)]
pub(crate) struct Unpause {
    #[command(flatten)]
    targets: PauseTargets,
}

/// The pods and apps of a command.
#[derive(Debug, clap::Args)]
struct PauseTargets {
    /// Pods, or apps as POD/APP
    #[arg(value_name = "POD[/APP]", required = true)]
    targets: Vec<String>,
    /// The app, for pods without /APP
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
}

/// Freezes the processes of pods or apps, and prints the pods and apps.
impl RunCommand for Pause {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("pause")?;
        self.targets.for_each(context, &engine, |id, app| Ok(engine.pause(id, app)?))
    }
}

/// Thaws the processes of pods or apps, and prints the pods and apps.
impl RunCommand for Unpause {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("unpause")?;
        self.targets.for_each(context, &engine, |id, app| Ok(engine.unpause(id, app)?))
    }
}

impl PauseTargets {
    fn for_each(
        &self,
        context: &Context,
        engine: &Engine,
        mut act: impl FnMut(PodId, Option<&AppName>) -> Result<(), Failure>,
    ) -> Result<ExitStatus, Failure> {
        Ok(context.for_each(&self.targets, CommandKind::Query, &mut |text| {
            let (id, app) = find_target(engine, text, self.app.as_ref())?;
            act(id, app.as_ref())?;
            json::to_stdout(|out| match &app {
                Some(app) => writeln!(out, "{id}/{app}"),
                None => writeln!(out, "{id}"),
            })?;
            Ok(ExitStatus::OK)
        }))
    }
}
