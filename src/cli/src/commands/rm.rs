//! `gantry rm` and `gantry gc`.

use std::io::{self, Write};
use std::time::Duration;

use gantry_engine::{Engine, GcAction, GcOptions, GcReport, GcStep, PodRow, RmError};
use gantry_model::{Phase, PodId};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{self, Asking};
use crate::failure::Failure;
use crate::pods::PodSet;
use crate::render::Form;
use crate::render::json::{self, Text};

/// Arguments of `rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    pods: PodSet,
    /// Stop the pod first when it runs, and remove it also if a network plugin fails to delete what it made
    #[arg(short, long)]
    force: bool,
}

/// Removes pods and prints their ids.
pub(crate) fn rm(context: &Context, args: &Rm) -> Result<u8, Failure> {
    let engine = context.open("rm")?;
    // Of those that run only with --force, and of those that others make or start none.
    let fits = |row: &PodRow| row.phase.is_final() || args.force || matches!(row.phase, Phase::Prepared { .. });
    args.pods.each(&engine, context.globals.debug, fits, |id| {
        match engine.rm(id, args.force) {
            Err(RmError::Network { .. }) if args.force => abandon(&engine, id)?,
            removed => removed?,
        }
        json::to_stdout(|out| writeln!(out, "{id}"))?;
        Ok(exit::OK)
    })
}

/// Removes a pod whose network plugins fail, and warns about what they may have kept of it.
fn abandon(engine: &Engine, id: PodId) -> Result<(), Failure> {
    engine.abandon_networks(id)?.iter().for_each(|line| warn_kept(id, line));
    Ok(engine.rm(id, true)?)
}

fn warn_kept(id: PodId, line: &str) {
    crate::failure::warn(&format!("pod {id} is removed, but a network plugin may have kept something of it: {line}"));
}

/// Arguments of `gc`.
#[derive(Debug, clap::Args)]
pub(crate) struct Gc {
    /// How long a pod stays after its end
    #[arg(long, value_parser = super::stop::seconds, default_value = "30m", value_name = "DURATION")]
    grace_period: Duration,
    /// How long a prepared pod may wait to be run
    #[arg(long, value_parser = super::stop::seconds, default_value = "24h", value_name = "DURATION")]
    expire_prepared: Duration,
    /// Mark only, remove nothing
    #[arg(long)]
    mark_only: bool,
    /// Change nothing, say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Form of the answer
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORM")]
    form: Form,
}

/// One step as JSON: what was done with a pod, or what was removed of networks that belonged to none.
#[derive(Serialize)]
struct Document<'a> {
    id: Option<Text<gantry_model::PodId>>,
    what: Option<&'a str>,
    action: &'static str,
    why: &'static str,
    done: bool,
}

/// Collects pods that ended or were never run, and says what was done.
pub(crate) fn gc(context: &Context, args: &Gc) -> Result<u8, Failure> {
    let engine = context.open("gc")?;
    let options = GcOptions {
        grace: args.grace_period,
        expire_prepared: args.expire_prepared,
        mark_only: args.mark_only,
        dry_run: args.dry_run,
    };
    let GcReport {
        steps,
        failures,
        abandoned,
        mut networks,
        networks_failure,
        lost_pods,
        temporaries_failure,
        lost_pods_failure,
    } = engine.gc(&options)?;
    networks.extend(lost_pods.iter().map(|path| path.display().to_string()));
    if !args.mark_only && !args.dry_run {
        engine.trim_events()?;
    }
    json::to_stdout(|out| match args.form {
        Form::Table => {
            lines(out, &steps, args.dry_run)?;
            let lead = if args.dry_run { "would be removed" } else { "removed" };
            networks.iter().try_for_each(|line| writeln!(out, "{lead}: {line}"))
        }
        form => {
            let swept = networks.iter().map(|line| Document {
                id: None,
                what: Some(line),
                action: "removed",
                why: "it belongs to no pod",
                done: !args.dry_run,
            });
            json::items(out, form, steps.iter().map(|step| document(step, !args.dry_run)).chain(swept))
        }
    })?;
    abandoned.iter().for_each(|(id, line)| warn_kept(*id, line));
    let mut worst = exit::OK;
    let failures = failures.into_iter().map(|(_, error)| Failure::from(error));
    let store_failures = temporaries_failure.into_iter().chain(lost_pods_failure).map(Failure::from);
    let others = networks_failure.map(Failure::from).into_iter().chain(store_failures);
    for failure in failures.chain(others) {
        failure.print(context.globals.debug);
        worst = worst.max(failure.code(Asking::Action));
    }
    Ok(worst)
}

fn lines(out: &mut dyn Write, steps: &[GcStep], dry_run: bool) -> io::Result<()> {
    let lead = if dry_run { "would be " } else { "" };
    steps.iter().try_for_each(|step| writeln!(out, "{}: {lead}{} ({})", step.id, action(step.action), step.why))
}

fn document(step: &GcStep, done: bool) -> Document<'static> {
    Document { id: Some(Text(step.id)), what: None, action: action(step.action), why: step.why, done }
}

fn action(action: GcAction) -> &'static str {
    match action {
        GcAction::Mark => "marked",
        GcAction::Delete => "deleted",
    }
}
