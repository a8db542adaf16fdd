//! Sandboxes: RunPodSandbox, StopPodSandbox, RemovePodSandbox, PodSandboxStatus, ListPodSandbox.
//!
//! The name of the pod is made of the sandbox's metadata, so that the store reserves it: a second call with the same
//! metadata fails while the first is under way. It is released with the pod.
//!
//! | RunPodSandbox | left | removed by |
//! |---|---|---|
//! | fails | nothing; after a failed start an aborted preparation | this call |
//! | is cancelled before its pod runs | a running pod | this call |
//! | is killed with gantryd | an aborted preparation, or a running pod, which is listed | the next call with the metadata, or RemovePodSandbox |

mod list;
mod network;
mod quantity;
mod record;
mod spec;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gantry_engine::{
    Engine, Note, PodError, PodRow, PodView, Prepare, PrepareError, Progress, PullPolicy, RunOptions, RunningPod, Show,
};
use gantry_model::id::shown;
use gantry_model::query::PodQuery;
use gantry_model::spec::SpecError;
use gantry_model::{ErrorKind, Kind as _, Phase, PodId, PodPrefix};
use gantry_proto::cri::v1::{PodSandboxConfig, UpdatePodSandboxResourcesRequest, UserNamespace};
use tonic::Status;
use tracing::{info, warn};

pub(super) use self::list::{SandboxFilter, attributes, find_shown, is_listed, list, status, status_of};
use self::record::SandboxRecord;
pub(super) use self::spec::{check_selinux, unsupported};
use super::containers::from_error_with_fields;
use crate::bridge::{Bridge, Weight};
use crate::kubernetes::{StopRight, StopUnderWay, stop_sandbox};
use crate::peer::Peer;
use crate::status;
use crate::supervisors::Supervisors;

/// Ignores the progress of fetches: nothing is fetched.
pub(super) struct NoProgress;

impl Progress for NoProgress {
    fn notify(&self, _note: Note) {}
}

/// Marks a call as ended when it is dropped: with the call, also when the client cancels it.
#[derive(Debug, Default)]
pub(super) struct CallGuard(Arc<AtomicBool>);

impl CallGuard {
    /// Becomes true when the call has ended.
    pub(super) fn ended(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A sandbox to be run.
#[derive(Debug)]
pub(super) struct SandboxRequest {
    /// Its configuration.
    pub(super) config: PodSandboxConfig,
    /// The name of its handler.
    pub(super) runtime_handler: String,
}

/// Runs a sandbox; returns when it is ready.
///
/// # Errors
/// `INVALID_ARGUMENT` or `UNIMPLEMENTED` for the request, `ALREADY_EXISTS` if there is a sandbox of this metadata, and
/// the engine's errors. A failure leaves at most the log directory behind.
pub(super) fn run(
    engine: &Engine,
    supervisors: &Supervisors,
    request: SandboxRequest,
    ended: &AtomicBool,
) -> Result<PodId, Status> {
    let config = request.config.clone();
    let (spec, name) = spec::pod_spec(request)?;
    let networking = match spec.net {
        // The network of the host.
        Some(_) => None,
        None => {
            let settings = network::settings(&config, &spec.dns)?;
            let network = engine.sandbox_network().map_err(|error| from_error_with_fields(&error))?;
            network::warn_of_ignored(&network, &settings, !spec.ports.is_empty(), name.as_str());
            Some((network, settings))
        }
    };
    if let Some(dir) = &spec.log_dir {
        engine.make_log_dir(dir).map_err(|error| from_error_with_fields(&error))?;
    }
    let prepare = || {
        let prepare = Prepare::new(spec.clone(), PullPolicy::Never, &NoProgress)?;
        // Not `remove`: a sandbox that has ended stays until it is removed.
        let options = RunOptions { show: Show::No, remove: false };
        let prepare = prepare.named(Some(name.clone())).to_be_started(options);
        Ok(match networking.clone() {
            Some((network, settings)) => prepare.on_network(network, settings),
            None => prepare,
        })
    };
    let request = || prepare().map_err(|error: SpecError| from_error_with_fields(&error));
    let created = match engine.create(request()?) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && discard_aborted(engine, name.as_str()) => {
            engine.create(request()?)
        }
        created => created,
    };
    let pod = created.map_err(|error: PrepareError| from_error_with_fields(&error))?;
    let id = pod.id();
    match pod.start() {
        Ok(running) => supervisors.keep(running),
        Err(error) => {
            // The name must be free for the next try.
            discard(engine, id);
            return Err(from_error_with_fields(&error));
        }
    }
    if ended.load(Ordering::Acquire) {
        info!("sandbox {id} is removed, because its call was cancelled");
        discard(engine, id);
        return Err(Status::cancelled("the call was cancelled before the sandbox was ready"));
    }
    Ok(id)
}

/// The options of the user namespace that a sandbox was made with, if it had some.
pub(super) fn user_namespace(row: &gantry_engine::PodRow) -> Option<UserNamespace> {
    SandboxRecord::of(row)?.namespaces.userns_options
}

/// Removes what a killed gantryd left of a sandbox of this name. Returns whether the name may be free.
fn discard_aborted(engine: &Engine, name: &str) -> bool {
    match engine.find_pod(name).and_then(|id| engine.status(id)) {
        Ok(view) => match view.row.phase {
            Phase::AbortedPrepare { .. } | Phase::Garbage { .. } => engine.rm(view.row.id, RunningPod::Stop).is_ok(),
            Phase::Embryo
            | Phase::Preparing
            | Phase::Prepared { .. }
            | Phase::Running { .. }
            | Phase::Exited { .. }
            | Phase::Starting { .. } => false,
        },
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Removes a pod that was never a sandbox for its client.
fn discard(engine: &Engine, id: PodId) {
    // A pod that was not started cannot be stopped. Any other failure makes the removal fail as well.
    let _not_started = engine.stop(id, Duration::ZERO);
    match engine.rm(id, RunningPod::Stop) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => warn!("cannot remove pod {id}: {}", status::from_error(&error).message()),
    }
}

/// Stops a sandbox and releases its networks. Does nothing if it does not exist, or no longer. Waits for another call
/// that stops or removes it.
///
/// # Errors
/// The engine's errors, also if a plugin fails to release the network, which the next call repeats.
pub(super) async fn stop(writer: &Bridge<Engine>, peer: Peer, id: String) -> Result<(), Status> {
    in_turn(writer, peer, id, |engine, id| {
        let Some(view) = find(engine, id)? else { return Ok(Turn::Done) };
        // A kubelet repeats the call until the addresses of the pod are free.
        match StopRight::take(view.row.id) {
            Ok(right) => stop_sandbox(engine, &right).map(|()| Turn::Done),
            Err(other) => Ok(Turn::After(other)),
        }
    })
    .await
}

/// Removes a sandbox and its containers; one that runs is stopped. Also removes what a killed gantryd left of one that
/// was never ready. Does nothing if it does not exist. Waits for another call that stops or removes it.
///
/// # Errors
/// The errors of [`stop`], and the engine's errors.
pub(super) async fn remove(writer: &Bridge<Engine>, peer: Peer, id: String) -> Result<(), Status> {
    in_turn(writer, peer, id, |engine, id| {
        let Some(view) = find_made(engine, id)? else { return Ok(Turn::Done) };
        let right = match StopRight::take(view.row.id) {
            Ok(right) => right,
            Err(other) => return Ok(Turn::After(other)),
        };
        if is_listed(&view.row) {
            stop_sandbox(engine, &right)?;
        }
        match engine.rm(view.row.id, RunningPod::Stop) {
            Ok(()) => Ok(Turn::Done),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Turn::Done),
            Err(error) => Err(status::from_error(&error)),
        }
    })
    .await
}

/// What came of a try to stop a sandbox.
enum Turn {
    Done,
    /// This call is to try again after another one.
    After(StopUnderWay),
}

/// Repeats a try until it is done. No thread waits for another call: that may take as long as the plugins of a network.
async fn in_turn(
    writer: &Bridge<Engine>,
    peer: Peer,
    id: String,
    attempt: fn(&Engine, &str) -> Result<Turn, Status>,
) -> Result<(), Status> {
    loop {
        let id = id.clone();
        match writer.call(peer, Weight::Stop, move |engine: &Engine| attempt(engine, &id)).await? {
            Turn::Done => return Ok(()),
            Turn::After(other) => other.wait().await,
        }
    }
}

/// Records the resources of a sandbox.
///
/// # Errors
/// `NOT_FOUND` if there is no such sandbox, and the engine's errors.
pub(super) fn update_resources(engine: &Engine, request: UpdatePodSandboxResourcesRequest) -> Result<(), Status> {
    let id = &request.pod_sandbox_id;
    let row = find(engine, id)?.ok_or_else(|| missing(id))?.row;
    let (key, value) = record::resources_annotation(request);
    engine.annotate_pod(row.id, key, &value).map_err(|error| status::from_error(&error))
}

/// The sandbox with this id or beginning of it. A pod that was not made through the CRI, was never ready, or is being
/// removed, is none.
fn find(engine: &Engine, id: &str) -> Result<Option<PodView>, Status> {
    Ok(find_made(engine, id)?.filter(|view| is_listed(&view.row)))
}

/// The pod with this id or beginning of it that was made through the CRI, in any phase.
fn find_made(engine: &Engine, id: &str) -> Result<Option<PodView>, Status> {
    let Some(prefix) = prefix(id)? else { return Ok(None) };
    let found = match engine.resolve(&prefix).and_then(|id| engine.status(id)) {
        Err(error) if error.ambiguous().is_some() => {
            engine.list(&PodQuery::default()).and_then(|pods| only_sandbox(pods, &prefix, error))
        }
        found => found.map(Some),
    };
    match found {
        Ok(view) => Ok(view.filter(|view| SandboxRecord::of(&view.row).is_some())),
        Err(PodError::NotFound(_)) => Ok(None),
        Err(error) => Err(status::from_error(&error)),
    }
}

/// The only sandbox whose id begins so. Other pods do not count: their ids are not the client's.
///
/// # Errors
/// The given error: there are several.
fn only_sandbox(pods: Vec<PodView>, prefix: &PodPrefix, ambiguous: PodError) -> Result<Option<PodView>, PodError> {
    let begins = |view: &PodView| view.row.id.to_string().starts_with(prefix.as_str());
    let mut found = pods.into_iter().filter(|view| begins(view) && SandboxRecord::of(&view.row).is_some());
    match (found.next(), found.next()) {
        (Some(_), Some(_)) => Err(ambiguous),
        (only, _) => Ok(only),
    }
}

/// The sandbox with this id or beginning of it, which is ready.
///
/// # Errors
/// `NOT_FOUND` if there is no such sandbox, `FAILED_PRECONDITION` if it is not ready, and the engine's errors.
pub(super) fn find_ready(engine: &Engine, id: &str) -> Result<PodRow, Status> {
    let row = find(engine, id)?.ok_or_else(|| missing(id))?.row;
    match row.phase {
        Phase::Running { .. } => Ok(*row),
        // It does not run.
        _ => Err(Status::failed_precondition(format!("sandbox {} is not ready", row.id))),
    }
}

fn missing(id: &str) -> Status {
    Status::not_found(format!("there is no sandbox '{}'", shown(id)))
}

/// The id of a request; `None`: no sandbox has such an id.
fn prefix(id: &str) -> Result<Option<PodPrefix>, Status> {
    if id.is_empty() {
        return Err(status::invalid_field("pod_sandbox_id", "it is empty"));
    }
    Ok(id.parse().ok())
}
