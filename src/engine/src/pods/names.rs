//! Names of pods.
//!
//! A name is a column of the pod's row and nothing else: a restored database without the row loses it.

use gantry_model::{PodId, PodName};
use gantry_store::{InsertPodError, RenamePodError};

use crate::error::need_root;
use crate::{Engine, PodError};

impl Engine {
    /// Gives a pod a name, in place of the one it had.
    ///
    /// # Errors
    /// [`PodError`], also when another pod has the name.
    pub fn rename(&self, id: PodId, name: &PodName) -> Result<(), PodError> {
        need_root("rename a pod")?;
        match self.store.rename_pod(id, name) {
            Err(RenamePodError::Taken { pod, .. }) if self.frees_name(pod, name)? => {
                self.store.rename_pod(id, name).map_err(PodError::store)
            }
            done => done.map_err(PodError::store),
        }
    }

    /// Fails if another pod has the name: before images are fetched, not after.
    pub(crate) fn check_name(&self, name: &PodName) -> Result<(), PodError> {
        match self.store.pod_named(name)? {
            Some(pod) if !self.frees_name(pod, name)? => {
                Err(PodError::store(InsertPodError::NameTaken { name: name.clone(), pod }))
            }
            _ => Ok(()),
        }
    }

    /// Whether the pod loses the name when it is reconciled: its creator was killed, or `run --rm` ended it.
    pub(crate) fn frees_name(&self, pod: PodId, name: &PodName) -> Result<bool, PodError> {
        match self.reconcile_pod(pod) {
            Ok(row) => Ok(row.name.as_ref() != Some(name)),
            Err(PodError::NotFound(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
