//! Starting a pod: [`Embryo::start`] for a new one (`run`), [`Engine::start`] for a prepared one (`run-prepared`).
//!
//! `run` spawns the supervisor while the row is inserted, which protects the images, and writes the rest while the
//! supervisor works.
//! The row stays Embryo or Preparing until the pod is ready, so that a `kill -9` of `run` leaves either a dead
//! preparation or a running pod (see the table in [`crate::pods::reconcile`]). It syncs nothing: a reboot ends the pod
//! anyway.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;

use gantry_contract::files;
use gantry_contract::plan::Plan;
use gantry_contract::start::Ready;
use gantry_host::file_id::FileId;
use gantry_model::error::chain;
use gantry_model::{Edge, ErrorKind, Kind, NetMode, Phase, PhaseName, PodId};
use gantry_store::{Change, PodLock, PodRow, PodState};
use thiserror::Error;

use crate::error::need_root;
use crate::host::process::{self, Deadline};
use crate::pods::output::{OutputStream, Show};
use crate::pods::plan::PlanError;
use crate::pods::plan_net;
use crate::pods::pod_dir;
use crate::pods::prepare::{Embryo, EmbryoOwner, EmbryoParts};
use crate::pods::restart::has_restart_policy;
use crate::pods::storage_limit;
use crate::pods::supervisor::{self, Spawned};
use crate::pods::wait::EndWatch;
use crate::{Engine, EngineError, PodError};

/// The maximum length of the recorded reason of a failed start, in bytes.
pub(crate) const MAX_REASON: usize = 1024;

/// A pod could not be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// It is not prepared.
    #[error("pod {id} is {phase}, not prepared: 'gantry start {id}' starts a pod that has exited")]
    NotPrepared {
        /// The pod.
        id: PodId,
        /// Its phase.
        phase: PhaseName,
    },
    /// It is neither prepared nor exited.
    #[error("pod {id} is {phase} and cannot be started: only a prepared or exited pod can")]
    NotStartable {
        /// The pod.
        id: PodId,
        /// Its phase.
        phase: PhaseName,
    },
    /// It was run with `--rm`, and is removed.
    #[error("pod {0} was run with --rm and is being removed: it cannot be started again")]
    Removed(PodId),
    /// It is the sandbox of a kubelet, and has ended.
    #[error("pod {0} is a sandbox of Kubernetes and cannot be started again: its kubelet makes another one")]
    KubeletSandbox(PodId),
    /// It has no apps any more.
    #[error("pod {0} has no apps and cannot be started again: remove it with 'gantry rm {0}'")]
    NoApps(PodId),
    /// Its directory was removed or moved away.
    #[error("pod {0} has no directory and cannot be started: put it back, or remove the pod with 'gantry rm {0}'")]
    NoDirectory(PodId),
    /// This data directory is a copy of the one in which it was prepared, or was moved.
    #[error(
        "pod {id} was prepared in {} and can only be started there: prepare it again, or move the data directory back",
        .other.display()
    )]
    PreparedElsewhere {
        /// The pod.
        id: PodId,
        /// Its directory, which its plan names.
        other: PathBuf,
    },
    /// It was prepared with published ports, which the requested network does not support.
    #[error("pod {id} was prepared with ports and cannot be started with this network")]
    Port {
        /// The pod.
        id: PodId,
        /// The cause.
        #[source]
        source: PlanError,
    },
    /// Another process is starting or removing it.
    #[error("pod {0} is being started or removed by another process")]
    Busy(PodId),
    /// The supervisor could not start it.
    #[error(transparent)]
    Supervisor(#[from] EngineError),
    /// The pod could not be read.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for StartError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotPrepared { .. }
            | Self::NotStartable { .. }
            | Self::Removed(_)
            | Self::KubeletSandbox(_)
            | Self::NoApps(_)
            | Self::NoDirectory(_)
            | Self::PreparedElsewhere { .. } => ErrorKind::Refused,
            Self::Busy(_) => ErrorKind::Busy,
            Self::Port { source, .. } => source.kind(),
            Self::Supervisor(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// Options of a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOptions {
    /// Whether the caller shows the apps' output.
    pub show: Show,
    /// Whether the pod is removed as soon as it has ended, by the first process that notices.
    pub remove: bool,
}

/// A pod that was just started. Dropping it leaves the pod running.
#[derive(Debug)]
pub struct Running {
    /// The pod.
    pub id: PodId,
    /// The supervisor's start reply.
    pub ready: Ready,
    /// The apps' output, if requested.
    pub output: Option<OutputStream>,
    /// To wait for its end, if its output was requested.
    pub end: Option<EndWatch>,
    pidfd: OwnedFd,
    child: Child,
}

impl Running {
    /// Whether the supervisor's process has ended. Dropping this reaps it then.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        let now = Deadline::after(std::time::Duration::ZERO);
        !matches!(process::readable(&[self.pidfd.as_fd()], now), Ok(None))
    }

    /// Waits for the supervisor's process to end and reaps it. `Engine::wait` reports how the pod ended.
    ///
    /// # Errors
    /// waitpid(2) failed. A process that was reaped already is no failure.
    pub fn reap(&mut self) -> std::io::Result<()> {
        match self.child.wait() {
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::CHILD.raw_os_error()) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Running {
    /// Reaps a supervisor that has ended, so that no zombie is left.
    fn drop(&mut self) {
        let _still_running_or_reaped = self.child.try_wait();
    }
}

impl AsFd for Running {
    /// Readable when the supervisor has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Embryo<'_> {
    /// Starts the pod with the options of its request.
    ///
    /// # Errors
    /// [`StartError`]. A pod whose supervisor could not start it stays as an aborted preparation, with the reason,
    /// unless it is to be removed when it has ended. After any other failure nothing is left of it.
    pub fn start(self) -> Result<Running, StartError> {
        let Self { engine, parts, undo } = self;
        let (id, options) = (parts.row.id, parts.options);
        let started = engine.start_embryo(parts);
        match &started {
            Ok(_) => undo.disarm(),
            Err(StartError::Supervisor(error)) if !options.remove => {
                engine.abort_start(id, error);
                undo.disarm();
            }
            Err(_) => drop(undo),
        }
        started
    }
}

impl Engine {
    /// Starts a prepared pod; `net` overrides the network it was prepared with.
    ///
    /// # Errors
    /// [`StartError`]; then the pod stays prepared, and the processes of the start are gone.
    pub fn start(&self, id: PodId, net: Option<NetMode>, options: RunOptions) -> Result<Running, StartError> {
        need_root("start a pod")?;
        prepared(self.reconcile_pod(id)?)?;
        let lock = self.lock_to_start(id)?;
        let shared = self.share_lock(id, &lock)?;
        // Under the lock the row stays true.
        let row = prepared(self.row_under_lock(id)?)?;
        let plan = self.plan_to_start(&row)?;
        let dir = self.pod_dir(id);
        let (row, plan) = self.resolve_plan(row, plan, net)?;
        storage_limit::check_limits(&dir, &plan.apps)?;
        pod_dir::forget_start(&dir)?;
        if options.remove {
            pod_dir::remove_when_ended(&dir)?;
        }
        // The leftovers of a failed start.
        self.network_down_or_leave(id);
        let mut spawned = self.spawn(id, &dir, lock, options.show)?;
        let ready = self.read_start_reply(&mut spawned).inspect_err(|_| self.clean_up_failed_start(id, &shared))?;
        // Opened before the row says Running: from then on the pod can end and be removed at any time.
        let marked =
            self.watch_end_if_shown(options.show, &row).and_then(|end| Ok((self.mark_running(row, &ready)?, end)));
        match marked {
            Ok((_, end)) => Ok(running(spawned, ready, end)),
            Err(error) => {
                kill_unrecorded(&mut spawned);
                self.clean_up_failed_start(id, &shared);
                Err(error.into())
            }
        }
    }

    /// Takes the lock of a pod that is to be started.
    pub(crate) fn lock_to_start(&self, id: PodId) -> Result<PodLock, StartError> {
        match self.lock_in_time(id)? {
            PodState::Free(lock) => Ok(lock),
            PodState::Held => Err(StartError::Busy(id)),
            PodState::Absent => match self.store.pod(id).map_err(PodError::from)?.map(|row| row.phase) {
                None => Err(PodError::NotFound(id.into()).into()),
                // A removal records this before it moves the directory away.
                Some(phase @ Phase::Garbage { .. }) => Err(StartError::NotStartable { id, phase: phase.name() }),
                Some(_) => Err(StartError::NoDirectory(id)),
            },
        }
    }

    /// The plan of a pod whose lock the caller holds and which is to be started. Fails, and changes nothing, if it runs
    /// from, or was prepared in, another data directory.
    pub(crate) fn plan_to_start(&self, row: &PodRow) -> Result<Plan, StartError> {
        self.check_runs_nowhere_else(row.id, &row.cgroup)?;
        let plan = self.plan(row.id)?;
        self.check_prepared_here(row.id, &plan)?;
        Ok(plan)
    }

    /// Fails unless the plan is of this data directory. All of its paths are absolute: a supervisor would use the files
    /// of another one, without the lock there.
    fn check_prepared_here(&self, id: PodId, plan: &Plan) -> Result<(), StartError> {
        let (own, other) = (self.pod_dir(id), PathBuf::from(&plan.pod_dir));
        // The same directory can have several paths: by a link, or a bind mount.
        let is_same = || FileId::of_path(&other).is_ok_and(|other| FileId::of_path(&own).is_ok_and(|own| own == other));
        match own == other || is_same() {
            true => Ok(()),
            false => Err(StartError::PreparedElsewhere { id, other }),
        }
    }

    /// Updates the networks in a pod's plan to `net` and to the present configuration. The plan is written first:
    /// killed in between, the next start finds the row behind the plan and updates it. Returns both.
    pub(crate) fn resolve_plan(
        &self,
        row: PodRow,
        mut written: Plan,
        net: Option<NetMode>,
    ) -> Result<(PodRow, Plan), StartError> {
        let net = net.unwrap_or_else(|| plan_net::mode(&written.net));
        if written.user_ids.is_some() && net == NetMode::Host {
            let why = "--net=host cannot be combined with a user namespace of the pod's own";
            return Err(StartError::Supervisor(EngineError::new(ErrorKind::Invalid, why.to_owned())));
        }
        let host = plan_net::host(&self.options.network, self.store.layout());
        let mut resolved = plan_net::net(&net, plan_net::ports_of(&written.net), host)
            .map_err(|source| StartError::Port { id: row.id, source })?;
        plan_net::keep_given(&written.net, &mut resolved);
        if resolved != written.net {
            written.net = resolved;
            pod_dir::replace_plan(&self.pod_dir(row.id), &written)?;
        }
        if net == row.net {
            return Ok((row, written));
        }
        let changed = self.store.set_net(row.id, &net).map_err(PodError::store)?;
        changed.map(|row| (row, written)).ok_or(StartError::Busy(row.id))
    }

    /// Starts the supervisor of a new pod, and completes the pod's files and row while it works.
    fn start_embryo(&self, embryo: EmbryoParts) -> Result<Running, StartError> {
        let EmbryoParts { row, spec, plan, owner, options } = embryo;
        let (id, dir) = (row.id, self.pod_dir(row.id));
        pod_dir::fill(&dir, &plan)?;
        let mut spawned = match owner {
            EmbryoOwner::Engine(lock) => self.spawn(id, &dir, lock, options.show)?,
            EmbryoOwner::Supervisor(waiting) => {
                waiting.start(&plan).map_err(|error| supervisor::attempt(id).io("pass on the plan", error))?
            }
        };
        // Read the start reply whatever fails here: the supervisor is never left running unobserved.
        let written = pod_dir::write_manifest(&dir, &spec)
            .and_then(|()| self.step(&row, Change::along(Edge::Prepare)))
            .map_err(StartError::from)
            .and_then(|row| row.ok_or(StartError::Busy(id)))
            .and_then(|row| match has_restart_policy(&row) {
                true => pod_dir::sync(&dir).map(|()| row).map_err(StartError::from),
                false => Ok(row),
            });
        if options.remove {
            self.store.compile_removal();
        }
        let ready = self.read_start_reply(&mut spawned)?;
        // Opened before the row says Running: from then on the pod can end and be removed at any time.
        let end = self.watch_end_if_shown(options.show, &row);
        match written.and_then(|row| Ok((end?, self.mark_running(row, &ready)?))) {
            Ok((end, Some(_))) => Ok(running(spawned, ready, end)),
            Ok((_, None)) => {
                kill_unrecorded(&mut spawned);
                Err(StartError::Busy(id))
            }
            Err(error) => {
                kill_unrecorded(&mut spawned);
                Err(error)
            }
        }
    }

    /// Records that a supervisor could not start its pod, and why. The caller holds the lock. Failures here are left to
    /// `reconcile`, which finds a free lock and no ready record in the journal.
    fn abort_start(&self, id: PodId, error: &EngineError) {
        let _superseded_by_the_row = pod_dir::forget_start(&self.pod_dir(id));
        // `abort` removes the leftovers. Without a row, only gc would.
        let Ok(row) = self.row_under_lock(id) else { return self.remove_leftovers(id, &self.recorded_cgroup(id)) };
        let _left_to_reconcile = self.abort(&row, Some(failure_reason(error)));
    }

    pub(crate) fn watch_end_if_shown(&self, show: Show, row: &PodRow) -> Result<Option<EndWatch>, PodError> {
        match show {
            Show::No => Ok(None),
            Show::Output { .. } => self.watch_end_of(row.id, row.sandbox).map(Some),
        }
    }

    /// After a failed start of a prepared pod: removes the cgroups and networks, the socket and the journal. The next
    /// start does so before it spawns. Needs the lock, which the supervisor of a pod of `run-prepared --rm` unlocks
    /// when the pod has run and ended.
    fn clean_up_failed_start(&self, id: PodId, shared: &PodLock) {
        if shared.retake() {
            self.remove_leftovers(id, &self.recorded_cgroup(id));
            let _retried_by_the_next_start = pod_dir::forget_start(&self.pod_dir(id));
        }
    }

    /// The row as stored, for the holder of the lock (reconciling would find the lock held).
    pub(crate) fn row_under_lock(&self, id: PodId) -> Result<PodRow, PodError> {
        self.store.pod(id)?.ok_or_else(|| PodError::NotFound(id.into()))
    }

    /// The log with the stderr of a pod's supervisor.
    #[must_use]
    pub fn supervisor_log(&self, id: PodId) -> std::path::PathBuf {
        self.pod_dir(id).join(files::SUPERVISOR_LOG)
    }
}

/// The cause of a failed start, as recorded.
pub(crate) fn failure_reason(error: &dyn std::error::Error) -> String {
    let mut reason = chain(error);
    reason.truncate(reason.floor_char_boundary(MAX_REASON));
    reason
}

/// Kills a pod whose row could not be moved to Running: every running pod is recorded in the store.
pub(crate) fn kill_unrecorded(spawned: &mut Spawned) {
    let _ends_with_its_supervisor = crate::host::process::kill(&spawned.pidfd);
    spawned.end();
}

fn prepared(row: PodRow) -> Result<PodRow, StartError> {
    match row.phase {
        Phase::Prepared { .. } => Ok(row),
        ref other => Err(StartError::NotPrepared { id: row.id, phase: other.name() }),
    }
}

pub(crate) fn running(spawned: Spawned, ready: Ready, end: Option<EndWatch>) -> Running {
    let (id, child, pidfd, output) = spawned.into_parts();
    Running { id, ready, output, end, pidfd, child }
}
