//! Creates, lists and removes named volumes. The supervisor fills them from images; the store makes them durable.

use std::collections::BTreeMap;
use std::path::PathBuf;

use gantry_model::{ErrorKind, Kind, VolumeName};
use gantry_store::{RemoveVolumeError, VolumeRow};
use thiserror::Error;

use crate::error::need_root;
use crate::{Engine, PodError};

/// An operation on a named volume failed.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// No such volume.
    #[error("there is no volume '{0}': 'gantry volume list' lists the volumes")]
    NotFound(VolumeName),
    /// The volume cannot be removed.
    #[error(transparent)]
    Remove(#[from] RemoveVolumeError),
    /// The store failed, or the caller lacks permission.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for VolumeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::Remove(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

impl Engine {
    /// Creates a named volume; false if it exists already.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn volume_create(&self, name: &VolumeName, labels: &BTreeMap<String, String>) -> Result<bool, VolumeError> {
        need_root("make a volume")?;
        Ok(self.store.create_volume(name, labels).map_err(PodError::store)?)
    }

    /// All named volumes, by name.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn volumes(&self) -> Result<Vec<VolumeRow>, VolumeError> {
        Ok(self.store.volumes().map_err(PodError::store)?)
    }

    /// One named volume.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn volume(&self, name: &VolumeName) -> Result<VolumeRow, VolumeError> {
        let row = self.store.volume(name).map_err(PodError::store)?;
        row.ok_or_else(|| VolumeError::NotFound(name.clone()))
    }

    /// The directory that apps see of a named volume.
    #[must_use]
    pub fn volume_data(&self, name: &VolumeName) -> PathBuf {
        self.store.layout().volume_data(name)
    }

    /// Removes a named volume that no pod refers to, with its contents; returns the bytes freed.
    ///
    /// # Errors
    /// [`VolumeError`], which lists the pods that refer to it.
    pub fn volume_rm(&self, name: &VolumeName) -> Result<u64, VolumeError> {
        need_root("remove a volume")?;
        Ok(self.store.remove_volume(name)?)
    }

    /// The named volumes that no pod refers to.
    ///
    /// # Errors
    /// [`VolumeError`].
    pub fn volumes_unused(&self) -> Result<Vec<VolumeRow>, VolumeError> {
        let mut volumes = self.volumes()?;
        volumes.retain(|volume| volume.pods.is_empty());
        Ok(volumes)
    }
}
