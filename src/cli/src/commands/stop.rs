//! `gantry stop` and `gantry kill`.

use std::time::Duration;

use gantry_engine::PodRow;
use gantry_model::{AppName, Phase};

use crate::context::Context;
use crate::exit;
use crate::failure::Failure;
use crate::pods::PodSet;
use crate::render::json;

/// Arguments of `stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    pods: PodSet,
    /// Kill at once
    #[arg(long, short)]
    force: bool,
    /// How long apps have between the stop signal and SIGKILL: 30s, 2m, or seconds
    #[arg(long, short, value_parser = seconds, value_name = "DURATION", conflicts_with = "force")]
    time: Option<Duration>,
}

/// A duration, or plain seconds as docker's and podman's `--time` takes them.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let plain = text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse::<u64>().ok()).flatten();
    let duration = plain.map(Duration::from_secs).map_or_else(|| gantry_model::quantity::duration(text), Ok);
    // A year is for ever; what is longer would only overflow somebody's clock.
    const YEAR: Duration = Duration::from_secs(31_536_000);
    duration.map(|duration| duration.min(YEAR)).map_err(|error| error.to_string())
}

/// Stops pods and prints their ids. A pod that has ended already is fine.
pub(crate) fn stop(context: &Context, args: &Stop) -> Result<u8, Failure> {
    let engine = context.open("stop")?;
    let grace = args.time.unwrap_or(engine.options().stop_grace);
    args.pods.each(&engine, context.globals.debug, runs, |id| {
        let stopped = engine.stop(id, grace, args.force)?;
        if let Some(why) = stopped.unwritten {
            crate::failure::warn(&format!("pod {id} has ended, and that could not be written down: {why}"));
        }
        json::to_stdout(|out| writeln!(out, "{id}"))?;
        Ok(exit::OK)
    })
}

/// Of which pods a set consists that are stopped or sent a signal.
fn runs(row: &PodRow) -> bool {
    matches!(row.phase, Phase::Running { .. })
}

/// Arguments of `kill`.
#[derive(Debug, clap::Args)]
pub(crate) struct Kill {
    #[command(flatten)]
    pods: PodSet,
    /// Which signal, by name or number
    #[arg(long, short, value_parser = crate::signal_name::parse, default_value = "SIGKILL")]
    signal: u8,
    /// Only to this app
    #[arg(long)]
    app: Option<AppName>,
}

/// Sends a signal to the main processes of pods' apps, and prints the pods' ids.
pub(crate) fn kill(context: &Context, args: &Kill) -> Result<u8, Failure> {
    let engine = context.open("kill")?;
    args.pods.each(&engine, context.globals.debug, runs, |id| {
        engine.kill(id, args.app.as_ref(), args.signal)?;
        json::to_stdout(|out| writeln!(out, "{id}"))?;
        Ok(exit::OK)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graces() {
        for (text, want) in [("10", 10), ("0", 0), ("90s", 90), ("2m", 120), ("99999999999", 31_536_000)] {
            assert_eq!(seconds(text), Ok(Duration::from_secs(want)), "{text}");
        }
        for bad in ["", "-1", "x", "1x"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
