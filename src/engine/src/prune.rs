//! `prune`: removes what is not in use at once: ended pods, images and volumes without pods.

use std::collections::HashSet;

use gantry_model::query::PodQuery;
use gantry_model::{Digest, PodId, VolumeName};
use gantry_store::{ImageRow, PodRow, RemoveImageError, VolumeRow};

use crate::error::need_root;
use crate::usage::has_ended;
use crate::{Engine, EngineError, RunningPod};

/// Selects what `prune` removes among what is not in use.
pub struct PruneOptions<'a> {
    /// Ended pods.
    pub pods: &'a dyn Fn(&PodRow) -> bool,
    /// Images that no pod uses.
    pub images: &'a dyn Fn(&ImageRow) -> bool,
    /// Volumes that no pod mounts.
    pub volumes: &'a dyn Fn(&VolumeRow) -> bool,
    /// Change nothing; report what would be removed.
    pub dry_run: bool,
}

/// What `prune` has removed, or would remove.
#[derive(Debug, Default)]
pub struct PruneReport {
    /// The pods, oldest first.
    pub pods: Vec<PodId>,
    /// The images, by the time of their import.
    pub images: Vec<ImageRow>,
    /// The volumes, by name.
    pub volumes: Vec<VolumeName>,
    /// Bytes of the disk that were freed, or would be.
    pub bytes: u64,
    /// Why selected objects were not removed, or not all space was freed. They stay as they are, or are removed by the
    /// next `prune` or `gc`.
    pub failures: Vec<EngineError>,
}

impl PruneReport {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.images.is_empty() && self.volumes.is_empty() && self.failures.is_empty()
    }
}

impl Engine {
    /// Removes the selected pods that have ended, then the selected images and volumes that no pod has.
    ///
    /// # Errors
    /// [`EngineError`] when nothing was removed because the objects cannot be listed. Other failures are in the report.
    pub fn prune(&self, options: &PruneOptions<'_>) -> Result<PruneReport, EngineError> {
        need_root("remove pods, images and volumes").map_err(EngineError::from_cause)?;
        let mut report = PruneReport::default();
        let pruned = self
            .prune_pods(options, &mut report)
            .and_then(|()| self.prune_images(options, &mut report))
            .and_then(|()| self.prune_volumes(options, &mut report));
        match pruned {
            Err(error) if report.is_empty() => return Err(error),
            pruned => report.failures.extend(pruned.err()),
        }
        Ok(report)
    }

    fn prune_pods(&self, options: &PruneOptions<'_>, report: &mut PruneReport) -> Result<(), EngineError> {
        for view in self.list(&PodQuery::default()).map_err(EngineError::from_cause)? {
            if !has_ended(&view.row) || !(options.pods)(&view.row) {
                continue;
            }
            let id = view.row.id;
            let removed = self.pod_disk_usage(view.row).and_then(|usage| match options.dry_run {
                true => Ok(usage),
                false => self.rm(id, RunningPod::Refuse).map(|()| usage).map_err(EngineError::from_cause),
            });
            match removed {
                Ok(usage) => {
                    report.pods.push(id);
                    report.bytes += usage.total.bytes;
                }
                Err(error) => report.failures.push(error),
            }
        }
        Ok(())
    }

    fn prune_images(&self, options: &PruneOptions<'_>, report: &mut PruneReport) -> Result<(), EngineError> {
        let users = self.store().image_users().map_err(EngineError::from_cause)?;
        let mut kept_layers: HashSet<Digest> = HashSet::new();
        for image in self.image_list().map_err(EngineError::from_cause)? {
            let is_used = users.get(&image.id).is_some_and(|pods| pods.iter().any(|pod| !report.pods.contains(pod)));
            let is_selected = !is_used && (options.images)(&image);
            let removed = match is_selected && !options.dry_run {
                true => self.store().remove_image_if(&image.id, options.images).map(drop),
                false => Ok(()),
            };
            match removed {
                Ok(()) if is_selected => report.images.push(image),
                // In the meantime it was named or used, or another process removed it.
                Ok(())
                | Err(
                    RemoveImageError::InUse { .. } | RemoveImageError::NotFound(_) | RemoveImageError::Unselected(_),
                ) => {
                    kept_layers.extend(image.layers.into_iter().map(|layer| layer.chain));
                }
                Err(error) => report.failures.push(EngineError::from_cause(error)),
            }
        }
        let freed = match options.dry_run {
            true => self.layer_bytes(&report.images, &kept_layers),
            false => self.store().sweep_images().map(|swept| swept.bytes).map_err(EngineError::from_cause),
        };
        match freed {
            Ok(bytes) => report.bytes += bytes,
            Err(error) => report.failures.push(error),
        }
        Ok(())
    }

    /// Bytes of the layers that these images have and no other image has.
    fn layer_bytes(&self, images: &[ImageRow], kept: &HashSet<Digest>) -> Result<u64, EngineError> {
        let layers: HashSet<&Digest> = images.iter().flat_map(|image| image.layers.iter().map(|l| &l.chain)).collect();
        let mut bytes = 0;
        for chain in layers.into_iter().filter(|chain| !kept.contains(*chain)) {
            let row = self.store().layer(chain).map_err(EngineError::from_cause)?;
            bytes += row.map_or(0, |row| row.size);
        }
        Ok(bytes)
    }

    fn prune_volumes(&self, options: &PruneOptions<'_>, report: &mut PruneReport) -> Result<(), EngineError> {
        for volume in self.volumes().map_err(EngineError::from_cause)? {
            let is_used = volume.pods.iter().any(|pod| !report.pods.contains(pod));
            if is_used || !(options.volumes)(&volume) {
                continue;
            }
            let removed = match options.dry_run {
                true => self.volume_disk_usage(&volume.name).map(|usage| usage.bytes),
                false => self.volume_rm(&volume.name).map_err(EngineError::from_cause),
            };
            match removed {
                Ok(bytes) => {
                    report.volumes.push(volume.name);
                    report.bytes += bytes;
                }
                Err(error) => report.failures.push(error),
            }
        }
        Ok(())
    }
}
