//! `gantry status`.

use std::io::{self, Write};
use std::time::Duration;

use gantry_engine::{AppRow, Engine, HealthReport, Notified, PodRow, PodView, PodWait};
use gantry_model::spec::PodFlavor;
use gantry_model::{AppName, AppState, HealthState, OomVictim, PodNetwork, Readiness};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{CliError, Failure};
use crate::pods::Pods;
use crate::render::network::{self, Families};
use crate::render::pod::{self, PodJson};
use crate::render::{OutputFlag, OutputFormat, escape, json};

/// Arguments of `status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    pods: Pods,
    /// Wait until the pod has exited, at most for this long
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_wait, value_name = "DURATION")]
    wait: Option<Wait>,
    /// Wait until the pod is running or has exited, at most for this long
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_wait, value_name = "DURATION")]
    wait_ready: Option<Wait>,
    /// Wait until every app with a health check is healthy, at most for this long
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = parse_wait, value_name = "DURATION")]
    wait_healthy: Option<Wait>,
    #[command(flatten)]
    output: OutputFlag,
}

/// Whether and how long to wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    Forever,
    For(Duration),
}

/// rkt's `--wait[=bool or duration]`.
fn parse_wait(text: &str) -> Result<Wait, String> {
    match text {
        "true" => Ok(Wait::Forever),
        "false" => Ok(Wait::No),
        _ => super::stop::parse_duration(text).map(Wait::For),
    }
}

/// Shows the state of pods.
impl RunCommand for Status {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let several = self.pods.are_several();
        let mut found = Vec::new();
        let mut first = true;
        let mut show = |pod: PodWait<'_>| {
            let id = pod.id();
            let row = self.wait(&engine, pod)?.row;
            let networks = row.networks.read()?;
            if self.output.format != OutputFormat::Table {
                found.push((row, networks));
                return Ok(ExitStatus::OK);
            }
            let shown = network::summary(&row, Families::Both)?;
            // A supervisor that does not reply is no reason to hide the rest.
            let notified = engine.notifications(&row).unwrap_or_default();
            let health = engine.health_reports(&row);
            json::to_stdout(|out| {
                if several {
                    writeln!(out, "{}id={id}", if std::mem::take(&mut first) { "" } else { "\n" })?;
                }
                write_status(out, &row, &shown, &networks)?;
                write_readiness(out, &row, &notified)?;
                write_oom_kills(out, &row)?;
                health.iter().try_for_each(|(app, report)| write_health(out, app, report))
            })?;
            Ok(ExitStatus::OK)
        };
        let waits = [self.wait_ready, self.wait_healthy, self.wait].into_iter().any(|wait| deadline(wait).is_some());
        let worst = match waits {
            true => self.pods.for_each_wait(context, &engine, show)?,
            false => self.pods.for_each(context, &engine, |id| show(engine.pod_wait(id)))?,
        };
        let documents = found.iter().map(|(row, networks)| PodJson::with_networks(row, networks));
        json::to_stdout(|out| {
            json::write_one_or_several(
                out,
                self.output.format,
                several && self.output.format != OutputFormat::Table,
                documents,
            )
        })?;
        Ok(worst)
    }
}

impl Status {
    /// Waits as the flags say. A pod of `run --rm` may be removed by the time it has ended, and is shown all the same.
    fn wait(&self, engine: &Engine, mut pod: PodWait<'_>) -> Result<PodView, Failure> {
        let has_ended = |view: &Option<PodView>| view.as_ref().is_some_and(|view| view.row.phase.is_final());
        let id = pod.id();
        let mut view = None;
        if let Some((deadline, limit)) = deadline(self.wait_ready) {
            let ready = pod.running(deadline)?;
            view = Some(ready.ok_or(CliError::TimedOut(id, "did not become ready", limit))?);
        }
        if let Some((deadline, limit)) = deadline(self.wait_healthy) {
            view = Some(super::wait::wait_health(&mut pod, HealthState::Healthy, deadline, limit)?);
        }
        if let Some((deadline, limit)) = deadline(self.wait)
            && !has_ended(&view)
        {
            let ended = pod.exited(deadline)?;
            view = Some(ended.ok_or(CliError::TimedOut(id, "did not exit", limit))?);
        }
        view.map_or_else(|| Ok(engine.status(id)?), Ok)
    }
}

fn deadline(wait: Option<Wait>) -> Option<(Option<Duration>, Duration)> {
    match wait {
        None | Some(Wait::No) => None,
        Some(Wait::Forever) => Some((None, Duration::MAX)),
        Some(Wait::For(limit)) => Some((Some(limit), limit)),
    }
}

/// Writes rkt's lines: `state=`, `created=` … and `app-NAME=CODE` for apps that have exited; and the interfaces and
/// ports of a running pod.
fn write_status(out: &mut dyn Write, row: &PodRow, shown: &str, networks: &[PodNetwork]) -> io::Result<()> {
    let run = pod::pod_run(&row.phase);
    writeln!(out, "state={}", row.phase.name())?;
    writeln!(out, "created={}", row.created.rfc3339())?;
    if let Some(name) = &row.name {
        writeln!(out, "name={name}")?;
    }
    if !row.namespace.is_default() {
        writeln!(out, "namespace={}", row.namespace)?;
    }
    if let Some(started) = run.started {
        writeln!(out, "started={}", started.rfc3339())?;
        writeln!(out, "networks={}", escape::text(shown))?;
        if row.flavor() == PodFlavor::Host {
            // Its apps are root on the host, confined by nothing but their cgroups.
            writeln!(out, "stage1=host\nconfined=false")?;
        }
        if let Some(pid) = run.pid {
            writeln!(out, "pid={pid}")?;
        }
        writeln!(out, "exited={}", run.ended.is_some())?;
        if row.paused {
            writeln!(out, "paused=true")?;
        }
        // Another pod may have the addresses and ports of an exited pod by now.
        let networks = networks.iter().filter(|_| run.ended.is_none());
        networks.flat_map(network::details).try_for_each(|line| writeln!(out, "{}", escape::text(&line)))?;
    }
    if let (Some(ended), Some(end)) = (run.ended, run.end) {
        writeln!(out, "ended={}", ended.rfc3339())?;
        writeln!(out, "exit-code={}", end.exit_code)?;
        writeln!(out, "reason={}", escape::text(&end.reason))?;
    }
    write_restarts(out, row)?;
    if let Some(failure) = row.user_annotations.get(gantry_engine::FAILURE) {
        writeln!(out, "reason={}", escape::text(failure))?;
    }
    for app in &row.apps {
        match app.state {
            AppState::Exited { end, .. } => {
                writeln!(out, "app-{}={}", app.name, end.how.exit_code())?;
                write_app_restarts(out, app)?;
                if let Some(at) = end.restart_at {
                    writeln!(out, "app-{}-restart-at={}", app.name, at.rfc3339())?;
                }
            }
            AppState::Started { .. } => {
                if app.paused && !row.paused {
                    writeln!(out, "app-{}=paused", app.name)?;
                }
                write_app_restarts(out, app)?;
            }
            AppState::Waiting | AppState::Creating | AppState::Created => {}
        }
    }
    Ok(())
}

/// Writes `app-NAME-restarts=N` for an app that was started more than once.
fn write_app_restarts(out: &mut dyn Write, app: &AppRow) -> io::Result<()> {
    match app.state.attempt() {
        None | Some(0) => Ok(()),
        Some(restarts) => writeln!(out, "app-{}-restarts={restarts}", app.name),
    }
}

/// Writes `restarts=N`, `restart-at=TIME` (or `boot`) and `restart-failure=TEXT` of a pod that gantryd has started
/// again or will.
fn write_restarts(out: &mut dyn Write, row: &PodRow) -> io::Result<()> {
    if row.restart.count > 0 {
        writeln!(out, "restarts={}", row.restart.count)?;
    }
    if let Some(at) = row.restart.at {
        writeln!(out, "restart-at={}", at.rfc3339())?;
    } else if row.phase.is_final() && row.restart.is_waiting_for_boot() {
        writeln!(out, "restart-at=boot")?;
    }
    match &row.restart.failure {
        Some(failure) => writeln!(out, "restart-failure={}", escape::text(failure)),
        None => Ok(()),
    }
}

/// Writes `ready-NAME=BOOL` and `status-NAME=TEXT` for apps that report their readiness.
fn write_readiness(out: &mut dyn Write, row: &PodRow, notified: &[(AppName, Notified)]) -> io::Result<()> {
    for app in row.apps.iter().filter(|app| app.state.is_running()) {
        let Some(readiness) = app.readiness else { continue };
        writeln!(out, "ready-{}={}", app.name, readiness == Readiness::Ready)?;
        let text = notified.iter().find(|(name, _)| *name == app.name).map(|(_, notified)| notified.status.as_str());
        if let Some(text) = text.filter(|text| !text.is_empty()) {
            writeln!(out, "status-{}={}", app.name, escape::text(text))?;
        }
    }
    Ok(())
}

/// Writes `oom-NAME=kills=N,level=LEVEL,pid=PID,process=NAME` for apps of which the OOM killer killed processes. The
/// last two are those of the last victim, and absent if the kernel log did not name it.
fn write_oom_kills(out: &mut dyn Write, row: &PodRow) -> io::Result<()> {
    let mut killed = row.apps.iter().filter_map(|app| Some((app, app.oom.level?)));
    killed.try_for_each(|(app, level)| {
        write!(out, "oom-{}=kills={},level={}", app.name, app.oom.kills, level.as_str())?;
        match &app.oom.victim {
            Some(OomVictim { name, pid }) => writeln!(out, ",pid={pid},process={}", escape::text(name)),
            None => writeln!(out),
        }
    })
}

/// Writes the health of an app, and the last results of its probe, oldest first.
fn write_health(out: &mut dyn Write, app: &AppName, report: &HealthReport) -> io::Result<()> {
    writeln!(out, "health-{app}={},failures={}", report.state.as_str(), report.failures)?;
    report.results.iter().try_for_each(|result| {
        let ended = gantry_model::Timestamp(result.ended).rfc3339();
        let outcome = if result.success { "ok" } else { "failed" };
        let code = result.exit_code.map(|code| format!(",exit-code={code}")).unwrap_or_default();
        writeln!(out, "health-result-{app}={ended},{outcome}{code},{}", escape::text(&result.output))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_of_an_ended_pod() {
        let mut out = Vec::new();
        write_status(&mut out, &crate::render::pod::tests::ended(), "none", &[]).unwrap();
        let want = "state=exited\ncreated=1970-01-01T00:00:00.000000000Z\nstarted=1970-01-01T00:00:01.000000000Z\n\
                    networks=none\nexited=true\nended=1970-01-01T00:00:02.000000001Z\nexit-code=139\n\
                    reason=app b failed\napp-a=0\napp-b=139\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn status_of_a_running_pod() {
        use gantry_model::{BootId, Phase, Process, Timestamp};
        let supervisor = Process { pid: 7, start_ticks: 1, boot: BootId("b".into()) };
        let row = PodRow {
            phase: Phase::Running { since: Timestamp(0), supervisor },
            apps: vec![],
            ..crate::render::pod::tests::ended()
        };
        let mut out = Vec::new();
        let networks = [crate::render::network::tests::network()];
        write_status(&mut out, &row, "default:ip4=10.121.0.2,ip6=fd67::2", &networks).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().skip(3).collect();
        assert_eq!(lines[..3], ["networks=default:ip4=10.121.0.2,ip6=fd67::2", "pid=7", "exited=false"]);
        assert!(lines[3].starts_with("interface-eth0=default,mac="), "{}", lines[3]);
        assert_eq!(lines[4..], ["port-8080/tcp=80", "port-[::1]:90-92/udp=70-72"]);
    }

    #[test]
    fn wait_flags_are_parsed() {
        for (text, want) in [("true", Wait::Forever), ("false", Wait::No), ("2s", Wait::For(Duration::from_secs(2)))] {
            assert_eq!(parse_wait(text), Ok(want));
        }
        assert!(parse_wait("maybe").is_err());
    }
}
