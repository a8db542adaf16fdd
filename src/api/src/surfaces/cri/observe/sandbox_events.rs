//! The events of one sandbox and its containers: what each change of the store means to a client of the CRI.
//!
//! | event of the store | events of the CRI |
//! |---|---|
//! | pod started | sandbox CREATED, STARTED; after it was started again STARTED |
//! | app created, started, exited, removed | container CREATED, STARTED, STOPPED, DELETED |
//! | pod exited | STOPPED of the containers that were not stopped, then of the sandbox |
//! | pod removed | DELETED of the containers that were left, then of the sandbox |

use std::collections::{BTreeMap, BTreeSet};

use gantry_engine::{Observer, PodError, PodRow};
use gantry_model::query::PodFilter;
use gantry_model::{EventKind, NewEvent, PodPrefix};
use gantry_proto::cri::v1::{
    ContainerEventResponse, ContainerEventType, ContainerState, ContainerStatus, PodSandboxState, PodSandboxStatus,
};
use tonic::Status;

use super::super::{containers, sandbox};
use crate::status::from_error;

/// A sandbox with its containers, as its row is.
#[derive(Debug, Clone)]
pub(super) struct RowState {
    pub(super) id: String,
    status: PodSandboxStatus,
    /// By the names of their apps.
    containers: BTreeMap<String, ContainerStatus>,
    /// The names of its other apps.
    others: BTreeSet<String>,
}

/// All sandboxes.
///
/// # Errors
/// The engine's errors.
pub(super) fn read_rows(observer: &Observer) -> Result<Vec<RowState>, Status> {
    let pods = observer.pods(&[PodFilter::default()]).map_err(|error| from_error(&error))?;
    pods.iter().filter_map(|view| state_of(&view.row).transpose()).collect()
}

/// The sandbox with this id; `None`: the pod is gone, or is no sandbox.
///
/// # Errors
/// The engine's errors.
pub(super) fn read_row(observer: &Observer, id: &PodPrefix) -> Result<Option<RowState>, Status> {
    match observer.pod(id) {
        Ok(view) => state_of(&view.row),
        Err(PodError::NotFound(_)) => Ok(None),
        Err(error) => Err(from_error(&error)),
    }
}

fn state_of(row: &PodRow) -> Result<Option<RowState>, Status> {
    let Some(status) = sandbox::status_of(row)? else { return Ok(None) };
    let containers: BTreeMap<String, ContainerStatus> = containers::statuses(row).collect();
    let names = row.apps.iter().map(|app| app.name.to_string());
    let others = names.filter(|name| !containers.contains_key(name)).collect();
    Ok(Some(RowState { id: status.id.clone(), status, containers, others }))
}

/// A container of a sandbox whose events are followed.
#[derive(Debug)]
struct FollowedContainer {
    id: String,
    /// The last known status; `None`: its row was gone before it was read.
    status: Option<ContainerStatus>,
    /// Its end is known.
    has_stopped: bool,
    /// Its end was sent.
    stop_sent: bool,
}

/// A sandbox whose events are followed.
#[derive(Debug)]
pub(super) struct SandboxEvents {
    id: String,
    status: PodSandboxStatus,
    containers: BTreeMap<String, FollowedContainer>,
    others: BTreeSet<String>,
    is_starting_again: bool,
}

impl SandboxEvents {
    /// A sandbox that was created before it was followed.
    pub(super) fn listed(state: RowState) -> Self {
        let mut new = Self::new(&state);
        new.refresh(state);
        for container in new.containers.values_mut() {
            container.has_stopped =
                container.status.as_ref().is_some_and(|status| status.state() == ContainerState::ContainerExited);
        }
        new
    }

    /// A new sandbox.
    pub(super) fn new(state: &RowState) -> Self {
        let (id, status) = (state.id.clone(), state.status.clone());
        Self { id, status, containers: BTreeMap::new(), others: BTreeSet::new(), is_starting_again: false }
    }

    fn refresh(&mut self, state: RowState) {
        self.status = state.status;
        self.others.extend(state.others);
        for (name, status) in state.containers {
            let id = status.id.clone();
            let new = || FollowedContainer { id, status: None, has_stopped: false, stop_sent: false };
            self.containers.entry(name).or_insert_with(new).status = Some(status);
        }
    }

    /// The events of the CRI for one of the store. `state`: the sandbox as it is now; `None`: it is gone, or was read
    /// for an earlier event of the same batch.
    pub(super) fn translate(&mut self, event: &NewEvent, state: Option<RowState>) -> Vec<ContainerEventResponse> {
        use ContainerEventType::{
            ContainerCreatedEvent as Created, ContainerDeletedEvent as Deleted, ContainerStartedEvent as Started,
            ContainerStoppedEvent as Stopped,
        };
        if let Some(state) = state {
            self.refresh(state);
        }
        let at = event.at.0;
        let sandbox = self.id.clone();
        match event.kind {
            EventKind::PodStarting => {
                self.is_starting_again = true;
                Vec::new()
            }
            EventKind::PodStarted if std::mem::take(&mut self.is_starting_again) => {
                vec![self.message(sandbox, Started, at)]
            }
            EventKind::PodStarted => {
                vec![self.message(sandbox.clone(), Created, at), self.message(sandbox, Started, at)]
            }
            EventKind::PodExited => {
                self.status.set_state(PodSandboxState::SandboxNotready);
                let mut messages = self.stop_containers(at);
                messages.push(self.message(sandbox, Stopped, at));
                messages
            }
            EventKind::PodGarbageCollected => {
                let left = std::mem::take(&mut self.containers);
                self.status.set_state(PodSandboxState::SandboxNotready);
                let left = left.into_values().map(|container| self.message(container.id, Deleted, at));
                let mut messages: Vec<_> = left.collect();
                messages.push(self.message(sandbox, Deleted, at));
                messages
            }
            EventKind::AppCreated => self.of_container(event, Created),
            EventKind::AppStarted => self.of_container(event, Started),
            EventKind::AppExited => self.of_container(event, Stopped),
            EventKind::AppRemoved => self.of_container(event, Deleted),
            // The CRI has no message for it.
            _ => Vec::new(),
        }
    }

    /// The event of a container. An app that is none has neither a status nor a known id.
    fn of_container(&mut self, event: &NewEvent, kind: ContainerEventType) -> Vec<ContainerEventResponse> {
        if self.others.contains(&event.name) {
            if kind == ContainerEventType::ContainerDeletedEvent {
                self.others.remove(&event.name);
            }
            return Vec::new();
        }
        if !self.containers.contains_key(&event.name) {
            // Its row is gone already.
            let Some(id) = event.data.get("app_id").cloned() else { return Vec::new() };
            let new = FollowedContainer { id, status: None, has_stopped: false, stop_sent: false };
            self.containers.insert(event.name.clone(), new);
        }
        let Some(container) = self.containers.get_mut(&event.name) else { return Vec::new() };
        let id = container.id.clone();
        match kind {
            ContainerEventType::ContainerCreatedEvent => {}
            ContainerEventType::ContainerStartedEvent => (container.has_stopped, container.stop_sent) = (false, false),
            ContainerEventType::ContainerStoppedEvent => {
                if std::mem::replace(&mut container.stop_sent, true) {
                    return Vec::new();
                }
                container.end(event.at.0, event.data.get("exit_code").and_then(|code| code.parse().ok()));
            }
            ContainerEventType::ContainerDeletedEvent => {
                // A status that is left out says that the container is gone.
                self.containers.remove(&event.name);
            }
        }
        vec![self.message(id, kind, event.at.0)]
    }

    /// The ends of the containers that ended with the sandbox.
    fn stop_containers(&mut self, at: i64) -> Vec<ContainerEventResponse> {
        let running = self.containers.values_mut().filter(|container| !container.has_stopped && !container.stop_sent);
        let mut stopped = Vec::new();
        for container in running {
            container.stop_sent = true;
            container.end(at, None);
            stopped.push(container.id.clone());
        }
        stopped.into_iter().map(|id| self.message(id, ContainerEventType::ContainerStoppedEvent, at)).collect()
    }

    fn message(&self, container_id: String, kind: ContainerEventType, created_at: i64) -> ContainerEventResponse {
        ContainerEventResponse {
            container_id,
            container_event_type: kind.into(),
            created_at,
            pod_sandbox_status: Some(self.status.clone()),
            containers_statuses: self.containers.values().filter_map(|container| container.status.clone()).collect(),
        }
    }
}

impl FollowedContainer {
    /// Records the end in a status that was read before it, or that no row has any more.
    fn end(&mut self, at: i64, exit_code: Option<i32>) {
        self.has_stopped = true;
        let Some(status) = self.status.as_mut().filter(|it| it.state() != ContainerState::ContainerExited) else {
            return;
        };
        status.set_state(ContainerState::ContainerExited);
        status.finished_at = at;
        status.exit_code = exit_code.unwrap_or(status.exit_code);
    }
}
