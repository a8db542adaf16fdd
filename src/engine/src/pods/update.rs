//! Changes the limits of a running pod and of its apps.
//!
//! The supervisor sets them and records them in `limits.json` of the pod directory before it replies. That record
//! outranks the plan: also when the app or the pod is started again. A kill of this process leaves the former limits or
//! the new ones. This process syncs the record before it returns if the pod is started again after a power cut.
//!
//! The supervisor also journals each change under a number, and reconciling records it with its event
//! (`crate::pods::reports`). A command that is killed before that leaves the event to the next reconciliation.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::Duration;

use gantry_contract::control::{Reply, Request, UpdateLimits};
use gantry_contract::files;
use gantry_contract::limits::{MAX_RECORD, UpdatedLimits};
use gantry_contract::plan::Plan;
use gantry_host::file::sync_path;
use gantry_host::stamp::FileStamp;
use gantry_model::id::shown;
use gantry_model::spec::{LimitChange, Limits};
use gantry_model::{AppName, ErrorKind, Kind as _, Phase, PodId};
use gantry_store::PodRow;

use crate::error::need_root;
use crate::pods::control::{CONNECT_TIMEOUT, ControlError, REPLY_TIMEOUT, SentRequest, unexpected};
use crate::pods::exec::select_app;
use crate::pods::pod_dir;
use crate::pods::restart::has_restart_policy;
use crate::{Engine, EngineError, PodError};

/// A change of limits that was requested of the supervisor.
#[derive(Debug)]
pub struct LimitsUpdate {
    id: PodId,
    /// The pod is started again, with the new limits.
    restarts: bool,
    request: SentRequest<Result<Vec<String>, EngineError>>,
}

impl LimitsUpdate {
    /// The time limit from the request to the reply.
    pub const TIMEOUT: Duration = REPLY_TIMEOUT;
    /// Attempts at a change while other processes change the same limits.
    pub const MAX_ATTEMPTS: usize = 20;
    /// The pause between them.
    pub const BUSY_INTERVAL: Duration = Duration::from_millis(10);
}

impl AsFd for LimitsUpdate {
    /// Readable when the reply has come: then [`Engine::finish_limits_update`] waits for the disk at most.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.request.as_fd()
    }
}

impl Engine {
    /// Changes limits of an app of a running pod, or of the whole pod: all of them, or none. Returns warnings about
    /// limits without effect on this host.
    ///
    /// # Errors
    /// [`EngineError`]: an invalid limit, or one that the kernel refuses; the former limits are in effect then.
    pub fn update_limits(
        &self,
        id: PodId,
        app: Option<&AppName>,
        changes: &[LimitChange],
    ) -> Result<Vec<String>, EngineError> {
        let mut attempts = 1;
        loop {
            let update = self.request_limits(id, app, changes, REPLY_TIMEOUT)?;
            match self.finish_limits_update(update) {
                Err(error) if error.kind() == ErrorKind::Busy && attempts < LimitsUpdate::MAX_ATTEMPTS => {
                    std::thread::sleep(LimitsUpdate::BUSY_INTERVAL);
                    attempts += 1;
                }
                result => return result,
            }
        }
    }

    /// Requests the change of limits of an app, without waiting for the reply. [`Self::finish_limits_update`] ends it.
    ///
    /// # Errors
    /// As [`Self::update_limits`].
    pub fn begin_limits_update(
        &self,
        id: PodId,
        app: &AppName,
        changes: &[LimitChange],
    ) -> Result<LimitsUpdate, EngineError> {
        self.request_limits(id, Some(app), changes, CONNECT_TIMEOUT)
    }

    /// Waits for the reply to a change of limits and records the change; returns warnings about limits without effect
    /// on this host.
    ///
    /// # Errors
    /// [`EngineError`]; its kind is `Busy` if another process changes the same limits: nothing was changed, and the
    /// change can be requested again.
    pub fn finish_limits_update(&self, update: LimitsUpdate) -> Result<Vec<String>, EngineError> {
        let LimitsUpdate { id, restarts, request } = update;
        let warnings = request.finish()?;
        if restarts {
            self.sync_updated_limits(id)?;
        }
        match self.reconcile_pod(id) {
            // The pod was removed meanwhile.
            Ok(_) | Err(PodError::NotFound(_)) => Ok(warnings),
            Err(error) => Err(EngineError::from_cause(error)),
        }
    }

    fn request_limits(
        &self,
        id: PodId,
        app: Option<&AppName>,
        changes: &[LimitChange],
        connect_timeout: Duration,
    ) -> Result<LimitsUpdate, EngineError> {
        need_root("change limits").map_err(EngineError::from_cause)?;
        let row = self.reconcile_pod(id).map_err(EngineError::from_cause)?;
        if !matches!(row.phase, Phase::Running { .. }) {
            let why = format!("pod {id} is {}: only the limits of a running pod can be changed", row.phase.name());
            return Err(EngineError::new(ErrorKind::Refused, why));
        }
        if app.is_some() {
            select_app(&row, app).map_err(EngineError::from_cause)?;
        }
        let request = Request::UpdateLimits(Box::new(self.planned_update(&row, app, changes)?));
        let read = move |reply: Result<(Reply, _), ControlError>| match reply.map_err(EngineError::from_cause)?.0 {
            Reply::LimitsUpdated { warnings } => Ok(warnings),
            other => Err(EngineError::from_cause::<ControlError>(unexpected(id, &other))),
        };
        let sent = self.send_request(id, &request, &[], connect_timeout, read);
        let request = sent.map_err(EngineError::from_cause)?;
        Ok(LimitsUpdate { id, restarts: has_restart_policy(&row), request })
    }

    /// Makes the record durable: gantryd starts the pod again with these limits, also after a power cut. The supervisor
    /// does not sync: its event loop must not wait for a disk.
    pub(crate) fn sync_updated_limits(&self, id: PodId) -> Result<(), EngineError> {
        let dir = self.pod_dir(id);
        for path in [dir.join(files::LIMITS), dir] {
            match sync_path(&path) {
                Ok(()) => {}
                // No limit was changed so far, or the pod was removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => {
                    let path = path.display();
                    let text = format!("cannot make the limits of the pod durable: cannot sync '{path}'");
                    return Err(EngineError::new(ErrorKind::of_io(&error), text).caused_by(error));
                }
            }
        }
        Ok(())
    }

    /// The change as the supervisor takes it, with the limits in effect, if the new limits are valid.
    fn planned_update(
        &self,
        row: &PodRow,
        app: Option<&AppName>,
        changes: &[LimitChange],
    ) -> Result<UpdateLimits, EngineError> {
        let id = row.id;
        let plan = self.effective_plan(row).map_err(EngineError::from_cause)?;
        let missing = || EngineError::from_cause(PodError::NotFound(id.into()));
        let planned = app.map(|app| plan.apps.iter().find(|planned| planned.name == app.as_str()).ok_or_else(missing));
        let old = planned.transpose()?.map_or(&plan.limits, |planned| &planned.options.limits).clone();
        let new = old.changed(changes).map_err(EngineError::from_cause)?;
        for planned in &plan.apps {
            let (own, pod) = match app {
                Some(app) if planned.name == app.as_str() => (&new, &plan.limits),
                Some(_) => continue,
                None => (&planned.options.limits, &new),
            };
            own.validate_within(&planned.name, pod).map_err(EngineError::from_cause)?;
        }
        // The kernel needs the devices also of limits that are removed.
        let mut block_devices = block_devices(&new)?;
        block_devices.extend(self::block_devices(&old).unwrap_or_default());
        Ok(UpdateLimits { app: app.map(ToString::to_string), old, new, block_devices })
    }

    /// The present plan of a pod with the limits in effect.
    pub(crate) fn effective_plan(&self, row: &PodRow) -> Result<Plan, PodError> {
        let mut plan = self.present_plan(row)?;
        self.updated_limits(row.id)?.apply(&mut plan);
        Ok(plan)
    }

    /// The limits that were changed while the pod ran. A record that a power cut damaged counts as none, as for the
    /// supervisor.
    pub(crate) fn updated_limits(&self, id: PodId) -> Result<UpdatedLimits, PodError> {
        let path = self.pod_dir(id).join(files::LIMITS);
        let mut stamp = FileStamp::read(&path);
        loop {
            let read = match pod_dir::read(&path, MAX_RECORD) {
                Ok(bytes) => serde_json::from_slice(&bytes).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => UpdatedLimits::default(),
                Err(error) => return Err(PodError::io("read", path)(error)),
            };
            // The supervisor may exchange two files: the second change after the open rewrites the file that is read.
            let now = FileStamp::read(&path);
            if now == stamp {
                return Ok(read);
            }
            stamp = now;
        }
    }
}

/// The numbers (major, minor) of the block devices in limits, by path.
pub(crate) fn block_devices(limits: &Limits) -> Result<BTreeMap<String, (u32, u32)>, EngineError> {
    let number = |device: &gantry_model::spec::DeviceIoLimits| {
        let what = || format!("cannot limit the input and output of '{}'", shown(&device.path));
        let metadata = std::fs::metadata(&device.path)
            .map_err(|error| EngineError::new(ErrorKind::of_io(&error), what()).caused_by(error))?;
        if !metadata.file_type().is_block_device() {
            return Err(EngineError::new(ErrorKind::Invalid, format!("{}: it is not a block device", what())));
        }
        let numbers = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
        Ok((device.path.clone(), numbers))
    };
    limits.io_devices.iter().map(number).collect()
}
