//! Pauses apps by the cgroup freezer, and resumes them.
//!
//! Each app is frozen by its own cgroup, so that the supervisor and PID 1, which reaps, run on. The kernel freezes a
//! process when it next returns to user mode or sleeps interruptibly: [`Supervisor::check_pause`] polls until all are
//! frozen, and thaws them again after [`FREEZE_TIMEOUT`]. A signal that a frozen process handles takes effect when
//! it is thawed; one that ends it does so at once on v2.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use gantry_contract::Failure;
use gantry_contract::control::Reply;
use gantry_contract::journal::Fact;
use gantry_model::ErrorKind;

use super::Supervisor;
use super::apps::check_is_idle;
use crate::app::App;
use crate::control;
use crate::failure::{Result, failure};
use crate::table::Token;

/// Timeout of freezing the processes of apps.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the freezing is polled.
const FREEZE_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A pause that is under way. The apps in it have [`App::is_paused`] set.
struct PauseRequest {
    apps: Vec<Token<App>>,
    /// The app by name; `None`: the pod.
    name: Option<String>,
    deadline: Instant,
    client: OwnedFd,
}

/// The pause of the pod.
#[derive(Default)]
pub(super) struct Pause {
    /// Whether the pod is paused as a whole: no app is started.
    is_whole: bool,
    /// The pause that is under way.
    request: Option<PauseRequest>,
}

impl Pause {
    /// Whether the pod is paused as a whole.
    pub(super) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Whether a pause is under way, of an app or of the pod.
    pub(super) fn is_under_way(&self) -> bool {
        self.request.is_some()
    }

    /// Whether no app is started: the pod is paused as a whole, or a pause is under way.
    pub(super) fn holds_starts(&self) -> bool {
        self.is_whole || self.is_under_way()
    }

    /// Fails while no app is started.
    pub(super) fn check_allows_starts(&self) -> Result<()> {
        self.check_is_not_under_way()?;
        match self.is_whole {
            true => Err(failure(ErrorKind::Refused, "the pod is paused: resume it with 'gantry unpause'")),
            false => Ok(()),
        }
    }

    fn check_is_not_under_way(&self) -> Result<()> {
        match self.request {
            Some(_) => Err(failure(ErrorKind::Busy, "the pod is being paused by another command")),
            None => Ok(()),
        }
    }

    /// When [`Supervisor::check_pause`] has work.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.request.as_ref().map(|request| (now + FREEZE_POLL_INTERVAL).min(request.deadline))
    }
}

impl PauseRequest {
    fn refuse(&self, why: Failure) {
        refuse(&self.client, self.name.clone(), why);
    }
}

fn refuse(client: &OwnedFd, app: Option<String>, why: Failure) {
    control::reply(client, &Reply::Failed(Failure { app, ..why }), None);
}

impl Supervisor {
    /// Freezes an app, or every running app. Replies when their processes are frozen.
    pub(super) fn pause(&mut self, name: Option<String>, client: OwnedFd) {
        let apps = match self.apps_to_pause(name.as_deref()) {
            Ok(apps) => apps,
            Err(why) => return refuse(&client, name, why),
        };
        let is_whole = name.is_none();
        if apps.is_empty() && (!is_whole || self.pause.is_whole) {
            return control::reply(&client, &Reply::Done, None);
        }
        let request = PauseRequest { apps, name, deadline: Instant::now() + FREEZE_TIMEOUT, client };
        for token in &request.apps {
            let Some(app) = self.pod.apps.get_mut(*token) else { continue };
            app.is_paused = true;
            if let Err(error) = app.cgroup.set_frozen(true) {
                let why = match error.kind() {
                    std::io::ErrorKind::NotFound => "this host has no cgroup freezer".to_owned(),
                    _ => error.to_string(),
                };
                let why = format!("cannot freeze app '{}': {why}", app.plan.name);
                return self.undo_pause(request, failure(ErrorKind::Unavailable, why));
            }
        }
        self.pause.request = Some(request);
        self.check_pause(Instant::now());
    }

    /// The running apps that are not paused yet, of the named app or of all.
    fn apps_to_pause(&self, name: Option<&str>) -> Result<Vec<Token<App>>> {
        self.shutdown.check_is_open()?;
        self.pause.check_is_not_under_way()?;
        let tokens = match name {
            Some(name) => vec![self.pod.find_app(name)?.0],
            None => self.pod.apps.tokens(),
        };
        let mut apps = Vec::new();
        for token in tokens {
            let Some(app) = self.pod.apps.get(token) else { continue };
            check_is_idle(app)?;
            match (&app.running, name) {
                (Some(_), _) if app.is_paused => {}
                // Frozen, it could not exit within its stop timeout.
                (Some(_), _) if app.stop.is_some() => {
                    let why = format!("app '{}' is being stopped", app.plan.name);
                    return Err(failure(ErrorKind::Busy, why));
                }
                (Some(_), _) => apps.push(token),
                (None, Some(name)) => {
                    return Err(failure(ErrorKind::Refused, format!("app '{name}' does not run")));
                }
                (None, None) => {}
            }
        }
        // Making a process freezes and thaws other apps.
        match self.creations.is_empty() {
            true => Ok(apps),
            false => Err(failure(ErrorKind::Busy, "an app of the pod is being made")),
        }
    }

    /// Completes a pause whose processes are frozen, and times out others.
    pub(super) fn check_pause(&mut self, now: Instant) {
        let Some(request) = self.pause.request.take() else { return };
        let mut late = None;
        for token in &request.apps {
            // An app may have been killed meanwhile.
            let Some(app) = self.pod.apps.get(*token).filter(|app| app.running.is_some()) else { continue };
            match app.cgroup.is_frozen() {
                Ok(true) => {}
                Ok(false) => late = Some(format!("processes of app '{}' do not freeze", app.plan.name)),
                Err(error) => {
                    let why = format!("cannot see whether app '{}' is frozen: {error}", app.plan.name);
                    return self.undo_pause(request, failure(ErrorKind::Internal, why));
                }
            }
        }
        match late {
            None => {
                self.pause.is_whole |= request.name.is_none();
                self.journal.append(Fact::Paused { app: request.name });
                control::reply(&request.client, &Reply::Done, None);
            }
            Some(why) if request.deadline <= now => self.undo_pause(request, failure(ErrorKind::TimedOut, why)),
            Some(_) => self.pause.request = Some(request),
        }
    }

    fn undo_pause(&mut self, request: PauseRequest, why: Failure) {
        for token in &request.apps {
            self.thaw(*token);
        }
        request.refuse(why);
    }

    /// Thaws an app, or every app of the pod.
    pub(super) fn unpause(&mut self, name: Option<String>, client: &OwnedFd) {
        let resumed = match &name {
            Some(name) => match self.pod.find_app(name) {
                Ok((token, app)) if app.is_paused => self.resume(token),
                other => other.map(drop),
            },
            None => self.resume_all(),
        };
        match resumed {
            Ok(()) => control::reply(client, &Reply::Done, None),
            Err(why) => refuse(client, name, why),
        }
    }

    /// Thaws a paused app; the pod with it, if no other app is paused.
    pub(super) fn resume(&mut self, token: Token<App>) -> Result<()> {
        if self.pause.request.as_ref().is_some_and(|request| request.apps.contains(&token)) {
            self.abort_pause();
            return Ok(());
        }
        let Some(app) = self.pod.apps.get(token).filter(|app| app.is_paused) else { return Ok(()) };
        let name = app.plan.name.clone();
        if self.pod.apps.values().filter(|app| app.is_paused).count() == 1 && self.pause.is_whole {
            return self.resume_all();
        }
        if !self.thaw(token) {
            return Err(failure(ErrorKind::Internal, format!("cannot thaw app '{name}'")));
        }
        self.journal.append(Fact::Resumed { app: Some(name) });
        Ok(())
    }

    /// Thaws every paused app.
    pub(super) fn resume_all(&mut self) -> Result<()> {
        self.abort_pause();
        let mut failed = None;
        let mut has_resumed = std::mem::take(&mut self.pause.is_whole);
        for token in self.pod.apps.tokens() {
            let Some(app) = self.pod.apps.get(token).filter(|app| app.is_paused) else { continue };
            let name = app.plan.name.clone();
            if self.thaw(token) {
                has_resumed = true;
            } else {
                failed = Some(failure(ErrorKind::Internal, format!("cannot thaw app '{name}'")));
            }
        }
        if has_resumed {
            self.journal.append(Fact::Resumed { app: None });
        }
        failed.map_or(Ok(()), Err)
    }

    /// Aborts a pause that is under way.
    fn abort_pause(&mut self) {
        if let Some(request) = self.pause.request.take() {
            self.undo_pause(request, failure(ErrorKind::Refused, "the pod was resumed or stopped by another command"));
        }
    }

    /// Thaws the processes of an app; returns whether the kernel has accepted that. An app without a main process gets
    /// a new cgroup for its next start. An app that may trace others stays frozen while a process is made
    /// ([`super::creations::Creations::thaw_tracers`]).
    fn thaw(&mut self, token: Token<App>) -> bool {
        let Some(app) = self.pod.apps.get_mut(token) else { return true };
        if self.creations.are_tracers_frozen() && app.is_tracer() {
            app.is_paused = false;
            return true;
        }
        let is_thawed = app.cgroup.set_frozen(false).is_ok() || app.running.is_none();
        app.is_paused = !is_thawed;
        is_thawed
    }
}
