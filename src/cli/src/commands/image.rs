//! `gantry image` and its short spellings.

use std::io::{self, Write};
use std::time::Duration;

use gantry_engine::{ImageGc, ImageRemoved, ImageRow, Swept};
use gantry_model::{ImageRef, Timestamp};
use serde::Serialize;

use crate::context::{self, Context};
use crate::exit::{self, Asking};
use crate::failure::Failure;
use crate::render::json::{self, At, Text};
use crate::render::table::Table;
use crate::render::{Form, Output, escape, size, time};

/// What can be done with images.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Image {
    /// List images
    #[command(visible_alias = "ls")]
    List(List),
    /// Remove images, or names of images
    Rm(Rm),
    /// Remove images that have not been used for a while
    Gc(Gc),
    /// Print an image's manifest
    CatManifest(CatManifest),
    /// Fetch images into the store
    #[command(hide = true, alias = "pull")]
    Fetch(super::fetch::Fetch),
}

/// Does it.
pub(crate) fn image(context: &Context, image: &Image) -> Result<u8, Failure> {
    match image {
        Image::List(args) => list(context, args),
        Image::Rm(args) => rm(context, args),
        Image::Gc(args) => gc(context, args),
        Image::CatManifest(args) => cat_manifest(context, args),
        Image::Fetch(args) => super::fetch::fetch(context, args),
    }
}

/// Arguments of `image list`.
#[derive(Debug, clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    output: Output,
}

/// An image as JSON. The names of the fields are a promise.
#[derive(Serialize)]
struct Document<'a> {
    id: Text<&'a gantry_model::ImageId>,
    names: &'a [String],
    format: &'static str,
    size: u64,
    layers: usize,
    imported: At,
    last_used: At,
}

impl<'a> Document<'a> {
    fn of(row: &'a ImageRow) -> Self {
        Self {
            id: Text(&row.id),
            names: &row.names,
            format: row.format.as_str(),
            size: row.size,
            layers: row.layers.len(),
            imported: At(row.imported),
            last_used: At(row.last_used),
        }
    }
}

/// Lists images.
pub(crate) fn list(context: &Context, args: &List) -> Result<u8, Failure> {
    let images = context.look()?.image_list()?;
    json::to_stdout(|out| match args.output.form {
        _ if args.output.quiet => {
            images.iter().try_for_each(|row| writeln!(out, "{}", shown_id(row, args.output.full)))
        }
        Form::Table => table(out, &images, &args.output, gantry_engine::now()),
        form => json::items(out, form, images.iter().map(Document::of)),
    })?;
    Ok(exit::OK)
}

/// The beginning of an id that still is an image reference.
fn shown_id(row: &ImageRow, full: bool) -> String {
    if full { row.id.to_string() } else { format!("{}:{}", row.id.algorithm().as_str(), row.id.short()) }
}

/// One line per name; an image without one has one line all the same.
fn table(out: &mut dyn Write, images: &[ImageRow], output: &Output, now: Timestamp) -> io::Result<()> {
    let mut table = Table::new(&["ID", "NAME", "SIZE", "IMPORTED", "LAST USED"]);
    let shown_time = |at: Timestamp| if output.full { at.rfc3339().to_string() } else { time::relative(now, at) };
    let nameless = ["-".to_owned()];
    for row in images {
        let names = if row.names.is_empty() { &nameless[..] } else { &row.names };
        for name in names {
            table.row([
                shown_id(row, output.full),
                name.clone(),
                if output.full { row.size.to_string() } else { size::human(row.size) },
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
}

/// Removes images; one that a pod needs is never removed.
pub(crate) fn rm(context: &Context, args: &Rm) -> Result<u8, Failure> {
    let engine = context.open("image rm")?;
    Ok(context::each(&args.images, context.globals.debug, Asking::Existence, &mut |image| {
        let reference: ImageRef = image.parse()?;
        let removed = engine.image_rm(&reference)?;
        json::to_stdout(|out| removal(out, &removed))?;
        Ok(exit::OK)
    }))
}

/// Arguments of `image gc`.
#[derive(Debug, clap::Args)]
pub(crate) struct Gc {
    /// How long an image may go unused
    #[arg(long, value_parser = super::stop::seconds, default_value = "24h", value_name = "DURATION")]
    grace_period: Duration,
    /// Change nothing, say what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Removes images that have not been used for a while and that no pod needs.
pub(crate) fn gc(context: &Context, args: &Gc) -> Result<u8, Failure> {
    let engine = context.open("image gc")?;
    let report = engine.image_gc(args.grace_period, args.dry_run)?;
    json::to_stdout(|out| collected(out, &report, args.dry_run))?;
    Ok(exit::OK)
}

/// Arguments of `image cat-manifest`.
#[derive(Debug, clap::Args)]
pub(crate) struct CatManifest {
    /// Name or id of an image
    #[arg(value_name = "IMAGE")]
    image: String,
    /// Indent it
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pretty_print: bool,
    /// In the form of appc, as rkt's clients read it from gantryd
    #[arg(long)]
    appc: bool,
}

/// Prints an image's manifest.
fn cat_manifest(context: &Context, args: &CatManifest) -> Result<u8, Failure> {
    let reference: ImageRef = args.image.parse()?;
    let engine = context.look()?;
    let document =
        if args.appc { engine.image_appc_manifest(&reference)? } else { engine.image_manifest(&reference)? };
    json::to_stdout(|out| json::document(out, super::inspect::form(args.pretty_print), &document))?;
    Ok(exit::OK)
}

fn removal(out: &mut dyn Write, removed: &ImageRemoved) -> io::Result<()> {
    if let Some(name) = &removed.untagged {
        writeln!(out, "untagged {}", escape::text(name))?;
    } else {
        writeln!(out, "removed {}", removed.image.id)?;
    }
    freed(out, &removed.swept)
}

fn collected(out: &mut dyn Write, report: &ImageGc, dry_run: bool) -> io::Result<()> {
    for row in &report.removed {
        let name = row.names.first().map(|name| format!(" ({})", escape::text(name))).unwrap_or_default();
        writeln!(out, "{} {}{name}", if dry_run { "would remove" } else { "removed" }, row.id)?;
    }
    freed(out, &report.swept)
}

fn freed(out: &mut dyn Write, swept: &Swept) -> io::Result<()> {
    if swept.layers == 0 && swept.bytes == 0 {
        return Ok(());
    }
    writeln!(out, "freed {} in {} layers", size::human(swept.bytes), swept.layers)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn images_as_a_table_and_as_json() {
        let output = Output { form: Form::Table, no_legend: false, full: false, quiet: false };
        let mut out = Vec::new();
        let images = [row(&["docker.io/library/alpine:3", "x\n:1"]), row(&[])];
        table(&mut out, &images, &output, Timestamp(7_200_000_000_000)).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect()).collect();
        assert_eq!(lines[0], ["ID", "NAME", "SIZE", "IMPORTED", "LAST USED"]);
        assert_eq!(
            lines[1],
            ["sha256:abababababab", "docker.io/library/alpine:3", "5.0MiB", "2 hours ago", "1 hour ago"]
        );
        assert_eq!((lines[2][1], lines[3][1], lines.len()), ("x\\u{a}:1", "-", 4));

        let json = serde_json::to_value(Document::of(&images[0])).unwrap();
        let fields: Vec<&String> = json.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["format", "id", "imported", "last_used", "layers", "names", "size"]);
    }
}
