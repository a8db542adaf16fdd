//! The frames of RFC 6455, 5, without I/O. The payload of messages is passed on in pieces as it arrives, so their size
//! needs no limit.

use bytes::{Buf as _, Bytes, BytesMut};
use thiserror::Error;

/// Maximum payload of a control frame (RFC 6455, 5.5).
const MAX_CONTROL: u64 = 125;
/// Close codes of RFC 6455, 7.4.1: the session is complete.
pub(in super::super) const CLOSE_NORMAL: u16 = 1000;
/// The client does not follow the protocol.
pub(in super::super) const CLOSE_PROTOCOL_ERROR: u16 = 1002;
/// A message is too big.
pub(in super::super) const CLOSE_TOO_BIG: u16 = 1009;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
const CONTROL: u8 = 0x08;

/// The opcodes of frames that the server sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(in super::super) enum Opcode {
    /// A text message.
    Text = 1,
    /// A binary message.
    Binary = 2,
    /// The last frame of a connection.
    Close = 8,
    /// The answer to a ping.
    Pong = 10,
}

/// Something that the client sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum WebSocketEvent {
    /// A piece of a message. `first` and `last`: it begins and ends the message.
    Piece { bytes: Bytes, first: bool, last: bool },
    /// To be answered with a pong of the same payload.
    Ping(Bytes),
    /// Of no consequence.
    Pong,
    /// The client sends nothing more.
    Close,
}

/// The client does not follow RFC 6455.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(in super::super) enum WebSocketError {
    /// A frame is not masked (5.1).
    #[error("a frame is not masked")]
    Unmasked,
    /// Reserved bits or opcodes are used (5.2).
    #[error("a frame uses a reserved bit or opcode")]
    Reserved,
    /// A control frame is fragmented or too long (5.5).
    #[error("a control frame is fragmented or has more than {MAX_CONTROL} bytes")]
    Control,
    /// A message begins inside another, or a continuation outside of one (5.4).
    #[error("a message is fragmented wrongly")]
    Fragmentation,
}

/// Splits the bytes of a connection into pieces of messages. It keeps at most one control frame besides the bytes of
/// one push.
#[derive(Debug, Default)]
pub(in super::super) struct MessageReader {
    buffer: BytesMut,
    payload: Option<Payload>,
    /// Whether the last frame of a message was not the last of that message.
    in_message: bool,
}

/// The payload of a frame, of which a part has not arrived yet.
#[derive(Debug)]
struct Payload {
    opcode: u8,
    fin: bool,
    left: u64,
    mask: [u8; 4],
    /// Whether the next piece begins a message.
    first: bool,
}

impl MessageReader {
    /// Adds bytes. Take all events before the next bytes are added.
    pub(in super::super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next event; `None`: more bytes are needed.
    ///
    /// # Errors
    /// [`WebSocketError`]: the connection cannot continue.
    pub(in super::super) fn next(&mut self) -> Result<Option<WebSocketEvent>, WebSocketError> {
        let payload = match self.payload.take() {
            Some(payload) => payload,
            None => match self.head()? {
                Some(payload) => payload,
                None => return Ok(None),
            },
        };
        Ok(if payload.opcode & CONTROL != 0 { self.control(payload) } else { self.piece(payload) })
    }

    /// Reads the head of a frame.
    fn head(&mut self) -> Result<Option<Payload>, WebSocketError> {
        let Some([first, second]) = self.buffer.first_chunk().copied() else { return Ok(None) };
        let (opcode, fin) = (first & 0x0f, first & FIN != 0);
        if first & RESERVED != 0 || !matches!(opcode, 0..=2 | 8..=10) {
            return Err(WebSocketError::Reserved);
        }
        if second & MASKED == 0 {
            return Err(WebSocketError::Unmasked);
        }
        let extended = match second & LENGTH {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        if self.buffer.len() < 2 + extended + 4 {
            return Ok(None);
        }
        self.buffer.advance(2);
        let left = match extended {
            2 => self.buffer.get_u16().into(),
            8 => self.buffer.get_u64(),
            _ => u64::from(second & LENGTH),
        };
        let mask = self.buffer.get_u32().to_be_bytes();
        let is_control = opcode & CONTROL != 0;
        if is_control && (!fin || left > MAX_CONTROL) {
            return Err(WebSocketError::Control);
        }
        if left >> 63 != 0 {
            return Err(WebSocketError::Reserved);
        }
        if !is_control {
            if (opcode == 0) != self.in_message {
                return Err(WebSocketError::Fragmentation);
            }
            self.in_message = !fin;
        }
        Ok(Some(Payload { opcode, fin, left, mask, first: opcode != 0 }))
    }

    fn piece(&mut self, mut payload: Payload) -> Option<WebSocketEvent> {
        if self.buffer.is_empty() && payload.left > 0 {
            self.payload = Some(payload);
            return None;
        }
        let bytes = self.take(&mut payload);
        let (first, last) = (payload.first, payload.fin && payload.left == 0);
        if payload.left > 0 {
            payload.first = false;
            self.payload = Some(payload);
        }
        Some(WebSocketEvent::Piece { bytes, first, last })
    }

    fn control(&mut self, mut payload: Payload) -> Option<WebSocketEvent> {
        if usize::try_from(payload.left).is_ok_and(|left| self.buffer.len() < left) {
            self.payload = Some(payload);
            return None;
        }
        let bytes = self.take(&mut payload);
        Some(match payload.opcode {
            8 => WebSocketEvent::Close,
            9 => WebSocketEvent::Ping(bytes),
            _ => WebSocketEvent::Pong,
        })
    }

    /// Takes and unmasks what has arrived of a payload.
    fn take(&mut self, payload: &mut Payload) -> Bytes {
        let count = usize::try_from(payload.left).unwrap_or(usize::MAX).min(self.buffer.len());
        let mut bytes = self.buffer.split_to(count);
        for (byte, mask) in bytes.iter_mut().zip(payload.mask.iter().cycle()) {
            *byte ^= mask;
        }
        payload.mask.rotate_left(count % 4);
        payload.left -= count as u64;
        bytes.freeze()
    }
}

/// A frame that is a whole message, or a control frame.
pub(in super::super) fn encode_frame(opcode: Opcode, parts: &[&[u8]]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    let mut frame = Vec::with_capacity(10 + length);
    frame.push(FIN | opcode as u8);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ 0..=125), _) => frame.push(length),
        (_, Ok(length)) => {
            frame.push(126);
            frame.extend(length.to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    parts.iter().for_each(|part| frame.extend_from_slice(part));
    frame
}

/// A close frame.
pub(in super::super) fn encode_close(code: u16) -> Vec<u8> {
    encode_frame(Opcode::Close, &[&code.to_be_bytes()])
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
