//! `image rm`: removes a name of an image, or the image itself.

use gantry_model::query::PodQuery;
use gantry_model::{ImageRef, Phase, PodId};
use gantry_store::{ImageRow, Swept};

use crate::error::need_root;
use crate::images::store;
use crate::{Engine, ImageError};

/// The result of `image_rm`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageRemoved {
    /// The image before the removal.
    pub image: ImageRow,
    /// If the image has other names, the names that were removed; empty if the image was removed.
    pub untagged: Vec<String>,
    /// The ended pods that were removed because they used the image.
    pub pods: Vec<PodId>,
    /// The space freed.
    pub swept: Swept,
}

impl Engine {
    /// Removes an image that no pod uses; if it is given by one of several names, only that name. With `force`, an
    /// image given by its id or digest is removed with all of its names, and with the ended pods that use it.
    ///
    /// # Errors
    /// [`ImageError`], also when pods use it that have not ended.
    pub fn image_rm(&self, reference: &ImageRef, force: bool) -> Result<ImageRemoved, ImageError> {
        need_root("remove an image")?;
        let (image, names) = self.find(reference)?;
        match (names.as_slice(), image.names.len()) {
            // A short name can match several names of the image; the others stay.
            (named @ [_, ..], all @ 2..) if named.len() == 1 || (force && named.len() < all) => {
                for name in named {
                    self.store().untag(&image.id, name).map_err(store)?;
                }
                return Ok(ImageRemoved { image, untagged: names, pods: Vec::new(), swept: Swept::default() });
            }
            (_, 2..) if !force => return Err(ImageError::SeveralNames { id: image.id, names: image.names }),
            _ => {}
        }
        let pods = if force { self.remove_ended_users(&image)? } else { Vec::new() };
        self.store().remove_image(&image.id).map_err(ImageError::Remove)?;
        let swept = self.store().sweep_images().map_err(store)?;
        Ok(ImageRemoved { image, untagged: Vec::new(), pods, swept })
    }

    /// Removes the pods of an image, unless one of them has not ended.
    fn remove_ended_users(&self, image: &ImageRow) -> Result<Vec<PodId>, ImageError> {
        let users = self.store().users_of_image(&image.id).map_err(store)?;
        let pods = self.list(&PodQuery::default())?;
        let users = pods.into_iter().filter(|pod| users.contains(&pod.row.id));
        let (ended, others): (Vec<_>, Vec<_>) = users.partition(|pod| {
            pod.row.restart.at.is_none()
                && matches!(pod.row.phase, Phase::Exited { .. } | Phase::AbortedPrepare { .. } | Phase::Garbage { .. })
        });
        if !others.is_empty() {
            let pods = others.iter().map(|pod| pod.row.id).collect();
            return Err(ImageError::NotEnded { id: image.id.clone(), pods });
        }
        let mut removed = Vec::new();
        for pod in ended {
            self.rm(pod.row.id, false)
                .map_err(|source| ImageError::User { id: image.id.clone(), source: Box::new(source) })?;
            removed.push(pod.row.id);
        }
        Ok(removed)
    }
}
