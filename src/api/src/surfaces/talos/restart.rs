//! Restart: the stop signal, SIGKILL after the grace period, and the next start; the reply follows the start. A pod
//! that was only prepared is not started: ServiceStart does that.
//!
//! As in Talos, a sandbox of a kubelet and its containers are only stopped: a container with the stop signal and the
//! grace period, a sandbox at once with SIGKILL, as by StopPodSandbox. For the kubelet, their end is final: it creates
//! others.

use gantry_engine::{AppRow, Observer, PodRow, is_kubelet_sandbox};
use gantry_model::Phase;
use gantry_model::id::shown;
use gantry_proto::talos::machine::RestartRequest;
use tonic::Status;

use super::names::{self, Namespace, Selection};
use super::node::Node;
use super::pod_change::PodChange;
use crate::bridge::Weight;
use crate::peer::Peer;
use crate::status;

/// Restarts an app, or the apps of a pod; what has exited is started. Nothing of a kubelet's sandbox is started.
///
/// # Errors
/// `NOT_FOUND` if there is no such pod or app, `FAILED_PRECONDITION` for a pod that has not been started yet, an app of
/// a pod that has exited with others or a container of a kubelet that does not run, and the engine's errors.
pub(super) async fn restart(node: &Node, peer: Peer, request: RestartRequest) -> Result<(), Status> {
    let (namespace, _) = Namespace::parse(&request.namespace, request.driver)?;
    if namespace == Namespace::System && request.id == names::DAEMON {
        return Err(Status::failed_precondition("gantryd does not restart itself: restart its service"));
    }
    let id = request.id.clone();
    let find = move |observer: &Observer| {
        names::find(observer, &namespace, &id).and_then(|selection| plan_restart(observer, selection, &id))
    };
    let change = node.context.reader.call(peer, Weight::Light, find).await?;
    node.change_pod(peer, change).await
}

fn plan_restart(observer: &Observer, selection: Selection, id: &str) -> Result<PodChange, Status> {
    let pod = selection.pod;
    let view = observer.pod(&pod.into()).map_err(|error| status::from_error(&error))?;
    if is_kubelet_sandbox(&view.row) {
        return plan_stop(&view.row, selection.app, id);
    }
    if matches!(view.row.phase, Phase::Prepared { .. }) {
        let service = names::pod_id(&view.row);
        return Err(Status::failed_precondition(format!(
            "pod {pod} has not been started yet, so it cannot be restarted: start it with ServiceStart of \"{service}\""
        )));
    }
    let apps = view.row.apps;
    match (selection.app, matches!(view.row.phase, Phase::Running { .. })) {
        (Some(app), true) => Ok(PodChange::RestartApp(pod, app.name)),
        // Apps that have exited stay so while others run.
        (None, true) => {
            let some_run = apps.iter().any(|app| app.state.is_running());
            let chosen = apps.into_iter().filter(|app| app.state.is_running() || !some_run);
            Ok(PodChange::RestartPod(pod, chosen.map(|app| app.name).collect()))
        }
        (Some(_), false) if apps.len() > 1 => {
            let id = shown(id);
            Err(Status::failed_precondition(format!("container \"{id}\" is not running: restart its pod, {pod}")))
        }
        (_, false) => Ok(PodChange::Start(pod)),
    }
}

/// The plan for a sandbox of a kubelet, or a container of it.
fn plan_stop(sandbox: &PodRow, container: Option<AppRow>, id: &str) -> Result<PodChange, Status> {
    let Some(container) = container else { return Ok(PodChange::StopSandbox(sandbox.id)) };
    if container.state.is_running() && matches!(sandbox.phase, Phase::Running { .. }) {
        return Ok(PodChange::StopContainer(sandbox.id, container.name));
    }
    let id = shown(id);
    Err(Status::failed_precondition(format!("container \"{id}\" is not running: its kubelet creates another one")))
}
