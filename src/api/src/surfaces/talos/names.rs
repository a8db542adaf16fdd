//! Namespaces, and the ids under which pods and apps are shown and found.
//!
//! | thing | id | pod_id |
//! |---|---|---|
//! | gantryd, in `system` | `gantryd` | `gantryd` |
//! | a pod | its name, or its UUID | the same |
//! | an app of it | `POD:APP` | `POD` |
//! | a pod in `k8s.io` with the labels of a kubelet | `NAMESPACE/NAME` | the same |
//! | an app of it | `NAMESPACE/NAME:APP` | `NAMESPACE/NAME` |
//!
//! APP of a container that a kubelet made is its name in Kubernetes, which all its attempts share.

use gantry_engine::{AppRow, Observer, PodRow, PodView};
use gantry_model::id::shown;
use gantry_model::{PodId, PodNamespace, pod_namespace};
use gantry_proto::talos::common::ContainerDriver;
use gantry_proto::talos::machine::LogsContainer;
use tonic::Status;

use super::containers::was_started;
use crate::kubernetes::container_name;
use crate::request::check_text;
use crate::status;

/// The id of gantryd.
pub(super) const DAEMON: &str = "gantryd";
/// Maximum candidates that an error lists.
const MAX_LISTED: usize = 5;

/// The namespace of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Namespace {
    /// gantryd and its parts.
    System,
    /// That of pods.
    Pods(PodNamespace),
    /// One that no pod can have: it is empty, as in containerd.
    Empty(String),
}

impl Namespace {
    /// Reads the fields `namespace` and `driver`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with Talos' texts.
    pub(super) fn parse(namespace: &str, driver: i32) -> Result<(Self, ContainerDriver), Status> {
        check_text("namespace", namespace)?;
        let driver = ContainerDriver::try_from(driver)
            .map_err(|_| Status::invalid_argument(format!("unsupported driver \"{driver}\"")))?;
        let namespace = match namespace {
            "" => return Err(Status::invalid_argument("namespace can't be empty")),
            PodNamespace::SYSTEM => Self::System,
            other => other.parse().map_or_else(|_| Self::Empty(other.to_owned()), Self::Pods),
        };
        if driver == ContainerDriver::Cri && !namespace.is_kubernetes() {
            return Err(Status::invalid_argument("CRI inspector is supported only for K8s namespace"));
        }
        Ok((namespace, driver))
    }

    /// The name, as in requests and replies.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::System => PodNamespace::SYSTEM,
            Self::Pods(namespace) => namespace.as_str(),
            Self::Empty(name) => name,
        }
    }

    /// Whether it is that of Kubernetes.
    pub(super) fn is_kubernetes(&self) -> bool {
        *self == Self::Pods(PodNamespace::KUBERNETES)
    }

    /// Whether a pod belongs to it.
    pub(super) fn contains(&self, pod: &PodRow) -> bool {
        matches!(self, Self::Pods(namespace) if *namespace == pod.namespace)
    }
}

/// `NAMESPACE/NAME` of a pod that a kubelet made.
fn kubernetes_id(pod: &PodRow) -> Option<String> {
    let is_kubernetes = pod.namespace == PodNamespace::KUBERNETES;
    is_kubernetes.then(|| pod_namespace::kubernetes_id(&pod.user_labels, &pod.user_annotations))?
}

/// Whether a pod is shown as `NAMESPACE/NAME`, which several pods may share.
pub(super) fn has_kubernetes_id(pod: &PodRow) -> bool {
    kubernetes_id(pod).is_some()
}

/// The id under which a pod is shown.
pub(super) fn pod_id(pod: &PodRow) -> String {
    let name = || pod.name.as_ref().map_or_else(|| pod.id.to_string(), ToString::to_string);
    kubernetes_id(pod).unwrap_or_else(name)
}

/// The name under which an app is shown.
pub(super) fn app_name(app: &AppRow) -> &str {
    container_name(app).unwrap_or(app.name.as_str())
}

/// The id under which an app is shown.
pub(super) fn app_id(pod: &str, app: &str) -> String {
    format!("{pod}:{app}")
}

/// A pod, or an app of it, that an id names.
pub(super) struct Selection {
    /// The pod.
    pub(super) pod: PodId,
    /// The app; `None`: the pod itself.
    pub(super) app: Option<AppRow>,
}

/// The pod and the app in an id; `None`: no pod or app has such an id.
fn split_id(id: &str) -> Option<(&str, Option<&str>)> {
    let (pod, app) = match id.rsplit_once(':') {
        Some((pod, app)) => (pod, Some(app)),
        None => (id, None),
    };
    (!pod.is_empty() && app != Some("")).then_some((pod, app))
}

/// The app that is shown under this name, else the one that has it. Among the attempts of a container, the one that
/// runs comes first, then the newest.
fn app_called<'a>(apps: &'a [AppRow], name: &str) -> Option<&'a AppRow> {
    let attempts = || apps.iter().filter(move |app| app_name(app) == name);
    let running = attempts().rfind(|app| app.state.is_running());
    running.or_else(|| attempts().next_back()).or_else(|| apps.iter().find(|app| app.name.as_str() == name))
}

/// Finds a pod or an app by its id, or by the pod's UUID or a prefix of it. Among several of an id, one that runs comes
/// first, then the newest.
///
/// # Errors
/// `NOT_FOUND` with Talos' text if there is none, and `INVALID_ARGUMENT` with the candidates if several run or a prefix
/// has several pods.
pub(super) fn find(observer: &Observer, namespace: &Namespace, id: &str) -> Result<Selection, Status> {
    check_text("id", id)?;
    let none = || Status::not_found(format!("container \"{}\" not found", shown(id)));
    let (pod, app) = split_id(id).ok_or_else(none)?;
    let views = observer.pods(&[]).map_err(|error| status::from_error(&error))?;
    let mut named: Vec<&PodView> = views.iter().filter(|view| namespace.contains(&view.row)).collect();
    let is_exact = |view: &&PodView| pod_id(&view.row) == pod || view.row.id.to_string() == pod;
    let by_id = named.iter().any(is_exact);
    if by_id {
        named.retain(is_exact);
    } else {
        named.retain(|view| view.row.id.to_string().starts_with(&pod.to_lowercase()));
    }
    let running: Vec<&PodView> = named.iter().copied().filter(|view| view.supervisor().is_some()).collect();
    let newest = || named.iter().copied().max_by_key(|view| view.row.created).into_iter().collect();
    let candidates: Vec<&PodView> = match running.is_empty() {
        true if by_id => newest(),
        true => named,
        false => running,
    };
    let view = match &candidates[..] {
        [] => return Err(none()),
        [only] => only,
        several => return Err(ambiguous(id, several)),
    };
    let app = match app {
        None => None,
        Some(name) => Some(app_called(&view.row.apps, name).cloned().ok_or_else(none)?),
    };
    Ok(Selection { pod: view.row.id, app })
}

/// The ids of gantryd, of all pods that were started, and of their apps.
///
/// # Errors
/// The store cannot be read.
pub(super) fn log_ids(observer: &Observer) -> Result<LogsContainer, Status> {
    let views = observer.pods(&[]).map_err(|error| status::from_error(&error))?;
    let views = views.iter().filter(|view| was_started(view));
    let mut ids: Vec<String> = views
        .flat_map(|view| {
            let pod = pod_id(&view.row);
            let apps: Vec<String> = view.row.apps.iter().map(|app| app_id(&pod, app_name(app))).collect();
            std::iter::once(pod).chain(apps)
        })
        .collect();
    ids.push(DAEMON.to_owned());
    ids.sort();
    // The attempts of a container have the same id.
    ids.dedup();
    Ok(LogsContainer { metadata: None, ids })
}

fn ambiguous(id: &str, candidates: &[&PodView]) -> Status {
    let some: Vec<String> = candidates.iter().take(MAX_LISTED).map(|view| view.row.id.to_string()).collect();
    let count = candidates.len();
    Status::invalid_argument(format!("{count} containers are called \"{}\": {}", shown(id), some.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tonic::Code;

    #[test]
    fn namespaces_and_drivers_are_checked() {
        let (cri, containerd) = (ContainerDriver::Cri as i32, ContainerDriver::Containerd as i32);
        assert_eq!(Namespace::parse("k8s.io", cri).unwrap().0, Namespace::Pods(PodNamespace::KUBERNETES));
        assert_eq!(
            Namespace::parse("taloscontainers", containerd).unwrap().0,
            Namespace::Pods(PodNamespace::CONTAINERS)
        );
        assert_eq!(Namespace::parse("x", containerd).unwrap().0.name(), "x");
        assert_eq!(Namespace::parse("a b", containerd).unwrap().0, Namespace::Empty("a b".into()));
        for (namespace, driver, text) in [
            ("system", cri, "CRI inspector is supported only for K8s namespace"),
            ("", containerd, "namespace can't be empty"),
            ("system", 7, "unsupported driver \"7\""),
        ] {
            let status = Namespace::parse(namespace, driver).unwrap_err();
            assert_eq!((status.code(), status.message()), (Code::InvalidArgument, text));
        }
    }

    proptest! {
        #[test]
        fn namespaces_never_panic_and_keep_their_names(namespace: String, driver: i32) {
            if let Ok((parsed, _)) = Namespace::parse(&namespace, driver) {
                prop_assert_eq!(parsed.name(), namespace);
            }
        }

        #[test]
        fn any_text_is_split_without_panic(id: String) {
            if let Some((pod, app)) = split_id(&id) {
                prop_assert_eq!(app.map_or_else(|| pod.to_owned(), |app| app_id(pod, app)), id);
            }
        }

        #[test]
        fn shown_ids_are_split_again(pod in "[a-z0-9./_-]{1,40}", app in "[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?") {
            let id = app_id(&pod, &app);
            prop_assert_eq!(split_id(&id), Some((&pod[..], Some(&app[..]))));
            prop_assert_eq!(split_id(&pod), Some((&pod[..], None)));
        }
    }
}
