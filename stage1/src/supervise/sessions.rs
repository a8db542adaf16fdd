//! Programs that clients execute in a running pod (`exec`).

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use gantry_contract::control::{Reply, Request};
use gantry_model::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;

use super::{DRAIN_TIMEOUT, Supervisor};
use crate::app::exec::PendingExec;
use crate::control;
use crate::failure::{Attempt, Result, failure};
use crate::reaper::reap;
use crate::sys;
use crate::table::Token;

/// Maximum number of concurrent sessions. They do not count as connections, so a pod at the limit can be stopped.
pub(super) const MAX_SESSIONS: usize = 128;

/// How often the exits of killed programs are polled at the end of the pod.
const EXIT_POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A program that was executed, or is about to be, on request of a client.
pub(super) struct Session {
    /// The client's connection; `None` after it was closed.
    pub(super) client: Option<OwnedFd>,
    /// The program, once it was executed.
    pub(super) pidfd: Option<OwnedFd>,
    /// The exec until its outcome is known.
    pub(super) pending: Option<PendingExec>,
    /// Whether the program has a terminal.
    has_terminal: bool,
    /// The slave end of that terminal, until the program exits. Without it, the master would report the end of the
    /// output whenever no process has the terminal open.
    terminal_peer: Option<OwnedFd>,
    /// Whether the client has detached: then the program runs on without it.
    is_detached: bool,
    /// After a detach: the master of the program's terminal, which only this process has open.
    pub(super) detached_terminal: Option<OwnedFd>,
}

impl Session {
    /// A session whose program is about to be executed.
    pub(super) fn new(client: OwnedFd, pending: PendingExec) -> Self {
        Self {
            client: Some(client),
            pidfd: None,
            pending: Some(pending),
            has_terminal: false,
            terminal_peer: None,
            is_detached: false,
            detached_terminal: None,
        }
    }

    fn reply(&self, answer: &Reply, fd: Option<&OwnedFd>) {
        if let Some(client) = &self.client {
            control::reply(client, answer, fd);
        }
    }

    /// Kills the program; returns the pidfds of processes of an exec that must be reaped.
    fn kill(&mut self) -> Vec<OwnedFd> {
        if let Some(pidfd) = &self.pidfd {
            // It fails only if the program has exited.
            let _already_ended = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
        self.pending.take().map(PendingExec::kill).unwrap_or_default()
    }

    /// Handles the one further request that a session allows: a detach.
    fn serve(&mut self) {
        let Some(client) = &self.client else { return };
        let Some(request) = control::receive_request(client) else { return };
        match request.and_then(|(request, fds)| self.detach(&request, fds)) {
            Ok(()) => self.reply(&Reply::Done, None),
            Err(why) => self.reply(&Reply::Failed(why), None),
        }
    }

    fn detach(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<()> {
        let invalid = |why: &str| failure(ErrorKind::Invalid, why);
        if *request != Request::Detach || self.pidfd.is_none() {
            return Err(invalid("the connection of a running program allows only a detach"));
        }
        let mut fds = fds.into_iter();
        match (self.has_terminal, fds.next(), fds.next()) {
            (true, Some(master), None) => self.detached_terminal = Some(checked_master(master)?),
            (true, ..) => return Err(invalid("a detach takes one descriptor, the terminal's master")),
            (false, None, _) => {}
            (false, ..) => return Err(invalid("a detach takes no descriptor: the program has no terminal")),
        }
        self.is_detached = true;
        Ok(())
    }

    /// Whether the session has neither a program nor an exec that may become one.
    fn is_over(&self) -> bool {
        self.pending.is_none() && self.pidfd.is_none()
    }
}

/// A terminal's master whose output this process discards.
fn checked_master(master: OwnedFd) -> Result<OwnedFd> {
    // Reading any other kind of file could block this process.
    if rustix::pty::ptsname(&master, Vec::new()).is_err() {
        let why = "the descriptor that came with the detach is not a terminal's master";
        return Err(failure(ErrorKind::Invalid, why));
    }
    let what = || "cannot keep the terminal of the program open";
    rustix::io::ioctl_fionbio(&master, true).attempt(what)?;
    Ok(master)
}

impl Supervisor {
    /// Replies to the client of an exec whose outcome is known.
    pub(super) fn handle_exec_outcome(&mut self, token: Token<Session>) {
        let Some(session) = self.sessions.get_mut(token) else { return };
        let Some(pending) = session.pending.take() else { return };
        let (outcome, ending) = pending.outcome();
        self.reaper.add_all(ending);
        match outcome {
            Ok(program) => {
                let pid = program.pid.as_raw_nonzero().get().unsigned_abs();
                // Without a descriptor left for it, the output may end early.
                let open_peer = |master: &OwnedFd| sys::terminal_peer(master.as_fd()).ok();
                session.terminal_peer = program.master.as_ref().and_then(open_peer);
                session.reply(&Reply::Started { pid }, program.master.as_ref());
                session.has_terminal = program.master.is_some();
                session.pidfd = Some(program.pidfd);
            }
            Err(why) => {
                session.reply(&Reply::Failed(why), None);
                self.sessions.remove(token);
            }
        }
    }

    pub(super) fn time_out_execs(&mut self, now: Instant) {
        for token in self.sessions.tokens() {
            let pending = self.sessions.get(token).and_then(|session| session.pending.as_ref());
            if pending.is_some_and(|pending| pending.deadline <= now)
                && let Some(mut session) = self.sessions.remove(token)
            {
                self.reaper.add_all(session.kill());
                let why = failure(ErrorKind::TimedOut, "the program was not executed in time");
                session.reply(&Reply::Failed(why), None);
            }
        }
    }

    pub(super) fn handle_session_exit(&mut self, token: Token<Session>) {
        let Some(pidfd) = self.sessions.get(token).and_then(|session| session.pidfd.as_ref()) else { return };
        let Some(how) = reap(pidfd) else {
            self.reaper.leave_out_if_traced(pidfd.as_fd());
            return;
        };
        if let Some(session) = self.sessions.remove(token) {
            session.reply(&Reply::Ended { how }, None);
        }
    }

    /// The client of an exec sent a request or closed its connection.
    pub(super) fn handle_session_client(&mut self, token: Token<Session>) {
        let Some(session) = self.sessions.get_mut(token) else { return };
        let Some(client) = &session.client else { return };
        match rustix::net::recv(client, &mut [0u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((count, _)) if count > 0 => session.serve(),
            Ok(_) | Err(_) => self.handle_disconnect(token),
        }
    }

    /// Kills the program unless the client had detached.
    fn handle_disconnect(&mut self, token: Token<Session>) {
        let Some(session) = self.sessions.get_mut(token) else { return };
        session.client = None;
        if !session.is_detached {
            self.reaper.add_all(session.kill());
            if session.is_over() {
                self.sessions.remove(token);
            }
        }
    }

    /// Discards what a program whose client has detached writes to its terminal. Without a reader, the program would
    /// block.
    pub(super) fn discard_output(&mut self, token: Token<Session>) {
        let Some(session) = self.sessions.get_mut(token) else { return };
        let Some(master) = &session.detached_terminal else { return };
        match rustix::io::read(master, &mut self.output.buffer) {
            Ok(count) if count > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            // No process has the terminal open any more.
            Ok(_) | Err(_) => session.detached_terminal = None,
        }
    }

    /// Kills all programs and reports their ends to the clients. PID 1 must not have been ended yet: then their exit
    /// statuses are collected with it.
    pub(super) fn end_sessions(&mut self) {
        for session in self.sessions.values_mut() {
            if session.pending.is_some() {
                session.reply(&Reply::Failed(failure(ErrorKind::Refused, "the pod has ended")), None);
            }
            let _reaped_with_pid_1 = session.kill();
        }
        self.sessions.retain(|session| session.pidfd.is_some());
        let deadline = Instant::now() + DRAIN_TIMEOUT;
        while !self.sessions.is_empty() && Instant::now() < deadline {
            let programs = self.sessions.values().filter_map(|session| session.pidfd.as_ref());
            let programs = programs.filter(|pidfd| !self.reaper.leaves_out(pidfd.as_fd(), Instant::now()));
            let mut fds: Vec<PollFd<'_>> = programs.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).collect();
            // The programs are tried below, whatever the result.
            let _woken_or_not = poll(&mut fds, Some(&EXIT_POLL_INTERVAL));
            for token in self.sessions.tokens() {
                self.handle_session_exit(token);
            }
        }
    }
}
