//! `gantry image`, and its short forms `images` and `rmi`.

use std::cmp::Reverse;
use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use gantry_engine::{ImageGc, ImageRemoved, ImageRow, Swept};
use gantry_model::{ImageRef, Timestamp};

use crate::commands::RunCommand;
use crate::commands::inspect::ManifestFlags;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::{Failure, print_stderr};
use crate::image_names;
use crate::render::image::ImageListJson;
use crate::render::json;
use crate::render::listing::{self, ListFilter, ListOutput, ListedItem, Listing};
use crate::render::table::Table;
use crate::render::{OutputFormat, escape, size, time};

/// The subcommands of `image`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Image {
    /// List images
    #[command(visible_alias = "ls")]
    List(List),
    /// Show the configuration of images
    Inspect(super::image_inspect::Inspect),
    /// Show the build history of an image
    History(super::image_inspect::History),
    /// Add names to an image
    Tag(Tag),
    /// Save images to an archive for docker, podman or gantry
    Save(super::image_archive::Save),
    /// Load an image from an archive
    Load(super::image_archive::Load),
    /// Remove images, or names of images
    Rm(Rm),
    /// Remove images that have not been used for some time
    Gc(Gc),
    /// Print an image's manifest
    CatManifest(CatManifest),
    /// Fetch images into the store
    #[command(hide = true, alias = "pull")]
    Fetch(super::fetch::Fetch),
}

impl RunCommand for Image {
    const KIND: CommandKind = CommandKind::Query;

    fn kind(&self) -> CommandKind {
        match self {
            Self::Load(args) => args.kind(),
            Self::Fetch(args) => args.kind(),
            Self::List(_)
            | Self::Inspect(_)
            | Self::History(_)
            | Self::Tag(_)
            | Self::Save(_)
            | Self::Rm(_)
            | Self::Gc(_)
            | Self::CatManifest(_) => Self::KIND,
        }
    }

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        match self {
            Self::List(args) => args.run(context),
            Self::Inspect(args) => args.run(context),
            Self::History(args) => args.run(context),
            Self::Tag(args) => args.run(context),
            Self::Save(args) => args.run(context),
            Self::Load(args) => args.run(context),
            Self::Rm(args) => args.run(context),
            Self::Gc(args) => args.run(context),
            Self::CatManifest(args) => args.run(context),
            Self::Fetch(args) => args.run(context),
        }
    }
}

/// Arguments of `image list`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Values of one key are alternatives; all keys must match. '*' in a name stands for any characters.\n\n\
    Fields of templates, one line per name: .ID, .FullID, .Name, .Repository, .Tag, .Digest, .Size, .Created, .CreatedAt, \
    .LastUsed, .Layers; {{json .}} is the whole image. The times are those of the import."
)]
pub(crate) struct List {
    /// Only images of this name; it may omit the registry, the tag, or both
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    output: Listing,
    /// Only images that match: name= or reference= (a name as for NAME), id= or dangling=true|false (without a name)
    #[arg(short = 'f', long, value_parser = parse_filter, value_name = "KEY=VALUE")]
    filter: Vec<ListFilter>,
    /// Sort key
    #[arg(long, value_enum, value_name = "KEY")]
    sort: Option<ImageSort>,
    /// No effect, accepted for docker's 'images -a': all images are always listed
    #[arg(long, short)]
    all: bool,
}

/// Sort keys of images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ImageSort {
    /// Last imported first
    #[value(alias = "imported")]
    Created,
    /// Last used first
    Used,
    /// Largest first
    Size,
    /// By name
    #[value(alias = "repository")]
    Name,
    /// By id
    Id,
}

/// The fields of a template, in the order of [`template_items`].
const FIELDS: [&str; 11] =
    ["ID", "FullID", "Name", "Repository", "Tag", "Digest", "Size", "Created", "CreatedAt", "LastUsed", "Layers"];

fn parse_filter(text: &str) -> Result<ListFilter, String> {
    ListFilter::parse(text, &["name", "reference", "id", "dangling"])
}

fn is_met(row: &ImageRow, key: &str, value: &str) -> bool {
    match key {
        "id" => row.id.hex().starts_with(value) || row.id.to_string().starts_with(value),
        "dangling" => row.names.is_empty() == (value == "true"),
        _ => has_name(row, value),
    }
}

/// Whether a form of one of its names matches.
fn has_name(row: &ImageRow, pattern: &str) -> bool {
    row.names.iter().any(|name| image_names::any_form(name, |form| listing::matches_pattern(pattern, form)))
}

/// An item for each name, and one for an image without names.
fn template_items(row: &ImageRow, disk_size: u64, now: Timestamp) -> Vec<ListedItem<ImageListJson<'_>>> {
    const NONE: &str = "<none>";
    let names = if row.names.is_empty() { vec![NONE] } else { row.names.iter().map(String::as_str).collect() };
    let item = |name: &str| {
        let (repository, tag) = image_names::split(name);
        let tag = if tag.is_empty() || name.contains('@') { NONE } else { tag };
        let cells = vec![
            shown_id(row, false),
            row.id.to_string(),
            name.to_owned(),
            repository.to_owned(),
            tag.to_owned(),
            row.id.to_string(),
            size::human(disk_size),
            time::relative(now, row.imported),
            row.imported.rfc3339().to_string(),
            row.last_used.rfc3339().to_string(),
            row.layers.len().to_string(),
        ];
        ListedItem { cells, json: ImageListJson::from_row(row, disk_size) }
    };
    names.into_iter().map(item).collect()
}

/// Lists images.
impl RunCommand for List {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let mut images = engine.image_list()?;
        images.retain(|row| {
            self.name.as_ref().is_none_or(|name| has_name(row, name))
                && listing::matches_all(&self.filter, |key, value| is_met(row, key, value))
        });
        let sizes = engine.image_disk_sizes(&images)?;
        match self.sort {
            None => {}
            Some(ImageSort::Created) => images.sort_by_key(|row| Reverse(row.imported)),
            Some(ImageSort::Used) => images.sort_by_key(|row| Reverse(row.last_used)),
            Some(ImageSort::Size) => images.sort_by_key(|row| Reverse(sizes.get(&row.id).copied())),
            Some(ImageSort::Name) => images.sort_by(|a, b| a.names.cmp(&b.names)),
            Some(ImageSort::Id) => images.sort_by(|a, b| a.id.cmp(&b.id)),
        }
        let with_sizes = || images.iter().map(|row| (row, sizes.get(&row.id).copied().unwrap_or_default()));
        // Lines are truncated only on a terminal.
        let width =
            std::io::stdout().is_terminal().then(crate::terminal::size).flatten().map(|size| usize::from(size.ws_col));
        let now = gantry_engine::now();
        match self.output.parse_output(&FIELDS)? {
            ListOutput::Quiet => json::to_stdout(|out| {
                images.iter().try_for_each(|row| writeln!(out, "{}", shown_id(row, self.output.full)))
            })?,
            ListOutput::Format(OutputFormat::Table) => {
                json::to_stdout(|out| table(out, with_sizes(), &self.output, width, now))?;
            }
            ListOutput::Format(format) => json::to_stdout(|out| {
                json::write_items(out, format, with_sizes().map(|(row, size)| ImageListJson::from_row(row, size)))
            })?,
            ListOutput::Template(template) => {
                let items = with_sizes().flat_map(|(row, size)| template_items(row, size, now));
                listing::write_template(&template, items)?;
            }
        }
        Ok(ExitStatus::OK)
    }
}

/// The id, shortened so that it is still a valid image reference.
fn shown_id(row: &ImageRow, full: bool) -> String {
    if full { row.id.to_string() } else { row.id.short().to_owned() }
}

/// The name as the table shows it: a digest is shortened as ids are.
fn shown_name(name: &str, full: bool) -> String {
    match name.split_once('@') {
        Some((repository, digest)) if !full => match digest.parse::<gantry_model::Digest>() {
            Ok(digest) => format!("{repository}@{}:{}", digest.algorithm().as_str(), digest.short()),
            Err(_) => name.to_owned(),
        },
        _ => name.to_owned(),
    }
}

/// Truncates a name at its beginning, which keeps the end of the repository and the tag.
fn truncate_name(name: String, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name;
    }
    std::iter::once('…').chain(name.chars().skip(length - most.saturating_sub(1))).collect()
}

/// One line per name, and one for an image without names.
fn table<'a>(
    out: &mut dyn Write,
    images: impl Iterator<Item = (&'a ImageRow, u64)>,
    output: &Listing,
    width: Option<usize>,
    now: Timestamp,
) -> io::Result<()> {
    /// The maximum width of the other columns, including the spaces between.
    const OTHERS: usize = 12 + 9 + 14 + 14 + 8;
    /// The minimum width of the name column.
    const MIN_NAME: usize = 16;
    let most = width.filter(|_| !output.full).map_or(usize::MAX, |width| width.saturating_sub(OTHERS).max(MIN_NAME));

    let mut table = Table::new(&["ID", "NAME", "SIZE", "IMPORTED", "LAST USED"]);
    let shown_time = |at: Timestamp| if output.full { at.rfc3339().to_string() } else { time::relative(now, at) };
    let nameless = ["-".to_owned()];
    for (row, disk_size) in images {
        let names = if row.names.is_empty() { &nameless[..] } else { &row.names };
        for name in names {
            table.row([
                shown_id(row, output.full),
                truncate_name(shown_name(name, output.full), most),
                if output.full { disk_size.to_string() } else { size::human(disk_size) },
                shown_time(row.imported),
                shown_time(row.last_used),
            ]);
        }
    }
    table.write(out, !output.no_legend)
}

/// Arguments of `image rm`.
#[derive(Debug, clap::Args)]
pub(crate) struct Rm {
    /// Names or ids of images
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
    /// Also remove exited pods that use the image, and all names of an image given by its id or digest
    #[arg(short, long)]
    force: bool,
}

/// Arguments of `image tag`.
#[derive(Debug, clap::Args)]
pub(crate) struct Tag {
    /// Name or id of an image
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Names to add, such as registry.example/app:2 or app:2
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

/// Adds names to an image.
impl RunCommand for Tag {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("image tag")?;
        let image: ImageRef = self.image.parse()?;
        Ok(context.for_each(&self.names, CommandKind::Query, &mut |target| {
            let (name, before) = engine.image_tag(&image, target)?;
            if let Some(before) = before {
                print_stderr(&format!("{} was moved from image {}\n", escape::text(&name), before.short()));
            }
            json::to_stdout(|out| writeln!(out, "{}", escape::text(&name)))?;
            Ok(ExitStatus::OK)
        }))
    }
}

/// Removes images. Images in use by pods stay.
impl RunCommand for Rm {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("image rm")?;
        Ok(context.for_each(&self.images, CommandKind::Query, &mut |image| {
            let reference: ImageRef = image.parse()?;
            let removed = engine.image_rm(&reference, self.force)?;
            json::to_stdout(|out| write_removed(out, &removed))?;
            removed.failure.map_or(Ok(ExitStatus::OK), |failure| Err(failure.into()))
        }))
    }
}

/// Arguments of `image gc`.
#[derive(Debug, clap::Args)]
pub(crate) struct Gc {
    /// Minimum time since the last use of an image
    #[arg(long, value_parser = super::stop::parse_duration, default_value = "24h", value_name = "DURATION")]
    grace_period: Duration,
    /// Show what would be removed; remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// Removes images that no pod uses and that have not been used for some time.
impl RunCommand for Gc {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open("image gc")?;
        let report = engine.image_gc(self.grace_period, self.dry_run)?;
        json::to_stdout(|out| write_collected(out, &report, self.dry_run))?;
        Ok(context.report(report.failures, CommandKind::Query))
    }
}

/// Arguments of `image cat-manifest`.
#[derive(Debug, clap::Args)]
pub(crate) struct CatManifest {
    /// Name or id of an image
    #[arg(value_name = "IMAGE")]
    image: String,
    #[command(flatten)]
    manifest: ManifestFlags,
}

/// Prints an image's manifest.
impl RunCommand for CatManifest {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let reference: ImageRef = self.image.parse()?;
        let engine = context.open_to_read()?;
        let document = if self.manifest.appc {
            engine.image_appc_manifest(&reference)?
        } else {
            engine.image_manifest(&reference)?
        };
        json::to_stdout(|out| json::write_document(out, self.manifest.format(), &document))?;
        Ok(ExitStatus::OK)
    }
}

fn write_removed(out: &mut dyn Write, removed: &ImageRemoved) -> io::Result<()> {
    for pod in &removed.pods {
        writeln!(out, "removed pod {pod}")?;
    }
    for name in &removed.untagged {
        writeln!(out, "untagged {}", escape::text(name))?;
    }
    if removed.is_removed {
        writeln!(out, "removed {}", removed.image.id)?;
    }
    write_freed(out, &removed.swept)
}

fn write_collected(out: &mut dyn Write, report: &ImageGc, dry_run: bool) -> io::Result<()> {
    for row in &report.removed {
        let names: Vec<_> = row.names.iter().map(|name| escape::text(name)).collect();
        let names = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
        writeln!(out, "{} {}{names}", if dry_run { "would remove" } else { "removed" }, row.id)?;
    }
    write_freed(out, &report.swept)
}

fn write_freed(out: &mut dyn Write, swept: &Swept) -> io::Result<()> {
    if swept.layers == 0 && swept.bytes == 0 {
        return Ok(());
    }
    let noun = if swept.layers == 1 { "layer" } else { "layers" };
    writeln!(out, "freed {} in {} {noun}", size::human(swept.bytes), swept.layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_fits_80_columns() {
        let output = Listing::default();
        let digest = format!("registry.example:5000/team/product@sha256:{}", "cd".repeat(32));
        let images = [row(&["registry.example:5000/a/rather/long/name/of/an/image:v1.2.3", &digest])];
        let mut out = Vec::new();
        let sized = images.iter().map(|row| (row, 1023 << 20));
        table(&mut out, sized, &output, Some(80), Timestamp(40 * 60_000_000_000)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.contains("an/image:v1.2.3") && text.contains("@sha256:cdcdcdcdcdcd"), "{text}");
    }

    fn row(names: &[&str]) -> ImageRow {
        let id = format!("sha256:{}", "ab".repeat(32)).parse::<gantry_model::Digest>().unwrap();
        ImageRow {
            id: id.clone(),
            config: id,
            format: gantry_engine::ImageFormat::Oci,
            layers: Vec::new(),
            size: 5 << 20,
            names: names.iter().map(|&name| name.to_owned()).collect(),
            imported: Timestamp(0),
            last_used: Timestamp(3_600_000_000_000),
        }
    }

    #[test]
    fn collected_images_have_all_names() {
        let report = ImageGc { removed: vec![row(&["a:1", "b:2"]), row(&[])], ..ImageGc::default() };
        let mut out = Vec::new();
        write_collected(&mut out, &report, true).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("would remove sha256:") && lines[0].ends_with(" (a:1, b:2)"), "{text}");
        assert!(!lines[1].contains('('), "{text}");
    }

    #[test]
    fn images_are_rendered_as_table_and_json() {
        let output = Listing::default();
        let mut out = Vec::new();
        let images = [row(&["docker.io/library/alpine:3", "x\n:1"]), row(&[])];
        let sized = || images.iter().map(|row| (row, 5 << 20));
        table(&mut out, sized(), &output, None, Timestamp(7_200_000_000_000)).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect()).collect();
        assert_eq!(lines[0], ["ID", "NAME", "SIZE", "IMPORTED", "LAST USED"]);
        assert_eq!(lines[1], ["abababababab", "docker.io/library/alpine:3", "5.0MiB", "2 hours ago", "1 hour ago"]);
        assert_eq!((lines[2][1], lines[3][1], lines.len()), ("x\\u{a}:1", "-", 4));

        let json = serde_json::to_value(ImageListJson::from_row(&images[0], 7)).unwrap();
        let fields: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["disk_size", "format", "id", "imported", "last_used", "layers", "names", "size"]);
    }
}
