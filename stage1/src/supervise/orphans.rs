//! Orphans: processes of apps in the host's PID namespace whose parents have exited.
//!
//! PID 1 of the pod reaps the orphans of its own PID namespace. Those in the host's become children of the supervisor,
//! which is a subreaper (see [`crate::app::maker`]). Not reaped, they would count against the app's limit of processes.

use std::time::Instant;

use rustix::event::{PollFd, poll};
use rustix::process::WaitOptions;
use rustix::time::Timespec;

use super::Supervisor;
use crate::app::{Operation, has_visible_exit};
use crate::supervise::ending::may_outlive_init;
use crate::sys;

/// Maximum number of orphans that are reaped before other events are handled: an app may leave them behind as fast as
/// they are reaped.
const MAX_ORPHANS: usize = 64;

impl Supervisor {
    /// Watches for the exits of children, once an app is in the host's PID namespace. Other pods are spared the events.
    pub(super) fn watch_child_exits(&mut self) {
        if self.child_exits.is_some() || !self.pod.apps.values().any(|app| may_outlive_init(&app)) {
            return;
        }
        match sys::signalfd(&[libc::SIGCHLD]) {
            Ok(fd) => {
                self.child_exits = Some(fd);
                // Some may have exited before.
                self.may_have_orphans = true;
                self.reap_orphans();
            }
            Err(error) => tracing::warn!("processes that apps leave behind are not reaped: {error}"),
        }
    }

    /// Notes that a child has exited; [`Self::reap_orphans`] follows.
    pub(super) fn note_child_exit(&mut self) {
        if let Some(fd) = &self.child_exits {
            sys::read_signals(fd);
            self.may_have_orphans = true;
        }
    }

    /// Reaps children that the supervisor has not started. While processes are being made, their PIDs are not all known
    /// here: the orphans wait.
    pub(super) fn reap_orphans(&mut self) {
        self.orphans_due = None;
        if !self.may_have_orphans || self.is_making_processes() {
            return;
        }
        for _ in 0..MAX_ORPHANS {
            let Some(exited) = sys::exited_child() else {
                self.may_have_orphans = false;
                return;
            };
            // The exits of known processes have handlers, which the next events call. This is checked after the zombie
            // was found: if it were known, its exit would be seen here.
            if self.has_known_exit() {
                return;
            }
            let _reaped = rustix::process::waitpid(Some(exited), WaitOptions::NOHANG);
        }
        self.orphans_due = Some(Instant::now());
    }

    fn is_making_processes(&self) -> bool {
        self.creations.values().next().is_some()
            || self.sessions.values().any(|session| session.pending.is_some())
            || self
                .pod
                .apps
                .values()
                .any(|app| matches!(app.operation, Some(Operation::Execute { .. })) || app.is_probe_pending())
    }

    /// Whether an event is due that may be the exit of a process that the supervisor has started.
    fn has_known_exit(&self) -> bool {
        let now = Instant::now();
        let watched = self.watched(now);
        let (traced, exits): (Vec<_>, Vec<_>) =
            watched.iter().filter(|(source, ..)| source.is_exit()).partition(|(_, fd, _)| self.traced.holds(*fd, now));
        if traced.iter().any(|(_, fd, _)| has_visible_exit(*fd)) {
            return true;
        }
        let exits = exits.iter().map(|(_, fd, events)| PollFd::from_borrowed_fd(*fd, *events));
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // After an error, nothing is known: the orphans wait.
        poll(&mut exits.collect::<Vec<_>>(), Some(&at_once)).map_or(true, |ready| ready > 0)
    }
}
