//! Images as a node's agent manages them (Kubernetes' CRI): fetched with the credentials of a request, found by any
//! name, removed with all names.

use gantry_fetch::{Cancellation, FetchCredentials, FetchError, Fetched, Progress, fetch_again};
pub use gantry_model::image_ref::repository_of;
use gantry_model::{ImageId, ImageRef, RegistryRef};
use gantry_store::{ImageRow, RemoveImageError};

use crate::error::need_root;
use crate::images::{only, store};
use crate::{Engine, ImageError};

/// The registry of names without a host, unless the configuration has another: that of the clients of Kubernetes.
const SHORT_NAME_REGISTRY: &str = "docker.io";

/// What images use of the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ImageDiskUsage {
    /// Bytes of the layers of all images; each layer counts once.
    pub bytes: u64,
    /// Their files, directories and links.
    pub entries: u64,
}

impl Engine {
    /// Fetches an image from its registry or a mirror, whatever the store has, so that the registry decides on access.
    /// A tag also gets the name of its digest (`host/name@digest`).
    ///
    /// # Errors
    /// [`FetchError`]; nothing half-fetched is visible then.
    pub fn pull_image(
        &self,
        reference: &RegistryRef,
        credentials: Option<FetchCredentials>,
        cancellation: Cancellation,
        progress: &dyn Progress,
    ) -> Result<Fetched, FetchError> {
        let mut config = self.options.fetch.clone();
        (config.credentials, config.cancellation, config.name_digests) = (credentials, Some(cancellation), true);
        fetch_again(&self.store, &config, reference, progress)
    }

    /// The full name of a reference to a registry; `None` for ids and files.
    #[must_use]
    pub fn full_reference(&self, reference: &ImageRef) -> Option<RegistryRef> {
        match reference {
            ImageRef::Registry(reference) => Some(reference.clone()),
            ImageRef::Short(name) => Some(match &self.options.fetch.default_registry {
                Some(registry) => name.within(registry),
                None => name.at(SHORT_NAME_REGISTRY),
            }),
            ImageRef::Id(_)
            | ImageRef::Layout(..)
            | ImageRef::OciArchive(..)
            | ImageRef::DockerArchive(..)
            | ImageRef::Path(_)
            | ImageRef::Stdin => None,
        }
    }

    /// The image that a reference means on a node: an id or a unique prefix of it; a name, where one without a host is
    /// of [`SHORT_NAME_REGISTRY`]; or a name with the digest of the image.
    ///
    /// # Errors
    /// [`ImageError`], also when a prefix is of several images.
    pub fn node_image(&self, reference: &ImageRef) -> Result<Option<ImageRow>, ImageError> {
        let prefix = match reference {
            ImageRef::Id(hex) => Some(hex.as_str()),
            ImageRef::Short(name) => name.id_prefix(),
            // Names, and files, which are no images of the store.
            _ => None,
        };
        if let Some(prefix) = prefix {
            let shown = gantry_model::id::shown(prefix);
            if let Some(image) = only(&shown, self.store.images_by_prefix(prefix).map_err(store)?)? {
                return Ok(Some(image));
            }
        }
        let Some(name) = self.full_reference(reference) else { return Ok(None) };
        if let Some(image) = self.store.image_by_name(&name.to_string()).map_err(store)? {
            return Ok(Some(image));
        }
        let Some(digest) = &name.digest else { return Ok(None) };
        let image = self.store.image(digest).map_err(store)?;
        Ok(image.filter(|image| is_of_repository(image, &name)))
    }

    /// Removes all names of an image, and the image itself unless a pod uses it. A killed removal leaves an image
    /// without names, which another removal by its id removes.
    ///
    /// # Errors
    /// [`ImageError`]; an image that does not exist is none.
    pub fn drop_image(&self, id: &ImageId) -> Result<(), ImageError> {
        need_root("remove an image")?;
        match self.store.remove_image(id) {
            Ok(_) => {}
            Err(RemoveImageError::NotFound(_)) => return Ok(()),
            Err(RemoveImageError::InUse { .. }) => {
                let image = self.store.image(id).map_err(store)?;
                for name in image.iter().flat_map(|image| &image.names) {
                    self.store.untag(id, name).map_err(store)?;
                }
                return Ok(());
            }
            Err(error) => return Err(ImageError::Remove(error)),
        }
        self.store.sweep_images().map_err(store)?;
        Ok(())
    }

    /// What the layers of all images use of the disk, as recorded when they were unpacked.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn image_disk_usage(&self) -> Result<ImageDiskUsage, ImageError> {
        let mut chains: Vec<_> =
            self.image_list()?.into_iter().flat_map(|image| image.layers).map(|layer| layer.chain).collect();
        chains.sort_unstable();
        chains.dedup();
        let mut usage = ImageDiskUsage::default();
        for chain in chains {
            if let Some(layer) = self.store.layer(&chain).map_err(store)? {
                usage.bytes = usage.bytes.saturating_add(layer.size);
                usage.entries = usage.entries.saturating_add(layer.entries);
            }
        }
        Ok(usage)
    }
}

/// Whether an image has a name in the repository of a reference.
pub(super) fn is_of_repository(image: &ImageRow, reference: &RegistryRef) -> bool {
    image.names.iter().any(|name| reference.has_name(name))
}
