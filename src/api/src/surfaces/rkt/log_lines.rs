//! Encodes log lines: `2016-05-19 10:00:00.123456789 +0000 UTC MESSAGE=hello`, each an element of the only field of
//! GetLogsResponse. The protobuf is written by hand: each line is copied once, into the bytes of the message.
//!
//! A line that arrives in pieces becomes one element. Pieces of several apps can interleave, so each app and stream has
//! its own unfinished line; their total size is limited.

use std::borrow::Cow;

use gantry_engine::LineRef;
use gantry_model::{AppName, Timestamp};
use gantry_proto::encoded::Encoded;
use prost::encoding::{encode_varint, encoded_len_varint};

use crate::logs::LogEncoder;

/// Maximum bytes of an element. The rest of a longer line becomes further elements.
const MAX_LINE: usize = 1 << 20;
/// Maximum bytes that are converted at a time. Invalid bytes become three each, so a part stays below [`MAX_LINE`].
const MAX_PART: usize = 256 << 10;
/// Maximum bytes of all unfinished lines. Beyond it, the longest one is flushed.
const MAX_UNFINISHED: usize = 4 << 20;
/// A message of this many bytes is complete. With one more element it stays far below 4 MiB, the usual limit of
/// clients.
const MAX_MESSAGE: usize = 512 << 10;
/// Field 1, length-delimited.
const KEY: u8 = 0x0a;

/// `YYYY-MM-DD HH:MM:SS.nnnnnnnnn +0000 UTC MESSAGE=`
const PREFIX: usize = 48;

/// The prefix of elements, kept because many lines have the same second.
struct Prefix {
    text: [u8; PREFIX],
    second: Option<i64>,
}

impl Prefix {
    fn new() -> Self {
        Self { text: *b"0000-00-00 00:00:00.000000000 +0000 UTC MESSAGE=", second: None }
    }

    fn at(&mut self, at: Timestamp) -> &[u8; PREFIX] {
        if self.second != Some(at.seconds()) {
            self.second = Some(at.seconds());
            let text = at.rfc3339();
            self.text[..10].copy_from_slice(&text.as_bytes()[..10]);
            self.text[11..19].copy_from_slice(&text.as_bytes()[11..19]);
        }
        let mut nanos = at.subsec_nanos();
        for digit in self.text[20..29].iter_mut().rev() {
            *digit = b'0' + (nanos % 10) as u8;
            nanos /= 10;
        }
        &self.text
    }
}

/// A line whose end has not arrived.
struct Unfinished {
    app: AppName,
    stderr: bool,
    at: Timestamp,
    text: String,
    /// An incomplete UTF-8 sequence, which the next piece continues.
    rest: Vec<u8>,
    /// Whether an element of it was flushed.
    is_flushed: bool,
}

/// See the module.
pub(super) struct LineEncoder {
    message: Vec<u8>,
    done: Vec<Vec<u8>>,
    prefix: Prefix,
    unfinished: Vec<Unfinished>,
}

impl LineEncoder {
    /// An encoder without lines.
    pub(super) fn new() -> Self {
        Self { message: Vec::new(), done: Vec::new(), prefix: Prefix::new(), unfinished: Vec::new() }
    }

    fn add_piece(&mut self, place: Option<usize>, line: LineRef<'_>) {
        let place = place.unwrap_or_else(|| {
            self.unfinished.push(Unfinished {
                app: line.app.clone(),
                stderr: line.stderr,
                at: line.at,
                text: String::new(),
                rest: Vec::new(),
                is_flushed: false,
            });
            self.unfinished.len() - 1
        });
        for part in line.text.chunks(MAX_PART) {
            self.unfinished[place].push(part);
            self.flush_long_line(place);
        }
        if !line.piece {
            self.finish_line(place);
        } else if self.unfinished.iter().map(|one| one.text.len()).sum::<usize>() > MAX_UNFINISHED {
            let longest = (0..self.unfinished.len()).max_by_key(|place| self.unfinished[*place].text.len());
            longest.into_iter().for_each(|place| self.flush(place, usize::MAX));
        }
    }

    fn flush_long_line(&mut self, place: usize) {
        while self.unfinished[place].text.len() > MAX_LINE {
            self.flush(place, MAX_LINE);
        }
    }

    /// Makes an element of at most this many bytes of its text.
    fn flush(&mut self, place: usize, limit: usize) {
        let one = &mut self.unfinished[place];
        let rest = one.text.split_off(one.text.floor_char_boundary(limit));
        let text = std::mem::replace(&mut one.text, rest);
        if std::mem::replace(&mut one.is_flushed, true) {
            put_element(&mut self.message, &[], text.as_bytes());
        } else {
            put_element(&mut self.message, self.prefix.at(one.at), text.as_bytes());
        }
        self.end_message_if_full();
    }

    fn finish_line(&mut self, place: usize) {
        let one = &mut self.unfinished[place];
        let rest = std::mem::take(&mut one.rest);
        one.text.push_str(&lossy(&rest));
        self.flush_long_line(place);
        let one = &self.unfinished[place];
        // A line that was flushed up to its end needs no further element.
        if !one.is_flushed || !one.text.is_empty() {
            self.flush(place, usize::MAX);
        }
        self.unfinished.swap_remove(place);
    }

    fn end_message_if_full(&mut self) {
        if self.message.len() >= MAX_MESSAGE {
            self.end_message();
        }
    }

    fn end_message(&mut self) {
        // The next message is probably as long.
        let next = Vec::with_capacity(self.message.len());
        self.done.push(std::mem::replace(&mut self.message, next));
    }
}

impl LogEncoder for LineEncoder {
    type Message = Encoded;

    fn add(&mut self, line: LineRef<'_>) {
        let place = self.unfinished.iter().position(|one| one.stderr == line.stderr && one.app == *line.app);
        match place {
            None if !line.piece && line.text.len() <= MAX_PART => {
                let text = lossy(line.text);
                let prefix = self.prefix.at(line.at);
                put_element(&mut self.message, prefix, text.as_bytes());
                self.end_message_if_full();
            }
            place => self.add_piece(place, line),
        }
    }

    fn take_messages(&mut self) -> Vec<Encoded> {
        if !self.message.is_empty() {
            // A client that does not read must not cost the space of another message.
            self.done.push(std::mem::take(&mut self.message));
        }
        self.done.drain(..).map(|bytes| Encoded(bytes.into())).collect()
    }

    fn finish(&mut self) {
        while !self.unfinished.is_empty() {
            self.finish_line(0);
        }
    }
}

impl Unfinished {
    /// Adds bytes that may start or end within a character.
    fn push(&mut self, bytes: &[u8]) {
        let joined;
        let bytes = if self.rest.is_empty() {
            bytes
        } else {
            self.rest.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.rest);
            &joined
        };
        let end = bytes.len() - incomplete_tail_len(bytes);
        self.text.push_str(&lossy(&bytes[..end]));
        self.rest = bytes[end..].to_vec();
    }
}

/// The number of bytes (0 to 3) of an incomplete UTF-8 sequence at the end.
fn incomplete_tail_len(bytes: &[u8]) -> usize {
    let tail = &bytes[bytes.len().saturating_sub(3)..];
    match std::str::from_utf8(tail) {
        Ok(_) => 0,
        Err(_) => (1..=tail.len())
            .find(|&count| {
                let end = std::str::from_utf8(&tail[tail.len() - count..]);
                end.is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
            })
            .unwrap_or(0),
    }
}

fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    // Valid text, the usual case, is not copied.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Appends an element.
fn put_element(message: &mut Vec<u8>, prefix: &[u8], text: &[u8]) {
    let length = (prefix.len() + text.len()) as u64;
    message.reserve(1 + encoded_len_varint(length) + prefix.len() + text.len());
    message.push(KEY);
    encode_varint(length, message);
    message.extend_from_slice(prefix);
    message.extend_from_slice(text);
}

#[cfg(test)]
#[path = "log_lines_tests.rs"]
mod tests;
