//! ListenEvents: a cursor for each listener, first through the store's history, then along the ring of the
//! [`crate::hub`].
//!
//! The first event after quiet goes out at once. Who has just been sent something is sent the next when the clock has
//! come to the next of some milliseconds, the more of them the more listen; so that under load events go out together,
//! and all who listen to everything are sent the same bytes.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use gantry_engine::COMMIT_TIMEOUT;
use gantry_engine::model::query::EventQuery;
use gantry_engine::model::{Event, EventKind, NewEvent, Timestamp};
use gantry_engine::name_and_version;
use gantry_engine::now;
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::{self as wire, EventFilter, EventType, KeyValue, ListenEventsRequest};
use prost::Message as _;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::convert;
use super::filters::{Budget, image_id};
use super::pods::put;
use crate::bridge::Weight;
use crate::hub::{Entry, Slice};
use crate::peer::Peer;
use crate::places::Places;
use crate::server::Shared;
use crate::status::{self, invalid};

/// How many listeners there may be.
const MOST_LISTENERS: usize = 4096;
/// A message is sent when it has so many bytes. One that is not read costs that much.
const MESSAGE: usize = 64 << 10;
/// How many events are looked at in one go.
const PAGE: usize = 256;
/// How many messages are kept for others who want the same.
const KEPT: usize = 8;
/// The least and the most time between two messages to one listener.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(40));
/// How many listeners make it a millisecond longer.
const PER_MILLISECOND: usize = 25;
/// How long it is waited at most where the hub cannot tell what is new.
const LOOK: Duration = Duration::from_millis(500);

/// What a listener asks for.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    query: EventQuery,
    /// In place of the query's lists, which are looked through one by one.
    ids: HashSet<String>,
    names: HashSet<String>,
    /// Nothing that happens has the type that is asked for.
    never: bool,
}

impl Wanted {
    /// Takes the request apart.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, with the field.
    pub(super) fn of(request: ListenEventsRequest) -> Result<Self, Status> {
        let ListenEventsRequest { filter } = request;
        let EventFilter { types, ids, names, since_time, until_time } = filter.unwrap_or_default();
        let mut budget = Budget::default();
        budget.count("filter.types", types.len())?;
        let mut kinds = Vec::new();
        for number in &types {
            let known = EventType::try_from(*number);
            let known = known.map_err(|_| invalid("filter.types", &format!("there is no EventType {number}")))?;
            kinds.extend(convert::event_kind(known).filter(|kind| !kinds.contains(kind)));
        }
        let (since, until) = times("filter.since_time", since_time, "filter.until_time", until_time)?;
        Ok(Self {
            never: kinds.is_empty() && !types.is_empty(),
            ids: budget.texts("filter.ids", ids)?.into_iter().map(event_id).collect(),
            names: budget.texts("filter.names", names)?.into_iter().collect(),
            query: EventQuery { kinds, ids: Vec::new(), names: Vec::new(), since, until },
        })
    }

    fn holds(&self, event: &NewEvent) -> bool {
        let named = |wanted: &HashSet<String>| wanted.contains(&event.name) || wanted.contains(from(event).0);
        !self.never
            && self.query.holds(event)
            && (self.ids.is_empty() || self.ids.contains(&event.id))
            && (self.names.is_empty() || named(&self.names))
    }

    /// Whether every event is wanted that there is from now on.
    fn is_all(&self) -> bool {
        let Self { query: EventQuery { kinds, ids, names, since, until }, ids: one_of, names: any_name, never } = self;
        !never
            && kinds.is_empty()
            && [ids, names].iter().all(|list| list.is_empty())
            && [one_of, any_name].iter().all(|set| set.is_empty())
            && (since, until) == (&None, &None)
    }
}

/// The id of an image as events have it, however it is written; other ids as they are.
fn event_id(text: String) -> String {
    image_id(&text).map_or(text, |id| id.to_string())
}

/// Two times in seconds, of which 0 means not set.
pub(super) fn times(
    since_field: &str,
    since: i64,
    until_field: &str,
    until: i64,
) -> Result<(Option<Timestamp>, Option<Timestamp>), Status> {
    for (field, seconds) in [(since_field, since), (until_field, until)] {
        if seconds < 0 {
            return Err(invalid(field, "a time is a number of seconds since 1970, not less than 0"));
        }
    }
    if until > 0 && until < since {
        return Err(invalid(until_field, "it is before since_time"));
    }
    // What is beyond the year 2262 never comes.
    let time = |seconds: i64| (seconds > 0).then_some(Timestamp(seconds.saturating_mul(1_000_000_000)));
    Ok((time(since), time(until)))
}

/// What an event comes from, and the version of that: an image is called as in Image.name and Image.version.
fn from(event: &NewEvent) -> (&str, Option<&str>) {
    match event.kind {
        EventKind::ImageImported | EventKind::ImageRemoved if !event.name.is_empty() => {
            let (name, version) = name_and_version(&event.name);
            (name, Some(version))
        }
        _ => (&event.name, None),
    }
}

/// An event as an element of the answer's only field.
pub(crate) fn encode(event: &Event) -> Vec<u8> {
    encode_after(event, None)
}

/// The same, with the number up to which events are gone that should have come before it.
fn encode_after(event: &Event, trimmed: Option<u64>) -> Vec<u8> {
    let Event { seq, boot: _, event } = event;
    let NewEvent { kind, at, id, name: _, data } = event;
    let (name, version) = from(event);
    let mut data = convert::pairs(data);
    data.extend(version.map(|version| KeyValue { key: "version".to_owned(), value: version.to_owned() }));
    data.push(KeyValue { key: "sequence".to_owned(), value: seq.to_string() });
    data.push(KeyValue { key: "time_ns".to_owned(), value: at.0.to_string() });
    data.extend(trimmed.map(|seq| KeyValue { key: "trimmed".to_owned(), value: seq.to_string() }));
    let message = wire::Event {
        r#type: convert::event_type(*kind).into(),
        id: id.clone(),
        from: name.to_owned(),
        time: at.seconds(),
        data,
    };
    let length = message.encoded_len();
    let mut bytes = Vec::with_capacity(length + 8);
    put(&mut bytes, length);
    message.encode_raw(&mut bytes);
    bytes
}

/// All listeners, and what was sent last to those who want everything.
pub(super) struct Listeners {
    places: Places,
    recent: Mutex<VecDeque<Recent>>,
    began: Instant,
}

/// A message: the events with numbers above `from`, up to `to`.
struct Recent {
    from: u64,
    to: u64,
    bytes: Bytes,
}

impl Default for Listeners {
    fn default() -> Self {
        Self { places: Places::new(MOST_LISTENERS), recent: Mutex::default(), began: Instant::now() }
    }
}

impl Listeners {
    /// The next moment at which those who were just sent something are sent the next.
    fn next_round(&self) -> Instant {
        let more = Duration::from_millis((self.places.taken() / PER_MILLISECOND) as u64);
        let round = (PAUSE.0 + more).min(PAUSE.1);
        let now = Instant::now();
        // Less than a round.
        let into = now.duration_since(self.began).as_nanos() % round.as_nanos();
        now + round.saturating_sub(Duration::from_nanos(u64::try_from(into).unwrap_or(0)))
    }

    /// The message that somebody else was sent for this, or a new one, which is kept.
    fn shared(&self, from: u64, to: u64, make: impl FnOnce() -> Vec<u8>) -> Bytes {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = recent.iter().find(|one| (one.from, one.to) == (from, to)) {
            return same.bytes.clone();
        }
        let bytes = Bytes::from(make());
        recent.truncate(KEPT - 1);
        recent.push_front(Recent { from, to, bytes: bytes.clone() });
        bytes
    }
}

/// Begins to listen.
///
/// # Errors
/// No place left, or the store failed.
pub(super) async fn listen(
    shared: &Arc<Shared>,
    listeners: &Arc<Listeners>,
    peer: Peer,
    wanted: Wanted,
) -> Result<ReceiverStream<Result<Encoded, Status>>, Status> {
    let place = listeners.places.take(peer)?;
    // Known before the caller hears that it listens: what happens after that is not missed.
    let query = wanted.query.clone();
    let start = shared.bridge.ask_for_stream(Weight::Light, move |observer| {
        observer.events_start(&query, now()).map_err(|error| status::of(&error))
    });
    let mut listener = Listener {
        cursor: start.await?,
        news: shared.hub.news(),
        shared: Arc::clone(shared),
        listeners: Arc::clone(listeners),
        all: wanted.is_all(),
        wanted: Arc::new(wanted),
        trimmed: None,
        end: None,
    };
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        let _place = place;
        if let Err(status) = listener.run(&sender).await {
            // Fails when it has gone away.
            let _ = sender.send(Err(status)).await;
        }
    });
    Ok(ReceiverStream::new(receiver))
}

type Sender = mpsc::Sender<Result<Encoded, Status>>;

/// One who listens.
struct Listener {
    shared: Arc<Shared>,
    listeners: Arc<Listeners>,
    news: watch::Receiver<u64>,
    wanted: Arc<Wanted>,
    /// Whether it wants everything.
    all: bool,
    /// The number of the last event that was sent or passed over.
    cursor: u64,
    /// Up to which number events are gone, until it has been told so.
    trimmed: Option<u64>,
    /// Behind this number there is nothing that is wanted: known when the asked-for end has come.
    end: Option<u64>,
}

/// What a look for more has found.
enum Found {
    /// A message.
    Message(Bytes),
    /// Only what is not asked for; there may be more.
    Others,
    /// Nothing now; and whether the hub tells when there is more.
    Nothing { told: bool },
}

impl Listener {
    /// Sends until all that is asked for has been sent, or nobody listens any more.
    async fn run(&mut self, sender: &Sender) -> Result<(), Status> {
        loop {
            // First a place for the message, then the message: who does not read costs one.
            let place = tokio::select! {
                place = sender.reserve() => place,
                () = self.shared.ended() => return Err(status::ending()),
            };
            let (Ok(place), Some(message)) = (place, self.next(sender).await?) else { return Ok(()) };
            place.send(Ok(Encoded(message)));
            tokio::time::sleep_until(self.listeners.next_round()).await;
        }
    }

    /// The next message; `None` at the end.
    async fn next(&mut self, sender: &Sender) -> Result<Option<Bytes>, Status> {
        loop {
            let over = self.until_over().is_some_and(|left| left.is_zero());
            if over && self.end.is_none() {
                self.end = Some(self.last_number().await?);
            }
            if self.end.is_some_and(|end| self.cursor >= end) {
                return Ok(None);
            }
            // Before it is looked for more: what comes in between shows as a change.
            self.news.borrow_and_update();
            let found = match self.shared.hub.after(self.cursor, PAGE) {
                // The hub may be behind the store, which counts at the end.
                Slice::Entries(entries) if over && entries.is_empty() => self.look_in_store().await?,
                Slice::Entries(entries) if entries.is_empty() => Found::Nothing { told: true },
                Slice::Entries(entries) => self.take(&entries),
                Slice::Behind => self.look_in_store().await?,
            };
            match found {
                Found::Message(bytes) => return Ok(Some(bytes)),
                // Others are to have their turn.
                Found::Others => tokio::task::yield_now().await,
                Found::Nothing { .. } if over => return Ok(None),
                Found::Nothing { told } => {
                    let most = if told { None } else { Some(LOOK) };
                    let most = most.into_iter().chain(self.until_over()).min();
                    tokio::select! {
                        // Fails with the hub, at the end of all.
                        _ = self.news.changed() => {}
                        () = sender.closed() => return Ok(None),
                        () = self.shared.ended() => return Err(status::ending()),
                        () = tokio::time::sleep(most.unwrap_or_default()), if most.is_some() => {}
                    }
                }
            }
        }
    }

    /// How long until everything is committed that happens before the asked-for end.
    fn until_over(&self) -> Option<Duration> {
        self.wanted.query.until.map(|until| until.after(COMMIT_TIMEOUT).since(now()))
    }

    /// The number of the last event that there is.
    async fn last_number(&self) -> Result<u64, Status> {
        let last = |observer: &gantry_engine::Observer| observer.events_start(&EventQuery::default(), now());
        let ask = move |observer: &gantry_engine::Observer| last(observer).map_err(|error| status::of(&error));
        self.shared.bridge.ask_for_stream(Weight::Light, ask).await
    }

    /// A message of what the hub has.
    fn take(&mut self, entries: &[Arc<Entry>]) -> Found {
        let from = self.cursor;
        let mut length = 0;
        let fit = |entry: &&Arc<Entry>| {
            let fits = length < MESSAGE;
            length += entry.encoded.len();
            fits
        };
        if self.all && self.trimmed.is_none() {
            let entries: Vec<&Arc<Entry>> = entries.iter().take_while(fit).collect();
            self.cursor = entries.last().map_or(from, |entry| entry.event.seq);
            let make = || entries.iter().flat_map(|entry| &entry.encoded).copied().collect();
            return Found::Message(self.listeners.shared(from, self.cursor, make));
        }
        let mut message = Message::new(&self.wanted, from, self.trimmed);
        for entry in entries {
            if !message.add(&entry.event, || entry.encoded.clone()) {
                break;
            }
        }
        let Message { bytes, cursor, trimmed, .. } = message;
        self.found(bytes, cursor, trimmed)
    }

    /// A message of what the store has.
    async fn look_in_store(&mut self) -> Result<Found, Status> {
        let (wanted, cursor, trimmed) = (Arc::clone(&self.wanted), self.cursor, self.trimmed);
        let page = self.shared.bridge.ask_for_stream(Weight::Heavy, move |observer| {
            let page = observer.events_after(cursor, PAGE).map_err(|error| status::of(&error))?;
            let mut message = Message::new(&wanted, cursor, trimmed.max(page.trimmed));
            let whole = page.events.iter().all(|event| message.add(event, || encode(event)));
            if whole {
                // Where all is gone the page has no event to go on from.
                message.cursor = message.cursor.max(page.cursor).max(page.trimmed.unwrap_or(0));
            }
            let Message { bytes, cursor, trimmed, .. } = message;
            Ok((bytes, cursor, trimmed, page.events.is_empty()))
        });
        let (bytes, cursor, trimmed, nothing) = page.await?;
        let found = self.found(bytes, cursor, trimmed);
        Ok(if nothing { Found::Nothing { told: false } } else { found })
    }

    fn found(&mut self, bytes: Vec<u8>, cursor: u64, trimmed: Option<u64>) -> Found {
        (self.cursor, self.trimmed) = (cursor, trimmed);
        if bytes.is_empty() { Found::Others } else { Found::Message(bytes.into()) }
    }
}

/// A message that is being made for one listener.
struct Message<'a> {
    wanted: &'a Wanted,
    bytes: Vec<u8>,
    cursor: u64,
    trimmed: Option<u64>,
}

impl<'a> Message<'a> {
    fn new(wanted: &'a Wanted, cursor: u64, trimmed: Option<u64>) -> Self {
        Self { wanted, bytes: Vec::new(), cursor, trimmed }
    }

    /// Adds an event if it is wanted; false when the message is full.
    fn add(&mut self, event: &Event, encoded: impl FnOnce() -> Vec<u8>) -> bool {
        if self.bytes.len() >= MESSAGE {
            return false;
        }
        if self.wanted.holds(&event.event) {
            match self.trimmed.take() {
                Some(trimmed) => self.bytes.extend(encode_after(event, Some(trimmed))),
                None => self.bytes.extend(encoded()),
            }
        }
        self.cursor = event.seq;
        true
    }
}

#[cfg(test)]
#[path = "events_tests.rs"]
mod tests;
