//! ListContainers and ContainerStatus: the rows of apps as containers.

use std::collections::HashMap;

use gantry_engine::{AppRow, CONTAINER_START_ERROR, Observer, PodRow};
use gantry_model::{AppEnd, AppOutcome, AppState, Phase, Timestamp};
use gantry_proto::cri::v1::{
    Container, ContainerAttributes, ContainerFilter, ContainerResources, ContainerState, ContainerStatus,
    ContainerStatusResponse, ImageSpec,
};
use tonic::Status;

use super::super::sandbox;
use super::record::{ContainerRecord, START_ERROR_TIME, image, metadata, requested_annotations};
use super::{FoundContainer, START_ERROR_CODE, find_or_fail, is_container, user};
use crate::request::check_text;
use crate::status::{from_error, invalid_field};

/// The exit code of a container whose end nothing has seen.
const LOST_CODE: i32 = 255;
/// Why a container has exited (kubelet, `ContainerStateTerminated.reason`).
const COMPLETED: &str = "Completed";
const ERROR: &str = "Error";
const OOM_KILLED: &str = "OOMKilled";
const START_FAILED: &str = "StartError";
const UNKNOWN: &str = "Unknown";

/// The conditions of ListContainers; all of them must hold.
#[derive(Debug, Default)]
pub(in super::super) struct ContainerSelector {
    /// The id, or its beginning.
    id: String,
    state: Option<ContainerState>,
    /// The id of the sandbox, or its beginning.
    sandbox: String,
    labels: HashMap<String, String>,
}

impl ContainerSelector {
    /// Reads the filter of a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(in super::super) fn parse(filter: Option<ContainerFilter>) -> Result<Self, Status> {
        let ContainerFilter { id, state, pod_sandbox_id, label_selector } = filter.unwrap_or_default();
        check_text("filter.id", &id)?;
        check_text("filter.pod_sandbox_id", &pod_sandbox_id)?;
        let state = state.map(|value| {
            ContainerState::try_from(value.state)
                .map_err(|_| invalid_field("filter.state", &format!("there is no state {}", value.state)))
        });
        Ok(Self {
            id: id.to_ascii_lowercase(),
            state: state.transpose()?,
            sandbox: pod_sandbox_id.to_ascii_lowercase(),
            labels: label_selector,
        })
    }

    /// Whether it selects the app, before more of it is read.
    pub(in super::super) fn selects(&self, sandbox: &PodRow, app: &AppRow) -> bool {
        let is_labelled = |(key, value)| app.labels.get(key) == Some(value);
        is_container(app)
            && app.id.as_str().starts_with(&self.id)
            && self.labels.iter().all(is_labelled)
            && self.state.is_none_or(|state| state == ContainerLife::of(sandbox, app).state)
    }

    /// Whether it selects containers of the sandbox.
    pub(in super::super) fn selects_sandbox(&self, sandbox: &PodRow) -> bool {
        self.sandbox.is_empty() || sandbox.id.to_string().starts_with(&self.sandbox)
    }
}

/// The containers that a filter selects, oldest first.
///
/// # Errors
/// The engine's errors.
pub(in super::super) fn list(observer: &Observer, filter: &ContainerSelector) -> Result<Vec<Container>, Status> {
    let pods = observer.pods(&[]).map_err(|error| from_error(&error))?;
    let rows = pods.iter().map(|view| &*view.row).filter(|row| filter.selects_sandbox(row));
    let of_pod = |row| selected(row, filter).collect::<Vec<_>>();
    let mut containers: Vec<_> = rows.filter(|row| sandbox::is_listed(row)).flat_map(of_pod).collect();
    containers.sort_by_key(|container| container.created_at);
    Ok(containers)
}

fn selected<'a>(row: &'a PodRow, filter: &'a ContainerSelector) -> impl Iterator<Item = Container> + 'a {
    row.apps.iter().filter(|app| filter.selects(row, app)).filter_map(|app| container(row, app))
}

fn container(sandbox: &PodRow, app: &AppRow) -> Option<Container> {
    let requested = image(app)?;
    let image = app.image.as_ref().map(ToString::to_string).unwrap_or_default();
    Some(Container {
        id: app.id.to_string(),
        pod_sandbox_id: sandbox.id.to_string(),
        metadata: metadata(&app.annotations),
        image: Some(requested),
        image_ref: image.clone(),
        state: ContainerLife::of(sandbox, app).state.into(),
        created_at: created(app).0,
        labels: app.labels.clone().into_iter().collect(),
        annotations: requested_annotations(app),
        image_id: image,
    })
}

fn created(app: &AppRow) -> Timestamp {
    // A container was added to its sandbox.
    app.added.unwrap_or(Timestamp(0))
}

/// The attributes of a container; `None`: the app is none.
pub(in super::super) fn attributes(app: &AppRow) -> Option<ContainerAttributes> {
    let metadata = metadata(&app.annotations).filter(|_| is_container(app))?;
    Some(ContainerAttributes {
        id: app.id.to_string(),
        metadata: Some(metadata),
        labels: app.labels.clone().into_iter().collect(),
        annotations: requested_annotations(app),
    })
}

/// The statuses of the containers of a sandbox, by the names of their apps.
pub(in super::super) fn statuses(sandbox: &PodRow) -> impl Iterator<Item = (String, ContainerStatus)> + '_ {
    sandbox.apps.iter().filter(|app| is_container(app)).filter_map(|app| {
        let record = ContainerRecord::of(app)?;
        let found = FoundContainer { sandbox: sandbox.clone(), app: app.clone() };
        Some((app.name.to_string(), container_status(&found, record)))
    })
}

/// The status of the container with this id or beginning of it.
///
/// # Errors
/// `NOT_FOUND` if there is no such container, and the engine's errors.
pub(in super::super) fn status(
    observer: &Observer,
    id: &str,
    verbose: bool,
) -> Result<ContainerStatusResponse, Status> {
    let found = find_or_fail(observer, id)?;
    let record = ContainerRecord::of(&found.app).ok_or_else(|| super::missing(id))?;
    let info = if verbose { verbose_info(&found) } else { HashMap::new() };
    Ok(ContainerStatusResponse { status: Some(container_status(&found, record)), info })
}

/// The status of a container.
pub(in super::super) fn container_status(found: &FoundContainer, record: ContainerRecord) -> ContainerStatus {
    let FoundContainer { sandbox, app } = found;
    let life = ContainerLife::of(sandbox, app);
    let image_id = app.image.as_ref().map(ToString::to_string).unwrap_or_default();
    let log_path = sandbox.log_file(&app.name).map(|(dir, path)| dir.as_path().join(path.as_path()));
    let linux = record.config.linux.unwrap_or_default();
    ContainerStatus {
        id: app.id.to_string(),
        metadata: Some(record.metadata),
        state: life.state.into(),
        created_at: created(app).0,
        started_at: life.started,
        finished_at: life.finished,
        exit_code: life.exit_code,
        image: Some(image_in_status(record.config.image.unwrap_or_default())),
        image_ref: image_id.clone(),
        reason: life.reason.to_owned(),
        message: life.message,
        labels: app.labels.clone().into_iter().collect(),
        annotations: requested_annotations(app),
        mounts: record.config.mounts,
        log_path: log_path.map(|path| path.display().to_string()).unwrap_or_default(),
        resources: linux.resources.map(|linux| ContainerResources { linux: Some(linux), windows: None }),
        image_id,
        user: user::read(app.state),
        stop_signal: record.config.stop_signal,
    }
}

/// The image as a user named it, which a kubelet shows in the status of the pod. A kubelet asks for a container by the
/// id of its image, and sends the name of its manifest beside it.
fn image_in_status(requested: ImageSpec) -> ImageSpec {
    let name = &requested.user_specified_image;
    let image = if name.is_empty() { requested.image } else { name.clone() };
    ImageSpec { image, annotations: HashMap::new(), ..requested }
}

/// What crictl shows on top.
fn verbose_info(found: &FoundContainer) -> HashMap<String, String> {
    let pid = match found.app.state {
        AppState::Started { pid, .. } => pid,
        AppState::Waiting | AppState::Creating | AppState::Created | AppState::Exited { .. } => 0,
    };
    let info = serde_json::json!({
        "sandboxID": found.sandbox.id.to_string(),
        "pid": pid,
        "app": found.app.name.as_str(),
        "restarts": found.app.state.attempt().unwrap_or_default(),
    });
    HashMap::from([("info".to_owned(), info.to_string())])
}

/// The state of a container, and how it came about.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ContainerLife {
    state: ContainerState,
    /// Nanoseconds since the epoch; 0: not reached.
    started: i64,
    finished: i64,
    exit_code: i32,
    reason: &'static str,
    message: String,
}

impl ContainerLife {
    fn of(sandbox: &PodRow, app: &AppRow) -> Self {
        // A pod that has ended may have an app whose end was not recorded.
        let sandbox_end = match &sandbox.phase {
            Phase::Running { .. } => None,
            phase => Some(phase.end().map_or(0, |(at, _)| at.0)),
        };
        match (app.state, sandbox_end) {
            (AppState::Exited { started, end, .. }, _) => Self::exited(started, end),
            // The app may run although StartContainer failed: the reply of the supervisor came too late.
            (AppState::Started { at, .. }, None) => {
                Self { started: at.0, ..Self::new(ContainerState::ContainerRunning) }
            }
            (AppState::Started { at, .. }, Some(end)) => Self { started: at.0, ..Self::lost(end, String::new()) },
            (_, _) if app.annotations.contains_key(CONTAINER_START_ERROR) => Self::failed(app),
            (_, None) => Self::new(ContainerState::ContainerCreated),
            (_, Some(end)) => Self::lost(end, "its sandbox ended before it was started".to_owned()),
        }
    }

    fn new(state: ContainerState) -> Self {
        Self { state, started: 0, finished: 0, exit_code: 0, reason: "", message: String::new() }
    }

    fn lost(at: i64, message: String) -> Self {
        let exited = Self::new(ContainerState::ContainerExited);
        Self { finished: at, exit_code: LOST_CODE, reason: UNKNOWN, message, ..exited }
    }

    /// Its program could not be executed.
    fn failed(app: &AppRow) -> Self {
        let message = app.annotations.get(CONTAINER_START_ERROR).cloned().unwrap_or_default();
        // A former gantryd recorded no time.
        let recorded = app.annotations.get(START_ERROR_TIME).and_then(|text| text.parse().ok());
        let at = recorded.unwrap_or_else(|| created(app).0);
        let exited = Self::new(ContainerState::ContainerExited);
        Self { finished: at, exit_code: START_ERROR_CODE, reason: START_FAILED, message, ..exited }
    }

    fn exited(started: Option<Timestamp>, end: AppEnd) -> Self {
        let started = started.map_or(0, |at| at.0);
        if end.how == AppOutcome::Lost {
            return Self { started, ..Self::lost(end.at.0, String::new()) };
        }
        let reason = match end.how.is_success() {
            true => COMPLETED,
            false if end.oom => OOM_KILLED,
            false => ERROR,
        };
        let exited = Self::new(ContainerState::ContainerExited);
        Self { started, finished: end.at.0, exit_code: end.how.exit_code(), reason, ..exited }
    }
}
