//! `gantry df`.

use std::io::{self, Write};

use gantry_engine::{PodDiskUsage, StoreUsage};
use serde::Serialize;

use crate::commands::RunCommand;
use crate::context::Context;
use crate::exit::ExitStatus;
use crate::failure::Failure;
use crate::render::json::{self, DisplayJson};
use crate::render::table::Table;
use crate::render::{OutputFlag, OutputFormat, size};

/// Arguments of `df`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Sizes are allocated bytes of the disk; those of images are the sums of their files. \
    'gantry prune' frees what is reclaimable.")]
pub(crate) struct Df {
    /// Also print every image, app and volume
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    output: OutputFlag,
}

/// A kind of object as JSON. The field names are stable.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct KindJson {
    count: usize,
    /// Those in use.
    active: usize,
    bytes: u64,
    reclaimable: u64,
}

/// The disk usage as JSON. The field names are stable.
#[derive(Serialize)]
struct DfJson<'a> {
    images: KindJson,
    pods: KindJson,
    volumes: KindJson,
    image_list: Vec<ImageJson<'a>>,
    pod_list: Vec<PodJson<'a>>,
    volume_list: Vec<VolumeJson<'a>>,
}

#[derive(Serialize)]
struct ImageJson<'a> {
    id: String,
    names: &'a [String],
    shared: u64,
    unique: u64,
    pods: usize,
}

#[derive(Serialize)]
struct PodJson<'a> {
    id: DisplayJson<gantry_model::PodId>,
    name: Option<String>,
    state: &'static str,
    bytes: u64,
    apps: Vec<AppJson<'a>>,
    /// Whether the directory was read to its end.
    complete: bool,
}

#[derive(Serialize)]
struct AppJson<'a> {
    name: &'a str,
    writable: u64,
    logs: u64,
}

#[derive(Serialize)]
struct VolumeJson<'a> {
    name: &'a str,
    bytes: u64,
    pods: Vec<DisplayJson<gantry_model::PodId>>,
    complete: bool,
}

/// Prints what images, pods and volumes use of the disk.
impl RunCommand for Df {
    fn run(&self, context: &Context) -> Result<ExitStatus, Failure> {
        let usage = context.open_to_read()?.disk_usage()?;
        json::to_stdout(|out| match self.output.format {
            OutputFormat::Table if self.verbose => write_details(out, &usage),
            OutputFormat::Table => write_summary(out, &usage),
            format => json::write_document(out, format, &document(&usage)),
        })?;
        Ok(ExitStatus::OK)
    }
}

fn images(usage: &StoreUsage) -> KindJson {
    let active = usage.images.iter().filter(|image| image.pods > 0).count();
    let (bytes, reclaimable) = (usage.layer_bytes, usage.reclaimable_layer_bytes);
    KindJson { count: usage.images.len(), active, bytes, reclaimable }
}

fn pods(usage: &StoreUsage) -> KindJson {
    let sum = |pods: &mut dyn Iterator<Item = &PodDiskUsage>| pods.map(|pod| pod.total.bytes).sum();
    KindJson {
        count: usage.pods.len(),
        active: usage.pods.iter().filter(|pod| !pod.is_reclaimable()).count(),
        bytes: sum(&mut usage.pods.iter()),
        reclaimable: sum(&mut usage.pods.iter().filter(|pod| pod.is_reclaimable())),
    }
}

fn volumes(usage: &StoreUsage) -> KindJson {
    let unused = || usage.volumes.iter().filter(|volume| volume.row.pods.is_empty());
    KindJson {
        count: usage.volumes.len(),
        active: usage.volumes.len() - unused().count(),
        bytes: usage.volumes.iter().map(|volume| volume.usage.bytes).sum(),
        reclaimable: unused().map(|volume| volume.usage.bytes).sum(),
    }
}

fn write_summary(out: &mut dyn Write, usage: &StoreUsage) -> io::Result<()> {
    let mut table = Table::new(&["TYPE", "COUNT", "ACTIVE", "SIZE", "RECLAIMABLE"]);
    for (kind, row) in [("images", images(usage)), ("pods", pods(usage)), ("volumes", volumes(usage))] {
        let share = (row.reclaimable * 100).checked_div(row.bytes).map(|share| format!(" ({share}%)"));
        let reclaimable = format!("{}{}", size::human(row.reclaimable), share.unwrap_or_default());
        let (count, active) = (row.count.to_string(), row.active.to_string());
        table.row([kind.to_owned(), count, active, size::human(row.bytes), reclaimable]);
    }
    table.write(out, true)
}

fn write_details(out: &mut dyn Write, usage: &StoreUsage) -> io::Result<()> {
    let mut table = Table::new(&["IMAGE", "NAME", "SIZE", "SHARED", "UNIQUE", "PODS"]);
    for image in &usage.images {
        table.row([
            image.row.id.short().to_string(),
            image.row.names.first().cloned().unwrap_or_default(),
            size::human(image.shared_bytes + image.unique_bytes),
            size::human(image.shared_bytes),
            size::human(image.unique_bytes),
            image.pods.to_string(),
        ]);
    }
    table.write(out, true)?;
    writeln!(out)?;
    let mut table = Table::new(&["POD", "STATE", "APP", "WRITABLE", "LOGS", "TOTAL"]);
    for pod in &usage.pods {
        let id = pod.row.id.to_string();
        let id = id.split('-').next().unwrap_or_default().to_owned();
        let total = [id, pod.row.phase.name().to_string(), String::new(), String::new(), String::new()];
        table.row(total.into_iter().chain([bound(pod.total.bytes, pod.total.is_complete)]));
        for (name, app) in &pod.apps {
            let (writable, logs) = (size::human(app.writable.bytes), size::human(app.logs.bytes));
            table.row([String::new(), String::new(), name.to_string(), writable, logs, String::new()]);
        }
    }
    table.write(out, true)?;
    writeln!(out)?;
    let mut table = Table::new(&["VOLUME", "SIZE", "PODS"]);
    for volume in &usage.volumes {
        let bytes = bound(volume.usage.bytes, volume.usage.is_complete);
        table.row([volume.row.name.to_string(), bytes, volume.row.pods.len().to_string()]);
    }
    table.write(out, true)
}

/// A size that may be a lower bound.
fn bound(bytes: u64, is_complete: bool) -> String {
    format!("{}{}", if is_complete { "" } else { ">" }, size::human(bytes))
}

fn document(usage: &StoreUsage) -> DfJson<'_> {
    let image_list = usage.images.iter().map(|image| ImageJson {
        id: image.row.id.to_string(),
        names: &image.row.names,
        shared: image.shared_bytes,
        unique: image.unique_bytes,
        pods: image.pods,
    });
    let pod_list = usage.pods.iter().map(|pod| PodJson {
        id: DisplayJson(pod.row.id),
        name: pod.row.name.as_ref().map(ToString::to_string),
        state: pod.row.phase.name().as_str(),
        bytes: pod.total.bytes,
        apps: pod.apps.iter().map(app_json).collect(),
        complete: pod.total.is_complete,
    });
    let volume_list = usage.volumes.iter().map(|volume| VolumeJson {
        name: volume.row.name.as_str(),
        bytes: volume.usage.bytes,
        pods: volume.row.pods.iter().copied().map(DisplayJson).collect(),
        complete: volume.usage.is_complete,
    });
    DfJson {
        images: images(usage),
        pods: pods(usage),
        volumes: volumes(usage),
        image_list: image_list.collect(),
        pod_list: pod_list.collect(),
        volume_list: volume_list.collect(),
    }
}

fn app_json<'a>((name, app): (&'a gantry_model::AppName, &gantry_engine::AppDiskUsage)) -> AppJson<'a> {
    AppJson { name: name.as_str(), writable: app.writable.bytes, logs: app.logs.bytes }
}
