//! The record of the apps that were added to a running pod: `added.json` of the pod directory, beside the plan and the
//! manifest, which describe the pod as it was created.
//!
//! Written before the supervisor is asked to add an app, while the lock on `apps.lock` is held. So an entry without a
//! row is the leftover of a command that was killed, and the next one drops it; or the row was lost with the database,
//! if the supervisor has the app. Manifests, `inspect` and the adoption of pods and apps whose rows were lost read it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use gantry_contract::plan::{App, Plan};
use gantry_host::lock::{LockMode, LockedFile};
use gantry_model::PodId;
use gantry_model::spec::VolumeSpec;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::pods::pod_dir;
use crate::pods::restart::has_restart_policy;
use crate::{Engine, PodError};

/// The record.
pub(crate) const ADDED: &str = "added.json";
/// The lock of processes that add apps to a pod or remove them.
const APPS_LOCK: &str = "apps.lock";
const MAX_ADDED: u64 = 64 << 20;

/// The apps that were added, in order.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct AddedApps {
    pub(crate) apps: Vec<AddedApp>,
}

/// An app that was added.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AddedApp {
    /// The app as the supervisor got it.
    pub(crate) app: App,
    /// The volumes that it brought along.
    pub(crate) volumes: Vec<VolumeSpec>,
    /// The app as requested, as in the pod manifest.
    pub(crate) manifest: serde_json::Value,
}

impl AddedApps {
    /// The plan with these apps and their volumes.
    pub(crate) fn onto(self, mut plan: Plan) -> Plan {
        for added in self.apps {
            plan.apps.push(added.app);
            plan.volumes.extend(added.volumes);
        }
        plan
    }
}

/// The right to add apps to a pod and to remove them. Released when it is dropped, or when the process dies.
pub(crate) type AppsLock = LockedFile<OwnedFd>;

impl Engine {
    /// Waits until no other process adds apps to the pod or removes them. `None`: one still does after this time.
    pub(crate) fn lock_apps(&self, id: PodId, within: Duration) -> Result<Option<AppsLock>, PodError> {
        let path = self.pod_dir(id).join(APPS_LOCK);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        let file = opened.map_err(|errno| match errno {
            Errno::NOENT => PodError::NotFound(id.into()),
            errno => PodError::io("open the lock", &path)(errno),
        })?;
        let locked = LockedFile::lock_within(file, LockMode::Exclusive, within, |_, _| Ok(()));
        locked.map_err(PodError::io("lock", path))
    }

    /// The apps that were added to a pod.
    pub(crate) fn added_apps(&self, id: PodId) -> Result<AddedApps, PodError> {
        let path = self.pod_dir(id).join(ADDED);
        match pod_dir::read(&path, MAX_ADDED) {
            // A power cut has emptied it: gantryd does not start the pod again, and its apps have ended.
            Ok(bytes) if bytes.is_empty() => Ok(AddedApps::default()),
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| PodError::Damaged {
                id,
                file: ADDED,
                why: error.to_string(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(AddedApps::default()),
            Err(error) => Err(PodError::io("read", path)(error)),
        }
    }

    /// Writes the record in place of the last one. A durable record is one of a pod that gantryd starts again with
    /// these apps, also after a power cut. Another one is faster to write, and [`Self::remove_temporary_record`] then
    /// removes the one that it replaced.
    pub(crate) fn write_added_apps(
        &self,
        id: PodId,
        added: &AddedApps,
        durable: bool,
        _lock: &AppsLock,
    ) -> Result<(), PodError> {
        let dir = self.pod_dir(id);
        match durable {
            true => pod_dir::replace_durably(&dir, ADDED, pod_dir::NEW_ADDED, added),
            false => pod_dir::exchange(&dir, ADDED, pod_dir::NEW_ADDED, added),
        }
    }

    /// Removes the older record that [`Self::write_added_apps`] has replaced, or what a killed process left of it. It
    /// frees a block of the disk, which may take longer than all else that is done for the record.
    pub(crate) fn remove_temporary_record(&self, id: PodId, _lock: &AppsLock) {
        let _absent_or_left_for_rm = std::fs::remove_file(self.pod_dir(id).join(pod_dir::NEW_ADDED));
    }

    /// Drops an app from the record.
    pub(crate) fn forget_added_app(&self, id: PodId, app: &str, lock: &AppsLock) -> Result<(), PodError> {
        let mut added = self.added_apps(id)?;
        let before = added.apps.len();
        added.apps.retain(|added| added.app.name != app);
        if added.apps.len() < before {
            let row = self.store.pod(id).map_err(PodError::store)?;
            self.write_added_apps(id, &added, row.as_ref().is_some_and(has_restart_policy), lock)?;
            self.remove_temporary_record(id, lock);
        }
        Ok(())
    }
}
