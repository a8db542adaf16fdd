//! Ends a pod after its last app has exited.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use gantry_contract::journal::Fact;
use gantry_model::namespaces::PidMode;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, AtFlags, FlockOperation};
use rustix::process::Signal;

use super::{DRAIN_TIMEOUT, Supervisor};
use crate::app::App;
use crate::app::launcher::reap_all;
use crate::pod::launch::end_init;
use crate::sys::{self, SingleThreaded};

/// Timeout of the exit of processes that were killed at the end of the pod.
const ENDING_TIMEOUT: Duration = Duration::from_millis(900);

impl Supervisor {
    /// Kills the pod's remaining processes, saves the output, closes the control socket, detaches the networks, records
    /// the end, and removes the cgroups.
    pub(crate) fn finish(&mut self, thread: SingleThreaded) {
        self.abort_changes();
        self.abort_probes();
        self.end_sessions();
        self.kill_host_processes();
        self.abort_reclaims(None);
        let receivers = self.pod.apps.values_mut().filter_map(|app| app.notify.as_mut()?.receiver.take());
        // Killed with the others.
        self.ending.extend(receivers);
        self.pod.init.iter().for_each(end_init);
        self.kill_ending();
        self.sessions.clear();
        self.has_ended = true;
        // No process is left that could write more.
        self.pod.apps.values_mut().for_each(|app| app.output.pace.lift());
        self.drain();
        let total = self.log_bytes_dropped;
        if total > 0 {
            let app = self.pod.apps.values().next().map(|app| app.plan.name.clone()).unwrap_or_default();
            self.journal.append(Fact::LogDropped { app, bytes: total, why: "in all".to_owned() });
        }
        // Not earlier: the output can take any time to drain, and the arena reuses little.
        sys::open_supervisor_arena(thread);
        self.close_control_socket();
        // From here on this process is in the host's mount namespace, not in its jail.
        self.pod.detach_networks();
        self.journal.append(Fact::Ended);
        self.remove_old_cgroups();
        self.pod.remove_cgroups();
    }

    /// Takes no more requests. Detaching the networks takes as long as their plugins do, and no request is served
    /// meanwhile: a client learns at once that the pod has ended, and waits for the rest.
    fn close_control_socket(&mut self) {
        let control = gantry_contract::files::CONTROL;
        // A stale socket does no harm: the next supervisor replaces it, and `rm` removes the directory.
        let _left_for_rm = rustix::fs::unlinkat(&self.pod.jail.pod_dir, control, AtFlags::empty());
        self.listener = None;
        self.connections.clear();
    }

    /// Ends the ownership of a pod that is removed now that it has ended, and the foregrounds, which wait for that. Its
    /// removal does not have to wait until the kernel has taken down the mounts and namespaces of this process, 1 to
    /// 2 ms. Another pod could be started again meanwhile, whose layers are still mounted: its lock is held.
    pub(crate) fn release(&mut self, lock: &OwnedFd) {
        let removed = gantry_contract::files::REMOVE_WHEN_ENDED;
        if rustix::fs::accessat(&self.pod.jail.pod_dir, removed, Access::EXISTS, AtFlags::empty()).is_err() {
            return;
        }
        // This also unlocks the starter's handle. If it fails, the exit releases the lock.
        let _released_by_exit = rustix::fs::flock(lock, FlockOperation::NonBlockingUnlock);
        self.foregrounds.close();
    }

    /// Kills the processes of apps that may be in the host's PID namespace, which do not end with the pod's PID 1.
    fn kill_host_processes(&mut self) {
        for app in self.pod.apps.values().filter(may_outlive_init) {
            let members = app.cgroup.open_members();
            app.cgroup.kill();
            self.ending.extend(members);
        }
    }

    /// Kills and reaps the processes that are about to exit. The helpers among them, which delete files of removed
    /// apps, are outside the pod's PID namespace; while they run, their cgroup cannot be removed.
    fn kill_ending(&mut self) {
        let deadline = Instant::now() + ENDING_TIMEOUT;
        for process in self.ending.drain(..) {
            // It fails if the process was reaped already.
            let _already_reaped = rustix::process::pidfd_send_signal(&process, Signal::KILL);
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
            let _ended_or_late = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&timeout));
        }
        reap_all();
    }

    /// Passes on the remaining output. All writers are dead, so every output ends as soon as the foregrounds have read
    /// what precedes. That may take any time, unless the pod was stopped on request. The control socket is served
    /// meanwhile.
    fn drain(&mut self) {
        self.drain_deadline = Some(Instant::now() + DRAIN_TIMEOUT);
        while self.foregrounds.are_blocked() || self.pod.apps.values().any(|app| !app.output.sources.is_empty()) {
            self.drop_late_foregrounds();
            if self.foregrounds.are_blocked() {
                self.drain_deadline = None;
            } else if *self.drain_deadline.get_or_insert_with(|| Instant::now() + DRAIN_TIMEOUT) <= Instant::now() {
                // A writer hangs in the kernel.
                break;
            }
            self.poll_once();
        }
        for token in self.pod.apps.tokens() {
            if let Some(app) = self.pod.apps.get_mut(token) {
                app.output.close(&mut self.foregrounds, &mut self.buffer);
            }
            self.record_dropped(token);
        }
        self.drain_deadline = None;
        self.foregrounds.end();
        while self.foregrounds.are_blocked() {
            self.drop_late_foregrounds();
            self.poll_once();
        }
    }

    /// Ends the foregrounds of single apps that have exited or were removed, when their output was read.
    pub(super) fn end_foregrounds_of_exited_apps(&mut self) {
        let numbers: Vec<u16> = self.foregrounds.apps().collect();
        for number in numbers {
            let app = self.pod.apps.values().find(|app| app.output.app_number == number);
            let may_write = app
                .is_some_and(|app| app.running.is_some() || self.foregrounds.block(number) || app.output.is_readable());
            if !may_write {
                self.foregrounds.end_app(number);
            }
        }
    }

    fn drop_late_foregrounds(&mut self) {
        if self.foreground_deadline.is_some_and(|at| at <= Instant::now()) {
            self.foreground_deadline = None;
            self.foregrounds.close();
        }
    }
}

/// Whether processes of the app may be in the PID namespace of the host.
pub(super) fn may_outlive_init(app: &&App) -> bool {
    app.confinement.namespaces.pid == PidMode::Host || app.plan.options.pid_target.is_some()
}
