//! `gantry wait`.

use std::io::Write as _;
use std::time::Duration;

use gantry_engine::{PodView, PodWait};
use gantry_model::{HealthState, Phase};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure};
use crate::pods::Pods;
use crate::render::json;

/// Arguments of `wait`.
#[derive(Debug, clap::Args)]
pub(crate) struct Wait {
    #[command(flatten)]
    pods: Pods,
    /// Wait for this state
    #[arg(long, value_enum, default_value_t, value_name = "STATE")]
    condition: Condition,
    /// Wait at most for this long: 30s, 2m, or seconds
    #[arg(long, short, alias = "timeout", value_parser = super::stop::parse_duration, value_name = "DURATION")]
    time: Option<Duration>,
}

/// The state to wait for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Condition {
    /// The pod runs; prints -1, as podman does
    Running,
    /// The pod runs, and its apps with --sdnotify=app have sent READY=1; printed as for running
    Ready,
    /// The pod has exited
    #[default]
    #[value(alias = "stopped")]
    Exited,
    /// Every app with a health check is healthy; prints -1
    Healthy,
    /// An app is unhealthy; prints -1
    Unhealthy,
}

/// Waits for a state of health. Fails if the pod ends first, or has no health check.
pub(super) fn wait_health(
    pod: &mut PodWait<'_>,
    health: HealthState,
    time: Option<Duration>,
    limit: Duration,
) -> Result<PodView, Failure> {
    let lacks = match health {
        HealthState::Starting => "did not become starting",
        HealthState::Healthy => "did not become healthy",
        HealthState::Unhealthy => "did not become unhealthy",
    };
    let id = pod.id();
    let view = pod.health(health, time)?.ok_or(CliError::TimedOut(id, lacks, limit))?;
    let has_ended = || format!("pod {id} is {} and can no longer become {}", view.row.phase.name(), health.as_str());
    match view.row.phase {
        Phase::Running { .. } if view.row.apps.iter().all(|app| app.health.number == 0) => {
            let why = format!("no app of pod {id} has a health check: give one with --health-cmd when it is created");
            Err(CliError::Refused(why).into())
        }
        Phase::Running { .. } if view.row.apps.iter().all(|app| app.health() != Some(health)) => {
            let why =
                format!("every app of pod {id} with a health check has exited: none can become {}", health.as_str());
            Err(CliError::Refused(why).into())
        }
        Phase::Running { .. } => Ok(view),
        Phase::Embryo
        | Phase::Preparing
        | Phase::AbortedPrepare { .. }
        | Phase::Prepared { .. }
        | Phase::Exited { .. }
        | Phase::Starting { .. }
        | Phase::Garbage { .. } => Err(CliError::Refused(has_ended()).into()),
    }
}

/// Waits until pods have exited and prints their exit codes. A pod that was never started has none.
impl RunCommand for Wait {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let limit = self.time.unwrap_or(Duration::MAX);
        self.pods.for_each_wait(context, &engine, |mut pod| {
            let id = pod.id();
            let late = |lacks| CliError::TimedOut(id, lacks, limit);
            let view = match self.condition {
                Condition::Running => pod.running(self.time)?.ok_or(late("did not start"))?,
                Condition::Ready => pod.apps_ready(self.time)?.ok_or(late("did not become ready"))?,
                Condition::Healthy => wait_health(&mut pod, HealthState::Healthy, self.time, limit)?,
                Condition::Unhealthy => wait_health(&mut pod, HealthState::Unhealthy, self.time, limit)?,
                Condition::Exited => pod.exited(self.time)?.ok_or(late("did not exit"))?,
            };
            let code = match (self.condition, view.exit_code()) {
                (Condition::Healthy | Condition::Unhealthy, _) => -1,
                (Condition::Running | Condition::Ready, None) if view.supervisor().is_some() => -1,
                (Condition::Running | Condition::Ready, Some(_)) => {
                    return Err(CliError::Refused(format!("pod {id} has exited")).into());
                }
                (Condition::Exited, Some(code)) => code,
                (_, None) => return Err(CliError::NeverStarted { id, phase: view.row.phase.name() }.into()),
            };
            json::to_stdout(|out| writeln!(out, "{code}"))?;
            Ok(ExitStatus::OK)
        })
    }
}
