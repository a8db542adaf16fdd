//! The readiness of apps that report it themselves (`--sdnotify=app`): recording it, and waiting for it.
//!
//! The supervisor journals the first `READY=1` of each start; reconciling records it in the row, with one event.

use std::os::fd::AsFd as _;
use std::time::Duration;

use gantry_contract::control::{AppStatus, Notified, Reply, Request};
use gantry_contract::journal::{Fact, Parsed};
use gantry_host::inotify::Inotify;
use gantry_model::{AppName, AppState, Phase, Readiness, Timestamp};
use gantry_store::{Moved, PodRow, ReadyReport};

use crate::host::process::{self, Deadline};
use crate::pods::control::{ControlError, REPLY_TIMEOUT, unexpected};
use crate::pods::transition::was_replaced;
use crate::pods::view::PodView;
use crate::pods::wait::PodWait;
use crate::{Engine, PodError};

/// Poll interval where the pod directory cannot be watched, and the bound of a wait for a change in it.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

impl PodView {
    /// Whether the pod runs and every app that reports its readiness is ready.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.row.phase, Phase::Running { .. })
            && self.row.apps.iter().all(|app| app.readiness != Some(Readiness::Starting))
    }
}

impl PodWait<'_> {
    /// Waits until the pod runs and every app that reports its readiness has done so, or until it never will. `None`:
    /// the deadline passed.
    ///
    /// # Errors
    /// [`PodError`], also when the pod is gone by then and never ran.
    pub fn apps_ready(&mut self, deadline: Option<Duration>) -> Result<Option<PodView>, PodError> {
        let Self { engine, id, seen } = self;
        let deadline = Deadline::from(deadline);
        // Without inotify (no instances or watches are left), the journal is polled.
        let watch = Inotify::new().ok().filter(|inotify| inotify.watch(&engine.pod_dir(*id)).is_ok());
        loop {
            if let Some(inotify) = &watch {
                let _polled_as_well = inotify.read_changes(|_| {});
            }
            let view = engine.status_or_end(*id, seen)?;
            if view.is_ready() || view.row.phase.is_final() {
                return Ok(Some(view));
            }
            if deadline.passed() {
                return Ok(None);
            }
            // If it cannot be opened, because descriptors are short, it is polled.
            let supervisor = engine.supervisor_fd(&view.row).ok().flatten();
            let fds: Vec<_> = watch.iter().map(|fd| fd.as_fd()).chain(supervisor.iter().map(|fd| fd.as_fd())).collect();
            process::readable(&fds, deadline.at_most(POLL_INTERVAL)).map_err(PodError::io("wait for", &view.dir()))?;
        }
    }
}

impl Engine {
    /// The readiness and the status texts that the apps of a running pod have reported. Empty, without a request to the
    /// supervisor, if no app of the row reports its readiness.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn notifications(&self, row: &PodRow) -> Result<Vec<(AppName, Notified)>, ControlError> {
        let is_running = matches!(row.phase, Phase::Running { .. });
        if !is_running || row.apps.iter().all(|app| app.readiness.is_none()) {
            return Ok(Vec::new());
        }
        let connection = self.connect(row.id)?;
        connection.send(&Request::Status, &[])?;
        let status = match connection.receive(REPLY_TIMEOUT)? {
            (Reply::Status(status), _) => status,
            (other, _) => return Err(unexpected(row.id, &other)),
        };
        let notified = |app: AppStatus| Some((app.app.parse().ok()?, app.notified?));
        Ok(status.apps.unwrap_or_default().into_iter().filter_map(notified).collect())
    }

    /// Records in the row which apps are ready by the journal.
    pub(crate) fn record_readiness(&self, mut row: PodRow, journal: &Parsed) -> Result<Option<PodRow>, PodError> {
        loop {
            let reports = due_reports(&row, journal);
            if reports.is_empty() {
                return Ok(Some(row));
            }
            if !self.row_writes.are_enabled() {
                return Ok(Some(with_reports(row, &reports)));
            }
            match self.store.record_ready(row.id, row.generation, &reports).map_err(PodError::store) {
                // The caller still learns it; gantryd records it in the database that it restored.
                Err(error) if was_replaced(&error) => return Ok(Some(with_reports(row, &reports))),
                Err(error) => return Err(error),
                Ok(Moved::Yes(moved)) => return Ok(moved),
                Ok(Moved::Lost(Some(moved))) => row = moved,
                Ok(Moved::Lost(None)) => return Ok(None),
            }
        }
    }
}

/// A row with reports that are not stored.
fn with_reports(mut row: PodRow, reports: &[ReadyReport]) -> PodRow {
    for app in row.apps.iter_mut().filter(|app| reports.iter().any(|report| report.app == app.name)) {
        app.readiness = Some(Readiness::Ready);
    }
    row
}

/// The reports of the journal that the row lacks.
fn due_reports(row: &PodRow, journal: &Parsed) -> Vec<ReadyReport> {
    let starting = row.apps.iter().filter(|app| app.readiness == Some(Readiness::Starting));
    let report = |(name, attempt): (&AppName, u32)| {
        // The attempts of a removed app of this name began from 0, too: the last report is that of the present one.
        let at = journal.records.iter().rev().find_map(|record| match &record.fact {
            Fact::AppReady { app, attempt: ready } if app == name.as_str() && *ready == attempt => {
                Some(Some(Timestamp(record.at)))
            }
            Fact::AppRemoved { app } if app == name.as_str() => Some(None),
            // It says nothing about the readiness.
            _ => None,
        });
        Some(ReadyReport { app: name.clone(), attempt, at: at.flatten()? })
    };
    starting
        .filter_map(|app| match app.state {
            AppState::Started { attempt, .. } => Some((&app.name, attempt)),
            AppState::Waiting | AppState::Creating | AppState::Created | AppState::Exited { .. } => None,
        })
        .filter_map(report)
        .collect()
}
