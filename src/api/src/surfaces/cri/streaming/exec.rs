//! `Exec`: runs a program in a container for one client. It ends with its client.

use std::io;
use std::sync::Arc;

use gantry_engine::{Engine, Exec, ExecRequest, ExecStart, Stdio};
use gantry_model::AppOutcome;
use tokio::io::Interest;
use tokio::sync::watch;
use tonic::Status;

use super::super::containers::wait_for_start;
use super::channels::{self, ChannelConnection, ChannelReader, ChannelWriter, OutputChannel, RequestedChannels};
use super::command::{ProgramInput, feed, pump};
use super::container::RunningContainer;
use super::exit_status::ExitStatus;
use super::pipe::{self, AsyncPipe};
use super::server::StreamContext;
use super::session::{SessionError, within_creation_limit};
use crate::bridge::Weight;
use crate::status::from_error;

/// The session that a URL of `Exec` begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ExecSession {
    /// The container.
    pub(super) container: RunningContainer,
    /// Program and arguments.
    pub(super) command: Vec<String>,
    /// The channels.
    pub(super) channels: RequestedChannels,
}

/// A program and the server's ends of its pipes or its terminal.
struct ExecProcess {
    exec: Exec,
    stdin: Option<Arc<AsyncPipe>>,
    stdout: Option<Arc<AsyncPipe>>,
    stderr: Option<AsyncPipe>,
    terminal: Option<Arc<AsyncPipe>>,
}

impl ExecSession {
    /// Serves a client to the end of the program.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn serve(
        self,
        context: &StreamContext,
        connection: ChannelConnection,
    ) -> Result<(), SessionError> {
        let (mut reader, writer) = within_creation_limit(channels::open(connection, self.channels)).await?;
        let status = match self.start(context).await {
            Ok(process) => self.run(process, &mut reader, &writer).await?,
            Err(why) => writer.fail(&why).await?,
        };
        Ok(channels::finish(reader, &writer, &status).await?)
    }

    /// Starts the program. The error is for the client.
    async fn start(&self, context: &StreamContext) -> Result<ExecProcess, String> {
        let made = self.stdio().map_err(|error| format!("cannot make pipes for the program: {error}"))?;
        let (stdio, mut ends) = made;
        let (pod, app) = (self.container.pod, self.container.app.clone());
        let terminal = self.channels.tty.then_some(gantry_model::terminal::DEFAULT_SIZE);
        let request = ExecRequest { app: Some(app), argv: self.command.clone(), terminal, ..ExecRequest::default() };
        let begin = move |engine: &Engine| -> Result<ExecStart, Status> {
            engine.begin_exec(pod, request, stdio).map_err(|error| from_error(&error))
        };
        // Dropped with the result if the client has gone meanwhile, which ends the program.
        let started = async { wait_for_start(context.writer.call_for_stream(Weight::Heavy, begin).await?).await };
        let mut exec = started.await.map_err(|status: Status| status.message().to_owned())?;
        if let Some(master) = exec.master.take() {
            let master =
                AsyncPipe::new(master).map_err(|error| format!("cannot use the program's terminal: {error}"))?;
            let master = Arc::new(master);
            ends.stdin = self.channels.stdin.then(|| Arc::clone(&master));
            ends.stdout = Some(Arc::clone(&master));
            ends.terminal = Some(master);
        }
        let PipeEnds { stdin, stdout, stderr, terminal } = ends;
        Ok(ExecProcess { exec, stdin, stdout, stderr, terminal })
    }

    fn stdio(&self) -> io::Result<(Stdio, PipeEnds)> {
        let RequestedChannels { stdin, stdout, stderr, tty } = self.channels;
        let mut ends = PipeEnds::default();
        if tty {
            return Ok((Stdio::Terminal, ends));
        }
        let (stdin, to_stdin) = pipe::to_program_or_null(stdin)?;
        let (stdout, from_stdout) = pipe::from_program_or_null(stdout)?;
        let (stderr, from_stderr) = pipe::from_program_or_null(stderr)?;
        ends.stdin = to_stdin.map(Arc::new);
        ends.stdout = from_stdout.map(Arc::new);
        ends.stderr = from_stderr;
        Ok((Stdio::Fds(stdin, stdout, stderr), ends))
    }

    /// Connects the program with the client until it has exited.
    async fn run(
        &self,
        process: ExecProcess,
        reader: &mut ChannelReader,
        writer: &ChannelWriter,
    ) -> Result<ExitStatus, SessionError> {
        let ExecProcess { exec, stdin, stdout, stderr, terminal } = process;
        let (exited, is_exited) = watch::channel(false);
        let stdout_pump = async {
            match &stdout {
                Some(source) => pump(source, writer, OutputChannel::Stdout, is_exited.clone()).await,
                None => Ok(()),
            }
        };
        let stderr_pump = async {
            match &stderr {
                Some(source) => pump(source, writer, OutputChannel::Stderr, is_exited.clone()).await,
                None => Ok(()),
            }
        };
        let exit = async {
            let how = wait(exec).await;
            let _pumps_may_have_ended = exited.send(true);
            how
        };
        let run = async {
            let (how, stdout, stderr) = tokio::join!(exit, stdout_pump, stderr_pump);
            stdout.and(stderr)?;
            Ok::<_, io::Error>(how)
        };
        let how = tokio::select! {
            how = run => how?,
            // The program is dropped, and so killed.
            () = feed(reader, ProgramInput { stdin, terminal }) => return Err(SessionError::ClientGone),
        };
        Ok(match how {
            Ok(how) => ExitStatus::exited(&self.command, how.exit_code()),
            Err(why) => ExitStatus::failed(&why),
        })
    }
}

/// The server's ends of a program's pipes.
#[derive(Default)]
struct PipeEnds {
    stdin: Option<Arc<AsyncPipe>>,
    stdout: Option<Arc<AsyncPipe>>,
    stderr: Option<AsyncPipe>,
    terminal: Option<Arc<AsyncPipe>>,
}

/// Waits for the end of a program. The error is for the client.
async fn wait(exec: Exec) -> Result<AppOutcome, String> {
    let watched =
        pipe::watch(exec, Interest::READABLE).map_err(|error| format!("cannot wait for the program: {error}"))?;
    // Readable: waiting does not block.
    let readable = watched.readable().await.map(|mut guard| guard.clear_ready());
    readable.map_err(|error| format!("cannot wait for the program: {error}"))?;
    watched.into_inner().0.wait().map_err(|error| from_error(&error).message().to_owned())
}
