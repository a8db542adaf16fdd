//! ListenEvents: filters events of an [`EventCursor`] and encodes them.
//!
//! The first event after a pause is sent at once. After a message, a subscriber gets the next one at the next tick of a
//! common clock, whose interval grows with the number of subscribers; so under load events are sent in groups, and all
//! subscribers without a filter share the same bytes.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gantry_engine::name_and_version;
use gantry_model::query::EventQuery;
use gantry_model::{EventRecord, EventSubject, NewEvent};
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::{self as wire, EventFilter, EventType, KeyValue, ListenEventsRequest};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use super::convert;
use super::filters::image_id;
use crate::context::Context;
use crate::events::{EventBatch, EventCursor};
use crate::hub::{EventEncoder, Hub, HubEvent};
use crate::peer::Peer;
use crate::quota::Quota;
use crate::request::{SecondsField, ValueBudget, time_range};
use crate::status::{self, invalid_field};

/// Maximum subscribers.
const MAX_SUBSCRIBERS: usize = 4096;
/// A message of this many bytes is complete. Each subscriber that does not read costs one.
const MAX_MESSAGE: usize = 64 << 10;
/// Messages kept for other subscribers.
const MAX_SHARED_MESSAGES: usize = 8;
/// Minimum time between two messages to a subscriber.
const MIN_INTERVAL: Duration = Duration::from_millis(5);
/// The longest such time, with many subscribers.
const MAX_INTERVAL: Duration = Duration::from_millis(40);
/// Subscribers that make it a millisecond longer.
const SUBSCRIBERS_PER_MILLISECOND: usize = 25;

/// The events that a request selects.
#[derive(Debug, Default)]
pub(super) struct EventSelection {
    query: EventQuery,
    /// In place of the query's lists, which are searched one by one.
    ids: HashSet<String>,
    names: HashSet<String>,
}

impl EventSelection {
    /// Translates the request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, which names the field.
    pub(super) fn parse(request: ListenEventsRequest) -> Result<Self, Status> {
        let ListenEventsRequest { filter } = request;
        let EventFilter { types, ids, names, since_time, until_time } = filter.unwrap_or_default();
        let mut budget = ValueBudget::default();
        budget.count("filter.types", types.len())?;
        let mut kinds = Vec::new();
        for number in &types {
            let known = EventType::try_from(*number);
            let known = known.map_err(|_| invalid_field("filter.types", &format!("there is no EventType {number}")))?;
            for kind in convert::event_kinds(known) {
                if !kinds.contains(&kind) {
                    kinds.push(kind);
                }
            }
        }
        let (since, until) = time_range(
            SecondsField { name: "filter.since_time", seconds: since_time },
            SecondsField { name: "filter.until_time", seconds: until_time },
        )?;
        Ok(Self {
            ids: budget.check_texts("filter.ids", ids)?.into_iter().map(event_id).collect(),
            names: budget.check_texts("filter.names", names)?.into_iter().collect(),
            query: EventQuery { kinds, ids: Vec::new(), names: Vec::new(), since, until },
        })
    }

    fn matches(&self, event: &NewEvent) -> bool {
        let has_name = |names: &HashSet<String>| names.contains(&event.name) || names.contains(Subject::of(event).from);
        self.query.holds(event)
            && (self.ids.is_empty() || self.ids.contains(&event.id))
            && (self.names.is_empty() || has_name(&self.names))
    }

    /// Whether it selects every event from now on.
    fn is_all(&self) -> bool {
        let Self { query: EventQuery { kinds, ids, names, since, until }, ids: id_set, names: name_set } = self;
        kinds.is_empty()
            && [ids, names].iter().all(|list| list.is_empty())
            && [id_set, name_set].iter().all(|set| set.is_empty())
            && (since, until) == (&None, &None)
    }
}

/// Image ids in the form that events have; other ids unchanged.
fn event_id(text: String) -> String {
    image_id(&text).map_or(text, |id| id.to_string())
}

/// The subject of an event as its message names it.
struct Subject<'a> {
    /// The UUID of a pod, the name of an app, Image.name of an image.
    from: &'a str,
    /// What else names it, as data: the name of a pod that has one, Image.version of an image.
    more: Option<(&'static str, &'a str)>,
}

impl<'a> Subject<'a> {
    fn of(event: &'a NewEvent) -> Self {
        let NewEvent { kind, id, name, .. } = event;
        match kind.subject() {
            EventSubject::Pod => Self { from: id, more: (name != id).then_some(("name", name)) },
            EventSubject::Image if !name.is_empty() => {
                let (name, version) = name_and_version(name);
                Self { from: name, more: Some(("version", version)) }
            }
            EventSubject::App | EventSubject::Image | EventSubject::Schedule | EventSubject::Call => {
                Self { from: name, more: None }
            }
        }
    }
}

/// Encodes an event as an element of the only field of ListenEventsResponse. The protobuf is written by hand, so that
/// the bytes of an event are made once for all subscribers.
fn encode(record: &EventRecord) -> Vec<u8> {
    encode_after_gap(record, None)
}

/// The same, with the highest number of the deleted events before it.
fn encode_after_gap(record: &EventRecord, trimmed: Option<u64>) -> Vec<u8> {
    let EventRecord { seq, boot: _, event } = record;
    let NewEvent { kind, at, id, name: _, data } = event;
    let Subject { from, more } = Subject::of(event);
    let mut data = convert::pairs(data);
    data.extend(more.map(|(key, value)| KeyValue { key: key.to_owned(), value: value.to_owned() }));
    data.push(KeyValue { key: "sequence".to_owned(), value: seq.to_string() });
    data.push(KeyValue { key: "time_ns".to_owned(), value: at.0.to_string() });
    data.extend(trimmed.map(|seq| KeyValue { key: "trimmed".to_owned(), value: seq.to_string() }));
    let event_type = convert::event_type(*kind);
    if event_type == EventType::Undefined {
        data.push(KeyValue { key: "type".to_owned(), value: kind.as_str().to_owned() });
    }
    let message =
        wire::Event { r#type: event_type.into(), id: id.clone(), from: from.to_owned(), time: at.seconds(), data };
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(length + 8);
    encode_key(1, WireType::LengthDelimited, &mut bytes);
    encode_varint(length as u64, &mut bytes);
    message.encode_raw(&mut bytes);
    bytes
}

/// All subscribers, and the latest messages to those without a filter.
pub(super) struct Subscribers {
    quota: Quota,
    encoder: EventEncoder,
    shared: Mutex<VecDeque<SharedMessage>>,
    started: Instant,
}

/// A message: the events with numbers above `from`, up to `to`.
struct SharedMessage {
    from: u64,
    to: u64,
    bytes: Bytes,
}

impl Subscribers {
    /// No subscribers yet.
    pub(super) fn new(hub: &Hub) -> Self {
        let quota = Quota::new(MAX_SUBSCRIBERS);
        Self { quota, encoder: hub.register(encode), shared: Mutex::default(), started: Instant::now() }
    }

    /// The next tick.
    fn next_tick(&self) -> Instant {
        let more = Duration::from_millis((self.quota.used() / SUBSCRIBERS_PER_MILLISECOND) as u64);
        let interval = (MIN_INTERVAL + more).min(MAX_INTERVAL);
        let now = Instant::now();
        // Less than an interval, so the conversion cannot fail.
        let elapsed = now.duration_since(self.started).as_nanos() % interval.as_nanos();
        now + interval.saturating_sub(Duration::from_nanos(u64::try_from(elapsed).unwrap_or(0)))
    }

    /// The message of these events, made once for all subscribers.
    fn shared_message(&self, from: u64, to: u64, make: impl FnOnce() -> Vec<u8>) -> Bytes {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = shared.iter().find(|one| (one.from, one.to) == (from, to)) {
            return same.bytes.clone();
        }
        let bytes = Bytes::from(make());
        shared.truncate(MAX_SHARED_MESSAGES - 1);
        shared.push_front(SharedMessage { from, to, bytes: bytes.clone() });
        bytes
    }
}

/// Starts the stream.
///
/// # Errors
/// Too many subscribers, or the store failed.
pub(super) async fn subscribe(
    context: &Arc<Context>,
    subscribers: &Arc<Subscribers>,
    peer: Peer,
    selection: EventSelection,
) -> Result<ReceiverStream<Result<Encoded, Status>>, Status> {
    let permit = subscribers.quota.acquire(peer)?;
    // Before the client gets the response: no later event is missed.
    let cursor = EventCursor::start(context, selection.query.clone()).await?;
    let (context, subscribers) = (Arc::clone(context), Arc::clone(subscribers));
    let mut subscriber = Subscriber { is_all: selection.is_all(), selection, cursor, context, subscribers };
    let (sender, receiver) = mpsc::channel(1);
    let task = async move {
        let _permit = permit;
        if let Err(status) = subscriber.run(&sender).await {
            let _client_may_have_gone = sender.send(Err(status)).await;
        }
    };
    tokio::spawn(task.in_current_span());
    Ok(ReceiverStream::new(receiver))
}

type Sender = mpsc::Sender<Result<Encoded, Status>>;

/// One subscriber.
struct Subscriber {
    context: Arc<Context>,
    subscribers: Arc<Subscribers>,
    selection: EventSelection,
    /// Whether the selection is [`EventSelection::is_all`].
    is_all: bool,
    cursor: EventCursor,
}

impl Subscriber {
    /// Sends messages until the end of the selection, or until the client has gone away.
    async fn run(&mut self, sender: &Sender) -> Result<(), Status> {
        loop {
            // Reserve the slot before making the message: a client that does not read costs one message.
            let slot = tokio::select! {
                slot = sender.reserve() => slot,
                () = self.context.drained() => return Err(status::draining()),
            };
            let (Ok(slot), Some(message)) = (slot, self.next_message(sender).await?) else { return Ok(()) };
            slot.send(Ok(Encoded(message)));
            tokio::time::sleep_until(self.subscribers.next_tick()).await;
        }
    }

    /// The next message; `None` at the end.
    async fn next_message(&mut self, sender: &Sender) -> Result<Option<Bytes>, Status> {
        loop {
            let Some(batch) = self.cursor.next(sender.closed()).await? else { return Ok(None) };
            let message = self.encode(&batch);
            if !message.is_empty() {
                return Ok(Some(message));
            }
            // Nothing of the batch is selected: let other tasks run before the next one.
            tokio::task::yield_now().await;
        }
    }

    /// Encodes the selected events of a batch, or as many as fit, and moves the cursor past them.
    fn encode(&mut self, batch: &EventBatch) -> Bytes {
        let encoder = self.subscribers.encoder;
        if self.is_all && batch.is_live && self.cursor.gap.is_none() {
            let events = fitting(&batch.events, encoder);
            let to = events.last().map_or(batch.to, |event| event.seq());
            self.cursor.advance(to);
            let make = || events.iter().flat_map(|event| event.encoded(encoder).into_owned()).collect();
            return self.subscribers.shared_message(batch.from, to, make);
        }
        let mut message = Message { selection: &self.selection, bytes: Vec::new(), gap: self.cursor.gap };
        let full_at = batch.events.iter().position(|event| !message.add(event, encoder));
        let to = match full_at {
            None => batch.to,
            Some(index) => index.checked_sub(1).map_or(batch.from, |last| batch.events[last].seq()),
        };
        let Message { bytes, gap, .. } = message;
        self.cursor.gap = gap;
        self.cursor.advance(to);
        bytes.into()
    }
}

/// The first events that fill a message.
fn fitting(events: &[Arc<HubEvent>], encoder: EventEncoder) -> &[Arc<HubEvent>] {
    let mut bytes = 0;
    let count = events.iter().take_while(|event| {
        let fits = bytes < MAX_MESSAGE;
        bytes += event.encoded(encoder).len();
        fits
    });
    &events[..count.count()]
}

/// A message for one subscriber.
struct Message<'a> {
    selection: &'a EventSelection,
    bytes: Vec<u8>,
    /// The gap that the next event reports.
    gap: Option<u64>,
}

impl Message<'_> {
    /// Adds an event if it is selected; `false` if the message is full.
    fn add(&mut self, event: &HubEvent, encoder: EventEncoder) -> bool {
        if self.bytes.len() >= MAX_MESSAGE {
            return false;
        }
        if self.selection.matches(event.event()) {
            match self.gap.take() {
                Some(gap) => self.bytes.extend(encode_after_gap(&event.record, Some(gap))),
                None => self.bytes.extend_from_slice(&event.encoded(encoder)),
            }
        }
        true
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
