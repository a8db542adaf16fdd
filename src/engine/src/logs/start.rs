//! The log of one start of an app, found by its main process.

use std::time::Duration;

use gantry_model::{AppName, AppState, Timestamp};
use gantry_store::PodRow;

use crate::logs::reader::LogReader;
use crate::{LogQuery, LogsError, Observer};

/// After the end of a process, its supervisor may still read output from the pipe.
const OUTPUT_TIMEOUT: Duration = Duration::from_millis(250);

/// The start of an app whose log is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AppStart {
    app: AppName,
    attempt: u32,
}

/// The state of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StartState {
    /// Its process runs.
    Running,
    /// Its process has ended.
    Ended {
        /// The time after which it has no more lines.
        last_line: Timestamp,
    },
    /// The app or its pod was removed.
    Removed,
}

impl AppStart {
    /// The start that a query follows to its end.
    pub(crate) fn of_query(query: &LogQuery) -> Option<Self> {
        match (&query.apps[..], query.attempt) {
            ([app], Some(attempt)) if query.follow => Some(Self { app: app.clone(), attempt }),
            _ => None,
        }
    }

    /// Its state in the pod's row; `None`: the pod was removed.
    pub(crate) fn state(&self, row: Option<&PodRow>) -> StartState {
        let Some(app) = row.and_then(|row| row.apps.iter().find(|app| app.name == self.app)) else {
            return StartState::Removed;
        };
        match &app.state {
            AppState::Started { attempt, .. } if *attempt == self.attempt => StartState::Running,
            AppState::Exited { end, attempt, .. } if *attempt == self.attempt => {
                StartState::Ended { last_line: end.at.after(OUTPUT_TIMEOUT) }
            }
            AppState::Started { at, .. } => StartState::Ended { last_line: at.after(OUTPUT_TIMEOUT) },
            AppState::Exited { end, .. } => StartState::Ended { last_line: end.at.after(OUTPUT_TIMEOUT) },
            // Another app with its name.
            AppState::Waiting | AppState::Creating | AppState::Created => StartState::Removed,
        }
    }
}

/// The query, bounded by the time of the start that it names, for a log whose file has all starts of the app.
pub(crate) fn within_start(row: &PodRow, query: &LogQuery) -> LogQuery {
    let ([app], Some(requested)) = (&query.apps[..], query.attempt) else { return query.clone() };
    let started = row.apps.iter().find(|row| row.name == *app).and_then(|app| match &app.state {
        AppState::Started { at, attempt, .. } if *attempt == requested => Some(*at),
        AppState::Exited { started, attempt, .. } if *attempt == requested => *started,
        // Another start, whose time is not known.
        _ => None,
    });
    let started = started.filter(|_| row.log_file(app).is_some());
    LogQuery { since: started.into_iter().chain(query.since).max(), ..query.clone() }
}

impl Observer {
    /// A reader of the log that this process, the main process of an app, writes to stderr or to stdout. It follows
    /// until the process has ended.
    ///
    /// # Errors
    /// [`LogsError`], also when no app of a running pod has this process.
    pub fn open_process_logs(&self, pid: u32, stderr: bool) -> Result<LogReader, LogsError> {
        for view in self.pods(&[])? {
            if view.supervisor().is_none() {
                continue;
            }
            let mut starts = view.row.apps.iter().filter_map(|app| match &app.state {
                AppState::Started { pid: started, attempt, .. } if *started == pid => Some((&app.name, *attempt)),
                // Only a running app has a process.
                _ => None,
            });
            let Some((app, attempt)) = starts.next() else { continue };
            let query = LogQuery {
                apps: vec![app.clone()],
                stderr: Some(stderr),
                attempt: Some(attempt),
                follow: true,
                ..LogQuery::default()
            };
            return self.open_logs(view.row.id, &query);
        }
        Err(LogsError::NoSuchProcess { pid })
    }
}
