//! Ends a pod after its last app has exited.

use std::time::Instant;

use gantry_contract::journal::Fact;

use super::{DRAIN, Supervisor};
use crate::launch::end_init;

impl Supervisor {
    /// Kills the pod's remaining processes, saves the output, detaches the networks, reports the end, and removes the
    /// cgroups.
    pub(super) fn finish(&mut self) {
        self.end_sessions();
        end_init(&self.pod.init);
        // They were reaped with PID 1.
        self.ending.clear();
        self.sessions.clear();
        self.over = true;
        // No process is left that could write.
        self.pod.apps.iter_mut().for_each(|app| app.output.pace.lift());
        self.drain();
        let total = self.log_bytes_dropped;
        if total > 0 {
            let app = self.pod.apps.first().map(|app| app.plan.name.clone()).unwrap_or_default();
            self.journal.append(Fact::LogDropped { app, bytes: total, why: "in all".to_owned() });
        }
        // From here on this process needs the host's file system instead of its jail.
        self.pod.take_networks_away();
        self.journal.append(Fact::Ended);
        let control = gantry_contract::files::CONTROL;
        let _ = rustix::fs::unlinkat(&self.pod.jail.pod_dir, control, rustix::fs::AtFlags::empty());
        self.pod.remove_groups();
    }

    /// Takes the rest of every app's output. All writers are dead, so the outputs end by themselves, when the foregrounds
    /// have taken everything: for as long as that takes, unless the pod was asked to stop. Requests are answered meanwhile.
    fn drain(&mut self) {
        self.drained_by = Some(Instant::now() + DRAIN);
        while self.foregrounds.are_blocked() || self.pod.apps.iter().any(|app| !app.output.sources.is_empty()) {
            self.give_up_late_foregrounds();
            if self.foregrounds.are_blocked() {
                self.drained_by = None;
            } else if *self.drained_by.get_or_insert_with(|| Instant::now() + DRAIN) <= Instant::now() {
                // A writer hangs in the kernel.
                break;
            }
            self.turn();
        }
        for i in 0..self.pod.apps.len() {
            self.pod.apps[i].output.close(i, &mut self.foregrounds, &mut self.buffer);
            self.note_dropped(i);
        }
        self.drained_by = None;
        self.foregrounds.end();
        while self.foregrounds.are_blocked() {
            self.give_up_late_foregrounds();
            self.turn();
        }
    }

    fn give_up_late_foregrounds(&mut self) {
        if self.give_up_at.is_some_and(|at| at <= Instant::now()) {
            self.give_up_at = None;
            self.foregrounds.close();
        }
    }
}
