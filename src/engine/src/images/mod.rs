//! Images in the store: list, find, remove, collect, show.

pub(crate) mod fetch;
pub(crate) mod inspect;
pub mod login;
pub(crate) mod node;
pub(crate) mod platform;
pub(crate) mod remove;
pub(crate) mod save;
pub(crate) mod view;

use std::time::Duration;

use gantry_fetch::source::MAX_DOCUMENT;
use gantry_model::{ErrorKind, ImageId, ImageRef, Kind};
use gantry_store::{ImageRow, RemoveImageError, Swept};
use thiserror::Error;

use crate::error::{Cause, need_root};
use crate::images::view::ImageCache;
use crate::{Engine, ImageView, PodError, RmError, Secrets};

/// An image could not be found, shown or removed.
#[derive(Debug, Error)]
pub enum ImageError {
    /// No image has this name or id.
    #[error("there is no image '{0}' in the store: 'gantry image list' lists the images")]
    NotFound(String),
    /// Several images match.
    #[error("'{name}' fits several images: {}", .some.join(", "))]
    Ambiguous {
        /// The reference as given.
        name: String,
        /// Some of them.
        some: Vec<String>,
    },
    /// The reference names a file.
    #[error("'{0}' names a file and not an image in the store: give a name or an id from 'gantry image list'")]
    NotStored(String),
    /// Its manifest is missing or not JSON.
    #[error("the manifest of image {id} is damaged: {why}; fetch the image again")]
    Damaged {
        /// The image.
        id: ImageId,
        /// The fault.
        why: String,
    },
    /// The text is not a valid name of an image.
    #[error("'{0}' cannot be an image's name: expected such as registry.example/app:1, or app:1")]
    Name(String),
    /// The image was given by its id and has several names.
    #[error("image {} has several names: {}; remove them by name, or all of them with --force", .id.short(), .names.join(", "))]
    SeveralNames {
        /// The image.
        id: ImageId,
        /// Its names.
        names: Vec<String>,
    },
    /// A pod that uses it has not ended; --force does not remove it either.
    #[error("image {} is used by pods that have not ended, among them {}: stop and remove those first", .id.short(), pods[0])]
    NotEnded {
        /// The image.
        id: ImageId,
        /// The pods, at least one.
        pods: Vec<gantry_model::PodId>,
    },
    /// An ended pod that uses it cannot be removed.
    #[error("cannot remove a pod that uses image {}", .id.short())]
    User {
        /// The image.
        id: ImageId,
        /// The reason.
        #[source]
        source: Box<RmError>,
    },
    /// It cannot be removed.
    #[error(transparent)]
    Remove(RemoveImageError),
    /// The store failed.
    #[error(transparent)]
    Store(Cause),
    /// The caller has no permission.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for ImageError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Ambiguous { .. } | Self::NotStored(_) | Self::Name(_) => ErrorKind::Invalid,
            Self::SeveralNames { .. } | Self::NotEnded { .. } => ErrorKind::Refused,
            Self::User { source, .. } => source.kind(),
            Self::Damaged { .. } => ErrorKind::Damaged,
            Self::Remove(error) => error.kind(),
            Self::Store(cause) => cause.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// The results of `image_gc`.
#[derive(Debug, Default)]
pub struct ImageGc {
    /// Images that were (or would be) removed.
    pub removed: Vec<ImageRow>,
    /// The space freed; zero in a dry run.
    pub swept: Swept,
    /// Why images were not removed, or not all space was freed; the next collection tries again.
    pub failures: Vec<ImageError>,
}

impl Engine {
    /// All images, by the time of their import.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_list(&self) -> Result<Vec<ImageRow>, ImageError> {
        self.store.images().map_err(store)
    }

    /// Finds an image in the store.
    ///
    /// # Errors
    /// [`ImageError`] when no image matches, or more than one.
    pub fn image_find(&self, reference: &ImageRef) -> Result<ImageRow, ImageError> {
        self.find(reference).map(|(image, _)| image)
    }

    /// Finds an image, with the names by which it was found: none when by its id.
    pub(crate) fn find(&self, reference: &ImageRef) -> Result<(ImageRow, Vec<String>), ImageError> {
        let shown = gantry_model::id::shown(&reference.to_string());
        let by_id = |hex: &str| -> Result<Option<ImageRow>, ImageError> {
            only(&shown, self.store.images_by_prefix(hex).map_err(store)?)
        };
        let found = match reference {
            ImageRef::Registry(name) => match (self.by_name(&name.to_string())?, &name.digest) {
                (Some((image, name)), _) => Some((image, vec![name])),
                (None, Some(digest)) => {
                    let image = self.store.image(digest).map_err(store)?;
                    image.filter(|image| node::is_of_repository(image, name)).map(|image| (image, Vec::new()))
                }
                (None, None) => None,
            },
            ImageRef::Short(short) => match &short.digest {
                Some(digest) => {
                    let image = self.store.image(digest).map_err(store)?;
                    let is_named = |image: &ImageRow| image.names.iter().any(|name| short.is_repository_of(name));
                    image.filter(is_named).map(|image| (image, Vec::new()))
                }
                None => {
                    let repository = &short.repository;
                    let found = self.by_short(&shown, repository, short.tag.as_deref().unwrap_or("latest"))?;
                    match (found, short.id_prefix()) {
                        (None, Some(prefix)) => by_id(prefix)?.map(|image| (image, Vec::new())),
                        (found, _) => found,
                    }
                }
            },
            ImageRef::Id(hex) => by_id(hex)?.map(|image| (image, Vec::new())),
            ImageRef::Layout(..)
            | ImageRef::OciArchive(..)
            | ImageRef::DockerArchive(..)
            | ImageRef::Path(_)
            | ImageRef::Stdin => return Err(ImageError::NotStored(shown)),
        };
        found.ok_or(ImageError::NotFound(shown))
    }

    fn by_name(&self, name: &str) -> Result<Option<(ImageRow, String)>, ImageError> {
        Ok(self.store.image_by_name(name).map_err(store)?.map(|image| (image, name.to_owned())))
    }

    fn by_short(
        &self,
        shown: &str,
        repository: &str,
        tag: &str,
    ) -> Result<Option<(ImageRow, Vec<String>)>, ImageError> {
        let exact = format!("{repository}:{tag}");
        if let Some((image, name)) = self.by_name(&exact)? {
            return Ok(Some((image, vec![name])));
        }
        let found = only(shown, self.store.images_by_short(repository, tag).map_err(store)?)?;
        let end = format!("/{exact}");
        Ok(found.map(|image| {
            let names = image.names.iter().filter(|name| name.ends_with(&end)).cloned().collect();
            (image, names)
        }))
    }

    /// Removes images that no pod uses and that were not used for `grace`, and unreferenced layers and blobs.
    ///
    /// # Errors
    /// [`ImageError`] when the images cannot be listed. Later failures are in the report.
    pub fn image_gc(&self, grace: Duration, dry_run: bool) -> Result<ImageGc, ImageError> {
        need_root("collect images")?;
        let users = self.store.image_users().map_err(store)?;
        let now = gantry_store::now();
        let mut done = ImageGc::default();
        let is_old = |image: &ImageRow| grace.is_zero() || now.since(image.last_used) >= grace;
        for image in self.store.images().map_err(store)? {
            if !is_old(&image) || users.contains_key(&image.id) {
                continue;
            }
            if !dry_run {
                match self.store.remove_image_if(&image.id, &is_old) {
                    Ok(_) => {}
                    // In the meantime it was used, or another process removed it.
                    Err(
                        RemoveImageError::InUse { .. }
                        | RemoveImageError::NotFound(_)
                        | RemoveImageError::Unselected(_),
                    ) => continue,
                    Err(error) => {
                        done.failures.push(ImageError::Remove(error));
                        continue;
                    }
                }
            }
            done.removed.push(image);
        }
        if !dry_run {
            match self.store.sweep_images() {
                Ok(swept) => done.swept = swept,
                Err(error) => done.failures.push(store(error)),
            }
        }
        Ok(done)
    }

    /// The manifest of an image, as fetched.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_manifest(&self, reference: &ImageRef) -> Result<serde_json::Value, ImageError> {
        let image = self.image_find(reference)?;
        let damaged = |why: String| ImageError::Damaged { id: image.id.clone(), why };
        let bytes = self.store.blob(&image.id, MAX_DOCUMENT).map_err(store)?;
        let bytes = bytes.ok_or_else(|| damaged("it is not there".to_owned()))?;
        serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))
    }
}

impl Engine {
    /// The manifest of an image in appc's format, for rkt's clients.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_appc_manifest(&self, reference: &ImageRef) -> Result<serde_json::Value, ImageError> {
        let image = self.image_find(reference)?;
        let id = image.id.clone();
        let documents = ImageCache::default().documents(&self.store, &image);
        let bytes = ImageView::new(image, &documents).appc_manifest(Secrets::Shown);
        serde_json::from_slice(&bytes).map_err(|error| ImageError::Damaged { id, why: error.to_string() })
    }
}

fn only(shown: &str, mut found: Vec<ImageRow>) -> Result<Option<ImageRow>, ImageError> {
    if found.len() > 1 {
        let some = found.iter().take(5).map(|image| image.id.to_string()).collect();
        return Err(ImageError::Ambiguous { name: shown.to_owned(), some });
    }
    Ok(found.pop())
}

pub(crate) fn store<E: std::error::Error + Kind + Send + Sync + 'static>(error: E) -> ImageError {
    ImageError::Store(error.into())
}
