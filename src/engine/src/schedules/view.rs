//! A schedule with the state of its pods, as views show it.

use gantry_model::restart::restarts_before;
use gantry_model::{AppEnd, AppName, AppOutcome, AppState, Phase, PhaseName, Timestamp, signal};
use gantry_store::{PodRow, SchedulePod, ScheduleRow};

use super::{ScheduleError, is_stopped_on_request};
use crate::manifest;

/// From this number of restarts in a row on, none of which led to a run of [`gantry_model::restart::HEALTHY_RUN`], a
/// schedule is in the state [`ScheduleState::Failed`]. The back-off goes on growing.
const START_LIMIT: u32 = 5;

/// The state of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleState {
    /// Enabled; none of its pods runs.
    Standby,
    /// One of its pods runs, with all apps.
    Active,
    /// Its pod, or an app of it, has ended and is started again after a back-off.
    Restarting,
    /// Disabled.
    Passive,
    /// Enabled; its last start failed, or its pod has failed again and again, or for good.
    Failed,
}

impl ScheduleState {
    /// All states.
    pub const ALL: [Self; 5] = [Self::Standby, Self::Active, Self::Restarting, Self::Passive, Self::Failed];

    /// The word as shown to users and in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Standby => "standby",
            Self::Active => "active",
            Self::Restarting => "restarting",
            Self::Passive => "passive",
            Self::Failed => "error",
        }
    }
}

/// An app that has ended, of the newest pod of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedApp<'a> {
    /// The app.
    pub name: &'a AppName,
    /// Its end, with the time of its next start.
    pub end: AppEnd,
}

impl EndedApp<'_> {
    /// How often it was restarted in a row before, as its back-off tells; 0 if it is not started again.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.end.restart_at.map_or(0, |at| restarts_before(at.since(self.end.at)))
    }

    /// Its end and the restarts before it: `app 'a' has failed after 5 restarts in a row: exit code 3`.
    fn describe(&self) -> String {
        let how = match self.end.how {
            AppOutcome::Exited(code) => format!("exit code {code}"),
            AppOutcome::Signaled(number) => format!("killed by {}", signal::name(number)),
            AppOutcome::Lost => "its supervisor was killed".to_owned(),
        };
        match self.end.restart_at {
            Some(_) => format!("app '{}' has ended after {} restarts in a row: {how}", self.name, self.restarts()),
            None => format!("app '{}' has failed and is not restarted: {how}", self.name),
        }
    }
}

/// A schedule with its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleView {
    /// The row.
    pub row: ScheduleRow,
    /// Its pods of the present revision, the oldest first.
    pub pods: Vec<SchedulePod>,
    /// The newest of them; `None`: there is none, or it was removed meanwhile.
    pub newest_pod: Option<PodRow>,
    /// The time of the next run or try by gantryd; `None`: none is planned.
    pub next_run: Option<Timestamp>,
}

impl ScheduleView {
    /// The manifest of its pods, with the values of environment variables.
    ///
    /// # Errors
    /// [`ScheduleError::Manifest`] if the record is damaged.
    pub fn manifest(&self) -> Result<serde_json::Value, ScheduleError> {
        let spec = manifest::parse_ours(self.row.manifest.as_bytes())
            .map_err(|source| ScheduleError::Manifest { name: self.row.name.clone(), source })?;
        Ok(manifest::to_value(&spec))
    }

    /// The first app of the newest pod that waits to be started again, or has failed for good.
    #[must_use]
    pub fn ended_app(&self) -> Option<EndedApp<'_>> {
        let pod = self.newest_pod.as_ref()?;
        let is_final = matches!(pod.phase, Phase::Exited { .. }) && pod.restart.stop_request.is_none();
        pod.apps.iter().find_map(|app| match app.state {
            AppState::Exited { end, .. } if end.restart_at.is_some() || is_final && !end.how.is_success() => {
                Some(EndedApp { name: &app.name, end })
            }
            // It runs, or was not started yet, or has done its work.
            _ => None,
        })
    }

    /// Its state.
    #[must_use]
    pub fn state(&self) -> ScheduleState {
        let ended = self.ended_app();
        let is_restarted = self.newest_pod.as_ref().is_some_and(|pod| pod.restart.at.is_some());
        if self.pods.iter().any(|pod| pod.phase == PhaseName::Running) {
            match ended {
                Some(app) if app.restarts() >= START_LIMIT => ScheduleState::Failed,
                Some(_) => ScheduleState::Restarting,
                None => ScheduleState::Active,
            }
        } else if !self.row.enabled {
            ScheduleState::Passive
        } else if self.row.failure.is_some() {
            ScheduleState::Failed
        } else if is_restarted {
            ScheduleState::Restarting
        } else if ended.is_some() && self.row.timer.is_none() {
            ScheduleState::Failed
        } else {
            ScheduleState::Standby
        }
    }

    /// Whether its pod, which otherwise runs always, was stopped on request and stays so.
    #[must_use]
    pub fn is_stopped_on_request(&self) -> bool {
        let is_stopped = self.newest_pod.as_ref().is_some_and(is_stopped_on_request);
        is_stopped && self.row.timer.is_none() && self.state() == ScheduleState::Standby
    }

    /// The time of the next start of a pod or app; `None`: none is planned.
    #[must_use]
    pub fn next_start(&self) -> Option<Timestamp> {
        let of_pod = self.newest_pod.as_ref().and_then(|pod| pod.restart.at);
        self.ended_app().and_then(|app| app.end.restart_at).or(of_pod).or(self.next_run)
    }

    /// The cause of the state [`ScheduleState::Failed`]; `None` in other states.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        match self.state() {
            ScheduleState::Failed => self.row.failure.clone().or_else(|| self.ended_app().map(|app| app.describe())),
            _ => None,
        }
    }
}
