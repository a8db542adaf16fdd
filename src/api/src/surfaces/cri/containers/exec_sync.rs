//! ExecSync: runs a program in a container and returns its output. No thread waits for it.

use std::fs::File;
use std::io::{self, PipeReader};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use gantry_engine::{Engine, Exec, ExecRequest, ExecStart, ExecTree, Stdio};
use gantry_proto::cri::v1::{ExecSyncRequest, ExecSyncResponse};
use tokio::net::unix::pipe::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;
use tracing::warn;

use super::super::reply::wait_for_reply;
use super::{FoundContainer, find_running};
use crate::bridge::{Bridge, Weight};
use crate::dir_watch::readable;
use crate::peer::Peer;
use crate::status::{from_error, invalid_field};

/// Maximum bytes of both streams in a response; the rest is discarded. A kubelet receives no message above 16 MiB, and
/// the other fields need a few bytes.
const MAX_OUTPUT: usize = (16 << 20) - 1024;
/// The time that the output may take to end after the program: a process that it left may hold it open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);
/// The size of a pipe.
const CHUNK: usize = 64 << 10;

/// Runs a program to its end. The timeout counts from the call.
///
/// # Errors
/// `NOT_FOUND` if there is no such container, `FAILED_PRECONDITION` if it is not running or the program cannot be
/// executed, `DEADLINE_EXCEEDED` if the program was killed after its timeout with its descendants or was not started
/// within it, and the engine's errors.
pub(in super::super) async fn exec_sync(
    writer: &Bridge<Engine>,
    peer: Peer,
    request: ExecSyncRequest,
) -> Result<ExecSyncResponse, Status> {
    let ExecSyncRequest { container_id, cmd, timeout: seconds } = request;
    if cmd.first().is_none_or(String::is_empty) {
        return Err(invalid_field("cmd", "it names no program"));
    }
    let limit = u64::try_from(seconds).map_err(|_| invalid_field("timeout", "it cannot be negative"))?;
    // Without an instant that far away there is no limit.
    let deadline = (limit > 0).then(|| Instant::now().checked_add(Duration::from_secs(limit))).flatten();
    let begin = async {
        let begin = move |engine: &Engine| begin(engine, &container_id, cmd);
        let RequestedProgram { start, stdout, stderr } = writer.call(peer, Weight::Heavy, begin).await?;
        let exec = wait_for_start(start).await?;
        Ok::<_, Status>(StartedProgram { program: OwnedProgram(Some(exec.into())), stdout, stderr })
    };
    // A program that starts after the deadline is dropped with its request, and so killed.
    let Some(started) = before(deadline, begin).await else {
        return Err(Status::deadline_exceeded("the program was not started before its timeout had passed"));
    };
    started?.run(deadline).await
}

/// Waits until a program has started. No thread waits, because the supervisor may have hung.
///
/// # Errors
/// `FAILED_PRECONDITION` if the program cannot be executed, and the engine's errors.
pub(in super::super) async fn wait_for_start(start: ExecStart) -> Result<Exec, Status> {
    wait_for_reply(start.as_fd(), ExecStart::TIMEOUT).await?;
    // After the timeout, this fails at once.
    start.finish().map_err(|error| from_error(&error))
}

/// The result of the work; `None`: the deadline came first.
async fn before<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        None => Some(work.await),
        Some(deadline) => timeout_at(deadline, work).await.ok(),
    }
}

/// A program whose start was requested, and the reading ends of its output.
struct RequestedProgram {
    start: ExecStart,
    stdout: PipeReader,
    stderr: PipeReader,
}

/// A program that was started, and the reading ends of its output.
struct StartedProgram {
    program: OwnedProgram,
    stdout: PipeReader,
    stderr: PipeReader,
}

/// Kills the program and its descendants when it is dropped before its end: its caller has gone.
struct OwnedProgram(Option<ExecTree>);

impl Drop for OwnedProgram {
    fn drop(&mut self) {
        let Some(exec) = self.0.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || kill(exec))),
            Err(_) => kill(exec),
        }
    }
}

fn kill(exec: ExecTree) {
    if let Err(error) = exec.kill() {
        warn!("{}", from_error(&error).message());
    }
}

fn begin(engine: &Engine, id: &str, argv: Vec<String>) -> Result<RequestedProgram, Status> {
    let FoundContainer { sandbox, app } = find_running(engine, id)?;
    let failed = |error: io::Error| Status::resource_exhausted(format!("cannot make pipes for the program: {error}"));
    let stdin = File::open("/dev/null").map_err(failed)?;
    let (stdout, stdout_end) = io::pipe().map_err(failed)?;
    let (stderr, stderr_end) = io::pipe().map_err(failed)?;
    let request = ExecRequest { app: Some(app.name), argv, ..ExecRequest::default() };
    let stdio = Stdio::Fds(stdin.into(), stdout_end.into(), stderr_end.into());
    let start = engine.begin_exec(sandbox.id, request, stdio).map_err(|error| from_error(&error))?;
    Ok(RequestedProgram { start, stdout, stderr })
}

impl StartedProgram {
    async fn run(self, deadline: Option<Instant>) -> Result<ExecSyncResponse, Status> {
        let Self { mut program, stdout, stderr } = self;
        let failed = |error: io::Error| Status::internal(format!("cannot wait for the program: {error}"));
        let (mut stdout, mut stderr) = (Capture::new(stdout).map_err(failed)?, Capture::new(stderr).map_err(failed)?);
        let Some(exec) = &program.0 else { return Err(Status::internal("the program was lost")) };
        let end: OwnedFd = exec.as_fd().try_clone_to_owned().map_err(failed)?;
        let end = readable(end).map_err(failed)?;
        let wait = async {
            tokio::select! {
                ended = end.readable() => ended.map(drop),
                () = async {
                    tokio::join!(stdout.fill(), stderr.fill());
                    std::future::pending().await
                } => Ok(()),
            }
        };
        let ended = before(deadline, wait).await;
        let Some(exec) = program.0.take() else { return Err(Status::internal("the program was lost")) };
        let Some(ended) = ended else {
            let killed = spawn_blocking(move || exec.kill()).await;
            let killed = killed.map_err(|_| Status::internal("the program could not be killed"))?;
            killed.map_err(|error| from_error(&error))?;
            return Err(Status::deadline_exceeded("the program was killed, because its timeout has passed"));
        };
        ended.map_err(failed)?;
        let outcome = exec.wait().map_err(|error| from_error(&error))?;
        let _cut_off = timeout(DRAIN_TIMEOUT, async { tokio::join!(stdout.fill(), stderr.fill()) }).await;
        let (stdout, stderr) = cut(stdout.bytes, stderr.bytes, MAX_OUTPUT);
        Ok(ExecSyncResponse { stdout, stderr, exit_code: outcome.exit_code() })
    }
}

/// The beginning of an output stream.
struct Capture {
    pipe: Receiver,
    bytes: Vec<u8>,
    has_ended: bool,
}

impl Capture {
    fn new(pipe: PipeReader) -> io::Result<Self> {
        Ok(Self { pipe: Receiver::from_owned_fd(pipe.into())?, bytes: Vec::new(), has_ended: false })
    }

    /// Reads to the end, or until it is dropped; what was read stays.
    async fn fill(&mut self) {
        let mut chunk = vec![0; CHUNK];
        while !self.has_ended {
            let read = match self.pipe.readable().await {
                Ok(()) => self.pipe.try_read(&mut chunk),
                Err(error) => Err(error),
            };
            match read {
                Ok(0) => self.has_ended = true,
                Ok(length) => {
                    let room = MAX_OUTPUT - self.bytes.len();
                    self.bytes.extend_from_slice(&chunk[..length.min(room)]);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Nothing more can be read.
                Err(_) => self.has_ended = true,
            }
        }
    }
}

/// Cuts both streams to this many bytes in all: one gets more than half of them only if the other has less.
fn cut(mut stdout: Vec<u8>, mut stderr: Vec<u8>, max: usize) -> (Vec<u8>, Vec<u8>) {
    stdout.truncate(max - stderr.len().min(max / 2));
    stderr.truncate(max - stdout.len());
    (stdout, stderr)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_streams_fit_into_a_response() {
        for (stdout, stderr, expected) in [
            (3, 4, (3, 4)),
            (100, 0, (10, 0)),
            (0, 100, (0, 10)),
            (100, 100, (5, 5)),
            (100, 2, (8, 2)),
            (2, 100, (2, 8)),
        ] {
            let (out, err) = cut(vec![0; stdout], vec![0; stderr], 10);
            assert_eq!((out.len(), err.len()), expected, "{stdout} {stderr}");
        }
    }
}
