//! Volumes that are images. A plan has the id and the layers of each, so that it does not change with the name; the row
//! of an app that mounts one protects the image.

use std::collections::BTreeSet;

use gantry_contract::plan::Mount;
use gantry_fetch::{Progress, PullPolicy};
use gantry_model::id::shown;
use gantry_model::spec::{VolumeKind, VolumeSpec};
use gantry_model::{AppName, ErrorKind, ImageId, ImageRef, PodSpec};
use gantry_store::Layout;

use crate::pods::plan::{MAX_LAYERS, PlanError};
use crate::{Engine, PrepareError};

impl Engine {
    /// The volumes of a pod with the id and the layers of each image, which is fetched as the policy says.
    pub(crate) fn resolve_image_volumes(
        &self,
        spec: &PodSpec,
        policy: PullPolicy,
        progress: &dyn Progress,
    ) -> Result<Vec<VolumeSpec>, PrepareError> {
        spec.volumes.iter().map(|volume| self.resolve_image_volume(spec, volume, policy, progress)).collect()
    }

    fn resolve_image_volume(
        &self,
        spec: &PodSpec,
        volume: &VolumeSpec,
        policy: PullPolicy,
        progress: &dyn Progress,
    ) -> Result<VolumeSpec, PrepareError> {
        let VolumeKind::Image { image, sub_path, layers: _ } = &volume.kind else { return Ok(volume.clone()) };
        let description = || describe(spec, &volume.name);
        let reference: ImageRef =
            image.parse().map_err(|source| PrepareError::VolumeReference { description: description(), source })?;
        let row = self
            .fetch(&reference, policy, None, progress)
            .map_err(|source| PrepareError::FetchVolume { description: description(), source: Box::new(source) })?
            .image;
        let layers: Vec<String> = row.layers.iter().rev().map(|layer| Layout::tree_name(&layer.chain)).collect();
        if layers.is_empty() || layers.len() > MAX_LAYERS {
            let why = format!(
                "volume '{}' cannot be the image '{}': it has {} layers, and 1 to {MAX_LAYERS} can be mounted",
                volume.name,
                shown(image),
                layers.len()
            );
            return Err(PlanError::new(ErrorKind::Invalid, why).into());
        }
        let kind = VolumeKind::Image { image: row.id.to_string(), sub_path: sub_path.clone(), layers };
        Ok(VolumeSpec { kind, ..volume.clone() })
    }
}

/// A volume, and where the first app mounts it: the subject of a sentence.
fn describe(spec: &PodSpec, volume: &AppName) -> String {
    let mut mounts = spec.apps.iter().flat_map(|app| app.mounts.iter().map(move |mount| (app, mount)));
    match mounts.find(|(_, mount)| mount.volume == *volume) {
        Some((app, mount)) => format!("volume '{volume}' of app '{}', at '{}',", app.name, shown(&mount.target)),
        None => format!("volume '{volume}'"),
    }
}

/// The images among the volumes of a plan that an app mounts.
pub(crate) fn images<'a>(mounts: &[Mount], volumes: impl IntoIterator<Item = &'a VolumeSpec>) -> BTreeSet<ImageId> {
    let image = |volume: &VolumeSpec| match &volume.kind {
        VolumeKind::Image { image, .. } => image.parse().ok(),
        VolumeKind::Host { .. } | VolumeKind::Named { .. } | VolumeKind::Anonymous | VolumeKind::Empty { .. } => None,
    };
    let is_mounted = |volume: &&VolumeSpec| mounts.iter().any(|mount| mount.volume == volume.name.as_str());
    volumes.into_iter().filter(is_mounted).filter_map(image).collect()
}
