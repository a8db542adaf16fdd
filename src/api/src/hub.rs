//! Events as they are committed: read once, kept for a while, shared by all who listen.
//!
//! One thread sleeps until something is committed, reads what is new and keeps the newest events in a ring. Who listens
//! is a cursor, no buffer: it takes from the ring what lies behind it, and who falls behind the ring reads the store,
//! where everything is. So one that does not read costs nothing here and loses nothing.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use gantry_engine::model::Event;
use gantry_engine::model::query::EventQuery;
use gantry_engine::{Commits, Observer, now};
use tokio::sync::watch;
use tonic::Status;

use crate::bridge::Source;
use crate::status;

/// The most events that are kept.
const MOST_EVENTS: usize = 8192;
/// The most bytes of them, about.
const MOST_BYTES: usize = 4 << 20;
/// How many are read at a time.
const PAGE: usize = 512;
/// How long it is slept at most: a database that was replaced wakes nobody.
const LOOK: Duration = Duration::from_millis(500);

/// An event, and what it is on the wire.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The event.
    pub(crate) event: Event,
    /// Encoded once for all who listen.
    pub(crate) encoded: Vec<u8>,
}

/// How an event is encoded.
pub(crate) type Encode = fn(&Event) -> Vec<u8>;

/// The newest events: all of those with numbers above `from` that were read.
#[derive(Default)]
struct Ring {
    entries: VecDeque<Arc<Entry>>,
    bytes: usize,
    from: u64,
}

/// What the ring has for a cursor.
pub(crate) enum Slice {
    /// The ring begins after it: the store has what is in between.
    Behind,
    /// These events, in order; none when nothing happened since.
    Entries(Vec<Arc<Entry>>),
}

impl Ring {
    fn begin(&mut self, at: u64) {
        *self = Self { from: at, ..Self::default() };
    }

    fn push(&mut self, entry: Entry) {
        self.bytes += size(&entry);
        self.entries.push_back(Arc::new(entry));
        while self.entries.len() > MOST_EVENTS || self.bytes > MOST_BYTES {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= size(&oldest);
            self.from = oldest.event.seq;
        }
    }

    fn after(&self, cursor: u64, most: usize) -> Slice {
        if cursor < self.from {
            return Slice::Behind;
        }
        let first = self.entries.partition_point(|entry| entry.event.seq <= cursor);
        Slice::Entries(self.entries.range(first..).take(most).cloned().collect())
    }
}

/// About what an event takes in memory: twice its texts, and what is around them.
fn size(entry: &Entry) -> usize {
    const AROUND: usize = 400;
    AROUND + 2 * entry.encoded.len()
}

struct Shared {
    encode: Encode,
    ring: RwLock<Ring>,
    /// The number of the last event that is known.
    last: watch::Sender<u64>,
    ended: AtomicBool,
}

/// See the module. Its thread ends when it is dropped.
pub(crate) struct Hub {
    shared: Arc<Shared>,
}

impl Hub {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start(source: Source, encode: Encode) -> io::Result<Self> {
        let ring = RwLock::new(Ring { from: u64::MAX, ..Ring::default() });
        let shared = Arc::new(Shared { encode, ring, last: watch::Sender::new(0), ended: AtomicBool::new(false) });
        let theirs = Arc::clone(&shared);
        std::thread::Builder::new().name("events".to_owned()).spawn(move || theirs.run(&source))?;
        Ok(Self { shared })
    }

    /// At most so many events after this cursor.
    pub(crate) fn after(&self, cursor: u64, most: usize) -> Slice {
        self.shared.read().after(cursor, most)
    }

    /// Tells when there is something new: the number of the last event that is known.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.shared.last.subscribe()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // It sees that within the time of one look.
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread. What fails is tried again: nobody is served wrongly meanwhile, only later.
    fn run(&self, source: &Source) {
        let mut cursor = None;
        while !self.ended.load(Ordering::Relaxed) {
            // A panic is printed by the hook, and is a failure like others.
            let followed = catch_unwind(AssertUnwindSafe(|| self.follow(source, &mut cursor)));
            if !matches!(followed, Ok(Ok(()))) {
                // Everybody asks the store meanwhile, which has the events, or tells what is wrong.
                self.ring.write().unwrap_or_else(PoisonError::into_inner).begin(u64::MAX);
                cursor = None;
                self.last.send_modify(|_| {});
                std::thread::sleep(LOOK);
            }
        }
    }

    /// Reads what is new until the observer has to be opened again.
    fn follow(&self, source: &Source, cursor: &mut Option<u64>) -> Result<(), Status> {
        let observer = source.open()?;
        // Watched first, then read: what is committed in between wakes.
        let failed = |error: io::Error| Status::unavailable(format!("cannot watch the database: {error}"));
        let mut commits = Commits::watch(&observer).map_err(failed)?;
        let newest = observer.events_start(&EventQuery::default(), now()).map_err(|error| status::of(&error))?;
        let mut at = match *cursor {
            // As long as numbers only rise, nothing that was committed meanwhile is left out.
            Some(at) if at <= newest => at,
            Some(_) | None => {
                self.ring.write().unwrap_or_else(PoisonError::into_inner).begin(newest);
                self.last.send_replace(newest);
                newest
            }
        };
        while !self.ended.load(Ordering::Relaxed) {
            *cursor = Some(at);
            if !self.read_page(&observer, &mut at)? {
                commits.wait(LOOK).map_err(failed)?;
                if !observer.is_current() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn entry(&self, event: Event) -> Entry {
        Entry { encoded: (self.encode)(&event), event }
    }

    /// Whether there was something.
    fn read_page(&self, observer: &Observer, at: &mut u64) -> Result<bool, Status> {
        let page = observer.events_after(*at, PAGE).map_err(|error| status::of(&error))?;
        let moved = page.cursor != *at || page.trimmed.is_some();
        if !moved {
            return Ok(false);
        }
        let entries: Vec<Entry> = page.events.into_iter().map(|event| self.entry(event)).collect();
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(gone) = page.trimmed {
            // Whoever stands before the gap has to hear of it, which the store tells.
            ring.begin(gone.max(*at));
        }
        for entry in entries {
            ring.push(entry);
        }
        drop(ring);
        // Where all is gone the page has no event to go on from.
        *at = page.cursor.max(page.trimmed.unwrap_or(0));
        self.last.send_replace(*at);
        Ok(true)
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
