//! `Attach`: connects a client with the main process of a container. The container does not end with its client.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use gantry_engine::{Engine, OutputError, OutputStream};
use gantry_model::error::messages;
use gantry_model::{ErrorKind, Kind as _};
use rustix::termios::isatty;
use tokio::io::Interest;
use tonic::Status;

use super::super::reply::finish;
use super::channels::{self, ChannelConnection, ChannelWriter, OutputChannel, RequestedChannels};
use super::command::{ProgramInput, feed};
use super::container::RunningContainer;
use super::exit_status::ExitStatus;
use super::pipe::{AsyncPipe, watch};
use super::server::StreamContext;
use super::session::{SessionError, within_creation_limit};
use crate::bridge::Weight;
use crate::status::from_error;

/// The session that a URL of `Attach` begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AttachSession {
    /// The container.
    pub(super) container: RunningContainer,
    /// The channels.
    pub(super) channels: RequestedChannels,
}

impl AttachSession {
    /// Serves a client until the container has exited or the client has gone.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn serve(
        self,
        context: &StreamContext,
        connection: ChannelConnection,
    ) -> Result<(), SessionError> {
        let (mut reader, writer) = within_creation_limit(channels::open(connection, self.channels)).await?;
        let status = match self.connect(context).await {
            Ok((output, input)) => tokio::select! {
                ended = pump(output, &writer) => ended?,
                () = feed(&mut reader, input) => return Err(SessionError::ClientGone),
            },
            Err(why) => writer.fail(&why).await?,
        };
        Ok(channels::finish(reader, &writer, &status).await?)
    }

    /// The output and the input of the container. The error is for the client.
    async fn connect(&self, context: &StreamContext) -> Result<(OutputStream, ProgramInput), String> {
        let (output, input) = self.attach(context).await.map_err(|status| status.message().to_owned())?;
        output.set_nonblocking().map_err(|error| messages(&error).join(": "))?;
        let is_terminal = input.as_ref().is_some_and(isatty);
        let input = input.map(AsyncPipe::new).transpose();
        let input = input.map_err(|error| format!("cannot use the container's stdin: {error}"))?.map(Arc::new);
        let terminal = input.clone().filter(|_| is_terminal);
        let stdin = input.filter(|_| self.channels.stdin);
        Ok((output, ProgramInput { stdin, terminal }))
    }

    /// Subscribes to the output, then takes the input.
    async fn attach(&self, context: &StreamContext) -> Result<(OutputStream, Option<OwnedFd>), Status> {
        let RunningContainer { pod, app, stdin_once, .. } = self.container.clone();
        let to_app = app.clone();
        let begin = move |engine: &Engine| engine.begin_app_output(pod, &to_app).map_err(|error| from_error(&error));
        let request = context.writer.call_for_stream(Weight::Light, begin).await?;
        let output = finish(request).await?.map_err(|error| from_error(&error))?;
        // A terminal has a size also for a client that sends no input.
        let RequestedChannels { stdin, tty, .. } = self.channels;
        if !stdin && !tty {
            return Ok((output, None));
        }
        let keep = !stdin_once || !stdin;
        let begin = move |engine: &Engine| Ok(engine.begin_attach(pod, Some(&app), keep));
        let input = match context.writer.call_for_stream(Weight::Light, begin).await? {
            Ok(request) => finish(request).await?,
            Err(error) => Err(error),
        };
        match input {
            Ok(input) => Ok((output, Some(input))),
            // It was created without stdin, or the client that had it has closed it: there is only output.
            Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::Busy) => Ok((output, None)),
            Err(error) => Err(from_error(&error)),
        }
    }
}

/// Sends the output of a container to the client until it has exited.
///
/// # Errors
/// The client has gone.
async fn pump(output: OutputStream, writer: &ChannelWriter) -> io::Result<ExitStatus> {
    let mut output = watch(output, Interest::READABLE)?;
    loop {
        let mut guard = output.readable_mut().await?;
        let ended = loop {
            match guard.get_inner_mut().0.next_chunk() {
                Ok(Some(chunk)) => {
                    let channel = if chunk.stderr { OutputChannel::Stderr } else { OutputChannel::Stdout };
                    writer.output(channel, chunk.bytes).await?;
                }
                Ok(None) => break Some(ExitStatus::success()),
                Err(OutputError::Io { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => break None,
                Err(error) => break Some(ExitStatus::failed(&messages(&error).join(": "))),
            }
        };
        if let Some(status) = ended {
            writer.end_outputs().await?;
            return Ok(status);
        }
        guard.clear_ready();
    }
}
