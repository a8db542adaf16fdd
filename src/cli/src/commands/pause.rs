//! `gantry pause` and `gantry unpause`.

use gantry_engine::{Engine, PodRow};
use gantry_model::{AppName, Phase, PodId};
use std::io::Write as _;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods::PodSet;
use crate::render::json;

/// Arguments of `pause`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("all", |all| all.help("All running pods that are not paused")))]
pub(crate) struct Pause {
    #[command(flatten)]
    targets: PauseTargets,
}

/// Arguments of `unpause`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("all", |all| all.help("All paused pods, and pods with paused apps")))]
pub(crate) struct Unpause {
    #[command(flatten)]
    targets: PauseTargets,
}

/// The pods and apps of a command.
#[derive(Debug, clap::Args)]
#[command(mut_arg("pods", |pods| {
    pods.value_name("POD[/APP]").help("Pods, or apps as POD/APP. If one does not exist, none is changed")
}))]
struct PauseTargets {
    #[command(flatten)]
    pods: PodSet,
    /// The app, for pods without /APP
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
}

/// Freezes the processes of pods or apps, and prints the pods and apps.
impl RunCommand for Pause {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("pause")?;
        let is_running = |row: &PodRow| matches!(row.phase, Phase::Running { .. }) && !row.paused;
        self.targets.for_each(context, &engine, is_running, |id, app| Ok(engine.pause(id, app)?))
    }
}

/// Thaws the processes of pods or apps, and prints the pods and apps.
impl RunCommand for Unpause {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("unpause")?;
        let is_frozen = |row: &PodRow| row.paused || row.apps.iter().any(|app| app.paused);
        self.targets.for_each(context, &engine, is_frozen, |id, app| Ok(engine.unpause(id, app)?))
    }
}

impl PauseTargets {
    fn for_each(
        &self,
        context: &Context,
        engine: &Engine,
        is_selected: impl Fn(&PodRow) -> bool,
        mut act: impl FnMut(PodId, Option<&AppName>) -> Result<(), Failure>,
    ) -> Result<ExitStatus, Failure> {
        self.pods.for_each_target(context, engine, is_selected, self.app.as_ref(), |id, app| {
            act(id, app)?;
            json::to_stdout(|out| match app {
                Some(app) => writeln!(out, "{id}/{app}"),
                None => writeln!(out, "{id}"),
            })?;
            Ok(ExitStatus::OK)
        })
    }
}
