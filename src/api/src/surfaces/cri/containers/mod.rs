//! Containers: the calls that create, start, stop and remove them, and those that show them.
//!
//! A container is an app of a sandbox. Its id is the app's, and the name of the app, which is unique in the sandbox, is
//! made of the metadata: a second call with the same metadata fails while the first is under way. It is released with
//! the app. A sandbox that has ended keeps its containers until they are removed.
//!
//! | call | killed, failed or cancelled | becomes |
//! |---|---|---|
//! | CreateContainer | before the app is created | nothing: the engine undoes it |
//! | CreateContainer | afterwards, by its client | nothing: this call removes the app |
//! | CreateContainer | afterwards, with gantryd | a container that was created, and is listed |
//! | StartContainer | before the program is executed | created |
//! | StartContainer | the program cannot be executed | exited, with the reason `StartError` |
//! | StartContainer | the sandbox has ended | exited, with the reason `Unknown`, as without the call |
//! | StopContainer | after the stop signal | running, until the grace period of the supervisor is over |
//! | RemoveContainer | any time | as before, or gone |

mod changes;
mod config;
mod exec_sync;
mod fields;
mod list;
mod mounts;
mod namespaces;
mod record;
mod resources;
mod security;
mod stop;
mod user;

use std::sync::atomic::{AtomicBool, Ordering};

use gantry_engine::{AppRow, CONTAINER_START_ERROR, Engine, Observer, PodError, PodRow, PullPolicy, now};
use gantry_model::id::shown;
use gantry_model::{AppId, AppName, AppState, ErrorKind, Kind as _, Phase, PodId};
use gantry_proto::cri::v1::ContainerConfig;
use tonic::Status;
use tracing::{info, warn};

pub(super) use self::changes::{reopen_log, update_resources};
pub(super) use self::exec_sync::{exec_sync, wait_for_start};
pub(super) use self::fields::{from_error_with_fields, with_fields};
pub(super) use self::list::{ContainerSelector, attributes, list, status, statuses};
use self::record::{ContainerRecord, START_ERROR_TIME};
pub(super) use self::stop::stop;
use super::sandbox::{self, NoProgress};
use crate::claims::Claims;
use crate::status::{self as statuses, from_error};

/// The exit code of a container that could not be started.
pub(super) const START_ERROR_CODE: i32 = 128;

/// A container: an app, and the pod that is its sandbox.
#[derive(Debug, Clone)]
pub(super) struct FoundContainer {
    /// The sandbox.
    pub(super) sandbox: PodRow,
    /// The app.
    pub(super) app: AppRow,
}

impl FoundContainer {
    /// Whether its stdin ends with the first client that attaches to it.
    pub(super) fn stdin_once(&self) -> bool {
        ContainerRecord::of(&self.app).is_some_and(|record| record.config.stdin_once)
    }
}

/// A handle that finds containers.
pub(super) trait ContainerSource {
    /// The apps whose ids begin with these digits.
    ///
    /// # Errors
    /// The engine's errors.
    fn apps_with_id_prefix(&self, prefix: &str) -> Result<Vec<(PodId, AppName)>, Status>;

    /// The pod with this id; `None`: it is gone.
    ///
    /// # Errors
    /// The engine's errors.
    fn pod(&self, id: PodId) -> Result<Option<PodRow>, Status>;
}

impl ContainerSource for Engine {
    fn apps_with_id_prefix(&self, prefix: &str) -> Result<Vec<(PodId, AppName)>, Status> {
        self.apps_with_id_prefix(prefix).map_err(|error| from_error(&error))
    }

    fn pod(&self, id: PodId) -> Result<Option<PodRow>, Status> {
        match self.status(id) {
            Ok(view) => Ok(Some(*view.row)),
            Err(PodError::NotFound(_)) => Ok(None),
            Err(error) => Err(from_error(&error)),
        }
    }
}

impl ContainerSource for Observer {
    fn apps_with_id_prefix(&self, prefix: &str) -> Result<Vec<(PodId, AppName)>, Status> {
        self.apps_with_id_prefix(prefix).map_err(|error| from_error(&error))
    }

    fn pod(&self, id: PodId) -> Result<Option<PodRow>, Status> {
        self.row(id).map_err(|error| from_error(&error))
    }
}

/// The container with this id, or with this prefix of the id of no other container. `None`: there is none. Apps that
/// were not made through the CRI or are being created do not count: their ids are not the client's.
///
/// # Errors
/// `INVALID_ARGUMENT` if the id is empty or the prefix is of several containers, and the engine's errors.
pub(super) fn find(source: &impl ContainerSource, id: &str) -> Result<Option<FoundContainer>, Status> {
    if id.is_empty() {
        return Err(statuses::invalid_field("container_id", "it is empty"));
    }
    let id = id.to_ascii_lowercase();
    if !AppId::is_prefix(&id) {
        return Ok(None);
    }
    let mut found = None;
    for (pod, name) in source.apps_with_id_prefix(&id)? {
        let Some(sandbox) = source.pod(pod)? else { continue };
        let app = sandbox.apps.iter().find(|app| app.name == name && app.id.as_str().starts_with(&id)).cloned();
        let Some(app) = app.filter(is_container) else { continue };
        if found.replace(FoundContainer { sandbox, app }).is_some() {
            let why = format!("{id} is the beginning of the ids of several containers: give more digits");
            return Err(statuses::invalid_field("container_id", &why));
        }
    }
    Ok(found)
}

/// The container with this id, as [`find`].
///
/// # Errors
/// `NOT_FOUND` if there is no such container, and the errors of [`find`].
pub(super) fn find_or_fail(source: &impl ContainerSource, id: &str) -> Result<FoundContainer, Status> {
    find(source, id)?.ok_or_else(|| missing(id))
}

/// The container with this id, as [`find`], if it runs.
///
/// # Errors
/// `NOT_FOUND` if there is no such container, `FAILED_PRECONDITION` if it is not running, and the errors of [`find`].
pub(super) fn find_running(source: &impl ContainerSource, id: &str) -> Result<FoundContainer, Status> {
    let found = find_or_fail(source, id)?;
    match found.app.state {
        AppState::Started { .. } if matches!(found.sandbox.phase, Phase::Running { .. }) => Ok(found),
        state => {
            Err(Status::failed_precondition(format!("container {} is {} and does not run", found.app.id, state.name())))
        }
    }
}

fn missing(id: &str) -> Status {
    Status::not_found(format!("there is no container '{}'", shown(id)))
}

/// Whether the app was made through the CRI, and its creation was completed.
fn is_container(app: &AppRow) -> bool {
    !matches!(app.state, AppState::Creating | AppState::Waiting) && record::metadata(&app.annotations).is_some()
}

/// Creates a container in a sandbox that is ready.
///
/// # Errors
/// `INVALID_ARGUMENT` or `UNIMPLEMENTED` for the configuration, `NOT_FOUND` if there is no such sandbox or the image is
/// not in the store, `FAILED_PRECONDITION` if the sandbox is not ready, `ALREADY_EXISTS` if it has a container of this
/// metadata, and the engine's errors. A failure leaves nothing behind.
pub(super) fn create(
    engine: &Engine,
    sandbox_id: &str,
    config: ContainerConfig,
    ended: &AtomicBool,
) -> Result<AppId, Status> {
    let sandbox = sandbox::find_ready(engine, sandbox_id)?;
    let spec = config::app_spec(engine, &sandbox, config)?;
    let name = spec.app.name.clone();
    let added = engine.add_app(sandbox.id, spec, PullPolicy::Never, &NoProgress);
    added.map_err(|error| from_error_with_fields(&error))?;
    if ended.load(Ordering::Acquire) {
        info!("container '{name}' of sandbox {} is removed, because its call was cancelled", sandbox.id);
        if let Err(error) = engine.remove_app(sandbox.id, &name, true) {
            warn!("cannot remove container '{name}' of sandbox {}: {}", sandbox.id, from_error(&error).message());
        }
        return Err(Status::cancelled("the call was cancelled before the container was created"));
    }
    let row = engine.status(sandbox.id).map_err(|error| from_error(&error))?.row;
    let app = row.apps.into_iter().find(|app| app.name == name);
    app.map(|app| app.id).ok_or_else(|| Status::aborted("the container was removed as soon as it was created"))
}

/// The containers that this process is starting.
static STARTING: Claims<AppId> = Claims::new();

/// Starts a container that was created.
///
/// # Errors
/// `NOT_FOUND` if there is no such container, `FAILED_PRECONDITION` if it was started before, another call is starting
/// it or its sandbox has ended, and the engine's errors, after which the container has exited.
pub(super) fn start(engine: &Engine, id: &str) -> Result<(), Status> {
    let id = find_or_fail(engine, id)?.app.id;
    let _claim = STARTING
        .claim(id.clone())
        .map_err(|_claimed| Status::failed_precondition(format!("container {id} is already being started")))?;
    // Another call may have started it before this one had the claim.
    let id = id.as_str();
    let FoundContainer { sandbox, app } = find_or_fail(engine, id)?;
    if app.state != AppState::Created || app.annotations.contains_key(CONTAINER_START_ERROR) {
        let state = if app.state.is_running() { "runs already" } else { "has exited" };
        return Err(Status::failed_precondition(format!("container {} {state}: create another one", app.id)));
    }
    if !may_be_started(&sandbox, &app) {
        let why = format!("the sandbox of container {} has ended: create another sandbox and container", app.id);
        return Err(Status::failed_precondition(why));
    }
    let Err(error) = engine.start_app(sandbox.id, &app.name) else { return Ok(()) };
    let status = from_error_with_fields(&error);
    // If the sandbox has ended meanwhile, the failure is not the container's own: its status is final without it.
    let is_own = || match find(engine, id) {
        Ok(now) => now.is_some_and(|now| may_be_started(&now.sandbox, &now.app)),
        // Unknown: without the record, the container would look as if it had never been started.
        Err(_) => true,
    };
    if error.kind() != ErrorKind::Busy && is_own() {
        // The time first: the message makes the container one that has exited.
        for (key, value) in
            [(START_ERROR_TIME, now().0.to_string().as_str()), (CONTAINER_START_ERROR, status.message())]
        {
            if let Err(unwritten) = engine.annotate_app(sandbox.id, &app.name, key, value) {
                warn!("the failed start of container {} is not recorded: {}", app.id, from_error(&unwritten).message());
            }
        }
    }
    Err(status)
}

fn may_be_started(sandbox: &PodRow, app: &AppRow) -> bool {
    matches!(sandbox.phase, Phase::Running { .. }) && app.state == AppState::Created
}

/// Removes a container; one that runs is killed. Its log stays. Does nothing if it does not exist.
///
/// # Errors
/// The engine's errors.
pub(super) fn remove(engine: &Engine, id: &str) -> Result<(), Status> {
    let Some(FoundContainer { sandbox, app }) = find(engine, id)? else { return Ok(()) };
    stop::kill(engine, &sandbox, &app)?;
    match engine.remove_app(sandbox.id, &app.name, true) {
        Ok(()) => Ok(()),
        // Another call has removed it.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(from_error(&error)),
    }
}
