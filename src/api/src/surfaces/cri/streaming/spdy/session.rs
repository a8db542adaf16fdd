//! The server's side of a SPDY connection: accepts streams, answers pings, and checks what the client may do.

use std::collections::HashSet;
use std::io;

use bytes::Bytes;
use thiserror::Error;

use super::super::wire::{ByteReader, FrameWriter, WireReader};
use super::frames::{
    Frame, FrameError, FrameReader, RST_REFUSED, encode_goaway, encode_ping, encode_rst_stream, encode_syn_reply,
};
use super::headers::Headers;

/// The status of GOAWAY after a violation of the protocol.
const GOAWAY_PROTOCOL_ERROR: u32 = 1;

/// A SPDY connection failed.
#[derive(Debug, Error)]
pub(in super::super) enum SpdyError {
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// The client's bytes are not SPDY/3.1.
    #[error("the client does not speak SPDY/3.1")]
    Frame(#[from] FrameError),
    /// The number of a new stream is even, or not greater than those before.
    #[error("stream {0} has an invalid number")]
    StreamNumber(u32),
    /// Data came on a stream that the client has not opened.
    #[error("data came for stream {0}, which is not open")]
    NotOpen(u32),
}

/// Something that the client did.
#[derive(Debug)]
pub(in super::super) enum SpdyEvent {
    /// It opened a stream, which was accepted.
    Open { stream: u32, headers: Headers },
    /// It sent bytes on an open stream.
    Data { stream: u32, bytes: Bytes },
    /// It sends no more on a stream.
    End { stream: u32 },
    /// It ended a stream in both directions.
    Reset { stream: u32 },
}

/// Reads the streams of a client.
#[derive(Debug)]
pub(in super::super) struct SpdyReader {
    source: ByteReader,
    frames: FrameReader,
    writer: FrameWriter,
    /// The streams on which the client may send.
    open: HashSet<u32>,
    last_stream: u32,
    max_streams: usize,
    /// The event that follows the one that was returned.
    next: Option<SpdyEvent>,
}

impl SpdyReader {
    /// A connection on which the client may have this many streams open at a time.
    pub(in super::super) fn new(source: ByteReader, writer: FrameWriter, max_streams: usize) -> Self {
        let frames = FrameReader::new();
        Self { source, frames, writer, open: HashSet::new(), last_stream: 0, max_streams, next: None }
    }

    /// The last stream that was accepted.
    pub(in super::super) fn last_stream(&self) -> u32 {
        self.last_stream
    }

    /// The reading half of the connection.
    pub(in super::super) fn wire(&self) -> &WireReader {
        self.source.wire()
    }

    /// Ends reading as SPDY.
    pub(in super::super) fn into_wire(self) -> WireReader {
        self.source.into_wire()
    }

    /// Ignores what the client sends on a stream from now on.
    pub(in super::super) fn forget(&mut self, stream: u32) {
        self.open.remove(&stream);
    }

    /// The next event; `None` when the client has closed the connection.
    ///
    /// # Errors
    /// [`SpdyError`]. A violation of the client is answered with GOAWAY.
    pub(in super::super) async fn next(&mut self) -> Result<Option<SpdyEvent>, SpdyError> {
        let result = self.next_event().await;
        if let Err(SpdyError::Frame(_) | SpdyError::StreamNumber(_) | SpdyError::NotOpen(_)) = &result {
            self.writer.write(&encode_goaway(self.last_stream, GOAWAY_PROTOCOL_ERROR)).await?;
        }
        result
    }

    async fn next_event(&mut self) -> Result<Option<SpdyEvent>, SpdyError> {
        if let Some(event) = self.next.take() {
            return Ok(Some(event));
        }
        loop {
            let Some(frame) = self.frames.next()? else {
                match self.source.read().await? {
                    Some(bytes) => self.frames.push(&bytes),
                    None => return Ok(None),
                }
                continue;
            };
            if let Some(event) = self.handle(frame).await? {
                return Ok(Some(event));
            }
        }
    }

    async fn handle(&mut self, frame: Frame) -> Result<Option<SpdyEvent>, SpdyError> {
        match frame {
            Frame::SynStream { stream, headers, fin } => self.open(stream, headers, fin).await,
            Frame::Data { stream, bytes, fin } => {
                if !self.open.contains(&stream) {
                    // A stream that has ended: the client may not know it yet.
                    return if stream <= self.last_stream { Ok(None) } else { Err(SpdyError::NotOpen(stream)) };
                }
                let end = self.end_if(fin, stream);
                if bytes.is_empty() {
                    return Ok(end);
                }
                self.next = end;
                Ok(Some(SpdyEvent::Data { stream, bytes }))
            }
            Frame::Headers { stream, fin } if self.open.contains(&stream) => Ok(self.end_if(fin, stream)),
            Frame::RstStream { stream } if stream <= self.last_stream => {
                self.open.remove(&stream);
                Ok(Some(SpdyEvent::Reset { stream }))
            }
            Frame::Ping { id } => {
                // Even numbers are answers to pings of a server, which this one does not send.
                if id % 2 == 1 {
                    self.writer.write(&encode_ping(id)).await?;
                }
                Ok(None)
            }
            // After GOAWAY the client opens no more streams; those that are open continue.
            Frame::SynReply { .. }
            | Frame::RstStream { .. }
            | Frame::Headers { .. }
            | Frame::GoAway
            | Frame::Ignored => Ok(None),
        }
    }

    async fn open(&mut self, stream: u32, headers: Headers, fin: bool) -> Result<Option<SpdyEvent>, SpdyError> {
        if stream.is_multiple_of(2) || stream <= self.last_stream {
            return Err(SpdyError::StreamNumber(stream));
        }
        let is_first = self.last_stream == 0;
        if self.open.len() >= self.max_streams {
            // A stream that was refused has no reply, so the next one may be the first.
            if !is_first {
                self.last_stream = stream;
            }
            self.writer.write(&encode_rst_stream(stream, RST_REFUSED)).await?;
            return Ok(None);
        }
        self.last_stream = stream;
        self.open.insert(stream);
        self.next = self.end_if(fin, stream);
        self.writer.write(&encode_syn_reply(stream, is_first)).await?;
        Ok(Some(SpdyEvent::Open { stream, headers }))
    }

    fn end_if(&mut self, fin: bool, stream: u32) -> Option<SpdyEvent> {
        (fin && self.open.remove(&stream)).then_some(SpdyEvent::End { stream })
    }
}
