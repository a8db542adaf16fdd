//! Volumes in the JSON of the pod manifest.

use gantry_model::id::IdError;
use gantry_model::spec;
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Volume {
    name: String,
    kind: VolumeKind,
    #[serde(default)]
    read_only: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
enum VolumeKind {
    Host {
        source: String,
        #[serde(default)]
        recursive: bool,
    },
    Named {
        volume: String,
    },
    Anonymous,
    Empty {
        #[serde(default = "usual_mode")]
        mode: u32,
        #[serde(default)]
        uid: u32,
        #[serde(default)]
        gid: u32,
    },
    Image {
        image: String,
        #[serde(default, skip_serializing_if = "String::is_empty")]
        sub_path: String,
    },
}

/// The JSON of a volume.
#[expect(clippy::expect_used, reason = "serialising plain structs with string keys into memory cannot fail")]
pub(crate) fn to_value(volume: &spec::VolumeSpec) -> serde_json::Value {
    serde_json::to_value(Volume::from(volume)).expect("a manifest is plain data with string keys")
}

fn usual_mode() -> u32 {
    0o755
}

impl From<&spec::VolumeSpec> for Volume {
    fn from(volume: &spec::VolumeSpec) -> Self {
        let spec::VolumeSpec { name, kind, read_only } = volume;
        let kind = match kind {
            spec::VolumeKind::Host { source, recursive } => {
                VolumeKind::Host { source: source.clone(), recursive: *recursive }
            }
            spec::VolumeKind::Named { volume } => VolumeKind::Named { volume: volume.to_string() },
            spec::VolumeKind::Anonymous => VolumeKind::Anonymous,
            spec::VolumeKind::Empty { mode, uid, gid } => VolumeKind::Empty { mode: *mode, uid: *uid, gid: *gid },
            spec::VolumeKind::Image { image, sub_path, layers: _ } => {
                VolumeKind::Image { image: image.clone(), sub_path: sub_path.clone() }
            }
        };
        Self { name: name.to_string(), kind, read_only: *read_only }
    }
}

impl TryFrom<Volume> for spec::VolumeSpec {
    type Error = IdError;

    fn try_from(volume: Volume) -> Result<Self, IdError> {
        let kind = match volume.kind {
            VolumeKind::Host { source, recursive } => spec::VolumeKind::Host { source, recursive },
            VolumeKind::Named { volume } => spec::VolumeKind::Named { volume: volume.parse()? },
            VolumeKind::Anonymous => spec::VolumeKind::Anonymous,
            VolumeKind::Empty { mode, uid, gid } => spec::VolumeKind::Empty { mode, uid, gid },
            VolumeKind::Image { image, sub_path } => spec::VolumeKind::Image { image, sub_path, layers: Vec::new() },
        };
        Ok(Self { name: volume.name.parse()?, kind, read_only: volume.read_only })
    }
}
