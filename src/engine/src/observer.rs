//! A read-only handle, for surfaces whose callers may only read.
//!
//! It opens the store read-only and has no method that writes, so that no mistake of a surface can change anything.
//! Rows are shown as stored; gantryd's keeper reconciles them within milliseconds, so no caller waits for
//! a pod that is starting, and none takes a pod's lock.

use std::path::PathBuf;

use gantry_fetch::source::MAX_DOCUMENT;
use gantry_model::query::{ImageFilter, PodFilter};
use gantry_model::{AppName, ImageId, ImageRef, PhaseName, PodId, PodPrefix, VolumeName};
use gantry_store::{ImageRow, PodRow, PodWhere, VolumeRow};

use crate::images::node::ImageDiskUsage;
use crate::images::view::{ImageCache, ImageView};
use crate::manifest::appc::Secrets;
use crate::pods::filter;
use crate::{Cause, Engine, EngineError, ImageError, OpenError, Options, PodError, PodView, VolumeError};

/// The most hexadecimal digits of an image id.
const MAX_ID_DIGITS: usize = 128;

/// The read-only handle. One per thread.
pub struct Observer {
    pub(crate) engine: Engine,
    images: ImageCache,
}

impl Observer {
    /// Opens an existing data directory.
    ///
    /// # Errors
    /// [`OpenError`], also when the store does not exist.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        Engine::open_read_only(options).map(|engine| Self { engine, images: ImageCache::default() })
    }

    /// Whether the open database is still the one in its directory; if not, open it again. One that cannot be checked
    /// counts as replaced.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.engine.store.is_current().unwrap_or(false)
    }

    /// The pods that match any of the filters (all, without filters), by id.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn pods(&self, filters: &[PodFilter]) -> Result<Vec<PodView>, PodError> {
        let filters: Vec<PodWhere<'_>> = filters.iter().map(filter::resolved).collect();
        let rows = self.engine.store.pods_where(&filters)?;
        Ok(rows.into_iter().map(|row| self.engine.view(row)).collect())
    }

    /// All named volumes, by name.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn volumes(&self) -> Result<Vec<VolumeRow>, VolumeError> {
        self.engine.volumes()
    }

    /// The directory of the contents of a named volume.
    pub(crate) fn volume_data(&self, name: &VolumeName) -> PathBuf {
        self.engine.volume_data(name)
    }

    /// The number of pods in each phase that has any; pods being deleted count as [`PhaseName::Garbage`].
    ///
    /// # Errors
    /// [`PodError`].
    pub fn count_pods(&self) -> Result<Vec<(PhaseName, u64)>, PodError> {
        self.engine.store.count_pods().map_err(PodError::store)
    }

    /// The pod with this prefix of its id.
    ///
    /// # Errors
    /// [`PodError`] when no pod matches, or more than one (`PodError::ambiguous` has the number).
    pub fn pod(&self, prefix: &PodPrefix) -> Result<PodView, PodError> {
        let id = self.engine.resolve(prefix)?;
        let row = self.engine.store.pod(id)?;
        row.map(|row| self.engine.view(row)).ok_or_else(|| PodError::NotFound(prefix.clone()))
    }

    /// The row of a pod; `None`: it is gone.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn row(&self, id: PodId) -> Result<Option<PodRow>, PodError> {
        Ok(self.engine.store.pod(id)?)
    }

    /// See [`Engine::apps_with_id_prefix`].
    ///
    /// # Errors
    /// [`EngineError`]
    pub fn apps_with_id_prefix(&self, prefix: &str) -> Result<Vec<(PodId, AppName)>, EngineError> {
        self.engine.apps_with_id_prefix(prefix)
    }

    /// The manifest of a pod in appc's format (JSON); `None` when its source files are missing: the pod can be shown
    /// nevertheless.
    ///
    /// # Errors
    /// [`PodError`] when the files cannot be opened (no descriptors left, for example).
    pub fn pod_manifest(&self, row: &PodRow, secrets: Secrets) -> Result<Option<Vec<u8>>, PodError> {
        self.engine.appc_manifest_of(row, &|image| self.images.config(&self.engine.store, image), secrets)
    }

    /// Whether the documents of an image are whole and known, so that reading them again would change nothing.
    #[must_use]
    pub fn knows_image(&self, id: &ImageId) -> bool {
        self.images.contains(id)
    }

    /// The images that match any of the filters (all, without filters), by id.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn images(&self, filters: &[ImageFilter]) -> Result<Vec<ImageView>, ImageError> {
        let found = self.engine.store.images_where(filters).map_err(store)?;
        let mut views = Vec::with_capacity(found.len());
        for (row, places) in found {
            let view = ImageView::new(row.clone(), &self.images.documents(&self.engine.store, &row));
            let mut held = places.into_iter().filter_map(|place| filters.get(place));
            if filters.is_empty() || held.any(|filter| view.holds(filter)) {
                views.push(view);
            }
        }
        Ok(views)
    }

    /// All images, by id, and a number that rises with each change of an image.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn images_and_version(&self) -> Result<(Vec<ImageRow>, u64), ImageError> {
        self.engine.store.images_and_commits().map_err(store)
    }

    /// The image with this id.
    ///
    /// # Errors
    /// [`ImageError`], also when the image does not exist.
    pub fn image(&self, id: &ImageId) -> Result<ImageView, ImageError> {
        let row = self.engine.store.image(id).map_err(store)?;
        Ok(self.image_view(row.ok_or_else(|| ImageError::NotFound(id.to_string()))?))
    }

    /// The image that a reference means on a node; see [`Engine::node_image`].
    ///
    /// # Errors
    /// [`ImageError`], also when a prefix is of several images.
    pub fn node_image(&self, reference: &ImageRef) -> Result<Option<ImageView>, ImageError> {
        Ok(self.engine.node_image(reference)?.map(|row| self.image_view(row)))
    }

    /// The configuration of an image, as fetched; `None` if it is lost.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_config(&self, image: &ImageRow) -> Result<Option<Vec<u8>>, ImageError> {
        self.engine.store.blob(&image.config, MAX_DOCUMENT).map_err(crate::images::store)
    }

    /// What the layers of all images use of the disk, and the directory that has them.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_disk_usage(&self) -> Result<(ImageDiskUsage, PathBuf), ImageError> {
        Ok((self.engine.image_disk_usage()?, self.engine.store.layout().trees_dir()))
    }

    /// The image with this id or prefix of it: `sha256:…`, `sha512-…` as in appc's manifests, or the digits alone.
    ///
    /// # Errors
    /// [`ImageError`], also when no image matches, or more than one.
    pub fn image_by_text(&self, text: &str) -> Result<ImageView, ImageError> {
        if let Some(id) = text.parse().ok().or_else(|| ImageId::from_appc(text)) {
            return self.image(&id);
        }
        let prefixes = ["sha256:", "sha512:", "sha512-"];
        let hex = prefixes.into_iter().find_map(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
        if hex.len() > MAX_ID_DIGITS {
            return Err(ImageError::NotFound(text.to_owned()));
        }
        let mut found = self.engine.store.images_by_prefix(hex).map_err(store)?;
        match (found.pop(), found.is_empty()) {
            (Some(row), true) => Ok(self.image_view(row)),
            (None, _) => Err(ImageError::NotFound(text.to_owned())),
            (Some(last), false) => {
                let some = found.iter().chain([&last]).take(5).map(|image| image.id.to_string()).collect();
                Err(ImageError::Ambiguous { name: text.to_owned(), some })
            }
        }
    }

    fn image_view(&self, row: ImageRow) -> ImageView {
        let documents = self.images.documents(&self.engine.store, &row);
        ImageView::new(row, &documents)
    }
}

fn store(error: gantry_store::StoreError) -> ImageError {
    ImageError::Store(Cause::from(error))
}

#[cfg(test)]
#[path = "observer_tests.rs"]
mod tests;
