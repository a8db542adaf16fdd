//! A handle that can look and never change anything, for surfaces whose callers may only read.
//!
//! It opens the store read-only, and has no method that writes: what it cannot do, no mistake of a surface can do.
//! Rows are shown as they are; gantryd's keeper brings them up to the facts within milliseconds, so no caller waits for
//! a pod that is starting, and none takes a pod's lock.

use std::collections::BTreeMap;
use std::io;

use gantry_model::query::{ImageFilter, PodFilter};
use gantry_model::{ImageId, PodId, PodPrefix};
use gantry_store::{PodRow, PodWhere};
use rustix::io::Errno;
use serde::Deserialize;

use crate::image_view::{self, ImageView, Kept};
use crate::{Cause, Engine, ImageError, OpenError, Options, PodError, PodView, pod_dir, pod_filter};

/// The longest pod manifest that is read; ours may be longer than what is taken from users: defaults are written out.
const MOST_MANIFEST: u64 = 16 << 20;

/// See the module. One per thread.
pub struct Observer {
    pub(crate) engine: Engine,
    kept: Kept,
}

impl Observer {
    /// Opens a data directory that is there.
    ///
    /// # Errors
    /// [`OpenError`], also when there is none.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        Engine::open_read_only(options).map(|engine| Self { engine, kept: Kept::default() })
    }

    /// The pods for which any of the filters holds (all, where there is none), by id.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn pods(&self, filters: &[PodFilter]) -> Result<Vec<PodView>, PodError> {
        let parent = &self.engine.options.cgroup_parent;
        let filters: Vec<PodWhere<'_>> = filters.iter().map(|filter| pod_filter::resolved(filter, parent)).collect();
        let rows = self.engine.store.pods_where(&filters).map_err(PodError::store)?;
        self.views(rows)
    }

    /// The pod whose id begins so.
    ///
    /// # Errors
    /// [`PodError`] when there is none, or more than one (`PodError::ambiguous` tells how many).
    pub fn pod(&self, prefix: &PodPrefix) -> Result<PodView, PodError> {
        let id = self.engine.resolve(prefix)?;
        let row = self.engine.store.pod(id).map_err(PodError::store)?;
        let view = self.views(row.into_iter().collect())?.pop();
        view.ok_or_else(|| PodError::NotFound(prefix.clone()))
    }

    /// The manifest of a pod as it lies on the disk (JSON); `None` when it never had one or lost it: whatever lies there
    /// instead, the pod can be shown.
    ///
    /// # Errors
    /// [`PodError`] when nothing can be said of it (no descriptors are left, for example).
    pub fn pod_manifest(&self, id: PodId) -> Result<Option<Vec<u8>>, PodError> {
        let path = self.engine.pod_dir(id).join(pod_dir::MANIFEST);
        match pod_dir::read(&path, MOST_MANIFEST) {
            Ok(bytes) => Ok(Some(bytes).filter(|bytes| image_view::is_json(bytes))),
            Err(error) if is_lost(&error) => Ok(None),
            Err(error) => Err(PodError::io("read the manifest", path)(error)),
        }
    }

    /// The images for which any of the filters holds (all, where there is none), by id.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn images(&self, filters: &[ImageFilter]) -> Result<Vec<ImageView>, ImageError> {
        let found = self.engine.store.images_where(filters).map_err(store)?;
        let mut views = Vec::with_capacity(found.len());
        for (row, places) in found {
            let view = ImageView::new(row.clone(), &self.kept.said(&self.engine.store, &row));
            let mut held = places.into_iter().filter_map(|place| filters.get(place));
            if filters.is_empty() || held.any(|filter| view.holds(filter)) {
                views.push(view);
            }
        }
        Ok(views)
    }

    /// The image with this whole id.
    ///
    /// # Errors
    /// [`ImageError`], also when there is none.
    pub fn image(&self, id: &ImageId) -> Result<ImageView, ImageError> {
        let row = self.engine.store.image(id).map_err(store)?;
        let row = row.ok_or_else(|| ImageError::NotFound(id.to_string()))?;
        let said = self.kept.said(&self.engine.store, &row);
        Ok(ImageView::new(row, &said))
    }

    /// Rows as they are shown.
    fn views(&self, mut rows: Vec<PodRow>) -> Result<Vec<PodView>, PodError> {
        let old = self.engine.store.pods_of_format_1().map_err(PodError::store)?;
        for row in rows.iter_mut().filter(|row| old.contains(&row.id)) {
            self.annotate(row)?;
        }
        Ok(rows.into_iter().map(|row| self.engine.view(row)).collect())
    }

    /// Pods that format 1 of the database has made have the annotations of their apps in their manifest only; where that
    /// is lost, so are they.
    fn annotate(&self, row: &mut PodRow) -> Result<(), PodError> {
        let manifest = self.pod_manifest(row.id)?.unwrap_or_default();
        let mut said = app_annotations(&manifest);
        for app in &mut row.apps {
            app.annotations = said.remove(app.name.as_str()).unwrap_or_default();
        }
        Ok(())
    }
}

/// Whether there is no such file any more, or something else in its place, or the disk cannot give it back.
fn is_lost(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP, Errno::NXIO, Errno::IO];
    error.kind() == io::ErrorKind::InvalidData || Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}

/// The annotations of each app in a pod manifest; empty when it is none.
fn app_annotations(manifest: &[u8]) -> BTreeMap<String, BTreeMap<String, String>> {
    #[derive(Deserialize)]
    struct Pod {
        apps: Vec<App>,
    }
    #[derive(Deserialize)]
    struct App {
        name: String,
        #[serde(default)]
        annotations: BTreeMap<String, String>,
    }
    let apps = serde_json::from_slice::<Pod>(manifest).map(|pod| pod.apps).unwrap_or_default();
    apps.into_iter().map(|app| (app.name, app.annotations)).collect()
}

fn store(error: gantry_store::StoreError) -> ImageError {
    ImageError::Store(Cause::from(error))
}

#[cfg(test)]
#[path = "observer_tests.rs"]
mod tests;
