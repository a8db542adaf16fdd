//! The states of services, from the history of pods and apps.
//!
//! | event | states |
//! |---|---|
//! | a request to stop | Stopping |
//! | an end | Finished if the exit code is 0 or the end was requested, else Failed |
//! | a start of an app that has run before | Starting, then Running |

use std::collections::HashSet;

use gantry_model::{EventKind, EventSubject, NewEvent};
use gantry_proto::talos::machine::ServiceHealth;
use gantry_proto::talos::machine::service_state_event::Action;

/// Requests to stop that are remembered at a time. Each is forgotten with the end that it asks for.
const MAX_STOPPING: usize = 4096;
/// Events that are read before the first one that is shown, so that requests to stop shortly before it are known.
pub(super) const WARM_UP: u64 = 256;

/// Translates events in the order of the history.
#[derive(Debug, Default)]
pub(super) struct ServiceStates {
    /// The pods and apps that were requested to stop and have not ended: the id of the pod, and the name of the app.
    stopping: HashSet<(String, Option<String>)>,
}

/// The states that an event reports, in order.
#[derive(Debug, PartialEq)]
pub(super) struct ServiceStateChange {
    pub(super) actions: Vec<Action>,
    /// The kind and the data of the event.
    pub(super) message: String,
    pub(super) health: Option<ServiceHealth>,
}

impl ServiceStates {
    /// The states that the next event reports; `None` for events of images, of calls and of schedules, and for
    /// changes of apps that do not run.
    pub(super) fn translate(&mut self, event: &NewEvent) -> Option<ServiceStateChange> {
        let app = app_of(event).map(str::to_owned);
        let key = (event.id.clone(), app);
        let actions = match event.kind {
            EventKind::PodPrepared => vec![Action::Preparing],
            EventKind::PodPrepareAborted | EventKind::PodStartFailed => vec![Action::Failed],
            EventKind::PodStarting => vec![Action::Starting],
            EventKind::AppStarted => {
                self.stopping.remove(&key);
                match event.data.get("attempt").is_none_or(|attempt| attempt == "0") {
                    true => vec![Action::Running],
                    false => vec![Action::Starting, Action::Running],
                }
            }
            EventKind::PodStarted
            | EventKind::AppReady
            | EventKind::PodResumed
            | EventKind::AppResumed
            | EventKind::AppHealthStarting
            | EventKind::AppHealthy
            | EventKind::AppUnhealthy
            | EventKind::AppOom
            | EventKind::PodUpdated => vec![Action::Running],
            // Of an app that does not run, it reports no state.
            EventKind::AppUpdated if event.data.contains_key("attempt") => vec![Action::Running],
            EventKind::PodStopping | EventKind::AppStopping => {
                if self.stopping.len() >= MAX_STOPPING {
                    self.stopping.clear();
                }
                self.stopping.insert(key);
                vec![Action::Stopping]
            }
            EventKind::PodExited => {
                let is_requested = self.stopping.contains(&key);
                self.stopping.retain(|(pod, _)| *pod != event.id);
                vec![end_of(event, is_requested)]
            }
            EventKind::AppExited => {
                let is_requested = self.stopping.remove(&key) || self.stopping.contains(&(key.0, None));
                vec![end_of(event, is_requested)]
            }
            EventKind::AppCreated => vec![Action::Initialized],
            EventKind::PodPaused | EventKind::AppPaused => vec![Action::Waiting],
            EventKind::PodGarbageCollected | EventKind::AppRemoved => vec![Action::Skipped],
            EventKind::AppUpdated
            | EventKind::ImageImported
            | EventKind::ImageRemoved
            | EventKind::NodeCalled
            | EventKind::ScheduleEnabled
            | EventKind::ScheduleDisabled
            | EventKind::ScheduleDestroyed
            | EventKind::ScheduleStartFailed
            | EventKind::ScheduleRunSkipped => return None,
        };
        let facts: Vec<String> = event.data.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let message = format!("{} {}", event.kind.as_str(), facts.join(" ")).trim_end().to_owned();
        Some(ServiceStateChange { actions, message, health: health(event.kind) })
    }
}

/// The app of an event; `None`: it is one of a pod.
pub(super) fn app_of(event: &NewEvent) -> Option<&str> {
    (event.kind.subject() == EventSubject::App).then_some(event.name.as_str())
}

fn end_of(event: &NewEvent, is_requested: bool) -> Action {
    let succeeded = event.data.get("exit_code").is_none_or(|code| code == "0");
    if succeeded || is_requested { Action::Finished } else { Action::Failed }
}

/// The health that an event reports.
fn health(kind: EventKind) -> Option<ServiceHealth> {
    let (unknown, healthy) = match kind {
        EventKind::AppHealthStarting => (true, false),
        EventKind::AppHealthy => (false, true),
        EventKind::AppUnhealthy => (false, false),
        // It reports another change.
        _ => return None,
    };
    Some(ServiceHealth { unknown, healthy, ..ServiceHealth::default() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gantry_model::Timestamp;

    use super::*;

    fn event(kind: EventKind, name: &str, data: &[(&str, &str)]) -> NewEvent {
        let data: BTreeMap<String, String> =
            data.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        NewEvent { kind, at: Timestamp(0), id: "p".into(), name: name.into(), data }
    }

    fn actions(states: &mut ServiceStates, kind: EventKind, name: &str, data: &[(&str, &str)]) -> Vec<Action> {
        states.translate(&event(kind, name, data)).map_or_else(Vec::new, |change| change.actions)
    }

    #[test]
    fn ends_are_failures_unless_they_were_requested() {
        let mut states = ServiceStates::default();
        let killed = [("exit_code", "143")];
        assert_eq!(actions(&mut states, EventKind::AppExited, "a", &[("exit_code", "0")]), [Action::Finished]);
        assert_eq!(actions(&mut states, EventKind::AppExited, "a", &killed), [Action::Failed]);
        assert_eq!(actions(&mut states, EventKind::AppStopping, "a", &[]), [Action::Stopping]);
        assert_eq!(actions(&mut states, EventKind::AppExited, "b", &killed), [Action::Failed], "another app");
        assert_eq!(actions(&mut states, EventKind::AppExited, "a", &killed), [Action::Finished]);
        assert_eq!(actions(&mut states, EventKind::AppExited, "a", &killed), [Action::Failed], "the next end");
        assert_eq!(actions(&mut states, EventKind::PodStopping, "p", &[]), [Action::Stopping]);
        assert_eq!(actions(&mut states, EventKind::AppExited, "b", &killed), [Action::Finished]);
        assert_eq!(actions(&mut states, EventKind::PodExited, "p", &killed), [Action::Finished]);
        assert_eq!(actions(&mut states, EventKind::PodExited, "p", &killed), [Action::Failed]);
        assert!(states.stopping.is_empty(), "{states:?}");
        let change = states.translate(&event(EventKind::AppExited, "a", &[("exit_code", "3")]));
        assert_eq!(change.map(|change| change.message).as_deref(), Some("app-exited exit_code=3"));
        assert_eq!(states.translate(&event(EventKind::ImageRemoved, "x", &[])), None);
    }

    #[test]
    fn later_starts_of_an_app_have_two_states() {
        let mut states = ServiceStates::default();
        let started = |states: &mut _, attempt| actions(states, EventKind::AppStarted, "a", &[("attempt", attempt)]);
        assert_eq!(started(&mut states, "0"), [Action::Running]);
        assert_eq!(started(&mut states, "1"), [Action::Starting, Action::Running]);
        // A start after a request to stop without an end: the request is over.
        assert_eq!(actions(&mut states, EventKind::AppStopping, "a", &[]), [Action::Stopping]);
        assert_eq!(started(&mut states, "2").len(), 2);
        assert_eq!(actions(&mut states, EventKind::AppExited, "a", &[("exit_code", "1")]), [Action::Failed]);
    }

    #[test]
    fn memory_is_bounded() {
        let mut states = ServiceStates::default();
        for number in 0..3 * MAX_STOPPING {
            actions(&mut states, EventKind::AppStopping, &number.to_string(), &[]);
        }
        assert!(states.stopping.len() <= MAX_STOPPING);
    }
}
