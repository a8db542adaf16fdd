//! `runtime.Runtime`: runs a command to its end. It ends with its call, also when gantryd is killed
//! (`gantry_engine::CommandOwner`).

use std::sync::Arc;
use std::time::Duration;

use gantry_engine::{
    CapturedOutput, CapturedStream, CommandOwner, Engine, Options, OutputError, RunningPod, StartedCommand,
};
use gantry_model::error::messages;
use gantry_model::host_command::{COMMENT_ANNOTATION, host_command_spec};
use gantry_model::schedule::validate_comment;
use gantry_model::spec::SpecError;
use gantry_model::{AppEnd, AppOutcome, ErrorKind, Kind as _, PodId, PodSpec, split_command};
use gantry_proto::aurae::meta::{AuraeMeta, ProcessMeta, Status as ExecutableState};
use gantry_proto::aurae::runtime::runtime_server::Runtime;
use gantry_proto::aurae::runtime::{Executable, ExecutableStatus};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};
use tracing::warn;

use super::outcome::describe_outcome;
use crate::audit::CallNotes;
use crate::bridge::{Bridge, Weight};
use crate::context::Context;
use crate::peer::Peer;
use crate::status;

/// Maximum commands at a time. Each has a thread that reads its output.
const MAX_COMMANDS: usize = 256;
/// Maximum pods of ended commands that are removed at a time.
const MAX_REMOVALS: usize = 2;
/// Maximum bytes of each output stream in a reply. Both together stay below 4 MiB, the limit of old clients.
const MAX_OUTPUT: usize = 1 << 20;
/// The time between the stop signal and SIGKILL when a call is cancelled.
const GRACE: Duration = Duration::from_secs(10);
/// The text of fields without a value, as Aurae has it.
const NOTHING: &str = "-";

/// See the module.
pub(super) struct RuntimeService {
    context: Arc<Context>,
    writer: Arc<Bridge<Engine>>,
    commands: Arc<Semaphore>,
    /// Few pods are removed at a time, so that removals do not delay the commands that start and end.
    removals: Arc<Semaphore>,
}

impl RuntimeService {
    /// The service of a server.
    pub(super) fn new(context: Arc<Context>, writer: Arc<Bridge<Engine>>) -> Self {
        Self {
            context,
            writer,
            commands: Arc::new(Semaphore::new(MAX_COMMANDS)),
            removals: Arc::new(Semaphore::new(MAX_REMOVALS)),
        }
    }

    /// Runs the command of a pod. `Err` within `Ok`: its program cannot be executed.
    async fn run(&self, peer: Peer, spec: PodSpec) -> Result<Result<FinishedCommand, String>, Status> {
        let permit = Arc::clone(&self.commands).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!("{MAX_COMMANDS} commands run already: try again when one has ended"))
        })?;
        let options = self.context.config.settings.current().options.clone();
        let start = move |engine: &Engine| start_command(engine, spec, options, permit);
        let (guard, started) = match self.writer.call(peer, Weight::Start, start).await? {
            Ok(started) => started,
            Err(text) => return Ok(Err(text)),
        };
        let capture = tokio::task::spawn_blocking(move || started.capture());
        let captured = tokio::select! {
            captured = capture => captured,
            // The guard ends the command.
            () = self.context.drained() => return Err(status::draining()),
        };
        let captured = captured.map_err(|error| Status::internal(format!("cannot read the output: {error}")))?;
        let CapturedCommand { pid, output } = captured.map_err(|error| status::from_error(&error))?;
        let id = guard.id;
        let end = move |engine: &Engine| engine.command_end(id).map_err(|error| status::from_error(&error));
        // The result counts, however many calls wait.
        let end = self.writer.call_for_stream(Weight::Light, end).await?;
        tokio::spawn(remove(Arc::clone(&self.writer), Arc::clone(&self.removals), guard));
        Ok(Ok(FinishedCommand { pid, output, end }))
    }
}

#[tonic::async_trait]
impl Runtime for RuntimeService {
    async fn exec(&self, request: Request<Executable>) -> Result<Response<ExecutableStatus>, Status> {
        let (_, extensions, executable) = request.into_parts();
        CallNotes::set_request(&extensions, &executable);
        let invalid = |error: SpecError| status::invalid_field("command", &error.to_string());
        let Executable { meta, command, comment } = executable;
        let words = split_command(&command).map_err(invalid)?;
        let mut spec = host_command_spec(&command, words).map_err(invalid)?;
        validate_comment(&comment).map_err(|error| status::invalid_field("comment", &error.to_string()))?;
        if !comment.is_empty() {
            spec.user_annotations.insert(COMMENT_ANNOTATION.to_owned(), comment);
        }
        let name = meta.map(|meta| meta.name).filter(|name| !name.is_empty()).unwrap_or(command);
        let reply = match self.run(Peer::of(&extensions), spec).await? {
            Ok(finished) => finished.into_status(name),
            Err(text) => not_started(name, text),
        };
        Ok(Response::new(reply))
    }
}

/// Removes the pod of a command that has ended. The reply does not wait for it: deleting files takes longer than
/// running a short command.
async fn remove(writer: Arc<Bridge<Engine>>, removals: Arc<Semaphore>, guard: CommandGuard) {
    // It fails only if the semaphore is closed, which does not happen.
    let _turn = removals.acquire().await;
    let id = guard.id;
    let remove = move |engine: &Engine| engine.rm(id, RunningPod::Stop).map_err(|error| status::from_error(&error));
    match writer.call_for_stream(Weight::Stop, remove).await {
        Ok(()) => guard.disarm(),
        // The guard tries again, and then the garbage collection.
        Err(error) => warn!("cannot remove pod {id}: {}", error.message()),
    }
}

/// A command that has ended.
struct FinishedCommand {
    pid: i32,
    output: CapturedOutput,
    /// `None`: not recorded, because its supervisor was killed.
    end: Option<AppEnd>,
}

impl FinishedCommand {
    fn into_status(self, name: String) -> ExecutableStatus {
        let Self { pid, output: CapturedOutput { stdout, stderr }, end } = self;
        let outcome = end.map_or(AppOutcome::Lost, |end| end.how);
        let state = match outcome {
            AppOutcome::Exited(_) | AppOutcome::Signaled(_) => ExecutableState::Complete,
            AppOutcome::Lost => ExecutableState::Error,
        };
        let (stdout, stdout_cut) = text("stdout", stdout);
        let (stderr, stderr_cut) = text("stderr", stderr);
        let cuts: Vec<String> = stdout_cut.into_iter().chain(stderr_cut).collect();
        let message = if cuts.is_empty() { NOTHING.to_owned() } else { cuts.join("; ") };
        ExecutableStatus {
            meta: Some(AuraeMeta { name, message }),
            proc: Some(ProcessMeta { pid }),
            status: state.into(),
            stdout,
            stderr,
            exit_code: describe_outcome(outcome),
        }
    }
}

/// The reply for a command that cannot be executed. The call itself succeeds, because clients only read the message.
fn not_started(name: String, message: String) -> ExecutableStatus {
    ExecutableStatus {
        meta: Some(AuraeMeta { name, message }),
        proc: Some(ProcessMeta { pid: -1 }),
        status: ExecutableState::Error.into(),
        stdout: NOTHING.to_owned(),
        stderr: NOTHING.to_owned(),
        exit_code: NOTHING.to_owned(),
    }
}

/// The text of a stream, and a remark if it was cut. Bytes that are not UTF-8 are replaced, which makes it longer.
fn text(name: &str, stream: CapturedStream) -> (String, Option<String>) {
    let mut text = String::from_utf8_lossy(&stream.bytes).into_owned();
    let cut = stream.cut || text.len() > MAX_OUTPUT;
    text.truncate(text.floor_char_boundary(MAX_OUTPUT));
    (text, cut.then(|| format!("{name} was cut after {MAX_OUTPUT} bytes")))
}

/// A command that runs, and whose output is to be read.
struct CommandToCapture {
    pid: i32,
    started: gantry_engine::Running,
}

/// A command that has ended, and the output that was read of it.
struct CapturedCommand {
    pid: i32,
    output: CapturedOutput,
}

impl CommandToCapture {
    /// Reads the output to its end, and waits for the supervisor's.
    fn capture(mut self) -> Result<CapturedCommand, OutputError> {
        let mut output = CapturedOutput::default();
        let captured = self.started.output.as_mut().map_or(Ok(()), |stream| stream.capture(MAX_OUTPUT, &mut output));
        if let Err(error) = self.started.reap() {
            warn!("cannot wait for the supervisor of pod {}: {error}", self.started.id);
        }
        match captured {
            // Cut: its supervisor was killed, as the exit record says.
            Ok(()) | Err(OutputError::Cut(_)) => Ok(CapturedCommand { pid: self.pid, output }),
            Err(error) => Err(error),
        }
    }
}

/// Starts a command, on a thread of the bridge. If the caller has gone away meanwhile, the guard is dropped with the
/// result, and ends the command.
fn start_command(
    engine: &Engine,
    spec: PodSpec,
    options: Options,
    permit: OwnedSemaphorePermit,
) -> Result<Result<(CommandGuard, CommandToCapture), String>, Status> {
    match engine.start_command(spec) {
        Ok(StartedCommand { id, owner, running }) => {
            let pid = running.ready.apps.first().and_then(|app| i32::try_from(app.pid).ok()).unwrap_or(-1);
            let held = Some(HeldCommand { _owner: owner, _permit: permit });
            Ok(Ok((CommandGuard { id, options, held }, CommandToCapture { pid, started: running })))
        }
        Err(error) => match error.kind() {
            ErrorKind::CommandNotFound | ErrorKind::CommandNotExecutable => Ok(Err(messages(&error).join(": "))),
            _ => Err(status::from_error(&error)),
        },
    }
}

/// Ends a command unless it is disarmed.
struct CommandGuard {
    id: PodId,
    options: Options,
    /// `None`: it is disarmed.
    held: Option<HeldCommand>,
}

/// Held as long as the command may run.
struct HeldCommand {
    _owner: CommandOwner,
    _permit: OwnedSemaphorePermit,
}

impl CommandGuard {
    /// The command has ended, and its pod is removed.
    fn disarm(mut self) {
        self.held = None;
    }
}

impl Drop for CommandGuard {
    fn drop(&mut self) {
        let (Some(held), id, options) = (self.held.take(), self.id, self.options.clone()) else { return };
        let thread = std::thread::Builder::new().name("end-command".to_owned());
        let end = move || {
            let ended = Engine::open(options)
                .map_err(|error| messages(&error).join(": "))
                .and_then(|engine| engine.end_command(id, GRACE).map_err(|error| messages(&error).join(": ")));
            if let Err(error) = ended {
                warn!("cannot end the command of pod {id}, which the garbage collection will do: {error}");
            }
            drop(held);
        };
        if let Err(error) = thread.spawn(end) {
            // The owner is dropped, so the garbage collection ends the command.
            warn!("cannot start a thread to end the command of pod {id}: {error}");
        }
    }
}
