//! `gantry list`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use gantry_engine::{AppRow, Engine, PodRow, PodView};
use gantry_model::query::PodQuery;
use gantry_model::{AppName, AppState, Digest, ImageId, PhaseName, PodName, Timestamp};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::grammar::limit_values as values;
use crate::pod_filter::{self, Condition, phase};
use crate::render::network::{self, Families};
use crate::render::pod::{self, PodJson};
use crate::render::table::{Table, terminal_width};
use crate::render::template::{ListFormat, TemplateItem};
use crate::render::{OutputFormat, json, time};

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Values of one key are alternatives; all keys, and all labels, must match. Keys: \
    state= (a phase, paused or restarting), name= (of a pod, app or host), namespace=, app=, label=NAME[=VALUE], \
    image= (name or id), exited=CODE, network=, id=.\n\n\
    Fields of templates: .ID, .FullID, .Names, .Images, .ImageID, .State, .Status (of each app), .ExitCode, .Created, \
    .CreatedAt, .Started, .StartedAt, .Ended, .Networks, .Ports, .Labels, .Hostname, .Pid, .Name; {{json .}} is the whole pod. \
    \\t and \\n are a tab and a newline.")]
pub(crate) struct List {
    /// Output format
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORMAT", conflicts_with = "format")]
    output: Option<OutputFormat>,
    /// A template such as '{{.ID}} {{.Names}}', printed once per pod; or an output format
    #[arg(long, value_parser = parse_format, value_name = "TEMPLATE")]
    format: Option<ListFormat>,
    /// Omit the header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    no_legend: bool,
    /// Full ids and names, absolute times, image ids and labels
    #[arg(long, visible_alias = "no-trunc")]
    full: bool,
    /// Print ids only
    #[arg(short, long)]
    quiet: bool,
    /// Only pods in these phases: embryo, preparing, aborted-prepare, prepared, running, exited, starting, garbage,
    /// deleting
    #[arg(long, alias = "state", value_delimiter = ',', value_parser = phase, value_name = "PHASE,…")]
    phase: Vec<PhaseName>,
    /// Only pods with an app of this name
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
    /// Only pods that match: state=, name=, namespace=, app=, label=, image=, exited=, network= or id=
    #[arg(short = 'f', long, value_parser = pod_filter::parse, value_name = "KEY=VALUE")]
    filter: Vec<Condition>,
    /// Sort key; equal pods newest first
    #[arg(long, value_enum, default_value_t, value_name = "KEY")]
    sort: Sort,
    /// Only the N newest pods; -1: all
    #[arg(short = 'n', long, value_parser = parse_last, allow_negative_numbers = true, value_name = "N")]
    last: Option<usize>,
    /// Only the newest pod
    #[arg(short, long, conflicts_with = "last")]
    latest: bool,
    /// No effect, accepted for docker's 'ps -a': all pods are always listed
    #[arg(long, short)]
    all: bool,
}

/// Sort keys.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Newest first
    #[default]
    Created,
    /// Last started first, pods that were never started last
    Started,
    /// By id
    Id,
    /// By the names of their apps
    #[value(alias = "names")]
    Name,
    /// By the names of their images
    Image,
    /// By phase
    #[value(alias = "status", alias = "phase")]
    State,
}

fn parse_last(text: &str) -> Result<usize, String> {
    if text == "-1" { Ok(usize::MAX) } else { values::number(text, "a number of pods").map_err(values::message) }
}

fn parse_format(text: &str) -> Result<ListFormat, String> {
    ListFormat::parse(text, &FIELDS)
}

/// Lists pods.
impl RunCommand for List {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let mut pods = select_pods(&engine, self)?;
        sort_pods(&mut pods, self.sort);
        let rows = || pods.iter().map(|pod| &*pod.row);
        match ListFormat::or_output(self.format.as_ref(), self.output.unwrap_or_default()) {
            _ if self.quiet => {
                json::to_stdout(|out| rows().try_for_each(|row| writeln!(out, "{}", shown_id(row, self.full))))?;
            }
            ListFormat::Template(template) => {
                let now = gantry_engine::now();
                let items = rows().map(|row| PodFields::from_row(row, now)).collect::<Result<Vec<_>, _>>()?;
                json::to_stdout(|out| items.iter().try_for_each(|item| template.write(out, item)))?;
            }
            ListFormat::Named(OutputFormat::Table) => {
                let names = image_names(&engine, rows())?;
                let table = table(rows(), self.full, &names, gantry_engine::now())?;
                let width = terminal_width().filter(|_| !self.full);
                json::to_stdout(|out| table.write_within(out, !self.no_legend, width))?;
            }
            ListFormat::Named(output @ OutputFormat::JsonPretty) => {
                let networks = rows().map(|row| row.networks.read()).collect::<Result<Vec<_>, _>>()?;
                let documents = rows().zip(&networks).map(|(row, networks)| PodJson::with_networks(row, networks));
                json::to_stdout(|out| json::write_items(out, output, documents))?;
            }
            ListFormat::Named(output) => {
                json::to_stdout(|out| json::write_items(out, output, rows().map(PodJson::from_row)))?;
            }
        }
        // The process is about to exit: dropping ten thousand pods would only cost time.
        std::mem::forget(pods);
        Ok(ExitStatus::OK)
    }
}

/// The selected pods, newest first.
fn select_pods(engine: &Engine, args: &List) -> Result<Vec<PodView>, Failure> {
    let query = PodQuery { phases: args.phase.clone(), app: args.app.clone(), ..PodQuery::default() };
    let mut pods = engine.list(&query)?;
    pods.reverse();
    if !args.filter.is_empty() {
        let mut fitting = Vec::new();
        for pod in pods {
            if pod_filter::holds(&args.filter, &pod.row)? {
                fitting.push(pod);
            }
        }
        pods = fitting;
    }
    pods.truncate(if args.latest { 1 } else { args.last.unwrap_or(usize::MAX) });
    Ok(pods)
}

/// Sorts pods that are newest first; the sort is stable.
fn sort_pods(pods: &mut [PodView], sort: Sort) {
    fn names(row: &PodRow) -> impl Iterator<Item = &str> {
        row.apps.iter().map(|app| app.name.as_str())
    }
    fn images(row: &PodRow) -> impl Iterator<Item = &str> {
        row.apps.iter().map(|app| app.image_name.as_str())
    }
    match sort {
        Sort::Created => {}
        Sort::Started => pods.sort_by_key(|pod| std::cmp::Reverse(pod.row.phase.started_at())),
        Sort::Id => pods.sort_by_key(|pod| pod.row.id),
        Sort::Name => pods.sort_by(|a, b| names(&a.row).cmp(names(&b.row))),
        Sort::Image => pods.sort_by(|a, b| images(&a.row).cmp(images(&b.row))),
        Sort::State => pods.sort_by_key(|pod| pod.row.phase.name().as_str()),
    }
}

/// The id, or its first digits.
fn shown_id(row: &PodRow, full: bool) -> String {
    if full { row.id.to_string() } else { row.id.short() }
}

/// Names of images whose pods were created by image id.
type ImageNames = BTreeMap<ImageId, String>;

fn image_names<'a>(engine: &Engine, rows: impl Iterator<Item = &'a PodRow>) -> Result<ImageNames, Failure> {
    let mut apps = rows.flat_map(|row| &row.apps);
    if !apps.any(|app| is_id(&app.image_name)) {
        return Ok(ImageNames::new());
    }
    let images = engine.image_list()?;
    Ok(images.into_iter().filter_map(|image| Some((image.id, image.names.into_iter().next()?))).collect())
}

fn is_id(name: &str) -> bool {
    name.starts_with("sha256:") || name.starts_with("sha512:")
}

/// The digest of an image with its first digits; empty for an app without an image.
fn short_id(image: Option<&ImageId>) -> String {
    image.map(|image| format!("{}:{}", image.algorithm().as_str(), image.short())).unwrap_or_default()
}

/// The short name of an image: without the scheme and without Docker Hub's host; for an id, a name of that image or the
/// shortened id.
fn short_image<'a>(name: &'a str, image: &ImageId, names: &'a ImageNames) -> Cow<'a, str> {
    if !is_id(name) {
        return short_name(name).into();
    }
    match names.get(image).filter(|name| !is_id(name)) {
        Some(name) => short_name(name).into(),
        None => format!("{}:{}", image.algorithm().as_str(), Digest::short(image)).into(),
    }
}

fn short_name(name: &str) -> &str {
    let name = name.strip_prefix("docker://").unwrap_or(name);
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    name.strip_prefix("library/").unwrap_or(name)
}

/// One line per app, and one for a sandbox without apps; the pod's own columns are filled on its first line only, as in
/// rkt.
fn table<'a>(
    rows: impl Iterator<Item = &'a PodRow>,
    full: bool,
    names: &ImageNames,
    now: Timestamp,
) -> Result<Table, Failure> {
    let mut table = Table::new(if full {
        &["UUID", "NAME", "APP", "IMAGE NAME", "IMAGE ID", "STATE", "CREATED", "STARTED", "NETWORKS", "PORTS", "LABELS"]
    } else {
        &["UUID", "NAME", "APP", "IMAGE NAME", "STATE", "CREATED", "NETWORKS", "PORTS"]
    });
    let families = if full { Families::Both } else { Families::One };
    for row in rows {
        let run = pod::pod_run(&row.phase);
        let mut pod_cells = Vec::new();
        if full {
            pod_cells.push(row.created.rfc3339().to_string());
            pod_cells.push(run.started.map(|at| at.rfc3339().to_string()).unwrap_or_default());
        } else {
            pod_cells.push(time::relative(now, row.created));
        }
        pod_cells.push(network::summary(row, families)?);
        pod_cells.push(network::published_ports(row)?);
        if full {
            pod_cells.push(labels(row));
        }
        for number in 0..row.apps.len().max(1) {
            let app = row.apps.get(number);
            let (id, name) = if number == 0 { (shown_id(row, full), pod_name(row)) } else { Default::default() };
            let mut cells: Vec<Cow<'_, str>> = Vec::with_capacity(table.width());
            cells.extend([id.into(), name.into(), app.map_or("", |app| app.name.as_str()).into()]);
            match app {
                Some(app) if full => cells.extend([(&*app.image_name).into(), short_id(app.image.as_ref()).into()]),
                None if full => cells.extend([Cow::default(), Cow::default()]),
                Some(AppRow { image: Some(image), image_name, .. }) => {
                    cells.push(short_image(image_name, image, names));
                }
                _ => cells.push(app.map_or("", |app| &app.image_name).into()),
            }
            cells.push(shown_state(row, number).into());
            cells.extend(pod_cells.drain(..).map(Cow::from));
            table.row(cells);
        }
    }
    Ok(table.cutting(&[1, 2, 3, 6, 7]))
}

/// The pod's state on its first line; restarting, if its only app is. In a sandbox and with several apps, each line
/// also has the state of its app: on the first line after a slash, if it differs.
fn shown_state(row: &PodRow, number: usize) -> String {
    let state = pod_state(row);
    let shows_apps = row.sandbox || row.apps.len() > 1;
    let own = row.apps.get(number).filter(|_| shows_apps).and_then(app_state);
    let state = match row.apps.first().filter(|_| !shows_apps) {
        Some(app) if app.state.is_restarting() => app_state(app).unwrap_or(state),
        Some(app) if !row.paused => with_health(state, app),
        _ => state,
    };
    match (number, own) {
        (0, Some(own)) if own != state => {
            // Not 'exited (139)/exited (0)' but 'exited (139)/(0)'.
            let word = format!("{} ", state.split(' ').next().unwrap_or_default());
            format!("{state}/{}", own.strip_prefix(&word).unwrap_or(&own))
        }
        (0, _) => state,
        (_, own) => own.unwrap_or_default(),
    }
}

fn pod_state(row: &PodRow) -> String {
    match pod::pod_run(&row.phase).end {
        // gantryd starts it again, as the supervisor does an app.
        Some(end) if row.restart.at.is_some() => format!("restarting ({})", end.exit_code),
        Some(end) => format!("{} ({})", row.phase.name(), end.exit_code),
        None if row.paused => "paused".to_owned(),
        _ => row.phase.name().to_string(),
    }
}

/// The first word of the pod's state in the table: a phase, paused or restarting.
fn state_word(row: &PodRow) -> String {
    let state = shown_state(row, 0);
    state.split([' ', '/']).next().unwrap_or_default().to_owned()
}

fn app_state(app: &AppRow) -> Option<String> {
    match app.state {
        AppState::Waiting => None,
        AppState::Creating | AppState::Created => Some(app.state.name().to_owned()),
        AppState::Started { .. } if app.paused => Some("paused".to_owned()),
        AppState::Started { .. } => Some(with_health("running".to_owned(), app)),
        AppState::Exited { end, .. } => Some(pod::exited_state(&end)),
    }
}

/// The state of an app that runs, and its health if it has a health check.
fn with_health(state: String, app: &AppRow) -> String {
    match app.health() {
        Some(health) => format!("{state} ({})", health.as_str()),
        None => state,
    }
}

fn pod_name(row: &PodRow) -> &str {
    row.name.as_ref().map_or("", PodName::as_str)
}

fn labels(row: &PodRow) -> String {
    row.user_labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

/// The fields of a template, in the order of [`PodFields::cells`].
const FIELDS: [&str; 19] = [
    "ID",
    "FullID",
    "Names",
    "Images",
    "ImageID",
    "State",
    "Status",
    "ExitCode",
    "Created",
    "CreatedAt",
    "Started",
    "StartedAt",
    "Ended",
    "Networks",
    "Ports",
    "Labels",
    "Hostname",
    "Pid",
    "Name",
];

/// The template fields of a pod.
struct PodFields<'a> {
    row: &'a PodRow,
    cells: [String; FIELDS.len()],
}

impl<'a> PodFields<'a> {
    fn from_row(row: &'a PodRow, now: Timestamp) -> Result<Self, Failure> {
        let run = pod::pod_run(&row.phase);
        let absolute = |at: Timestamp| at.rfc3339().to_string();
        let each = |of: &dyn Fn(&AppRow) -> String| row.apps.iter().map(of).collect::<Vec<_>>().join(",");
        let status = |app: &AppRow| {
            let state = app_state(app).unwrap_or_else(|| row.phase.name().to_string());
            format!("{}: {state}", app.name)
        };
        let cells = [
            shown_id(row, false),
            shown_id(row, true),
            each(&|app| app.name.to_string()),
            each(&|app| app.image_name.clone()),
            each(&|app| app.image_id()),
            state_word(row),
            row.apps.iter().map(status).collect::<Vec<_>>().join(", "),
            run.end.map(|end| end.exit_code.to_string()).unwrap_or_default(),
            time::relative(now, row.created),
            absolute(row.created),
            run.started.map(|at| time::relative(now, at)).unwrap_or_default(),
            run.started.map(absolute).unwrap_or_default(),
            run.ended.map(absolute).unwrap_or_default(),
            network::summary(row, Families::Both)?,
            network::published_ports(row)?,
            labels(row),
            row.hostname.clone(),
            run.pid.map(|pid| pid.to_string()).unwrap_or_default(),
            pod_name(row).to_owned(),
        ];
        Ok(Self { row, cells })
    }
}

impl TemplateItem for PodFields<'_> {
    fn field(&self, number: usize) -> String {
        self.cells.get(number).cloned().unwrap_or_default()
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        Ok(serde_json::to_writer(out, &PodJson::from_row(self.row))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::pod::tests::ended;

    fn written(row: PodRow, full: bool, width: Option<usize>) -> String {
        let mut out = Vec::new();
        let names = ImageNames::new();
        let table = table([row].iter(), full, &names, Timestamp(61_000_000_000)).unwrap();
        table.write_within(&mut out, true, width).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn pods_are_rendered_as_a_table() {
        let want = "UUID      NAME  APP  IMAGE NAME     STATE             CREATED       NETWORKS  PORTS\n\
                    6733c088  web   a    evil\\u{1b}[2J  exited (139)/(0)  1 minute ago  none\n                \
                    b    evil\\u{1b}[2J  exited (139)\n";
        let named = PodRow { name: Some("web".parse().unwrap()), ..ended() };
        assert_eq!(written(named, false, None), want);
        let mut labelled = ended();
        labelled.user_labels = [("tier".to_owned(), "web".to_owned())].into();
        labelled.apps.truncate(1);
        let full = written(labelled.clone(), true, None);
        assert!(full.ends_with("  none             tier=web\n"), "{full}");
        assert!(
            written(labelled, false, None).contains("  exited (139)  1 minute"),
            "a single app has no state of its own"
        );
        let mut out = Vec::new();
        let none = table([].iter(), true, &ImageNames::new(), Timestamp(0)).unwrap();
        none.write_within(&mut out, true, None).unwrap();
        assert!(out.starts_with(b"UUID  NAME  APP"), "the header is printed without rows");
    }

    #[test]
    fn tables_fit_the_terminal() {
        let mut row = ended();
        row.apps[0].image_name = "registry.example:5000/a/very/long/name/of/an/image:1.2.3".into();
        let text = written(row, false, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains('…') && text.contains("exited (139)/(0)"), "{text}");
    }

    #[test]
    fn image_names_are_shortened() {
        let id: ImageId = format!("sha256:{}", "ab".repeat(32)).parse().unwrap();
        let names: ImageNames = [(id.clone(), "docker.io/library/nginx:1".to_owned())].into();
        for (name, want) in [
            ("docker://alpine:3", "alpine:3"),
            ("docker.io/grafana/loki", "grafana/loki"),
            ("registry.example/x", "registry.example/x"),
            (&id.to_string(), "nginx:1"),
        ] {
            assert_eq!(short_image(name, &id, &names), want);
        }
        assert_eq!(short_image("sha256:abab", &id, &ImageNames::new()), "sha256:abababababab");
    }

    #[test]
    fn templates_support_every_documented_field() {
        use clap::Args as _;
        let row = ended();
        let fields = PodFields::from_row(&row, Timestamp(61_000_000_000)).unwrap();
        let help = List::augment_args(clap::Command::new("list")).get_after_help().unwrap().to_string();
        for (number, name) in FIELDS.iter().enumerate() {
            assert!(help.contains(&format!(".{name}")), "{name} is not in the help");
            let Ok(ListFormat::Template(template)) = parse_format(&format!("{{{{.{name}}}}}")) else {
                panic!("{name}")
            };
            let mut out = Vec::new();
            template.write(&mut out, &fields).unwrap();
            let shown = crate::render::escape::text(&fields.field(number)).into_owned();
            assert_eq!(String::from_utf8(out).unwrap(), format!("{shown}\n"), "{name}");
        }
        assert_eq!(fields.field(6), "a: exited (0), b: exited (139)");
        assert_eq!(parse_format("json"), Ok(ListFormat::Named(OutputFormat::Json)));
        assert!(parse_format("yaml").unwrap_err().contains("neither"));
        assert!(parse_format("table {{.ID}}").is_err());
    }

    #[test]
    fn every_phase_name_is_accepted() {
        for name in PhaseName::ALL {
            assert_eq!(phase(name.as_str()), Ok(name));
        }
        assert!(phase("Running").is_err());
    }
}
