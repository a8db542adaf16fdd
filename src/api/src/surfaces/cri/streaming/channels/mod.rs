//! The channels of a remote command, exec or attach, between client and server: over SPDY a stream each, over WebSocket
//! numbered messages.

mod resize;
mod spdy;
mod websocket;

use std::io;

use bytes::Bytes;
use thiserror::Error;

use self::spdy::{SpdyChannelWriter, SpdyChannels};
use self::websocket::{WebSocketChannelWriter, WebSocketChannels};
use super::exit_status::ExitStatus;
use super::negotiation::{CommandProtocol, Upgrade};
use super::pipe::TerminalSize;
use super::spdy::SpdyError;
use super::wire::{WireReader, WireWriter};

/// The channels that a client requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RequestedChannels {
    /// Bytes to the program.
    pub(super) stdin: bool,
    /// Bytes of its standard output, or of its terminal.
    pub(super) stdout: bool,
    /// Bytes of its standard error.
    pub(super) stderr: bool,
    /// Whether it has a terminal.
    pub(super) tty: bool,
}

/// An output channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputChannel {
    /// Standard output, or the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Something that the client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ClientInput {
    /// Bytes for the program.
    Stdin(Bytes),
    /// No more bytes follow.
    StdinEnd,
    /// The size of the client's terminal.
    Resize(TerminalSize),
}

/// The channels of a session failed.
#[derive(Debug, Error)]
pub(super) enum ChannelError {
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// The client violates SPDY.
    #[error(transparent)]
    Spdy(#[from] SpdyError),
    /// The client opened a stream twice, or one that it did not request.
    #[error("the client opened a stream of type '{0}', which this session does not have")]
    UnexpectedStream(String),
    /// The client closed a stream or sent data before it had opened all of its streams.
    #[error("the client reset a stream, or sent too much, before all streams were open")]
    TooEarly,
    /// The client has gone before all of its streams were open.
    #[error("the client closed the connection before all streams were open")]
    Gone,
    /// A message of a WebSocket is too long, or not in base64.
    #[error("a message of channel {0} is too long or damaged")]
    Message(u8),
}

/// Reads the channels of a client.
pub(super) enum ChannelReader {
    /// Over SPDY.
    Spdy(Box<SpdyChannels>),
    /// Over WebSocket.
    WebSocket(Box<WebSocketChannels>),
}

/// Writes the channels of a client.
pub(super) enum ChannelWriter {
    /// Over SPDY.
    Spdy(SpdyChannelWriter),
    /// Over WebSocket.
    WebSocket(WebSocketChannelWriter),
}

/// The connection of a session, and the protocol that was chosen.
pub(super) struct ChannelConnection {
    /// The reading half.
    pub(super) reader: WireReader,
    /// The writing half.
    pub(super) writer: std::sync::Arc<WireWriter>,
    /// What it was upgraded to.
    pub(super) upgrade: Upgrade,
    /// The protocol.
    pub(super) protocol: CommandProtocol,
}

/// Waits until the client has opened the channels.
///
/// # Errors
/// [`ChannelError`].
pub(super) async fn open(
    connection: ChannelConnection,
    requested: RequestedChannels,
) -> Result<(ChannelReader, ChannelWriter), ChannelError> {
    let ChannelConnection { reader, writer, upgrade, protocol } = connection;
    match upgrade {
        Upgrade::Spdy => {
            let (reader, writer) = spdy::open(reader, writer, requested, protocol).await?;
            Ok((ChannelReader::Spdy(Box::new(reader)), ChannelWriter::Spdy(writer)))
        }
        Upgrade::WebSocket => {
            let (reader, writer) = websocket::open(reader, writer, requested, protocol).await?;
            Ok((ChannelReader::WebSocket(Box::new(reader)), ChannelWriter::WebSocket(writer)))
        }
    }
}

/// Sends the status, and waits until the client has closed the connection.
///
/// # Errors
/// The client has gone.
pub(super) async fn finish(reader: ChannelReader, writer: &ChannelWriter, status: &ExitStatus) -> io::Result<()> {
    writer.finish(status).await?;
    reader.into_wire().linger().await;
    Ok(())
}

impl ChannelReader {
    /// The next input; `None`: the client has gone.
    ///
    /// # Errors
    /// [`ChannelError`].
    pub(super) async fn next(&mut self) -> Result<Option<ClientInput>, ChannelError> {
        match self {
            Self::Spdy(channels) => channels.next().await,
            Self::WebSocket(channels) => channels.next().await,
        }
    }

    /// The reading half of the connection.
    pub(super) fn wire(&self) -> &WireReader {
        match self {
            Self::Spdy(channels) => channels.wire(),
            Self::WebSocket(channels) => channels.wire(),
        }
    }

    /// Ends reading the channels.
    fn into_wire(self) -> WireReader {
        match self {
            Self::Spdy(channels) => channels.into_wire(),
            Self::WebSocket(channels) => channels.into_wire(),
        }
    }
}

impl ChannelWriter {
    /// Sends output. Bytes of a channel that was not requested are discarded.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn output(&self, channel: OutputChannel, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Spdy(channels) => channels.output(channel, bytes).await,
            Self::WebSocket(channels) => channels.output(channel, bytes).await,
        }
    }

    /// Ends a channel.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn end_output(&self, channel: OutputChannel) -> io::Result<()> {
        match self {
            Self::Spdy(channels) => channels.end_output(channel).await,
            // Its channels end with the connection.
            Self::WebSocket(_) => Ok(()),
        }
    }

    /// Ends both output channels.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn end_outputs(&self) -> io::Result<()> {
        self.end_output(OutputChannel::Stdout).await?;
        self.end_output(OutputChannel::Stderr).await
    }

    /// Ends both output channels of a program that could not be reached. The status for the client says why.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn fail(&self, why: &str) -> io::Result<ExitStatus> {
        self.end_outputs().await?;
        Ok(ExitStatus::failed(why))
    }

    /// Sends the status, and ends the session.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn finish(&self, status: &ExitStatus) -> io::Result<()> {
        match self {
            Self::Spdy(channels) => channels.finish(status).await,
            Self::WebSocket(channels) => channels.finish(status).await,
        }
    }
}
