//! Translates enums between the contract and the model, each by a match without a wildcard.

use std::collections::BTreeMap;

use gantry_engine::ImageFormat;
use gantry_model::{AppState, EventKind, Phase, PhaseName, Timestamp};
use gantry_proto::rkt::v1alpha::{self as wire, EventType, ImageType, KeyValue, PodState};

/// The state of a pod.
pub(super) fn pod_state(phase: &Phase) -> PodState {
    match phase {
        Phase::Embryo => PodState::Embryo,
        Phase::Preparing => PodState::Preparing,
        Phase::AbortedPrepare { .. } => PodState::AbortedPrepare,
        // rkt's pods run once; this one is complete and about to run.
        Phase::Prepared { .. } | Phase::Starting { .. } => PodState::Prepared,
        Phase::Running { .. } => PodState::Running,
        Phase::Exited { .. } => PodState::Exited,
        Phase::Garbage { deleting: Some(_), .. } => PodState::Deleting,
        Phase::Garbage { deleting: None, .. } => PodState::Garbage,
    }
}

/// The phases with this state; none for the state that no pod has.
pub(super) fn phases_of(state: PodState) -> &'static [PhaseName] {
    match state {
        PodState::Undefined => &[],
        PodState::Embryo => &[PhaseName::Embryo],
        PodState::Preparing => &[PhaseName::Preparing],
        PodState::Prepared => &[PhaseName::Prepared, PhaseName::Starting],
        PodState::Running => &[PhaseName::Running],
        PodState::AbortedPrepare => &[PhaseName::AbortedPrepare],
        PodState::Exited => &[PhaseName::Exited],
        PodState::Deleting => &[PhaseName::Deleting],
        PodState::Garbage => &[PhaseName::Garbage],
    }
}

/// The time at which a pod was marked as garbage.
pub(super) fn marked_at(phase: &Phase) -> Option<Timestamp> {
    match phase {
        Phase::Embryo | Phase::Preparing | Phase::AbortedPrepare { .. } | Phase::Prepared { .. } => None,
        Phase::Running { .. } | Phase::Exited { .. } | Phase::Starting { .. } => None,
        Phase::Garbage { marked, .. } => Some(*marked),
    }
}

/// The state of an app, and its exit code.
pub(super) fn app_state(state: &AppState) -> (wire::AppState, i32) {
    match state {
        AppState::Waiting | AppState::Creating | AppState::Created => (wire::AppState::Undefined, 0),
        AppState::Started { .. } => (wire::AppState::Running, 0),
        AppState::Exited { end, .. } => (wire::AppState::Exited, end.how.exit_code()),
    }
}

/// The format of an image before its import, with the version of the specification.
pub(super) fn image_format(format: ImageFormat) -> wire::ImageFormat {
    let (kind, version) = match format {
        ImageFormat::Appc => (ImageType::Appc, gantry_engine::APPC_VERSION),
        ImageFormat::Docker => (ImageType::Docker, "2.2"),
        ImageFormat::Oci => (ImageType::Oci, "1.1.0"),
    };
    wire::ImageFormat { r#type: kind.into(), version: version.to_owned() }
}

/// The type of an event. rkt has none for requests to stop, for pods that are started again, for apps that are added to
/// and removed from running pods, for pausing, for health, for changed limits, for calls of the node API and for
/// schedules.
pub(super) fn event_type(kind: EventKind) -> EventType {
    match kind {
        EventKind::PodPrepared => EventType::PodPrepared,
        EventKind::PodPrepareAborted => EventType::PodPrepareAborted,
        EventKind::PodStarted => EventType::PodStarted,
        EventKind::PodExited => EventType::PodExited,
        EventKind::PodGarbageCollected => EventType::PodGarbageCollected,
        EventKind::AppStarted => EventType::AppStarted,
        EventKind::AppExited => EventType::AppExited,
        EventKind::ImageImported => EventType::ImageImported,
        EventKind::ImageRemoved => EventType::ImageRemoved,
        EventKind::PodStopping
        | EventKind::PodStarting
        | EventKind::PodStartFailed
        | EventKind::AppCreated
        | EventKind::AppStopping
        | EventKind::AppReady
        | EventKind::AppRemoved
        | EventKind::PodPaused
        | EventKind::PodResumed
        | EventKind::AppPaused
        | EventKind::AppResumed
        | EventKind::AppHealthStarting
        | EventKind::AppHealthy
        | EventKind::AppUnhealthy
        | EventKind::AppOom
        | EventKind::PodUpdated
        | EventKind::AppUpdated
        | EventKind::NodeCalled
        | EventKind::ScheduleEnabled
        | EventKind::ScheduleDisabled
        | EventKind::ScheduleDestroyed
        | EventKind::ScheduleStartFailed
        | EventKind::ScheduleRunSkipped => EventType::Undefined,
    }
}

/// The kinds of events of this type; of the undefined one, those that rkt has no type for.
pub(super) fn event_kinds(wanted: EventType) -> impl Iterator<Item = EventKind> {
    EventKind::ALL.into_iter().filter(move |kind| event_type(*kind) == wanted)
}

/// Keys and values, sorted by key.
pub(super) fn pairs(map: &BTreeMap<String, String>) -> Vec<KeyValue> {
    map.iter().map(|(key, value)| KeyValue { key: key.clone(), value: value.clone() }).collect()
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
