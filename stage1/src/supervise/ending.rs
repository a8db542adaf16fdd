//! Ends a pod after its last app has exited.

use std::os::fd::OwnedFd;
use std::time::Instant;

use gantry_contract::journal::Fact;
use rustix::fs::{Access, AtFlags, FlockOperation};

use super::Supervisor;
use crate::pod::init::Init;
use crate::sys::{self, SingleThreaded};

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
        self.reaper.add_all(receivers);
        self.pod.init.iter().for_each(Init::end);
        self.reaper.kill_all();
        self.sessions.clear();
        self.shutdown.end();
        // No process is left that could write more.
        self.pod.apps.values_mut().for_each(|app| app.output.pace.lift());
        self.drain();
        let total = self.output.bytes_dropped();
        if total > 0 {
            let app = self.pod.apps.values().next().map(|app| app.plan.name.clone()).unwrap_or_default();
            self.journal.append(Fact::LogDropped { app, bytes: total, why: "in all".to_owned() });
        }
        // Not earlier: the output can take any time to drain, and the arena reuses little.
        sys::open_supervisor_arena(thread);
        // Detaching the networks takes as long as their plugins do, and no request is served meanwhile: a client learns
        // at once that the pod has ended, and waits for the rest.
        self.control.close(&self.pod.jail.pod_dir);
        // From here on this process is in the host's mount namespace, not in its jail.
        self.pod.resources.detach_networks();
        self.journal.append(Fact::Ended);
        self.pod.resources.remove_former_cgroups();
        self.pod.remove_cgroups();
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
        self.output.foregrounds.close();
    }

    /// Kills the processes of apps that may be in the host's PID namespace, which do not end with the pod's PID 1.
    fn kill_host_processes(&mut self) {
        for app in self.pod.apps.values().filter(|app| app.may_outlive_init()) {
            let members = app.cgroup.open_members();
            app.cgroup.kill();
            self.reaper.add_all(members);
        }
    }

    /// Passes on the remaining output. All writers are dead, so every output ends as soon as the foregrounds have read
    /// what precedes. That may take any time, unless the pod was stopped on request. The control socket is served
    /// meanwhile.
    fn drain(&mut self) {
        while self.output.foregrounds.are_blocked() || self.pod.apps.values().any(|app| !app.output.sources.is_empty())
        {
            self.drop_late_foregrounds();
            if self.output.foregrounds.are_blocked() {
                self.shutdown.clear_drain_timeout();
            } else if self.shutdown.begin_drain_timeout() <= Instant::now() {
                // A writer hangs in the kernel.
                break;
            }
            self.poll_once();
        }
        for app in self.pod.apps.values_mut() {
            self.output.close(app, &self.journal);
        }
        self.shutdown.clear_drain_timeout();
        self.output.foregrounds.end();
        while self.output.foregrounds.are_blocked() {
            self.drop_late_foregrounds();
            self.poll_once();
        }
    }

    fn drop_late_foregrounds(&mut self) {
        if self.shutdown.take_due_foreground_timeout(Instant::now()) {
            self.output.foregrounds.close();
        }
    }
}
