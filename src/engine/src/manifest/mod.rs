//! The pod manifest: the specification of a pod as JSON (`cat-manifest`, `run --pod-manifest FILE`). [`json`] describes
//! the fields. `--pod-manifest` also takes appc's pod manifest, which has an `acKind` ([`crate::manifest::appc`]).

pub(crate) mod appc;
mod health;
pub(crate) mod json;
mod limits;
pub(crate) mod net;
mod volumes;

use gantry_contract::plan::Plan;
use gantry_host::file::is_absent;
use gantry_model::id::IdError;
use gantry_model::spec::SpecError;
use gantry_model::{AppSpec, ErrorKind, Kind, Phase, PodId, PodSpec};
use gantry_store::PodRow;
use thiserror::Error;

use crate::manifest::appc::Secrets;
use crate::manifest::appc::read;
use crate::manifest::appc::write;
use crate::manifest::json::{App, Pod};
use crate::pods::pod_dir;
use crate::{Engine, PodError};

/// The longest manifest, in bytes.
pub(crate) const MAX_MANIFEST: usize = 1 << 20;
/// The longest stored manifest, in bytes: with all defaults written out it is longer than the user's.
pub(crate) const MAX_STORED_MANIFEST: u64 = 16 << 20;
/// The version written, and the only one read.
pub(crate) const VERSION: u32 = 1;

/// A manifest could not be read.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// It is too long.
    #[error("the pod manifest has {0} bytes; the limit is {MAX_MANIFEST}")]
    TooLong(usize),
    /// It is not JSON, or not a pod manifest.
    #[error("this is not a pod manifest")]
    Json(#[source] serde_json::Error),
    /// It is an appc manifest with parts that gantry does not support.
    #[error("this appc pod manifest cannot be used: {0}")]
    Appc(String),
    /// It is of another version.
    #[error("the pod manifest has version {0}; this gantry supports version {VERSION} only")]
    Version(u32),
    /// A name in it is invalid.
    #[error("a name in the pod manifest cannot be used")]
    Name(#[from] IdError),
    /// Its networks are invalid.
    #[error("the networks in the pod manifest cannot be used")]
    Net(#[from] SpecError),
    /// The pod's preparation was aborted before it had a manifest.
    #[error("pod {0} has no manifest: its preparation was aborted")]
    None(PodId),
    /// It is lost, perhaps with the pod's directory.
    #[error("pod {0} has no manifest: its directory was removed or is damaged; 'gantry rm {0}' removes the pod")]
    Lost(PodId),
    /// The pod is being prepared.
    #[error("pod {0} has no manifest yet: it is being prepared; try again when it is")]
    NotYet(PodId),
    /// The pod could not be read.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for ManifestError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::TooLong(_) | Self::Json(_) | Self::Appc(_) | Self::Version(_) | Self::Name(_) | Self::Net(_) => {
                ErrorKind::Invalid
            }
            Self::None(_) | Self::Lost(_) | Self::NotYet(_) => ErrorKind::NotFound,
            Self::Pod(error) => error.kind(),
        }
    }
}

/// Reads a manifest, gantry's or appc's. `PodSpec::validate` checks the result.
///
/// # Errors
/// [`ManifestError`].
pub fn parse(bytes: &[u8]) -> Result<PodSpec, ManifestError> {
    if bytes.len() > MAX_MANIFEST {
        return Err(ManifestError::TooLong(bytes.len()));
    }
    if read::is_appc(bytes) {
        return read::pod(bytes);
    }
    parse_ours(bytes)
}

/// Reads a stored manifest, which may be longer.
pub(crate) fn parse_ours(bytes: &[u8]) -> Result<PodSpec, ManifestError> {
    let pod: Pod = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
    if pod.version != VERSION {
        return Err(ManifestError::Version(pod.version));
    }
    pod.try_into()
}

/// The manifest of a specification.
#[must_use]
#[expect(clippy::expect_used, reason = "serialising plain structs with string keys into memory cannot fail")]
pub fn to_value(spec: &PodSpec) -> serde_json::Value {
    serde_json::to_value(Pod::from(spec)).expect("a manifest is plain data with string keys")
}

#[expect(clippy::expect_used, reason = "serialising plain structs with string keys into memory cannot fail")]
pub(crate) fn to_bytes(spec: &PodSpec) -> Vec<u8> {
    serde_json::to_vec(&Pod::from(spec)).expect("a manifest is plain data with string keys")
}

/// An app of a manifest.
#[expect(clippy::expect_used, reason = "serialising plain structs with string keys into memory cannot fail")]
pub(crate) fn app_to_value(app: &AppSpec) -> serde_json::Value {
    serde_json::to_value(App::from(app)).expect("a manifest is plain data with string keys")
}

impl Engine {
    /// The manifest of a pod as requested, with the networks of `run-prepared --net`, which are in the row.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn manifest(&self, id: PodId) -> Result<serde_json::Value, ManifestError> {
        let row = self.reconcile_pod(id)?;
        let path = self.pod_dir(id).join(pod_dir::MANIFEST);
        match pod_dir::read(&path, MAX_STORED_MANIFEST) {
            Ok(bytes) => {
                let mut document: serde_json::Value = serde_json::from_slice(&bytes).map_err(ManifestError::Json)?;
                if let Some(net) = document.get_mut("net") {
                    *net = row.net.to_string().into();
                }
                self.add_added_apps(id, &mut document)?;
                Ok(document)
            }
            Err(error) if is_absent(&error) => Err(no_manifest(&row)),
            Err(error) => Err(PodError::io("read the manifest", path)(error).into()),
        }
    }

    /// The manifest of a pod in appc's format, for rkt's clients.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn appc_manifest(&self, id: PodId) -> Result<serde_json::Value, ManifestError> {
        let row = self.reconcile_pod(id)?;
        let cache = crate::images::view::ImageCache::default();
        let configs = |image: &gantry_model::ImageId| cache.config(&self.store, image);
        let bytes = self.appc_manifest_of(&row, &configs, Secrets::Shown)?.ok_or_else(|| no_manifest(&row))?;
        serde_json::from_slice(&bytes).map_err(ManifestError::Json)
    }

    /// As bytes, from a row; `None` when its source files are missing.
    pub(crate) fn appc_manifest_of(
        &self,
        row: &PodRow,
        configs: &write::Configs<'_>,
        secrets: Secrets,
    ) -> Result<Option<Vec<u8>>, PodError> {
        let Some(plan) = self.plan_if_readable(row)? else { return Ok(None) };
        Ok(serde_json::to_vec(&write::pod(row, &plan, configs, secrets)).ok())
    }

    /// Adds the apps that were added to the pod, and their volumes, to its manifest.
    fn add_added_apps(&self, id: PodId, document: &mut serde_json::Value) -> Result<(), PodError> {
        for added in self.added_apps(id)?.apps {
            if let Some(apps) = document.get_mut("apps").and_then(serde_json::Value::as_array_mut) {
                apps.push(added.manifest);
            }
            if let Some(volumes) = document.get_mut("volumes").and_then(serde_json::Value::as_array_mut) {
                volumes.extend(added.volumes.iter().map(volumes::to_value));
            }
        }
        Ok(())
    }

    /// The present plan of a pod with the limits in effect, as far as they can be read; `None` when it never had a plan
    /// or it is lost.
    fn plan_if_readable(&self, row: &PodRow) -> Result<Option<Plan>, PodError> {
        let plan = match self.plan(row.id) {
            Ok(plan) => plan,
            Err(PodError::Damaged { .. }) => return Ok(None),
            Err(PodError::Io { source, .. }) if pod_dir::is_lost(&source) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut plan = self.added_apps(row.id).unwrap_or_default().onto_plan_of(plan, row);
        self.updated_limits(row.id).unwrap_or_default().apply(&mut plan);
        Ok(Some(plan))
    }

    /// The limits in effect of a pod (`pod`) and of its apps (`apps`, by name), as in a manifest.
    ///
    /// # Errors
    /// [`ManifestError`] when the pod has no plan.
    pub fn limits_in_effect(&self, row: &PodRow) -> Result<serde_json::Value, ManifestError> {
        Ok(json::limits_of_plan(&self.effective_plan(row)?))
    }

    /// Everything about a pod beyond its status: `manifest`, `plan`, `limits` (those in effect, of the `pod` and of its
    /// `apps`), `journal`, `supervisor` (its status, while it runs), `dir`, `supervisor_log`. Unavailable parts are
    /// null.
    ///
    /// # Errors
    /// [`ManifestError`] when the pod does not exist.
    pub fn inspect(&self, id: PodId) -> Result<serde_json::Value, ManifestError> {
        let view = self.status(id)?;
        let journal = self.journal(id)?;
        let status = view.supervisor().and_then(|_| self.supervisor_status(id).ok());
        let plan = self.plan_if_readable(&view.row)?;
        Ok(serde_json::json!({
            "manifest": self.manifest(id).ok(),
            "limits": plan.as_ref().map(json::limits_of_plan),
            "plan": plan,
            "journal": journal.records,
            "journal_damaged_lines": journal.damaged,
            "supervisor": status,
            "health": self.health_reports(&view.row),
            "dir": view.dir().to_string_lossy(),
            "supervisor_log": self.supervisor_log(id).to_string_lossy(),
        }))
    }
}

fn no_manifest(row: &PodRow) -> ManifestError {
    match row.phase {
        Phase::Embryo | Phase::Preparing => ManifestError::NotYet(row.id),
        Phase::AbortedPrepare { .. } | Phase::Garbage { .. } => ManifestError::None(row.id),
        Phase::Prepared { .. } | Phase::Starting { .. } | Phase::Running { .. } | Phase::Exited { .. } => {
            ManifestError::Lost(row.id)
        }
    }
}

#[cfg(test)]
mod tests;
