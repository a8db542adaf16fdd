//! From lines of logs to messages: `2016-05-19 10:00:00.123456789 +0000 UTC MESSAGE=hello`, each an element of the
//! answer's only field, written straight into the message's bytes.
//!
//! A line that comes in pieces becomes one element. Pieces of several apps may come mixed, so each app and stream has
//! its own unfinished line, and all of them together are bounded.

use std::borrow::Cow;

use gantry_engine::LineRef;
use gantry_engine::model::{AppName, Timestamp};
use prost::encoding::{encode_varint, encoded_len_varint};

/// A line longer than this continues in elements of its own.
const MOST_LINE: usize = 1 << 20;
/// Invalid bytes become three each. So a line that is longer is looked at in parts of this size,
/// each of which stays well below [`MOST_LINE`].
const MOST_PART: usize = 256 << 10;
/// All unfinished lines together. Beyond that the longest one is given out as it is.
const MOST_UNFINISHED: usize = 4 << 20;
/// A message is begun anew when it has so many bytes; with one more element it is still far from 4 MiB.
const MOST_MESSAGE: usize = 512 << 10;
/// Field 1, length-delimited.
const KEY: u8 = 0x0a;

/// `YYYY-MM-DD HH:MM:SS.nnnnnnnnn +0000 UTC MESSAGE=`
const PREFIX: usize = 48;

/// The beginning of elements. Many lines have the same second, so it is kept.
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

/// A line of which only the beginning has come.
struct Unfinished {
    app: AppName,
    stderr: bool,
    at: Timestamp,
    text: String,
    /// The beginning of a character whose end is in the next piece.
    rest: Vec<u8>,
    /// Whether an element of it was given out.
    begun: bool,
}

/// See the module.
pub(super) struct Lines {
    message: Vec<u8>,
    done: Vec<Vec<u8>>,
    prefix: Prefix,
    unfinished: Vec<Unfinished>,
}

impl Lines {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self { message: Vec::new(), done: Vec::new(), prefix: Prefix::new(), unfinished: Vec::new() }
    }

    /// Adds a line or a piece of one.
    pub(super) fn add(&mut self, line: LineRef<'_>) {
        let place = self.unfinished.iter().position(|one| one.stderr == line.stderr && one.app == *line.app);
        match place {
            None if !line.piece && line.text.len() <= MOST_PART => {
                let text = lossy(line.text);
                let prefix = self.prefix.at(line.at);
                put(&mut self.message, prefix, text.as_bytes());
                self.begin_anew_if_full();
            }
            place => self.add_piece(place, line),
        }
    }

    fn add_piece(&mut self, place: Option<usize>, line: LineRef<'_>) {
        let place = place.unwrap_or_else(|| {
            self.unfinished.push(Unfinished {
                app: line.app.clone(),
                stderr: line.stderr,
                at: line.at,
                text: String::new(),
                rest: Vec::new(),
                begun: false,
            });
            self.unfinished.len() - 1
        });
        for part in line.text.chunks(MOST_PART) {
            self.unfinished[place].push(part);
            self.give_out_what_is_too_long(place);
        }
        if !line.piece {
            self.finish(place);
        } else if self.unfinished.iter().map(|one| one.text.len()).sum::<usize>() > MOST_UNFINISHED {
            let longest = (0..self.unfinished.len()).max_by_key(|place| self.unfinished[*place].text.len());
            longest.into_iter().for_each(|place| self.give_out(place, usize::MAX));
        }
    }

    fn give_out_what_is_too_long(&mut self, place: usize) {
        while self.unfinished[place].text.len() > MOST_LINE {
            self.give_out(place, MOST_LINE);
        }
    }

    /// So much of its text, or all there is, becomes an element, and what follows another one.
    fn give_out(&mut self, place: usize, most: usize) {
        let one = &mut self.unfinished[place];
        let rest = one.text.split_off(one.text.floor_char_boundary(most));
        let text = std::mem::replace(&mut one.text, rest);
        if std::mem::replace(&mut one.begun, true) {
            put(&mut self.message, &[], text.as_bytes());
        } else {
            put(&mut self.message, self.prefix.at(one.at), text.as_bytes());
        }
        self.begin_anew_if_full();
    }

    fn finish(&mut self, place: usize) {
        let one = &mut self.unfinished[place];
        let rest = std::mem::take(&mut one.rest);
        one.text.push_str(&lossy(&rest));
        self.give_out_what_is_too_long(place);
        let one = &self.unfinished[place];
        // Of a line that was given out up to its end there is nothing more to say.
        if !one.begun || !one.text.is_empty() {
            self.give_out(place, usize::MAX);
        }
        self.unfinished.swap_remove(place);
    }

    fn begin_anew_if_full(&mut self) {
        if self.message.len() >= MOST_MESSAGE {
            self.end_message();
        }
    }

    fn end_message(&mut self) {
        // The next one is probably as long.
        let next = Vec::with_capacity(self.message.len());
        self.done.push(std::mem::replace(&mut self.message, next));
    }

    /// The messages so far. Unfinished lines stay.
    pub(super) fn take(&mut self) -> Vec<Vec<u8>> {
        if !self.message.is_empty() {
            self.end_message();
        }
        std::mem::take(&mut self.done)
    }

    /// Nothing more will come: unfinished lines are given out as they are.
    pub(super) fn finish_all(&mut self) {
        while !self.unfinished.is_empty() {
            self.finish(0);
        }
    }
}

impl Unfinished {
    /// Adds bytes that may begin or end within a character.
    fn push(&mut self, bytes: &[u8]) {
        let joined;
        let bytes = if self.rest.is_empty() {
            bytes
        } else {
            self.rest.extend_from_slice(bytes);
            joined = std::mem::take(&mut self.rest);
            &joined
        };
        let end = bytes.len() - open_end(bytes);
        self.text.push_str(&lossy(&bytes[..end]));
        self.rest = bytes[end..].to_vec();
    }
}

/// How many bytes at the end are the beginning of a character (0 to 3).
fn open_end(bytes: &[u8]) -> usize {
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
    // The usual case without the search for what is wrong.
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

/// Appends an element.
fn put(message: &mut Vec<u8>, prefix: &[u8], text: &[u8]) {
    let length = (prefix.len() + text.len()) as u64;
    message.reserve(1 + encoded_len_varint(length) + prefix.len() + text.len());
    message.push(KEY);
    encode_varint(length, message);
    message.extend_from_slice(prefix);
    message.extend_from_slice(text);
}

#[cfg(test)]
#[path = "lines_tests.rs"]
mod tests;
