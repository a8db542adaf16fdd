//! The requests of the control socket that are replied to at once, and exec.

use std::os::fd::OwnedFd;
use std::time::Duration;

use gantry_contract::control::{Reply, Request, Status};
use gantry_model::ErrorKind;

use super::sessions::{MAX_SESSIONS, Session};
use super::{SIGKILL, Supervisor, no_such_app};
use crate::app::{App, AppInput};
use crate::control::{self, Connection};
use crate::exec::{self, PendingExec};
use crate::failure::{Result, failure};
use crate::table::Token;

impl Supervisor {
    pub(super) fn serve(&mut self, token: Token<Connection>) {
        let Some(connection) = self.connections.remove(token) else { return };
        let Some(request) = connection.receive_request() else { return };
        let result = match request {
            Ok((request, fds)) if request.changes_apps() => {
                return self.change_apps(request, fds, connection.socket);
            }
            Ok((Request::UpdateLimits(update), _)) => return self.begin_update(*update, connection.socket),
            Ok((request, fds)) => self.fulfil(request, fds, &connection.socket),
            Err(why) => Err(why),
        };
        match result {
            Ok(None) => {}
            Ok(Some(pending)) => {
                self.sessions.insert(Session::new(connection.socket, pending));
            }
            Err(why) => control::reply(&connection.socket, &Reply::Failed(why), None),
        }
    }

    /// Fulfils a request and replies to it. An exec is returned, and replied to when its outcome is known.
    fn fulfil(&mut self, request: Request, fds: Vec<OwnedFd>, client: &OwnedFd) -> Result<Option<PendingExec>> {
        match request {
            Request::Status => control::reply(client, &Reply::Status(self.status()), None),
            Request::Stop { grace_ms } => {
                self.stop_on_request("stop", Duration::from_millis(grace_ms));
                control::reply(client, &Reply::Done, None);
            }
            Request::Kill { signal, app } => {
                self.kill(signal, app.as_deref())?;
                control::reply(client, &Reply::Done, None);
            }
            Request::Exec(request) => {
                let app = self.find_app(&request.app)?;
                if self.sessions.len() >= MAX_SESSIONS {
                    let why = format!("{MAX_SESSIONS} programs are being run in the pod already, which is the limit");
                    return Err(failure(ErrorKind::Busy, why));
                }
                let app = self.app(app)?;
                if app.is_paused {
                    let why = format!("app '{}' is paused: resume it with 'gantry unpause'", app.plan.name);
                    return Err(failure(ErrorKind::Refused, why));
                }
                return exec::exec(app, self.pod.init_pidfd(), &request, fds).map(Some);
            }
            Request::Attach { app, keep } => self.attach(&app, keep, client)?,
            Request::Output => {
                let pipe = fds.into_iter().next();
                let missing = || failure(ErrorKind::Invalid, "the request for output came without a pipe");
                self.foregrounds.add(pipe.ok_or_else(missing)?, None)?;
                control::reply(client, &Reply::Done, None);
            }
            Request::AppOutput { app } => {
                let pipe = fds.into_iter().next();
                let missing = || failure(ErrorKind::Invalid, "the request for output came without a pipe");
                let app = self.app(self.find_app(&app)?)?;
                if app.running.is_none() {
                    return Err(failure(ErrorKind::Refused, format!("app '{}' does not run", app.plan.name)));
                }
                let number = app.output.app_number;
                self.foregrounds.add(pipe.ok_or_else(missing)?, Some(number))?;
                control::reply(client, &Reply::Done, None);
            }
            Request::Detach => {
                let why = "a detach is possible only over the connection of a running program";
                return Err(failure(ErrorKind::Invalid, why));
            }
            Request::ReopenLog { app } => {
                let token = self.find_app(&app)?;
                if let Some(app) = self.pod.apps.get_mut(token) {
                    app.output.log.replace_file()?;
                }
                control::reply(client, &Reply::Done, None);
            }
            Request::Health { app } => {
                let report = self.health_report(&app)?;
                control::reply(client, &Reply::Health(report), None);
            }
            Request::UpdateLimits(_)
            | Request::AddApp(_)
            | Request::StartApp { .. }
            | Request::StopApp { .. }
            | Request::RestartApp { .. }
            | Request::RemoveApp { .. }
            | Request::Pause { .. }
            | Request::Unpause { .. } => {
                return Err(failure(ErrorKind::Internal, "a change of an app is replied to by itself"));
            }
        }
        Ok(None)
    }

    pub(super) fn find_app(&self, name: &str) -> Result<Token<App>> {
        let found = self.pod.apps.iter().find(|(_, app)| app.plan.name == name);
        found.map(|(token, _)| token).ok_or_else(|| no_such_app(name))
    }

    pub(super) fn app(&self, token: Token<App>) -> Result<&App> {
        self.pod.apps.get(token).ok_or_else(|| no_such_app("?"))
    }

    /// Sends a signal. SIGKILL and the stop signal of a paused app resume it; it receives others when it is resumed.
    fn kill(&mut self, signal: u8, app: Option<&str>) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(failure(ErrorKind::Invalid, format!("{signal} is not the number of a signal")));
        }
        let signalled = match app {
            Some(name) => usize::from(self.app(self.find_app(name)?)?.signal(signal)),
            None => self.pod.apps.values().filter(|app| app.signal(signal)).count(),
        };
        if signalled == 0 {
            return Err(failure(ErrorKind::Refused, "no app runs that could get the signal"));
        }
        for token in self.pod.apps.tokens() {
            let is_ended = |it: &App| {
                it.is_paused
                    && app.is_none_or(|name| it.plan.name == name)
                    && [SIGKILL, it.plan.stop_signal].contains(&signal)
            };
            if self.pod.apps.get(token).is_some_and(is_ended) {
                self.resume(token)?;
            }
        }
        Ok(())
    }

    fn attach(&mut self, name: &str, keep: bool, client: &OwnedFd) -> Result<()> {
        let token = self.find_app(name)?;
        let app = self.pod.apps.get_mut(token).ok_or_else(|| no_such_app(name))?;
        match &mut app.input {
            AppInput::Terminal(master) => control::reply(client, &Reply::Done, Some(master)),
            AppInput::Pipe(Some(writer)) if keep => control::reply(client, &Reply::Done, Some(writer)),
            AppInput::Pipe(writer) => {
                let taken = writer.take();
                let writer = taken.ok_or_else(|| failure(ErrorKind::Busy, "another client has the app's stdin"))?;
                control::reply(client, &Reply::Done, Some(&writer));
            }
            AppInput::None => {
                let why = format!("app '{}' was started without stdin and terminal", app.plan.name);
                return Err(failure(ErrorKind::Refused, why));
            }
        }
        Ok(())
    }

    fn status(&self) -> Status {
        let running = self.pod.apps.values().filter(|app| app.running.is_some());
        Status {
            version: gantry_contract::VERSION,
            stopping: self.is_stopping,
            ready: self.pod.ready(),
            running: running.map(|app| app.plan.name.clone()).collect(),
            log_bytes_dropped: self.log_bytes_dropped,
            apps: Some(self.app_statuses()),
            paused: self.is_paused,
        }
    }
}
