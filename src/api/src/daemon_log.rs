//! gantryd's own log: the newest lines, in memory, for surfaces that show them.
//!
//! A line is added where it is logged, which must not wait: the lock is held for the copy of a few pointers only, and a
//! subscriber has a cursor and no buffer. One that lags behind the ring learns how many lines it missed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_engine::now;
use gantry_model::Timestamp;
use tokio::sync::watch;

/// Maximum bytes of the ring.
const MAX_BYTES: usize = 1 << 20;
/// Maximum bytes of a line; the rest of a longer one is left out.
const MAX_LINE: usize = 16 << 10;
/// The memory of a line besides its text.
const LINE_OVERHEAD: usize = 64;

/// See the module.
#[derive(Debug)]
pub struct DaemonLog {
    ring: Mutex<Ring>,
    /// The number of the newest line.
    newest: watch::Sender<u64>,
}

/// A line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DaemonLogLine {
    /// When it was logged.
    pub(crate) at: Timestamp,
    /// The text, without a line end.
    pub(crate) text: Box<[u8]>,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Arc<DaemonLogLine>>,
    bytes: usize,
    /// The number of lines ever added: the newest line has this number, the first one 1.
    added: u64,
}

impl Ring {
    /// The number of the oldest line in the ring.
    fn oldest(&self) -> u64 {
        self.added - self.lines.len() as u64 + 1
    }
}

/// Lines after a cursor.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DaemonLogSlice {
    /// The number of lines before them that are not in the ring any more.
    pub(crate) missed: u64,
    /// The lines.
    pub(crate) lines: Vec<Arc<DaemonLogLine>>,
    /// The cursor after them.
    pub(crate) cursor: u64,
}

impl Default for DaemonLog {
    fn default() -> Self {
        Self { ring: Mutex::default(), newest: watch::Sender::new(0) }
    }
}

impl DaemonLog {
    /// Adds a line as it is written to standard error. The priority of the systemd journal (`<6>`) is left out.
    pub fn add(&self, line: &[u8]) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = match line {
            [b'<', b'0'..=b'7', b'>', text @ ..] => text,
            text => text,
        };
        let text = line.get(..MAX_LINE).unwrap_or(line);
        let line = Arc::new(DaemonLogLine { at: now(), text: text.into() });
        let mut ring = self.lock();
        ring.bytes += text.len() + LINE_OVERHEAD;
        ring.lines.push_back(line);
        ring.added += 1;
        while ring.bytes > MAX_BYTES
            && let Some(oldest) = ring.lines.pop_front()
        {
            ring.bytes -= oldest.text.len() + LINE_OVERHEAD;
        }
        let added = ring.added;
        drop(ring);
        self.newest.send_replace(added);
    }

    /// At most `limit` lines after this cursor.
    pub(crate) fn after(&self, cursor: u64, limit: usize) -> DaemonLogSlice {
        let ring = self.lock();
        let first = ring.oldest().max(cursor.saturating_add(1));
        let missed = first - 1 - cursor.min(first - 1);
        let skipped = usize::try_from(first - ring.oldest()).unwrap_or(usize::MAX);
        let lines: Vec<_> = ring.lines.iter().skip(skipped).take(limit).cloned().collect();
        DaemonLogSlice { missed, cursor: first - 1 + lines.len() as u64, lines }
    }

    /// The cursor before the last lines; before all that are in the ring if there are fewer.
    pub(crate) fn cursor_before(&self, lines: usize) -> u64 {
        let ring = self.lock();
        ring.added - lines.min(ring.lines.len()) as u64
    }

    /// The number of the newest line; changes with each.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(slice: &DaemonLogSlice) -> Vec<String> {
        slice.lines.iter().map(|line| String::from_utf8_lossy(&line.text).into_owned()).collect()
    }

    #[test]
    fn cursors_read_each_line_once() {
        let log = DaemonLog::default();
        assert_eq!((log.cursor_before(10), log.after(0, 10).cursor), (0, 0));
        for line in ["<6>info: a\n", "b\n", "c"] {
            log.add(line.as_bytes());
        }
        let all = log.after(0, 2);
        assert_eq!((texts(&all), all.missed, all.cursor), (vec!["info: a".to_owned(), "b".to_owned()], 0, 2));
        assert_eq!(texts(&log.after(all.cursor, 2)), ["c"]);
        assert_eq!(log.after(3, 2).lines, []);
        assert_eq!((log.cursor_before(1), log.cursor_before(0), log.cursor_before(9)), (2, 3, 0));
        assert_eq!(*log.subscribe().borrow(), 3);
    }

    #[test]
    fn slow_subscribers_learn_what_they_missed() {
        let log = DaemonLog::default();
        let line = [b'x'; MAX_LINE + 1];
        for _ in 0..100 {
            log.add(&line);
        }
        let kept = MAX_BYTES / (MAX_LINE + LINE_OVERHEAD);
        let slice = log.after(10, 1);
        assert_eq!((slice.missed, slice.cursor), (90 - kept as u64, 100 - kept as u64 + 1));
        assert_eq!(slice.lines[0].text.len(), MAX_LINE);
        assert_eq!(log.after(0, usize::MAX).lines.len(), kept);
    }
}
