//! The health of apps: the last results of a probe, which only the supervisor has, and waiting for a state.
//! [`crate::pods::reports`] records the changes.

use std::collections::BTreeMap;
use std::time::Duration;

use gantry_contract::control::{HealthReport, Reply, Request};
use gantry_host::inotify::Inotify;
use gantry_model::{AppEnd, AppName, AppState, HealthState, Phase, PodId};
use gantry_store::{AppRow, PodRow};

use crate::host::process::{self, Deadline};
use crate::pods::control::unexpected;
use crate::pods::view::PodView;
use crate::pods::wait::PodWait;
use crate::{Engine, EngineError, PodError};

/// Poll interval of a wait for a state of health, if the pod's directory cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// The maximum time between two looks at the row, although its directory is watched: the supervisor may have died.
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);

impl PodWait<'_> {
    /// Waits until every app with a health check has this health. `None`: the deadline passed. Returns early if that
    /// cannot be any more: the pod has ended, or no app that runs has a health check.
    ///
    /// # Errors
    /// [`PodError`], also when the pod is gone by then and never ran.
    pub fn health(&mut self, health: HealthState, deadline: Option<Duration>) -> Result<Option<PodView>, PodError> {
        let Self { engine, id, seen } = self;
        let deadline = Deadline::from(deadline);
        // Before the first look at the row: no change is missed.
        let changes = Inotify::new().ok().filter(|changes| changes.watch(&engine.pod_dir(*id)).is_ok());
        loop {
            let view = engine.status_or_end(*id, seen)?;
            if is_reached(&view.row, health) || view.row.phase.is_final() || engine.runs_no_checked_app(&view.row) {
                return Ok(Some(view));
            }
            if deadline.passed() {
                return Ok(None);
            }
            let waited = match &changes {
                Some(changes) => {
                    use std::os::fd::AsFd as _;
                    let waited = process::readable(&[changes.as_fd()], deadline.at_most(MAX_POLL_INTERVAL));
                    // The row is read again, whatever has changed.
                    let _any_change = changes.read_changes(|_| {});
                    waited
                }
                None => process::readable(&[], deadline.at_most(POLL_INTERVAL)),
            };
            waited.map_err(PodError::io("wait for the health of", &view.dir()))?;
        }
    }
}

impl Engine {
    /// The health of an app of a running pod, with the last results of its probe.
    ///
    /// # Errors
    /// [`EngineError`]: the pod does not run, or the app has no health check.
    pub fn health_report(&self, id: PodId, app: &AppName) -> Result<HealthReport, EngineError> {
        match self.ask(id, &Request::Health { app: app.to_string() }).map_err(EngineError::from_cause)? {
            (Reply::Health(report), _) => Ok(report),
            (other, _) => Err(EngineError::from_cause(unexpected(id, &other))),
        }
    }

    /// The health of each app of a pod that runs and has a health check, as far as the supervisor replies.
    #[must_use]
    pub fn health_reports(&self, row: &PodRow) -> BTreeMap<AppName, HealthReport> {
        let apps = row.apps.iter().filter(|app| app.health().is_some());
        apps.filter_map(|app| Some((app.name.clone(), self.health_report(row.id, &app.name).ok()?))).collect()
    }

    /// Whether a pod runs, and none of its apps that run, or will be started without a request, has a health check.
    fn runs_no_checked_app(&self, row: &PodRow) -> bool {
        let is_checked = |app: &AppRow| app.health.number > 0 && (!is_exited(app) || waits_for_restart(app));
        if !matches!(row.phase, Phase::Running { .. }) || row.apps.iter().any(is_checked) {
            return false;
        }
        // The row may be younger than the first change.
        let status = self.supervisor_status(row.id).ok();
        status.and_then(|status| status.apps).is_some_and(|apps| apps.iter().all(|app| app.health.is_none()))
    }
}

/// Whether every app that runs and has a health check has this health, and there is one; for unhealthy: any. An app
/// with a health check that waits for its restart has none.
fn is_reached(row: &PodRow, wanted: HealthState) -> bool {
    let mut states = row.apps.iter().filter_map(AppRow::health).peekable();
    let will_be_checked = |app: &AppRow| app.health.number > 0 && waits_for_restart(app);
    match wanted {
        HealthState::Unhealthy => states.any(|state| state == wanted),
        HealthState::Starting | HealthState::Healthy => {
            states.peek().is_some() && states.all(|state| state == wanted) && !row.apps.iter().any(will_be_checked)
        }
    }
}

fn is_exited(app: &AppRow) -> bool {
    matches!(app.state, AppState::Exited { .. })
}

fn waits_for_restart(app: &AppRow) -> bool {
    matches!(app.state, AppState::Exited { end: AppEnd { restart_at: Some(_), .. }, .. })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use gantry_model::Timestamp;

    /// A pod with one app, which runs.
    pub(crate) fn row() -> PodRow {
        PodRow {
            id: PodId::from_random([1; 16]),
            generation: gantry_model::Generation(0),
            created: Timestamp(0),
            prepared: None,
            net: gantry_model::NetMode::None,
            networks: gantry_store::Networks::default(),
            hostname: "h".into(),
            name: None,
            namespace: Default::default(),
            sandbox: false,
            cgroup: "/gantry/6733c088-a507-4694-aabf-ec79c0a8ac9a".into(),
            log_dir: None,
            limit_changes: 0,
            paused: false,
            phase: Phase::Embryo,
            apps: vec![gantry_store::AppRow {
                name: "a".parse().unwrap(),
                id: gantry_model::AppId::from_random([1; 32]),
                labels: std::collections::BTreeMap::new(),
                image: None,
                image_name: "x".into(),
                annotations: std::collections::BTreeMap::new(),
                added: None,
                paused: false,
                readiness: None,
                health: gantry_store::HealthRecord::default(),
                oom: gantry_store::OomRecord::default(),
                limit_changes: 0,
                log_path: None,
                restart: Default::default(),
                state: gantry_model::AppState::Started { at: Timestamp(1), pid: 1, attempt: 0 },
            }],
            user_annotations: std::collections::BTreeMap::new(),
            user_labels: std::collections::BTreeMap::new(),
            restart: Default::default(),
        }
    }

    #[test]
    fn apps_awaiting_a_restart_are_not_healthy() {
        let mut row = row();
        row.apps[0].health.state = Some(HealthState::Healthy);
        row.apps.push(row.apps[0].clone());
        row.apps[1].health.number = 3;
        for (restart_at, healthy) in [(Some(Timestamp(9)), false), (None, true)] {
            let end = AppEnd { how: gantry_model::AppOutcome::Exited(1), oom: false, at: Timestamp(2), restart_at };
            row.apps[1].state = AppState::Exited { started: Some(Timestamp(1)), end, attempt: 0 };
            assert_eq!(is_reached(&row, HealthState::Healthy), healthy, "{restart_at:?}");
        }
    }

    #[test]
    fn all_must_be_healthy_or_one_unhealthy() {
        use HealthState::{Healthy, Starting, Unhealthy};
        let mut row = row();
        assert!(!is_reached(&row, Healthy), "no health check");
        row.apps.push(row.apps[0].clone());
        for (states, healthy, unhealthy) in [
            ([Some(Healthy), None], true, false),
            ([Some(Healthy), Some(Starting)], false, false),
            ([Some(Healthy), Some(Unhealthy)], false, true),
        ] {
            for (app, state) in row.apps.iter_mut().zip(states) {
                app.health.state = state;
            }
            assert_eq!((is_reached(&row, Healthy), is_reached(&row, Unhealthy)), (healthy, unhealthy), "{states:?}");
        }
    }
}
