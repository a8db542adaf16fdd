//! The channels over WebSocket: the first byte of a message is the number of its channel. In the base64 protocols the
//! messages are text, the number is a digit, and the rest is encoded.

use std::io;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;

use super::super::exit_status::ExitStatus;
use super::super::negotiation::CommandProtocol;
use super::super::websocket::{
    CLOSE_NORMAL, CLOSE_TOO_BIG, MessageReader, Opcode, WebSocketEvent, encode_close, encode_frame,
};
use super::super::wire::{WireReader, WireWriter, next_event};
use super::resize::ResizeParser;
use super::{ChannelError, ClientInput, OutputChannel, RequestedChannels};

/// Maximum bytes of a message that is not passed on in pieces.
const MAX_MESSAGE: usize = 1 << 20;

const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
/// The next byte is a channel that the client closes (v5).
const CLOSE: u8 = 255;

/// Reads the messages of a session.
pub(in super::super) struct WebSocketChannels {
    wire: WireReader,
    messages: MessageReader,
    writer: Arc<WireWriter>,
    protocol: CommandProtocol,
    has_stdin: bool,
    resize: ResizeParser,
    /// The channel of the current message, once its first byte has arrived.
    channel: Option<u8>,
    /// The current message, if it is not passed on in pieces.
    message: Vec<u8>,
}

/// Writes the messages of a session.
pub(in super::super) struct WebSocketChannelWriter {
    writer: Arc<WireWriter>,
    protocol: CommandProtocol,
    requested: RequestedChannels,
}

/// Begins the session. The first message is empty: it shows the client that the session exists.
pub(super) async fn open(
    wire: WireReader,
    writer: Arc<WireWriter>,
    requested: RequestedChannels,
    protocol: CommandProtocol,
) -> Result<(WebSocketChannels, WebSocketChannelWriter), ChannelError> {
    let reader = WebSocketChannels {
        wire,
        messages: MessageReader::default(),
        writer: Arc::clone(&writer),
        protocol,
        has_stdin: requested.stdin,
        resize: ResizeParser::default(),
        channel: None,
        message: Vec::new(),
    };
    let writer = WebSocketChannelWriter { writer, protocol, requested };
    let lowest = match requested {
        RequestedChannels { stdout: true, .. } => STDOUT,
        RequestedChannels { stderr: true, .. } => STDERR,
        RequestedChannels { .. } => ERROR,
    };
    writer.send(lowest, &[]).await?;
    Ok((reader, writer))
}

impl WebSocketChannels {
    /// The next input; `None`: the client has gone.
    pub(super) async fn next(&mut self) -> Result<Option<ClientInput>, ChannelError> {
        loop {
            match next_event(&mut self.wire, &mut self.messages, &self.writer).await? {
                None | Some(WebSocketEvent::Close) => return Ok(None),
                Some(WebSocketEvent::Ping(_) | WebSocketEvent::Pong) => {}
                Some(WebSocketEvent::Piece { bytes, first, last }) => match self.piece(bytes, first, last) {
                    Ok(None) => {}
                    Ok(Some(input)) => return Ok(Some(input)),
                    Err(error) => {
                        self.writer.write(&encode_close(CLOSE_TOO_BIG)).await?;
                        return Err(error);
                    }
                },
            }
        }
    }

    fn piece(&mut self, mut bytes: Bytes, first: bool, last: bool) -> Result<Option<ClientInput>, ChannelError> {
        if first {
            self.channel = None;
            self.message.clear();
        }
        if self.channel.is_none() && !bytes.is_empty() {
            let number = bytes.split_to(1)[0];
            self.channel = Some(if self.protocol.is_base64 { number.wrapping_sub(b'0') } else { number });
        }
        let Some(channel) = self.channel else { return Ok(None) };
        if channel == STDIN && !self.protocol.is_base64 {
            return Ok((self.has_stdin && !bytes.is_empty()).then_some(ClientInput::Stdin(bytes)));
        }
        if self.message.len() + bytes.len() > MAX_MESSAGE {
            return Err(ChannelError::Message(channel));
        }
        self.message.extend_from_slice(&bytes);
        if !last {
            return Ok(None);
        }
        let message = std::mem::take(&mut self.message);
        let message = match self.protocol.is_base64 {
            true => STANDARD.decode(&message).map_err(|_| ChannelError::Message(channel))?,
            false => message,
        };
        Ok(self.message(channel, message))
    }

    fn message(&mut self, channel: u8, message: Vec<u8>) -> Option<ClientInput> {
        match channel {
            STDIN if self.has_stdin && !message.is_empty() => Some(ClientInput::Stdin(message.into())),
            RESIZE => self.resize.add(&message).map(ClientInput::Resize),
            CLOSE if message == [STDIN] && self.protocol.name.starts_with("v5.") => Some(ClientInput::StdinEnd),
            // Clients may ignore channels; so does the server.
            _ => None,
        }
    }

    /// The reading half of the connection.
    pub(super) fn wire(&self) -> &WireReader {
        &self.wire
    }

    /// Ends reading the messages.
    pub(super) fn into_wire(self) -> WireReader {
        self.wire
    }
}

impl WebSocketChannelWriter {
    /// Sends output.
    pub(super) async fn output(&self, channel: OutputChannel, bytes: &[u8]) -> io::Result<()> {
        match channel {
            OutputChannel::Stdout if self.requested.stdout => self.send(STDOUT, bytes).await,
            OutputChannel::Stderr if self.requested.stderr => self.send(STDERR, bytes).await,
            OutputChannel::Stdout | OutputChannel::Stderr => Ok(()),
        }
    }

    /// Sends the status, and closes the connection.
    pub(super) async fn finish(&self, status: &ExitStatus) -> io::Result<()> {
        if let Some(status) = status.encode(self.protocol.has_status) {
            self.send(ERROR, &status).await?;
        }
        self.writer.write(&encode_close(CLOSE_NORMAL)).await?;
        self.writer.close().await
    }

    async fn send(&self, channel: u8, bytes: &[u8]) -> io::Result<()> {
        let frame = match self.protocol.is_base64 {
            true => encode_frame(Opcode::Text, &[&[b'0' + channel], STANDARD.encode(bytes).as_bytes()]),
            false => encode_frame(Opcode::Binary, &[&[channel], bytes]),
        };
        self.writer.write(&frame).await
    }
}
