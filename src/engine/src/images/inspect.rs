//! `image inspect` and `image history`: an image's configuration and its size on disk. Also `image tag`.

use std::collections::HashMap;

use gantry_fetch::config::{self, ImageConfig};
use gantry_fetch::source::MAX_DOCUMENT;
use gantry_model::{Digest, ImageId, ImageRef};
use gantry_store::{ImageRow, NewImage};
use serde::Deserialize;

use crate::images::store;
use crate::{Engine, ImageError};

/// An image, as `image inspect` shows it.
#[derive(Debug, Clone)]
pub struct ImageDetails {
    /// Its row.
    pub row: ImageRow,
    /// The execution settings.
    pub config: ImageConfig,
    /// The stop signal as it is written.
    pub stop_signal: Option<String>,
    /// The time of its creation (RFC 3339, as it is written).
    pub created: Option<String>,
    /// The author.
    pub author: Option<String>,
    /// Its layers, bottom first.
    pub layers: Vec<LayerDetails>,
    /// The build steps, oldest first.
    pub history: Vec<HistoryStep>,
}

/// A layer of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerDetails {
    /// The digest of its tar archive.
    pub diff_id: Digest,
    /// The digest of the fetched, compressed layer.
    pub blob: Digest,
    /// Bytes of its files on the disk.
    pub size: u64,
    /// Number of its files, directories and links.
    pub entries: u64,
}

/// A step that made an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryStep {
    /// The time (RFC 3339, as it is written).
    pub created: Option<String>,
    /// The command.
    pub created_by: String,
    /// A remark.
    pub comment: String,
    /// The layer of the step; none when the step changed the configuration alone.
    pub layer: Option<LayerDetails>,
}

#[derive(Deserialize, Default)]
struct ConfigJson {
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    author: Option<String>,
    #[serde(default)]
    history: Option<Vec<HistoryJson>>,
    #[serde(default)]
    config: Option<RunConfigJson>,
}

#[derive(Deserialize, Default)]
struct RunConfigJson {
    #[serde(default, rename = "StopSignal")]
    stop_signal: Option<String>,
}

#[derive(Deserialize)]
struct HistoryJson {
    #[serde(default)]
    created: Option<String>,
    #[serde(default)]
    created_by: Option<String>,
    #[serde(default)]
    comment: Option<String>,
    #[serde(default)]
    empty_layer: bool,
}

impl Engine {
    /// Everything about an image.
    ///
    /// # Errors
    /// [`ImageError`], also when its configuration is lost.
    pub fn image_inspect(&self, reference: &ImageRef) -> Result<ImageDetails, ImageError> {
        let row = self.image_find(reference)?;
        let damaged = |why: String| ImageError::Damaged { id: row.id.clone(), why };
        let bytes = self.store().blob(&row.config, MAX_DOCUMENT).map_err(store)?;
        let bytes = bytes.ok_or_else(|| damaged("its configuration is not there".to_owned()))?;
        let config = config::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
        let document: ConfigJson = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let layers = self.layers(&row)?;
        let history = steps(document.history.unwrap_or_default(), &layers);
        let stop_signal = document.config.unwrap_or_default().stop_signal.filter(|signal| !signal.is_empty());
        let (created, author) = (document.created, document.author);
        Ok(ImageDetails { row, config, stop_signal, created, author, layers, history })
    }

    fn layers(&self, row: &ImageRow) -> Result<Vec<LayerDetails>, ImageError> {
        let mut layers = Vec::with_capacity(row.layers.len());
        for layer in &row.layers {
            // A lost layer has no size; doctor reports it.
            let known = self.store().layer(&layer.chain).map_err(store)?;
            let (size, entries) = known.map_or((0, 0), |known| (known.size, known.entries));
            layers.push(LayerDetails { diff_id: layer.diff_id.clone(), blob: layer.blob.clone(), size, entries });
        }
        Ok(layers)
    }

    /// The bytes of each image's files on the disk. A layer counts for every image that has it.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_disk_sizes(&self, images: &[ImageRow]) -> Result<HashMap<ImageId, u64>, ImageError> {
        let mut of_layers: HashMap<&Digest, u64> = HashMap::new();
        let mut sizes = HashMap::new();
        for row in images {
            let mut size = 0u64;
            for layer in &row.layers {
                let known = match of_layers.get(&layer.chain) {
                    Some(known) => *known,
                    None => {
                        let row = self.store().layer(&layer.chain).map_err(store)?;
                        *of_layers.entry(&layer.chain).or_insert(row.map_or(0, |row| row.size))
                    }
                };
                size = size.saturating_add(known);
            }
            sizes.insert(row.id.clone(), size);
        }
        Ok(sizes)
    }

    /// Gives an image a further name. Returns the canonical name, and the image that had it.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_tag(&self, source: &ImageRef, target: &str) -> Result<(String, Option<ImageId>), ImageError> {
        crate::error::need_root("name an image")?;
        let name = new_name(target).ok_or_else(|| ImageError::Name(gantry_model::id::shown(target)))?;
        let row = self.image_find(source)?;
        let before = self.store().image_by_name(&name).map_err(store)?.map(|image| image.id);
        let image = NewImage {
            id: row.id.clone(),
            config: row.config,
            format: row.format,
            layers: row.layers,
            size: row.size,
            names: vec![name.clone()],
        };
        self.store().commit_image(&image, gantry_store::now()).map_err(store)?;
        Ok((name, before.filter(|before| *before != row.id)))
    }
}

/// The canonical form of a name for an image: with a tag, without a digest.
fn new_name(text: &str) -> Option<String> {
    match text.parse().ok()? {
        ImageRef::Registry(name) if name.digest.is_none() => Some(name.to_string()),
        ImageRef::Short(name) if name.digest.is_none() && name.tag.is_some() => Some(name.to_string()),
        // Digits would select an id.
        ImageRef::Short(name) if name.digest.is_none() && name.id_prefix().is_none() => Some(format!("{name}:latest")),
        // Not a name, or a name with a digest.
        _ => None,
    }
}

/// Pairs the steps with their layers: steps without a layer say so.
fn steps(steps: Vec<HistoryJson>, layers: &[LayerDetails]) -> Vec<HistoryStep> {
    let mut left = layers.iter();
    let mut paired: Vec<HistoryStep> = steps
        .into_iter()
        .map(|step| HistoryStep {
            created: step.created,
            created_by: step.created_by.unwrap_or_default(),
            comment: step.comment.unwrap_or_default(),
            layer: if step.empty_layer { None } else { left.next().cloned() },
        })
        .collect();
    // Documents may omit steps; every layer is shown.
    paired.extend(left.map(|layer| HistoryStep {
        created: None,
        created_by: String::new(),
        comment: String::new(),
        layer: Some(layer.clone()),
    }));
    paired
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_to_add_are_validated() {
        let digest = format!("sha256:{}", "ab".repeat(32));
        for (text, want) in [
            ("mine", Some("mine:latest")),
            ("mine:2", Some("mine:2")),
            ("reg.example/mine", Some("reg.example/mine:latest")),
            ("docker://alpine:3", Some("docker.io/library/alpine:3")),
            ("deadbeef", None),
            ("deadbeef:1", Some("deadbeef:1")),
            (&format!("reg.example/mine@{digest}"), None),
            (digest.as_str(), None),
            ("./file", None),
            ("UPPER", None),
        ] {
            assert_eq!(new_name(text).as_deref(), want, "{text}");
        }
    }

    #[test]
    fn history_steps_are_paired_with_layers() {
        let layer = |n: u64| {
            let digest: Digest = format!("sha256:{n:064x}").parse().unwrap();
            LayerDetails { diff_id: digest.clone(), blob: digest, size: n, entries: 1 }
        };
        let step = |by: &str, empty_layer| HistoryJson {
            created: None,
            created_by: Some(by.into()),
            comment: None,
            empty_layer,
        };
        let shown = |steps: Vec<HistoryStep>| -> Vec<(String, Option<u64>)> {
            steps.into_iter().map(|step| (step.created_by, step.layer.map(|layer| layer.size))).collect()
        };
        let all = steps(vec![step("a", false), step("env", true), step("b", false)], &[layer(1), layer(2)]);
        assert_eq!(shown(all), [("a".into(), Some(1)), ("env".into(), None), ("b".into(), Some(2))]);
        assert_eq!(
            shown(steps(vec![step("a", false), step("b", false)], &[])),
            [("a".into(), None), ("b".into(), None)]
        );
        assert_eq!(shown(steps(vec![], &[layer(3)])), [(String::new(), Some(3))]);
    }
}
