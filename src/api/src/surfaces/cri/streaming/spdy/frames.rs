//! The frames of SPDY/3.1 (SPDY Protocol, draft 3.1, 2.2 and 2.6), without I/O.
//!
//! Data frames are passed on in pieces as they arrive, so their size needs no limit. Control frames are buffered.

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;

use super::headers::{HeaderError, HeaderReader, Headers};

/// Maximum length of a control frame.
const MAX_CONTROL: usize = 64 << 10;
/// Bytes of the head of a frame.
const HEAD: usize = 8;
/// The version in control frames.
const VERSION: u16 = 3;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
/// The flag of the last frame of a direction of a stream.
const FLAG_FIN: u8 = 1;

/// The status of RST_STREAM: the server does not accept the stream.
pub(in super::super) const RST_REFUSED: u32 = 3;
/// The status of RST_STREAM: the stream is no longer needed.
pub(in super::super) const RST_CANCEL: u32 = 5;

/// An empty header block as the first one of a connection: the head of the zlib stream, then the number of headers.
const FIRST_EMPTY_BLOCK: [u8; 16] =
    [0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0x62, 0x60, 0x60, 0x60, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff];
/// An empty header block after an empty one.
const LATER_EMPTY_BLOCK: [u8; 8] = [0x02, 0x61, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff];

/// A frame, or a piece of a data frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    /// Opens a stream.
    SynStream { stream: u32, headers: Headers, fin: bool },
    /// Accepts a stream of the receiver.
    SynReply { stream: u32 },
    /// Ends a stream at once.
    RstStream { stream: u32 },
    /// To be echoed if the number is odd.
    Ping { id: u32 },
    /// The sender opens no more streams.
    GoAway,
    /// More headers of a stream.
    Headers { stream: u32, fin: bool },
    /// Bytes of a stream; `fin`: the last ones.
    Data { stream: u32, bytes: Bytes, fin: bool },
    /// SETTINGS, WINDOW_UPDATE, and types that this version does not know.
    Ignored,
}

/// The peer does not speak SPDY/3.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(in super::super) enum FrameError {
    /// A control frame of another version.
    #[error("a control frame has version {0} instead of {VERSION}")]
    Version(u16),
    /// A control frame is too long.
    #[error("a control frame has {0} bytes; the limit is {MAX_CONTROL}")]
    TooLong(usize),
    /// A control frame is shorter than its fields.
    #[error("a control frame of type {0} is too short")]
    TooShort(u16),
    /// A header block is invalid.
    #[error(transparent)]
    Headers(#[from] HeaderError),
}

/// Splits the bytes of a connection into frames. It keeps at most one control frame besides the bytes of one push.
#[derive(Debug)]
pub(super) struct FrameReader {
    buffer: BytesMut,
    data: Option<DataFrame>,
    headers: HeaderReader,
}

/// A data frame of which a part has not arrived yet.
#[derive(Debug)]
struct DataFrame {
    stream: u32,
    left: usize,
    fin: bool,
}

impl FrameReader {
    /// For a new connection.
    pub(super) fn new() -> Self {
        Self { buffer: BytesMut::new(), data: None, headers: HeaderReader::new() }
    }

    /// Adds bytes. Take all frames before the next bytes are added.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next frame; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`FrameError`]: the connection cannot continue.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if let Some(data) = self.data.take() {
            return Ok(self.next_data(data));
        }
        let Some(head) = self.buffer.first_chunk::<HEAD>() else { return Ok(None) };
        let (first, flags) = (u32::from_be_bytes([head[0], head[1], head[2], head[3]]), head[4]);
        let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        if first >> 31 == 0 {
            self.buffer.advance(HEAD);
            return Ok(self.next_data(DataFrame { stream: first, left: length, fin: flags & FLAG_FIN != 0 }));
        }
        let [_, _, high, low] = first.to_be_bytes();
        let (version, kind) = ((first >> 16) as u16 & 0x7fff, u16::from_be_bytes([high, low]));
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        if length > MAX_CONTROL {
            return Err(FrameError::TooLong(length));
        }
        if self.buffer.len() < HEAD + length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let body = self.buffer.split_to(length);
        self.control(kind, flags, &body).map(Some)
    }

    /// The next piece of a data frame.
    fn next_data(&mut self, mut data: DataFrame) -> Option<Frame> {
        let count = data.left.min(self.buffer.len());
        if count == 0 && data.left > 0 {
            self.data = Some(data);
            return None;
        }
        let bytes = self.buffer.split_to(count).freeze();
        data.left -= count;
        let (stream, is_last) = (data.stream, data.left == 0);
        let fin = is_last && data.fin;
        if !is_last {
            self.data = Some(data);
        }
        Some(Frame::Data { stream, bytes, fin })
    }

    fn control(&mut self, kind: u16, flags: u8, body: &[u8]) -> Result<Frame, FrameError> {
        let number = || {
            let bytes = body.first_chunk().ok_or(FrameError::TooShort(kind))?;
            Ok::<_, FrameError>(u32::from_be_bytes(*bytes))
        };
        let stream = || Ok::<_, FrameError>(number()? & 0x7fff_ffff);
        let fin = flags & FLAG_FIN != 0;
        let block = |fields: usize| body.get(fields..).ok_or(FrameError::TooShort(kind));
        Ok(match kind {
            SYN_STREAM => Frame::SynStream { stream: stream()?, headers: self.headers.read(block(10)?)?, fin },
            SYN_REPLY => {
                self.headers.read(block(4)?)?;
                Frame::SynReply { stream: stream()? }
            }
            HEADERS => {
                self.headers.read(block(4)?)?;
                Frame::Headers { stream: stream()?, fin }
            }
            RST_STREAM => Frame::RstStream { stream: stream()? },
            PING => Frame::Ping { id: number()? },
            GOAWAY => Frame::GoAway,
            _ => Frame::Ignored,
        })
    }
}

fn encode_control(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + body.len());
    frame.extend((0x8000 | VERSION).to_be_bytes());
    frame.extend(kind.to_be_bytes());
    // The server's control frames have no flags and are short.
    frame.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes());
    frame.extend(body);
    frame
}

/// SYN_REPLY without headers. `first`: it is the first header block of the connection.
pub(super) fn encode_syn_reply(stream: u32, first: bool) -> Vec<u8> {
    let block: &[u8] = if first { &FIRST_EMPTY_BLOCK } else { &LATER_EMPTY_BLOCK };
    encode_control(SYN_REPLY, &[&stream.to_be_bytes(), block].concat())
}

/// RST_STREAM.
pub(in super::super) fn encode_rst_stream(stream: u32, status: u32) -> Vec<u8> {
    encode_control(RST_STREAM, &[stream.to_be_bytes(), status.to_be_bytes()].concat())
}

/// GOAWAY: the last stream that was accepted, and 0, or 1 after a protocol error.
pub(in super::super) fn encode_goaway(last_stream: u32, status: u32) -> Vec<u8> {
    encode_control(GOAWAY, &[last_stream.to_be_bytes(), status.to_be_bytes()].concat())
}

/// PING.
pub(super) fn encode_ping(id: u32) -> Vec<u8> {
    encode_control(PING, &id.to_be_bytes())
}

/// A data frame of at most 16 MiB.
pub(in super::super) fn encode_data(stream: u32, bytes: &[u8], fin: bool) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD + bytes.len());
    frame.extend(stream.to_be_bytes());
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).min((1 << 24) - 1);
    frame.extend((u32::from(u8::from(fin) * FLAG_FIN) << 24 | length).to_be_bytes());
    frame.extend(bytes);
    frame
}

#[cfg(test)]
#[path = "frames_tests.rs"]
pub(super) mod tests;
