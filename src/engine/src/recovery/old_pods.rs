//! Pods that format 1 of the database has made: the annotations of their apps are in their manifests only; where a
//! manifest is lost, so are they. gantryd writes them into the rows, so that lists need not read manifests.

use std::collections::BTreeMap;
use std::io;

use gantry_contract::files;
use gantry_contract::plan::Plan;
use gantry_model::PodId;
use gantry_store::AnnotationsByApp;
use rustix::io::Errno;
use serde::Deserialize;

use crate::images::view;
use crate::pods::pod_dir;
use crate::{Engine, PodError, manifest};

/// So many pods are written down in one transaction.
const CHUNK: usize = 200;

impl Engine {
    /// Writes into the rows what only the manifests of old pods say; how many pods that were. Costs next to nothing once
    /// it is done.
    ///
    /// # Errors
    /// [`PodError`]; the next call continues.
    pub fn add_annotations_of_old_pods(&self) -> Result<usize, PodError> {
        let old: Vec<PodId> = self.store.pods_of_format_1().map_err(PodError::store)?.into_iter().collect();
        for ids in old.chunks(CHUNK) {
            let said = ids.iter().map(|&id| Ok((id, self.annotations_in_manifest(id)?)));
            let said: Vec<_> = said.collect::<Result<_, PodError>>()?;
            self.store.add_annotations(&said).map_err(PodError::store)?;
        }
        Ok(old.len())
    }

    /// The annotations of each app in the pod's manifest; empty where there is none.
    pub(crate) fn annotations_in_manifest(&self, id: PodId) -> Result<AnnotationsByApp, PodError> {
        Ok(app_annotations(&self.manifest_as_it_lies(id)?.unwrap_or_default()))
    }

    /// The plan of a pod as it lies on the disk; `None` when it never had one or lost it.
    pub(crate) fn plan_as_it_lies(&self, id: PodId) -> Result<Option<Plan>, PodError> {
        let path = self.pod_dir(id).join(files::PLAN);
        match pod_dir::read(&path, pod_dir::MAX_PLAN) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if is_lost(&error) => Ok(None),
            Err(error) => Err(PodError::io("read the plan", path)(error)),
        }
    }

    /// The manifest of a pod as it lies on the disk; `None` when it never had one or lost it.
    pub(crate) fn manifest_as_it_lies(&self, id: PodId) -> Result<Option<Vec<u8>>, PodError> {
        let path = self.pod_dir(id).join(pod_dir::MANIFEST);
        match pod_dir::read(&path, manifest::MAX_STORED_MANIFEST) {
            Ok(bytes) => Ok(Some(bytes).filter(|bytes| view::is_json(bytes))),
            Err(error) if is_lost(&error) => Ok(None),
            Err(error) => Err(PodError::io("read the manifest", path)(error)),
        }
    }
}

/// Whether there is no such file any more, or something else in its place, or the disk cannot give it back.
fn is_lost(error: &io::Error) -> bool {
    let gone = [Errno::NOENT, Errno::NOTDIR, Errno::ISDIR, Errno::LOOP, Errno::NXIO, Errno::IO];
    error.kind() == io::ErrorKind::InvalidData || Errno::from_io_error(error).is_some_and(|errno| gone.contains(&errno))
}

fn app_annotations(manifest: &[u8]) -> AnnotationsByApp {
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
