//! `gantry list`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gantry_engine::{Engine, PodRow, PodView};
use gantry_model::query::PodQuery;
use gantry_model::{AppName, AppState, Digest, ImageId, Timestamp};

use crate::context::Context;
use crate::exit;
use crate::failure::Failure;
use crate::pod_filter::{self, Condition, phase};
use crate::render::network::{self, Families};
use crate::render::pod::{self, Document};
use crate::render::table::{Table, terminal_width};
use crate::render::template::{Item, Template};
use crate::render::{Form, json, time};

/// Arguments of `list`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Filters of one key are alternatives, those of several keys all have to hold, and so do all labels. Keys: \
    state=PHASE, name= (of an app or host), app=, label=NAME[=VALUE], image= (name or id), exited=CODE, network=, id=.\n\n\
    Fields of templates: .ID, .FullID, .Names, .Images, .ImageID, .State, .Status (of each app), .ExitCode, .Created, \
    .CreatedAt, .Started, .StartedAt, .Ended, .Networks, .Ports, .Labels, .Hostname, .Pid; {{json .}} is all of a pod. \
    \\t and \\n are a tab and a newline."
)]
pub(crate) struct List {
    /// Form of the answer
    #[arg(short = 'o', long = "output", value_enum, value_name = "FORM", conflicts_with = "format")]
    form: Option<Form>,
    /// A template such as '{{.ID}} {{.Names}}', one line for each pod; or a form of the answer
    #[arg(long, value_parser = format, value_name = "TEMPLATE")]
    format: Option<Format>,
    /// No header line
    #[arg(long, alias = "no-headers", alias = "noheading")]
    no_legend: bool,
    /// Whole ids and names, absolute times, image ids and labels
    #[arg(long, visible_alias = "no-trunc")]
    full: bool,
    /// Ids only
    #[arg(short, long)]
    quiet: bool,
    /// Only pods in these phases: embryo, preparing, aborted-prepare, prepared, running, exited, garbage, deleting
    #[arg(long, alias = "state", value_delimiter = ',', value_parser = phase, value_name = "PHASE,…")]
    phase: Vec<&'static str>,
    /// Only pods that have an app of this name
    #[arg(long, value_name = "NAME")]
    app: Option<AppName>,
    /// Only pods that fit: state=, name=, app=, label=, image=, exited=, network= or id=
    #[arg(short = 'f', long, value_parser = pod_filter::parse, value_name = "KEY=VALUE")]
    filter: Vec<Condition>,
    /// In which order; pods that are equal in it, newest first
    #[arg(long, value_enum, default_value_t, value_name = "KEY")]
    sort: Sort,
    /// Only so many of the newest pods
    #[arg(short = 'n', long, value_name = "N")]
    last: Option<usize>,
    /// Only the newest pod
    #[arg(short, long, conflicts_with = "last")]
    latest: bool,
    /// Changes nothing: all pods are listed, as with 'ps -a' of docker
    #[arg(long, short)]
    all: bool,
}

/// What pods are ordered by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Sort {
    /// Newest first
    #[default]
    Created,
    /// Started last first; those that were not at the end
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

/// What `--format` takes.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Format {
    Form(Form),
    Template(Template),
}

fn format(text: &str) -> Result<Format, String> {
    if let Ok(form) = <Form as clap::ValueEnum>::from_str(text, false) {
        return Ok(Format::Form(form));
    }
    if text.starts_with("table ") {
        return Err("templates of tables are not supported: leave 'table' out".to_owned());
    }
    if !text.contains("{{") {
        let forms = "table, json or json-lines";
        return Err(format!(
            "'{}' is neither a form ({forms}) nor a template with {{{{.Field}}}}",
            gantry_model::id::shown(text)
        ));
    }
    Template::parse(text, &FIELDS).map(Format::Template)
}

/// Lists pods.
pub(crate) fn list(context: &Context, args: &List) -> Result<u8, Failure> {
    let engine = context.look()?;
    let mut pods = chosen(&engine, args)?;
    order(&mut pods, args.sort);
    let rows = || pods.iter().map(|pod| &pod.row);
    let form = match &args.format {
        Some(Format::Form(form)) => *form,
        _ => args.form.unwrap_or_default(),
    };
    match (&args.format, form) {
        _ if args.quiet => {
            json::to_stdout(|out| rows().try_for_each(|row| writeln!(out, "{}", shown_id(row, args.full))))?;
        }
        (Some(Format::Template(template)), _) => {
            let now = gantry_engine::now();
            let items = rows().map(|row| Fields::of(row, now)).collect::<Result<Vec<_>, _>>()?;
            json::to_stdout(|out| items.iter().try_for_each(|item| template.write(out, item)))?;
        }
        (_, Form::Table) => {
            let names = image_names(&engine, rows())?;
            let table = table(rows(), args.full, &names, gantry_engine::now())?;
            let width = terminal_width().filter(|_| !args.full);
            json::to_stdout(|out| table.write_within(out, !args.no_legend, width))?;
        }
        (_, Form::JsonPretty) => {
            let networks = rows().map(|row| row.networks.read()).collect::<Result<Vec<_>, _>>()?;
            let documents = rows().zip(&networks).map(|(row, networks)| Document::spread(row, networks));
            json::to_stdout(|out| json::items(out, form, documents))?;
        }
        (_, form) => json::to_stdout(|out| json::items(out, form, rows().map(Document::of)))?,
    }
    // The process ends, and with it all that many pods take.
    std::mem::forget(pods);
    Ok(exit::OK)
}

/// The pods that are asked for, newest first.
fn chosen(engine: &Engine, args: &List) -> Result<Vec<PodView>, Failure> {
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

/// Orders pods that are newest first; the sort is stable.
fn order(pods: &mut [PodView], sort: Sort) {
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
        Sort::State => pods.sort_by_key(|pod| pod.row.phase.name()),
    }
}

/// The beginning of an id as tables show it; scripts that ask for ids only get enough to go on with.
fn shown_id(row: &PodRow, full: bool) -> String {
    let mut id = row.id.to_string();
    if !full {
        id.truncate(8);
    }
    id
}

/// Names of the images that pods were made from by an id alone.
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

/// An image's name where there is room for little: without the scheme and without Docker Hub's host; instead of an id a
/// name that the image has, or the id's beginning.
fn short_image(name: &str, image: &ImageId, names: &ImageNames) -> String {
    if is_id(name) {
        let short = || format!("{}:{}", image.algorithm().as_str(), Digest::short(image));
        return names.get(image).map_or_else(short, |name| short_image(name, image, &ImageNames::new()));
    }
    let name = name.strip_prefix("docker://").unwrap_or(name);
    let name = name.strip_prefix("docker.io/").unwrap_or(name);
    name.strip_prefix("library/").unwrap_or(name).to_owned()
}

/// One line per app; the pod's columns stand on its first line only, as rkt does it.
fn table<'a>(
    rows: impl Iterator<Item = &'a PodRow>,
    full: bool,
    names: &ImageNames,
    now: Timestamp,
) -> Result<Table, Failure> {
    let mut table = Table::new(if full {
        &["UUID", "APP", "IMAGE NAME", "IMAGE ID", "STATE", "CREATED", "STARTED", "NETWORKS", "PORTS", "LABELS"]
    } else {
        &["UUID", "APP", "IMAGE NAME", "STATE", "CREATED", "NETWORKS", "PORTS"]
    });
    let families = if full { Families::Both } else { Families::One };
    for row in rows {
        let run = pod::run(&row.phase);
        let mut of_pod = Vec::new();
        if full {
            of_pod.push(row.created.rfc3339().to_string());
            of_pod.push(run.started.map(|at| at.rfc3339().to_string()).unwrap_or_default());
        } else {
            of_pod.push(time::relative(now, row.created));
        }
        of_pod.push(network::text(row, families)?);
        of_pod.push(network::published(row)?);
        if full {
            of_pod.push(labels(row));
        }
        let mut id = shown_id(row, full);
        for (number, app) in row.apps.iter().enumerate() {
            let mut cells = vec![std::mem::take(&mut id), app.name.to_string()];
            if full {
                cells.push(app.image_name.clone());
                cells.push(format!("{}:{}", app.image.algorithm().as_str(), app.image.short()));
            } else {
                cells.push(short_image(&app.image_name, &app.image, names));
            }
            cells.push(shown_state(row, number));
            cells.append(&mut of_pod);
            table.row(cells);
        }
    }
    Ok(table.cutting(&[1, 2, 5, 6]))
}

/// The pod's state on its first line. With several apps, each line also has the app's own: on the first line behind a slash,
/// where it says something else.
fn shown_state(row: &PodRow, number: usize) -> String {
    let of_pod = pod_state(row);
    let own = row.apps.get(number).filter(|_| row.apps.len() > 1).and_then(|app| app_state(app.state));
    match (number, own) {
        (0, Some(own)) if own != of_pod => {
            // The word is there once: 'exited (139)/(0)'.
            let word = format!("{} ", row.phase.name());
            format!("{of_pod}/{}", own.strip_prefix(&word).unwrap_or(&own))
        }
        (0, _) => of_pod,
        (_, own) => own.unwrap_or_default(),
    }
}

fn pod_state(row: &PodRow) -> String {
    match pod::run(&row.phase).end {
        Some(end) => format!("{} ({})", row.phase.name(), end.exit_code),
        _ => row.phase.name().to_owned(),
    }
}

fn app_state(state: AppState) -> Option<String> {
    match state {
        AppState::Waiting => None,
        AppState::Started { .. } => Some("running".to_owned()),
        AppState::Exited { end, .. } => Some(format!("exited ({})", end.how.exit_code())),
    }
}

fn labels(row: &PodRow) -> String {
    row.user_labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

/// The fields of a template, in the order of [`Fields::cells`].
const FIELDS: [&str; 18] = [
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
];

/// A pod as a template sees it.
struct Fields<'a> {
    row: &'a PodRow,
    cells: [String; FIELDS.len()],
}

impl<'a> Fields<'a> {
    fn of(row: &'a PodRow, now: Timestamp) -> Result<Self, Failure> {
        let run = pod::run(&row.phase);
        let absolute = |at: Timestamp| at.rfc3339().to_string();
        let each =
            |of: &dyn Fn(&gantry_engine::AppRow) -> String| row.apps.iter().map(of).collect::<Vec<_>>().join(",");
        let status = |app: &gantry_engine::AppRow| {
            let state = app_state(app.state).unwrap_or_else(|| row.phase.name().to_owned());
            format!("{}: {state}", app.name)
        };
        let cells = [
            shown_id(row, false),
            shown_id(row, true),
            each(&|app| app.name.to_string()),
            each(&|app| app.image_name.clone()),
            each(&|app| app.image.to_string()),
            row.phase.name().to_owned(),
            row.apps.iter().map(status).collect::<Vec<_>>().join(", "),
            run.end.map(|end| end.exit_code.to_string()).unwrap_or_default(),
            time::relative(now, row.created),
            absolute(row.created),
            run.started.map(|at| time::relative(now, at)).unwrap_or_default(),
            run.started.map(absolute).unwrap_or_default(),
            run.ended.map(absolute).unwrap_or_default(),
            network::text(row, Families::Both)?,
            network::published(row)?,
            labels(row),
            row.hostname.clone(),
            run.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        ];
        Ok(Self { row, cells })
    }
}

impl Item for Fields<'_> {
    fn field(&self, number: usize) -> String {
        self.cells.get(number).cloned().unwrap_or_default()
    }

    fn json(&self, out: &mut dyn Write) -> io::Result<()> {
        Ok(serde_json::to_writer(out, &Document::of(self.row))?)
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::Phase;

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
    fn pods_as_a_table() {
        let want = "UUID      APP  IMAGE NAME     STATE             CREATED       NETWORKS  PORTS\n\
                    6733c088  a    evil\\u{1b}[2J  exited (139)/(0)  1 minute ago  none\n          \
                    b    evil\\u{1b}[2J  exited (139)\n";
        assert_eq!(written(ended(), false, None), want);
        let mut labelled = ended();
        labelled.user_labels = [("tier".to_owned(), "web".to_owned())].into();
        labelled.apps.truncate(1);
        let full = written(labelled.clone(), true, None);
        assert!(full.ends_with("  none             tier=web\n"), "{full}");
        assert!(written(labelled, false, None).contains("  exited (139)  1 minute"), "one app has no state of its own");
        let mut out = Vec::new();
        let none = table([].iter(), true, &ImageNames::new(), Timestamp(0)).unwrap();
        none.write_within(&mut out, true, None).unwrap();
        assert!(out.starts_with(b"UUID  APP"), "a header also when there is nothing");
    }

    #[test]
    fn a_table_fits_a_terminal() {
        let mut row = ended();
        row.apps[0].image_name = "registry.example:5000/a/very/long/name/of/an/image:1.2.3".into();
        let text = written(row, false, Some(80));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains('…') && text.contains("exited (139)/(0)"), "{text}");
    }

    #[test]
    fn names_of_images() {
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
    fn templates_have_every_documented_field() {
        use clap::Args as _;
        let row = ended();
        let fields = Fields::of(&row, Timestamp(61_000_000_000)).unwrap();
        let help = List::augment_args(clap::Command::new("list")).get_after_help().unwrap().to_string();
        for (number, name) in FIELDS.iter().enumerate() {
            assert!(help.contains(&format!(".{name}")), "{name} is not in the help");
            let Ok(Format::Template(template)) = format(&format!("{{{{.{name}}}}}")) else { panic!("{name}") };
            let mut out = Vec::new();
            template.write(&mut out, &fields).unwrap();
            let shown = crate::render::escape::text(&fields.field(number)).into_owned();
            assert_eq!(String::from_utf8(out).unwrap(), format!("{shown}\n"), "{name}");
        }
        assert_eq!(fields.field(6), "a: exited (0), b: exited (139)");
        assert_eq!(format("json"), Ok(Format::Form(Form::Json)));
        assert!(format("yaml").unwrap_err().contains("neither"));
        assert!(format("table {{.ID}}").is_err());
    }

    #[test]
    fn phases_are_the_models() {
        for name in Phase::NAMES {
            assert_eq!(phase(name), Ok(name));
        }
        assert!(phase("Running").is_err());
    }
}
