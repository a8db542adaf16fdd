//! `gantry volume`: named volumes.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gantry_engine::{Engine, VolumeRow};
use gantry_model::{ErrorKind, Kind as _, Timestamp, VolumeName};
use serde::Serialize;

use super::prune::{ask, need_terminal};
use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::render::json::{self, DisplayJson, TimeJson};
use crate::render::listing::{self, ListFilter, ListOutput, ListedItem, Listing};
use crate::render::table::Table;
use crate::render::{Indented, OutputFlag, OutputFormat, size, time};

/// The subcommands of `volume`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Volume {
    /// Create volumes; existing ones stay unchanged
    Create(Create),
    /// List volumes and the pods that mount them
    #[command(visible_alias = "ls")]
    List(List),
    /// Show volumes as JSON
    Inspect(Inspect),
    /// Remove volumes and their data; fails if a pod mounts them
    #[command(visible_alias = "remove")]
    Rm(Rm),
    /// Remove all volumes that no pod mounts
    Prune(Prune),
}

impl RunCommand for Volume {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        match self {
            Self::Create(args) => create(context, args),
            Self::List(args) => list(context, args),
            Self::Inspect(args) => inspect(context, args),
            Self::Rm(args) => rm(context, args),
            Self::Prune(args) => prune(context, args),
        }
    }
}

/// Arguments of `volume create`.
#[derive(Debug, clap::Args)]
pub(crate) struct Create {
    /// Names of volumes: letters, digits, '_', '.' and '-'
    #[arg(value_name = "VOLUME", required = true)]
    volumes: Vec<VolumeName>,
    /// A free-form label
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

/// Arguments of `volume list`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Values of one key are alternatives; all keys, and all labels, must match. '*' in a name stands for \
    any characters.\n\nFields of templates: .Name, .Created, .CreatedAt, .Labels, .Mountpoint, .Pods; {{json .}} is the \
    whole volume."
)]
pub(crate) struct List {
    #[command(flatten)]
    output: Listing,
    /// Only volumes that match: name=, label=NAME[=VALUE], pod= or dangling=true|false (mounted by no pod)
    #[arg(short = 'f', long, value_parser = parse_filter, value_name = "KEY=VALUE")]
    filter: Vec<ListFilter>,
    /// Sort key
    #[arg(long, value_enum, default_value_t, value_name = "KEY")]
    sort: VolumeSort,
}

/// Sort keys of volumes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum VolumeSort {
    /// By name
    #[default]
    Name,
    /// Newest first
    Created,
}

/// The fields of a template, in the order of [`template_item`].
const FIELDS: [&str; 6] = ["Name", "Created", "CreatedAt", "Labels", "Mountpoint", "Pods"];

fn parse_filter(text: &str) -> Result<ListFilter, String> {
    ListFilter::parse(text, &["name", "label", "pod", "dangling"])
}

fn is_met(row: &VolumeRow, key: &str, value: &str) -> bool {
    match key {
        "name" => listing::matches_pattern(value, row.name.as_str()),
        "label" => listing::has_label(&row.labels, value),
        "pod" => row.pods.iter().any(|pod| pod.to_string().starts_with(value)),
        _ => row.pods.is_empty() == (value == "true"),
    }
}

fn template_item<'a>(engine: &Engine, row: &'a VolumeRow, now: Timestamp) -> ListedItem<VolumeJson<'a>> {
    let json = VolumeJson::from_row(engine, row);
    let labels: Vec<_> = row.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let cells = vec![
        row.name.to_string(),
        time::relative(now, row.created),
        row.created.rfc3339().to_string(),
        labels.join(","),
        json.path.clone(),
        row.pods.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    ];
    ListedItem { cells, json }
}

/// Arguments of `volume inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// Names of volumes
    #[arg(value_name = "VOLUME", required = true)]
    volumes: Vec<VolumeName>,
    #[command(flatten)]
    output: Indented,
}

/// Arguments of `volume rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// Names of volumes
    #[arg(value_name = "VOLUME", required = true)]
    volumes: Vec<VolumeName>,
    /// No error for volumes that do not exist, as in docker; pods that mount a volume still keep it
    #[arg(short, long)]
    force: bool,
}

/// Arguments of `volume prune`.
#[derive(Debug, clap::Args)]
pub(crate) struct Prune {
    /// Do not ask
    #[arg(short, long, visible_short_alias = 'y', alias = "yes")]
    force: bool,
    /// Show what would be removed; remove nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: OutputFlag,
}

/// The volumes that were removed, as JSON. The field names are stable, and those of `prune`.
#[derive(Serialize)]
struct PruneJson<'a> {
    volumes: &'a [String],
    bytes: u64,
    done: bool,
}

/// A volume as JSON. The field names are stable.
#[derive(Serialize)]
struct VolumeJson<'a> {
    name: &'a str,
    created: TimeJson,
    labels: &'a BTreeMap<String, String>,
    /// The directory that apps see.
    path: String,
    /// The pods that mount it, in whatever phase they are.
    pods: Vec<DisplayJson<gantry_model::PodId>>,
}

impl<'a> VolumeJson<'a> {
    fn from_row(engine: &Engine, row: &'a VolumeRow) -> Self {
        Self {
            name: row.name.as_str(),
            created: TimeJson(row.created),
            labels: &row.labels,
            path: engine.volume_data(&row.name).to_string_lossy().into_owned(),
            pods: row.pods.iter().copied().map(DisplayJson).collect(),
        }
    }
}

fn create(context: &Context, args: &Create) -> Result<ExitStatus, Failure> {
    let engine = context.open("volume create")?;
    let labels = args.labels.iter().cloned().collect();
    for name in &args.volumes {
        engine.volume_create(name, &labels)?;
        json::to_stdout(|out| writeln!(out, "{name}"))?;
    }
    Ok(ExitStatus::OK)
}

fn list(context: &Context, args: &List) -> Result<ExitStatus, Failure> {
    let engine = context.open_to_read()?;
    let mut volumes = engine.volumes()?;
    volumes.retain(|row| listing::matches_all(&args.filter, |key, value| is_met(row, key, value)));
    match args.sort {
        VolumeSort::Name => volumes.sort_by(|a, b| a.name.cmp(&b.name)),
        VolumeSort::Created => volumes.sort_by_key(|row| std::cmp::Reverse(row.created)),
    }
    let now = gantry_engine::now();
    match args.output.parse_output(&FIELDS)? {
        ListOutput::Quiet => {
            json::to_stdout(|out| volumes.iter().try_for_each(|row| writeln!(out, "{}", row.name)))?;
        }
        ListOutput::Format(OutputFormat::Table) => {
            json::to_stdout(|out| table(out, &volumes, args.output.full, !args.output.no_legend, now))?;
        }
        ListOutput::Format(format) => json::to_stdout(|out| {
            json::write_items(out, format, volumes.iter().map(|row| VolumeJson::from_row(&engine, row)))
        })?,
        ListOutput::Template(template) => {
            listing::write_template(&template, volumes.iter().map(|row| template_item(&engine, row, now)))?;
        }
    }
    Ok(ExitStatus::OK)
}

fn table(out: &mut dyn Write, volumes: &[VolumeRow], full: bool, legend: bool, now: Timestamp) -> io::Result<()> {
    let mut table = Table::new(&["VOLUME", "CREATED", "PODS"]);
    for row in volumes {
        let shown = |pod: &gantry_model::PodId| {
            let id = pod.to_string();
            if full { id } else { id.split('-').next().unwrap_or_default().to_owned() }
        };
        let created = row.created;
        table.row([
            row.name.to_string(),
            if full { created.rfc3339().to_string() } else { time::relative(now, created) },
            row.pods.iter().map(shown).collect::<Vec<_>>().join(","),
        ]);
    }
    table.write(out, legend)
}

/// Prints a volume as a JSON document; several volumes as an array.
fn inspect(context: &Context, args: &Inspect) -> Result<ExitStatus, Failure> {
    let engine = context.open_to_read()?;
    let names: Vec<String> = args.volumes.iter().map(ToString::to_string).collect();
    let mut found = Vec::new();
    let worst = context.for_each(&names, CommandKind::Query, &mut |name| {
        found.push(engine.volume(&name.parse()?)?);
        Ok(ExitStatus::OK)
    });
    let documents = found.iter().map(|row| VolumeJson::from_row(&engine, row));
    json::to_stdout(|out| json::write_one_or_several(out, args.output.format, names.len() > 1, documents))?;
    Ok(worst)
}

fn rm(context: &Context, args: &Rm) -> Result<ExitStatus, Failure> {
    let engine = context.open("volume rm")?;
    let names: Vec<String> = args.volumes.iter().map(ToString::to_string).collect();
    Ok(context.for_each(&names, CommandKind::Query, &mut |name| {
        match engine.volume_rm(&name.parse()?) {
            Err(error) if args.force && error.kind() == ErrorKind::NotFound => return Ok(ExitStatus::OK),
            removed => removed?,
        };
        json::to_stdout(|out| writeln!(out, "{name}"))?;
        Ok(ExitStatus::OK)
    }))
}

/// Prints the volumes that no pod mounts, or why there are none.
fn show_unused(engine: &Engine, unused: &[VolumeRow], what: &str) -> Result<(), Failure> {
    if unused.is_empty() {
        let has_none = engine.volumes()?.is_empty();
        let why = if has_none { "there are no volumes" } else { "every volume is mounted by a pod" };
        return json::to_stdout(|out| writeln!(out, "{why}"));
    }
    json::to_stdout(|out| {
        writeln!(out, "{what} that no pod mounts:")?;
        table(out, unused, false, true, gantry_engine::now())?;
        out.flush()
    })
}

/// Lists all volumes to be removed before removing the first.
fn prune(context: &Context, args: &Prune) -> Result<ExitStatus, Failure> {
    let engine = context.open("volume prune")?;
    let asks = !args.dry_run && !args.force;
    if asks {
        need_terminal()?;
    }
    let unused = engine.volumes_unused()?;
    let is_table = args.output.format == OutputFormat::Table;
    if is_table {
        show_unused(&engine, &unused, if asks || args.dry_run { "volumes" } else { "removing volumes" })?;
        if args.dry_run || unused.is_empty() {
            return Ok(ExitStatus::OK);
        }
    }
    let names: Vec<_> = unused.into_iter().map(|row| row.name).collect();
    // JSON lists the volumes only once they are removed.
    let question = match is_table {
        true => "Remove these volumes, with their data?",
        false => "Remove all volumes that no pod mounts, with their data?",
    };
    if asks && !names.is_empty() && !ask(question)? {
        return Ok(ExitStatus::OK);
    }
    let (mut volumes, mut bytes) = (Vec::new(), 0);
    let code = context.for_each(&names, CommandKind::Query, &mut |name| {
        bytes += if args.dry_run { engine.volume_disk_usage(name)?.bytes } else { engine.volume_rm(name)? };
        volumes.push(name.to_string());
        Ok(ExitStatus::OK)
    });
    json::to_stdout(|out| match args.output.format {
        OutputFormat::Table => writeln!(out, "freed {}", size::human(bytes)),
        format => json::write_document(out, format, &PruneJson { volumes: &volumes, bytes, done: !args.dry_run }),
    })?;
    Ok(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_rendered_as_a_table() {
        let row = |name: &str, pods: &[&str]| VolumeRow {
            name: name.parse().unwrap(),
            created: Timestamp(0),
            labels: BTreeMap::new(),
            pods: pods.iter().map(|pod| pod.parse().unwrap()).collect(),
        };
        let pod = "6733c088-a507-4694-aabf-ec79c0a8ac9a";
        let mut out = Vec::new();
        let rows = [row("data", &[pod, "0733c088-a507-4694-aabf-ec79c0a8ac9a"]), row("old", &[])];
        table(&mut out, &rows, false, true, Timestamp(3_600_000_000_000)).unwrap();
        let want = "VOLUME  CREATED     PODS\ndata    1 hour ago  0733c088,6733c088\nold     1 hour ago\n";
        assert_eq!(String::from_utf8(out).unwrap(), want);
    }

    #[test]
    fn labels_require_a_name() {
        assert_eq!(label("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert!(label("=b").is_err() && label("a").is_err());
    }
}
