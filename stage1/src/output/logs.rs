//! Writes an app's output to its log file, in the format of the Kubernetes CRI (`RFC3339Nano stream P|F text`), and
//! rotates the file, unless its path is chosen: then the caller renames it and requests a reopening.
//!
//! A line longer than [`MAX_RECORD_TEXT`] is written as several records: all but the last have the tag `P`, the last
//! has `F`, or `F:noeol` if the output ended without a newline and the path of the file is not chosen. An error of the
//! file never reaches the app: the log drops bytes and counts them.

use std::io;
use std::os::fd::OwnedFd;

use gantry_contract::plan::LogLimits;
use gantry_model::{AppLogPath, Timestamp};

use crate::failure::Result;
use crate::output::log_place::LogPlace;

const TAG_PARTIAL: &str = "P";
const TAG_FULL: &str = "F";
/// A full line without a newline, in a file that only gantry reads. Tags of the CRI are a list separated by colons, but
/// many readers compare the whole list with `F`, and drop the line.
const TAG_NO_NEWLINE: &str = "F:noeol";

/// Maximum text of one record, in bytes.
const MAX_RECORD_TEXT: usize = 16 << 10;

/// Size from which buffered records are written to the file, in bytes.
const FLUSH_SIZE: usize = 64 << 10;

/// The buffer of a log whose app writes nothing, in bytes.
const MAX_IDLE_BUFFER: usize = 16 << 10;

/// An output of an app.
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

/// The beginning of the records of a batch, which was read at one time.
struct RecordHead {
    /// `TIME STREAM F `, that of a full line.
    full: Vec<u8>,
    /// The length without the tag.
    untagged: usize,
}

impl RecordHead {
    fn new(stream: Stream, now: i64) -> Self {
        let time = Timestamp(now).rfc3339();
        let untagged = [time.as_bytes(), b" ", stream.name().as_bytes(), b" "].concat();
        let full = [&untagged, TAG_FULL.as_bytes(), b" "].concat();
        Self { full, untagged: untagged.len() }
    }
}

/// The beginning of a line whose newline has not been read yet.
#[derive(Debug, Default)]
pub(crate) struct PartialLine {
    text: Vec<u8>,
    /// Whether the log has records of this line.
    is_continued: bool,
}

impl PartialLine {
    /// Whether there is text that is not in the log yet.
    pub(crate) fn is_pending(&self) -> bool {
        !self.text.is_empty()
    }
}

/// The log of one attempt of an app, or of all if its path is chosen.
pub(crate) struct Log {
    place: LogPlace,
    file: Option<OwnedFd>,
    written: u64,
    dropped: u64,
    why: String,
    records: Vec<u8>,
}

impl Log {
    /// Opens (for appending) the log file `name` in `dir`. It cannot fail: without a file, output is dropped and
    /// counted.
    pub(crate) fn open(dir: OwnedFd, name: String, limits: LogLimits) -> Self {
        let mut log = Self::without_file(LogPlace::Own { dir, name, limits });
        let _dropped_and_counted = log.reopen();
        log
    }

    /// Opens (for appending) the log file at a chosen path below `root`. Later, as with other logs, output is dropped
    /// and counted where the file cannot be written.
    pub(crate) fn open_chosen(root: OwnedFd, path: AppLogPath) -> Result<Self> {
        let mut log = Self::without_file(LogPlace::Chosen { root, path });
        log.reopen()?;
        Ok(log)
    }

    fn without_file(place: LogPlace) -> Self {
        let records = Vec::with_capacity(4096);
        Self { place, file: None, written: 0, dropped: 0, why: String::new(), records }
    }

    /// Whether each attempt has its own file.
    pub(crate) fn is_of_one_attempt(&self) -> bool {
        matches!(self.place, LogPlace::Own { .. })
    }

    /// Opens the file by its name again, after it was renamed. If that fails, the log stays in the renamed file, so
    /// that a caller which renames it back has lost nothing.
    pub(crate) fn replace_file(&mut self) -> Result<()> {
        match self.place.open(self.file.as_ref()) {
            Ok(Some(file)) => self.set_file(file),
            // It was not renamed.
            Ok(None) => {}
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// Opens the file by its name. Without a file, output is dropped and counted.
    fn reopen(&mut self) -> Result<()> {
        self.release_file();
        match self.place.open(None) {
            Ok(Some(file)) => self.set_file(file),
            Ok(None) => {}
            Err(why) => {
                self.why.clone_from(&why.message);
                return Err(why);
            }
        }
        Ok(())
    }

    fn set_file(&mut self, file: OwnedFd) {
        self.release_file();
        self.written = size_of(&file);
        self.file = Some(file);
    }

    /// Closes the file. A process that is being forked may have a copy of the descriptor for a moment, so the lock is
    /// released first.
    fn release_file(&mut self) {
        if let Some(file) = self.file.take() {
            self.place.unlock(&file);
        }
    }

    /// Writes output that was read at `now` (nanoseconds since the epoch). With `eager`, the beginning of a line is
    /// written at once: a user at a terminal waits for a prompt.
    pub(crate) fn write(&mut self, stream: Stream, partial: &mut PartialLine, bytes: &[u8], now: i64, eager: bool) {
        self.append(stream, partial, bytes, now, eager);
        self.flush();
    }

    /// The same, except that the last records stay in the buffer until [`Self::flush`]: for several reads in a row.
    pub(crate) fn append(&mut self, stream: Stream, partial: &mut PartialLine, bytes: &[u8], now: i64, eager: bool) {
        let head = RecordHead::new(stream, now);
        let rest = self.append_lines(&head, partial, bytes);
        partial.text.extend_from_slice(rest);
        while partial.text.len() > MAX_RECORD_TEXT {
            let rest = partial.text.split_off(MAX_RECORD_TEXT);
            let text = std::mem::replace(&mut partial.text, rest);
            self.append_record(&head, TAG_PARTIAL, &text);
            partial.is_continued = true;
        }
        if eager && !partial.text.is_empty() {
            let text = std::mem::take(&mut partial.text);
            self.append_record(&head, TAG_PARTIAL, &text);
            partial.is_continued = true;
        }
    }

    /// Appends the lines that end in `bytes`; returns what follows the last one.
    fn append_lines<'b>(&mut self, head: &RecordHead, partial: &mut PartialLine, mut bytes: &'b [u8]) -> &'b [u8] {
        if partial.is_pending() {
            let Some(end) = memchr::memchr(b'\n', bytes) else { return bytes };
            partial.text.extend_from_slice(&bytes[..=end]);
            let line = std::mem::take(&mut partial.text);
            self.append_line(head, &line);
            partial.is_continued = false;
            bytes = &bytes[end + 1..];
        }
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', bytes) {
            self.append_line(head, &bytes[start..=end]);
            start = end + 1;
        }
        partial.is_continued &= start == 0;
        &bytes[start..]
    }

    /// Ends a stream. A last line without a newline gets the tag [`TAG_NO_NEWLINE`]; in a file at a chosen path, which
    /// log shippers read, [`TAG_FULL`].
    pub(crate) fn end(&mut self, stream: Stream, partial: &mut PartialLine, now: i64) {
        if partial.is_continued || !partial.text.is_empty() {
            let text = std::mem::take(&mut partial.text);
            let tag = match self.place {
                LogPlace::Own { .. } => TAG_NO_NEWLINE,
                LogPlace::Chosen { .. } => TAG_FULL,
            };
            self.append_record(&RecordHead::new(stream, now), tag, &text);
            partial.is_continued = false;
        }
        self.flush();
    }

    /// Bytes dropped since the last call, and why.
    pub(crate) fn take_dropped(&mut self) -> Option<(u64, String)> {
        (self.dropped > 0).then(|| (std::mem::take(&mut self.dropped), self.why.clone()))
    }

    /// Gives the buffer's memory back, which a flood has made large.
    pub(crate) fn release_buffer(&mut self) {
        self.records.shrink_to(MAX_IDLE_BUFFER);
    }

    /// Appends a line with its newline.
    fn append_line(&mut self, head: &RecordHead, line: &[u8]) {
        let mut rest = line;
        while rest.len() > MAX_RECORD_TEXT + 1 {
            let (piece, more) = rest.split_at(MAX_RECORD_TEXT);
            self.append_record(head, TAG_PARTIAL, piece);
            rest = more;
        }
        self.records.extend_from_slice(&head.full);
        self.records.extend_from_slice(rest);
        self.flush_if_large();
    }

    fn append_record(&mut self, head: &RecordHead, tag: &str, text: &[u8]) {
        self.records.extend_from_slice(&head.full[..head.untagged]);
        self.records.extend_from_slice(tag.as_bytes());
        self.records.push(b' ');
        self.records.extend_from_slice(text);
        self.records.push(b'\n');
        self.flush_if_large();
    }

    fn flush_if_large(&mut self) {
        if self.records.len() >= FLUSH_SIZE {
            self.flush();
        }
    }

    /// Writes the buffered records to the file.
    pub(crate) fn flush(&mut self) {
        if self.records.is_empty() {
            return;
        }
        let records = std::mem::take(&mut self.records);
        if self.written > 0 && self.written + records.len() as u64 > self.place.max_bytes() {
            self.rotate();
        }
        if self.file.is_none() {
            let _dropped_and_counted = self.reopen();
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
    }

    /// Truncates the file to its last complete record after the disk filled up within one.
    fn cut_torn_record(&mut self, kept: usize, records: &[u8]) {
        let whole = records[..kept].iter().rposition(|&c| c == b'\n').map_or(0, |at| at + 1);
        let torn = (kept - whole) as u64;
        // The caller of a chosen path may have truncated the file.
        if let Some(file) = &self.file
            && let Some(size) = size_of(file).checked_sub(torn)
            && rustix::fs::ftruncate(file, size).is_ok()
        {
            self.written = size;
            self.dropped += torn;
        }
    }

    /// `NAME` becomes `NAME.1`, `NAME.1` becomes `NAME.2` and so on; the oldest is deleted first. The others are only
    /// renamed, so a reader sees every record of theirs in one file or the next.
    ///
    /// No rename replaces a file: ext4 would write the renamed file to the disk first (auto_da_alloc), and the app
    /// would wait for it. In a flood, the oldest file is deleted before the kernel has written it.
    fn rotate(&mut self) {
        let LogPlace::Own { dir, name, limits } = &self.place else { return };
        let older = |n: u32| format!("{name}.{n}");
        let keep = limits.max_files.max(1) - 1;
        let result: io::Result<()> = (|| {
            let oldest = if keep == 0 { name.clone() } else { older(keep) };
            match rustix::fs::unlinkat(dir, oldest, rustix::fs::AtFlags::empty()) {
                Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            if keep == 0 {
                return Ok(());
            }
            for n in (1..keep).rev() {
                match rustix::fs::renameat(dir, older(n), dir, older(n + 1)) {
                    Ok(()) | Err(rustix::io::Errno::NOENT) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Ok(rustix::fs::renameat(dir, name, dir, older(1))?)
        })();
        match result {
            Ok(()) => drop(self.reopen()),
            // The file grows beyond its limit rather than being lost.
            Err(error) => self.why = format!("cannot rotate the log file: {error}"),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.release_file();
    }
}

fn size_of(file: &OwnedFd) -> u64 {
    rustix::fs::fstat(file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{Mode, OFlags};

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
    fn lines_are_recorded_including_an_unterminated_last() {
        let (path, mut log) = log(LogLimits::default());
        let mut partial = PartialLine::default();
        log.write(Stream::Stdout, &mut partial, b"one\ntw", 1, false);
        log.write(Stream::Stdout, &mut partial, b"o\n\n", 2, false);
        log.write(Stream::Stdout, &mut partial, &[b'x'; MAX_RECORD_TEXT + 5], 3, false);
        log.end(Stream::Stdout, &mut partial, 4);
        log.end(Stream::Stdout, &mut partial, 5);
        let lines = texts(&path, "0.log");
        assert_eq!(&lines[..3], ["stdout F one", "stdout F two", "stdout F "]);
        assert_eq!(lines[3].len(), "stdout P ".len() + MAX_RECORD_TEXT);
        assert_eq!(&lines[4..], ["stdout F:noeol xxxxx"]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn chosen_files_have_no_tag_besides_cri() {
        let (path, own) = log(LogLimits::default());
        drop(own);
        let root = rustix::fs::open(&path, OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut log = Log::open_chosen(root, "chosen.log".parse().unwrap()).unwrap();
        let mut partial = PartialLine::default();
        log.write(Stream::Stdout, &mut partial, b"one\ntwo", 1, false);
        log.end(Stream::Stdout, &mut partial, 2);
        log.write(Stream::Stdout, &mut partial, b"$ ", 3, true);
        log.end(Stream::Stdout, &mut partial, 4);
        assert_eq!(texts(&path, "chosen.log"), ["stdout F one", "stdout F two", "stdout P $ ", "stdout F "]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn longest_lines_are_one_record() {
        let (path, mut log) = log(LogLimits::default());
        let mut partial = PartialLine::default();
        let line = |length| [vec![b'x'; length], vec![b'\n']].concat();
        let both = [line(MAX_RECORD_TEXT), line(MAX_RECORD_TEXT + 1)].concat();
        log.append(Stream::Stdout, &mut partial, &both, 1, false);
        assert_eq!(texts(&path, "0.log").len(), 0, "it is in the buffer");
        log.flush();
        let lines = texts(&path, "0.log");
        let tagged: Vec<_> = lines.iter().map(|line| (&line[..9], line.len() - 9)).collect();
        assert_eq!(tagged, [("stdout F ", MAX_RECORD_TEXT), ("stdout P ", MAX_RECORD_TEXT), ("stdout F ", 1)]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_single_file_begins_again_when_full() {
        let (path, mut log) = log(LogLimits { max_bytes: 60, max_files: 1 });
        let mut partial = PartialLine::default();
        for text in [b"one\n", b"two\n"] {
            log.write(Stream::Stdout, &mut partial, text, 1, false);
        }
        assert_eq!(texts(&path, "0.log"), ["stdout F two"]);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn eager_logs_show_prompts_and_complete_their_lines() {
        let (path, mut log) = log(LogLimits::default());
        let mut partial = PartialLine::default();
        log.write(Stream::Stdout, &mut partial, b"$ ", 1, true);
        assert_eq!(texts(&path, "0.log"), ["stdout P $ "]);
        log.write(Stream::Stdout, &mut partial, b"ls\n", 2, true);
        log.end(Stream::Stdout, &mut partial, 3);
        assert_eq!(texts(&path, "0.log"), ["stdout P $ ", "stdout F ls"]);
        std::fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn rotation_keeps_the_newest_files_without_gaps() {
        let (path, mut log) = log(LogLimits { max_bytes: 200, max_files: 3 });
        let mut partial = PartialLine::default();
        for n in 0..20 {
            log.write(Stream::Stderr, &mut partial, format!("line {n}\n").as_bytes(), n, false);
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
    fn unopenable_logs_count_dropped_lines() {
        let (path, mut log) = log(LogLimits::default());
        std::fs::remove_file(path.join("0.log")).unwrap();
        std::fs::create_dir(path.join("0.log")).unwrap();
        log.replace_file().unwrap_err();
        assert!(log.file.is_some(), "the renamed file is kept");
        log.reopen().unwrap_err();
        log.write(Stream::Stdout, &mut PartialLine::default(), b"gone\n", 1, false);
        assert!(log.take_dropped().is_some_and(|(bytes, _)| bytes > 5));
        assert!(log.take_dropped().is_none());
        std::fs::remove_dir_all(path).unwrap();
    }
}
