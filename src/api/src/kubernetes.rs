//! Sandboxes and containers that a kubelet made: the annotations by which all parts of this crate know them.

use gantry_engine::{AppRow, PodRow};

/// The annotation with the name of a sandbox in Kubernetes.
pub(crate) const SANDBOX_NAME: &str = "gantry/sandbox-name";
/// The annotation with the name of a container in Kubernetes, which is the same for all its attempts.
pub(crate) const CONTAINER_NAME: &str = "gantry/container-name";

/// Whether a pod is the sandbox of a kubelet: only the kubelet starts its containers, and never one that has ended.
pub(crate) fn is_sandbox(pod: &PodRow) -> bool {
    pod.sandbox && pod.user_annotations.contains_key(SANDBOX_NAME)
}

/// The name of a container in Kubernetes; `None`: no kubelet made the app.
pub(crate) fn container_name(app: &AppRow) -> Option<&str> {
    app.annotations.get(CONTAINER_NAME).map(String::as_str)
}
