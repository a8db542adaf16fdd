//! Re-imports images from their blobs and layers, and finds the image of an app by its layers.

use std::collections::HashMap;

use gantry_fetch::manifest::{self, Parsed};
use gantry_fetch::source::{MAX_DOCUMENT, digest_of};
use gantry_model::id::Algorithm;
use gantry_model::{Digest, ImageId};
use gantry_store::{
    BlobError, CommitImageError, ImageRow, LayerRef, LayerRow, Layout, NewImage, RemoveImageError, Store,
};

use crate::recovery::rows::modified;
use crate::{Engine, PodError};

/// The images of the store by the names of their layers' directories, topmost first, as in plans.
pub(crate) struct Images(HashMap<Vec<String>, Vec<ImageRow>>);

impl Images {
    pub(crate) fn read(store: &Store) -> Result<Self, PodError> {
        let mut by_layers: HashMap<Vec<String>, Vec<ImageRow>> = HashMap::new();
        for image in store.images()? {
            let layers = image.layers.iter().rev().map(|layer| Layout::tree_name(&layer.chain)).collect();
            by_layers.entry(layers).or_default().push(image);
        }
        Ok(Self(by_layers))
    }

    /// The image with these layers; of several, the one with this name, else the newest.
    pub(super) fn find(&self, layers: &[String], called: Option<&str>) -> Option<&ImageRow> {
        let all = self.0.get(layers)?;
        let is_called = |image: &&ImageRow| {
            let id = image.id.to_string();
            called.is_some_and(|called| called == id || image.names.iter().any(|name| name.ends_with(called)))
        };
        all.iter().find(is_called).or_else(|| all.last())
    }
}

impl Engine {
    /// Removes the rows of images whose files are gone, and that no pod uses.
    pub(super) fn forget_images(&self) -> Result<Vec<ImageId>, PodError> {
        let mut gone = Vec::new();
        for image in self.store.images()? {
            if self.store.has_files_of(&image)? {
                continue;
            }
            match self.store.remove_image(&image.id) {
                Ok(_) => gone.push(image.id),
                // Damaged, not removed: `doctor` reports it.
                Err(RemoveImageError::InUse { .. }) => {}
                Err(error) => return Err(PodError::store(error)),
            }
        }
        self.store.forget_lost_layers()?;
        Ok(gone)
    }

    /// Adopts images of which the manifest, the configuration and all layers are on the disk.
    pub(crate) fn adopt_images(&self) -> Result<Vec<ImageId>, PodError> {
        let mut adopted = Vec::new();
        for id in self.store.unknown_blobs()? {
            let Some((image, layers)) = self.read_image(&id)? else { continue };
            let at = modified(&self.store.layout().blob(&id)).unwrap_or_else(gantry_store::now);
            self.store.adopt_layers(&layers)?;
            match self.store.commit_image(&image, at) {
                Ok(_) => adopted.push(id),
                // Collected in the meantime by a command that had the damaged database open.
                Err(CommitImageError::NoSuchLayer { .. } | CommitImageError::NoSuchBlob { .. }) => {}
                Err(error) => return Err(PodError::store(error)),
            }
        }
        Ok(adopted)
    }

    /// The image of which this blob is the manifest, if it is one and the image is complete on the disk.
    fn read_image(&self, id: &Digest) -> Result<Option<(NewImage, Vec<LayerRow>)>, PodError> {
        let Some(bytes) = self.document(id)? else { return Ok(None) };
        let Ok(Parsed::Manifest(manifest)) = manifest::parse("", &bytes) else { return Ok(None) };
        let Some(config_bytes) = self.document(&manifest.config.digest)? else { return Ok(None) };
        let Ok(config) = gantry_fetch::config::parse(&config_bytes) else { return Ok(None) };
        if config.diff_ids.len() != manifest.layers.len() {
            return Ok(None);
        }
        let (mut layers, mut rows) = (Vec::new(), Vec::<LayerRow>::new());
        for (blob, diff_id) in manifest.layers.iter().zip(&config.diff_ids) {
            let parent = rows.last().map(|row| row.chain.clone());
            // OCI image specification, config.md, "Layer ChainID".
            let chain = match &parent {
                Some(parent) => digest_of(Algorithm::Sha256, format!("{parent} {diff_id}").as_bytes()),
                None => diff_id.clone(),
            };
            if !self.store.layout().tree_dir(&chain).is_dir() {
                return Ok(None);
            }
            layers.push(LayerRef { chain: chain.clone(), diff_id: diff_id.clone(), blob: blob.digest.clone() });
            // Size and number of entries were recorded only in the lost row.
            rows.push(LayerRow { chain, diff_id: diff_id.clone(), parent, size: 0, entries: 0 });
        }
        let compressed = manifest.layers.iter().fold(0u64, |sum, layer| sum.saturating_add(layer.size));
        let size = compressed.saturating_add((bytes.len() + config_bytes.len()) as u64);
        let config = manifest.config.digest.clone();
        Ok(Some((NewImage { id: id.clone(), config, format: manifest.format, layers, size, names: Vec::new() }, rows)))
    }

    /// A blob that matches its digest.
    fn document(&self, digest: &Digest) -> Result<Option<Vec<u8>>, PodError> {
        match self.store.blob(digest, MAX_DOCUMENT) {
            Ok(bytes) => Ok(bytes),
            Err(BlobError::Store(error)) => Err(PodError::store(error)),
            Err(BlobError::Damaged { .. } | BlobError::TooLarge { .. }) => Ok(None),
            Err(error) => Err(PodError::store(error)),
        }
    }
}
