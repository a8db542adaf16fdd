//! Events as they are committed: read once from the store, kept for a while, shared by all subscribers of all surfaces.
//!
//! One thread sleeps until something is committed, reads the new events and keeps the newest in a ring. A subscriber is
//! a cursor without a buffer: it takes the events after its cursor from the ring; behind the ring it reads the store,
//! which has all of them. So a subscriber that does not read costs nothing here and misses nothing.
//!
//! Events are neutral. A surface registers its encoding, and each event is encoded at most once per surface.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use gantry_engine::{CommitCounter, CommitWatcher, Observer, Options, now};
use gantry_logging::RepeatedFailure;
use gantry_model::query::EventQuery;
use gantry_model::{EventRecord, NewEvent};
use tokio::sync::watch;
use tonic::Status;
use tracing::warn;

use crate::bridge::EngineHandle;
use crate::metrics::Metrics;
use crate::status;

/// Maximum events in the ring.
const MAX_EVENTS: usize = 8192;
/// Approximate maximum bytes of the ring.
const MAX_BYTES: usize = 4 << 20;
/// Events read at a time.
const PAGE: usize = 512;
/// Poll interval: a replaced database causes no wake-up.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Surfaces whose encodings are kept. Further ones encode each time.
const MAX_ENCODERS: usize = 4;

/// How a surface encodes an event. Made by [`Hub::register`].
#[derive(Clone, Copy)]
pub(crate) struct EventEncoder {
    slot: usize,
    encode: fn(&EventRecord) -> Vec<u8>,
}

/// An event, and its encodings so far.
pub(crate) struct HubEvent {
    /// The record.
    pub(crate) record: EventRecord,
    encoded: [OnceLock<Box<[u8]>>; MAX_ENCODERS],
}

impl HubEvent {
    /// An event that was not encoded yet.
    pub(crate) fn new(record: EventRecord) -> Self {
        Self { record, encoded: Default::default() }
    }

    /// Its number.
    pub(crate) fn seq(&self) -> u64 {
        self.record.seq
    }

    /// Its content.
    pub(crate) fn event(&self) -> &NewEvent {
        &self.record.event
    }

    /// The event as this surface encodes it.
    pub(crate) fn encoded(&self, encoder: EventEncoder) -> Cow<'_, [u8]> {
        let encode = || (encoder.encode)(&self.record);
        match self.encoded.get(encoder.slot) {
            Some(slot) => Cow::Borrowed(slot.get_or_init(|| encode().into_boxed_slice())),
            None => Cow::Owned(encode()),
        }
    }

    /// The approximate memory of the event and two encodings of it.
    fn size(&self) -> usize {
        const OVERHEAD: usize = 480;
        let event = self.event();
        let data: usize = event.data.iter().map(|(key, value)| key.len() + value.len()).sum();
        OVERHEAD + 3 * (event.id.len() + event.name.len() + data)
    }
}

/// The newest events: all with numbers above `from` that were read.
#[derive(Default)]
struct Ring {
    events: VecDeque<Arc<HubEvent>>,
    bytes: usize,
    from: u64,
}

/// The events of the ring after a cursor.
pub(crate) enum HubSlice {
    /// The ring starts later: the store has the events in between.
    Behind,
    /// These events, in order; none if there are no later ones.
    Events(Vec<Arc<HubEvent>>),
}

impl Ring {
    fn restart(&mut self, from: u64) {
        *self = Self { from, ..Self::default() };
    }

    fn push(&mut self, event: HubEvent) {
        self.bytes += event.size();
        self.events.push_back(Arc::new(event));
        while self.events.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.events.pop_front() else { return };
            self.bytes -= oldest.size();
            self.from = oldest.seq();
        }
    }

    fn after(&self, cursor: u64, limit: usize) -> HubSlice {
        if cursor < self.from {
            return HubSlice::Behind;
        }
        let first = self.events.partition_point(|event| event.seq() <= cursor);
        HubSlice::Events(self.events.range(first..).take(limit).cloned().collect())
    }
}

struct Shared {
    commits: CommitWatcher,
    encoders: AtomicUsize,
    ring: RwLock<Ring>,
    /// The number of the last event that was read.
    last: watch::Sender<u64>,
    /// The number of changes of the database that were noticed, also of those without an event.
    changes: watch::Sender<u64>,
    ended: AtomicBool,
    metrics: Arc<Metrics>,
}

/// See the module. Its thread ends when it is dropped.
pub(crate) struct Hub {
    shared: Arc<Shared>,
}

impl Hub {
    /// Starts the thread.
    ///
    /// # Errors
    /// The process can start no more threads.
    pub(crate) fn start(options: Options, commits: CommitWatcher, metrics: Arc<Metrics>) -> io::Result<Self> {
        let ring = RwLock::new(Ring { from: u64::MAX, ..Ring::default() });
        let (encoders, last, changes) = (AtomicUsize::new(0), watch::Sender::new(0), watch::Sender::new(0));
        let shared =
            Arc::new(Shared { commits, encoders, ring, last, changes, ended: AtomicBool::new(false), metrics });
        let thread_shared = Arc::clone(&shared);
        std::thread::Builder::new().name("events".to_owned()).spawn(move || thread_shared.run(&options))?;
        Ok(Self { shared })
    }

    /// Registers the encoding of a surface.
    pub(crate) fn register(&self, encode: fn(&EventRecord) -> Vec<u8>) -> EventEncoder {
        EventEncoder { slot: self.shared.encoders.fetch_add(1, Ordering::Relaxed), encode }
    }

    /// At most this many events after this cursor.
    pub(crate) fn after(&self, cursor: u64, limit: usize) -> HubSlice {
        self.shared.read().after(cursor, limit)
    }

    /// Changes when new events were read: the number of the last one.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.shared.last.subscribe()
    }

    /// Changes when anything may have been committed, also without an event.
    pub(crate) fn commits(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // The thread sees it within a poll interval.
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, Ring> {
        self.ring.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread. Retries after failures; subscribers read the store in the meantime.
    fn run(&self, options: &Options) {
        let mut cursor = None;
        let mut failure = RepeatedFailure::default();
        while !self.ended.load(Ordering::Relaxed) {
            match catch_unwind(AssertUnwindSafe(|| self.follow(options, &mut cursor))) {
                Ok(Ok(())) => {
                    failure.clear();
                    continue;
                }
                Ok(Err(status)) => {
                    failure.record(&status.message(), |failure| warn!("cannot follow events: {failure}; retrying"));
                }
                // The panic hook logs a panic.
                Err(_) => failure.clear(),
            }
            // Subscribers read the store, which has the events or returns the error.
            self.ring.write().unwrap_or_else(PoisonError::into_inner).restart(u64::MAX);
            cursor = None;
            self.last.send_modify(|_| {});
            self.count_change();
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Reads new events until the observer has to be opened again.
    fn follow(&self, options: &Options, cursor: &mut Option<u64>) -> Result<(), Status> {
        let observer = <Observer as EngineHandle>::open(options)?;
        // Before the first read, so that a commit in between causes a wake-up.
        let failed = |error: io::Error| Status::unavailable(format!("cannot watch the database: {error}"));
        let mut commits = self.commits.subscribe().map_err(failed)?;
        let counter = CommitCounter::open(options).map_err(|error| status::from_error(&error))?;
        let mut count = counter.count();
        // What was committed before is not known.
        self.count_change();
        let newest =
            observer.events_start(&EventQuery::default(), now()).map_err(|error| status::from_error(&error))?;
        let mut at = match *cursor {
            // Numbers only rise, so no event in between is missed.
            Some(at) if at <= newest => at,
            Some(_) | None => {
                self.ring.write().unwrap_or_else(PoisonError::into_inner).restart(newest);
                self.last.send_replace(newest);
                newest
            }
        };
        while !self.ended.load(Ordering::Relaxed) {
            *cursor = Some(at);
            let before = std::mem::replace(&mut count, counter.count());
            if count.is_none() || count != before {
                self.count_change();
            }
            if !self.read_page(&observer, &mut at)? {
                commits.wait(POLL_INTERVAL).map_err(failed)?;
                if !observer.is_current() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Wakes those who wait for commits.
    fn count_change(&self) {
        self.changes.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Reads one page into the ring. `false` if there was nothing new.
    fn read_page(&self, observer: &Observer, at: &mut u64) -> Result<bool, Status> {
        let page = observer.events_after(*at, PAGE).map_err(|error| status::from_error(&error))?;
        let moved = page.cursor != *at || page.trimmed.is_some();
        if !moved {
            return Ok(false);
        }
        let mut ring = self.ring.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(gone) = page.trimmed {
            // Subscribers before the gap have to read the store, which reports it.
            ring.restart(gone.max(*at));
        }
        for record in page.events {
            self.metrics.count_event(record.event.kind);
            ring.push(HubEvent::new(record));
        }
        drop(ring);
        // If all events after the cursor were deleted, the page has no event that could move it.
        *at = page.cursor.max(page.trimmed.unwrap_or(0));
        self.last.send_replace(*at);
        Ok(true)
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
