//! `gantry schedule`: pods that gantryd keeps running, or starts at certain times.

use std::io::{self, Write};

use gantry_engine::{Engine, ScheduleError, ScheduleState, ScheduleView};
use gantry_model::id::shown;
use gantry_model::{PodId, ScheduleName, Timestamp};
use serde::Serialize;

use crate::cli::RawArguments;
use crate::commands::RunCommand;
use crate::commands::run::{ResolvedRequest, resolve_request};
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{Failure, warn};
use crate::grammar::Request;
use crate::render::json::{self, DisplayJson, TimeJson};
use crate::render::listing::{self, ListFilter, ListOutput, ListedItem, Listing};
use crate::render::table::Table;
use crate::render::{Indented, OutputFormat, escape, time};

/// The subcommands of `schedule`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Schedule {
    /// Keep a pod running, or start pods at certain times
    Enable(RawArguments),
    /// Stop the pods of schedules, and keep the schedules
    Disable(Names),
    /// Stop and remove the pods of schedules, and forget the schedules
    #[command(visible_alias = "rm")]
    Destroy(Names),
    /// List schedules
    #[command(visible_alias = "ls")]
    List(List),
    /// Print the manifests of the pods of schedules, with their variables
    Cat(Cat),
}

impl RunCommand for Schedule {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        match self {
            Self::Enable(args) => args.run(context),
            Self::Disable(args) => each(context, "schedule disable", args, Engine::disable_schedule),
            Self::Destroy(args) => each(context, "schedule destroy", args, Engine::destroy_schedule),
            Self::List(args) => list(context, args),
            Self::Cat(args) => cat(context, args),
        }
    }
}

/// Arguments of `schedule disable` and `schedule destroy`.
#[derive(Debug, clap::Args)]
pub(crate) struct Names {
    /// Names of schedules
    #[arg(value_name = "NAME", required = true)]
    names: Vec<ScheduleName>,
}

/// Arguments of `schedule cat`.
#[derive(Debug, clap::Args)]
pub(crate) struct Cat {
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    output: Indented,
}

/// Arguments of `schedule list`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "States: 'active': a pod runs; 'restarting': an app of it, or the pod, has ended and is started again; \
    'standby': no pod runs; 'passive': disabled; 'error': the start failed (it is tried again), or an app fails \
    again and again (it is still started again) or for good.\n\n\
    Values of one key are alternatives; all keys must match. '*' in a name stands for any characters.\n\n\
    Fields of templates: .Name, .State, .Runs, .LastRun, .NextRun, .Pod, .Comment; {{json .}} is the whole schedule."
)]
pub(crate) struct List {
    #[command(flatten)]
    output: Listing,
    /// Only schedules that match: name=, state=standby|active|restarting|passive|error or enabled=true|false
    #[arg(short = 'f', long, value_parser = parse_filter, value_name = "KEY=VALUE")]
    filter: Vec<ListFilter>,
}

/// The fields of a template, in the order of [`template_item`].
const FIELDS: [&str; 7] = ["Name", "State", "Runs", "LastRun", "NextRun", "Pod", "Comment"];

fn parse_filter(text: &str) -> Result<ListFilter, String> {
    let filter = ListFilter::parse(text, &["name", "state", "enabled"])?;
    let states = ScheduleState::ALL.map(ScheduleState::as_str);
    if filter.key == "state" && !states.contains(&filter.value.as_str()) {
        return Err(format!("'{}' is not a state: expected one of {}", shown(&filter.value), states.join(", ")));
    }
    Ok(filter)
}

fn is_met(view: &ScheduleView, key: &str, value: &str) -> bool {
    match key {
        "name" => listing::matches_pattern(value, view.row.name.as_str()),
        "state" => view.state().as_str() == value,
        _ => view.row.enabled == (value == "true"),
    }
}

/// A schedule as JSON. The field names are stable. The manifest is not part of it: its variables may be secrets, and
/// lists end up in logs.
#[derive(Serialize)]
struct ScheduleJson<'a> {
    name: &'a str,
    enabled: bool,
    state: &'static str,
    comment: &'a str,
    /// Null: one pod runs always.
    timer: Option<TimerJson<'a>>,
    enabled_at: TimeJson,
    runs: u64,
    last_run: Option<TimeJson>,
    next_run: Option<TimeJson>,
    failure: Option<String>,
    /// The pods, the oldest first.
    pods: Vec<DisplayJson<PodId>>,
}

/// The times of a schedule. Durations are in seconds.
#[derive(Serialize)]
struct TimerJson<'a> {
    on_calendar: &'a [String],
    every: Option<f64>,
    on_boot: Option<f64>,
    randomized_delay: Option<f64>,
    on_overlap: &'static str,
}

impl<'a> ScheduleJson<'a> {
    fn from_view(view: &'a ScheduleView) -> Self {
        let row = &view.row;
        let timer = row.timer.as_ref().map(|timer| TimerJson {
            on_calendar: &timer.calendar,
            every: timer.every.map(|every| every.as_secs_f64()),
            on_boot: timer.on_boot.map(|after| after.as_secs_f64()),
            randomized_delay: timer.randomized_delay.map(|delay| delay.as_secs_f64()),
            on_overlap: timer.overlap.as_str(),
        });
        Self {
            name: row.name.as_str(),
            enabled: row.enabled,
            state: view.state().as_str(),
            comment: &row.comment,
            timer,
            enabled_at: TimeJson(row.enabled_at),
            runs: row.runs,
            last_run: row.last_run.map(TimeJson),
            next_run: view.next_start().map(TimeJson),
            failure: view.failure(),
            pods: view.pods.iter().map(|pod| DisplayJson(pod.id)).collect(),
        }
    }
}

/// Enables a schedule and starts its pod if that is due.
pub(crate) fn enable(request: Request) -> Result<ExitStatus, Failure> {
    let name: ScheduleName = request.target.clone().unwrap_or_default().parse()?;
    let ResolvedRequest { context, spec, options } = resolve_request(request, "schedule enable")?;
    let engine = context.open("schedule enable")?;
    let has_timer = options.timer.is_some();
    engine.enable_schedule(name.clone(), spec, options.timer, options.comment)?;
    json::to_stdout(|out| writeln!(out, "{}", escape::text(name.as_str())))?;
    // gantryd may have started it already.
    let released = engine.start_released_pod(&name)?;
    for running in engine.apply_schedule(&name)?.into_iter().chain(released) {
        running.ready.warnings.iter().for_each(|warning| warn(warning));
    }
    // For the warning alone.
    if !engine.store().is_kept().unwrap_or(true) {
        let without = if has_timer { "no pod is started at its time" } else { "the pod is not started after a reboot" };
        warn(&format!("gantryd does not run: {without} until it does"));
    }
    Ok(ExitStatus::OK)
}

fn each(
    context: &Context,
    command: &'static str,
    args: &Names,
    act: impl Fn(&Engine, &ScheduleName) -> Result<(), ScheduleError>,
) -> Result<ExitStatus, Failure> {
    let engine = context.open(command)?;
    let names: Vec<String> = args.names.iter().map(ToString::to_string).collect();
    Ok(context.for_each(&names, CommandKind::Query, &mut |name| {
        act(&engine, &name.parse()?)?;
        json::to_stdout(|out| writeln!(out, "{}", escape::text(name)))?;
        Ok(ExitStatus::OK)
    }))
}

fn list(context: &Context, args: &List) -> Result<ExitStatus, Failure> {
    let engine = context.open_to_read()?;
    let mut schedules = engine.schedules()?;
    schedules.retain(|view| listing::matches_all(&args.filter, |key, value| is_met(view, key, value)));
    let now = gantry_engine::now();
    match args.output.parse_output(&FIELDS)? {
        ListOutput::Quiet => json::to_stdout(|out| {
            schedules.iter().try_for_each(|view| writeln!(out, "{}", escape::text(view.row.name.as_str())))
        })?,
        ListOutput::Format(OutputFormat::Table) => {
            json::to_stdout(|out| table(out, &schedules, args.output.full, !args.output.no_legend, now))?;
        }
        ListOutput::Format(format) => {
            json::to_stdout(|out| json::write_items(out, format, schedules.iter().map(ScheduleJson::from_view)))?;
        }
        ListOutput::Template(template) => {
            listing::write_template(&template, schedules.iter().map(|view| template_item(view, now)))?;
        }
    }
    Ok(ExitStatus::OK)
}

fn cat(context: &Context, args: &Cat) -> Result<ExitStatus, Failure> {
    let schedules = context.open_to_read()?.schedules()?;
    let names = &args.names.names;
    let manifest = |name: &ScheduleName| {
        let view = schedules.iter().find(|view| view.row.name == *name);
        view.ok_or_else(|| ScheduleError::NotFound(name.clone()))?.manifest()
    };
    let manifests: Vec<serde_json::Value> = names.iter().map(manifest).collect::<Result<_, _>>()?;
    json::to_stdout(|out| json::write_one_or_several(out, args.output.format, names.len() > 1, manifests))?;
    Ok(ExitStatus::OK)
}

fn cells(view: &ScheduleView, full: bool, now: Timestamp) -> [String; 7] {
    let shown = |at: Option<Timestamp>| match at {
        None => String::new(),
        Some(at) if full => at.rfc3339().to_string(),
        Some(at) if at > now => format!("in {}", seconds(at.since(now).as_secs())),
        Some(at) => time::relative(now, at),
    };
    let pod = view.pods.last().map(|pod| pod.id.to_string()).unwrap_or_default();
    let state = view.state().as_str();
    let state = match view.failure() {
        Some(failure) => format!("{state}: {}", escape::text(&failure)),
        None => state.to_owned(),
    };
    [
        escape::text(view.row.name.as_str()).to_string(),
        state,
        view.row.runs.to_string(),
        shown(view.row.last_run),
        shown(view.next_start()),
        if full { pod } else { pod.split('-').next().unwrap_or_default().to_owned() },
        escape::text(&view.row.comment).to_string(),
    ]
}

/// A duration with its largest two units.
fn seconds(count: u64) -> String {
    match count {
        0..60 => format!("{count}s"),
        60..3600 => format!("{}m{}s", count / 60, count % 60),
        3600..86_400 => format!("{}h{}m", count / 3600, count / 60 % 60),
        _ => format!("{}d{}h", count / 86_400, count / 3600 % 24),
    }
}

fn template_item(view: &ScheduleView, now: Timestamp) -> ListedItem<ScheduleJson<'_>> {
    ListedItem { cells: cells(view, false, now).into(), json: ScheduleJson::from_view(view) }
}

fn table(out: &mut dyn Write, views: &[ScheduleView], full: bool, legend: bool, now: Timestamp) -> io::Result<()> {
    let mut table = Table::new(&["SCHEDULE", "STATE", "RUNS", "LAST RUN", "NEXT RUN", "POD", "COMMENT"]);
    for view in views {
        table.row(cells(view, full, now));
    }
    table.write(out, legend)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_filters_are_checked() {
        for good in ["name=web*", "enabled=true", "enabled=false", "state=standby", "state=error"] {
            assert!(parse_filter(good).is_ok(), "{good}");
        }
        for bad in ["enabled=yes", "state=runing", "state=", "id=x"] {
            assert!(parse_filter(bad).is_err(), "{bad}");
        }
    }
}
