//! `image rm`: removes a name of an image, or the image itself.

use gantry_model::query::PodQuery;
use gantry_model::{ImageRef, Phase, PodId};
use gantry_store::{ImageRow, Swept};

use crate::error::need_root;
use crate::images::store;
use crate::{Engine, ImageError, RunningPod};

/// What `image_rm` has removed.
#[derive(Debug)]
pub struct ImageRemoved {
    /// The image before the removal.
    pub image: ImageRow,
    /// Whether the image itself was removed, with all of its names.
    pub is_removed: bool,
    /// If the image stays, the names that were removed.
    pub untagged: Vec<String>,
    /// The ended pods that were removed because they used the image.
    pub pods: Vec<PodId>,
    /// The space freed.
    pub swept: Swept,
    /// Why the rest was not removed, or not all space was freed.
    pub failure: Option<ImageError>,
}

impl ImageRemoved {
    /// Nothing is removed yet.
    fn none(image: ImageRow) -> Self {
        let (untagged, pods, swept) = (Vec::new(), Vec::new(), Swept::default());
        Self { image, is_removed: false, untagged, pods, swept, failure: None }
    }
}

impl Engine {
    /// Removes an image that no pod uses; if it is given by one of several names, only that name. With `force`, the
    /// ended pods that use the image are removed with it, and all names of an image given by its id or digest.
    ///
    /// # Errors
    /// [`ImageError`] when nothing was removed, also because pods use it that have not ended. A later failure is in the
    /// report.
    pub fn image_rm(&self, reference: &ImageRef, force: bool) -> Result<ImageRemoved, ImageError> {
        need_root("remove an image")?;
        let (image, names) = self.find(reference)?;
        let mut report = ImageRemoved::none(image);
        let removed = self.remove_image_or_names(&names, force, &mut report);
        match removed {
            Err(error) if !report.is_removed && report.untagged.is_empty() && report.pods.is_empty() => Err(error),
            removed => Ok(ImageRemoved { failure: removed.err(), ..report }),
        }
    }

    fn remove_image_or_names(
        &self,
        names: &[String],
        force: bool,
        report: &mut ImageRemoved,
    ) -> Result<(), ImageError> {
        let ImageRemoved { image, is_removed, untagged, pods, swept, failure: _ } = report;
        match (names, image.names.len()) {
            // A short name can match several names of the image; the others stay.
            (named @ [_, ..], all @ 2..) if named.len() == 1 || (force && named.len() < all) => {
                for name in named {
                    self.store().untag(&image.id, name).map_err(store)?;
                    untagged.push(name.clone());
                }
                return Ok(());
            }
            (_, 2..) if !force => {
                return Err(ImageError::SeveralNames { id: image.id.clone(), names: image.names.clone() });
            }
            _ => {}
        }
        if force {
            self.remove_ended_users(image, pods)?;
        }
        self.store().remove_image(&image.id).map_err(ImageError::Remove)?;
        *is_removed = true;
        *swept = self.store().sweep_images().map_err(store)?;
        Ok(())
    }

    /// Removes the pods of an image, unless one of them has not ended.
    fn remove_ended_users(&self, image: &ImageRow, removed: &mut Vec<PodId>) -> Result<(), ImageError> {
        let users = self.store().users_of_image(&image.id).map_err(store)?;
        let pods = self.list(&PodQuery::default())?;
        let users = pods.into_iter().filter(|pod| users.contains(&pod.row.id));
        let (ended, others): (Vec<_>, Vec<_>) = users.partition(|pod| {
            !pod.row.restart.is_waiting()
                && matches!(pod.row.phase, Phase::Exited { .. } | Phase::AbortedPrepare { .. } | Phase::Garbage { .. })
        });
        if !others.is_empty() {
            let pods = others.iter().map(|pod| pod.row.id).collect();
            return Err(ImageError::NotEnded { id: image.id.clone(), pods });
        }
        for pod in ended {
            self.rm(pod.row.id, RunningPod::Refuse)
                .map_err(|source| ImageError::User { id: image.id.clone(), source: Box::new(source) })?;
            removed.push(pod.row.id);
        }
        Ok(())
    }
}
