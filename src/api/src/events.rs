//! Following events: a cursor that moves first through the store's history, then along the ring of the [`crate::hub`].
//!
//! The cursor has no buffer. A surface takes the next batch, encodes as much of it as fits into one message and
//! advances the cursor that far; the rest is read again. So a client that does not read costs one message.

use std::sync::Arc;
use std::time::Duration;

use gantry_engine::{COMMIT_TIMEOUT, Observer, now};
use gantry_model::Timestamp;
use gantry_model::query::EventQuery;
use tokio::sync::watch;
use tonic::Status;

use crate::bridge::Weight;
use crate::context::Context;
use crate::hub::{HubEvent, HubSlice};
use crate::status;

/// Maximum events of a batch.
const MAX_BATCH: usize = 256;
/// Poll interval while the ring is behind the cursor's store.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Consecutive events.
pub(crate) struct EventBatch {
    /// The cursor before the batch.
    pub(crate) from: u64,
    /// The cursor after all of it.
    pub(crate) to: u64,
    /// The events, at least one.
    pub(crate) events: Vec<Arc<HubEvent>>,
    /// Whether it comes from the ring: other clients are about to take the same batch.
    pub(crate) is_live: bool,
}

/// A position in the sequence of events.
pub(crate) struct EventCursor {
    context: Arc<Context>,
    news: watch::Receiver<u64>,
    /// Ends the sequence.
    until: Option<Timestamp>,
    /// The number of the last event taken.
    position: u64,
    /// The highest number of deleted events before the next batch. The surface takes it when it reports the gap.
    pub(crate) gap: Option<u64>,
    /// The number of the last event before `until`, known when that time has passed.
    end: Option<u64>,
}

impl EventCursor {
    /// Starts where the query starts. No event that is committed after this call returns is missed.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn start(context: &Arc<Context>, query: EventQuery) -> Result<Self, Status> {
        let until = query.until;
        let position = first_position(context, query).await?;
        let news = context.hub.news();
        Ok(Self { context: Arc::clone(context), news, until, position, gap: None, end: None })
    }

    /// The number of the last event taken.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Moves on to this event number.
    pub(crate) fn advance(&mut self, to: u64) {
        self.position = to;
    }

    /// Waits for the next batch. `None`: the query's end has passed, or `closed` has returned.
    ///
    /// # Errors
    /// The store's error if it cannot be read, and `UNAVAILABLE` if the server drains.
    pub(crate) async fn next(&mut self, closed: impl Future<Output = ()>) -> Result<Option<EventBatch>, Status> {
        let mut closed = std::pin::pin!(closed);
        loop {
            let is_over = self.time_left().is_some_and(|left| left.is_zero());
            if is_over && self.end.is_none() {
                self.end = Some(first_position(&self.context, EventQuery::default()).await?);
            }
            if self.end.is_some_and(|end| self.position >= end) {
                return Ok(None);
            }
            // Before the ring is read, so that later additions count as a change.
            self.news.borrow_and_update();
            let is_behind = match self.context.hub.after(self.position, MAX_BATCH) {
                // The ring may lag behind the store, which matters at the end.
                HubSlice::Events(events) if events.is_empty() => is_over,
                HubSlice::Events(events) => return Ok(Some(self.live_batch(events))),
                HubSlice::Behind => true,
            };
            if is_behind {
                if let Some(batch) = self.read_store().await? {
                    return Ok(Some(batch));
                }
                if is_over {
                    return Ok(None);
                }
            }
            let timeout = is_behind.then_some(POLL_INTERVAL).into_iter().chain(self.time_left()).min();
            tokio::select! {
                // An error means that the hub has ended, and with it the server.
                _ = self.news.changed() => {}
                () = &mut closed => return Ok(None),
                () = self.context.drained() => return Err(status::draining()),
                () = tokio::time::sleep(timeout.unwrap_or_default()), if timeout.is_some() => {}
            }
        }
    }

    /// The next batch of what is committed already: never waits for more. `None`: there is nothing after the cursor.
    /// The last number in use may be far away from it then, since numbers jump at a boot.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn next_committed(&mut self) -> Result<Option<EventBatch>, Status> {
        match self.context.hub.after(self.position, MAX_BATCH) {
            HubSlice::Events(events) if !events.is_empty() => Ok(Some(self.live_batch(events))),
            // The ring may lag behind the store.
            HubSlice::Events(_) | HubSlice::Behind => self.read_store().await,
        }
    }

    /// The batch of events of the ring.
    fn live_batch(&self, events: Vec<Arc<HubEvent>>) -> EventBatch {
        let to = events.last().map_or(self.position, |event| event.seq());
        EventBatch { from: self.position, to, events, is_live: true }
    }

    /// The time left until all events before the query's end are committed.
    fn time_left(&self) -> Option<Duration> {
        self.until.map(|until| until.after(COMMIT_TIMEOUT).since(now()))
    }

    async fn read_store(&mut self) -> Result<Option<EventBatch>, Status> {
        let position = self.position;
        let page = self.context.reader.call_for_stream(Weight::Heavy, move |observer: &Observer| {
            observer.events_after(position, MAX_BATCH).map_err(|error| status::from_error(&error))
        });
        let page = page.await?;
        self.gap = self.gap.max(page.trimmed);
        // If all events after the position were deleted, the page has no event that could move it.
        let to = position.max(page.cursor).max(page.trimmed.unwrap_or(0));
        if page.events.is_empty() {
            self.position = to;
            return Ok(None);
        }
        let events = page.events.into_iter().map(|event| Arc::new(HubEvent::new(event))).collect();
        Ok(Some(EventBatch { from: position, to, events, is_live: false }))
    }
}

async fn first_position(context: &Context, query: EventQuery) -> Result<u64, Status> {
    let read = move |observer: &Observer| observer.events_start(&query, now());
    let job = move |observer: &Observer| read(observer).map_err(|error| status::from_error(&error));
    context.reader.call_for_stream(Weight::Light, job).await
}
