//! ServiceStart, ServiceStop and ServiceRestart. A pod is started, also again when it has exited, and stopped; a
//! restart of a running pod restarts its running apps. The parts of gantryd run as long as it does. The sandbox of a
//! kubelet can only be stopped: only its kubelet starts anything of it.

use gantry_engine::{Observer, is_kubelet_sandbox};
use gantry_model::id::shown;
use gantry_proto::talos::machine::service_state_event::Action;
use tonic::Status;

use super::node::Node;
use super::pod_change::PodChange;
use super::service_list::{NodeService, pod_state, read_services};
use crate::bridge::Weight;
use crate::peer::Peer;
use crate::request::check_text;

/// A change of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServiceAction {
    /// ServiceStart.
    Start,
    /// ServiceStop.
    Stop,
    /// ServiceRestart.
    Restart,
}

impl ServiceAction {
    fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }

    fn participle(self) -> &'static str {
        match self {
            Self::Start => "started",
            Self::Stop => "stopped",
            Self::Restart => "restarted",
        }
    }
}

/// Changes a service, and returns the text of the reply.
///
/// # Errors
/// `NOT_FOUND` with Talos' text if there is no such service, `FAILED_PRECONDITION` with Talos' text for a part of
/// gantryd and the start of a kubelet's sandbox, and the engine's errors.
pub(super) async fn change_service(
    node: &Node,
    peer: Peer,
    action: ServiceAction,
    id: String,
) -> Result<String, Status> {
    check_text("id", &id)?;
    let config = node.context.config.clone();
    let name = id.clone();
    let plan = move |observer: &Observer| {
        let mut services = read_services(observer, &config)?;
        let by_uuid = |service: &NodeService| service.pod().is_some_and(|pod| pod.to_string() == name);
        let service = match services.remove(&name) {
            Some(service) => service,
            None => services
                .into_values()
                .find(by_uuid)
                .ok_or_else(|| Status::not_found(format!("service \"{}\" not defined", shown(&name))))?,
        };
        plan_change(action, &name, &service)
    };
    let change = node.context.reader.call(peer, Weight::Light, plan).await?;
    if let Some(change) = change {
        node.change_pod(peer, change).await?;
    }
    Ok(format!("Service \"{}\" {}", shown(&id), action.participle()))
}

/// The change of a pod that an action needs. `None`: the service is in the wanted state already, which is a success,
/// before permissions, as in Talos.
fn plan_change(action: ServiceAction, id: &str, service: &NodeService) -> Result<Option<PodChange>, Status> {
    let (pod, state) = match service {
        NodeService::Part(part) => (None, part.state()),
        NodeService::Pod(view) => (Some(view), pod_state(view)),
    };
    let is_running = matches!(state, Action::Running | Action::Starting);
    match (action, is_running) {
        (ServiceAction::Start, true) => return Ok(None),
        // A pod that waits to be started again must not be.
        (ServiceAction::Stop, false) if state != Action::Waiting => return Ok(None),
        _ => {}
    }
    let Some(view) = pod.filter(|view| action == ServiceAction::Stop || !is_kubelet_sandbox(&view.row)) else {
        let (id, action) = (shown(id), action.name());
        let text = format!("service \"{id}\" doesn't support {action} operation via API");
        return Err(Status::failed_precondition(text));
    };
    let pod = view.row.id;
    Ok(Some(match (action, is_running) {
        (ServiceAction::Stop, _) => PodChange::Stop(pod),
        (ServiceAction::Restart, true) => {
            let running = view.row.apps.iter().filter(|app| app.state.is_running());
            PodChange::RestartPod(pod, running.map(|app| app.name.clone()).collect())
        }
        (ServiceAction::Start | ServiceAction::Restart, _) => PodChange::Start(pod),
    }))
}
