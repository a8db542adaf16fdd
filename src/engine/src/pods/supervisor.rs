//! Starting a supervisor and reading its start reply.
//!
//! The supervisor gets the plan as stdin, a pipe for its start reply as stdout, a log file of the pod as stderr, and
//! the locked pod directory. The starter shares the lock until the start is recorded.
//!
//! The supervisor of a new pod may be spawned before the pod has a row and a plan ([`WaitingLaunch`]): it sets itself
//! up while the engine records the pod. It changes nothing before it has read the plan, and exits if it reads none.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gantry_contract::plan::Plan;
use gantry_contract::start::{Ready, StartReply};
use gantry_model::PodId;
use gantry_store::PodLock;
use rustix::pipe::PipeFlags;

use crate::Engine;
use crate::error::EngineError;
use crate::host::process::{self, Deadline};
use crate::host::stage1::{self, Attempt, Executable, Line};
use crate::pods::app_add::CREATE_TIMEOUT;
use crate::pods::output::{OutputStream, Show};
use crate::pods::pod_dir;
use crate::pods::run::StartError;

/// The time limit from the supervisor's start until its pod runs.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// The time limit of a start reply from its first byte to its last.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// The time a failed supervisor may take to end by itself.
const SELF_EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// The maximum length of a start reply, in bytes.
const MAX_REPLY: usize = 1 << 20;

/// The longest plan for which a supervisor is spawned before the plan is complete, in bytes. A new pipe holds twice as
/// much (pipe(7)), so that writing the plan does not wait.
const MAX_PIPED_PLAN: usize = 32 << 10;

/// A supervisor that was spawned and has not replied.
pub(crate) struct Spawned {
    id: PodId,
    pub(crate) child: Child,
    pub(crate) pidfd: OwnedFd,
    reply: OwnedFd,
    pub(crate) output: Option<OutputStream>,
}

pub(crate) fn attempt(id: PodId) -> Attempt {
    Attempt(format!("start pod {id}"))
}

/// A supervisor that waits for the plan of its new pod. When dropped, it exits.
pub(crate) struct WaitingSupervisor {
    spawned: Option<Spawned>,
    /// The writing end of its stdin.
    plan: Option<File>,
}

impl WaitingSupervisor {
    /// Passes on the plan, with which it starts the pod.
    pub(crate) fn start(mut self, plan: &Plan) -> io::Result<Spawned> {
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        let mut pipe = self.plan.take().ok_or_else(missing)?;
        match pipe.write_all(&serde_json::to_vec(plan)?) {
            // The supervisor has ended early: its reply or its log says why.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            other => other?,
        }
        drop(pipe);
        self.spawned.take().ok_or_else(missing)
    }
}

impl Drop for WaitingSupervisor {
    fn drop(&mut self) {
        // Without a plan it exits, and closes its handle of the lock.
        self.plan = None;
        if let Some(spawned) = &mut self.spawned {
            spawned.end();
        }
    }
}

/// What is needed to spawn a supervisor.
pub(crate) struct SupervisorLaunch {
    id: PodId,
    program: PathBuf,
    plan: File,
    log: File,
    lock: PodLock,
    show: Show,
    /// Both ends of the output's pipe.
    output: Option<(OutputStream, OwnedFd)>,
}

impl SupervisorLaunch {
    /// Spawns the supervisor. Returns when it executes its program.
    pub(crate) fn spawn(self) -> Result<Spawned, StartError> {
        self.execute().map(|(spawned, _mount)| spawned)
    }

    /// As [`Self::spawn`]. Also returns the mount that the supervisor was executed from. Closing it blocks for an RCU
    /// grace period.
    fn execute(self) -> Result<(Spawned, Option<OwnedFd>), StartError> {
        let Self { id, program, plan, log, lock, show, output } = self;
        let attempt = attempt(id);
        let (output, output_writer) = output.unzip();
        let executable = Executable::new(&program);
        let mut command = executable.command();
        command.arg("run").arg("--lock-fd").arg(lock.as_fd().as_raw_fd().to_string());
        if let Some(writer) = &output_writer {
            command.arg("--output-fd").arg(writer.as_raw_fd().to_string());
        }
        if let Show::Output { terminal_size: Some((rows, columns)) } = show {
            command.arg("--terminal-size").arg(format!("{rows}x{columns}"));
        }
        command
            .env_clear()
            .env("PATH", stage1::PATH)
            .env("HOME", "/root")
            .current_dir("/")
            .process_group(0)
            .stdin(plan)
            .stdout(Stdio::piped())
            .stderr(log);
        let handed_over: Vec<BorrowedFd<'_>> =
            [lock.as_fd()].into_iter().chain(output_writer.iter().map(AsFd::as_fd)).collect();
        let mut child = stage1::spawn_with(&handed_over, || command.spawn())
            .map_err(|error| attempt.io("hand over the lock", error))?
            .map_err(|error| attempt.io(&format!("execute {}", program.display()), error))?;
        // Close these copies. Then the supervisor's death ends the output. It also releases the lock, unless the
        // starter shares it.
        drop(handed_over);
        drop((lock, output_writer, command));
        let no_pipe = || io::Error::other("it has no standard output");
        match child.stdout.take().ok_or_else(no_pipe).and_then(|reply| Ok((reply, process::open_pid(child.id())?))) {
            Ok((reply, pidfd)) => {
                let spawned = Spawned { id, child, pidfd, reply: reply.into(), output };
                Ok((spawned, executable.into_mount()))
            }
            Err(source) => {
                let _ended_already = child.kill();
                let _reaped_already = child.wait();
                Err(attempt.io("watch the supervisor", source).into())
            }
        }
    }
}

/// What is needed to spawn the supervisor of a new pod whose plan is incomplete.
pub(crate) struct WaitingLaunch {
    launch: SupervisorLaunch,
    /// The writing end of its stdin.
    plan: File,
}

impl WaitingLaunch {
    /// Spawns the supervisor in a thread of its own while `beside` runs: a thread that spawns a program is suspended
    /// until the new process executes it (vfork).
    pub(crate) fn spawn_beside<T>(self, beside: impl FnOnce() -> T) -> (Result<WaitingSupervisor, StartError>, T) {
        const STACK: usize = 256 << 10;
        let Self { launch, plan } = self;
        let id = launch.id;
        let (sender, receiver) = mpsc::sync_channel(1);
        let spawning = thread::Builder::new().name("spawn".to_owned()).stack_size(STACK).spawn(move || {
            let (spawned, mount) = match launch.execute() {
                Ok((spawned, mount)) => (Ok(spawned), mount),
                Err(error) => (Err(error), None),
            };
            let _the_receiver_waits = sender.send(spawned);
            // Through this descriptor, an app with CAP_SYS_ADMIN could make the mount writable. It is closed long
            // before an app runs.
            drop(mount);
        });
        let done = beside();
        let spawned = spawning.and_then(|_detached| receiver.recv().map_err(io::Error::other));
        let spawned = spawned.map_err(|error| attempt(id).io("spawn its supervisor in a thread", error).into());
        let waiting = spawned.flatten().map(|spawned| WaitingSupervisor { spawned: Some(spawned), plan: Some(plan) });
        (waiting, done)
    }
}

impl Engine {
    /// Starts the supervisor of a pod whose plan is written. The supervisor then holds the lock: the pod is alive as
    /// long as the lock is held. If this process is killed right after, the pod runs and `reconcile` finds it.
    pub(crate) fn spawn(&self, id: PodId, dir: &Path, lock: PodLock, show: Show) -> Result<Spawned, StartError> {
        self.launch(id, dir, pod_dir::open_plan(dir)?, lock, show)?.spawn()
    }

    /// Prepares to spawn the supervisor of a new pod whose plan is incomplete.
    pub(crate) fn waiting_launch(&self, id: PodId, lock: PodLock, show: Show) -> Result<WaitingLaunch, StartError> {
        let piped = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).and_then(|(reader, writer)| {
            // A supervisor that does not read must not stop this process.
            rustix::io::ioctl_fionbio(&writer, true)?;
            Ok((File::from(reader), File::from(writer)))
        });
        let (reader, plan) = piped.map_err(|errno| attempt(id).io("make a pipe for its plan", errno.into()))?;
        Ok(WaitingLaunch { launch: self.launch(id, &self.pod_dir(id), reader, lock, show)?, plan })
    }

    /// Whether a supervisor can be spawned before this plan is complete.
    pub(crate) fn can_spawn_waiting(&self, plan: &Plan) -> bool {
        self.stage1().is_ok() && serde_json::to_vec(plan).is_ok_and(|plan| plan.len() <= MAX_PIPED_PLAN)
    }

    /// Prepares to spawn a supervisor with a plan, which may be another than that in the pod directory.
    pub(crate) fn launch(
        &self,
        id: PodId,
        dir: &Path,
        plan: File,
        lock: PodLock,
        show: Show,
    ) -> Result<SupervisorLaunch, StartError> {
        let attempt = attempt(id);
        let program = self.stage1().map_err(|places| attempt.missing(&places))?;
        let log = pod_dir::open_supervisor_log(dir)?;
        let output = match show {
            Show::No => None,
            Show::Output { .. } => {
                Some(OutputStream::new(id).map_err(|error| attempt.io("make a pipe for its output", error))?)
            }
        };
        Ok(SupervisorLaunch { id, program, plan, log, lock, show, output })
    }

    /// Waits for the start reply. On failure the supervisor is gone when this returns; the caller removes its cgroups.
    pub(crate) fn read_start_reply(&self, spawned: &mut Spawned) -> Result<Ready, EngineError> {
        let reply = self.read_reply(spawned);
        if reply.is_err() {
            spawned.end();
        }
        reply
    }

    /// Whether the supervisor may be filling volumes with files of the images.
    fn may_fill_volumes(&self, id: PodId) -> bool {
        self.plan(id).is_ok_and(|plan| plan.apps.iter().flat_map(|app| &app.mounts).any(|mount| mount.seed))
    }

    fn read_reply(&self, spawned: &Spawned) -> Result<Ready, EngineError> {
        let (id, attempt) = (spawned.id, attempt(spawned.id));
        let failed = |error| attempt.io("read the supervisor's reply", error);
        let mut timeout = READY_TIMEOUT;
        let replied = process::readable(&[spawned.reply.as_fd()], Deadline::after(timeout)).map_err(failed)?.is_some();
        if !replied && self.may_fill_volumes(id) {
            timeout = CREATE_TIMEOUT;
        }
        if !replied && self.has_network_record(id) {
            // Plugins have a limit of their own, and the supervisor reports which one exceeded it.
            timeout = timeout.saturating_add(self.plugins_limit());
        }
        let left = Deadline::after(timeout.saturating_sub(READY_TIMEOUT).max(REPLY_TIMEOUT));
        match stage1::read_line(&spawned.reply, left, MAX_REPLY).map_err(failed)? {
            Line::Late => {
                let seconds = timeout.as_secs();
                Err(attempt.timed_out(&format!("its supervisor was not ready within {seconds} s and was killed")))
            }
            Line::Ended => Err(attempt.silent(&self.supervisor_said(id))),
            Line::Whole(bytes) => match serde_json::from_slice(&bytes) {
                Ok(StartReply::Ready(ready)) => Ok(ready),
                Ok(StartReply::Failed(failure)) => Err(attempt.failed(&failure)),
                Err(error) => Err(attempt.not_understood(Some(error))),
            },
        }
    }
}

impl Spawned {
    pub(crate) fn into_parts(self) -> (PodId, Child, OwnedFd, Option<OutputStream>) {
        (self.id, self.child, self.pidfd, self.output)
    }

    /// Makes sure that the supervisor has ended, and reaps it. One that failed ends by itself.
    pub(crate) fn end(&mut self) {
        process::end_child(&mut self.child, SELF_EXIT_TIMEOUT);
    }
}
