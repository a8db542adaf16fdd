//! `gantry image inspect` and `gantry image history`.

use std::io::{self, Write};

use gantry_engine::{HistoryStep, ImageDetails};
use gantry_model::{ImageRef, Timestamp};

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::{CommandKind, ExitStatus};
use crate::failure::Failure;
use crate::render::image::{HistoryStepJson, ImageInspectJson, disk_size};
use crate::render::json;
use crate::render::table::Table;
use crate::render::{Output, OutputFlag, OutputFormat, escape, size, time};

/// Arguments of `image inspect`.
#[derive(Debug, clap::Args)]
pub(crate) struct Inspect {
    /// Names or ids of images
    #[arg(value_name = "IMAGE", required = true)]
    images: Vec<String>,
    #[command(flatten)]
    output: OutputFlag,
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

/// Shows the images that exist, as KEY=VALUE lines or as a JSON array.
impl RunCommand for Inspect {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let engine = context.open_to_read()?;
        let mut found = Vec::new();
        let worst = context.for_each(&self.images, CommandKind::Query, &mut |text| {
            found.push(engine.image_inspect(&text.parse::<ImageRef>()?)?);
            Ok(ExitStatus::OK)
        });
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table => found.iter().enumerate().try_for_each(|(i, image)| {
                if i > 0 {
                    writeln!(out)?;
                }
                lines(out, image)
            }),
            format => json::write_items(out, format, found.iter().map(ImageInspectJson::from)),
        })?;
        Ok(worst)
    }
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

/// Shows the build history of an image, newest step first.
impl RunCommand for History {
    const KIND: CommandKind = CommandKind::Query;

    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let image = context.open_to_read()?.image_inspect(&self.image.parse::<ImageRef>()?)?;
        let steps = || image.history.iter().rev();
        json::to_stdout(|out| match self.output.flag.format {
            _ if self.output.quiet => {
                steps().filter_map(|step| step.layer.as_ref()).try_for_each(|layer| writeln!(out, "{}", layer.diff_id))
            }
            OutputFormat::Table => table(out, steps(), &self.output, gantry_engine::now()),
            format => json::write_items(out, format, steps().map(HistoryStepJson::from)),
        })?;
        Ok(ExitStatus::OK)
    }
}

fn table<'a>(
    out: &mut dyn Write,
    steps: impl Iterator<Item = &'a HistoryStep>,
    output: &Output,
    now: Timestamp,
) -> io::Result<()> {
    /// Longer commands are truncated, as docker does.
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
