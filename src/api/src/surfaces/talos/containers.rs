//! Containers: a row per pod, and one per app of it, exited ones included.

use gantry_engine::{AppRow, Observer, PodView};
use gantry_model::{AppState, Phase};
use gantry_proto::talos::common::ContainerDriver;
use gantry_proto::talos::machine::{Container, ContainerInfo, ContainersRequest};
use tonic::Status;

use super::names::{self, Namespace};
use crate::status;

/// The rows that a request selects.
///
/// # Errors
/// `INVALID_ARGUMENT` for the request, and the store's error if it cannot be read.
pub(super) fn list(observer: &Observer, request: &ContainersRequest) -> Result<Container, Status> {
    let (namespace, driver) = Namespace::parse(&request.namespace, request.driver)?;
    if namespace == Namespace::System {
        return Ok(Container { metadata: None, containers: vec![daemon(&namespace)] });
    }
    let views = observer.pods(&[]).map_err(|error| status::from_error(&error))?;
    let views = views.iter().filter(|view| namespace.contains(&view.row) && was_started(view));
    let mut containers: Vec<ContainerInfo> = views.flat_map(|view| rows(&namespace, driver, view)).collect();
    containers.sort_by(|one, other| one.id.cmp(&other.id));
    Ok(Container { metadata: None, containers })
}

/// gantryd itself.
fn daemon(namespace: &Namespace) -> ContainerInfo {
    let name = names::DAEMON.to_owned();
    ContainerInfo {
        namespace: namespace.name().to_owned(),
        id: name.clone(),
        pod_id: name.clone(),
        name,
        pid: std::process::id(),
        status: "RUNNING".to_owned(),
        ..ContainerInfo::default()
    }
}

/// Whether the pod runs or has run.
pub(super) fn was_started(view: &PodView) -> bool {
    match view.row.phase {
        Phase::Running { .. } | Phase::Exited { .. } | Phase::Starting { .. } => true,
        Phase::Embryo
        | Phase::Preparing
        | Phase::AbortedPrepare { .. }
        | Phase::Prepared { .. }
        | Phase::Garbage { .. } => false,
    }
}

/// The row of a pod and those of its apps.
fn rows(namespace: &Namespace, driver: ContainerDriver, view: &PodView) -> Vec<ContainerInfo> {
    let pod_id = names::pod_id(&view.row);
    let uuid = view.row.id.to_string();
    let is_running = view.supervisor().is_some();
    let status = match (driver, is_running) {
        (ContainerDriver::Containerd, true) if view.row.paused => "PAUSED",
        (ContainerDriver::Containerd, true) => "RUNNING",
        (ContainerDriver::Containerd, false) => "STOPPED",
        (ContainerDriver::Cri, true) => "SANDBOX_READY",
        (ContainerDriver::Cri, false) => "SANDBOX_NOTREADY",
    };
    let pod = ContainerInfo {
        namespace: namespace.name().to_owned(),
        id: pod_id.clone(),
        pod_id: pod_id.clone(),
        name: match driver {
            ContainerDriver::Containerd => uuid.clone(),
            ContainerDriver::Cri => pod_id.clone(),
        },
        pid: view.supervisor().map_or(0, |process| process.pid),
        status: status.to_owned(),
        internal_id: uuid.clone(),
        uid: uuid.clone(),
        ..ContainerInfo::default()
    };
    let apps = view.row.apps.iter().map(|app| ContainerInfo {
        namespace: namespace.name().to_owned(),
        id: names::app_id(&pod_id, names::app_name(app)),
        image: app.image_name.clone(),
        pid: pid(app),
        status: app_status(driver, app, view).to_owned(),
        pod_id: pod_id.clone(),
        name: names::app_name(app).to_owned(),
        internal_id: app.id.to_string(),
        ..ContainerInfo::default()
    });
    std::iter::once(pod).chain(apps).collect()
}

fn pid(app: &AppRow) -> u32 {
    match app.state {
        AppState::Started { pid, .. } => pid,
        AppState::Waiting | AppState::Creating | AppState::Created | AppState::Exited { .. } => 0,
    }
}

fn app_status(driver: ContainerDriver, app: &AppRow, view: &PodView) -> &'static str {
    let (containerd, kubernetes) = match app.state {
        AppState::Waiting | AppState::Creating | AppState::Created => ("CREATED", "CONTAINER_CREATED"),
        AppState::Started { .. } if view.supervisor().is_none() => ("UNKNOWN", "CONTAINER_UNKNOWN"),
        // The CRI has no state for it.
        AppState::Started { .. } if view.row.paused || app.paused => ("PAUSED", "CONTAINER_RUNNING"),
        AppState::Started { .. } => ("RUNNING", "CONTAINER_RUNNING"),
        AppState::Exited { .. } => ("STOPPED", "CONTAINER_EXITED"),
    };
    match driver {
        ContainerDriver::Containerd => containerd,
        ContainerDriver::Cri => kubernetes,
    }
}
