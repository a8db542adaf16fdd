//! Apps that are started, stopped and removed while the pod runs. [`super::creations`] adds them and makes their
//! processes.
//!
//! Nothing here blocks: an operation that takes time is kept in [`App::operation`] or [`App::stop`], with the client
//! that waits for it, and goes on when its descriptor is readable or its deadline has passed.

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::Failure;
use gantry_contract::control::{AppState, AppStatus, Reply};
use gantry_contract::journal::Fact;
use gantry_contract::start::Started;
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use rustix::thread::CapabilitySet;

use super::{SIGKILL, Supervisor};
use crate::app::creation::LogSettings;
use crate::app::launcher::EXECVE_TIMEOUT;
use crate::app::removal;
use crate::app::{App, AppInput, NextOperation, Operation, StartRequest, StopCause, StopRequest};
use crate::cgroup::updated_limits;
use crate::control;
use crate::failure::{OfApp as _, Result, failure};
use crate::pod::Pod;
use crate::table::Token;

/// Timeout of the end of the processes that an app left behind, and of their output.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the end of those processes is polled.
const CLEAR_POLL_INTERVAL: Duration = Duration::from_millis(3);

/// Maximum number of clients that wait for the exit of one app.
const MAX_STOP_CLIENTS: usize = 32;

/// Replies with a failure.
pub(super) fn refuse(client: &OwnedFd, app: &str, why: Failure) {
    let why = Failure { app: Some(app.to_owned()), ..why };
    control::reply(client, &Reply::Failed(why), None);
}

impl Pod {
    /// When [`Supervisor::check_operations`] has work.
    pub(super) fn operation_deadlines(&self, now: Instant) -> impl Iterator<Item = Instant> {
        let stops = self.apps.values().filter_map(|app| app.stop.as_ref()?.kill_at);
        let operations = self.apps.values().filter_map(move |app| match app.operation.as_ref()? {
            Operation::Clear { deadline, .. } => Some((now + CLEAR_POLL_INTERVAL).min(*deadline)),
            Operation::Execute { deadline, .. } => Some(*deadline),
            // The creation has the deadline.
            Operation::Create => None,
        });
        stops.chain(operations)
    }

    /// The status of each app.
    pub(super) fn app_statuses(&self) -> Vec<AppStatus> {
        let state = |app: &App| match (&app.started, app.exit) {
            (Some(started), None) => AppState::Running(started.clone()),
            (Some(started), Some(how)) => {
                // The last attempt may be one that could not be started.
                let attempt = app.last_attempt().unwrap_or(started.attempt);
                let started = Started { attempt, ..started.clone() };
                AppState::Exited { started, how, restart_at: app.restarts.next_at() }
            }
            (None, _) => AppState::Created,
        };
        let status = |app: &App| AppStatus {
            app: app.plan.name.clone(),
            number: app.output.app_number,
            state: state(app),
            paused: app.is_paused,
            notified: app.notify.as_ref().map(|notify| notify.state.clone()),
            health: app.health.as_ref().filter(|_| app.running.is_some()).map(|health| health.state()),
        };
        self.apps.values().map(status).collect()
    }
}

impl Supervisor {
    /// Starts an app on request.
    pub(super) fn start_app(&mut self, name: &str, start: StartRequest) {
        match self.check_start(name, start.attempt) {
            Ok(token) if self.reply_if_started(token, &start) => {}
            Ok(token) => self.begin_start(token, start),
            Err(why) => start.refuse(name, why),
        }
    }

    /// The app, if the attempt may be started or runs.
    fn check_start(&self, name: &str, attempt: u32) -> Result<Token<App>> {
        let (token, app) = self.pod.find_app(name)?;
        let last = app.last_attempt();
        if last == Some(attempt) && app.running.is_some() {
            return Ok(token);
        }
        self.shutdown.check_is_open()?;
        self.pause.check_allows_starts()?;
        check_is_idle(app)?;
        match last {
            Some(last) if app.running.is_some() => {
                Err(failure(ErrorKind::Refused, format!("app '{name}' runs already, as attempt {last}")))
            }
            Some(last) if attempt <= last => {
                let why = format!("attempt {attempt} of app '{name}' cannot be started after attempt {last}");
                Err(failure(ErrorKind::Refused, why))
            }
            _ => Ok(token),
        }
    }

    /// Replies to a client that asks for the attempt which runs.
    fn reply_if_started(&self, token: Token<App>, start: &StartRequest) -> bool {
        let Some(app) = self.pod.apps.get(token) else { return false };
        let started = app.started.as_ref().filter(|started| started.attempt == start.attempt && app.running.is_some());
        started.is_some_and(|started| {
            start.reply(&Reply::AppStarted(started.clone()));
            true
        })
    }

    /// Starts an app that does not run: executes its program in the process that waits for it, or makes one first.
    fn begin_start(&mut self, token: Token<App>, start: StartRequest) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        app.restarts.forget_count();
        if app.waiting.is_some() {
            self.begin_execute(token, start);
        } else {
            self.begin_clear(token, NextOperation::Start(start));
        }
    }

    /// Lets the process that waits execute the program.
    pub(super) fn begin_execute(&mut self, token: Token<App>, start: StartRequest) {
        let log = LogSettings::of_pod(&self.pod.plan, &self.pod.jail);
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        match proceed(app, start.attempt, log) {
            Ok(()) => app.operation = Some(Operation::Execute { deadline: Instant::now() + EXECVE_TIMEOUT, start }),
            Err(why) => {
                app.operation = None;
                self.fail_start(token, start, why);
                self.end_waiting(token);
            }
        }
    }

    /// The program of an app was executed, or failed to be.
    pub(super) fn handle_execution(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let (Some(Operation::Execute { .. }), Some(waiting)) = (&app.operation, &app.waiting) else { return };
        let Some(outcome) = waiting.outcome() else { return };
        let outcome = outcome.of_app(&app.plan.name);
        let Some(Operation::Execute { start, .. }) = app.operation.take() else { return };
        match (outcome, app.waiting.take()) {
            (Ok(()), Some(waiting)) => {
                let started = app.record_start(waiting, start.attempt);
                // Before the start: a reader that sees the start does not take the former health for its own.
                if let Some(fact) = app.take_health_change() {
                    self.journal.append(fact);
                }
                self.journal.append(Fact::AppStarted(started.clone()));
                start.reply(&Reply::AppStarted(started));
                self.pod.reset_oom_counters(token);
            }
            (outcome, waiting) => {
                app.waiting = waiting;
                let why = outcome.err().unwrap_or_else(|| no_process(app));
                self.fail_start(token, start, why);
                self.end_waiting(token);
            }
        }
    }

    /// Kills the process of an app that waits for its execve, if there is one.
    pub(super) fn end_waiting(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let Some(waiting) = app.waiting.take() else { return };
        app.output.release_terminals();
        self.reaper.kill(waiting.pidfd);
    }

    /// Stops an app on request; the client gets its reply after the exit.
    pub(super) fn stop_app(&mut self, name: &str, grace: Duration, client: OwnedFd) {
        let (token, app) = match self.pod.find_app(name) {
            Ok(found) => found,
            Err(why) => return refuse(&client, name, why),
        };
        if app.running.is_none() {
            return match check_is_idle(app) {
                Ok(()) => {
                    self.cancel_restart(token);
                    self.end_waiting(token);
                    control::reply(&client, &Reply::Done, None);
                }
                Err(why) => refuse(&client, name, why),
            };
        }
        self.begin_stop(token, grace, StopCause::Request, Some(client), None);
    }

    /// Stops an app on request, and starts it again after the exit. An app that does not run is only started.
    pub(super) fn restart_app(&mut self, name: &str, start: StartRequest, grace: Duration) {
        let (token, app) = match self.pod.find_app(name) {
            Ok(found) => found,
            Err(why) => return start.refuse(name, why),
        };
        if app.running.is_none() {
            return self.start_app(name, start);
        }
        if self.reply_if_started(token, &start) {
            return;
        }
        let last = app.started.as_ref().map_or(0, |started| started.attempt);
        let is_open = self.shutdown.check_is_open().and_then(|()| self.check_allows_restart(token));
        let checked = is_open.and_then(|()| match &app.stop {
            Some(_) => Err(failure(ErrorKind::Busy, format!("app '{name}' is being stopped"))),
            None if start.attempt < last => {
                let why = format!("attempt {} of app '{name}' cannot be started after attempt {last}", start.attempt);
                Err(failure(ErrorKind::Refused, why))
            }
            None => Ok(()),
        });
        match checked {
            Ok(()) => self.begin_stop(token, grace, StopCause::Request, None, Some(start)),
            Err(why) => start.refuse(name, why),
        }
    }

    /// Fails if the pod is paused with other apps: they stay so, and no app is started meanwhile. An app that alone is
    /// paused is resumed by its stop, and the pod with it.
    fn check_allows_restart(&self, token: Token<App>) -> Result<()> {
        let is_paused_alone =
            !self.pause.is_under_way() && self.pod.apps.iter().all(|(other, app)| app.is_paused == (other == token));
        if is_paused_alone { Ok(()) } else { self.pause.check_allows_starts() }
    }

    /// Asks a running app to stop, for a client that waits for its exit or for the start that follows. A further
    /// request can only shorten the grace.
    pub(super) fn begin_stop(
        &mut self,
        token: Token<App>,
        grace: Duration,
        cause: StopCause,
        client: Option<OwnedFd>,
        restart: Option<StartRequest>,
    ) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let deadline = Instant::now() + grace;
        if let Some(stop) = &mut app.stop {
            stop.kill_at = stop.kill_at.map(|earlier| earlier.min(deadline));
        }
        if let Some(client) = &client
            && app.stop.as_ref().is_some_and(|stop| stop.clients.len() >= MAX_STOP_CLIENTS)
        {
            let why = format!("{MAX_STOP_CLIENTS} clients wait for the exit of the app already, which is the limit");
            return refuse(client, &app.plan.name, failure(ErrorKind::Busy, why));
        }
        let attempt = app.started.as_ref().map_or(0, |started| started.attempt);
        let stopping = |unhealthy| Fact::AppStopping { app: app.plan.name.clone(), attempt, unhealthy };
        if let Some(stop) = &mut app.stop {
            if cause == StopCause::Request {
                // The later request decides: the app stays stopped, and its exit is no failure.
                if std::mem::replace(&mut stop.cause, cause) == StopCause::Health {
                    self.journal.append(stopping(false));
                }
                if let Some(start) = stop.restart.take() {
                    start.refuse(&app.plan.name, failure(ErrorKind::Refused, "the app was stopped"));
                }
            }
            stop.clients.extend(client);
            return;
        }
        self.journal.append(stopping(cause == StopCause::Health));
        let stop = StopRequest { cause, kill_at: Some(deadline), clients: client.into_iter().collect(), restart };
        app.signal(app.plan.stop_signal);
        app.stop = Some(stop);
        // SIGKILL ends a frozen app as well.
        let _killed_later = self.resume(token);
    }

    /// Removes an app on request. One that the pod does not have was removed before.
    pub(super) fn remove_app(&mut self, name: &str, client: OwnedFd) {
        // The command that adds it has the pod's lock for changes. So it was killed, or has given up.
        if self.abort_add(name) {
            return control::reply(&client, &Reply::Done, None);
        }
        let Ok((token, app)) = self.pod.find_app(name) else { return control::reply(&client, &Reply::Done, None) };
        let checked = self.shutdown.check_is_open().and_then(|()| match app.running {
            Some(_) => Err(failure(ErrorKind::Refused, format!("app '{name}' runs; stop it first"))),
            None => check_is_idle(app),
        });
        match checked {
            Ok(()) => {
                self.end_waiting(token);
                self.begin_clear(token, NextOperation::Remove(client));
            }
            Err(why) => refuse(&client, name, why),
        }
    }

    /// Kills what the last start of an app left behind, programs executed in it included, before `then`: they could
    /// change its root while it is used again.
    pub(super) fn begin_clear(&mut self, token: Token<App>, then: NextOperation) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        app.operation = Some(Operation::Clear { deadline: Instant::now() + CLEAR_TIMEOUT, then });
        self.advance_clear(token);
    }

    /// Goes on with a [`Operation::Clear`], and begins the operation that follows if it is complete.
    fn advance_clear(&mut self, token: Token<App>) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let Some(Operation::Clear { deadline, .. }) = &app.operation else { return };
        let (is_late, is_empty) = (*deadline <= Instant::now(), app.cgroup.is_empty());
        if !is_empty {
            app.cgroup.kill();
        }
        let is_clear = is_empty && app.output.sources.is_empty();
        if !is_late && !is_clear {
            return;
        }
        let Some(Operation::Clear { deadline, then }) = app.operation.take() else { return };
        let name = app.plan.name.clone();
        // Each start gets a new cgroup: one whose `cgroup.kill` was written kills every process that is cloned into it
        // later (Linux 6.18 compares the `kill_seq` of the cgroup with that of the cloning process's own).
        let renewed = match &then {
            NextOperation::Start(_) if is_empty => self.renew_cgroup(token, &name),
            _ => Ok(is_empty),
        };
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let why = "processes of the app have not ended, although they were killed";
        match renewed {
            Ok(true) => {}
            Ok(false) if is_late => return self.fail_next(token, then, failure(ErrorKind::TimedOut, why)),
            Ok(false) => {
                app.operation = Some(Operation::Clear { deadline, then });
                return;
            }
            Err(why) => return self.fail_next(token, then, why),
        }
        self.output.close(app, &self.journal);
        match then {
            NextOperation::Start(start) => self.begin_creation(token, start),
            NextOperation::Remove(client) => self.finish_removal(token, &client),
        }
    }

    /// The operation that was to follow cannot be done.
    fn fail_next(&mut self, token: Token<App>, then: NextOperation, why: Failure) {
        match then {
            NextOperation::Start(start) => self.fail_start(token, start, why),
            NextOperation::Remove(client) => {
                let name = self.pod.apps.get(token).map(|app| app.plan.name.clone()).unwrap_or_default();
                refuse(&client, &name, why);
            }
        }
    }

    /// Makes the cgroup of an app anew, without limits; returns whether it could be removed.
    fn renew_cgroup(&mut self, token: Token<App>, name: &str) -> Result<bool> {
        let Some(app) = self.pod.apps.get_mut(token) else { return Ok(true) };
        let (plan, resources) = (&self.pod.plan, &mut self.pod.resources);
        if !resources.cgroups.remove(name) {
            return Ok(false);
        }
        resources.cgroups.require_view(&app.plan.options.limits)?;
        let mut cgroup = resources.cgroups.app(name)?;
        if app.confinement.namespaces.manages_cgroup {
            cgroup.delegate()?;
        }
        if !resources.confine_app(plan, &app.plan, &cgroup, &app.devices)
            && app.confinement.capabilities.contains(CapabilitySet::MKNOD)
        {
            return Err(failure(ErrorKind::Unavailable, format!("cannot confine the devices of app '{name}' again")));
        }
        app.cgroup = cgroup;
        self.finish_reclaims(name);
        Ok(true)
    }

    /// Removes an app without processes. If its files cannot be moved away, the app stays: the next app of its name
    /// would get them.
    fn finish_removal(&mut self, token: Token<App>, client: &OwnedFd) {
        // The row has the policy of the app until the command has made the removal durable.
        let durability = self.pod.limits_durability();
        let Some(name) = self.pod.apps.get(token).map(|app| app.plan.name.clone()) else { return };
        let trash = match removal::move_files(&name, &mut self.reaper) {
            Ok(trash) => trash,
            Err(why) => return refuse(client, &name, why),
        };
        let Some(mut app) = self.pod.apps.remove(token) else { return };
        self.end_receiver(&mut app);
        self.abort_reclaims(Some(&name));
        let volumes = self.release_volumes(&name, app.volumes);
        self.reaper.add_all(trash.delete(&volumes, Some(app.root)));
        self.pod.resources.remove_app_cgroup(&name);
        self.restrict_devices();
        updated_limits::forget(self.pod.jail.pod_dir.as_fd(), durability, &name);
        self.journal.append(Fact::AppRemoved { app: name.clone() });
        control::reply(client, &Reply::Done, None);
    }

    /// Advances operations that are polled, and times out the others.
    pub(super) fn check_operations(&mut self, now: Instant) {
        for token in self.pod.apps.tokens() {
            let Some(app) = self.pod.apps.get_mut(token) else { continue };
            if let Some(stop) = &mut app.stop
                && stop.kill_at.is_some_and(|at| at <= now)
            {
                stop.kill_at = None;
                app.signal(SIGKILL);
                app.cgroup.kill();
            }
            match &app.operation {
                Some(Operation::Clear { .. }) => self.advance_clear(token),
                Some(Operation::Execute { deadline, .. }) if *deadline <= now => {
                    let why = failure(ErrorKind::TimedOut, "the program was not executed in time");
                    self.abort_operation(token, &why);
                }
                _ => {}
            }
        }
    }

    /// Aborts the start or removal of an app.
    pub(super) fn abort_operation(&mut self, token: Token<App>, why: &Failure) {
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        match app.operation.take() {
            Some(Operation::Execute { start, .. }) => {
                self.fail_start(token, start, why.clone());
                self.end_waiting(token);
            }
            Some(Operation::Clear { then, .. }) => self.fail_next(token, then, why.clone()),
            Some(Operation::Create) | None => {}
        }
    }

    /// Aborts every operation on an app: the pod is being stopped.
    pub(super) fn abort_changes(&mut self) {
        let why = failure(ErrorKind::Refused, "the pod is being stopped");
        self.abort_creations(&why);
        for token in self.pod.apps.tokens() {
            self.abort_operation(token, &why);
            let Some(app) = self.pod.apps.get_mut(token) else { continue };
            app.restarts.cancel();
            if let Some(start) = app.stop.as_mut().and_then(|stop| stop.restart.take()) {
                start.refuse(&app.plan.name, why.clone());
            }
        }
    }

    /// Whether the pod runs on: an app runs or is being started, or it is a sandbox that was not stopped.
    pub(super) fn is_active(&self) -> bool {
        let is_starting = |app: &App| app.operation.as_ref().is_some_and(|operation| !operation.is_removal());
        (self.pod.plan.sandbox && !self.shutdown.is_stopping())
            || self.pod.apps.values().any(|app| app.running.is_some() || is_starting(app) || app.restarts.is_pending())
    }
}

impl Operation {
    fn is_removal(&self) -> bool {
        matches!(self, Self::Clear { then: NextOperation::Remove(_), .. })
    }
}

impl StopRequest {
    /// Replies to the clients that wait for the exit of the app; returns the start that follows.
    pub(super) fn complete(self) -> Option<StartRequest> {
        for client in &self.clients {
            control::reply(client, &Reply::Done, None);
        }
        self.restart
    }
}

impl StartRequest {
    /// Replies to the client that waits for the start.
    fn reply(&self, reply: &Reply) {
        if let Some(client) = &self.client {
            control::reply(client, reply, None);
        }
    }

    /// Tells the client that waits for the start that it fails.
    fn refuse(&self, app: &str, why: Failure) {
        if let Some(client) = &self.client {
            refuse(client, app, why);
        }
    }
}

/// Fails while an operation on the app is under way.
pub(super) fn check_is_idle(app: &App) -> Result<()> {
    let doing = match &app.operation {
        None => return Ok(()),
        Some(operation) if operation.is_removal() => "removed",
        Some(_) => "started",
    };
    Err(failure(ErrorKind::Busy, format!("app '{}' is being {doing}", shown(&app.plan.name))))
}

/// An app whose program is to be executed has no process: a bug.
fn no_process(app: &App) -> Failure {
    failure(ErrorKind::Internal, format!("app '{}' has no process that could execute its program", app.plan.name))
}

/// Lets the process of an app that waits execute the program, with the log of this attempt.
fn proceed(app: &mut App, attempt: u32, log: LogSettings<'_>) -> Result<()> {
    if app.waiting.is_some() && app.plan.attempt != attempt {
        app.begin_attempt(attempt, log)?;
    }
    let Some(waiting) = &app.waiting else { return Err(no_process(app)) };
    app.oom_kills_before = app.cgroup.oom_kills();
    waiting.proceed()
}

impl App {
    /// Forgets the main process, which has exited.
    pub(super) fn forget_process(&mut self) {
        self.running = None;
        self.is_paused = false;
        self.null = None;
        self.input = AppInput::None;
        self.output.release_terminals();
    }
}
