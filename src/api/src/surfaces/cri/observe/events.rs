//! GetContainerEvents: the history of sandboxes and containers as events of the CRI.
//!
//! One task follows the events of the store as they are committed, reads the rows of their pods at once, and keeps the
//! newest translated events in a ring. A client is a position in it: it costs no memory while it does not read. One
//! that falls behind the ring gets DATA_LOSS and subscribes again, after it has listed what exists, as kubelets do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gantry_engine::Observer;
use gantry_model::query::EventQuery;
use gantry_model::{EventKind, NewEvent, PodPrefix};
use gantry_proto::cri::v1::ContainerEventResponse;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::{Instrument as _, warn};

use super::sandbox_events::{RowState, SandboxEvents, read_row, read_rows};
use crate::bridge::Weight;
use crate::context::Context;
use crate::events::{EventBatch, EventCursor};
use crate::status;

/// Maximum events in the ring.
const MAX_EVENTS: usize = 16_384;
/// Maximum bytes of the ring.
const MAX_BYTES: usize = 16 << 20;
/// Messages that wait for a client.
const QUEUE: usize = 16;
/// Events that a client takes from the ring at once.
const MAX_TAKEN: usize = 64;

/// The messages of an event of the store.
struct RingEntry {
    seq: u64,
    bytes: usize,
    messages: Vec<ContainerEventResponse>,
}

/// The newest entries.
#[derive(Default)]
struct Ring {
    entries: VecDeque<Arc<RingEntry>>,
    bytes: usize,
    /// Entries with numbers up to this one may be missing.
    lost: u64,
    /// Whether the task runs.
    is_followed: bool,
    /// Why the task has ended.
    failure: Option<Status>,
}

/// What a client finds after its position.
enum Slice {
    Entries(Vec<Arc<RingEntry>>),
    Lost,
    Failed(Status),
}

impl Ring {
    /// The ring of a task that has the events after this position. A client behind it has missed the events between the
    /// task before and this one.
    fn followed_from(position: u64) -> Self {
        Self { lost: position, is_followed: true, ..Self::default() }
    }

    fn push(&mut self, seq: u64, messages: Vec<ContainerEventResponse>) {
        let bytes = messages.iter().map(prost::Message::encoded_len).sum();
        self.bytes += bytes;
        self.entries.push_back(Arc::new(RingEntry { seq, bytes, messages }));
        while self.entries.len() > MAX_EVENTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.bytes;
            self.lost = oldest.seq;
        }
    }

    fn after(&self, position: u64) -> Slice {
        if position < self.lost {
            return Slice::Lost;
        }
        let first = self.entries.partition_point(|entry| entry.seq <= position);
        let entries: Vec<_> = self.entries.range(first..).take(MAX_TAKEN).cloned().collect();
        match &self.failure {
            Some(failure) if entries.is_empty() => Slice::Failed(failure.clone()),
            _ => Slice::Entries(entries),
        }
    }
}

/// See the module.
pub(in super::super) struct ContainerEvents {
    context: Arc<Context>,
    ring: Mutex<Ring>,
    news: watch::Sender<()>,
}

impl ContainerEvents {
    /// Without a client, nothing is followed.
    pub(in super::super) fn new(context: Arc<Context>) -> Self {
        Self { context, ring: Mutex::default(), news: watch::Sender::new(()) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events that are committed after this call returns.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(in super::super) async fn subscribe(
        self: &Arc<Self>,
    ) -> Result<ReceiverStream<Result<ContainerEventResponse, Status>>, Status> {
        let cursor = EventCursor::start(&self.context, EventQuery::default()).await?;
        let (is_first, position) = {
            let mut ring = self.ring();
            let is_first = !ring.is_followed;
            if is_first {
                *ring = Ring::followed_from(cursor.position());
            }
            // What the ring has lost by now was committed before this call returns.
            (is_first, cursor.position().max(ring.lost))
        };
        if is_first {
            tokio::spawn(Arc::clone(self).follow(cursor).in_current_span());
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        tokio::spawn(Arc::clone(self).send(position, sender).in_current_span());
        Ok(ReceiverStream::new(receiver))
    }

    /// Sends the events after a position until the client has gone, and the status when they end before.
    async fn send(self: Arc<Self>, position: u64, sender: mpsc::Sender<Result<ContainerEventResponse, Status>>) {
        if let Err(status) = self.send_after(position, &sender).await {
            // Waits for a slow client, whose stream would else end as if it had read everything.
            let _client_may_have_gone = sender.send(Err(status)).await;
        }
    }

    /// Sends the events after a position until the client has gone.
    ///
    /// # Errors
    /// `DATA_LOSS` if the client is behind the ring, the failure of the task, and `UNAVAILABLE` if the server drains.
    async fn send_after(
        &self,
        mut position: u64,
        sender: &mpsc::Sender<Result<ContainerEventResponse, Status>>,
    ) -> Result<(), Status> {
        let mut news = self.news.subscribe();
        loop {
            // Before the ring is read, so that later additions count as a change.
            news.borrow_and_update();
            let slice = self.ring().after(position);
            let entries = match slice {
                Slice::Entries(entries) => entries,
                Slice::Lost => {
                    return Err(Status::data_loss("events were not read for too long: list, and subscribe again"));
                }
                Slice::Failed(status) => return Err(status),
            };
            for entry in &entries {
                for message in &entry.messages {
                    tokio::select! {
                        sent = sender.send(Ok(message.clone())) => if sent.is_err() { return Ok(()) },
                        () = self.context.drained() => return Err(status::draining()),
                    }
                }
                position = entry.seq;
            }
            if entries.is_empty() {
                tokio::select! {
                    _ = news.changed() => {}
                    () = sender.closed() => return Ok(()),
                    () = self.context.drained() => return Err(status::draining()),
                }
            }
        }
    }

    /// The task: translates events until the store cannot be read, or the server drains.
    async fn follow(self: Arc<Self>, cursor: EventCursor) {
        let failure = match self.translate_all(cursor).await {
            Ok(()) => status::draining(),
            Err(failure) => failure,
        };
        warn_unless_draining(&failure);
        {
            let mut ring = self.ring();
            ring.is_followed = false;
            ring.failure = Some(failure);
        }
        self.news.send_replace(());
    }

    async fn translate_all(&self, mut cursor: EventCursor) -> Result<(), Status> {
        // After the cursor was started: no later change is missed.
        let mut sandboxes: BTreeMap<String, SandboxEvents> = self
            .context
            .reader
            .call_for_stream(Weight::Heavy, |observer: &Observer| read_rows(observer))
            .await?
            .into_iter()
            .map(|state| (state.id.clone(), SandboxEvents::listed(state)))
            .collect();
        while let Some(batch) = cursor.next(std::future::pending()).await? {
            if let Some(gone) = cursor.gap.take() {
                self.ring().lost = gone;
            }
            let mut rows = self.read_rows_of(&batch).await?;
            for event in &batch.events {
                let NewEvent { id, kind, .. } = event.event();
                if !concerns_sandboxes(*kind) {
                    continue;
                }
                let state = rows.get_mut(id).and_then(Option::take);
                let messages = match sandboxes.get_mut(id) {
                    Some(known) => known.translate(event.event(), state),
                    None => match state {
                        Some(state) => {
                            let known = sandboxes.entry(id.clone()).or_insert_with(|| SandboxEvents::new(&state));
                            known.translate(event.event(), Some(state))
                        }
                        // Not a sandbox, or one that is gone already and was never shown.
                        None => continue,
                    },
                };
                if *kind == EventKind::PodGarbageCollected {
                    sandboxes.remove(id);
                }
                if !messages.is_empty() {
                    self.ring().push(event.seq(), messages);
                }
            }
            cursor.advance(batch.to);
            self.news.send_replace(());
        }
        Ok(())
    }

    /// The sandboxes of a batch as they are now.
    async fn read_rows_of(&self, batch: &EventBatch) -> Result<BTreeMap<String, Option<RowState>>, Status> {
        let concerned = batch.events.iter().map(|event| event.event()).filter(|it| concerns_sandboxes(it.kind));
        let ids: std::collections::BTreeSet<String> = concerned.map(|event| event.id.clone()).collect();
        if ids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let read = move |observer: &Observer| {
            let row = |id: &String| id.parse::<PodPrefix>().map_or(Ok(None), |prefix| read_row(observer, &prefix));
            ids.iter().map(|id| Ok((id.clone(), row(id)?))).collect()
        };
        self.context.reader.call_for_stream(Weight::Heavy, read).await
    }
}

fn warn_unless_draining(failure: &Status) {
    if failure.code() != status::draining().code() {
        warn!("cannot follow the events of containers: {}", failure.message());
    }
}

fn concerns_sandboxes(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::PodStarted
            | EventKind::PodStarting
            | EventKind::PodExited
            | EventKind::PodGarbageCollected
            | EventKind::AppCreated
            | EventKind::AppStarted
            | EventKind::AppExited
            | EventKind::AppRemoved
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of the entries after a position; `None` behind the ring.
    fn after(ring: &Ring, position: u64) -> Option<Vec<u64>> {
        match ring.after(position) {
            Slice::Entries(entries) => Some(entries.iter().map(|entry| entry.seq).collect()),
            Slice::Lost => None,
            Slice::Failed(failure) => panic!("the task has failed: {failure}"),
        }
    }

    #[test]
    fn new_rings_report_loss_to_older_clients() {
        let mut ring = Ring::followed_from(7);
        assert_eq!((after(&ring, 6), after(&ring, 7)), (None, Some(vec![])));
        ring.push(9, Vec::new());
        assert_eq!((after(&ring, 6), after(&ring, 7), after(&ring, 9)), (None, Some(vec![9]), Some(vec![])));
    }

    #[test]
    fn full_rings_lose_the_oldest_entries() {
        let mut ring = Ring::followed_from(0);
        for seq in 1..=MAX_EVENTS as u64 + 2 {
            ring.push(seq, Vec::new());
        }
        assert_eq!((ring.entries.len(), after(&ring, 1)), (MAX_EVENTS, None));
        assert_eq!(after(&ring, MAX_EVENTS as u64 + 1), Some(vec![MAX_EVENTS as u64 + 2]));
    }

    #[test]
    fn failures_follow_the_last_entry() {
        let mut ring = Ring::followed_from(0);
        ring.push(1, Vec::new());
        ring.failure = Some(status::draining());
        assert_eq!(after(&ring, 0), Some(vec![1]));
        assert!(matches!(ring.after(1), Slice::Failed(_)));
    }
}
