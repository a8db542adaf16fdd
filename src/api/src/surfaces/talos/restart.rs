//! Restart: the stop signal, SIGKILL after the grace period, and the next start; the reply follows the start.
//!
//! As in Talos, a sandbox of a kubelet and its containers are only stopped: a container with the stop signal and the
//! grace period, a sandbox at once with SIGKILL, as by StopPodSandbox. For the kubelet, their end is final: it creates
//! others.

use std::time::Duration;

use gantry_engine::model::id::shown;
use gantry_engine::model::{AppName, Phase, PodId};
use gantry_engine::{AppRow, Engine, Observer, PodRow};
use gantry_proto::talos::machine::RestartRequest;
use tonic::Status;
use tracing::warn;

use super::names::{self, Namespace, Selection};
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::kubernetes;
use crate::peer::Peer;
use crate::status;

/// The time between the stop signal and SIGKILL, as Talos has it.
const GRACE: Duration = Duration::from_secs(10);

/// The steps of a restart.
#[derive(Debug)]
enum RestartPlan {
    /// Starts a pod that has exited, or that was prepared.
    StartPod(PodId),
    /// Restarts apps of a running pod, or starts those that have exited.
    RestartApps(PodId, Vec<AppName>),
    /// Stops the sandbox of a kubelet, as StopPodSandbox does.
    StopSandbox(PodId),
    /// Stops a container of it.
    StopContainer(PodId, AppName),
}

/// Restarts an app, or the apps of a pod; what has exited is started. Nothing of a kubelet's sandbox is started.
///
/// # Errors
/// NOT_FOUND; FAILED_PRECONDITION: an app of a pod that has exited, with others, or a container of a kubelet that does
/// not run; the errors of the engine.
pub(super) async fn restart(
    context: &Context,
    writer: &Bridge<Engine>,
    peer: Peer,
    request: RestartRequest,
) -> Result<(), Status> {
    let (namespace, _) = Namespace::parse(&request.namespace, request.driver)?;
    if namespace == Namespace::System && request.id == names::DAEMON {
        return Err(Status::failed_precondition("gantryd does not restart itself: restart its service"));
    }
    let id = request.id.clone();
    let find = move |observer: &Observer| {
        names::find(observer, &namespace, &id).and_then(|selection| plan_restart(observer, selection, &id))
    };
    let plan = context.reader.call(peer, Weight::Light, find).await?;
    writer.call(peer, Weight::Heavy, move |engine| execute(engine, plan)).await
}

fn execute(engine: &Engine, plan: RestartPlan) -> Result<(), Status> {
    match plan {
        RestartPlan::StartPod(pod) => engine.start_again(pod).map(drop).map_err(|error| status::from_error(&error)),
        RestartPlan::RestartApps(pod, apps) => apps
            .iter()
            .try_for_each(|app| engine.restart_app(pod, app, GRACE))
            .map_err(|error| status::from_error(&error)),
        RestartPlan::StopSandbox(pod) => stop_sandbox(engine, pod),
        RestartPlan::StopContainer(pod, app) => {
            engine.stop_app(pod, &app, GRACE).map_err(|error| status::from_error(&error))
        }
    }
}

/// Stops a sandbox with SIGKILL, and releases its networks. Does nothing more if that is done.
fn stop_sandbox(engine: &Engine, pod: PodId) -> Result<(), Status> {
    let stopped = engine.stop(pod, Duration::ZERO).map_err(|error| status::from_error(&error))?;
    if let Some(why) = stopped.unwritten {
        warn!("the end of sandbox {pod} is not recorded: {why}");
    }
    engine.release_networks(pod).map_err(|error| status::from_error(&error))
}

fn plan_restart(observer: &Observer, selection: Selection, id: &str) -> Result<RestartPlan, Status> {
    let pod = selection.pod;
    let view = observer.pod(&pod.into()).map_err(|error| status::from_error(&error))?;
    if kubernetes::is_sandbox(&view.row) {
        return plan_stop(&view.row, selection.app, id);
    }
    let apps = view.row.apps;
    match (selection.app, matches!(view.row.phase, Phase::Running { .. })) {
        (Some(app), true) => Ok(RestartPlan::RestartApps(pod, vec![app.name])),
        // Apps that have exited stay so while others run.
        (None, true) => {
            let some_run = apps.iter().any(|app| app.state.is_running());
            let chosen = apps.into_iter().filter(|app| app.state.is_running() || !some_run);
            Ok(RestartPlan::RestartApps(pod, chosen.map(|app| app.name).collect()))
        }
        (Some(_), false) if apps.len() > 1 => {
            let id = shown(id);
            Err(Status::failed_precondition(format!("container \"{id}\" is not running: restart its pod, {pod}")))
        }
        (_, false) => Ok(RestartPlan::StartPod(pod)),
    }
}

/// The plan for a sandbox of a kubelet, or a container of it.
fn plan_stop(sandbox: &PodRow, container: Option<AppRow>, id: &str) -> Result<RestartPlan, Status> {
    let Some(container) = container else { return Ok(RestartPlan::StopSandbox(sandbox.id)) };
    if container.state.is_running() && matches!(sandbox.phase, Phase::Running { .. }) {
        return Ok(RestartPlan::StopContainer(sandbox.id, container.name));
    }
    let id = shown(id);
    Err(Status::failed_precondition(format!("container \"{id}\" is not running: its kubelet creates another one")))
}
