//! Restarts apps whose main process has ended, by their policy ([`gantry_model::restart`]), or after they were stopped
//! as unhealthy. Both restarts have the same back-off and the same count.
//!
//! An exit and the time of the next start are one fact of the journal. A start that fails counts as an attempt that has
//! exited: with 127 if the command was not found, 126 if it cannot be executed, else 125. While the pod is paused,
//! nothing is started. A request to stop the app cancels the restart.

use std::time::Instant;

use gantry_contract::journal::{Fact, StopReason};
use gantry_contract::{Failure, ProcessExit};
use gantry_model::ErrorKind;
use gantry_model::restart::{HEALTHY_RUN, backoff};

use super::Supervisor;
use super::apps::refuse;
use crate::app::creation;
use crate::app::{App, NextOperation, StartRequest};
use crate::journal::now;
use crate::table::Token;

/// The restarts of an app.
#[derive(Default)]
pub(crate) struct Restarts {
    /// Restarts in a row, without a healthy run in between.
    count: u32,
    /// When the main process was started.
    started: Option<Instant>,
    /// The number of the last attempt, if it could not be started.
    failed_attempt: Option<u32>,
    /// The next start.
    next: Option<NextStart>,
}

/// A start to come.
struct NextStart {
    due: Instant,
    /// The same, in nanoseconds since the epoch.
    at: i64,
}

impl Restarts {
    /// Whether a start is to come.
    pub(crate) fn is_pending(&self) -> bool {
        self.next.is_some()
    }

    /// When the next start comes, in nanoseconds since the epoch.
    pub(crate) fn next_at(&self) -> Option<i64> {
        self.next.as_ref().map(|next| next.at)
    }

    /// The main process was started.
    pub(crate) fn record_start(&mut self) {
        self.started = Some(Instant::now());
        self.next = None;
    }

    /// A start on request: restarts are counted anew.
    pub(crate) fn forget_count(&mut self) {
        self.count = 0;
    }

    /// The main process has ended: after a healthy run, restarts are counted anew.
    fn end_run(&mut self) {
        if self.started.take().is_some_and(|started| started.elapsed() >= HEALTHY_RUN) {
            self.count = 0;
        }
    }

    /// Cancels the next start; returns whether one was to come.
    pub(crate) fn cancel(&mut self) -> bool {
        self.next.take().is_some()
    }
}

impl App {
    /// The number of the last attempt; `None` if there was none.
    pub(super) fn last_attempt(&self) -> Option<u32> {
        self.started.as_ref().map(|started| started.attempt).max(self.restarts.failed_attempt)
    }

    /// Plans the next start of an app that has ended so by itself; returns its time in nanoseconds since the epoch.
    pub(super) fn plan_restart(&mut self, how: ProcessExit) -> Option<i64> {
        self.restarts.end_run();
        self.plan.options.restart.restarts(how.into(), self.restarts.count).then(|| self.schedule_restart())
    }

    /// Schedules the next start after the back-off; returns its time in nanoseconds since the epoch.
    pub(super) fn schedule_restart(&mut self) -> i64 {
        let restarts = &mut self.restarts;
        restarts.end_run();
        let wall = now();
        // The nanoseconds of the clock are random enough to spread the starts of several apps.
        let delay = backoff(restarts.count, u32::try_from(wall.rem_euclid(1_000_000_007)).unwrap_or(0));
        restarts.count = restarts.count.saturating_add(1);
        let at = wall.saturating_add(i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX));
        restarts.next = Some(NextStart { due: Instant::now() + delay, at });
        at
    }
}

impl Supervisor {
    /// Starts the apps whose time has come.
    pub(super) fn check_restarts(&mut self, now: Instant) {
        if self.pause.holds_starts() {
            return;
        }
        for token in self.pod.apps.tokens() {
            let Some(app) = self.pod.apps.get_mut(token) else { continue };
            let is_due = app.restarts.next.as_ref().is_some_and(|next| next.due <= now);
            // The end of an operation wakes the loop, and a start that is due follows it.
            if !is_due || app.operation.is_some() {
                continue;
            }
            let Some(attempt) = app.last_attempt().map_or(Some(0), |last| last.checked_add(1)) else {
                app.restarts.cancel();
                continue;
            };
            self.begin_clear(token, NextOperation::Start(StartRequest { attempt, client: None }));
        }
    }

    /// When [`Self::check_restarts`] has work.
    pub(super) fn restart_deadlines(&self) -> impl Iterator<Item = Instant> {
        let are_held = self.pause.holds_starts();
        let apps = self.pod.apps.values().filter(move |app| !are_held && app.operation.is_none());
        apps.filter_map(|app| app.restarts.next.as_ref().map(|next| next.due))
    }

    /// Cancels the restart of an app on request.
    pub(super) fn cancel_restart(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        if app.restarts.cancel() {
            let attempt = app.last_attempt().unwrap_or(0);
            self.journal.append(Fact::AppStopping { app: app.plan.name.clone(), attempt, unhealthy: false });
        }
    }

    /// A start has failed: tells its client, or records a failed attempt of the restart policy.
    pub(super) fn fail_start(&mut self, token: Token<App>, start: StartRequest, why: Failure) {
        let is_stopping = self.shutdown.is_stopping();
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let name = app.plan.name.clone();
        if let Some(client) = &start.client {
            return refuse(client, &name, why);
        }
        app.restarts.cancel();
        if is_stopping {
            return;
        }
        tracing::warn!("attempt {} of app '{name}' cannot be started: {}", start.attempt, why.message);
        let how = ProcessExit::Code(exit_code(&why));
        app.restarts.failed_attempt = Some(start.attempt);
        app.exit = Some(how);
        creation::remove_old_logs(&app.plan, start.attempt);
        let restart_at = app.plan_restart(how);
        self.journal.append(Fact::AppExited { app: name, attempt: start.attempt, how, oom: false, restart_at });
        if restart_at.is_none() && !self.pod.plan.sandbox {
            self.stop(StopReason::AppFailed, self.pod.stop_grace());
        }
    }
}

/// The exit code of an attempt that could not be started, as shells and docker have it.
fn exit_code(why: &Failure) -> u8 {
    match why.kind {
        ErrorKind::CommandNotFound => 127,
        ErrorKind::CommandNotExecutable => 126,
        _ => 125,
    }
}
