//! `run` and `start`: from a pod on disk to one that runs.
//!
//! `run` spawns the supervisor as soon as the row is there that protects the images, and writes the rest while the
//! supervisor works; the row stays Embryo or Preparing until the pod is ready, so that a `kill -9` of `run` leaves either a dead
//! preparation or a running pod (see the table in [`crate::pods::reconcile`]). It syncs nothing: a reboot ends the pod anyway.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Child;

use gantry_contract::files;
use gantry_contract::up::Ready;
use gantry_model::error::messages;
use gantry_model::{Edge, ErrorKind, Kind, NetMode, Phase, PodId};
use gantry_store::{Change, PodRow};
use thiserror::Error;

use crate::error::need_root;
use crate::pods::output::{OutputStream, Show};
use crate::pods::plan_net::{self, PortError};
use crate::pods::pod_dir;
use crate::pods::prepare::{Made, Prepare, PrepareError};
use crate::pods::supervisor::{Spawned, SupervisorError};
use crate::pods::wait::EndWatch;
use crate::{Engine, NetworkError, PodError};

/// The most bytes that are kept of why a pod could not be started.
const MAX_REASON: usize = 1024;

/// A prepared pod could not be started. It stays prepared.
#[derive(Debug, Error)]
pub enum StartError {
    /// It is not prepared.
    #[error("pod {id} is {phase} and cannot be started: only a prepared pod can, and only once")]
    NotPrepared {
        /// Which pod.
        id: PodId,
        /// Where it stands.
        phase: &'static str,
    },
    /// Ports were asked for when it was prepared, and now a network that has none.
    #[error("pod {id} was prepared with ports and cannot be started with this network")]
    Port {
        /// Which pod.
        id: PodId,
        /// Why.
        #[source]
        source: PortError,
    },
    /// Somebody else is at it.
    #[error("pod {0} is being started or removed by somebody else")]
    Busy(PodId),
    /// The supervisor.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The pod could not be looked at.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for StartError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NotPrepared { .. } => ErrorKind::Refused,
            Self::Busy(_) => ErrorKind::Busy,
            Self::Port { source, .. } => source.kind(),
            Self::Supervisor(error) => error.kind(),
            Self::Pod(error) => error.kind(),
        }
    }
}

/// A pod could not be run.
#[derive(Debug, Error)]
pub enum RunError {
    /// It could not be prepared.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// Its networks cannot be had.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// It could not be started.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
}

impl From<PodError> for RunError {
    fn from(error: PodError) -> Self {
        Self::Prepare(error.into())
    }
}

impl Kind for RunError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Prepare(error) => error.kind(),
            Self::Network(error) => error.kind(),
            Self::Supervisor(error) => error.kind(),
        }
    }
}

/// How a pod is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOptions {
    /// Whether the caller shows what the apps write.
    pub show: Show,
    /// Whether it is removed as soon as it has ended, by whichever program notices that first.
    pub remove: bool,
}

/// A pod that was just started. Dropping it leaves the pod running.
#[derive(Debug)]
pub struct Running {
    /// Which pod.
    pub id: PodId,
    /// What its supervisor said.
    pub ready: Ready,
    /// What its apps write, if that was asked for.
    pub output: Option<OutputStream>,
    /// To wait for its end, if its output was asked for.
    pub end: Option<EndWatch>,
    pidfd: OwnedFd,
    child: Child,
}

impl Running {
    /// Waits for the supervisor's process to end and reaps it. `Engine::wait` tells how the pod ended.
    ///
    /// # Errors
    /// What the system says; that somebody else has reaped it is no failure.
    pub fn reap(&mut self) -> std::io::Result<()> {
        match self.child.wait() {
            Err(error) if error.raw_os_error() != Some(rustix::io::Errno::CHILD.raw_os_error()) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Drop for Running {
    /// A supervisor that has ended by now is not left as a zombie of a process that lives on.
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

impl Engine {
    /// Starts a prepared pod; `net` overrides the network it was prepared with.
    ///
    /// # Errors
    /// [`StartError`]; the pod stays prepared then, and what was started is gone.
    pub fn start(&self, id: PodId, net: Option<NetMode>, options: RunOptions) -> Result<Running, StartError> {
        need_root("start a pod")?;
        prepared(self.current(id)?)?;
        let lock = self.take_lock(id)?.ok_or(StartError::Busy(id))?;
        // Under the lock, what the row says stays true until we let go.
        let mut row = prepared(self.current_locked(id)?)?;
        let dir = self.pod_dir(id);
        row = self.settle_plan(row, net)?;
        pod_dir::forget_start(&dir)?;
        if options.remove {
            pod_dir::remove_when_ended(&dir)?;
        }
        // Of a start that failed, and could not be taken back then.
        self.network_down_or_leave(id);
        let mut spawned = self.spawn(id, &dir, lock, options.show)?;
        let ready = self.word(&mut spawned).inspect_err(|_| self.take_back_start(id))?;
        // Before the row says that it runs: from then on it can end and be removed at any time.
        let marked = self.watch_if(options.show, id).and_then(|end| Ok((self.mark_running(row, &ready)?, end)));
        match marked {
            Ok((_, end)) => Ok(running(spawned, ready, end)),
            Err(error) => {
                end_unknown(&mut spawned);
                self.take_back_start(id);
                Err(error.into())
            }
        }
    }

    /// Brings the networks of a prepared pod's plan to what is asked for now and to how they are run now. The plan first:
    /// killed in between, the next start finds what the row does not say and says it.
    pub(crate) fn settle_plan(&self, row: PodRow, net: Option<NetMode>) -> Result<PodRow, StartError> {
        let mut written = self.plan(row.id)?;
        let net = net.unwrap_or_else(|| plan_net::mode(&written.net));
        let host = plan_net::host(&self.options.network, self.store.layout());
        let settled = plan_net::net(&net, plan_net::ports_of(&written.net), host)
            .map_err(|source| StartError::Port { id: row.id, source })?;
        if settled != written.net {
            written.net = settled;
            pod_dir::write_plan(&self.pod_dir(row.id), &written)?;
        }
        if net == row.net {
            return Ok(row);
        }
        let changed = self.store.set_net(row.id, &net).map_err(PodError::store)?;
        changed.ok_or(StartError::Busy(row.id))
    }

    /// Prepares a pod and runs it.
    ///
    /// # Errors
    /// [`RunError`]. Nothing is left of the pod then; but one that was made and could not be started stays as an aborted
    /// preparation, with the reason, unless it is to be removed when it has ended.
    pub fn run(&self, mut request: Prepare<'_>, options: RunOptions) -> Result<Running, RunError> {
        self.settle_net(&mut request.spec);
        request.spec.net.as_ref().map_or(Ok(()), |net| self.check_choice(net))?;
        let made = self.make(&request)?;
        let id = made.id;
        self.run_made(made, &request, options).inspect_err(|error| match error {
            RunError::Supervisor(error) if !options.remove => self.abort(id, error),
            _ => self.undo(id),
        })
    }

    fn run_made(&self, made: Made, request: &Prepare<'_>, options: RunOptions) -> Result<Running, RunError> {
        let Made { id, dir, lock, row } = made;
        if options.remove {
            pod_dir::remove_when_ended(&dir)?;
        }
        let mut spawned = self.spawn(id, &dir, lock, options.show)?;
        // While the supervisor works. Whatever fails here, it is let go first: its word is always heard.
        let written = self.while_starting(&dir, row, request);
        let ready = self.word(&mut spawned)?;
        // Before the row says that it runs: from then on it can end and be removed at any time.
        let end = self.watch_if(options.show, id);
        match written.and_then(|row| Ok((end?, self.mark_running(row, &ready)?))) {
            Ok((end, Some(_))) => Ok(running(spawned, ready, end)),
            Ok((_, None)) => {
                end_unknown(&mut spawned);
                Err(PrepareError::Gone(id).into())
            }
            Err(error) => {
                end_unknown(&mut spawned);
                Err(error)
            }
        }
    }

    /// Gives up a pod whose supervisor could not start it. What cannot be done now is left to the next look: its lock is
    /// free and its journal does not say ready.
    fn abort(&self, id: PodId, error: &SupervisorError) {
        let Ok(Some(_lock)) = self.take_lock(id) else { return };
        self.remove_leftovers(id);
        let _its_journal_says_nothing_of_use = pod_dir::forget_start(&self.pod_dir(id));
        let Ok(row) = self.current_locked(id) else { return };
        let mut reason = messages(error).join(": ");
        reason.truncate(reason.floor_char_boundary(MAX_REASON));
        let change = Change { failure: Some(reason), ..Change::along(Edge::Aborted(gantry_store::now())) };
        let _seen_as_aborted_by_the_next_look = self.step(&row, change);
    }

    fn while_starting(&self, dir: &std::path::Path, row: PodRow, request: &Prepare<'_>) -> Result<PodRow, RunError> {
        pod_dir::write_manifest(dir, &request.spec)?;
        Ok(self.to_preparing(row)?)
    }

    fn watch_if(&self, show: Show, id: PodId) -> Result<Option<EndWatch>, PodError> {
        match show {
            Show::No => Ok(None),
            Show::Output { .. } => self.watch_end(id).map(Some),
        }
    }

    /// After a failed start: the cgroups and networks go, and the socket and journal of what never ran. Under the lock, for the
    /// next start may have begun; who cannot have it leaves all this to that one.
    fn take_back_start(&self, id: PodId) {
        if let Ok(Some(_lock)) = self.take_lock(id) {
            self.remove_leftovers(id);
            let _tried_again_at_the_next_start = pod_dir::forget_start(&self.pod_dir(id));
        }
    }

    /// The row as it is, for the holder of the lock (probing it would find our own).
    fn current_locked(&self, id: PodId) -> Result<PodRow, PodError> {
        self.store.pod(id).map_err(PodError::store)?.ok_or_else(|| PodError::NotFound(id.into()))
    }

    /// Where the supervisor's stderr of a pod is kept.
    #[must_use]
    pub fn supervisor_log(&self, id: PodId) -> std::path::PathBuf {
        self.pod_dir(id).join(files::SUPERVISOR_LOG)
    }
}

/// The pod runs but its row cannot say so: it is ended, so that nothing runs that nobody knows of.
fn end_unknown(spawned: &mut Spawned) {
    let _ends_with_its_supervisor = crate::host::process::kill(&spawned.pidfd);
    spawned.end();
}

fn prepared(row: PodRow) -> Result<PodRow, StartError> {
    match row.phase {
        Phase::Prepared { .. } => Ok(row),
        ref other => Err(StartError::NotPrepared { id: row.id, phase: other.name() }),
    }
}

fn running(spawned: Spawned, ready: Ready, end: Option<EndWatch>) -> Running {
    let (id, child, pidfd, output) = spawned.into_parts();
    Running { id, ready, output, end, pidfd, child }
}
