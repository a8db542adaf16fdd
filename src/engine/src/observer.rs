//! A handle that can look and never change anything, for surfaces whose callers may only read.
//!
//! It opens the store read-only, and has no method that writes: what it cannot do, no mistake of a surface can do.
//! Rows are shown as they are; gantryd's keeper brings them up to the facts within milliseconds, so no caller waits for
//! a pod that is starting, and none takes a pod's lock.

use gantry_model::query::{ImageFilter, PodFilter, PodQuery};
use gantry_model::{ImageId, PodId, PodPrefix};
use gantry_store::ImageRow;

use crate::{Engine, ImageError, OpenError, Options, PodError, PodView};

/// See the module. One per thread.
pub struct Observer {
    pub(crate) engine: Engine,
}

/// An image, with what its manifest and configuration say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageView {
    /// Its row.
    pub row: ImageRow,
    /// The first of its names, without tag; empty when it has none.
    pub name: String,
    /// The tag of that name, or `latest`.
    pub version: String,
    /// Labels of the configuration, and `os`, `arch` and `version`.
    pub labels: std::collections::BTreeMap<String, String>,
    /// Annotations of the manifest.
    pub annotations: std::collections::BTreeMap<String, String>,
    /// The manifest as it came; empty when it is lost.
    pub manifest: Vec<u8>,
}

impl Observer {
    /// Opens a data directory that is there.
    ///
    /// # Errors
    /// [`OpenError`], also when there is none.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        Engine::open_read_only(options).map(|engine| Self { engine })
    }

    /// The pods for which any of the filters holds (all, where there is none), by id.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn pods(&self, filters: &[PodFilter]) -> Result<Vec<PodView>, PodError> {
        // PLACEHOLDER until the store answers filters.
        let _ = filters;
        let mut rows = self.engine.store.pods(&PodQuery::default()).map_err(PodError::store)?;
        rows.sort_by_key(|row| row.id);
        Ok(rows.into_iter().map(|row| self.engine.view(row)).collect())
    }

    /// The pod whose id begins so.
    ///
    /// # Errors
    /// [`PodError`] when there is none, or more than one.
    pub fn pod(&self, prefix: &PodPrefix) -> Result<PodView, PodError> {
        let id = self.engine.resolve(prefix)?;
        let row = self.engine.store.pod(id).map_err(PodError::store)?;
        row.map(|row| self.engine.view(row)).ok_or_else(|| PodError::NotFound(prefix.clone()))
    }

    /// The manifest of a pod as it lies on the disk (JSON); `None` when it never had one or lost it.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn pod_manifest(&self, id: PodId) -> Result<Option<Vec<u8>>, PodError> {
        let path = self.engine.pod_dir(id).join(crate::pod_dir::MANIFEST);
        Ok(crate::pod_dir::read(&path, 16 << 20).ok())
    }

    /// The images for which any of the filters holds (all, where there is none), by id.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn images(&self, filters: &[ImageFilter]) -> Result<Vec<ImageView>, ImageError> {
        // PLACEHOLDER.
        let _ = filters;
        Ok(Vec::new())
    }

    /// The image with this whole id.
    ///
    /// # Errors
    /// [`ImageError`], also when there is none.
    pub fn image(&self, id: &ImageId) -> Result<ImageView, ImageError> {
        // PLACEHOLDER.
        Err(ImageError::NotFound(id.to_string()))
    }
}
