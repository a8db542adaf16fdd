//! Images, their layers and their history as JSON. The names of the fields are a promise.

use std::collections::BTreeMap;

use gantry_engine::{HistoryStep, ImageDetails, ImageRow, LayerDetails};
use gantry_model::{Digest, ImageId};
use serde::Serialize;

use super::json::{DisplayJson, TimeJson};

/// The fields that `image list` and `image inspect` share.
#[derive(Serialize)]
struct ImageSummaryJson<'a> {
    id: DisplayJson<&'a ImageId>,
    names: &'a [String],
    format: &'static str,
    size: u64,
    disk_size: u64,
    imported: TimeJson,
    last_used: TimeJson,
}

impl<'a> ImageSummaryJson<'a> {
    fn from_row(row: &'a ImageRow, disk_size: u64) -> Self {
        Self {
            id: DisplayJson(&row.id),
            names: &row.names,
            format: row.format.as_str(),
            size: row.size,
            disk_size,
            imported: TimeJson(row.imported),
            last_used: TimeJson(row.last_used),
        }
    }
}

/// An element of `image list`.
#[derive(Serialize)]
pub(crate) struct ImageListJson<'a> {
    #[serde(flatten)]
    summary: ImageSummaryJson<'a>,
    layers: usize,
}

impl<'a> ImageListJson<'a> {
    /// `disk_size` is the size of the unpacked layers in bytes.
    pub(crate) fn from_row(row: &'a ImageRow, disk_size: u64) -> Self {
        Self { summary: ImageSummaryJson::from_row(row, disk_size), layers: row.layers.len() }
    }
}

/// An element of `image inspect`.
#[derive(Serialize)]
pub(crate) struct ImageInspectJson<'a> {
    #[serde(flatten)]
    summary: ImageSummaryJson<'a>,
    os: &'a str,
    architecture: &'a str,
    variant: Option<&'a str>,
    created: Option<&'a str>,
    author: Option<&'a str>,
    user: Option<&'a str>,
    working_dir: Option<&'a str>,
    entrypoint: &'a [String],
    cmd: &'a [String],
    env: Vec<String>,
    exposed_ports: &'a [String],
    volumes: &'a [String],
    stop_signal: Option<&'a str>,
    labels: &'a BTreeMap<String, String>,
    layers: Vec<LayerJson<'a>>,
}

impl<'a> From<&'a ImageDetails> for ImageInspectJson<'a> {
    fn from(image: &'a ImageDetails) -> Self {
        let config = &image.config;
        Self {
            summary: ImageSummaryJson::from_row(&image.row, disk_size(image)),
            os: &config.os,
            architecture: &config.architecture,
            variant: config.variant.as_deref(),
            created: image.created.as_deref(),
            author: image.author.as_deref(),
            user: config.user.as_deref(),
            working_dir: config.working_dir.as_deref(),
            entrypoint: &config.entrypoint,
            cmd: &config.cmd,
            env: config.env.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            exposed_ports: &config.exposed_ports,
            volumes: &config.volumes,
            stop_signal: image.stop_signal.as_deref(),
            labels: &config.labels,
            layers: image.layers.iter().map(LayerJson::from).collect(),
        }
    }
}

/// The size of an image's unpacked layers in bytes.
pub(crate) fn disk_size(image: &ImageDetails) -> u64 {
    image.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.size))
}

/// A layer in `image inspect` and `image history`.
#[derive(Serialize)]
struct LayerJson<'a> {
    diff_id: DisplayJson<&'a Digest>,
    blob: DisplayJson<&'a Digest>,
    size: u64,
    entries: u64,
}

impl<'a> From<&'a LayerDetails> for LayerJson<'a> {
    fn from(layer: &'a LayerDetails) -> Self {
        Self {
            diff_id: DisplayJson(&layer.diff_id),
            blob: DisplayJson(&layer.blob),
            size: layer.size,
            entries: layer.entries,
        }
    }
}

/// An element of `image history`.
#[derive(Serialize)]
pub(crate) struct HistoryStepJson<'a> {
    created: Option<&'a str>,
    created_by: &'a str,
    comment: &'a str,
    layer: Option<LayerJson<'a>>,
}

impl<'a> From<&'a HistoryStep> for HistoryStepJson<'a> {
    fn from(step: &'a HistoryStep) -> Self {
        Self {
            created: step.created.as_deref(),
            created_by: &step.created_by,
            comment: &step.comment,
            layer: step.layer.as_ref().map(LayerJson::from),
        }
    }
}
