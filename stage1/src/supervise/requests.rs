//! The requests of the control socket.

use std::os::fd::OwnedFd;
use std::time::Duration;

use gantry_contract::control::{Exec, Reply, Request, Status};
use gantry_contract::journal::StopReason;
use gantry_model::ErrorKind;

use super::sessions::{MAX_SESSIONS, Session};
use super::{SIGKILL, Supervisor};
use crate::app::exec::{self, PendingExec};
use crate::app::{App, AppInput, StartRequest};
use crate::control::{self, Connection};
use crate::failure::{Result, failure};
use crate::pod::Pod;
use crate::table::Token;

impl Pod {
    fn reopen_log(&mut self, name: &str) -> Result<()> {
        self.app_mut(name)?.output.log.replace_file()
    }

    /// Why no app, or not this one, got a signal.
    fn explain_no_receiver(&self, app: Option<&str>) -> String {
        let is_meant = |it: &&App| app.is_none_or(|name| it.plan.name == name);
        let mut restarting = self.apps.values().filter(is_meant).filter(|it| it.restarts.is_pending());
        match restarting.next() {
            Some(it) => {
                format!("app '{}' has ended and is about to be started again: 'gantry stop' prevents it", it.plan.name)
            }
            None => "no app runs that could get the signal".to_owned(),
        }
    }

    fn attach(&mut self, name: &str, keep: bool, client: &OwnedFd) -> Result<()> {
        let app = self.app_mut(name)?;
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
}

impl Supervisor {
    pub(super) fn serve(&mut self, token: Token<Connection>) {
        let Some(connection) = self.control.take(token) else { return };
        match connection.receive_request() {
            None => {}
            Some(Ok((request, fds))) => self.serve_request(request, fds, connection.socket),
            Some(Err(why)) => control::reply(&connection.socket, &Reply::Failed(why), None),
        }
    }

    /// Serves a request. A change of apps or limits, and an exec, is replied to when it is complete or has failed; the
    /// others at once.
    fn serve_request(&mut self, request: Request, fds: Vec<OwnedFd>, client: OwnedFd) {
        let replied = match request {
            Request::AddApp(request) => return self.add_app(&request, fds, client),
            Request::StartApp { app, attempt } => {
                return self.start_app(&app, StartRequest { attempt, client: Some(client) });
            }
            Request::StopApp { app, grace_ms } => {
                return self.stop_app(&app, Duration::from_millis(grace_ms), client);
            }
            Request::RestartApp { app, attempt, grace_ms } => {
                let start = StartRequest { attempt, client: Some(client) };
                return self.restart_app(&app, start, Duration::from_millis(grace_ms));
            }
            Request::RemoveApp { app } => return self.remove_app(&app, client),
            Request::Pause { app } => return self.pause(app, client),
            Request::Unpause { app } => return self.unpause(app, &client),
            Request::UpdateLimits(update) => return self.begin_update(*update, client),
            Request::Exec(request) => match self.begin_exec(&request, fds) {
                Ok(pending) => {
                    self.sessions.insert(Session::new(client, pending));
                    return;
                }
                Err(why) => Err(why),
            },
            Request::Attach { app, keep } => match self.pod.attach(&app, keep, &client) {
                Ok(()) => return,
                Err(why) => Err(why),
            },
            Request::Status => Ok(Reply::Status(self.status())),
            Request::Stop { grace_ms } => {
                self.stop_on_request(StopReason::Stop, Duration::from_millis(grace_ms));
                Ok(Reply::Done)
            }
            Request::Kill { signal, app } => self.kill(signal, app.as_deref()).map(|()| Reply::Done),
            Request::Output => self.add_output(None, fds).map(|()| Reply::Done),
            Request::AppOutput { app } => self.add_output(Some(&app), fds).map(|()| Reply::Done),
            Request::Detach => {
                let why = "a detach is possible only over the connection of a running program";
                Err(failure(ErrorKind::Invalid, why))
            }
            // Its receiver replaces it by the request that it holds.
            Request::Long { .. } => Err(failure(ErrorKind::Internal, "a long request was not read")),
            Request::ReopenLog { app } => self.pod.reopen_log(&app).map(|()| Reply::Done),
            Request::Health { app } => self.pod.health_report(&app).map(Reply::Health),
        };
        control::reply(&client, &replied.unwrap_or_else(Reply::Failed), None);
    }

    fn begin_exec(&self, request: &Exec, fds: Vec<OwnedFd>) -> Result<PendingExec> {
        let app = self.pod.app(&request.app)?;
        if self.sessions.len() >= MAX_SESSIONS {
            let why = format!("{MAX_SESSIONS} programs are being run in the pod already, which is the limit");
            return Err(failure(ErrorKind::Busy, why));
        }
        if app.is_paused {
            let why = format!("app '{}' is paused: resume it with 'gantry unpause'", app.plan.name);
            return Err(failure(ErrorKind::Refused, why));
        }
        exec::exec(app, self.pod.init_pidfd(), request, fds)
    }

    /// Sends the output of a running app, or of all apps, to the pipe that came with the request.
    fn add_output(&mut self, app: Option<&str>, fds: Vec<OwnedFd>) -> Result<()> {
        let missing = || failure(ErrorKind::Invalid, "the request for output came without a pipe");
        let pipe = fds.into_iter().next().ok_or_else(missing)?;
        let number = match app {
            None => None,
            Some(name) => {
                let app = self.pod.app(name)?;
                if app.running.is_none() {
                    return Err(failure(ErrorKind::Refused, format!("app '{name}' does not run")));
                }
                Some(app.output.app_number)
            }
        };
        self.output.foregrounds.add(pipe, number)
    }

    /// Sends a signal. SIGKILL and the stop signal of a paused app resume it; it receives others when it is resumed.
    fn kill(&mut self, signal: u8, app: Option<&str>) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(failure(ErrorKind::Invalid, format!("{signal} is not the number of a signal")));
        }
        let signalled = match app {
            Some(name) => usize::from(self.pod.app(name)?.signal(signal)),
            None => self.pod.apps.values().filter(|app| app.signal(signal)).count(),
        };
        if signalled == 0 {
            return Err(failure(ErrorKind::Refused, self.pod.explain_no_receiver(app)));
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

    fn status(&self) -> Status {
        let running = self.pod.apps.values().filter(|app| app.running.is_some());
        Status {
            version: gantry_contract::VERSION,
            stopping: self.shutdown.is_stopping(),
            ready: self.pod.ready(),
            running: running.map(|app| app.plan.name.clone()).collect(),
            log_bytes_dropped: self.output.bytes_dropped(),
            apps: Some(self.pod.app_statuses()),
            paused: self.pause.is_whole(),
        }
    }
}
