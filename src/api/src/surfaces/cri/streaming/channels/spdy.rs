//! The channels over SPDY: the client opens a stream for each, named by the header `streamtype`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::super::exit_status::ExitStatus;
use super::super::negotiation::CommandProtocol;
use super::super::spdy::{RST_CANCEL, SpdyEvent, SpdyReader, encode_data, encode_goaway, encode_rst_stream};
use super::super::wire::{ByteReader, FrameWriter, WireReader, WireWriter};
use super::resize::ResizeParser;
use super::{ChannelError, ClientInput, OutputChannel, RequestedChannels};

/// Maximum streams of a session, with one to spare.
const MAX_STREAMS: usize = 6;
/// Maximum bytes that a client sends before it has opened all streams.
const MAX_EARLY: usize = 64 << 10;
/// Maximum pieces of them.
const MAX_EARLY_EVENTS: usize = 1024;

/// The numbers of the streams. `None`: it is not open yet, or was not requested.
#[derive(Debug, Clone, Copy, Default)]
struct Streams {
    error: Option<u32>,
    stdin: Option<u32>,
    stdout: Option<u32>,
    stderr: Option<u32>,
    resize: Option<u32>,
}

/// Reads the streams of a session.
pub(in super::super) struct SpdyChannels {
    reader: SpdyReader,
    streams: Streams,
    resize: ResizeParser,
    /// What came before all streams were open.
    early: VecDeque<SpdyEvent>,
}

/// Writes the streams of a session.
pub(in super::super) struct SpdyChannelWriter {
    frames: FrameWriter,
    streams: Streams,
    last_stream: u32,
    has_status: bool,
}

/// Waits for all streams.
pub(super) async fn open(
    wire: WireReader,
    writer: Arc<WireWriter>,
    requested: RequestedChannels,
    protocol: CommandProtocol,
) -> Result<(SpdyChannels, SpdyChannelWriter), ChannelError> {
    let frames = FrameWriter::new(writer, false);
    let mut reader = SpdyReader::new(ByteReader::Plain(wire), frames.clone(), MAX_STREAMS);
    let (mut streams, mut early, mut early_bytes) = (Streams::default(), VecDeque::new(), 0);
    while !streams.are_complete(requested, protocol) {
        match reader.next().await?.ok_or(ChannelError::Gone)? {
            SpdyEvent::Open { stream, headers } => {
                let kind = headers.get("streamtype").unwrap_or_default();
                let slot = streams.slot(kind, requested, protocol).filter(|slot| slot.is_none());
                let unexpected = || ChannelError::UnexpectedStream(gantry_model::id::shown(kind));
                *slot.ok_or_else(unexpected)? = Some(stream);
            }
            SpdyEvent::Data { stream, bytes } => {
                early_bytes += bytes.len();
                early.push_back(SpdyEvent::Data { stream, bytes });
            }
            event @ SpdyEvent::End { .. } => early.push_back(event),
            SpdyEvent::Reset { .. } => return Err(ChannelError::TooEarly),
        }
        if early_bytes > MAX_EARLY || early.len() > MAX_EARLY_EVENTS {
            return Err(ChannelError::TooEarly);
        }
    }
    let last_stream = reader.last_stream();
    let writer = SpdyChannelWriter { frames, streams, last_stream, has_status: protocol.has_status };
    Ok((SpdyChannels { reader, streams, resize: ResizeParser::default(), early }, writer))
}

impl Streams {
    /// The slot of a type of stream; `None`: the session has none of this type.
    fn slot(
        &mut self,
        kind: &str,
        requested: RequestedChannels,
        protocol: CommandProtocol,
    ) -> Option<&mut Option<u32>> {
        let RequestedChannels { stdin, stdout, stderr, tty } = requested;
        match kind {
            "error" => Some(&mut self.error),
            "stdin" => stdin.then_some(&mut self.stdin),
            "stdout" => stdout.then_some(&mut self.stdout),
            "stderr" => stderr.then_some(&mut self.stderr),
            "resize" => (tty && protocol.has_resize).then_some(&mut self.resize),
            _ => None,
        }
    }

    fn are_complete(&self, requested: RequestedChannels, protocol: CommandProtocol) -> bool {
        let RequestedChannels { stdin, stdout, stderr, tty } = requested;
        self.error.is_some()
            && self.stdin.is_some() == stdin
            && self.stdout.is_some() == stdout
            && self.stderr.is_some() == stderr
            && self.resize.is_some() == (tty && protocol.has_resize)
    }
}

impl SpdyChannels {
    /// The next input; `None`: the client has gone.
    pub(super) async fn next(&mut self) -> Result<Option<ClientInput>, ChannelError> {
        loop {
            let event = match self.early.pop_front() {
                Some(event) => event,
                None => match self.reader.next().await? {
                    Some(event) => event,
                    None => return Ok(None),
                },
            };
            if let Some(input) = self.handle(event) {
                return Ok(Some(input));
            }
        }
    }

    fn handle(&mut self, event: SpdyEvent) -> Option<ClientInput> {
        match event {
            SpdyEvent::Data { stream, bytes } if Some(stream) == self.streams.stdin => Some(ClientInput::Stdin(bytes)),
            SpdyEvent::Data { stream, bytes } if Some(stream) == self.streams.resize => {
                self.resize.add(&bytes).map(ClientInput::Resize)
            }
            SpdyEvent::End { stream } | SpdyEvent::Reset { stream } if Some(stream) == self.streams.stdin => {
                Some(ClientInput::StdinEnd)
            }
            // The client half-closes the other streams. A stream too many has no meaning.
            SpdyEvent::Data { .. } | SpdyEvent::End { .. } | SpdyEvent::Reset { .. } | SpdyEvent::Open { .. } => None,
        }
    }

    /// The reading half of the connection.
    pub(super) fn wire(&self) -> &WireReader {
        self.reader.wire()
    }

    /// Ends reading the streams.
    pub(super) fn into_wire(self) -> WireReader {
        self.reader.into_wire()
    }
}

impl SpdyChannelWriter {
    fn stream(&self, channel: OutputChannel) -> Option<u32> {
        match channel {
            OutputChannel::Stdout => self.streams.stdout,
            OutputChannel::Stderr => self.streams.stderr,
        }
    }

    /// Sends output.
    pub(super) async fn output(&self, channel: OutputChannel, bytes: &[u8]) -> io::Result<()> {
        let Some(stream) = self.stream(channel) else { return Ok(()) };
        self.frames.write(&encode_data(stream, bytes, false)).await
    }

    /// Half-closes the stream of a channel.
    pub(super) async fn end_output(&self, channel: OutputChannel) -> io::Result<()> {
        let Some(stream) = self.stream(channel) else { return Ok(()) };
        self.frames.write(&encode_data(stream, &[], true)).await
    }

    /// Sends the status, and ends all streams and the connection.
    pub(super) async fn finish(&self, status: &ExitStatus) -> io::Result<()> {
        let Streams { error, stdin, resize, .. } = self.streams;
        let mut frames = Vec::new();
        if let (Some(error), Some(status)) = (error, status.encode(self.has_status)) {
            frames.extend(encode_data(error, &status, false));
        }
        for stream in [error, stdin, resize].into_iter().flatten() {
            frames.extend(encode_rst_stream(stream, RST_CANCEL));
        }
        frames.extend(encode_goaway(self.last_stream, 0));
        self.frames.write(&frames).await?;
        self.frames.close(0).await
    }
}
