//! `gantry rm` and `gantry gc`.

use std::io::{self, Write};
use std::time::Duration;

use gantry_engine::{Engine, GcAction, GcOptions, GcReport, GcStep, PodRow, RmError, RunningPod};
use gantry_model::{Phase, PodId};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods::PodSet;
use crate::render::json::{self, DisplayJson};
use crate::render::{OutputFlag, OutputFormat};

/// Arguments of `rm`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("all", |all| all.help("All pods that are not running; with --force, all")))]
pub(crate) struct Rm {
    #[command(flatten)]
    pods: PodSet,
    /// Stop running pods first, and ignore failures of network plugins
    #[arg(short, long)]
    force: bool,
}

/// Removes pods and prints their ids.
impl RunCommand for Rm {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("rm")?;
        let running = if self.force { RunningPod::Stop } else { RunningPod::Refuse };
        // Running pods only with --force; never pods that another command is preparing or starting.
        let is_removable =
            |row: &PodRow| row.phase.is_final() || self.force || matches!(row.phase, Phase::Prepared { .. });
        self.pods.for_each_at_once(context, &engine, is_removable, |engine, id| {
            match engine.rm(id, running) {
                Err(RmError::Network { .. }) if self.force => abandon(engine, id)?,
                removed => removed?,
            }
            json::to_stdout(|out| writeln!(out, "{id}"))?;
            Ok(ExitStatus::OK)
        })
    }
}

/// Removes a pod although its network plugins fail, and warns about what they may have left behind.
fn abandon(engine: &Engine, id: PodId) -> Result<(), Failure> {
    engine.abandon_networks(id)?.iter().for_each(|line| warn_leftover(id, line));
    Ok(engine.rm(id, RunningPod::Stop)?)
}

fn warn_leftover(id: PodId, line: &str) {
    crate::failure::warn(&format!("pod {id} was removed, but a network plugin may have left something behind: {line}"));
}

/// Arguments of `gc`.
#[derive(Debug, clap::Args)]
pub(crate) struct Gc {
    /// Keep exited pods for this long
    #[arg(long, value_parser = super::stop::parse_duration, default_value = "30m", value_name = "DURATION")]
    grace_period: Duration,
    /// Keep prepared pods for this long
    #[arg(long, value_parser = super::stop::parse_duration, default_value = "24h", value_name = "DURATION")]
    expire_prepared: Duration,
    /// Only mark pods as garbage; remove nothing
    #[arg(long)]
    mark_only: bool,
    /// Show what would be done; change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputFlag,
}

/// A step as JSON: the action on a pod, or the removal of network state that belonged to no pod.
#[derive(Serialize)]
struct GcStepJson<'a> {
    id: Option<DisplayJson<gantry_model::PodId>>,
    what: Option<&'a str>,
    action: &'static str,
    why: &'static str,
    done: bool,
}

/// Collects garbage and prints what was done.
impl RunCommand for Gc {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("gc")?;
        let options = GcOptions {
            grace: self.grace_period,
            expire_prepared: self.expire_prepared,
            mark_only: self.mark_only,
            dry_run: self.dry_run,
        };
        let GcReport { steps, failures, abandoned, mut networks, networks_failure, lost_pods, store_failures } =
            engine.gc(&options)?;
        networks.extend(lost_pods.iter().map(|path| path.display().to_string()));
        let trims = !self.mark_only && !self.dry_run;
        let trim_failure = if trims { engine.trim_events().err() } else { None };
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table => {
                write_steps(out, &steps, self.dry_run)?;
                let lead = if self.dry_run { "would be removed" } else { "removed" };
                networks.iter().try_for_each(|line| writeln!(out, "{lead}: {line}"))
            }
            format => {
                let swept = networks.iter().map(|line| GcStepJson {
                    id: None,
                    what: Some(line),
                    action: "removed",
                    why: "it belongs to no pod",
                    done: !self.dry_run,
                });
                json::write_items(out, format, steps.iter().map(|step| step_json(step, !self.dry_run)).chain(swept))
            }
        })?;
        abandoned.iter().for_each(|(id, line)| warn_leftover(*id, line));
        let failures = failures.into_iter().map(|(_, error)| Failure::from(error));
        let failures = failures
            .chain(networks_failure.map(Failure::from))
            .chain(store_failures.into_iter().map(Failure::from))
            .chain(trim_failure.map(Failure::from));
        Ok(context.report(failures, CommandKind::Action))
    }
}

fn write_steps(out: &mut dyn Write, steps: &[GcStep], dry_run: bool) -> io::Result<()> {
    let lead = if dry_run { "would be " } else { "" };
    steps.iter().try_for_each(|step| writeln!(out, "{}: {lead}{} ({})", step.id, action_name(step.action), step.why))
}

fn step_json(step: &GcStep, done: bool) -> GcStepJson<'static> {
    GcStepJson { id: Some(DisplayJson(step.id)), what: None, action: action_name(step.action), why: step.why, done }
}

fn action_name(action: GcAction) -> &'static str {
    match action {
        GcAction::Mark => "marked",
        GcAction::Delete => "deleted",
    }
}
