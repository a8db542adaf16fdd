//! The life of a running pod: one loop that waits for everything at once.
//!
//! What it waits for, each a descriptor in one `poll`: signals to the supervisor, PID 1, the control socket and its
//! connections, the main process and the outputs of each app, room in the pipes of foregrounds, the processes and
//! clients of execs. Nothing blocks it: pipes and sockets do not wait, and every deadline is a bound on the poll.
//!
//! The rule of an immutable pod (rkt): it ends when its last app has ended, or when one fails; then the others are
//! stopped.

mod ending;
mod sessions;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::How;
use gantry_contract::control::{Answer, Request, Status};
use gantry_contract::journal::Fact;
use gantry_model::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::sessions::{MAX_SESSIONS, Session};
use crate::app::{Input, reap};
use crate::control::{self, Connection, MAX_CONNECTIONS};
use crate::exec::PendingExec;
use crate::failure::{Result, failure};
use crate::foreground::Foregrounds;
use crate::journal::Journal;
use crate::launch::Pod;
use crate::{exec, pace, sys, trim};

const SIGKILL: u8 = libc::SIGKILL as u8;

/// How long output is waited for after everything that could write it was killed.
const DRAIN: Duration = Duration::from_secs(2);

/// How long no connection is taken after descriptors had run out.
const DEAF: Duration = Duration::from_millis(200);

/// The loop's state.
pub(crate) struct Supervisor {
    pod: Pod,
    journal: Journal,
    signals: OwnedFd,
    listener: OwnedFd,
    connections: Vec<Connection>,
    sessions: Vec<Session>,
    /// Processes of execs that have nothing left to do but end.
    ending: Vec<OwnedFd>,
    foregrounds: Foregrounds,
    /// When apps that were asked to stop are killed.
    kill_at: Option<Instant>,
    /// When foregrounds are given up that have not read all the output of ended apps: the pod was asked to stop.
    give_up_at: Option<Instant>,
    /// When output is given up that does not end though everything that could write it was killed.
    drained_by: Option<Instant>,
    /// Nothing of the pod runs any more: there is only output to be passed on.
    over: bool,
    /// No connection is taken until then: descriptors have run out.
    deaf_until: Option<Instant>,
    stopping: bool,
    log_bytes_dropped: u64,
    buffer: Vec<u8>,
    /// Mappings of the program whose pages are given back right before it first waits.
    clean: Vec<(usize, usize)>,
}

/// Who a descriptor of the poll belongs to.
#[derive(Debug, Clone, Copy)]
enum Who {
    Signals,
    Init,
    Listener,
    Connection(usize),
    App(usize),
    Output(usize, usize),
    Foreground(usize),
    Program(usize),
    Client(usize),
    Detached(usize),
    Start(usize),
    Ending,
}

impl Supervisor {
    /// A supervisor of a pod that runs.
    pub(crate) fn new(
        pod: Pod,
        journal: Journal,
        signals: OwnedFd,
        listener: OwnedFd,
        foregrounds: Foregrounds,
    ) -> Self {
        Self {
            pod,
            journal,
            foregrounds,
            signals,
            listener,
            connections: Vec::new(),
            sessions: Vec::new(),
            ending: Vec::new(),
            kill_at: None,
            give_up_at: None,
            drained_by: None,
            over: false,
            deaf_until: None,
            stopping: false,
            log_bytes_dropped: 0,
            buffer: vec![0; 64 << 10],
            clean: Vec::new(),
        }
    }

    /// Puts /dev/null in the place of stdin and stdout: whoever reads the word must see its end.
    pub(crate) fn let_go_of_stdio(&self) {
        let _ = rustix::stdio::dup2_stdin(&self.pod.jail.null);
        let _ = rustix::stdio::dup2_stdout(&self.pod.jail.null);
    }

    /// Runs until the pod has ended and everything it had is gone or in its files.
    pub(crate) fn run(&mut self) {
        self.clean = trim::clean();
        while self.pod.apps.iter().any(|app| app.running.is_some()) {
            self.turn();
        }
        self.finish();
    }

    /// Waits, and handles everything that happened.
    fn turn(&mut self) {
        for who in self.wait() {
            self.handle(who);
        }
        self.check_deadlines();
    }

    /// Everything that has something to say.
    fn wait(&mut self) -> Vec<Who> {
        let (whos, mut fds): (Vec<Who>, Vec<PollFd<'_>>) =
            self.watched().into_iter().map(|(who, fd, events)| (who, PollFd::from_borrowed_fd(fd, events))).unzip();
        let timeout = self.timeout().map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        // What led here comes back if it is needed again; most pods idle.
        trim::drop_pages(&self.clean);
        let polled = poll(&mut fds, timeout.as_ref());
        if polled.is_err() {
            return Vec::new();
        }
        // Later connections and sessions first: handling one may remove it from its list.
        let mut ready: Vec<Who> =
            whos.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty()).map(|(who, _)| who).collect();
        ready.reverse();
        self.clean.clear();
        ready
    }

    fn watched(&self) -> Vec<(Who, BorrowedFd<'_>, PollFlags)> {
        let mut fds = vec![(Who::Signals, self.signals.as_fd())];
        // The pidfd of one that is known to have ended would be readable for ever.
        if !self.over {
            fds.push((Who::Init, self.pod.init.pidfd.as_fd()));
        }
        if self.connections.len() < MAX_CONNECTIONS && self.deaf_until.is_none() {
            fds.push((Who::Listener, self.listener.as_fd()));
        }
        let (blocked, now) = (self.foregrounds.are_blocked(), Instant::now());
        // An app's end comes before its output here, so after it in the reversed list: what it printed is taken first. Of two
        // outputs that have something, nothing tells which was written first; standard output is taken first.
        for (i, app) in self.pod.apps.iter().enumerate() {
            fds.extend(app.running.as_ref().map(|pidfd| (Who::App(i), pidfd.as_fd())));
            let paused = blocked || app.output.pace.resumes_at(now).is_some();
            let sources = app.output.sources.iter().enumerate().rev().filter(|_| !paused);
            fds.extend(sources.map(|(n, source)| (Who::Output(i, n), source.fd.as_fd())));
        }
        fds.extend(self.ending.iter().map(|process| (Who::Ending, process.as_fd())));
        fds.extend(self.connections.iter().enumerate().map(|(i, c)| (Who::Connection(i), c.socket.as_fd())));
        for (i, session) in self.sessions.iter().enumerate() {
            fds.extend(session.pidfd.as_ref().map(|pidfd| (Who::Program(i), pidfd.as_fd())));
            fds.extend(session.client.as_ref().map(|client| (Who::Client(i), client.as_fd())));
            fds.extend(session.detached.as_ref().map(|master| (Who::Detached(i), master.as_fd())));
            // Last, so first in the reversed list: a program that has ended already was started before.
            fds.extend(session.starting.as_ref().map(|starting| (Who::Start(i), starting.failed.as_fd())));
        }
        let readable = fds.into_iter().map(|(who, fd)| (who, fd, PollFlags::IN));
        readable.chain(self.foregrounds.watched().map(|(i, fd, events)| (Who::Foreground(i), fd, events))).collect()
    }

    fn timeout(&self) -> Option<Duration> {
        let starting = self.sessions.iter().filter_map(|session| Some(session.starting.as_ref()?.deadline));
        let now = Instant::now();
        let late_lines = self.pod.apps.iter().filter_map(|app| app.output.flush_at);
        let with_output = self.pod.apps.iter().filter(|app| !app.output.sources.is_empty());
        let paused = with_output.filter_map(|app| app.output.pace.resumes_at(now));
        let of_end = self.give_up_at.filter(|_| self.over).into_iter().chain(self.drained_by);
        let deadlines = self.connections.iter().map(|c| c.deadline).chain(self.kill_at).chain(self.deaf_until);
        let deadlines = deadlines.chain(starting).chain(late_lines).chain(paused).chain(of_end);
        deadlines.min().map(|at| at.saturating_duration_since(now))
    }

    fn handle(&mut self, who: Who) {
        match who {
            Who::Signals => self.take_signals(),
            // PID 1 cannot end by itself: somebody killed it from outside, and the apps with it. Their ends follow.
            Who::Init => self.stop("pid-1-killed", Duration::ZERO),
            Who::Listener => self.take_connection(),
            Who::Connection(i) => self.serve(i),
            Who::App(i) => self.app_ended(i),
            Who::Output(i, n) => self.pump(i, n),
            Who::Foreground(i) => self.foregrounds.resume(i),
            Who::Program(i) => self.program_ended(i),
            Who::Client(i) => self.client_spoke(i),
            Who::Detached(i) => self.discard_output(i),
            Who::Start(i) => self.program_started(i),
            // Reaped after every round.
            Who::Ending => {}
        }
    }

    /// Without a descriptor to take it with, a connection waits for some time in which others end; the loop must not spin.
    fn take_connection(&mut self) {
        match Connection::accept(&self.listener) {
            Ok(connection) => self.connections.extend(connection),
            Err(_) => self.deaf_until = Some(Instant::now() + DEAF),
        }
    }

    fn take_signals(&mut self) {
        let asked = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
        let taken = sys::take_signals(&self.signals);
        if taken.iter().any(|&signal| asked.iter().any(|&stop| stop.unsigned_abs() == signal)) {
            self.stop_on_request("supervisor-signal", Duration::from_millis(self.pod.plan.stop_grace_ms));
        }
    }

    fn pump(&mut self, i: usize, n: usize) {
        let Some(app) = self.pod.apps.get_mut(i) else { return };
        let before = app.output.pace.is_limited().then(pace::processor_time);
        let has_ended = app.output.pump(i, n, &mut self.foregrounds, &mut self.buffer);
        if has_ended && n < app.output.sources.len() {
            app.output.sources.remove(n);
        }
        if let Some(before) = before {
            app.output.pace.charge(pace::processor_time().saturating_sub(before), Instant::now());
        }
        self.note_dropped(i);
    }

    fn note_dropped(&mut self, i: usize) {
        let Some(app) = self.pod.apps.get_mut(i) else { return };
        if let Some((bytes, why)) = app.output.log.take_dropped() {
            // The first loss is told at once, further ones by the counter and at the end: a full disk must not be filled with complaints.
            if self.log_bytes_dropped == 0 {
                self.journal.append(Fact::LogDropped { app: app.plan.name.clone(), bytes, why });
            }
            self.log_bytes_dropped += bytes;
        }
    }

    fn app_ended(&mut self, i: usize) {
        let Some(app) = self.pod.apps.get_mut(i) else { return };
        let Some(how) = app.running.as_ref().and_then(reap) else { return };
        app.running = None;
        app.input = Input::None;
        let oom = app.cgroup.oom_kills() > 0;
        self.journal.append(Fact::AppExited { app: app.plan.name.clone(), attempt: app.plan.attempt, how, oom });
        let last = self.pod.apps.iter().all(|app| app.running.is_none());
        if last {
            return;
        }
        // What the app left behind ends with it. With the last app, PID 1's end does that for all.
        if let Some(app) = self.pod.apps.get(i)
            && !app.cgroup.is_empty()
        {
            app.cgroup.kill();
        }
        if how != How::Code(0) {
            self.stop("app-failed", Duration::from_millis(self.pod.plan.stop_grace_ms));
        }
    }

    /// Asks every app to end, and kills what is left after the grace. Asked again with less time: the shorter holds.
    fn stop(&mut self, reason: &str, grace: Duration) {
        if !self.stopping {
            self.stopping = true;
            self.journal.append(Fact::Stopping { reason: reason.to_owned() });
            for app in &self.pod.apps {
                app.signal(app.plan.stop_signal);
            }
        }
        let at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(at, |before| before.min(at)));
    }

    /// The same, because somebody outside wants it so: then foregrounds that do not read are not waited for either.
    fn stop_on_request(&mut self, reason: &str, grace: Duration) {
        self.stop(reason, grace);
        self.give_up_at = self.kill_at.map(|at| at + DRAIN);
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        for i in 0..self.pod.apps.len() {
            self.pod.apps[i].output.flush_late_lines(now);
            self.note_dropped(i);
        }
        self.connections.retain(|connection| connection.deadline > now);
        self.deaf_until = self.deaf_until.filter(|at| *at > now);
        self.give_up_late_execs(now);
        self.ending.retain(|process| reap(process).is_none());
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            for app in self.pod.apps.iter().filter(|app| app.running.is_some()) {
                app.signal(SIGKILL);
                app.cgroup.kill();
            }
        }
    }

    fn serve(&mut self, i: usize) {
        if i >= self.connections.len() {
            return;
        }
        let connection = self.connections.swap_remove(i);
        let Some(request) = connection.request() else { return };
        let outcome = request.and_then(|(request, fds)| self.fulfil(request, fds, &connection.socket));
        match outcome {
            Ok(None) => {}
            Ok(Some(starting)) => {
                self.sessions.push(Session::new(connection.socket, starting));
            }
            Err(why) => control::answer(&connection.socket, &Answer::Failed(why), None),
        }
    }

    /// Does what was asked and answers; gives back the process of an exec, which is answered later.
    fn fulfil(&mut self, request: Request, fds: Vec<OwnedFd>, client: &OwnedFd) -> Result<Option<PendingExec>> {
        match request {
            Request::Status => control::answer(client, &Answer::Status(self.status()), None),
            Request::Stop { grace_ms } => {
                self.stop_on_request("stop", Duration::from_millis(grace_ms));
                control::answer(client, &Answer::Done, None);
            }
            Request::Kill { signal, app } => {
                self.kill(signal, app.as_deref())?;
                control::answer(client, &Answer::Done, None);
            }
            Request::Exec(request) => {
                let i = self.find(&request.app)?;
                if self.sessions.len() >= MAX_SESSIONS {
                    let why = format!("{MAX_SESSIONS} programs are being run in the pod already, which is the limit");
                    return Err(failure(ErrorKind::Busy, why));
                }
                return exec::exec(&self.pod.apps[i], &self.pod.init.pidfd, &request, fds).map(Some);
            }
            Request::Attach { app } => self.attach(&app, client)?,
            Request::Output => {
                let pipe = fds.into_iter().next();
                self.foregrounds.add(pipe.ok_or_else(|| failure(ErrorKind::Invalid, "no pipe came along"))?)?;
                control::answer(client, &Answer::Done, None);
            }
            Request::Detach => {
                let why = "a detach is possible over the connection of a program that runs, and over no other";
                return Err(failure(ErrorKind::Invalid, why));
            }
            Request::ReopenLog { app } => {
                let i = self.find(&app)?;
                self.pod.apps[i].output.log.reopen();
                control::answer(client, &Answer::Done, None);
            }
        }
        Ok(None)
    }

    fn find(&self, name: &str) -> Result<usize> {
        let found = self.pod.apps.iter().position(|app| app.plan.name == name);
        found.ok_or_else(|| {
            failure(ErrorKind::NotFound, format!("the pod has no app '{}'", gantry_model::id::shown(name)))
        })
    }

    fn kill(&self, signal: u8, app: Option<&str>) -> Result<()> {
        if !(1..=64).contains(&signal) {
            return Err(failure(ErrorKind::Invalid, format!("{signal} is not the number of a signal")));
        }
        let one = app.map(|name| self.find(name)).transpose()?;
        let hit = (0..self.pod.apps.len())
            .filter(|i| one.is_none_or(|one| one == *i))
            .filter(|i| self.pod.apps[*i].signal(signal))
            .count();
        if hit == 0 { Err(failure(ErrorKind::Refused, "no app runs that could get the signal")) } else { Ok(()) }
    }

    fn attach(&mut self, app: &str, client: &OwnedFd) -> Result<()> {
        let i = self.find(app)?;
        let app = &mut self.pod.apps[i];
        match &mut app.input {
            Input::Terminal(master) => control::answer(client, &Answer::Done, Some(master)),
            Input::Pipe(writer) => {
                let taken = writer.take();
                let writer = taken.ok_or_else(|| failure(ErrorKind::Busy, "another client has the app's stdin"))?;
                control::answer(client, &Answer::Done, Some(&writer));
            }
            Input::None => {
                return Err(failure(
                    ErrorKind::Refused,
                    format!("app '{}' was started without stdin and terminal", app.plan.name),
                ));
            }
        }
        Ok(())
    }

    fn status(&self) -> Status {
        let running = self.pod.apps.iter().filter(|app| app.running.is_some());
        Status {
            version: gantry_contract::VERSION,
            stopping: self.stopping,
            ready: self.pod.ready(),
            running: running.map(|app| app.plan.name.clone()).collect(),
            log_bytes_dropped: self.log_bytes_dropped,
        }
    }
}
