//! Starts of sandboxes and containers that a kubelet made through the CRI. The end of a sandbox or container is final,
//! and the kubelet makes another one; it would not notice that another program has started the old one again.

use gantry_model::{AppState, ErrorKind};
use gantry_store::{AppRow, PodRow};

use crate::EngineError;

/// The annotation of a pod with its name in Kubernetes.
pub const SANDBOX_NAME: &str = "gantry/sandbox-name";

/// The annotation of an app with the name of its container in Kubernetes, which is the same for all its attempts.
pub const CONTAINER_NAME: &str = "gantry/container-name";

/// The annotation of an app with the reason why its container could not be started. For the kubelet, it has exited.
pub const CONTAINER_START_ERROR: &str = "gantry/container-start-error";

/// Whether the pod is the sandbox of a kubelet, which starts its containers.
#[must_use]
pub fn is_kubelet_sandbox(row: &PodRow) -> bool {
    row.sandbox && row.user_annotations.contains_key(SANDBOX_NAME)
}

/// Fails if the app is a container of a kubelet that was started before. Other apps of its sandbox, which users add,
/// are started at any time.
pub(crate) fn check_start(pod: &PodRow, app: &AppRow) -> Result<(), EngineError> {
    if !is_kubelet_container(pod, app) {
        return Ok(());
    }
    let (id, name) = (pod.id, &app.name);
    let why = match app.state {
        AppState::Started { .. } => {
            format!("cannot be restarted: stop it with 'gantry app stop {id}/{name}'; its kubelet makes another one")
        }
        AppState::Exited { .. } => "cannot be started again: its kubelet makes another one".to_owned(),
        AppState::Waiting | AppState::Creating | AppState::Created => {
            if !app.annotations.contains_key(CONTAINER_START_ERROR) {
                return Ok(());
            }
            "could not be started and cannot be started again: its kubelet makes another one".to_owned()
        }
    };
    Err(EngineError::new(
        ErrorKind::Refused,
        format!("app '{name}' of pod {id} is a container of Kubernetes and {why}"),
    ))
}

fn is_kubelet_container(pod: &PodRow, app: &AppRow) -> bool {
    is_kubelet_sandbox(pod) && app.annotations.contains_key(CONTAINER_NAME)
}
