//! ReopenContainerLog and UpdateContainerResources. No thread waits for the supervisor, which may have hung.

use std::os::fd::AsFd as _;

use gantry_engine::{Engine, LimitsUpdate};
use gantry_model::{ErrorKind, Kind as _, Phase};
use gantry_proto::cri::v1::LinuxContainerResources;
use tokio::time::sleep;
use tonic::Status;
use tracing::warn;

use super::super::reply::{finish, wait_for_reply};
use super::record::ContainerRecord;
use super::{FoundContainer, find_or_fail, find_running, from_error_with_fields, missing, resources};
use crate::bridge::{Bridge, Weight};
use crate::peer::Peer;
use crate::status::from_error;

/// Opens the log of a container anew at its path, after its client has renamed it.
///
/// # Errors
/// `NOT_FOUND` if there is no such container, `FAILED_PRECONDITION` if it is not running, and the engine's errors.
pub(in super::super) async fn reopen_log(writer: &Bridge<Engine>, peer: Peer, id: String) -> Result<(), Status> {
    let begin = move |engine: &Engine| {
        let FoundContainer { sandbox, app } = find_running(engine, &id)?;
        engine.begin_reopen_log(sandbox.id, &app.name).map_err(|error| from_error(&error))
    };
    let request = writer.call(peer, Weight::Heavy, begin).await?;
    finish(request).await?.map_err(|error| from_error(&error))
}

/// Changes the resources of a container; a field of zero stays as it is. Those of a container whose sandbox has ended
/// are only recorded.
///
/// # Errors
/// `NOT_FOUND` if there is no such container, `INVALID_ARGUMENT` or `UNIMPLEMENTED` for a field, and the engine's
/// errors. After a failure the former resources are in effect.
pub(in super::super) async fn update_resources(
    writer: &Bridge<Engine>,
    peer: Peer,
    id: String,
    resources: LinuxContainerResources,
) -> Result<(), Status> {
    let mut attempt = 1;
    loop {
        let (begun, requested) = (id.clone(), resources.clone());
        let begin = move |engine: &Engine| begin_update(engine, &begun, requested);
        let update = writer.call(peer, Weight::Heavy, begin).await?;
        if let Some(update) = &update {
            // After a failure, finishing waits for the reply: the change may be in effect, and has to be recorded.
            let _finished_anyway = wait_for_reply(update.as_fd(), LimitsUpdate::TIMEOUT).await;
        }
        let (begun, requested) = (id.clone(), resources.clone());
        let is_last = attempt == LimitsUpdate::MAX_ATTEMPTS;
        let finish = move |engine: &Engine| finish_update(engine, &begun, requested, update, is_last);
        if writer.call(peer, Weight::Heavy, finish).await? {
            return Ok(());
        }
        attempt += 1;
        sleep(LimitsUpdate::BUSY_INTERVAL).await;
    }
}

/// Sends the change to the supervisor; `None` if the sandbox does not run or nothing changes.
fn begin_update(engine: &Engine, id: &str, resources: LinuxContainerResources) -> Result<Option<LimitsUpdate>, Status> {
    let FoundContainer { sandbox, app } = find_or_fail(engine, id)?;
    let record = ContainerRecord::of(&app).ok_or_else(|| missing(id))?;
    let former = record.config.linux.and_then(|linux| linux.resources).unwrap_or_default();
    let changes = resources::changes(&resources::with_swap(&former, resources))?;
    if !matches!(sandbox.phase, Phase::Running { .. }) || changes.is_empty() {
        return Ok(None);
    }
    let begun = engine.begin_limits_update(sandbox.id, &app.name, &changes);
    begun.map(Some).map_err(|error| from_error_with_fields(&error))
}

/// Records the change once it is in effect; `false`: another call was changing the limits, and the caller tries again
/// unless this attempt is its last.
fn finish_update(
    engine: &Engine,
    id: &str,
    resources: LinuxContainerResources,
    update: Option<LimitsUpdate>,
    is_last: bool,
) -> Result<bool, Status> {
    match update.map(|update| engine.finish_limits_update(update)).transpose() {
        Ok(warnings) => warnings.iter().flatten().for_each(|warning| warn!("resources of container {id}: {warning}")),
        Err(error) if error.kind() == ErrorKind::Busy && !is_last => return Ok(false),
        Err(error) => return Err(from_error_with_fields(&error)),
    }
    let FoundContainer { sandbox, app } = find_or_fail(engine, id)?;
    let mut record = ContainerRecord::of(&app).ok_or_else(|| missing(id))?;
    let linux = record.config.linux.get_or_insert_default();
    let former = linux.resources.take().unwrap_or_default();
    let resources = resources::with_swap(&former, resources);
    linux.resources = Some(resources::merged(former, resources));
    let (key, value) = record.config_annotation();
    engine.annotate_app(sandbox.id, &app.name, key, &value).map_err(|error| from_error(&error))?;
    Ok(true)
}
