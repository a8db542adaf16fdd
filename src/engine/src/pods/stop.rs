//! `stop`: the stop signal, the grace period, SIGKILL. A supervisor that does not act is killed, which kills the pod's
//! PID 1 and with it every process of the pod. One that has closed its control socket detaches the networks, and gets
//! the time that their plugins may take.

use std::time::Duration;

use gantry_contract::control::{Reply, Request};
use gantry_host::cgroup::has_processes;
use gantry_model::restart::StopRequest;
use gantry_model::{ErrorKind, Kind, Phase, PhaseName, PodId};
use thiserror::Error;

use crate::error::need_root;
use crate::host::lock_holder::LockHolder;
use crate::host::process::{self, Deadline, StoppedProcess};
use crate::pods::app_add::CREATE_TIMEOUT;
use crate::pods::control::ControlError;
use crate::pods::restart::{START_TIMEOUT, has_restart_policy};
use crate::pods::transition::cannot_be_written;
use crate::pods::view::PodView;
use crate::{Engine, PodError};

/// The time a supervisor may take beyond the grace period: to kill, to drain pipes, to write its journal.
const SLACK: Duration = Duration::from_secs(5);
/// The timeout of connecting to a supervisor that may have closed its control socket.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// A pod could not be stopped.
#[derive(Debug, Error)]
pub enum StopError {
    /// It was never started.
    #[error("pod {id} is {phase} and does not run: remove it with 'gantry rm {id}'")]
    NotStarted {
        /// The pod.
        id: PodId,
        /// Its phase.
        phase: PhaseName,
    },
    /// Another process starts it, and does not finish.
    #[error("pod {0} is being started by another process: try again later, or kill that process")]
    Busy(PodId),
    /// The pod does not end.
    #[error("pod {0} does not end after its supervisor was killed: a process of it is stuck in the kernel")]
    Stuck(PodId),
    /// It has ended, and another process still holds its directory.
    #[error(
        "pod {id} has ended, but process {pid} ('{command}') still holds its directory: {}",
        need(stopped.as_ref())
    )]
    Held {
        /// The pod.
        id: PodId,
        /// The process.
        pid: u32,
        /// The name of its command.
        command: String,
        /// That it is stopped, if it is, such as the command that started the pod.
        stopped: Option<StoppedProcess>,
    },
    /// Its supervisor cannot be killed.
    #[error("cannot kill the supervisor of pod {id}")]
    Kill {
        /// The pod.
        id: PodId,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The pod could not be read.
    #[error(transparent)]
    Pod(#[from] PodError),
}

/// What a process that holds the directory of a pod needs to release it.
fn need(stopped: Option<&StoppedProcess>) -> String {
    stopped.map_or_else(|| "try again when it has finished".to_owned(), ToString::to_string)
}

impl Kind for StopError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotStarted { .. } => ErrorKind::Refused,
            Self::Busy(_) | Self::Held { .. } => ErrorKind::Busy,
            Self::Stuck(_) => ErrorKind::TimedOut,
            Self::Kill { source, .. } => ErrorKind::of_io(source),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// A stopped pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// The pod as it ended.
    pub view: PodView,
    /// It had ended before the call.
    pub already: bool,
    /// Its supervisor did not react and was killed.
    pub escalated: bool,
    /// Why its end could not be recorded, if that failed: the disk is full or read-only.
    pub unwritten: Option<String>,
}

impl Engine {
    /// Stops a pod, with SIGKILL after the grace period, and waits for its end.
    ///
    /// # Errors
    /// [`StopError`].
    pub fn stop(&self, id: PodId, grace: Duration) -> Result<Stopped, StopError> {
        self.stop_for(id, grace, StopRequest::UntilStarted)
    }

    /// Stops a pod as [`Self::stop`] does, because the host is being shut down: if an app of it has a restart policy,
    /// gantryd starts the pod again when the host has been started again.
    ///
    /// # Errors
    /// [`StopError`].
    pub fn stop_until_boot(&self, id: PodId, grace: Duration) -> Result<Stopped, StopError> {
        self.stop_for(id, grace, StopRequest::UntilBoot)
    }

    fn stop_for(&self, id: PodId, grace: Duration, request: StopRequest) -> Result<Stopped, StopError> {
        need_root("stop a pod")?;
        self.row_writes.forget_failure();
        let mut row = self.reconcile_pod(id)?;
        if matches!(row.phase, Phase::Starting { .. }) {
            // A failed start is not repeated.
            self.record_stop_request(row, request)?;
            // A forced stop does not hold its caller for as long.
            let limit = if grace.is_zero() { START_TIMEOUT } else { self.longest_start() };
            row = self.wait_for_start(id, Deadline::after(limit))?;
        }
        // From here on, whatever ends the pod, gantryd does not start it again.
        let row = match self.record_stop_request(row.clone(), request) {
            // The journal has the request, too, unless the supervisor does not react to it.
            Err(error) if cannot_be_written(&error) => row,
            recorded => recorded?,
        };
        let view = self.view(row);
        match &view.row.phase {
            Phase::Running { .. } => {}
            Phase::Starting { .. } => return Err(StopError::Busy(id)),
            phase if phase.is_final() => return Ok(self.stopped(view, true, false)),
            phase => return Err(StopError::NotStarted { id, phase: phase.name() }),
        }
        let (view, escalated) = self.end_running(&view, grace)?;
        if has_restart_policy(&view.row) && self.row_writes.failure().is_none() {
            // A power cut must not undo the request.
            self.store.make_durable().map_err(PodError::store)?;
        }
        Ok(self.stopped(view, false, escalated))
    }

    /// Ends a pod that runs: by its supervisor, or by killing that. Returns the pod as it ended, and whether its
    /// supervisor was killed.
    fn end_running(&self, view: &PodView, grace: Duration) -> Result<(PodView, bool), StopError> {
        let id = view.row.id;
        // The event is not worth a failure: what it announces follows.
        let _stops_without_event = self.store.record_stopping(id, None);
        let grace_ms = gantry_model::quantity::milliseconds(grace);
        // The cause of a failed request does not matter: the pod has ended, or its supervisor is killed below.
        let asked = matches!(self.ask(id, &Request::Stop { grace_ms }), Ok((Reply::Done, _)));
        let patience = if asked { grace.saturating_add(SLACK) } else { Duration::ZERO };
        let mut ended = self.wait_or_gone(view, patience)?;
        let is_alive = || view.supervisor().is_some_and(|supervisor| self.may_run(supervisor));
        if ended.is_none() && is_alive() && self.is_ending(id) {
            let limit = if self.has_network_record(id) { self.plugins_limit() } else { Duration::ZERO };
            ended = self.wait_or_gone(view, limit.saturating_add(SLACK))?;
        }
        let escalates = ended.is_none() && is_alive();
        if escalates {
            self.escalate(view)?;
        }
        if ended.is_none() {
            // Its lock is free when the process that records the end has finished.
            ended = self.wait_or_gone(view, SLACK)?;
        }
        ended.map(|ended| (ended, escalates)).ok_or_else(|| self.unended(view))
    }

    /// Why a pod is not recorded as ended whose supervisor was killed or has ended.
    fn unended(&self, view: &PodView) -> StopError {
        let id = view.row.id;
        let cgroups = self.pod_cgroups(&view.row.cgroup).unwrap_or_default();
        if view.supervisor().is_some_and(|supervisor| self.may_run(supervisor))
            || cgroups.iter().any(|cgroup| has_processes(cgroup))
        {
            return StopError::Stuck(id);
        }
        match self.find_lock_holder(id) {
            Some(LockHolder { pid, command, stopped }) => StopError::Held { id, pid, command, stopped },
            None => StopError::Stuck(id),
        }
    }

    /// The time after which a start has succeeded or failed: volumes may be filled, and plugins attach networks.
    fn longest_start(&self) -> Duration {
        CREATE_TIMEOUT.saturating_add(self.plugins_limit()).saturating_add(SLACK)
    }

    /// The pod when this run of it has ended, perhaps as another process starts it again; `before`, if it was removed
    /// in the meantime (`run --rm`).
    fn wait_or_gone(&self, before: &PodView, patience: Duration) -> Result<Option<PodView>, PodError> {
        match self.wait_until(before.row.id, Deadline::after(patience), |phase| *phase != before.row.phase) {
            Err(PodError::NotFound(_)) => Ok(Some(before.clone())),
            other => other,
        }
    }

    /// Whether the supervisor takes no more requests: its apps have ended, and it detaches the networks. If it were
    /// killed, the plugin that runs would be killed as well, and DEL begun anew.
    fn is_ending(&self, id: PodId) -> bool {
        let closed = |source: &std::io::Error| {
            matches!(source.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
        };
        // Without its directory, the socket may still be open.
        if !self.pod_dir(id).is_dir() {
            return false;
        }
        let connected = self.connect_within(id, CONNECT_TIMEOUT);
        matches!(connected, Err(ControlError::Connect { source, .. }) if closed(&source))
    }

    fn stopped(&self, view: PodView, already: bool, escalated: bool) -> Stopped {
        Stopped { view, already, escalated, unwritten: self.unwritten() }
    }

    fn escalate(&self, view: &PodView) -> Result<(), StopError> {
        let id = view.row.id;
        let failed = |source| StopError::Kill { id, source };
        let opened = view.supervisor().map(|supervisor| process::open(supervisor, self.store.boot()));
        if let Some(fd) = opened.transpose().map_err(failed)?.flatten() {
            process::kill(&fd).map_err(failed)?;
            process::readable(&[std::os::fd::AsFd::as_fd(&fd)], Deadline::after(SLACK)).map_err(failed)?;
        }
        Ok(())
    }
}
