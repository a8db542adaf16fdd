//! Reads the log of one app as one stream: all attempts, all rotated files, oldest first, following while the
//! supervisor writes and rotates. Starts at any position without reading what is before it.
//!
//! The source reads a block at a time and returns lines borrowed from it. Memory is bounded by a block and one line; a
//! log without pending data holds none.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use gantry_model::{AppName, Timestamp};

use crate::logs::files::{LogDir, LogPosition, MAX_LINE};
use crate::logs::line::Parser;
use crate::logs::names::LogFile;
use crate::logs::reader::LineRef;

/// The largest and the first block that is read at once.
pub(crate) const BLOCK: usize = 256 << 10;
pub(crate) const FIRST_BLOCK: usize = 16 << 10;
/// How many newer files the source holds open ahead, so that it loses nothing when a supervisor rotates faster for a
/// while. They may keep as many deleted files on the disk.
const AHEAD: usize = 16;
/// The source looks for newer files each time it has read this many bytes.
const SIZE_CHECK_INTERVAL: usize = 1 << 20;

/// The log of one app.
#[derive(Debug)]
pub(crate) struct AppLog {
    pub(crate) app: AppName,
    /// The app was removed with its log, of which only the rest can be read.
    pub(crate) is_removed: bool,
    dir: LogDir,
    open: Option<LogPosition>,
    /// The end.
    stop: Option<LogPosition>,
    /// Whether it ends there; if not, it follows.
    ends: bool,
    /// The files after the open one, opened before they can be deleted.
    ahead: VecDeque<LogPosition>,
    /// Whether `ahead` has all newer files of the last listing.
    complete: bool,
    /// Bytes read since the last search for newer files.
    bytes_since_listing: usize,
    /// All available lines were returned.
    is_drained: bool,
    buffer: Buffer,
    parser: Parser,
    /// The time of the last line that had one, for lines without a time.
    at: Option<Timestamp>,
    /// The line of which only the beginning was returned, because it is too long.
    long_line: Option<Line>,
    next: Option<Line>,
}

/// The bytes that were read and not returned yet: `bytes[taken..filled]`.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    taken: usize,
    filled: usize,
    /// The maximum size of one read.
    block: usize,
    /// Whether the last read filled its buffer.
    filled_last_read: bool,
}

/// A line, or a piece of one, in the buffer.
#[derive(Debug, Clone)]
struct Line {
    at: Option<Timestamp>,
    stderr: bool,
    piece: bool,
    partial: bool,
    text: Range<usize>,
    /// Bytes of the file that it covers.
    size: usize,
}

impl AppLog {
    /// The log in `dir` from `start` on (without it: from the beginning), reading at most `block` bytes at once.
    pub(crate) fn new(app: AppName, dir: LogDir, start: Option<LogPosition>, block: usize) -> Self {
        Self {
            app,
            is_removed: false,
            dir,
            open: start,
            stop: None,
            ends: false,
            ahead: VecDeque::new(),
            complete: false,
            bytes_since_listing: 0,
            is_drained: false,
            buffer: Buffer { block, ..Buffer::default() },
            parser: Parser::default(),
            at: None,
            long_line: None,
            next: None,
        }
    }

    /// The same, with a time for lines before the first that has one.
    pub(crate) fn after(self, at: Option<Timestamp>) -> Self {
        Self { at, ..self }
    }

    /// The same, ending at this position. Without a position there is nothing to read.
    pub(crate) fn ending(self, stop: Option<LogPosition>) -> Self {
        Self { ends: true, is_drained: stop.is_none(), stop, ..self }
    }

    /// The directory of the log.
    pub(crate) fn dir(&self) -> &LogDir {
        &self.dir
    }

    /// A log that is still written may have more by now.
    pub(crate) fn wake(&mut self) {
        self.is_drained &= self.ends;
    }

    /// Whether all available lines were returned.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Whether a line is current, and its time, if it or one before it has one.
    pub(crate) fn shown(&self) -> Option<Option<Timestamp>> {
        self.next.as_ref().map(|line| line.at)
    }

    /// The current line, and how many bytes of the file it covers.
    pub(crate) fn line(&self) -> Option<(LineRef<'_>, usize)> {
        let line = self.next.as_ref()?;
        let at = line.at.unwrap_or_default();
        let text = self.buffer.bytes.get(line.text.clone())?;
        let (stderr, piece, partial) = (line.stderr, line.piece, line.partial);
        Some((LineRef { app: &self.app, at, stderr, piece, partial, text }, line.size))
    }

    /// Moves to the next line, which becomes current if it is in the buffer.
    pub(crate) fn pass(&mut self) {
        self.next = None;
        self.scan();
    }

    /// Reads until a line is current; returns whether one is. If none is, all available lines were returned.
    pub(crate) fn poll(&mut self) -> io::Result<bool> {
        while !self.is_drained && self.next.is_none() && !self.scan() {
            if !(self.fill()? || self.go_on()?) {
                self.rest();
            }
        }
        Ok(self.next.is_some())
    }

    /// Moves to the next line in the buffer. A line that is not in the format (the file was edited) is taken as it is.
    fn scan(&mut self) -> bool {
        let Buffer { bytes, taken, filled, .. } = &self.buffer;
        let held = &bytes[*taken..*filled];
        let window = &held[..held.len().min(MAX_LINE)];
        let (length, whole) = match memchr::memchr(b'\n', window) {
            Some(at) => (at, true),
            None if window.len() == MAX_LINE => (MAX_LINE, false),
            None => return false,
        };
        let (start, end) = (*taken, *taken + length);
        let size = length + usize::from(whole);
        let line = match self.long_line.take() {
            Some(begun) => Line { text: start..end, size, ..begun },
            None => match self.parser.parse(&window[..length]) {
                Some(parsed) => {
                    self.at = Some(parsed.at);
                    let (stderr, piece, partial) = (parsed.stderr, parsed.piece, parsed.partial);
                    Line { at: self.at, stderr, piece, partial, text: end - parsed.text.len()..end, size }
                }
                None => Line { at: self.at, stderr: false, piece: false, partial: false, text: start..end, size },
            },
        };
        self.buffer.taken += size;
        self.next = Some(if whole {
            line
        } else {
            self.long_line = Some(line.clone());
            Line { piece: true, partial: true, ..line }
        });
        true
    }

    /// Reads more of the open file; returns whether there was any.
    fn fill(&mut self) -> io::Result<bool> {
        let Some(open) = &mut self.open else { return Ok(false) };
        let max_bytes = match &self.stop {
            Some(stop) if stop.inode == open.inode => stop.offset.saturating_sub(open.offset),
            _ => u64::MAX,
        };
        let room = self.buffer.room();
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX).min(room.len());
        let read = open.file.read_at(&mut room[..max_bytes], open.offset)?;
        self.buffer.took(read);
        open.offset += read as u64;
        self.bytes_since_listing += read;
        if self.bytes_since_listing >= SIZE_CHECK_INTERVAL {
            self.look_ahead()?;
        }
        Ok(read > 0)
    }

    /// Moves to the next file; returns whether there is one, or more data in this one.
    fn go_on(&mut self) -> io::Result<bool> {
        self.look_ahead()?;
        if self.ahead.is_empty() {
            return Ok(false);
        }
        // Nothing is written to a file once it has a successor; but it may have been written between the two checks.
        if self.fill()? {
            return Ok(true);
        }
        // A full disk has torn an unfinished line at the end of a rotated file: it is discarded.
        self.open = self.ahead.pop_front();
        self.buffer.empty();
        self.long_line = None;
        Ok(true)
    }

    /// All available lines were returned. An unfinished line is read again when it is complete: a full disk may cut it
    /// off until then. That can take any time, so the memory is released.
    fn rest(&mut self) {
        self.is_drained = true;
        if let Some(open) = &mut self.open {
            open.offset -= (self.buffer.filled - self.buffer.taken) as u64;
        }
        self.buffer = Buffer { block: self.buffer.block, ..Buffer::default() };
        if self.ends {
            self.open = None;
            self.ahead.clear();
        }
    }

    /// Opens the files newer than the newest open one, up to the file in which to end.
    fn look_ahead(&mut self) -> io::Result<()> {
        self.bytes_since_listing = 0;
        let last = self.stop.as_ref().map(|stop| stop.inode);
        let newest = self.ahead.back().or(self.open.as_ref()).map(|open| open.inode);
        if (newest.is_some() && newest == last) || (self.complete && !self.dir.changed()?) {
            return Ok(());
        }
        let parts = self.dir.parts()?;
        self.open_newer(&parts)
    }

    /// The same of these files, which a listing found. Some of them may be deleted by now.
    fn open_newer(&mut self, parts: &[LogFile]) -> io::Result<()> {
        self.complete = false;
        let newest = self.ahead.back().or(self.open.as_ref()).map(|open| open.inode);
        // A file that no longer exists was older than all existing ones.
        let known = newest.and_then(|inode| parts.iter().position(|part| part.inode == inode));
        let newer = parts.get(known.map_or(0, |at| at + 1)..).unwrap_or_default();
        let last = self.stop.as_ref().map(|stop| LogPosition { offset: 0, ..stop.clone() });
        if let Some(last) = last.as_ref().filter(|last| newer.iter().all(|part| part.inode != last.inode)) {
            // It was deleted, and so were all in between; the existing files came later.
            self.ahead.push_back(last.clone());
            return Ok(());
        }
        for part in newer {
            if self.ahead.len() >= AHEAD {
                return Ok(());
            }
            if let Some(last) = last.as_ref().filter(|last| last.inode == part.inode) {
                self.ahead.push_back(last.clone());
                break;
            }
            // Files deleted in the meantime are older than the remaining ones.
            self.ahead.extend(self.dir.open(part)?);
        }
        self.complete = true;
        Ok(())
    }
}

impl Buffer {
    /// The free space to read into. Buffered bytes (less than a line) move to the front.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.taken..self.filled, 0);
        self.filled -= self.taken;
        self.taken = 0;
        // Twice the size that was enough for the last read, or for a longer line.
        let wanted = if self.filled_last_read { self.bytes.len() * 2 } else { self.bytes.len() };
        let wanted = wanted.clamp(FIRST_BLOCK, self.block.max(FIRST_BLOCK)).max(self.filled * 2);
        if wanted > self.bytes.len() {
            self.bytes.resize(wanted, 0);
        }
        &mut self.bytes[self.filled..]
    }

    fn took(&mut self, read: usize) {
        self.filled += read;
        self.filled_last_read = self.filled == self.bytes.len();
    }

    fn empty(&mut self) {
        (self.taken, self.filled) = (0, 0);
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
