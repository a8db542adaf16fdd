//! The log of one app, read as one stream: all attempts, all rotated files, oldest first, and onwards while the
//! supervisor writes and rotates. Starts anywhere without reading what comes before.
//!
//! Files are `ATTEMPT.log`, and older parts `ATTEMPT.log.1` (newest) to `.N`. A file that is rotated keeps its inode: that is how
//! the reader knows which one comes next. Memory is bounded by a block and one line.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use gantry_model::{AppName, Timestamp};

use crate::log_line::{self, LogLine};

const BLOCK: usize = 64 << 10;
/// A line longer than this was not written by a supervisor; it is given out in pieces.
const MOST_LINE: usize = 1 << 20;
/// So many newer files are held open ahead of the reader, so that a writer who is faster for a while (and deletes
/// what it rotates away) takes nothing from it. They may keep that many deleted files on the disk.
const AHEAD: usize = 16;
/// Newer files are looked for whenever so much was read.
const LOOK_EVERY: usize = 1 << 20;
/// Enough of a line's beginning to tell its tag: time, stream, tag.
const HEAD: usize = 64;

/// A file of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Part {
    attempt: u32,
    /// 0 is the current one.
    age: u32,
    inode: u64,
    path: PathBuf,
}

/// The log of one app.
#[derive(Debug)]
pub(crate) struct AppLog {
    app: AppName,
    dir: PathBuf,
    open: Option<Open>,
    /// The files after it, opened before they can be deleted.
    ahead: VecDeque<Open>,
    /// Bytes read since newer files were looked for.
    unlooked: usize,
    buffer: Vec<u8>,
    /// What of the buffer has been given out.
    taken: usize,
    /// The time of the last line, for lines that have none.
    at: Timestamp,
    next: Option<LogLine>,
}

#[derive(Debug)]
struct Open {
    file: File,
    inode: u64,
    offset: u64,
}

impl AppLog {
    /// The log in `dir`, from its beginning. A directory that is not there is an empty log.
    pub(crate) fn new(app: AppName, dir: PathBuf) -> Self {
        let (open, ahead, unlooked) = (None, VecDeque::new(), 0);
        Self { app, dir, open, ahead, unlooked, buffer: Vec::new(), taken: 0, at: Timestamp(0), next: None }
    }

    /// Begins at the first line that is not older than `since`.
    pub(crate) fn since(&mut self, since: Timestamp) -> io::Result<()> {
        for part in parts(&self.dir)?.iter().rev() {
            let Some(file) = open(&part.path)? else { continue };
            let size = file.metadata()?.len();
            let first = line_at(&file, 0, size)?.and_then(|line| log_line::time_of(&line));
            if first.is_none_or(|first| first >= since) {
                // It may begin in an older one still; if there is none, here. So too with an empty file.
                self.go(file, 0)?;
                continue;
            }
            let offset = bisect(&file, size, since)?;
            return self.go(file, offset);
        }
        Ok(())
    }

    /// Begins so that `lines` whole lines are left, or fewer if there are no more; not before where it stands.
    pub(crate) fn tail(&mut self, lines: usize) -> io::Result<()> {
        let floor = self.open.as_ref().map(|open| (open.inode, open.offset));
        let mut counter = Tail { wanted: lines, seen: 0, newest: true };
        for part in parts(&self.dir)?.iter().rev() {
            let Some(file) = open(&part.path)? else { continue };
            let least = floor.filter(|(inode, _)| *inode == part.inode).map(|(_, offset)| offset);
            let found = counter.scan(&file, least.unwrap_or(0))?;
            if let Some(offset) = found {
                return self.go(file, offset);
            }
            if least.is_some() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn go(&mut self, file: File, offset: u64) -> io::Result<()> {
        let inode = file.metadata()?.ino();
        self.ahead.clear();
        self.enter(Open { file, inode, offset });
        Ok(())
    }

    fn enter(&mut self, next: Open) {
        self.open = Some(next);
        self.buffer.clear();
        self.taken = 0;
    }

    /// The next line that is there, without taking it.
    pub(crate) fn peek(&mut self) -> io::Result<Option<&LogLine>> {
        if self.next.is_none() {
            self.next = self.read()?;
        }
        Ok(self.next.as_ref())
    }

    /// Takes the line that `peek` showed.
    pub(crate) fn take(&mut self) -> Option<LogLine> {
        self.next.take()
    }

    fn read(&mut self) -> io::Result<Option<LogLine>> {
        loop {
            let rest = &self.buffer[self.taken..];
            if let Some(end) = rest.iter().position(|&c| c == b'\n') {
                let line = self.line(self.taken, self.taken + end);
                self.taken += end + 1;
                return Ok(Some(line));
            }
            if rest.len() >= MOST_LINE {
                let line = self.line(self.taken, self.buffer.len());
                self.taken = self.buffer.len();
                return Ok(Some(line));
            }
            if !self.fill()? && !self.go_on()? {
                return Ok(None);
            }
        }
    }

    /// A line of the buffer. What is not in the format (somebody edited the file) is shown as it is.
    fn line(&mut self, start: usize, end: usize) -> LogLine {
        let bytes = &self.buffer[start..end];
        let app = self.app.clone();
        match log_line::parse(bytes) {
            Some(parsed) => {
                self.at = parsed.at;
                let text = parsed.text.to_vec();
                LogLine { app, at: parsed.at, stderr: parsed.stderr, partial: parsed.partial, text }
            }
            None => LogLine { app, at: self.at, stderr: false, partial: false, text: bytes.to_vec() },
        }
    }

    /// Reads on in the open file; whether there was something.
    fn fill(&mut self) -> io::Result<bool> {
        let Some(open) = &mut self.open else { return Ok(false) };
        self.buffer.drain(..self.taken);
        self.taken = 0;
        let held = self.buffer.len();
        self.buffer.resize(held + BLOCK, 0);
        let read = open.file.read_at(&mut self.buffer[held..], open.offset);
        self.buffer.truncate(held + read.as_ref().map_or(0, |read| *read));
        let read = read?;
        open.offset += read as u64;
        self.unlooked += read;
        if self.unlooked >= LOOK_EVERY {
            self.look_ahead()?;
        }
        Ok(read > 0)
    }

    /// Goes on in the next file; whether there is one, or more in this one.
    fn go_on(&mut self) -> io::Result<bool> {
        self.look_ahead()?;
        if self.ahead.is_empty() {
            return Ok(false);
        }
        // Nothing is written to a file once it has a successor; but it may have been between our two looks.
        if self.fill()? {
            return Ok(true);
        }
        // An unfinished line at the end of a rotated file was torn by a full disk: it has no end and goes.
        if let Some(next) = self.ahead.pop_front() {
            self.enter(next);
        }
        Ok(true)
    }

    /// Opens the files that are newer than the newest one we have.
    fn look_ahead(&mut self) -> io::Result<()> {
        self.unlooked = 0;
        let parts = parts(&self.dir)?;
        let newest = self.ahead.back().or(self.open.as_ref()).map(|open| open.inode);
        // One that is not there any more was older than all that are.
        let known = newest.and_then(|inode| parts.iter().position(|part| part.inode == inode));
        for part in parts.iter().skip(known.map_or(0, |at| at + 1)) {
            if self.ahead.len() >= AHEAD {
                break;
            }
            let Some(file) = open(&part.path)? else { break };
            // Rotated since we looked: this is another one, and its turn comes at the next look.
            if file.metadata()?.ino() != part.inode {
                break;
            }
            self.ahead.push_back(Open { file, inode: part.inode, offset: 0 });
        }
        Ok(())
    }
}

/// All files of a log, oldest first, as they were at one moment: looked at until two looks agree.
fn parts(dir: &Path) -> io::Result<Vec<Part>> {
    let mut before = look(dir)?;
    for _ in 0..50 {
        let now = look(dir)?;
        if now == before {
            break;
        }
        before = now;
    }
    Ok(before)
}

fn look(dir: &Path) -> io::Result<Vec<Part>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut parts = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Some((attempt, age)) = entry.file_name().to_str().and_then(name) else { continue };
        match entry.metadata() {
            Ok(meta) if meta.is_file() => {
                parts.push(Part { attempt, age, inode: meta.ino(), path: entry.path() });
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    parts.sort_by_key(|part| (part.attempt, std::cmp::Reverse(part.age)));
    Ok(parts)
}

/// `ATTEMPT.log` or `ATTEMPT.log.AGE`.
fn name(name: &str) -> Option<(u32, u32)> {
    let (attempt, rest) = name.split_once(".log")?;
    let age = if rest.is_empty() { 0 } else { rest.strip_prefix('.')?.parse().ok().filter(|age| *age > 0)? };
    Some((attempt.parse().ok()?, age))
}

fn open(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The beginning of the line that starts at `offset`: at most [`HEAD`] bytes of it.
fn line_at(file: &File, offset: u64, size: u64) -> io::Result<Option<Vec<u8>>> {
    if offset >= size {
        return Ok(None);
    }
    let mut bytes = vec![0; HEAD];
    let read = file.read_at(&mut bytes, offset)?;
    bytes.truncate(read);
    if let Some(end) = bytes.iter().position(|&c| c == b'\n') {
        bytes.truncate(end);
    }
    Ok(Some(bytes))
}

/// Where the line after the one that covers `offset` starts.
fn next_line(file: &File, mut offset: u64, size: u64) -> io::Result<u64> {
    let mut block = [0; 4096];
    while offset < size {
        let read = file.read_at(&mut block, offset)?;
        if read == 0 {
            break;
        }
        if let Some(end) = block[..read].iter().position(|&c| c == b'\n') {
            return Ok(offset + end as u64 + 1);
        }
        offset += read as u64;
    }
    Ok(size)
}

/// Where the first line starts that is not older than `since`, in a file whose lines are in the order of time.
fn bisect(file: &File, size: u64, since: Timestamp) -> io::Result<u64> {
    // Every line before `low` is older; `low` is the start of a line. No older line starts at or after `high`.
    let (mut low, mut high) = (0, size);
    while low < high {
        let middle = low + (high - low) / 2;
        // The byte before decides whether a line starts right in the middle.
        let start = if middle == low { low } else { next_line(file, middle - 1, high)? };
        let at =
            if start < high { line_at(file, start, size)?.and_then(|line| log_line::time_of(&line)) } else { None };
        match at {
            Some(at) if at < since => low = next_line(file, start, size)?,
            // No line starts between the middle and the end, or it is young enough.
            _ => high = middle,
        }
    }
    Ok(low)
}

/// Whether the newest file of a log ends with the last piece of a line (or is empty).
pub(crate) fn ends_in_a_whole_line(dir: &Path) -> io::Result<bool> {
    let Some(part) = parts(dir)?.pop() else { return Ok(true) };
    let Some(file) = open(&part.path)? else { return Ok(true) };
    let size = file.metadata()?.len();
    let from = size.saturating_sub(MOST_LINE as u64);
    let mut bytes = vec![0; usize::try_from(size - from).unwrap_or(MOST_LINE)];
    file.read_exact_at(&mut bytes, from)?;
    let Some(whole) = bytes.strip_suffix(b"\n") else { return Ok(bytes.is_empty()) };
    let last = whole.rsplit(|&c| c == b'\n').next().unwrap_or(whole);
    Ok(log_line::parse(last).is_some_and(|line| !line.piece))
}

/// Counts whole lines backwards over several files.
struct Tail {
    wanted: usize,
    seen: usize,
    /// Nothing was looked at yet.
    newest: bool,
}

impl Tail {
    /// Scans a file from its end down to `least`. Where the wanted lines begin, if it is in this file.
    fn scan(&mut self, file: &File, least: u64) -> io::Result<Option<u64>> {
        let size = file.metadata()?.len();
        let mut low = size;
        let mut block: Vec<u8> = Vec::new();
        // The end of the line whose start is looked for; what follows the last newline is no line yet.
        let mut end: Option<u64> = None;
        while low > least {
            let step = (low - least).min(BLOCK as u64);
            low -= step;
            block.resize(usize::try_from(step).unwrap_or(BLOCK), 0);
            file.read_exact_at(&mut block, low)?;
            let breaks = block.iter().enumerate().rev().filter(|(_, c)| **c == b'\n');
            for start in breaks.map(|(at, _)| low + at as u64 + 1) {
                if let Some(found) = self.count(file, start, end, size)? {
                    return Ok(Some(found));
                }
                end = Some(start);
            }
        }
        self.count(file, least, end, size)
    }

    /// Takes note of the line from `start` to `end`. Where to begin, if it is one line too many.
    fn count(&mut self, file: &File, start: u64, end: Option<u64>, size: u64) -> io::Result<Option<u64>> {
        let Some(end) = end.filter(|end| *end > start) else { return Ok(None) };
        let head = line_at(file, start, size)?.unwrap_or_default();
        let piece = log_line::parse(&head).is_some_and(|line| line.piece);
        // A line is counted at its last piece; the newest may have none yet.
        if !piece || self.newest {
            self.seen += 1;
        }
        self.newest = false;
        Ok((self.seen > self.wanted).then_some(end))
    }
}

#[cfg(test)]
#[path = "log_source_tests.rs"]
mod tests;
