//! Health checks of apps: runs their probes, journals changes, and acts on an app that becomes unhealthy.
//!
//! A probe is due only while its app runs, is not paused, and neither the app nor the pod is being stopped. An app
//! without a health check costs nothing here; one with a check wakes the event loop when a probe begins and ends.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use gantry_contract::control::{HealthReport, HealthResult};
use gantry_contract::journal::Fact;
use gantry_model::ErrorKind;
use gantry_model::health::HealthAction;
use rustix::event::PollFlags;

use super::{EventSource, SIGKILL, Supervisor};
use crate::app::probe::{Probe, ProbeOutcome};
use crate::app::{App, StartRequest, StopCause};
use crate::failure::{Result, failure};
use crate::pod::Pod;
use crate::reaper::Reaper;
use crate::table::Token;

/// Maximum number of probes that begin before other events are handled: each takes a fork.
const MAX_BEGINNINGS: usize = 4;

impl App {
    /// Whether its probes run: it runs, and is neither paused nor being stopped.
    fn is_probed(&self) -> bool {
        self.running.is_some() && self.stop.is_none() && !self.is_paused
    }

    /// The change of its health to be journaled, if there is one.
    pub(super) fn take_health_change(&mut self) -> Option<Fact> {
        self.health.as_mut()?.take_change(&self.plan.name, Instant::now())
    }

    /// Whether the program of a probe is being started.
    pub(super) fn is_probe_pending(&self) -> bool {
        self.health.as_ref().and_then(|health| health.probe.as_ref()).is_some_and(Probe::is_pending)
    }

    /// Kills the probe that runs.
    pub(super) fn abort_probe(&mut self, reaper: &mut Reaper) {
        let Some(health) = &mut self.health else { return };
        if let Some(probe) = health.probe.take() {
            health.schedule(Instant::now());
            probe.kill(self, reaper);
        }
    }
}

impl Pod {
    /// The descriptors of probes to poll.
    pub(super) fn watched_probes(&self) -> impl Iterator<Item = (EventSource, BorrowedFd<'_>, PollFlags)> {
        let probes = self.apps.iter().filter_map(|(token, app)| Some((token, app.health.as_ref()?.probe.as_ref()?)));
        probes.flat_map(|(token, probe)| {
            let exit = probe.program().map(|pidfd| (EventSource::ProbeExit(token), pidfd, PollFlags::IN));
            let other = probe.watched().map(|(fd, events)| (EventSource::Probe(token), fd, events));
            exit.into_iter().chain(other)
        })
    }

    pub(super) fn health_report(&self, app: &str) -> Result<HealthReport> {
        let app = self.app(app)?;
        let none = || failure(ErrorKind::Refused, format!("app '{}' has no health check", app.plan.name));
        app.health.as_ref().map(|health| health.report()).ok_or_else(none)
    }
}

impl Supervisor {
    /// When [`Self::check_health`] has work.
    pub(super) fn health_deadlines(&self) -> impl Iterator<Item = Instant> {
        let is_stopping = self.shutdown.is_stopping();
        self.pod.apps.values().filter_map(move |app| {
            let health = app.health.as_ref()?;
            (health.probe.is_some() || (app.is_probed() && !is_stopping)).then(|| health.deadline())
        })
    }

    /// Journals changes, times out probes, and begins those that are due.
    pub(super) fn check_health(&mut self, now: Instant) {
        let mut beginnings = 0;
        for token in self.pod.apps.tokens() {
            let Some(app) = self.pod.apps.get_mut(token).filter(|app| app.health.is_some()) else { continue };
            if app.is_paused {
                app.abort_probe(&mut self.reaper);
            }
            let Some(health) = &mut app.health else { continue };
            if app.running.is_some()
                && let Some(fact) = health.take_change(&app.plan.name, now)
            {
                self.journal.append(fact);
            }
            let timeout = health.check().timeout;
            if let Some(probe) = health.probe.take_if(|probe| probe.deadline <= now) {
                let result = probe.time_out(app, timeout, &mut self.reaper);
                self.record_health(token, result);
                continue;
            }
            if !health.is_due(now) || self.shutdown.is_stopping() || beginnings == MAX_BEGINNINGS || !app.is_probed() {
                continue;
            }
            beginnings += 1;
            let health = &app.health;
            let Some(probe) = health.as_ref().map(|health| health.check().probe.clone()) else { continue };
            let init = self.pod.init.as_ref().map(|init| &init.pidfd);
            let begun = Probe::begin(app, init, &self.pod.jail.null, &probe, timeout);
            match begun {
                Ok(probe) => {
                    if let Some(app) = self.pod.apps.get_mut(token)
                        && let Some(health) = &mut app.health
                    {
                        health.probe = Some(probe);
                    }
                }
                Err(result) => self.record_health(token, result),
            }
        }
    }

    /// A descriptor of a probe is ready.
    pub(super) fn advance_probe(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let Some(health) = &mut app.health else { return };
        let Some(probe) = health.probe.take() else { return };
        match probe.advance(&mut self.output.buffer, &mut self.reaper) {
            ProbeOutcome::Running(probe) => health.probe = Some(probe),
            ProbeOutcome::Ended(result) => self.record_health(token, result),
        }
    }

    /// The program of a probe has exited.
    pub(super) fn handle_probe_exit(&mut self, token: Token<App>) {
        self.advance_probe(token);
        // A probe that still runs could not be reaped.
        let probe = self.pod.apps.get(token).and_then(|app| app.health.as_ref()?.probe.as_ref());
        if let Some(program) = probe.and_then(Probe::program) {
            self.reaper.leave_out_if_traced(program);
        }
    }

    /// Records the result of a probe, and acts if the app has become unhealthy. An app that is being stopped keeps its
    /// health.
    fn record_health(&mut self, token: Token<App>, result: HealthResult) {
        let now = Instant::now();
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let is_probed = app.is_probed() && !self.shutdown.is_stopping();
        let Some(health) = app.health.as_mut().filter(|_| is_probed) else { return };
        let action = health.record(result, now);
        if let Some(fact) = health.take_change(&app.plan.name, now) {
            self.journal.append(fact);
        }
        match action {
            None | Some(HealthAction::None) => {}
            Some(HealthAction::Stop) => self.stop_unhealthy(token, None),
            Some(HealthAction::Kill) => {
                let attempt = app.started.as_ref().map_or(0, |started| started.attempt);
                // Before its exit, whose cause it is.
                self.journal.append(Fact::AppStopping { app: app.plan.name.clone(), attempt, unhealthy: true });
                app.signal(SIGKILL);
                app.cgroup.kill();
            }
            Some(HealthAction::Restart) => self.restart_unhealthy(token),
        }
    }

    fn restart_unhealthy(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get(token) else { return };
        match app.last_attempt().unwrap_or(0).checked_add(1) {
            Some(attempt) => {
                self.stop_unhealthy(token, Some(StartRequest { attempt, client: None }));
            }
            None => tracing::warn!("cannot restart the unhealthy app '{}'", app.plan.name),
        }
    }

    fn stop_unhealthy(&mut self, token: Token<App>, restart: Option<StartRequest>) {
        let Some(app) = self.pod.apps.get(token) else { return };
        let grace = self.pod.stop_grace_of(app);
        self.begin_stop(token, grace, StopCause::Health, None, restart);
    }

    /// Kills every probe: the pod has ended.
    pub(super) fn abort_probes(&mut self) {
        for app in self.pod.apps.values_mut() {
            app.abort_probe(&mut self.reaper);
        }
    }
}
