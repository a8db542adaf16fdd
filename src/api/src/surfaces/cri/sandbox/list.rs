//! PodSandboxStatus and ListPodSandbox: the rows of pods as sandboxes.

use std::collections::HashMap;
use std::net::IpAddr;

use gantry_engine::{Observer, PodError, PodRow, now};
use gantry_model::{FormerPhase, Phase};
use gantry_proto::cri::v1::{
    LinuxContainerResources, LinuxPodSandboxStatus, ListPodSandboxResponse, Namespace, PodIp, PodSandbox,
    PodSandboxAttributes, PodSandboxFilter, PodSandboxNetworkStatus, PodSandboxState, PodSandboxStatus,
    PodSandboxStatusResponse,
};
use tonic::Status;

use super::super::containers;
use super::missing;
use super::record::{SandboxRecord, requested_annotations, resources};
use crate::request::check_text;
use crate::status;

/// The conditions of ListPodSandbox; all of them must hold.
#[derive(Debug, Default)]
pub(in super::super) struct SandboxFilter {
    /// The id, or its beginning.
    id: String,
    state: Option<PodSandboxState>,
    labels: HashMap<String, String>,
}

impl SandboxFilter {
    /// Reads the filter of a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(in super::super) fn parse(filter: Option<PodSandboxFilter>) -> Result<Self, Status> {
        let PodSandboxFilter { id, state, label_selector } = filter.unwrap_or_default();
        check_text("filter.id", &id)?;
        let state = state.map(|value| {
            PodSandboxState::try_from(value.state)
                .map_err(|_| status::invalid_field("filter.state", &format!("there is no state {}", value.state)))
        });
        Ok(Self { id: id.to_ascii_lowercase(), state: state.transpose()?, labels: label_selector })
    }

    fn matches(&self, sandbox: &PodSandbox) -> bool {
        sandbox.id.starts_with(&self.id)
            && self.state.is_none_or(|state| state == sandbox.state())
            && self.labels.iter().all(|(key, value)| sandbox.labels.get(key) == Some(value))
    }
}

/// The sandboxes that a filter selects, oldest first.
///
/// # Errors
/// The engine's errors.
pub(in super::super) fn list(observer: &Observer, filter: &SandboxFilter) -> Result<ListPodSandboxResponse, Status> {
    let pods = observer.pods(&[]).map_err(|error| status::from_error(&error))?;
    let mut items: Vec<_> =
        pods.iter().filter_map(|view| sandbox(&view.row)).filter(|item| filter.matches(item)).collect();
    items.sort_by_key(|item| item.created_at);
    Ok(ListPodSandboxResponse { items })
}

/// Whether the pod is a sandbox of the CRI.
pub(in super::super) fn is_listed(row: &PodRow) -> bool {
    state(&row.phase).is_some() && SandboxRecord::of(row).is_some()
}

fn sandbox(row: &PodRow) -> Option<PodSandbox> {
    let SandboxRecord { metadata, namespaces: _ } = SandboxRecord::of(row)?;
    Some(PodSandbox {
        id: row.id.to_string(),
        metadata: Some(metadata),
        state: state(&row.phase)?.into(),
        created_at: row.created.0,
        labels: row.user_labels.clone().into_iter().collect(),
        annotations: requested_annotations(row),
        // Only the default handler exists.
        runtime_handler: String::new(),
    })
}

/// The attributes of a sandbox; `None`: the pod is none.
pub(in super::super) fn attributes(row: &PodRow) -> Option<PodSandboxAttributes> {
    let PodSandbox { id, metadata, labels, annotations, .. } = sandbox(row)?;
    Some(PodSandboxAttributes { id, metadata, labels, annotations })
}

/// The sandbox with this id or beginning of it.
///
/// # Errors
/// `NOT_FOUND` if there is no such sandbox, and the engine's errors.
pub(in super::super) fn find_shown(observer: &Observer, id: &str) -> Result<PodRow, Status> {
    let Some(prefix) = super::prefix(id)? else { return Err(missing(id)) };
    let found = match observer.pod(&prefix) {
        Err(error) if error.ambiguous().is_some() => {
            observer.pods(&[]).and_then(|pods| super::only_sandbox(pods, &prefix, error))
        }
        found => found.map(Some),
    };
    match found {
        Ok(Some(view)) if is_listed(&view.row) => Ok(*view.row),
        Ok(_) | Err(PodError::NotFound(_)) => Err(missing(id)),
        Err(error) => Err(status::from_error(&error)),
    }
}

/// The status of the sandbox with this id or beginning of it, and of its containers.
///
/// # Errors
/// `NOT_FOUND` if there is no such sandbox, and the engine's errors.
pub(in super::super) fn status(
    observer: &Observer,
    id: &str,
    verbose: bool,
) -> Result<PodSandboxStatusResponse, Status> {
    // Before the row is read: nothing older than this is shown.
    let timestamp = now().0;
    let row = find_shown(observer, id)?;
    let status = status_of(&row)?;
    let info = if verbose { verbose_info(&row) } else { HashMap::new() };
    let containers_statuses = containers::statuses(&row).map(|(_, status)| status).collect();
    Ok(PodSandboxStatusResponse { status, info, containers_statuses, timestamp })
}

/// The status of a sandbox; `None`: the pod is none.
///
/// # Errors
/// The recorded networks cannot be read.
pub(in super::super) fn status_of(row: &PodRow) -> Result<Option<PodSandboxStatus>, Status> {
    let Some(PodSandbox { id, metadata, state, created_at, labels, annotations, runtime_handler }) = sandbox(row)
    else {
        return Ok(None);
    };
    let namespaces = SandboxRecord::of(row).map(|record| record.namespaces);
    Ok(Some(PodSandboxStatus {
        id,
        metadata,
        state,
        created_at,
        network: Some(network_status(row)?),
        linux: Some(LinuxPodSandboxStatus { namespaces: Some(Namespace { options: namespaces }) }),
        labels,
        annotations,
        runtime_handler,
    }))
}

/// The pod's addresses in its first network, while it has them. Kubernetes knows no others.
fn network_status(row: &PodRow) -> Result<PodSandboxNetworkStatus, Status> {
    if !matches!(row.phase, Phase::Running { .. }) {
        return Ok(PodSandboxNetworkStatus::default());
    }
    let summaries = row.networks.summaries().map_err(|error| status::from_error(&error))?;
    let Some(first) = summaries.first() else { return Ok(PodSandboxNetworkStatus::default()) };
    let mut addresses = first.ip4.map(IpAddr::V4).into_iter().chain(first.ip6.map(IpAddr::V6));
    let ip = addresses.next().map(|address| address.to_string()).unwrap_or_default();
    let additional_ips = addresses.map(|address| PodIp { ip: address.to_string() }).collect();
    Ok(PodSandboxNetworkStatus { ip, additional_ips })
}

/// What crictl shows on top: the cgroup and the supervisor.
fn verbose_info(row: &PodRow) -> HashMap<String, String> {
    let pid = match &row.phase {
        Phase::Running { supervisor, .. } => Some(supervisor.pid),
        // Only running pods have a supervisor.
        _ => None,
    };
    let resources = resources(row);
    let info = serde_json::json!({
        "pid": pid,
        "cgroup": row.cgroup,
        "hostname": row.hostname,
        "resources": resources.map(|resources| shown_resources(&resources)),
    });
    HashMap::from([("info".to_owned(), info.to_string())])
}

fn shown_resources(resources: &LinuxContainerResources) -> serde_json::Value {
    serde_json::json!({
        "cpuPeriod": resources.cpu_period,
        "cpuQuota": resources.cpu_quota,
        "cpuShares": resources.cpu_shares,
        "memoryLimitInBytes": resources.memory_limit_in_bytes,
    })
}

/// The state of a pod; `None`: it is no sandbox yet, or no longer.
fn state(phase: &Phase) -> Option<PodSandboxState> {
    match phase {
        Phase::Running { .. } => Some(PodSandboxState::SandboxReady),
        Phase::Exited { .. }
        | Phase::Starting { .. }
        | Phase::Garbage { was: FormerPhase::Exited { .. }, deleting: None, .. } => {
            Some(PodSandboxState::SandboxNotready)
        }
        Phase::Embryo
        | Phase::Preparing
        | Phase::AbortedPrepare { .. }
        | Phase::Prepared { .. }
        | Phase::Garbage { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::{PodEnd, Timestamp};

    use super::*;

    #[test]
    fn pods_that_are_being_removed_are_no_sandboxes() {
        let at = Timestamp(1);
        let end = PodEnd { exit_code: 0, failed_app: None, reason: String::new() };
        let was = FormerPhase::Exited { started: at, at, end };
        let garbage = |deleting| Phase::Garbage { marked: at, was: was.clone(), deleting };
        assert_eq!(state(&garbage(None)), Some(PodSandboxState::SandboxNotready));
        for phase in [garbage(Some(at)), Phase::Preparing, Phase::Prepared { at }, Phase::AbortedPrepare { at }] {
            assert_eq!(state(&phase), None, "{phase:?}");
        }
    }
}
