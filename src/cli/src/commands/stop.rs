//! `gantry stop` and `gantry kill`.

use std::io::Write as _;
use std::time::Duration;

use gantry_engine::{Engine, PodRow};
use gantry_model::{AppName, Phase, PodId};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods::PodSet;
use crate::render::json;

/// Arguments of `stop`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("all", |all| all.help("All running pods")))]
pub(crate) struct Stop {
    #[command(flatten)]
    pods: PodSet,
    #[command(flatten)]
    grace: Grace,
    /// After the next boot, let gantryd start the pods that have a restart policy
    #[arg(long)]
    until_boot: bool,
}

/// The time between the stop signal and SIGKILL.
#[derive(Debug, clap::Args)]
pub(crate) struct Grace {
    /// Send SIGKILL at once
    #[arg(long, short)]
    force: bool,
    /// Time between the stop signal and SIGKILL: 30s, 2m, or seconds; -1: no SIGKILL (default: --stop-timeout of the
    /// apps)
    #[arg(
        long,
        short,
        alias = "timeout",
        value_parser = parse_grace,
        allow_negative_numbers = true,
        value_name = "DURATION",
        conflicts_with = "force"
    )]
    time: Option<Duration>,
}

impl Grace {
    /// The time that the flags give an app of the pod, or all of its apps (`None`).
    pub(crate) fn resolve(&self, engine: &Engine, id: PodId, app: Option<&AppName>) -> Duration {
        match self.time {
            _ if self.force => Duration::ZERO,
            Some(time) => time,
            None => engine.stop_grace(id, app),
        }
    }
}

/// The longest duration. The limit keeps deadlines computed from it from overflowing.
const YEAR: Duration = Duration::from_secs(31_536_000);

/// A duration, or plain seconds as docker's and podman's `--time` takes them.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let plain = text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let duration = plain.map(Duration::from_secs).map_or_else(|| gantry_model::quantity::duration(text), Ok);
    duration.map(|duration| duration.min(YEAR)).map_err(|error| error.to_string())
}

/// A grace period: like [`parse_duration`], but takes docker's -1 for no limit.
fn parse_grace(text: &str) -> Result<Duration, String> {
    if text == "-1" { Ok(YEAR) } else { parse_duration(text) }
}

/// Stops pods and prints their ids. Stopping a pod that has exited succeeds.
impl RunCommand for Stop {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("stop")?;
        self.pods.for_each_at_once(context, &engine, is_running, |engine, id| {
            let grace = self.grace.resolve(engine, id, None);
            let stopped = if self.until_boot { engine.stop_until_boot(id, grace) } else { engine.stop(id, grace) }?;
            if let Some(why) = stopped.unwritten {
                crate::failure::warn(&format!("pod {id} has exited, but its end could not be recorded: {why}"));
            }
            json::to_stdout(|out| writeln!(out, "{id}"))?;
            Ok(ExitStatus::OK)
        })
    }
}

/// Selects the pods of `--all` and `--filter`.
fn is_running(row: &PodRow) -> bool {
    matches!(row.phase, Phase::Running { .. })
}

/// Arguments of `kill`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("pods", |pods| {
        pods.value_name("POD[/APP]").help("Pods, or apps as POD/APP. If one does not exist, none is changed")
    }),
    mut_arg("all", |all| all.help("All running pods"))
)]
pub(crate) struct Kill {
    #[command(flatten)]
    pods: PodSet,
    /// Signal name or number
    #[arg(long, short, value_parser = gantry_model::signal::parse, default_value = "SIGKILL")]
    signal: u8,
    /// Send it to this app only
    #[arg(long)]
    app: Option<AppName>,
}

/// Sends a signal to the main process of each app, or of one app, and prints the pods and apps as they are named.
impl RunCommand for Kill {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("kill")?;
        self.pods.for_each_target(context, &engine, is_running, self.app.as_ref(), |id, app| {
            engine.kill(id, app, self.signal)?;
            json::to_stdout(|out| match app.filter(|_| self.app.is_none()) {
                Some(app) => writeln!(out, "{id}/{app}"),
                None => writeln!(out, "{id}"),
            })?;
            Ok(ExitStatus::OK)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grace_periods_are_parsed() {
        for (text, want) in [("10", 10), ("0", 0), ("90s", 90), ("2m", 120), ("99999999999", 31_536_000)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(want)), "{text}");
        }
        for bad in ["", "-1", "x", "1x"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
