//! The files of one app's log, their order, and positions in them, found by bisection.
//!
//! The order follows from the names, and for numbers from the times of change ([`crate::logs::names`]). A rotated file
//! keeps its inode, by which a reader finds its successor. A freed inode may be reused at once; but a file only gets
//! older, and an open file keeps its inode. The directory is opened beneath that of the pod, or the caller's; symbolic
//! links are not followed, and only regular files are read.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gantry_contract::files as contract_files;
use gantry_model::{AppName, PodId, Timestamp};
use gantry_store::{Layout, PodRow};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::logs::line::{self, Parser};
use crate::logs::names::{LogFile, LogNames};

const BLOCK: usize = 64 << 10;
/// Supervisors write no longer lines. A reader returns a longer line in pieces.
pub(crate) const MAX_LINE: usize = 1 << 20;
/// Enough of a line's beginning to tell its tag: time, stream, tag.
const HEAD: usize = 64;
/// How many bytes without a valid line the search for a timestamp skips.
const MAX_UNTIMED: u64 = 1 << 20;
/// The granularity of mtime: a directory that changed more recently may have changed again with the same mtime.
const MTIME_SLACK_NS: i64 = 1_000_000_000;
/// How often listing is repeated when files are renamed or deleted in the meantime.
pub(crate) const MAX_ATTEMPTS: usize = 50;

/// The log directory of a pod, and the path below it, of a path below the data directory; `None`: it is not in one.
#[must_use]
pub fn split_log_path(path: &Path) -> Option<(PathBuf, PathBuf)> {
    let pod: PodId = path.components().nth(1)?.as_os_str().to_str()?.parse().ok()?;
    let dir = Layout::new(Path::new("")).pod_dir(&pod).join(contract_files::LOGS);
    let below = path.strip_prefix(&dir).ok()?.to_owned();
    Some((dir, below))
}

/// A position in an open file, which may be renamed or deleted later.
#[derive(Debug, Clone)]
pub(crate) struct LogPosition {
    pub(crate) file: Arc<File>,
    pub(crate) inode: u64,
    pub(crate) offset: u64,
}

impl LogPosition {
    fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn at(&self, offset: u64) -> Self {
        Self { offset, ..self.clone() }
    }
}

/// The part of a log that matches a query at one moment.
#[derive(Debug)]
pub(crate) struct Span {
    parts: Vec<LogFile>,
    pub(crate) start: LogPosition,
    pub(crate) end: LogPosition,
}

/// The last whole lines of a span.
#[derive(Debug)]
pub(crate) struct LastLines {
    pub(crate) count: usize,
    pub(crate) start: LogPosition,
    /// False if a file was deleted before its lines could be counted.
    pub(crate) complete: bool,
}

/// The directory of one app's log.
#[derive(Debug)]
pub(crate) struct LogDir {
    /// The trusted base directory, and the path below it.
    base: PathBuf,
    below: PathBuf,
    names: LogNames,
    fd: Option<OwnedFd>,
    /// The time of the last change, as of the last listing; `None` where it proves nothing.
    seen: Option<(i64, i64)>,
}

impl LogDir {
    /// The directory `below` `base`, which may not exist yet.
    pub(crate) fn new(base: impl Into<PathBuf>, below: impl Into<PathBuf>) -> Self {
        Self { base: base.into(), below: below.into(), names: LogNames::Attempts(None), fd: None, seen: None }
    }

    /// The directory of the log of an app: in that of its pod, `pod`, unless its path is chosen.
    pub(crate) fn of_app(pod: &Path, row: &PodRow, app: &AppName) -> Self {
        let Some((dir, path)) = row.log_file(app) else {
            return Self::new(pod, Path::new(contract_files::LOGS).join(app.as_str()));
        };
        let (below, name) = path.split();
        Self { names: LogNames::File(name.to_owned()), ..Self::new(dir.as_path(), below.unwrap_or(".")) }
    }

    /// Whether its path is chosen. Such a log stays when its app is removed, and another app may go on with it.
    pub(crate) fn has_chosen_path(&self) -> bool {
        matches!(self.names, LogNames::File(_))
    }

    /// Whether both are the log of all starts at the same chosen path.
    pub(crate) fn has_path_of(&self, other: &Self) -> bool {
        self.has_chosen_path() && (&self.base, &self.below, &self.names) == (&other.base, &other.below, &other.names)
    }

    /// The same directory, before its first listing.
    pub(crate) fn reopen(&self) -> Self {
        Self { names: self.names.clone(), ..Self::new(&self.base, &self.below) }
    }

    /// The same directory, with the files of one start of the app, if each start has its own.
    pub(crate) fn of_attempt(self, attempt: Option<u32>) -> Self {
        match self.names {
            LogNames::Attempts(_) => Self { names: LogNames::Attempts(attempt), ..self },
            LogNames::File(_) => self,
        }
    }

    /// The directory's path.
    pub(crate) fn path(&self) -> PathBuf {
        self.base.join(&self.below)
    }

    /// Whether files may have been added, deleted or renamed since the last call of [`Self::parts`].
    pub(crate) fn changed(&self) -> io::Result<bool> {
        let (Some(fd), Some(seen)) = (&self.fd, self.seen) else { return Ok(true) };
        Ok(changed_at(fd)? != seen)
    }

    /// All files of the log, oldest first: a snapshot of one moment.
    pub(crate) fn parts(&mut self) -> io::Result<Vec<LogFile>> {
        if self.fd.is_none() {
            self.fd = open_dir(&self.base, &self.below)?;
        }
        let Some(fd) = &self.fd else { return Ok(Vec::new()) };
        let changed = changed_at(fd)?;
        let age = i128::from(gantry_store::now().0) - i128::from(changed.0) * 1_000_000_000 - i128::from(changed.1);
        self.seen = (age > i128::from(MTIME_SLACK_NS)).then_some(changed);
        list_files(fd, &self.names)
    }

    /// Opens this very file, under whatever name it has by now. `None` when it was deleted.
    pub(crate) fn open(&self, part: &LogFile) -> io::Result<Option<LogPosition>> {
        let mut part = part.clone();
        for _ in 0..MAX_ATTEMPTS {
            let Some(fd) = &self.fd else { return Ok(None) };
            if let Some(place) = open_file(fd, &part.name)?.filter(|place| place.inode == part.inode) {
                return Ok(Some(place));
            }
            // Rotated since the listing.
            let Some(renamed) = list_files(fd, &self.names)?.into_iter().find(|other| part.may_become(other)) else {
                break;
            };
            part = renamed;
        }
        Ok(None)
    }

    /// Opens this very file for reading and writing, unless it was renamed since. Another process may hold its lock.
    pub(crate) fn open_to_repair(&self, part: &LogFile) -> io::Result<Option<File>> {
        let Some(fd) = &self.fd else { return Ok(None) };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(fd, &part.name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let meta = file.metadata()?;
        Ok((meta.is_file() && meta.ino() == part.inode).then_some(file))
    }

    /// From the first line that is not older than `since` up to the first one that is not older than `until`, or to the
    /// present end. `None` when there are no files.
    ///
    /// The search assumes that lines are in the order of time. Where a clock was set back, the log crosses a bound at
    /// several places; the search finds one of them. It may cover only a part of a file that has more than a mebibyte
    /// of lines without a time in one place.
    pub(crate) fn span(&mut self, since: Option<Timestamp>, until: Option<Timestamp>) -> io::Result<Option<Span>> {
        for _ in 0..MAX_ATTEMPTS {
            let parts = self.parts()?;
            if parts.is_empty() {
                break;
            }
            // Rotation may have deleted all of them since the listing.
            let span = self.span_of(parts, since, until)?;
            if span.is_some() {
                return Ok(span);
            }
        }
        Ok(None)
    }

    /// The span in these files; `None` when none of them exists any more.
    fn span_of(
        &self,
        parts: Vec<LogFile>,
        since: Option<Timestamp>,
        until: Option<Timestamp>,
    ) -> io::Result<Option<Span>> {
        let Some(oldest) = self.first_open(&parts)? else { return Ok(None) };
        let Some(newest) = self.first_open(parts.iter().rev())? else { return Ok(None) };
        let mut end = newest.at(newest.size()?);
        if let Some(Crossing::At(place)) = until.map(|until| self.crossing(&parts, until)).transpose()?.flatten() {
            end = place;
        }
        let start = since.map(|since| self.crossing(&parts, since)).transpose()?.flatten();
        let mut start = match start {
            Some(Crossing::At(place) | Crossing::Behind(place)) => place,
            None => oldest,
        };
        if start.inode == end.inode {
            // One descriptor is enough for both.
            start.file = Arc::clone(&end.file);
        }
        let order = |place: &LogPosition| (parts.iter().position(|part| part.inode == place.inode), place.offset);
        if order(&start) > order(&end) {
            start = end.clone();
        }
        Ok(Some(Span { parts, start, end }))
    }

    fn first_open<'a>(&self, parts: impl IntoIterator<Item = &'a LogFile>) -> io::Result<Option<LogPosition>> {
        for part in parts {
            if let Some(place) = self.open(part)? {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// The start of the first line that is not older than `bound`. A line without a time counts as the line before it.
    fn crossing(&self, parts: &[LogFile], bound: Timestamp) -> io::Result<Option<Crossing>> {
        // The last place examined in the newest file; then the oldest one known to be young enough.
        let mut found = None;
        for part in parts.iter().rev() {
            let Some(place) = self.open(part)? else { continue };
            let size = place.size()?;
            let (mut offset, mut line) = first_timed(&place.file, 0, size, size)?;
            let begins_before = line.as_ref().is_some_and(|line| line.at < bound);
            if begins_before {
                (offset, line) = first_timed(&place.file, bisect(&place.file, size, bound)?, size, size)?;
            }
            if line.is_some() {
                found = Some(Crossing::At(place.at(offset)));
            } else if found.is_none() {
                found = Some(Crossing::Behind(place.at(offset)));
            }
            if begins_before {
                break;
            }
        }
        Ok(found)
    }

    /// The last `lines` whole lines of a span (all of them if there are fewer), of both streams, or of stderr (true) or
    /// stdout (false) alone.
    pub(crate) fn tail(&self, span: &Span, lines: usize, stderr: Option<bool>) -> io::Result<LastLines> {
        let (start, end) = (&span.start, &span.end);
        let mut counter = Tail { wanted: lines, seen: 0, stderr, newest: true, parser: Parser::default() };
        let least = |place: &LogPosition| if place.inode == start.inode { start.offset } else { 0 };
        if let Some(found) = counter.scan(&end.file, least(end), end.offset)? {
            return Ok(LastLines { count: lines, start: end.at(found), complete: true });
        }
        let mut oldest = end.at(least(end));
        let index = |place: &LogPosition| span.parts.iter().position(|part| part.inode == place.inode).unwrap_or(0);
        for part in span.parts.get(index(start)..index(end)).unwrap_or_default().iter().rev() {
            let place = if part.inode == start.inode { Some(start.at(0)) } else { self.open(part)? };
            // A gap: older lines are not among the last ones.
            let Some(place) = place else {
                return Ok(LastLines { count: counter.seen, start: oldest, complete: false });
            };
            if let Some(found) = counter.scan(&place.file, least(&place), place.size()?)? {
                return Ok(LastLines { count: lines, start: place.at(found), complete: true });
            }
            oldest = place.at(least(&place));
        }
        Ok(LastLines { count: counter.seen, start: oldest, complete: true })
    }

    /// The time of the line before the span, unless the span's first line has a time.
    pub(crate) fn time_before(&self, span: &Span) -> io::Result<Option<Timestamp>> {
        let start = &span.start;
        if first_timed(&start.file, start.offset, start.offset + 1, start.size()?)?.1.is_some() {
            return Ok(None);
        }
        let (mut place, mut end) = (start.clone(), start.offset);
        let mut older = span.parts.iter().rev().skip_while(|part| part.inode != start.inode).skip(1);
        loop {
            let time = last_time(&place.file, end)?;
            if time.is_some() || end >= MAX_UNTIMED {
                return Ok(time);
            }
            let Some(next) = self.first_open(&mut older)? else { return Ok(None) };
            (end, place) = (next.size()?, next);
        }
    }
}

/// The place where a log crosses a time.
enum Crossing {
    /// Before this line, which is not older than the bound.
    At(LogPosition),
    /// Nowhere: the older part ends here.
    Behind(LogPosition),
}

fn open_dir(base: &Path, below: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let base = rustix::fs::open(base, flags | OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
    let dir = base.and_then(|base| rustix::fs::openat2(base, below, flags | OFlags::RDONLY, Mode::empty(), beneath));
    match dir {
        Ok(dir) => Ok(Some(dir)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn changed_at(fd: &OwnedFd) -> io::Result<(i64, i64)> {
    let stat = rustix::fs::fstat(fd)?;
    Ok((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)))
}

/// Lists the directory until two listings agree.
fn list_files(fd: &OwnedFd, names: &LogNames) -> io::Result<Vec<LogFile>> {
    let mut before = list_once(fd, names)?;
    for _ in 0..MAX_ATTEMPTS {
        let now = list_once(fd, names)?;
        if now == before {
            break;
        }
        before = now;
    }
    Ok(before)
}

fn list_once(fd: &OwnedFd, names: &LogNames) -> io::Result<Vec<LogFile>> {
    let mut parts = Vec::new();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let Some(file) = entry.file_name().to_str().ok().and_then(|name| names.file(name)) else { continue };
        match rustix::fs::statat(fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => {
                parts.push((file.with_inode(stat.st_ino), (stat.st_mtime, stat.st_mtime_nsec)));
            }
            Ok(_) | Err(Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(names.in_order(parts))
}

/// `None` when it does not exist or is not a regular file.
fn open_file(dir: &OwnedFd, name: &str) -> io::Result<Option<LogPosition>> {
    // NONBLOCK: opening a FIFO that was put there must not hang.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let meta = file.metadata()?;
    Ok(meta.is_file().then(|| LogPosition { file: Arc::new(file), inode: meta.ino(), offset: 0 }))
}

/// The beginning of the line that starts at `offset`: at most [`HEAD`] bytes of it.
fn line_at(file: &File, offset: u64, size: u64) -> io::Result<Option<Vec<u8>>> {
    if offset >= size {
        return Ok(None);
    }
    let mut bytes = vec![0; HEAD];
    let read = file.read_at(&mut bytes, offset)?;
    bytes.truncate(read);
    if let Some(end) = memchr::memchr(b'\n', &bytes) {
        bytes.truncate(end);
    }
    Ok(Some(bytes))
}

/// The start of the line after the one that covers `offset`; `None` when the last line has no newline yet.
fn next_line(file: &File, mut offset: u64, size: u64) -> io::Result<Option<u64>> {
    let mut first = [0; 4096];
    let mut more = Vec::new();
    let mut block = &mut first[..];
    while offset < size {
        let read = file.read_at(block, offset)?;
        if read == 0 {
            break;
        }
        if let Some(end) = memchr::memchr(b'\n', &block[..read]) {
            let next = offset + end as u64 + 1;
            return Ok((next <= size).then_some(next));
        }
        offset += read as u64;
        more.resize(BLOCK, 0);
        block = &mut more;
    }
    Ok(None)
}

/// A whole line that has a time.
struct Timed {
    at: Timestamp,
    /// The start of the next line.
    next: u64,
}

/// The first whole line with a time that starts at or after `offset` (where a line starts) and before `to`; or the
/// place where the search ended, which is the start of a line, too.
fn first_timed(file: &File, mut offset: u64, to: u64, size: u64) -> io::Result<(u64, Option<Timed>)> {
    let to = to.min(offset.saturating_add(MAX_UNTIMED));
    while offset < to {
        let Some(head) = line_at(file, offset, size)? else { break };
        let Some(next) = next_line(file, offset, size)? else { break };
        if let Some(at) = line::time_of(&head) {
            return Ok((offset, Some(Timed { at, next })));
        }
        offset = next;
    }
    Ok((offset, None))
}

/// The end of the last line known to be older than `bound`, in a file whose lines are in the order of time.
fn bisect(file: &File, size: u64, bound: Timestamp) -> io::Result<u64> {
    // Every line before `low` is older; `low` is the start of a line. No older line starts at or after `high`.
    let (mut low, mut high) = (0, size);
    while low < high {
        let middle = low + (high - low) / 2;
        // The byte before tells whether a line starts right in the middle.
        let start = if middle == low { Some(low) } else { next_line(file, middle - 1, high)? };
        let timed = match start {
            Some(start) => first_timed(file, start, high, size)?.1,
            None => None,
        };
        match timed {
            Some(line) if line.at < bound => low = line.next,
            // No line with a time starts between the middle and the end, or such a line is young enough.
            _ => high = middle,
        }
    }
    Ok(low)
}

/// Whether the newest file of a log ends with the last piece of a line (or is empty).
pub(crate) fn ends_in_a_whole_line(mut dir: LogDir) -> io::Result<bool> {
    let parts = dir.parts()?;
    let Some(newest) = dir.first_open(parts.iter().rev())? else { return Ok(true) };
    let size = newest.size()?;
    let from = size.saturating_sub(MAX_LINE as u64);
    let mut bytes = vec![0; usize::try_from(size - from).unwrap_or(MAX_LINE)];
    newest.file.read_exact_at(&mut bytes, from)?;
    let Some(whole) = bytes.strip_suffix(b"\n") else { return Ok(bytes.is_empty()) };
    let last = memchr::memrchr(b'\n', whole).map_or(whole, |at| &whole[at + 1..]);
    Ok(line::parse(last).is_some_and(|line| !line.piece))
}

/// Counts whole lines backwards over several files. A line counts where its last piece is; one that has none yet, at
/// the very end.
struct Tail {
    wanted: usize,
    seen: usize,
    /// Lines of the other stream do not count.
    stderr: Option<bool>,
    /// No matching line was examined yet.
    newest: bool,
    parser: Parser,
}

impl Tail {
    /// Counts in a file from `end` down to `least`. Returns the start of the wanted lines, if it is in this file.
    fn scan(&mut self, file: &File, least: u64, end: u64) -> io::Result<Option<u64>> {
        backwards(file, least, end, |head, next| {
            let line = self.parser.parse(head);
            let (piece, stderr) = line.map_or((false, false), |line| (line.piece, line.stderr));
            if self.stderr.is_some_and(|wanted| wanted != stderr) {
                return None;
            }
            // The newest may have no last piece yet.
            if !piece || self.newest {
                self.seen += 1;
            }
            self.newest = false;
            // It begins after the line that is one too many.
            (self.seen > self.wanted).then_some(next)
        })
    }
}

/// The time of the last line before `end` that has one, if it is not too far away.
fn last_time(file: &File, end: u64) -> io::Result<Option<Timestamp>> {
    let found = backwards(file, 0, end, |head, next| match line::time_of(head) {
        None if end - next < MAX_UNTIMED => None,
        time => Some(time),
    });
    Ok(found?.flatten())
}

/// Passes the lines between `least` and `end`, the last one first, to the visitor until it returns something: the start
/// of a line, and the start of the next one. The text after the last newline is not a line yet.
fn backwards<T>(
    file: &File,
    least: u64,
    end: u64,
    mut visit: impl FnMut(&[u8], u64) -> Option<T>,
) -> io::Result<Option<T>> {
    let (mut low, mut block) = (end, Vec::new());
    // The end of the line whose start the loop searches for.
    let mut next: Option<u64> = None;
    let mut line = |block: &[u8], low: u64, start: u64, next: Option<u64>| -> io::Result<Option<T>> {
        let Some(next) = next.filter(|next| *next > start) else { return Ok(None) };
        let held = usize::try_from(start - low).ok().and_then(|at| block.get(at..at + HEAD));
        let head = match held {
            Some(head) => memchr::memchr(b'\n', head).map_or(head, |end| &head[..end]),
            None => &line_at(file, start, end)?.unwrap_or_default(),
        };
        Ok(visit(head, next))
    };
    while low > least {
        let step = (low - least).min(BLOCK as u64);
        low -= step;
        block.resize(usize::try_from(step).unwrap_or(BLOCK), 0);
        // Shorter where a torn end was just cut off.
        let read = file.read_at(&mut block, low)?;
        block.truncate(read);
        for at in memchr::memrchr_iter(b'\n', &block) {
            let start = low + at as u64 + 1;
            if let Some(found) = line(&block, low, start, next)? {
                return Ok(Some(found));
            }
            next = Some(start);
        }
    }
    line(&block, low, least, next)
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
