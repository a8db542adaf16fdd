//! Writes what an app prints to its log file, in the format of the Kubernetes CRI
//! (`RFC3339Nano stream P|F text`), and rotates it.
//!
//! A line longer than [`PIECE`] is written in pieces marked `P`; the last piece of every line is marked `F`, and `F:noeol` when
//! the app ended without a newline. Trouble with the file never reaches the app: bytes are dropped and counted.

use std::io;
use std::os::fd::OwnedFd;

use gantry_contract::plan::LogLimits;
use gantry_model::Timestamp;
use rustix::fs::{Mode, OFlags};

const PIECE_OF_LINE: &str = "P";
const WHOLE: &str = "F";
/// Tags are a list separated by colons, of which readers know the first: a whole line whose newline was never written.
const NO_NEWLINE: &str = "F:noeol";

/// The longest text of one record, in bytes.
const PIECE: usize = 16 << 10;

/// Which of an app's outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output, and the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// The beginning of a line whose newline has not come yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    text: Vec<u8>,
    /// Whether pieces of this line were written already.
    begun: bool,
}

impl Pending {
    /// Whether there is text that the log does not have yet.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.text.is_empty()
    }
}

/// The log of one attempt of an app.
pub(crate) struct Log {
    dir: OwnedFd,
    name: String,
    limits: LogLimits,
    file: Option<OwnedFd>,
    written: u64,
    dropped: u64,
    why: String,
    records: Vec<u8>,
}

impl Log {
    /// Opens (for appending) the log file `name` in `dir`. It cannot fail: what cannot be written is dropped and counted.
    pub(crate) fn open(dir: OwnedFd, name: String, limits: LogLimits) -> Self {
        let mut log = Self {
            dir,
            name,
            limits,
            file: None,
            written: 0,
            dropped: 0,
            why: String::new(),
            records: Vec::with_capacity(4096),
        };
        log.reopen();
        log
    }

    /// Opens the file by its name again, after somebody moved the old one away.
    pub(crate) fn reopen(&mut self) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::openat(&self.dir, &self.name, flags, Mode::from_raw_mode(0o640)) {
            Ok(file) => {
                self.written = rustix::fs::fstat(&file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
                self.file = Some(file);
            }
            Err(error) => {
                self.file = None;
                self.why = format!("cannot open the log file: {error}");
            }
        }
    }

    /// Takes what was read from an app at `now` (nanoseconds since the epoch). With `eager`, a line's beginning is
    /// written at once: somebody at a terminal is waiting for a prompt.
    pub(crate) fn take(&mut self, stream: Stream, pending: &mut Pending, mut bytes: &[u8], now: i64, eager: bool) {
        while let Some(end) = memchr(bytes) {
            let (line, rest) = (&bytes[..end], &bytes[end + 1..]);
            if pending.text.is_empty() {
                self.line(stream, line, now);
            } else {
                pending.text.extend_from_slice(line);
                let text = std::mem::take(&mut pending.text);
                self.line(stream, &text, now);
            }
            pending.begun = false;
            bytes = rest;
        }
        pending.text.extend_from_slice(bytes);
        while pending.text.len() > PIECE {
            let rest = pending.text.split_off(PIECE);
            let piece = std::mem::replace(&mut pending.text, rest);
            self.record(stream, PIECE_OF_LINE, &piece, now);
            pending.begun = true;
        }
        if eager && !pending.text.is_empty() {
            let piece = std::mem::take(&mut pending.text);
            self.record(stream, PIECE_OF_LINE, &piece, now);
            pending.begun = true;
        }
        self.flush();
    }

    /// The app will print no more on this stream: its last line is closed, marked as one without a newline.
    pub(crate) fn end(&mut self, stream: Stream, pending: &mut Pending, now: i64) {
        if pending.begun || !pending.text.is_empty() {
            let text = std::mem::take(&mut pending.text);
            self.record(stream, NO_NEWLINE, &text, now);
            pending.begun = false;
        }
        self.flush();
    }

    /// Bytes dropped since the last call, and why.
    pub(crate) fn take_dropped(&mut self) -> Option<(u64, String)> {
        (self.dropped > 0).then(|| (std::mem::take(&mut self.dropped), self.why.clone()))
    }

    fn line(&mut self, stream: Stream, text: &[u8], now: i64) {
        let mut rest = text;
        while rest.len() > PIECE {
            let (piece, more) = rest.split_at(PIECE);
            self.record(stream, PIECE_OF_LINE, piece, now);
            rest = more;
        }
        self.record(stream, WHOLE, rest, now);
    }

    fn record(&mut self, stream: Stream, tag: &str, text: &[u8], now: i64) {
        self.records.extend_from_slice(Timestamp(now).rfc3339().as_bytes());
        self.records.push(b' ');
        self.records.extend_from_slice(stream.name().as_bytes());
        self.records.push(b' ');
        self.records.extend_from_slice(tag.as_bytes());
        self.records.push(b' ');
        self.records.extend_from_slice(text);
        self.records.push(b'\n');
        if self.records.len() >= 64 << 10 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.records);
        if self.written > 0 && self.written + records.len() as u64 > self.limits.max_bytes {
            self.rotate();
        }
        if self.file.is_none() {
            self.reopen();
        }
        let mut left = &records[..];
        while let (Some(file), false) = (&self.file, left.is_empty()) {
            match rustix::io::write(file, left) {
                Ok(n) => {
                    self.written += n as u64;
                    left = &left[n..];
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    self.why = format!("cannot write the log file: {error}");
                    break;
                }
            }
        }
        self.dropped += left.len() as u64;
        if !left.is_empty() && left.len() < records.len() {
            self.cut_torn_record(records.len() - left.len(), &records);
        }
        self.records = records;
        self.records.clear();
        self.records.shrink_to(16 << 10);
    }

    /// A disk that filled up within a record: the file is cut back to its last whole one, so that every line of it can be read.
    fn cut_torn_record(&mut self, kept: usize, records: &[u8]) {
        let whole = records[..kept].iter().rposition(|&c| c == b'\n').map_or(0, |at| at + 1);
        let torn = (kept - whole) as u64;
        if let Some(file) = &self.file
            && rustix::fs::ftruncate(file, self.written - torn).is_ok()
        {
            self.written -= torn;
            self.dropped += torn;
        }
    }

    /// `NAME` becomes `NAME.1`, `NAME.1` becomes `NAME.2` and so on; the oldest is replaced. Each step is a rename, so a
    /// reader sees every record in one file or the next.
    fn rotate(&mut self) {
        let older = |n: u32| format!("{}.{n}", self.name);
        let keep = self.limits.max_files.max(1) - 1;
        let result: io::Result<()> = (|| {
            if keep == 0 {
                return Ok(rustix::fs::unlinkat(&self.dir, &self.name, rustix::fs::AtFlags::empty())?);
            }
            for n in (1..keep).rev() {
                match rustix::fs::renameat(&self.dir, older(n), &self.dir, older(n + 1)) {
                    Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(rustix::fs::renameat(&self.dir, &self.name, &self.dir, older(1))?)
        })();
        match result {
            Ok(()) => self.reopen(),
            // Better a long file than a lost one.
            Err(error) => self.why = format!("cannot rotate the log file: {error}"),
        }
    }
}

fn memchr(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|&c| c == b'\n')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(limits: LogLimits) -> (std::path::PathBuf, Log) {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gantry-logs-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let dir = rustix::fs::open(&path, OFlags::DIRECTORY, Mode::empty()).unwrap();
        (path, Log::open(dir, "0.log".into(), limits))
    }

    fn texts(path: &std::path::Path, name: &str) -> Vec<String> {
        let bytes = std::fs::read(path.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn lines_pieces_and_a_last_line_without_newline() {
        let (path, mut log) = log(LogLimits::default());
        let mut pending = Pending::default();
        log.take(Stream::Stdout, &mut pending, b"one\ntw", 1, false);
        log.take(Stream::Stdout, &mut pending, b"o\n\n", 2, false);
        log.take(Stream::Stdout, &mut pending, &[b'x'; PIECE + 5], 3, false);
        log.end(Stream::Stdout, &mut pending, 4);
        log.end(Stream::Stdout, &mut pending, 5);
        let lines = texts(&path, "0.log");
        assert_eq!(&lines[..3], ["stdout F one", "stdout F two", "stdout F "]);
        assert_eq!(lines[3].len(), "stdout P ".len() + PIECE);
        assert_eq!(&lines[4..], ["stdout F:noeol xxxxx"]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn an_eager_log_shows_a_prompt_and_closes_its_line() {
        let (path, mut log) = log(LogLimits::default());
        let mut pending = Pending::default();
        log.take(Stream::Stdout, &mut pending, b"$ ", 1, true);
        assert_eq!(texts(&path, "0.log"), ["stdout P $ "]);
        log.take(Stream::Stdout, &mut pending, b"ls\n", 2, true);
        log.end(Stream::Stdout, &mut pending, 3);
        assert_eq!(texts(&path, "0.log"), ["stdout P $ ", "stdout F ls"]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn rotation_keeps_the_newest_files_and_loses_no_line_between_them() {
        let (path, mut log) = log(LogLimits { max_bytes: 200, max_files: 3 });
        let mut pending = Pending::default();
        for n in 0..20 {
            log.take(Stream::Stderr, &mut pending, format!("line {n}\n").as_bytes(), n, false);
        }
        let mut all = Vec::new();
        for name in ["0.log.2", "0.log.1", "0.log"] {
            assert!(std::fs::metadata(path.join(name)).unwrap().len() <= 200, "{name}");
            all.extend(texts(&path, name));
        }
        let want: Vec<String> = (20 - all.len()..20).map(|n| format!("stderr F line {n}")).collect();
        assert!(all.len() >= 8 && all == want, "{all:?}");
        assert!(!path.join("0.log.3").exists());
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_log_that_cannot_be_opened_drops_and_counts() {
        let (path, mut log) = log(LogLimits::default());
        std::fs::remove_file(path.join("0.log")).unwrap();
        std::fs::create_dir(path.join("0.log")).unwrap();
        log.reopen();
        log.take(Stream::Stdout, &mut Pending::default(), b"gone\n", 1, false);
        assert!(log.take_dropped().is_some_and(|(bytes, _)| bytes > 5));
        assert!(log.take_dropped().is_none());
        std::fs::remove_dir_all(path).unwrap();
    }
}
