//! Programs that clients execute in a running pod (`exec`).

use std::os::fd::OwnedFd;
use std::time::Instant;

use gantry_contract::control::{Answer, Request};
use gantry_model::ErrorKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use rustix::process::Signal;

use super::{DRAIN, Supervisor};
use crate::app::reap;
use crate::control;
use crate::exec::PendingExec;
use crate::failure::{Attempt, Result, failure};

/// Maximum number of concurrent sessions. They do not count as connections, so a pod at the limit can be stopped.
pub(super) const MAX_SESSIONS: usize = 128;

/// A program executed on request of a client.
pub(super) struct Session {
    /// `None`: it has gone, and the program was killed or detached from; or it was told that the program could not be executed.
    pub(super) client: Option<OwnedFd>,
    /// The program, once it was executed.
    pub(super) pidfd: Option<OwnedFd>,
    /// Set until the program is executed.
    pub(super) starting: Option<PendingExec>,
    /// The client has detached: its terminal, of which nobody but this process has the master.
    pub(super) detached: Option<OwnedFd>,
}

impl Session {
    /// A program that is about to be executed for this client.
    pub(super) fn new(client: OwnedFd, starting: PendingExec) -> Self {
        Self { client: Some(client), pidfd: None, starting: Some(starting), detached: None }
    }

    fn answer(&self, answer: &Answer, fd: Option<&OwnedFd>) {
        if let Some(client) = &self.client {
            control::answer(client, answer, fd);
        }
    }

    /// Kills what there is of it; gives back what has to be reaped apart from it.
    fn kill(&mut self) -> Vec<OwnedFd> {
        if let Some(pidfd) = &self.pidfd {
            let _ = rustix::process::pidfd_send_signal(pidfd, Signal::KILL);
        }
        self.starting.take().map(PendingExec::kill).unwrap_or_default()
    }

    /// A client may send one more request: to let the program run on without it.
    fn take_request(&mut self) {
        let Some(client) = &self.client else { return };
        let Some(request) = control::receive_request(client) else { return };
        match request.and_then(|(request, fds)| self.detach(&request, fds)) {
            Ok(()) => self.answer(&Answer::Done, None),
            Err(why) => self.answer(&Answer::Failed(why), None),
        }
    }

    fn detach(&mut self, request: &Request, fds: Vec<OwnedFd>) -> Result<()> {
        let invalid = |why: &str| failure(ErrorKind::Invalid, why);
        if *request != Request::Detach || self.pidfd.is_none() {
            return Err(invalid("over the connection of a program that runs only a detach can be requested"));
        }
        let Ok([master]) = <[OwnedFd; 1]>::try_from(fds) else {
            return Err(invalid("a detach takes one descriptor, the terminal's master"));
        };
        // Only of a terminal: a client could block this process with anything else.
        if rustix::pty::ptsname(&master, Vec::new()).is_err() {
            return Err(invalid("the descriptor that came with the detach is not a terminal's master"));
        }
        let what = || "cannot keep the terminal of the program open";
        let flags = rustix::fs::fcntl_getfl(&master).attempt(what)?;
        rustix::fs::fcntl_setfl(&master, flags | OFlags::NONBLOCK).attempt(what)?;
        self.detached = Some(master);
        Ok(())
    }

    /// Whether the session is complete.
    fn is_over(&self) -> bool {
        self.starting.is_none() && self.pidfd.is_none()
    }
}

impl Supervisor {
    /// Tells the client of an exec that its program runs, or why not.
    pub(super) fn program_started(&mut self, i: usize) {
        let Some(session) = self.sessions.get_mut(i) else { return };
        // Asked again: another session may have come into this one's place since the poll.
        let Some(starting) = session.starting.take_if(|starting| starting.is_decided()) else { return };
        let (outcome, ending) = starting.outcome();
        self.ending.extend(ending);
        match outcome {
            Ok(program) => {
                let pid = program.pid.as_raw_nonzero().get().unsigned_abs();
                session.answer(&Answer::Started { pid }, program.master.as_ref());
                session.pidfd = Some(program.pidfd);
            }
            Err(why) => {
                session.answer(&Answer::Failed(why), None);
                self.sessions.swap_remove(i);
            }
        }
    }

    pub(super) fn give_up_late_execs(&mut self, now: Instant) {
        for i in (0..self.sessions.len()).rev() {
            if self.sessions[i].starting.as_ref().is_some_and(|starting| starting.deadline <= now) {
                let mut session = self.sessions.swap_remove(i);
                self.ending.extend(session.kill());
                let why = failure(ErrorKind::TimedOut, "the program was not executed in time");
                session.answer(&Answer::Failed(why), None);
            }
        }
    }

    pub(super) fn program_ended(&mut self, i: usize) {
        let Some(how) = self.sessions.get(i).and_then(|session| reap(session.pidfd.as_ref()?)) else { return };
        self.sessions.swap_remove(i).answer(&Answer::Ended { how }, None);
    }

    /// The client of an exec detached, or went away.
    pub(super) fn client_spoke(&mut self, i: usize) {
        let Some(session) = self.sessions.get_mut(i) else { return };
        let Some(client) = &session.client else { return };
        match rustix::net::recv(client, &mut [0u8; 1], RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Ok((count, _)) if count > 0 => session.take_request(),
            Ok(_) | Err(_) => self.client_went(i),
        }
    }

    /// Its client's going away ends a program that was not detached from.
    fn client_went(&mut self, i: usize) {
        let Some(session) = self.sessions.get_mut(i) else { return };
        session.client = None;
        if session.detached.is_none() {
            self.ending.extend(session.kill());
            if session.is_over() {
                self.sessions.swap_remove(i);
            }
        }
    }

    /// Discards what a program without a client writes to its terminal: it would wait for a reader otherwise.
    pub(super) fn discard_output(&mut self, i: usize) {
        let Some(session) = self.sessions.get_mut(i) else { return };
        let Some(master) = &session.detached else { return };
        match rustix::io::read(master, &mut self.buffer) {
            Ok(count) if count > 0 => {}
            Err(Errno::AGAIN | Errno::INTR) => {}
            // No process has the terminal open any more.
            Ok(_) | Err(_) => session.detached = None,
        }
    }

    /// Kills what was executed in the pod and gives every client the end of its program, while nobody else reaps it.
    pub(super) fn end_sessions(&mut self) {
        for session in &mut self.sessions {
            if session.starting.is_some() {
                session.answer(&Answer::Failed(failure(ErrorKind::Refused, "the pod has ended")), None);
            }
            // What is left over of those is reaped with PID 1.
            drop(session.kill());
        }
        self.sessions.retain(|session| session.pidfd.is_some());
        let deadline = Instant::now() + DRAIN;
        while !self.sessions.is_empty() && Instant::now() < deadline {
            let programs = self.sessions.iter().filter_map(|session| session.pidfd.as_ref());
            let mut fds: Vec<PollFd<'_>> = programs.map(|pidfd| PollFd::new(pidfd, PollFlags::IN)).collect();
            let _ = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 }));
            for i in (0..self.sessions.len()).rev() {
                self.program_ended(i);
            }
        }
    }
}
