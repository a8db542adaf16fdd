//! What happened, from the store's history: pages of it, and waiting for more. (PLACEHOLDER bodies.)

use std::io;
use std::time::Duration;

use gantry_model::query::EventQuery;
use gantry_model::{Event, Timestamp};

use crate::{Observer, PodError};

/// Some events, in the order of their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventPage {
    /// The events. All that there were between the cursors, whether they are asked for or not.
    pub events: Vec<Event>,
    /// Where to go on: the number of the last one, or what was asked for.
    pub cursor: u64,
    /// Events after the asked-for cursor were deleted: the highest number that is gone.
    pub trimmed: Option<u64>,
}

/// Waits for commits to the database by any process.
#[derive(Debug)]
pub struct Commits {}

impl Commits {
    /// Begins to watch; what is committed from now on wakes the next [`Self::wait`].
    ///
    /// # Errors
    /// None that would make waiting impossible: where the kernel cannot tell, it is looked every 50 ms.
    pub fn watch(observer: &Observer) -> io::Result<Self> {
        let _ = observer;
        Ok(Self {})
    }

    /// Waits until there may be something new, at most this long. Waking too often is allowed, too late is not.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn wait(&mut self, most: Duration) -> io::Result<()> {
        std::thread::sleep(most.min(Duration::from_millis(20)));
        Ok(())
    }
}

impl Observer {
    /// The cursor from which to read so that no event is missed that this query asks for: of the past where it says so,
    /// else from now on.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_start(&self, query: &EventQuery, now: Timestamp) -> Result<u64, PodError> {
        let _ = (query, now);
        self.engine.store.last_seq().map_err(PodError::store)
    }

    /// At most `most` events with numbers above `cursor`.
    ///
    /// # Errors
    /// [`PodError`].
    pub fn events_after(&self, cursor: u64, most: usize) -> Result<EventPage, PodError> {
        let events = self.engine.store.events_after(cursor, most).map_err(PodError::store)?;
        let last = events.last().map_or(cursor, |event| event.seq);
        Ok(EventPage { events, cursor: last, trimmed: None })
    }
}
