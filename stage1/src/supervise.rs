//! The event loop of a running pod.
//!
//! One `poll` waits for everything: signals to the supervisor, PID 1, the control socket and its connections, the main
//! process and the outputs of each app, room in the pipes of foregrounds, and the processes and clients of execs.
//! Pipes and sockets are non-blocking, and every deadline bounds the timeout of the poll. Three steps of adding and
//! restarting apps block, with bounds: mounting a root, freezing apps (1 s), and the exit of a maker (2 s).
//!
//! Every polled descriptor has an [`EventSource`], which names its entry by a token that is never reused
//! ([`crate::table`]). So an event may find that its entry was removed by an earlier event of the same poll, but never
//! another entry in its place. Events are handled in the order of [`Supervisor::watched`].
//!
//! A pod ends when its last app has exited, or when one fails; then the others are stopped. A sandbox ends only when
//! it is stopped. Apps with a restart policy are started again ([`restarts`]). Apps are added, started, stopped and
//! removed while the pod runs: [`apps`], [`creations`].

mod apps;
mod creations;
mod ending;
mod freeze;
mod health;
mod limits;
mod notify;
mod oom;
mod orphans;
mod output;
mod requests;
mod restarts;
mod sessions;
mod shutdown;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use gantry_contract::ProcessExit;
use gantry_contract::journal::{Fact, StopReason};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::creations::{Creation, Creations};
use self::freeze::Pause;
use self::limits::Reclaim;
use self::orphans::Orphans;
use self::output::OutputPump;
pub(crate) use self::restarts::Restarts;
use self::sessions::Session;
use self::shutdown::Shutdown;
use crate::app::removal;
use crate::app::{App, NextOperation, Operation, OutputSource, StopRequest};
use crate::control::{Connection, ControlSocket};
use crate::journal::Journal;
use crate::output::foreground::{Foreground, Foregrounds};
use crate::pod::Pod;
use crate::pod::init::Init;
use crate::reaper::{Reaper, reap};
use crate::sys::{self, ProcessMemory};
use crate::table::{Table, Token};

const SIGKILL: u8 = libc::SIGKILL as u8;

/// Timeout of reading the remaining output after every process that could write it was killed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The time without an event after which a pod idles. A pod that ends sooner gives no memory back.
const IDLE_TIMEOUT: Duration = Duration::from_millis(50);

/// The state of the event loop.
pub(crate) struct Supervisor {
    /// The pod, with its apps and PID 1.
    pod: Pod,
    journal: Journal,
    /// Signals to the supervisor.
    signals: OwnedFd,
    control: ControlSocket,
    /// The programs of execs.
    sessions: Table<Session>,
    /// The processes of apps that are being made.
    creations: Creations,
    /// Memory limits that are being lowered.
    reclaims: Table<Reclaim>,
    pause: Pause,
    reaper: Reaper,
    orphans: Orphans,
    output: OutputPump,
    shutdown: Shutdown,
    /// Whether the pages that the start has touched have not been given back yet.
    has_start_pages: bool,
}

/// Waits for events, without a limit if `timeout` is `None`.
fn poll_for(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> rustix::io::Result<usize> {
    let timeout = timeout.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    poll(fds, timeout.as_ref())
}

/// The owner of a polled descriptor, and so the kind of its events.
#[derive(Debug, Clone, Copy)]
enum EventSource {
    /// The pipe of a foreground has room, or lost its reader.
    Foreground(Token<Foreground>),
    /// The program of an exec was executed or failed to be.
    ExecOutcome(Token<Session>),
    /// The terminal of a program whose client has detached has output.
    DetachedTerminal(Token<Session>),
    /// The client of an exec sent a request or closed the connection.
    SessionClient(Token<Session>),
    /// The program of an exec has exited.
    SessionProgram(Token<Session>),
    /// A request on the control socket.
    Connection(Token<Connection>),
    /// A process that has to be reaped, by its index ([`Reaper::watched`]).
    Ending(usize),
    /// An app wrote output, or closed it.
    AppOutput(Token<App>, Token<OutputSource>),
    /// The program of an app was executed or failed to be.
    AppExecution(Token<App>),
    /// A process that waits for the start of its app has exited.
    WaitingExit(Token<App>),
    /// The main process of an app has exited.
    AppExit(Token<App>),
    /// An app has sent a notification, or the process that receives one has exited.
    Notification(Token<App>),
    /// The maker of an app's process has sent a message or died.
    Creation(Token<Creation>),
    /// A process of an app was killed by the OOM killer, perhaps.
    Oom(Token<App>),
    /// A probe of an app's health has output, was connected, or its program was executed or failed to be.
    Probe(Token<App>),
    /// The program of a probe has exited.
    ProbeExit(Token<App>),
    /// The helper that lowers a memory limit has exited.
    Reclaim(Token<Reclaim>),
    /// A new connection to the control socket.
    Listener,
    /// PID 1 has exited.
    Init,
    /// A child has exited, known or not.
    ChildExit,
    /// A signal to the supervisor.
    Signals,
}

impl EventSource {
    /// Whether an event may be the exit of a process that the supervisor has started.
    fn is_exit(self) -> bool {
        match self {
            Self::SessionProgram(_)
            | Self::Ending(_)
            | Self::WaitingExit(_)
            | Self::AppExit(_)
            | Self::Notification(_)
            | Self::ProbeExit(_)
            | Self::Reclaim(_)
            | Self::Init => true,
            Self::Foreground(_)
            | Self::ExecOutcome(_)
            | Self::DetachedTerminal(_)
            | Self::SessionClient(_)
            | Self::Connection(_)
            | Self::AppOutput(..)
            | Self::AppExecution(_)
            | Self::Creation(_)
            | Self::Oom(_)
            | Self::Probe(_)
            | Self::ChildExit
            | Self::Listener
            | Self::Signals => false,
        }
    }
}

impl Supervisor {
    /// The supervisor of a pod that was launched.
    pub(crate) fn new(
        pod: Pod,
        journal: Journal,
        signals: OwnedFd,
        control: ControlSocket,
        foregrounds: Foregrounds,
    ) -> Self {
        Self {
            pod,
            journal,
            signals,
            control,
            sessions: Table::default(),
            creations: Creations::default(),
            reclaims: Table::default(),
            pause: Pause::default(),
            reaper: Reaper::default(),
            orphans: Orphans::default(),
            output: OutputPump::new(foregrounds),
            shutdown: Shutdown::default(),
            has_start_pages: true,
        }
    }

    /// Replaces stdin and stdout by /dev/null, so that the engine reads the end of the start reply.
    pub(crate) fn detach_stdio(&self) {
        // Neither fails: the descriptors are open, and dup2 allocates none.
        let _cannot_fail = rustix::stdio::dup2_stdin(&self.pod.jail.null);
        let _cannot_fail = rustix::stdio::dup2_stdout(&self.pod.jail.null);
    }

    /// Runs until no app is running, starting or due to restart; a sandbox also until it is stopped.
    pub(crate) fn run(&mut self) {
        match removal::delete_leftovers() {
            Ok(helper) => self.reaper.add_all(helper),
            Err(error) => tracing::warn!("files of removed apps are left to the removal of the pod: {error}"),
        }
        self.pod.watch_limited_apps();
        self.watch_child_exits();
        self.check_health(Instant::now());
        while self.is_active() {
            self.poll_once();
        }
    }

    /// Waits for events and handles them.
    fn poll_once(&mut self) {
        for source in self.wait_for_events() {
            self.handle(source);
        }
        self.output.end_foregrounds_of_exited_apps(&self.pod.apps);
        self.check_deadlines();
        self.reap_orphans();
    }

    fn wait_for_events(&mut self) -> Vec<EventSource> {
        let now = Instant::now();
        let mut watched = self.watched(now);
        watched.retain(|(source, fd, _)| !source.is_exit() || !self.reaper.leaves_out(*fd, now));
        let mut fds: Vec<PollFd<'_>> =
            watched.iter().map(|(_, fd, events)| PollFd::from_borrowed_fd(*fd, *events)).collect();
        let timeout = self.timeout(now);
        let idle = Some(IDLE_TIMEOUT).filter(|idle| self.has_start_pages && timeout.is_none_or(|left| left > *idle));
        let mut polled = poll_for(&mut fds, idle.or(timeout));
        let idle = idle.filter(|_| polled == Ok(0));
        if let Some(idle) = idle {
            // Most pods idle from here on. The next poll follows directly: anything in between would fault the pages in
            // again.
            let (memory, left) = (ProcessMemory::list(), timeout.map(|left| left.saturating_sub(idle)));
            memory.drop_unused();
            polled = poll_for(&mut fds, left);
        }
        if polled.is_err() {
            return Vec::new();
        }
        let events = watched.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        let mut events: Vec<EventSource> = events.map(|((source, ..), _)| *source).collect();
        // A start comes before the output, from whose times readers tell the starts of an app. It was polled after the
        // output: no output is handled without it.
        events.sort_by_key(|source| !matches!(source, EventSource::AppExecution(_)));
        self.has_start_pages &= idle.is_none();
        events
    }

    /// The descriptors to poll, in the order in which their events are handled.
    fn watched(&self, now: Instant) -> Vec<(EventSource, BorrowedFd<'_>, PollFlags)> {
        let mut fds = Vec::new();
        for (token, session) in self.sessions.iter() {
            // Before its exit: a program that has exited already was executed before.
            let pending = session.pending.as_ref().map(|pending| pending.failed.as_fd());
            fds.extend(pending.map(|fd| (EventSource::ExecOutcome(token), fd)));
            let terminal = session.detached_terminal.as_ref().map(|fd| fd.as_fd());
            fds.extend(terminal.map(|fd| (EventSource::DetachedTerminal(token), fd)));
            fds.extend(session.client.as_ref().map(|fd| (EventSource::SessionClient(token), fd.as_fd())));
            fds.extend(session.pidfd.as_ref().map(|fd| (EventSource::SessionProgram(token), fd.as_fd())));
        }
        fds.extend(self.control.watched_connections().map(|(token, fd)| (EventSource::Connection(token), fd)));
        fds.extend(self.reaper.watched().map(|(index, fd)| (EventSource::Ending(index), fd)));
        for (app_token, app) in self.pod.apps.iter() {
            // Output that an app wrote before it exited is read before its exit is handled. Which of its outputs was
            // written to first is unknown; standard output is the first.
            let blocked = self.output.foregrounds.blocks_app(app.output.app_number);
            let paused = blocked || app.output.pace.resumes_at(now).is_some();
            let sources = app.output.sources.iter().filter(|_| !paused);
            fds.extend(sources.map(|(token, source)| (EventSource::AppOutput(app_token, token), source.fd.as_fd())));
            fds.extend(app.waiting.as_ref().map(|waiting| match app.operation {
                Some(Operation::Execute { .. }) => (EventSource::AppExecution(app_token), waiting.report.as_fd()),
                _ => (EventSource::WaitingExit(app_token), waiting.pidfd.as_fd()),
            }));
            fds.extend(app.running.as_ref().map(|pidfd| (EventSource::AppExit(app_token), pidfd.as_fd())));
        }
        fds.extend(self.pod.watched_notifications(self.output.foregrounds.blocks_notifications(), now));
        fds.extend(self.reclaims.iter().map(|(token, r)| (EventSource::Reclaim(token), r.helper.as_fd())));
        fds.extend(self.creations.watched().map(|(token, fd)| (EventSource::Creation(token), fd)));
        fds.extend(self.control.watched_listener().map(|fd| (EventSource::Listener, fd)));
        // The pidfd of a process that was reaped stays readable.
        let init = self.pod.init.iter().filter(|_| !self.shutdown.has_ended());
        fds.extend(init.map(|init| (EventSource::Init, init.pidfd.as_fd())));
        fds.extend(self.orphans.watched().map(|fd| (EventSource::ChildExit, fd)));
        fds.push((EventSource::Signals, self.signals.as_fd()));
        let foregrounds = self.output.foregrounds.watched();
        let foregrounds = foregrounds.map(|(token, fd, events)| (EventSource::Foreground(token), fd, events));
        foregrounds
            .chain(self.pod.watched_probes())
            .chain(self.pod.watched_oom())
            .chain(fds.into_iter().map(|(source, fd)| (source, fd, PollFlags::IN)))
            .collect()
    }

    /// The time from `now` until the next deadline; `None`: there is none. [`Self::watched`] must have had the same
    /// `now`: a descriptor whose pause ended in between would be neither polled nor waited for.
    fn timeout(&self, now: Instant) -> Option<Duration> {
        let execs = self.sessions.values().filter_map(|session| Some(session.pending.as_ref()?.deadline));
        let late_lines = self.pod.apps.values().filter_map(|app| app.output.flush_at);
        let apps = self.pod.apps.values();
        let with_input = apps.filter(|app| !app.output.sources.is_empty() || app.notify.is_some());
        let paused = with_input.filter_map(|app| app.output.pace.resumes_at(now));
        let reclaims = self.reclaims.values().map(|reclaim| reclaim.deadline);
        let deadlines = self.control.deadlines().chain(reclaims).chain(self.shutdown.deadlines());
        let deadlines = deadlines.chain(execs).chain(late_lines).chain(paused);
        let deadlines = deadlines.chain(self.pod.operation_deadlines(now)).chain(self.creation_deadlines(now));
        let deadlines = deadlines.chain(self.pause.deadline(now));
        let deadlines = deadlines.chain(self.health_deadlines()).chain(self.pod.oom_deadlines());
        let deadlines = deadlines.chain(self.restart_deadlines()).chain(self.journal.retry_at());
        let deadlines = deadlines.chain(self.reaper.deadlines(now)).chain(self.orphans.due);
        deadlines.min().map(|at| at.saturating_duration_since(now))
    }

    fn handle(&mut self, source: EventSource) {
        match source {
            EventSource::Foreground(token) => self.output.foregrounds.resume(token),
            EventSource::ExecOutcome(token) => self.handle_exec_outcome(token),
            EventSource::DetachedTerminal(token) => self.discard_output(token),
            EventSource::SessionClient(token) => self.handle_session_client(token),
            EventSource::SessionProgram(token) => self.handle_session_exit(token),
            EventSource::Connection(token) => self.serve(token),
            EventSource::Ending(index) => self.reaper.leave_out_ending(index),
            EventSource::ChildExit => self.orphans.note_child_exit(),
            EventSource::AppOutput(app, source) => {
                if let Some(app) = self.pod.apps.get_mut(app) {
                    self.output.pump(app, source, &self.journal);
                }
            }
            EventSource::AppExecution(token) => self.handle_execution(token),
            EventSource::WaitingExit(token) => self.end_waiting(token),
            EventSource::Creation(token) => self.handle_creation(token),
            EventSource::Probe(token) => self.advance_probe(token),
            EventSource::ProbeExit(token) => self.handle_probe_exit(token),
            EventSource::Reclaim(token) => self.handle_reclaim(token),
            EventSource::Oom(token) => self.pod.handle_oom(token),
            EventSource::AppExit(token) => self.handle_app_exit(token),
            EventSource::Notification(token) => self.handle_notification(token),
            EventSource::Listener => self.control.accept(),
            // PID 1 does not exit by itself: a process outside the pod killed it, and the kernel killed the apps.
            EventSource::Init => self.stop(StopReason::InitKilled, Duration::ZERO),
            EventSource::Signals => self.handle_signals(),
        }
    }

    fn handle_signals(&mut self) {
        let stop_signals = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];
        let received = sys::read_signals(&self.signals);
        if received.iter().any(|&signal| stop_signals.iter().any(|&stop| stop.unsigned_abs() == signal)) {
            self.stop_on_request(StopReason::SupervisorSignal, self.pod.stop_grace());
        }
    }

    /// Reaps the main process of an app; `None`: it runs, or another process traces it.
    fn reap_app(&mut self, token: Token<App>) -> Option<ProcessExit> {
        let app = self.pod.apps.get(token)?;
        let running = app.running.as_ref()?;
        let how = reap(running);
        // A debugger waits for it soon. A tracer that does not is killed, if it is one of the app's processes.
        if how.is_none() && self.reaper.leave_out_if_traced(running.as_fd()) {
            app.cgroup.kill();
        }
        how
    }

    fn handle_app_exit(&mut self, token: Token<App>) {
        let Some(how) = self.reap_app(token) else { return };
        self.stop_if_init_was_killed(how);
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        app.forget_process();
        app.exit = Some(how);
        app.abort_probe(&mut self.reaper);
        let oom_kills = self.record_oom_kills(token, how == ProcessExit::KILLED);
        let Some(app) = self.pod.apps.get_mut(token) else { return };
        let oom = oom_kills > app.oom_kills_before;
        let (attempt, stop) = (app.plan.attempt, app.stop.take());
        let was_stopped = stop.is_some() || self.shutdown.is_stopping();
        let restarts_unhealthy = stop.as_ref().is_some_and(StopRequest::restarts_unhealthy);
        let restart_at = match (restarts_unhealthy, was_stopped) {
            (true, _) => Some(app.schedule_restart()),
            (false, true) => None,
            (false, false) => app.plan_restart(how),
        };
        self.journal.append(Fact::AppExited { app: app.plan.name.clone(), attempt, how, oom, restart_at });
        let restart = stop.and_then(StopRequest::complete).filter(|_| !restarts_unhealthy);
        if restart.is_none() && !self.is_active() {
            // The end of PID 1 kills the processes that the last app left behind.
            return;
        }
        if let Some(app) = self.pod.apps.get(token)
            && !app.cgroup.is_empty()
        {
            app.cgroup.kill();
        }
        if let Some(start) = restart {
            if let Some(app) = self.pod.apps.get_mut(token) {
                app.restarts.forget_count();
            }
            self.begin_clear(token, NextOperation::Start(start));
        } else if how != ProcessExit::Code(0) && !was_stopped && restart_at.is_none() && !self.pod.plan.sandbox {
            self.stop(StopReason::AppFailed, self.pod.stop_grace());
        }
    }

    /// The end of PID 1 kills the apps, and shows only after their exits, which are no failures then.
    fn stop_if_init_was_killed(&mut self, how: ProcessExit) {
        let was_killed = !self.shutdown.is_stopping() && how == ProcessExit::KILLED;
        if was_killed && self.pod.init.as_ref().is_some_and(Init::is_exiting) {
            self.stop(StopReason::InitKilled, Duration::ZERO);
        }
    }

    /// Sends every app its stop signal, and kills those that still run after `grace`. A further call can only shorten
    /// the grace.
    fn stop(&mut self, reason: StopReason, grace: Duration) {
        if self.shutdown.begin() {
            self.abort_changes();
            self.journal.append(Fact::Stopping { reason });
            for app in self.pod.apps.values() {
                app.signal(app.plan.stop_signal);
            }
            // SIGKILL ends a frozen app as well.
            let _killed_later = self.resume_all();
        }
        self.shutdown.kill_after(grace);
    }

    /// Stops the pod on request of a client or a signal. Foregrounds that do not read then delay the end only until
    /// [`DRAIN_TIMEOUT`] after the grace.
    fn stop_on_request(&mut self, reason: StopReason, grace: Duration) {
        self.stop(reason, grace);
        self.shutdown.begin_foreground_timeout();
    }

    fn check_deadlines(&mut self) {
        let now = Instant::now();
        for app in self.pod.apps.values_mut() {
            self.output.flush_late_lines(app, now, &self.journal);
        }
        self.journal.retry(now);
        self.journal.compact_if_long(&self.pod.jail.pod_dir);
        self.control.check(now);
        self.time_out_execs(now);
        self.check_operations(now);
        self.check_creations(now);
        self.check_reclaims(now);
        self.check_pause(now);
        self.check_health(now);
        self.check_restarts(now);
        self.check_oom(now);
        self.reaper.reap_ended(now);
        if self.shutdown.take_due_kill(now) {
            for app in self.pod.apps.values().filter(|app| app.running.is_some()) {
                app.signal(SIGKILL);
                app.cgroup.kill();
            }
        }
    }
}
