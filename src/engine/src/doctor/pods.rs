//! Checks whether each pod matches its row. Pods may be started, reconciled and deleted during the check. So an
//! apparent problem is checked again under the pod's lock, or after any operation in progress has had time to finish.

use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use gantry_contract::control::{Request, Status};
use gantry_contract::files;
use gantry_model::{Phase, PodId};
use gantry_store::{Finding, PodRow, PodState};

use crate::doctor::{fail, warn};
use crate::host::process;
use crate::host::process::Deadline;
use crate::logs::files::{LogDir, ends_in_a_whole_line};
use crate::pods::control::{Connection, ControlError, REPLY_TIMEOUT};
use crate::{Engine, PodError};

/// Maximum time between a supervisor closing its socket and exiting.
const ENDING: Duration = Duration::from_secs(5);

/// Timeout of connecting to one supervisor, whose backlog may be full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum number of supervisors queried concurrently; each takes a descriptor.
const ASKED_AT_ONCE: usize = 200;

impl Engine {
    /// Checks these pods, after reconciling each.
    pub(crate) fn check_pods(
        &self,
        rows: Vec<Box<PodRow>>,
        deep: bool,
        findings: &mut Vec<Finding>,
    ) -> Result<(), PodError> {
        let mut running = Vec::new();
        for row in rows {
            self.check_journal(&row, findings);
            match self.reconcile(*row)? {
                Some(row) if matches!(row.phase, Phase::Running { .. }) => running.push(row),
                Some(row) => self.check_resting(&row, deep, findings),
                None => {}
            }
        }
        running.chunks(ASKED_AT_ONCE).for_each(|some| self.check_running(some, findings));
        Ok(())
    }

    fn check_journal(&self, row: &PodRow, findings: &mut Vec<Finding>) {
        let Some(error) = self.journal_damage(row.id) else { return };
        let what = format!("the journal of pod {} cannot be read: {error}", row.id);
        let hint = match row.phase.is_final() {
            true => "the next start replaces it; 'gantry rm' removes the pod",
            false => "the exit codes of this run are lost; 'gantry rm --force' stops and removes the pod",
        };
        fail(findings, what, hint);
    }

    /// A pod that does not run has neither cgroups nor resources of networks.
    fn check_resting(&self, row: &PodRow, deep: bool, findings: &mut Vec<Finding>) {
        let id = row.id;
        if matches!(row.phase, Phase::Embryo | Phase::Preparing) {
            return;
        }
        // `check_controllers` reports hierarchies that cannot be read.
        let cgroups = self.pod_cgroups(&row.cgroup).unwrap_or_default();
        if !cgroups.is_empty() || self.has_network_record(id) {
            self.check_leftovers(row, findings);
        }
        if deep {
            self.check_logs(row, findings);
        }
    }

    /// A process that starts, reconciles or deletes a pod holds its lock; the pod may have resources then.
    fn check_leftovers(&self, row: &PodRow, findings: &mut Vec<Finding>) {
        let id = row.id;
        // Hold the lock to the end, so that the pod is not started during the check.
        let Ok(_lock @ (PodState::Free(_) | PodState::Absent)) = self.lock_in_time(id) else { return };
        let Ok(Some(now)) = self.store.pod(id) else { return };
        if now.phase.name() != row.phase.name() {
            return;
        }
        for path in self.pod_cgroups(&row.cgroup).unwrap_or_default() {
            let alive = if gantry_host::cgroup::has_processes(&path) { ", with processes in it" } else { "" };
            let what = format!("pod {id} is {} and has a cgroup {}{alive}", row.phase.name(), path.display());
            warn(findings, what, "run 'gantry gc', or 'gantry rm' on the pod");
        }
        if self.has_network_record(id) {
            let what =
                format!("pod {id} is {} and may still have addresses or rules of its networks", row.phase.name());
            fail(findings, what, "run 'gantry gc', or 'gantry rm' on the pod");
        }
    }

    /// Sends a status request to each of these supervisors, then waits for all answers with a common deadline.
    fn check_running(&self, rows: &[PodRow], findings: &mut Vec<Finding>) {
        let asked: Vec<Result<Connection, ControlError>> = rows
            .iter()
            .map(|row| {
                let connection = self.connect_within(row.id, CONNECT_TIMEOUT)?;
                connection.send(&Request::Status, &[])?;
                Ok(connection)
            })
            .collect();
        let deadline = Deadline::after(REPLY_TIMEOUT);
        let mut silent = Vec::new();
        for (row, connection) in rows.iter().zip(asked) {
            match connection.and_then(|connection| connection.receive_status(deadline)) {
                Ok(status) => check_status(row.id, &status, findings),
                Err(error) => silent.push((row, error)),
            }
            self.check_socket(row.id, findings);
        }
        // A pod that is ending no longer has a socket.
        let ending = Deadline::after(ENDING);
        for (row, error) in silent {
            if !self.ends_by(row, ending) && self.is_running(row.id) {
                let what = format!("pod {} runs and cannot be talked to: {error}", row.id);
                fail(findings, what, "'gantry stop --force' ends it");
            }
        }
    }

    fn is_running(&self, id: PodId) -> bool {
        matches!(self.reconcile_pod(id), Ok(now) if matches!(now.phase, Phase::Running { .. }))
    }

    fn check_socket(&self, id: PodId, findings: &mut Vec<Finding>) {
        let control = self.pod_dir(id).join(files::CONTROL);
        let mode = std::fs::symlink_metadata(&control).map(|meta| meta.permissions().mode() & 0o777);
        if mode.is_ok_and(|mode| mode & 0o077 != 0) {
            let what = format!("the control socket {} is open to others", control.display());
            fail(findings, what, "run 'chmod 0600' on it");
        }
    }

    /// Whether the pod's supervisor exits before the deadline.
    fn ends_by(&self, row: &PodRow, deadline: Deadline) -> bool {
        let Phase::Running { supervisor, .. } = &row.phase else { return true };
        match process::open(supervisor, self.store.boot()) {
            Ok(Some(fd)) => matches!(process::readable(&[fd.as_fd()], deadline), Ok(Some(_))),
            Ok(None) => true,
            // It cannot be watched: the caller reconciles the pod after the deadline.
            Err(_) => {
                let _waited = process::readable(&[], deadline);
                false
            }
        }
    }

    fn check_logs(&self, row: &PodRow, findings: &mut Vec<Finding>) {
        for app in &row.apps {
            let dir = LogDir::of_app(&self.pod_dir(row.id), row, &app.name);
            if !ends_in_a_whole_line(dir).unwrap_or(true) {
                let what = format!("the log of app '{}' of pod {} does not end in a whole line", app.name, row.id);
                warn(findings, what, "its supervisor was killed, or the disk was full; nothing needs to be done");
            }
        }
    }
}

fn check_status(id: PodId, status: &Status, findings: &mut Vec<Finding>) {
    if status.log_bytes_dropped > 0 {
        let what = format!("pod {id} dropped {} bytes of its apps' output", status.log_bytes_dropped);
        warn(findings, what, "free space where the data directory is");
    }
}
