//! `gantry app`: sandboxes, and the apps of running pods. `gantry restart`.

use std::io::{self, Write};

use gantry_engine::{AppRow, Engine, ExecError, PodRow, is_kubelet_sandbox};
use gantry_model::{AppName, AppState, Phase, PodId, Timestamp};

use super::stop::Grace;
use crate::app_filter::{self, AppCondition};
use crate::cli::RawArguments;
use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::pods::{self, PodSet, find_app};
use crate::render::listing::{self, ListOutput, ListedItem, Listing};
use crate::render::pod::{AppJson, exited_state};
use crate::render::table::Table;
use crate::render::{OutputFlag, OutputFormat, escape, json, time};
use crate::targets;

/// The subcommands of `app`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum App {
    /// Start a pod without apps, which runs until it is stopped, and print its id
    Sandbox(RawArguments),
    /// Add an app to a running pod, and print its name
    Add(RawArguments),
    /// Start apps that were added to a pod or have exited
    Start(Start),
    /// Stop running apps
    Stop(Stop),
    /// Remove apps from running or ended pods, with their files and logs
    #[command(visible_alias = "remove")]
    Rm(Rm),
    /// Show the state of apps
    Status(Status),
    /// List the apps of a pod
    #[command(visible_alias = "ls")]
    List(List),
}

impl RunCommand for App {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        match self {
            Self::Sandbox(words) | Self::Add(words) => words.run(context),
            Self::Start(args) => {
                let engine = context.open("app start")?;
                args.apps.for_each(context, &engine, |id, app| engine.start_app(id, app).map_err(Failure::from))
            }
            Self::Stop(args) => {
                let engine = context.open("app stop")?;
                args.apps.for_each(context, &engine, |id, app| {
                    Ok(engine.stop_app(id, app, args.grace.resolve(&engine, id, Some(app)))?)
                })
            }
            Self::Rm(args) => {
                let engine = context.open("app rm")?;
                let force = args.force;
                args.apps.for_each(context, &engine, |id, app| engine.remove_app(id, app, force).map_err(Failure::from))
            }
            Self::Status(args) => args.run(context),
            Self::List(args) => args.run(context),
        }
    }
}

/// The apps of a command.
#[derive(Debug, clap::Args)]
pub(crate) struct AppSet {
    /// Apps, each as POD/APP; POD alone means the app of --app, or the pod's only app. If one does not exist, none is
    /// changed
    #[arg(value_name = "POD[/APP]", required = true)]
    apps: Vec<String>,
    /// The app, for pods without /APP
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
}

impl AppSet {
    /// The words as given.
    pub(super) fn words(&self) -> &[String] {
        &self.apps
    }

    /// Acts on each app and prints it. All apps are resolved first, as in [`targets::for_each`].
    pub(super) fn for_each(
        &self,
        context: &Context,
        engine: &Engine,
        mut act: impl FnMut(PodId, &AppName) -> Result<(), Failure>,
    ) -> Result<ExitStatus, Failure> {
        let find = |word: &str| find_app(engine, word, self.app.as_ref());
        Ok(targets::for_each(context, engine, &self.apps, find, &mut |(id, app)| {
            act(id, &app)?;
            print_app(id, &app)
        }))
    }
}

/// Arguments of `app start`.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    apps: AppSet,
}

/// Arguments of `app stop`.
#[derive(Debug, clap::Args)]
pub(crate) struct Stop {
    #[command(flatten)]
    apps: AppSet,
    #[command(flatten)]
    grace: Grace,
}

/// Arguments of `app rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    #[command(flatten)]
    apps: AppSet,
    /// Stop running apps first
    #[arg(long, short)]
    force: bool,
}

/// Arguments of `restart`.
#[derive(Debug, clap::Args)]
#[command(
    mut_arg("pods", |pods| {
        let help = "Pods, whose started apps are restarted, or apps as POD/APP. If one does not exist, none is changed";
        pods.value_name("POD[/APP]").help(help)
    }),
    mut_arg("all", |all| all.help("All running pods with started apps, except sandboxes of a kubelet"))
)]
pub(crate) struct Restart {
    #[command(flatten)]
    pods: PodSet,
    /// The app, for pods without /APP
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
    #[command(flatten)]
    grace: Grace,
}

/// Whether an app was started before, so that it can be started again.
fn was_started(app: &&AppRow) -> bool {
    app.state.attempt().is_some()
}

/// Selects the pods of `--all` and `--filter`. Sandboxes of a kubelet are not among them: it restarts their apps.
fn is_restartable(row: &PodRow) -> bool {
    matches!(row.phase, Phase::Running { .. })
        && !is_kubelet_sandbox(row)
        && row.apps.iter().any(|app| was_started(&app))
}

fn print_app(id: PodId, app: &AppName) -> Result<ExitStatus, Failure> {
    json::to_stdout(|out| writeln!(out, "{id}/{app}"))?;
    Ok(ExitStatus::OK)
}

/// Starts an exited pod again, as a whole, and prints its apps.
fn restart_pod(engine: &Engine, id: PodId) -> Result<ExitStatus, Failure> {
    super::start::start_pod(engine, id)?;
    let apps = engine.status(id)?.row.apps;
    json::to_stdout(|out| apps.iter().try_for_each(|app| writeln!(out, "{id}/{}", app.name)))?;
    Ok(ExitStatus::OK)
}

/// Stops running apps of running pods and starts them again; apps that have exited are started. A pod that has exited
/// is started again as a whole.
impl RunCommand for Restart {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("restart")?;
        self.pods.for_each_target(context, &engine, is_restartable, self.app.as_ref(), |id, app| match app {
            Some(app) => {
                engine.restart_app(id, app, self.grace.resolve(&engine, id, Some(app)))?;
                print_app(id, app)
            }
            None => self.restart_whole(context, &engine, id),
        })
    }
}

impl Restart {
    /// Restarts the apps of a running pod that were started; starts a pod that does not run.
    fn restart_whole(&self, context: &Context, engine: &Engine, id: PodId) -> Result<ExitStatus, Failure> {
        let row = engine.status(id)?.row;
        // For a pod that is being started, the start is waited for.
        if matches!(row.phase, Phase::Exited { .. } | Phase::Starting { .. }) {
            return restart_pod(engine, id);
        }
        let apps: Vec<_> = row.apps.iter().filter(was_started).map(|app| &app.name).collect();
        if apps.is_empty() {
            return Err(Failure::usage(format!("no app of pod {id} was started yet")));
        }
        Ok(context.for_each(apps, CommandKind::Query, &mut |app: &AppName| {
            engine.resume_to_restart(id, app, self.grace.resolve(engine, id, Some(app)))?;
            print_app(id, app)
        }))
    }
}

/// Arguments of `app status`.
#[derive(Debug, clap::Args)]
pub(crate) struct Status {
    #[command(flatten)]
    apps: AppSet,
    #[command(flatten)]
    output: OutputFlag,
}

impl Status {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let several = self.apps.apps.len() > 1;
        let mut found: Vec<AppRow> = Vec::new();
        let worst = context.for_each(&self.apps.apps, CommandKind::Query, &mut |text| {
            let (id, name) = find_app(&engine, text, self.apps.app.as_ref())?;
            let row = engine.status(id)?.row;
            let Some(app) = row.apps.iter().find(|app| app.name == name) else {
                // It was removed since it was found.
                let apps = row.apps.into_iter().map(|app| app.name).collect();
                return Err(ExecError::NoSuchApp { id, app: name, apps }.into());
            };
            if self.output.format == OutputFormat::Table {
                // The plan of a pod that is being prepared is not there yet.
                let limits = engine.limits_in_effect(&row).unwrap_or_default();
                json::to_stdout(|out| {
                    if several {
                        writeln!(out, "id={id}")?;
                    }
                    write_status(out, &row, app)?;
                    write_limits(out, &limits["apps"][name.as_str()])
                })?;
            } else {
                found.push(app.clone());
            }
            Ok(ExitStatus::OK)
        });
        let is_list = several && self.output.format != OutputFormat::Table;
        let documents = found.iter().map(AppJson::from_row);
        json::to_stdout(|out| json::write_one_or_several(out, self.output.format, is_list, documents))?;
        Ok(worst)
    }
}

/// Writes the limits in effect of an app, one a line.
fn write_limits(out: &mut dyn Write, limits: &serde_json::Value) -> io::Result<()> {
    for (name, limit) in limits.as_object().into_iter().flatten() {
        let text = limit.as_str().map_or_else(|| limit.to_string(), str::to_owned);
        writeln!(out, "limit-{name}={}", escape::text(&text))?;
    }
    Ok(())
}

/// Writes the state of an app in lines as `gantry status` does.
fn write_status(out: &mut dyn Write, pod: &PodRow, app: &AppRow) -> io::Result<()> {
    let mut line = |key: &str, value: &str| writeln!(out, "{key}={}", escape::text(value));
    line("name", app.name.as_str())?;
    line("id", app.id.as_str())?;
    line("state", app.state.name())?;
    line("image", &app.image_name)?;
    line("image-id", &app.image_id())?;
    line("created", &app.added.unwrap_or(pod.created).rfc3339().to_string())?;
    if let Some(attempt) = app.state.attempt() {
        line("attempt", &attempt.to_string())?;
    }
    match app.state {
        AppState::Waiting | AppState::Creating | AppState::Created => Ok(()),
        AppState::Started { at, pid, .. } => {
            line("started", &at.rfc3339().to_string())?;
            if app.paused {
                line("paused", "true")?;
            }
            if let Some(health) = app.health() {
                line("health", health.as_str())?;
            }
            line("pid", &pid.to_string())
        }
        AppState::Exited { started, end, .. } => {
            if let Some(at) = started {
                line("started", &at.rfc3339().to_string())?;
            }
            line("ended", &end.at.rfc3339().to_string())?;
            line("exit-code", &end.how.exit_code().to_string())?;
            if let Some(at) = end.restart_at {
                line("restart-at", &at.rfc3339().to_string())?;
            }
            line("oom", &end.oom.to_string())?;
            if let Some(level) = app.oom.level {
                line("oom-level", level.as_str())?;
            }
            match &app.oom.victim {
                Some(victim) => line("oom-victim", &format!("{} {}", victim.pid, victim.name)),
                None => Ok(()),
            }
        }
    }
}

/// Arguments of `app list`.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    pod: pods::OnePod,
    /// Only apps that match: id=, name=, state=, label=NAME[=VALUE] or annotation=NAME[=VALUE]; all have to match
    #[arg(long, value_parser = app_filter::parse, value_name = "KEY=VALUE")]
    filter: Vec<AppCondition>,
    /// Sort key; without it, in the order in which the apps were added
    #[arg(long, value_enum, value_name = "KEY")]
    sort: Option<AppSort>,
    #[command(flatten)]
    output: Listing,
}

/// Sort keys of apps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum AppSort {
    /// By name
    Name,
    /// By state
    #[value(alias = "status")]
    State,
    /// Last added first
    Created,
}

/// The fields of a template, in the order of [`template_item`].
const FIELDS: [&str; 8] = ["Name", "ID", "Image", "ImageID", "State", "Attempt", "CreatedAt", "Labels"];

fn template_item<'a>(pod: &PodRow, app: &'a AppRow) -> ListedItem<AppJson<'a>> {
    let labels: Vec<_> = app.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let cells = vec![
        app.name.to_string(),
        app.id.to_string(),
        app.image_name.clone(),
        app.image_id(),
        if app.paused { "paused".to_owned() } else { app.state.name().to_owned() },
        app.state.attempt().map(|attempt| attempt.to_string()).unwrap_or_default(),
        app.added.unwrap_or(pod.created).rfc3339().to_string(),
        labels.join(","),
    ];
    ListedItem { cells, json: AppJson::from_row(app) }
}

impl List {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let mut row = engine.status(self.pod.only(&engine)?)?.row;
        row.apps.retain(|app| self.filter.iter().all(|condition| condition.is_met(app)));
        match self.sort {
            None => {}
            Some(AppSort::Name) => row.apps.sort_by(|a, b| a.name.cmp(&b.name)),
            Some(AppSort::State) => row.apps.sort_by_key(|app| app.state.name()),
            Some(AppSort::Created) => row.apps.sort_by_key(|app| std::cmp::Reverse(app.added)),
        }
        match self.output.parse_output(&FIELDS)? {
            ListOutput::Quiet => {
                json::to_stdout(|out| row.apps.iter().try_for_each(|app| writeln!(out, "{}", app.name)))?;
            }
            ListOutput::Format(OutputFormat::Table) => {
                json::to_stdout(|out| table(out, &row, &self.output, gantry_engine::now()))?;
            }
            ListOutput::Format(format) => {
                json::to_stdout(|out| json::write_items(out, format, row.apps.iter().map(AppJson::from_row)))?;
            }
            ListOutput::Template(template) => {
                listing::write_template(&template, row.apps.iter().map(|app| template_item(&row, app)))?;
            }
        }
        Ok(ExitStatus::OK)
    }
}

fn table(out: &mut dyn Write, pod: &PodRow, output: &Listing, now: Timestamp) -> io::Result<()> {
    const HEADER: [&str; 8] = ["APP", "IMAGE NAME", "STATE", "ATTEMPT", "CREATED", "STARTED", "ID", "LABELS"];
    // Ids and labels make lines long.
    const SHORT: usize = 6;
    let mut table = Table::new(if output.full { &HEADER } else { &HEADER[..SHORT] });
    let shown = |at: Timestamp| if output.full { at.rfc3339().to_string() } else { time::relative(now, at) };
    for app in &pod.apps {
        let (state, started) = match app.state {
            AppState::Started { at, .. } if app.paused => ("paused".to_owned(), Some(at)),
            AppState::Started { at, .. } => (app.state.name().to_owned(), Some(at)),
            AppState::Exited { started, end, .. } => (exited_state(&end), started),
            AppState::Waiting | AppState::Creating | AppState::Created => (app.state.name().to_owned(), None),
        };
        let labels: Vec<_> = app.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let cells = [
            app.name.to_string(),
            app.image_name.clone(),
            state,
            app.state.attempt().map(|attempt| attempt.to_string()).unwrap_or_default(),
            shown(app.added.unwrap_or(pod.created)),
            started.map(shown).unwrap_or_default(),
            app.id.to_string(),
            labels.join(","),
        ];
        table.row(cells.into_iter().take(if output.full { HEADER.len() } else { SHORT }));
    }
    table.write(out, !output.no_legend)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_an_app() {
        let pod = crate::render::pod::tests::ended();
        let mut out = Vec::new();
        write_status(&mut out, &pod, &pod.apps[1]).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "name=b");
        assert_eq!(lines[2..4], ["state=exited", "image=evil\\u{1b}[2J"]);
        assert_eq!(lines[5..7], ["created=1970-01-01T00:00:00.000000000Z", "attempt=0"]);
        assert_eq!(lines[8..], ["ended=1970-01-01T00:00:02.000000000Z", "exit-code=139", "oom=false"]);
    }
}
