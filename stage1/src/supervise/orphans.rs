//! Orphans: processes of apps in the host's PID namespace whose parents have exited.
//!
//! PID 1 of the pod reaps the orphans of its own PID namespace. Those in the host's become children of the supervisor,
//! which is a subreaper (see [`crate::app::maker`]). Not reaped, they would count against the app's limit of processes.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, poll};
use rustix::process::WaitOptions;
use rustix::time::Timespec;

use super::Supervisor;
use crate::app::{App, Operation};
use crate::reaper::has_visible_exit;
use crate::sys;

/// Maximum number of orphans that are reaped before other events are handled: an app may leave them behind as fast as
/// they are reaped.
const MAX_ORPHANS: usize = 64;

/// What is known of orphans.
#[derive(Default)]
pub(super) struct Orphans {
    /// Becomes readable when a child exits; `None` unless an app is in the host's PID namespace.
    child_exits: Option<OwnedFd>,
    /// Whether a child has exited since the last orphan was reaped.
    may_exist: bool,
    /// When further orphans are reaped: there were too many for one pass.
    pub(super) due: Option<Instant>,
}

impl Orphans {
    /// The descriptor to poll, if there is one.
    pub(super) fn watched(&self) -> Option<BorrowedFd<'_>> {
        self.child_exits.as_ref().map(OwnedFd::as_fd)
    }

    /// Begins to watch for the exits of children.
    fn watch(&mut self) {
        match sys::signalfd(&[libc::SIGCHLD]) {
            Ok(fd) => {
                self.child_exits = Some(fd);
                // Some may have exited before.
                self.may_exist = true;
            }
            Err(error) => tracing::warn!("processes that apps leave behind are not reaped: {error}"),
        }
    }

    /// Notes that a child has exited; [`Supervisor::reap_orphans`] follows.
    pub(super) fn note_child_exit(&mut self) {
        if let Some(fd) = &self.child_exits {
            sys::read_signals(fd);
            self.may_exist = true;
        }
    }
}

impl Supervisor {
    /// Watches for the exits of children, once an app is in the host's PID namespace. Other pods are spared the events.
    pub(super) fn watch_child_exits(&mut self) {
        if self.orphans.watched().is_none() && self.pod.apps.values().any(App::may_outlive_init) {
            self.orphans.watch();
            self.reap_orphans();
        }
    }

    /// Reaps children that the supervisor has not started. While processes are being made, their PIDs are not all known
    /// here: the orphans wait.
    pub(super) fn reap_orphans(&mut self) {
        self.orphans.due = None;
        if !self.orphans.may_exist || self.is_making_processes() {
            return;
        }
        for _ in 0..MAX_ORPHANS {
            let Some(exited) = sys::exited_child() else {
                self.orphans.may_exist = false;
                return;
            };
            // The exits of known processes have handlers, which the next events call. This is checked after the zombie
            // was found: if it were known, its exit would be seen here.
            if self.has_known_exit() {
                return;
            }
            let _reaped = rustix::process::waitpid(Some(exited), WaitOptions::NOHANG);
        }
        self.orphans.due = Some(Instant::now());
    }

    fn is_making_processes(&self) -> bool {
        let is_starting =
            |app: &App| matches!(app.operation, Some(Operation::Execute { .. })) || app.is_probe_pending();
        !self.creations.is_empty()
            || self.sessions.values().any(|session| session.pending.is_some())
            || self.pod.apps.values().any(is_starting)
    }

    /// Whether an event is due that may be the exit of a process that the supervisor has started.
    fn has_known_exit(&self) -> bool {
        let now = Instant::now();
        let watched = self.watched(now);
        let (left_out, exits): (Vec<_>, Vec<_>) = watched
            .iter()
            .filter(|(source, ..)| source.is_exit())
            .partition(|(_, fd, _)| self.reaper.leaves_out(*fd, now));
        if left_out.iter().any(|(_, fd, _)| has_visible_exit(*fd)) {
            return true;
        }
        let exits = exits.iter().map(|(_, fd, events)| PollFd::from_borrowed_fd(*fd, *events));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After an error, nothing is known: the orphans wait.
        poll(&mut exits.collect::<Vec<_>>(), Some(&at_once)).map_or(true, |ready| ready > 0)
    }
}
