//! `gantry image inspect` and `gantry image history`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use gantry_engine::{HistoryStep, ImageDetails, LayerDetails};
use gantry_model::{ImageRef, Timestamp};
use serde::Serialize;

use crate::context::Context;
use crate::exit;
use crate::failure::Failure;
use crate::render::json::{self, At, Text};
use crate::render::table::Table;
use crate::render::{Form, Output, escape, size, time};

/// Arguments of `image inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// Names or ids of images
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
    /// Form of the answer
    #[arg(short = 'o', long = "output", alias = "format", value_enum, default_value_t, value_name = "FORM")]
    form: Form,
}

/// Arguments of `image history`.
#[derive(Debug, clap::Args)]
pub(crate) struct History {
    /// Name or id of an image
    #[arg(value_name = "IMAGE")]
    image: String,
    #[command(flatten)]
    output: Output,
}

/// An image as JSON. The names of the fields are a promise.
#[derive(Serialize)]
struct Document<'a> {
    id: Text<&'a gantry_model::ImageId>,
    names: &'a [String],
    format: &'static str,
    os: &'a str,
    architecture: &'a str,
    variant: Option<&'a str>,
    created: Option<&'a str>,
    author: Option<&'a str>,
    imported: At,
    last_used: At,
    size: u64,
    disk_size: u64,
    user: Option<&'a str>,
    working_dir: Option<&'a str>,
    entrypoint: &'a [String],
    cmd: &'a [String],
    env: Vec<String>,
    exposed_ports: &'a [String],
    volumes: &'a [String],
    stop_signal: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
    layers: Vec<Layer<'a>>,
}

#[derive(Serialize)]
struct Layer<'a> {
    diff_id: Text<&'a gantry_model::Digest>,
    blob: Text<&'a gantry_model::Digest>,
    size: u64,
    entries: u64,
}

impl<'a> Layer<'a> {
    fn of(layer: &'a LayerDetails) -> Self {
        Self { diff_id: Text(&layer.diff_id), blob: Text(&layer.blob), size: layer.size, entries: layer.entries }
    }
}

impl<'a> Document<'a> {
    fn of(image: &'a ImageDetails) -> Self {
        let (row, config) = (&image.row, &image.config);
        Self {
            id: Text(&row.id),
            names: &row.names,
            format: row.format.as_str(),
            os: &config.os,
            architecture: &config.architecture,
            variant: config.variant.as_deref(),
            created: image.created.as_deref(),
            author: image.author.as_deref(),
            imported: At(row.imported),
            last_used: At(row.last_used),
            size: row.size,
            disk_size: disk_size(image),
            user: config.user.as_deref(),
            working_dir: config.working_dir.as_deref(),
            entrypoint: &config.entrypoint,
            cmd: &config.cmd,
            env: config.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            exposed_ports: &config.exposed_ports,
            volumes: &config.volumes,
            stop_signal: image.stop_signal.as_deref(),
            labels: &config.labels,
            layers: image.layers.iter().map(Layer::of).collect(),
        }
    }
}

fn disk_size(image: &ImageDetails) -> u64 {
    image.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
}

/// Shows images: as lines of KEY=VALUE, or as a JSON array.
pub(crate) fn inspect(context: &Context, args: &Inspect) -> Result<u8, Failure> {
    let engine = context.look()?;
    let mut found = Vec::new();
    for text in &args.images {
        found.push(engine.image_inspect(&text.parse::<ImageRef>()?)?);
    }
    json::to_stdout(|out| match args.form {
        Form::Table => found.iter().enumerate().try_for_each(|(i, image)| {
            if i > 0 {
                writeln!(out)?;
            }
            lines(out, image)
        }),
        form => json::items(out, form, found.iter().map(Document::of)),
    })?;
    Ok(exit::OK)
}

fn lines(out: &mut dyn Write, image: &ImageDetails) -> io::Result<()> {
    let (row, config) = (&image.row, &image.config);
    let mut line = |key: &str, value: &str| writeln!(out, "{key}={}", escape::text(value));
    line("id", &row.id.to_string())?;
    row.names.iter().try_for_each(|name| line("name", name))?;
    line("format", row.format.as_str())?;
    if let Some(platform) = config.platform() {
        line("platform", &platform.to_string())?;
    }
    for (key, value) in [("created", &image.created), ("author", &image.author), ("user", &config.user)] {
        value.iter().try_for_each(|value| line(key, value))?;
    }
    config.working_dir.iter().try_for_each(|dir| line("working-dir", dir))?;
    for (key, words) in [("entrypoint", &config.entrypoint), ("cmd", &config.cmd)] {
        if !words.is_empty() {
            line(key, &serde_json::to_string(words).map_err(io::Error::from)?)?;
        }
    }
    config.env.iter().try_for_each(|(name, value)| line("env", &format!("{name}={value}")))?;
    config.exposed_ports.iter().try_for_each(|port| line("port", port))?;
    config.volumes.iter().try_for_each(|volume| line("volume", volume))?;
    image.stop_signal.iter().try_for_each(|signal| line("stop-signal", signal))?;
    config.labels.iter().try_for_each(|(name, value)| line("label", &format!("{name}={value}")))?;
    line("size", &size::human(row.size))?;
    line("disk-size", &size::human(disk_size(image)))?;
    image.layers.iter().try_for_each(|layer| line("layer", &format!("{},{}", layer.diff_id, size::human(layer.size))))
}

/// A step as JSON. The names of the fields are a promise.
#[derive(Serialize)]
struct Step<'a> {
    created: Option<&'a str>,
    created_by: &'a str,
    comment: &'a str,
    layer: Option<Layer<'a>>,
}

/// Shows the steps that made an image, the newest first.
pub(crate) fn history(context: &Context, args: &History) -> Result<u8, Failure> {
    let image = context.look()?.image_inspect(&args.image.parse::<ImageRef>()?)?;
    let steps = || image.history.iter().rev();
    json::to_stdout(|out| match args.output.form {
        _ if args.output.quiet => {
            steps().filter_map(|step| step.layer.as_ref()).try_for_each(|layer| writeln!(out, "{}", layer.diff_id))
        }
        Form::Table => table(out, steps(), &args.output, gantry_engine::now()),
        form => json::items(out, form, steps().map(step_document)),
    })?;
    Ok(exit::OK)
}

fn step_document(step: &HistoryStep) -> Step<'_> {
    Step {
        created: step.created.as_deref(),
        created_by: &step.created_by,
        comment: &step.comment,
        layer: step.layer.as_ref().map(Layer::of),
    }
}

fn table<'a>(
    out: &mut dyn Write,
    steps: impl Iterator<Item = &'a HistoryStep>,
    output: &Output,
    now: Timestamp,
) -> io::Result<()> {
    /// Longer commands are cut, as docker does.
    const MAX_COMMAND: usize = 40;
    let mut table = Table::new(&["LAYER", "CREATED", "SIZE", "CREATED BY"]);
    for step in steps {
        let made = step.created.as_deref().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let created = match made.and_then(|at| i64::try_from(at.as_nanosecond()).ok()) {
            Some(at) if !output.full => time::relative(now, Timestamp(at)),
            _ => step.created.clone().unwrap_or_else(|| "-".to_owned()),
        };
        let layer = step.layer.as_ref();
        let id = layer.map_or("-".to_owned(), |layer| {
            if output.full { layer.diff_id.to_string() } else { layer.diff_id.short().to_owned() }
        });
        let bytes = layer.map_or(0, |layer| layer.size);
        let command = match step.created_by.char_indices().nth(MAX_COMMAND) {
            Some((at, _)) if !output.full => format!("{}…", &step.created_by[..at]),
            _ => step.created_by.clone(),
        };
        table.row([id, created, if output.full { bytes.to_string() } else { size::human(bytes) }, command]);
    }
    table.write(out, !output.no_legend)
}
