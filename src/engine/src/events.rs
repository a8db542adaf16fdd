//! Events: pages of the store's history. Waiting for more is [`crate::commits`].
//!
//! A reader has only a cursor: it reads events with higher numbers, and waits when there are none. So a slow reader
//! costs nothing and loses nothing, and events deleted before it read them show as a numbered gap.
//!
//! ```text
//! commits = engine.commits()  before the first read, or a commit in between would be missed
//! cursor = events_start(query)
//! loop: page = events_after(cursor); cursor = page.cursor; if the page is empty, commits.wait
//! ```

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use gantry_model::query::EventQuery;
use gantry_model::{EventRecord, NewEvent, PodPrefix, Timestamp};

use crate::{Engine, Observer, PodError};

/// An event that is noticed at once is committed within this time after its timestamp. To get all events until a time,
/// read this much later.
pub const COMMIT_TIMEOUT: Duration = Duration::from_millis(30);

/// Some events, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventPage {
    /// All events between the cursors, whether they match the query or not.
    pub events: Vec<EventRecord>,
    /// The cursor for the next page: the number of the last event, or the given cursor.
    pub cursor: u64,
    /// The highest number of an event after the given cursor that was deleted. `None` if none was deleted; a jump of
    /// the sequence at a boot loses nothing.
    pub trimmed: Option<u64>,
}

impl Engine {
    /// Writes an event that belongs to no change of a pod or image, durably.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn record_event(&self, event: &NewEvent) -> Result<(), PodError> {
        self.store.record_event(event).map_err(PodError::store)
    }

    /// The cursor from which to read so that no event of this query is missed:
    ///
    /// * with `since`: from that time. If events of that time may have been deleted, the first page reports a gap.
    /// * with an `until` not after `now`: from the oldest kept event, without reporting a gap.
    /// * else from now on.
    ///
    /// The pages have all events after the cursor: the caller applies the query to each of them.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_start(&self, query: &EventQuery, now: Timestamp) -> Result<u64, PodError> {
        let start = match (query.since, query.until) {
            (Some(since), _) => self.store.seq_before(since),
            (None, Some(until)) if until <= now => self.store.trimmed_seq(),
            (None, _) => self.store.last_seq(),
        };
        start.map_err(PodError::store)
    }

    /// At most `most` events with numbers above `cursor`.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_after(&self, cursor: u64, most: usize) -> Result<EventPage, PodError> {
        let (events, trimmed) = self.store.events_page(cursor, most)?;
        let last = events.last().map_or(cursor, |event| event.seq);
        Ok(EventPage { events, cursor: last, trimmed })
    }

    /// The UUIDs of the pods, existing or removed, that have this name in an event, or whose UUID begins so.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn pods_in_events(&self, name: &str, prefix: Option<&PodPrefix>) -> Result<BTreeSet<String>, PodError> {
        self.store.pods_in_events(name, prefix).map_err(PodError::store)
    }
}

impl Observer {
    /// See [`Engine::events_start`].
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_start(&self, query: &EventQuery, now: Timestamp) -> Result<u64, PodError> {
        self.engine.events_start(query, now)
    }

    /// See [`Engine::events_after`].
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_after(&self, cursor: u64, most: usize) -> Result<EventPage, PodError> {
        self.engine.events_after(cursor, most)
    }

    /// The names that removed pods had until their removal, by UUID. Pods without a name, and those whose removal is
    /// no longer in the history, are left out.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn names_at_removal(&self, pods: &BTreeSet<String>) -> Result<HashMap<String, String>, PodError> {
        self.engine.store.names_at_removal(pods).map_err(PodError::store)
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
pub(crate) mod tests;
