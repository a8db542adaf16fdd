//! Events: one per step of a pod, app, image or schedule, with increasing sequence numbers.

use std::collections::BTreeMap;

use crate::Timestamp;

/// The kind of an event: the nine types of rkt's `EventType` (v1alpha/api.proto), and those of apps that are added to
/// and removed from running pods, of pausing, and of changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    /// A pod became Prepared.
    PodPrepared,
    /// A pod's preparation failed or its preparer died.
    PodPrepareAborted,
    /// A pod became Running.
    PodStarted,
    /// A pod was requested to stop.
    PodStopping,
    /// A pod became Exited.
    PodExited,
    /// An exited pod is being started again.
    PodStarting,
    /// An exited pod could not be started again.
    PodStartFailed,
    /// A pod was removed.
    PodGarbageCollected,
    /// An app was added to a running pod.
    AppCreated,
    /// An app was started.
    AppStarted,
    /// An app has reported that it is ready.
    AppReady,
    /// An app was requested to stop, or to restart.
    AppStopping,
    /// An app ended.
    AppExited,
    /// An app was removed from a running pod.
    AppRemoved,
    /// The processes of a pod's apps were frozen on request.
    PodPaused,
    /// A paused pod runs again.
    PodResumed,
    /// The processes of an app were frozen on request.
    AppPaused,
    /// A paused app runs again.
    AppResumed,
    /// An app with a health check was started: no probe has succeeded yet.
    AppHealthStarting,
    /// An app became healthy.
    AppHealthy,
    /// An app became unhealthy.
    AppUnhealthy,
    /// The OOM killer killed processes of an app.
    AppOom,
    /// The limits of a running pod were changed.
    PodUpdated,
    /// The limits of an app of a running pod were changed.
    AppUpdated,
    /// An image was imported into the store.
    ImageImported,
    /// An image was removed from the store.
    ImageRemoved,
    /// A client of the node API called a method that changes something.
    NodeCalled,
    /// A schedule was enabled, or its content was replaced.
    ScheduleEnabled,
    /// A schedule was disabled.
    ScheduleDisabled,
    /// A schedule was destroyed.
    ScheduleDestroyed,
    /// The pod of a schedule could not be created or started.
    ScheduleStartFailed,
    /// A run of a schedule was skipped, because the pod of an earlier one had not ended.
    ScheduleRunSkipped,
}

impl EventKind {
    /// All kinds, in the order of their declaration.
    pub const ALL: [Self; 32] = [
        Self::PodPrepared,
        Self::PodPrepareAborted,
        Self::PodStarted,
        Self::PodStopping,
        Self::PodExited,
        Self::PodStarting,
        Self::PodStartFailed,
        Self::PodGarbageCollected,
        Self::AppCreated,
        Self::AppStarted,
        Self::AppReady,
        Self::AppStopping,
        Self::AppExited,
        Self::AppRemoved,
        Self::PodPaused,
        Self::PodResumed,
        Self::AppPaused,
        Self::AppResumed,
        Self::AppHealthStarting,
        Self::AppHealthy,
        Self::AppUnhealthy,
        Self::AppOom,
        Self::PodUpdated,
        Self::AppUpdated,
        Self::ImageImported,
        Self::ImageRemoved,
        Self::NodeCalled,
        Self::ScheduleEnabled,
        Self::ScheduleDisabled,
        Self::ScheduleDestroyed,
        Self::ScheduleStartFailed,
        Self::ScheduleRunSkipped,
    ];

    /// The stable name, as stored and shown.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PodPrepared => "pod-prepared",
            Self::PodPrepareAborted => "pod-prepare-aborted",
            Self::PodStarted => "pod-started",
            Self::PodStopping => "pod-stopping",
            Self::PodExited => "pod-exited",
            Self::PodStarting => "pod-starting",
            Self::PodStartFailed => "pod-start-failed",
            Self::PodGarbageCollected => "pod-garbage-collected",
            Self::AppCreated => "app-created",
            Self::AppStarted => "app-started",
            Self::AppReady => "app-ready",
            Self::AppStopping => "app-stopping",
            Self::AppExited => "app-exited",
            Self::AppRemoved => "app-removed",
            Self::PodPaused => "pod-paused",
            Self::PodResumed => "pod-resumed",
            Self::AppPaused => "app-paused",
            Self::AppResumed => "app-resumed",
            Self::AppHealthStarting => "app-health-starting",
            Self::AppHealthy => "app-healthy",
            Self::AppUnhealthy => "app-unhealthy",
            Self::AppOom => "app-oom",
            Self::PodUpdated => "pod-updated",
            Self::AppUpdated => "app-updated",
            Self::ImageImported => "image-imported",
            Self::ImageRemoved => "image-removed",
            Self::NodeCalled => "node-called",
            Self::ScheduleEnabled => "schedule-enabled",
            Self::ScheduleDisabled => "schedule-disabled",
            Self::ScheduleDestroyed => "schedule-destroyed",
            Self::ScheduleStartFailed => "schedule-start-failed",
            Self::ScheduleRunSkipped => "schedule-run-skipped",
        }
    }

    /// What the events of this kind are about.
    #[must_use]
    pub fn subject(self) -> EventSubject {
        match self {
            Self::PodPrepared
            | Self::PodPrepareAborted
            | Self::PodStarted
            | Self::PodStopping
            | Self::PodExited
            | Self::PodStarting
            | Self::PodStartFailed
            | Self::PodGarbageCollected
            | Self::PodPaused
            | Self::PodResumed
            | Self::PodUpdated => EventSubject::Pod,
            Self::AppCreated
            | Self::AppStarted
            | Self::AppReady
            | Self::AppStopping
            | Self::AppExited
            | Self::AppRemoved
            | Self::AppPaused
            | Self::AppResumed
            | Self::AppHealthStarting
            | Self::AppHealthy
            | Self::AppUnhealthy
            | Self::AppOom
            | Self::AppUpdated => EventSubject::App,
            Self::ImageImported | Self::ImageRemoved => EventSubject::Image,
            Self::NodeCalled => EventSubject::Call,
            Self::ScheduleEnabled
            | Self::ScheduleDisabled
            | Self::ScheduleDestroyed
            | Self::ScheduleStartFailed
            | Self::ScheduleRunSkipped => EventSubject::Schedule,
        }
    }

    /// The kind with this stable name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSubject {
    /// A pod: its UUID is the id of the event, its name that of the event.
    Pod,
    /// An app: the UUID of its pod is the id of the event.
    App,
    /// An image.
    Image,
    /// A schedule, whose name is the id and the name of the event.
    Schedule,
    /// A call of the node API.
    Call,
}

/// An event to be written, in the transaction of the step that it reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEvent {
    /// Its kind.
    pub kind: EventKind,
    /// When.
    pub at: Timestamp,
    /// The pod's UUID, the image's id, the schedule's name, or the method of a call.
    pub id: String,
    /// The name of the app, the image, the pod or the schedule, or the client of a call. A pod without a name has its
    /// UUID.
    pub name: String,
    /// Facts for the reader, such as `exit_code`, `reason`, `image_id`.
    pub data: BTreeMap<String, String>,
}

/// A recorded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventRecord {
    /// Its number: rises by one within a boot, jumps ahead at each boot, is never given twice.
    pub seq: u64,
    /// The boot in which it was written.
    pub boot: String,
    /// Its content.
    pub event: NewEvent,
}
