//! ServiceList: the parts of gantryd, and the pods. The id of a pod is that of Containers; a pod whose id is already
//! that of another service has its UUID.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use gantry_engine::{Observer, PodView, now};
use gantry_model::health::HealthState;
use gantry_model::query::{EventQuery, PodFilter};
use gantry_model::{EventRecord, NewEvent, Phase, PodId, Timestamp};
use gantry_proto::talos::machine::service_state_event::Action;
use gantry_proto::talos::machine::{ServiceEvent, ServiceEvents, ServiceHealth, ServiceInfo, ServiceList};
use tonic::Status;

use super::names::{self, DAEMON};
use super::service_states::{ServiceStates, app_of};
use crate::context::Config;
use crate::status;

/// Maximum events of a service, as in Talos.
const MAX_EVENTS: usize = 64;
/// Events of services are read from this many last numbers of the history.
const MAX_HISTORY: u64 = 4096;
/// Events that are read at once.
const PAGE_SIZE: usize = 512;

/// A service of the node.
pub(super) enum NodeService {
    /// A part of gantryd.
    Part(DaemonPart),
    /// A pod.
    Pod(Box<PodView>),
}

/// A part of gantryd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DaemonPart {
    id: &'static str,
    role: &'static str,
    is_running: bool,
}

impl DaemonPart {
    /// Its state.
    pub(super) fn state(self) -> Action {
        if self.is_running { Action::Running } else { Action::Skipped }
    }
}

/// The parts of gantryd.
fn daemon_parts(config: &Config) -> [DaemonPart; 3] {
    [
        DaemonPart { id: DAEMON, role: "serves the node API", is_running: true },
        DaemonPart { id: "gantryd-engine", role: "reconciles pods", is_running: config.reconciles },
        DaemonPart {
            id: "gantryd-resolver",
            role: "resolves host names and app names of pods",
            is_running: config.reconciles && config.settings.current().options.network.resolver,
        },
    ]
}

/// Whether a part of gantryd has this id.
pub(super) fn is_part_id(config: &Config, id: &str) -> bool {
    daemon_parts(config).iter().any(|part| part.id == id)
}

/// All services by their ids.
///
/// # Errors
/// The store cannot be read.
pub(super) fn read_services(observer: &Observer, config: &Config) -> Result<BTreeMap<String, NodeService>, Status> {
    let mut views = observer.pods(&[]).map_err(|error| status::from_error(&error))?;
    // Among several of an id, one that runs has it, then the newest.
    views.sort_by_key(|view| std::cmp::Reverse((view.supervisor().is_some(), view.row.created)));
    let mut services: BTreeMap<String, NodeService> =
        daemon_parts(config).into_iter().map(|part| (part.id.to_owned(), NodeService::Part(part))).collect();
    for view in views.into_iter().filter(is_service) {
        let id = Some(names::pod_id(&view.row)).filter(|id| !services.contains_key(id));
        services.insert(id.unwrap_or_else(|| view.row.id.to_string()), NodeService::Pod(Box::new(view)));
    }
    Ok(services)
}

/// The ids of all pods as services, by UUID.
///
/// # Errors
/// The store cannot be read.
pub(super) fn read_all_service_ids(observer: &Observer, config: &Config) -> Result<HashMap<String, String>, Status> {
    let services = read_services(observer, config)?;
    let pods = services.into_iter().filter_map(|(id, service)| Some((service.pod()?, id)));
    Ok(pods.map(|(pod, id): (PodId, String)| (pod.to_string(), id)).collect())
}

/// The ids of these pods as services, by UUID, without those that are none. `None`: a kubelet made one of them, so its
/// id depends on all pods.
///
/// # Errors
/// The store cannot be read.
pub(super) fn read_service_ids(
    observer: &Observer,
    config: &Config,
    pods: &BTreeSet<String>,
) -> Result<Option<HashMap<String, String>>, Status> {
    let ids: Vec<PodId> = pods.iter().filter_map(|pod| pod.parse().ok()).collect();
    if ids.is_empty() {
        return Ok(Some(HashMap::new()));
    }
    let filter = PodFilter { ids, ..PodFilter::default() };
    let views = observer.pods(&[filter]).map_err(|error| status::from_error(&error))?;
    if views.iter().any(|view| names::has_kubernetes_id(&view.row)) {
        return Ok(None);
    }
    let named = views.into_iter().filter(is_service).map(|view| {
        let id = names::pod_id(&view.row);
        (view.row.id.to_string(), if is_part_id(config, &id) { view.row.id.to_string() } else { id })
    });
    Ok(Some(named.collect()))
}

/// Whether a pod is a service.
fn is_service(view: &PodView) -> bool {
    !matches!(view.row.phase, Phase::Embryo | Phase::Garbage { .. })
}

/// ServiceList. `started`: when gantryd was started.
///
/// # Errors
/// The store cannot be read.
pub(super) fn list(observer: &Observer, config: &Config, started: Timestamp) -> Result<ServiceList, Status> {
    let services = read_services(observer, config)?;
    let mut histories = read_histories(observer)?;
    let describe = |(id, service): (String, NodeService)| match service {
        NodeService::Part(part) => describe_part(part, started),
        NodeService::Pod(view) => {
            let history = histories.remove(&view.row.id.to_string()).unwrap_or_default();
            describe_pod(id, &view, history)
        }
    };
    Ok(ServiceList { metadata: None, services: services.into_iter().map(describe).collect() })
}

fn describe_part(part: DaemonPart, started: Timestamp) -> ServiceInfo {
    let state = state_name(part.state()).to_owned();
    let started = Some(to_protobuf(started));
    let event = ServiceEvent { msg: part.role.to_owned(), state: state.clone(), ts: started };
    let health = ServiceHealth {
        unknown: !part.is_running,
        healthy: part.is_running,
        last_change: started,
        ..ServiceHealth::default()
    };
    let events = Some(ServiceEvents { events: vec![event] });
    ServiceInfo { id: part.id.to_owned(), state, events, health: Some(health) }
}

/// Old clients do not check whether `events` and `health` are present.
fn describe_pod(id: String, view: &PodView, history: ServiceHistory) -> ServiceInfo {
    // The row has no requests to stop.
    let state = match (pod_state(view), history.pod_state) {
        (Action::Running, Some(Action::Stopping)) => Action::Stopping,
        (Action::Failed, Some(Action::Finished)) => Action::Finished,
        (state, _) => state,
    };
    let (state, events) = (state_name(state).to_owned(), Vec::from(history.events));
    let health = describe_health(view, &events);
    ServiceInfo { id, state, events: Some(ServiceEvents { events }), health: Some(health) }
}

/// The state of a pod as a service.
pub(super) fn pod_state(view: &PodView) -> Action {
    match &view.row.phase {
        Phase::Embryo | Phase::Preparing => Action::Preparing,
        Phase::Prepared { .. } => Action::Initialized,
        Phase::Running { .. } => Action::Running,
        // gantryd starts it again at that time.
        Phase::Exited { .. } if view.row.restart.at.is_some() => Action::Waiting,
        Phase::Exited { end, .. } if end.exit_code == 0 => Action::Finished,
        Phase::Exited { .. } | Phase::AbortedPrepare { .. } => Action::Failed,
        Phase::Starting { .. } => Action::Starting,
        Phase::Garbage { .. } => Action::Skipped,
    }
}

/// The health of a running pod: unhealthy as soon as one app is, healthy when all apps with checks are.
fn describe_health(view: &PodView, events: &[ServiceEvent]) -> ServiceHealth {
    let unknown = ServiceHealth { unknown: true, ..ServiceHealth::default() };
    if view.supervisor().is_none() {
        return unknown;
    }
    let states: Vec<HealthState> = view.row.apps.iter().filter_map(|app| app.health.state).collect();
    let last_message = match states.iter().max_by_key(|state| match state {
        HealthState::Healthy => 0,
        HealthState::Starting => 1,
        HealthState::Unhealthy => 2,
    }) {
        None | Some(HealthState::Starting) => return unknown,
        Some(HealthState::Healthy) => "",
        Some(HealthState::Unhealthy) => "an app is unhealthy",
    };
    let is_change = |event: &&ServiceEvent| event.msg.contains("app-healthy") || event.msg.contains("app-unhealthy");
    ServiceHealth {
        unknown: false,
        healthy: last_message.is_empty(),
        last_message: last_message.to_owned(),
        last_change: events.iter().rev().find(is_change).and_then(|event| event.ts),
    }
}

/// The history of a pod and its apps.
#[derive(Default)]
struct ServiceHistory {
    /// The last events, oldest first.
    events: VecDeque<ServiceEvent>,
    /// The state that the last event of the pod itself reports.
    pod_state: Option<Action>,
}

/// The histories of pods by UUID.
fn read_histories(observer: &Observer) -> Result<HashMap<String, ServiceHistory>, Status> {
    let failed = |error| status::from_error(&error);
    let end = observer.events_start(&EventQuery::default(), now()).map_err(failed)?;
    let mut cursor = end.saturating_sub(MAX_HISTORY);
    let mut histories: HashMap<String, ServiceHistory> = HashMap::new();
    let mut states = ServiceStates::default();
    while cursor < end {
        let page = observer.events_after(cursor, PAGE_SIZE).map_err(failed)?;
        for EventRecord { event, .. } in &page.events {
            let Some(change) = states.translate(event) else { continue };
            let history = histories.entry(event.id.clone()).or_default();
            if app_of(event).is_none() {
                history.pod_state = change.actions.last().copied();
            }
            for action in &change.actions {
                if history.events.len() == MAX_EVENTS {
                    history.events.pop_front();
                }
                history.events.push_back(describe_event(event, *action, &change.message));
            }
        }
        if page.cursor == cursor {
            break;
        }
        cursor = page.cursor;
    }
    Ok(histories)
}

/// An event of a pod, or of an app of it, whose name comes first.
fn describe_event(event: &NewEvent, action: Action, message: &str) -> ServiceEvent {
    let msg = app_of(event).map_or_else(|| message.to_owned(), |app| format!("{app}: {message}"));
    ServiceEvent { msg, state: state_name(action).to_owned(), ts: Some(to_protobuf(event.at)) }
}

/// The name of a state, as ServiceList has it.
fn state_name(state: Action) -> &'static str {
    match state {
        Action::Initialized => "Initialized",
        Action::Preparing => "Preparing",
        Action::Waiting => "Waiting",
        Action::Running => "Running",
        Action::Stopping => "Stopping",
        Action::Finished => "Finished",
        Action::Failed => "Failed",
        Action::Skipped => "Skipped",
        Action::Starting => "Starting",
    }
}

fn to_protobuf(at: Timestamp) -> prost_types::Timestamp {
    let nanos = i32::try_from(at.subsec_nanos()).unwrap_or_default();
    prost_types::Timestamp { seconds: at.seconds(), nanos }
}

impl NodeService {
    /// The pod; `None`: it is a part of gantryd.
    pub(super) fn pod(&self) -> Option<PodId> {
        match self {
            Self::Part(_) => None,
            Self::Pod(view) => Some(view.row.id),
        }
    }
}
