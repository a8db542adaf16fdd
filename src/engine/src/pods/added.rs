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
use gantry_store::{AppRow, PodRow};
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
    /// The plan of a pod's creation with these apps and their volumes; of both, only the apps that exist. A name may be
    /// used again after its app was removed: an added app is younger than one of its name in the plan.
    pub(crate) fn onto(self, mut plan: Plan, exists: impl Fn(&App) -> bool) -> Plan {
        let mut added = self.apps;
        added.retain(|added| exists(&added.app));
        plan.apps.retain(|app| exists(app) && added.iter().all(|younger| younger.app.name != app.name));
        for added in added {
            plan.apps.push(added.app);
            plan.volumes.extend(added.volumes);
        }
        plan
    }

    /// As [`Self::onto`], for the apps that the pod has by its row.
    pub(crate) fn onto_plan_of(self, plan: Plan, row: &PodRow) -> Plan {
        self.onto(plan, |app| row.apps.iter().any(|known| is_app_of_row(app, known)))
    }
}

/// Whether an app of a plan is the app of this row. One of a plan of an older engine has no id.
fn is_app_of_row(app: &App, row: &AppRow) -> bool {
    match &app.id {
        Some(id) => row.id == *id,
        None => row.name.as_str() == app.name,
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

    /// The present plan of a pod: that of its creation, without the apps that were removed since, and with those that
    /// were added.
    pub(crate) fn present_plan(&self, row: &PodRow) -> Result<Plan, PodError> {
        Ok(self.added_apps(row.id)?.onto_plan_of(self.plan(row.id)?, row))
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
            let row = self.store.pod(id)?;
            self.write_added_apps(id, &added, row.as_ref().is_some_and(has_restart_policy), lock)?;
            self.remove_temporary_record(id, lock);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::AppId;
    use gantry_model::spec::VolumeKind;

    use super::*;
    use crate::manifest::appc::tests::{plan_of, planned_app, row};

    fn app(id: Option<u8>) -> App {
        App { id: id.map(|byte| AppId::from_random([byte; 32])), ..planned_app() }
    }

    /// The plan of a pod that was created with one of these apps, and got the other one later.
    fn present_plan(created: Option<u8>, added: Option<u8>) -> Plan {
        let volume = VolumeSpec { name: "own".parse().unwrap(), kind: VolumeKind::Anonymous, read_only: false };
        let added = AddedApp { app: app(added), volumes: vec![volume], manifest: serde_json::Value::Null };
        // Its app has the id of ones, and no time at which it was added, as after its adoption.
        AddedApps { apps: vec![added] }.onto_plan_of(plan_of(app(created)), &row("a:1", &[]))
    }

    #[test]
    fn ids_tell_apps_of_one_name_apart() {
        let created = plan_of(app(Some(1)));
        // Whether the app of the row is the added one.
        for (created_with, added, is_added) in
            [(Some(2), Some(1), true), (Some(1), Some(2), false), (None, Some(1), true), (None, None, true)]
        {
            let plan = present_plan(created_with, added);
            let want = if is_added { added } else { created_with };
            assert_eq!(plan.apps, [app(want)], "{created_with:?} {added:?}");
            let volumes = created.volumes.len() + usize::from(is_added);
            assert_eq!(plan.volumes.len(), volumes, "{created_with:?} {added:?}");
        }
        assert_eq!(present_plan(Some(2), Some(3)).apps, []);
    }
}
