//! What images, pods and volumes use of the disk, and how much of it could be reclaimed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::AsFd as _;
use std::path::Path;

use gantry_contract::files;
use gantry_host::tree::{self, TreeUsage};
use gantry_model::query::PodQuery;
use gantry_model::{AppName, Digest, ErrorKind, VolumeName};
use gantry_store::{ImageRow, PodRow, VolumeRow};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::need_root;
use crate::{Engine, EngineError};

/// The names below a pod's directory or a volume that are counted; the usage of a larger tree is a lower bound.
const MAX_ENTRIES: u64 = 10_000_000;

/// The disk usage of a data directory.
#[derive(Debug, Clone, Default)]
pub struct StoreUsage {
    /// The images, by the time of their import.
    pub images: Vec<ImageUsage>,
    /// Bytes of the layers of all images; each layer counts once.
    pub layer_bytes: u64,
    /// Bytes of the layers that only unused images have.
    pub reclaimable_layer_bytes: u64,
    /// The pods, oldest first.
    pub pods: Vec<PodDiskUsage>,
    /// The named volumes, by name.
    pub volumes: Vec<VolumeUsage>,
}

/// The disk usage of an image.
#[derive(Debug, Clone)]
pub struct ImageUsage {
    /// Its row.
    pub row: ImageRow,
    /// Bytes of its layers that other images have, too.
    pub shared_bytes: u64,
    /// Bytes of its other layers.
    pub unique_bytes: u64,
    /// The number of pods that use it.
    pub pods: usize,
}

/// The disk usage of a pod.
#[derive(Debug, Clone)]
pub struct PodDiskUsage {
    /// Its row, reconciled.
    pub row: Box<PodRow>,
    /// What its apps use.
    pub apps: BTreeMap<AppName, AppDiskUsage>,
    /// Everything in its directory: its apps, its own volumes, its records.
    pub total: TreeUsage,
}

impl PodDiskUsage {
    /// Whether the pod has ended for good, so that removing it frees its space.
    #[must_use]
    pub fn is_reclaimable(&self) -> bool {
        has_ended(&self.row)
    }
}

/// The disk usage of an app.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppDiskUsage {
    /// Its writable layer.
    pub writable: TreeUsage,
    /// The logs of its attempts.
    pub logs: TreeUsage,
}

/// The disk usage of a named volume.
#[derive(Debug, Clone)]
pub struct VolumeUsage {
    /// Its row.
    pub row: VolumeRow,
    /// Its contents.
    pub usage: TreeUsage,
}

impl Engine {
    /// The disk usage of all images, pods and named volumes. Reads the directories of pods and volumes.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn disk_usage(&self) -> Result<StoreUsage, EngineError> {
        need_root("measure the disk usage").map_err(EngineError::from_cause)?;
        let mut usage = StoreUsage::default();
        for view in self.list(&PodQuery::default()).map_err(EngineError::from_cause)? {
            usage.pods.push(self.pod_disk_usage(view.row)?);
        }
        self.measure_images(&mut usage)?;
        for row in self.volumes().map_err(EngineError::from_cause)? {
            let measured = self.volume_disk_usage(&row.name)?;
            usage.volumes.push(VolumeUsage { row, usage: measured });
        }
        Ok(usage)
    }

    /// The disk usage of a pod.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn pod_disk_usage(&self, row: Box<PodRow>) -> Result<PodDiskUsage, EngineError> {
        let dir = self.pod_dir(row.id);
        let mut apps = BTreeMap::new();
        for app in &row.apps {
            let writable = measure(&dir.join(files::APPS).join(app.name.as_str()))?;
            let logs = measure(&dir.join(files::LOGS).join(app.name.as_str()))?;
            apps.insert(app.name.clone(), AppDiskUsage { writable, logs });
        }
        Ok(PodDiskUsage { total: measure(&dir)?, row, apps })
    }

    /// The disk usage of a named volume.
    ///
    /// # Errors
    /// [`EngineError`].
    pub fn volume_disk_usage(&self, name: &VolumeName) -> Result<TreeUsage, EngineError> {
        measure(&self.volume_data(name))
    }

    fn measure_images(&self, usage: &mut StoreUsage) -> Result<(), EngineError> {
        let images = self.image_list().map_err(EngineError::from_cause)?;
        let mut layers: HashMap<&Digest, LayerUse> = HashMap::new();
        let users = self.store().image_users().map_err(EngineError::from_cause)?;
        let pods: Vec<usize> = images.iter().map(|image| users.get(&image.id).map_or(0, BTreeSet::len)).collect();
        for (image, pods) in images.iter().zip(&pods) {
            for layer in &image.layers {
                if !layers.contains_key(&layer.chain) {
                    // A lost layer has no size; doctor reports it.
                    let row = self.store().layer(&layer.chain).map_err(EngineError::from_cause)?;
                    let bytes = row.map_or(0, |row| row.size);
                    layers.insert(&layer.chain, LayerUse { bytes, images: 0, is_used: false });
                }
                if let Some(layer) = layers.get_mut(&layer.chain) {
                    layer.images += 1;
                    layer.is_used |= *pods > 0;
                }
            }
        }
        usage.layer_bytes = layers.values().map(|layer| layer.bytes).sum();
        usage.reclaimable_layer_bytes = layers.values().filter(|layer| !layer.is_used).map(|layer| layer.bytes).sum();
        let sum = |image: &ImageRow, is_shared: bool| {
            let of_image = image.layers.iter().filter_map(|layer| layers.get(&layer.chain));
            of_image.filter(|layer| (layer.images > 1) == is_shared).map(|layer| layer.bytes).sum::<u64>()
        };
        let sums: Vec<(u64, u64)> = images.iter().map(|image| (sum(image, true), sum(image, false))).collect();
        let measured = images.into_iter().zip(sums).zip(pods);
        usage.images = measured
            .map(|((row, (shared_bytes, unique_bytes)), pods)| ImageUsage { row, shared_bytes, unique_bytes, pods })
            .collect();
        Ok(())
    }
}

/// A layer, and what refers to it.
struct LayerUse {
    bytes: u64,
    images: usize,
    /// Whether a pod uses one of the images.
    is_used: bool,
}

/// Whether a pod has ended and does not wait to be started again.
pub(crate) fn has_ended(row: &PodRow) -> bool {
    row.phase.is_final() && !row.restart.is_waiting()
}

/// The usage of a directory; none if it does not exist.
fn measure(path: &Path) -> Result<TreeUsage, EngineError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let measured = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(TreeUsage { is_complete: true, ..TreeUsage::default() }),
        Ok(dir) => tree::measure(dir.as_fd(), MAX_ENTRIES),
        Err(errno) => Err(errno.into()),
    };
    measured.map_err(|error| {
        let text = format!("cannot measure {}", path.display());
        EngineError::new(ErrorKind::of_io(&error), text).caused_by(error)
    })
}
