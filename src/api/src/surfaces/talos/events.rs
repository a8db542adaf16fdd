//! Events: the history of pods and apps as `ServiceStateEvent`s, then new ones. A pod is the service that ServiceList
//! shows, an app `SERVICE:APP`; a pod that has been removed since keeps its last id. The message has the UUID.
//!
//! The first message has no data: newer clients wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::now;
use gantry_model::id::shown;
use gantry_model::query::EventQuery;
use gantry_proto::talos::machine::{Event, EventsRequest, ServiceStateEvent};
use prost::Message as _;
use prost_types::Any;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use super::service_ids::ServiceIds;
use super::service_states::{ServiceStates, WARM_UP, app_of};
use super::xid::{EventPosition, Xid};
use crate::context::Context;
use crate::events::{EventBatch, EventCursor};
use crate::quota::QuotaPermit;
use crate::request::check_text;
use crate::status;

/// Maximum events of a tail, as in Talos.
const MAX_TAIL: usize = 1000;
/// Messages that wait for a client.
const QUEUE: usize = 16;

/// The events before the subscription that a request selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// None.
    None,
    /// All that are kept.
    All,
    /// The last ones.
    Count(usize),
    /// All after this one.
    After(EventPosition),
    /// All of the last seconds.
    Seconds(u64),
}

/// The events that a request selects.
#[derive(Debug)]
pub(super) struct EventSelection {
    tail: Tail,
    actor: String,
}

impl EventSelection {
    /// Reads the request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if an id is invalid or there is more than one tail.
    pub(super) fn parse(request: EventsRequest) -> Result<Self, Status> {
        let EventsRequest { tail_events, tail_id, tail_seconds, with_actor_id } = request;
        check_text("tail_id", &tail_id)?;
        check_text("with_actor_id", &with_actor_id)?;
        let given = [tail_events != 0, !tail_id.is_empty(), tail_seconds != 0];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(Status::invalid_argument(
                "only one of tail_events, tail_id and tail_seconds can be specified at the same time",
            ));
        }
        let tail = if tail_id.is_empty() {
            match (usize::try_from(tail_events), u64::try_from(tail_seconds)) {
                (Err(_), _) => Tail::All,
                (Ok(0), Ok(0) | Err(_)) => Tail::None,
                (Ok(0), Ok(seconds)) => Tail::Seconds(seconds),
                (Ok(count), _) => Tail::Count(count.min(MAX_TAIL)),
            }
        } else {
            let invalid =
                || Status::invalid_argument(format!("error parsing tail_id: \"{}\" is no xid", shown(&tail_id)));
            Tail::After(Xid::parse(&tail_id).ok_or_else(invalid)?.position())
        };
        Ok(Self { tail, actor: with_actor_id })
    }
}

/// Starts the stream.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn subscribe(
    context: &Arc<Context>,
    service_ids: &Arc<ServiceIds>,
    permit: QuotaPermit,
    selection: EventSelection,
) -> Result<ReceiverStream<Result<Event, Status>>, Status> {
    let since = match selection.tail {
        Tail::Seconds(seconds) => Some(now().before(Duration::from_secs(seconds))),
        Tail::None | Tail::All | Tail::Count(_) | Tail::After(_) => None,
    };
    // Before the client gets the first message: no later event is missed.
    let cursor = EventCursor::start(context, EventQuery { since, ..EventQuery::default() }).await?;
    let (sender, receiver) = mpsc::channel(QUEUE);
    let subscriber = Subscriber {
        context: Arc::clone(context),
        service_ids: Arc::clone(service_ids),
        since: Instant::now(),
        shown_after: EventPosition::after(cursor.position()),
        cursor,
        states: ServiceStates::default(),
        sender,
        actor: selection.actor,
    };
    let task = async move {
        let _permit = permit;
        let sender = subscriber.sender.clone();
        if let Err(status) = subscriber.run(selection.tail).await {
            let _client_may_have_gone = sender.send(Err(status)).await;
        }
    };
    tokio::spawn(task.in_current_span());
    Ok(ReceiverStream::new(receiver))
}

/// One subscriber.
struct Subscriber {
    context: Arc<Context>,
    service_ids: Arc<ServiceIds>,
    /// When it subscribed.
    since: Instant,
    cursor: EventCursor,
    states: ServiceStates,
    /// Messages up to this one are not sent: their events are read for `states`.
    shown_after: EventPosition,
    sender: mpsc::Sender<Result<Event, Status>>,
    /// Only events that a request with this id caused; no event has one yet.
    actor: String,
}

impl Subscriber {
    async fn run(mut self, tail: Tail) -> Result<(), Status> {
        let start = self.cursor.position();
        let hello = Event {
            id: Xid::new(now(), EventPosition::after(start)).to_string(),
            data: Some(Any::default()),
            actor_id: self.actor.clone(),
            ..Event::default()
        };
        if !self.send(hello).await? {
            return Ok(());
        }
        match tail {
            Tail::None | Tail::Seconds(_) => {}
            Tail::All => self.shown_after = EventPosition::after(0),
            // An id of the future selects none of the history.
            Tail::After(position) => self.shown_after = self.shown_after.min(position),
            Tail::Count(count) => {
                for event in self.last_events(count, start).await? {
                    if !self.send(event).await? {
                        return Ok(());
                    }
                }
            }
        }
        if !matches!(tail, Tail::Count(_)) {
            self.cursor.advance(self.shown_after.seq.saturating_sub(WARM_UP));
        }
        loop {
            let Some(batch) = self.cursor.next(self.sender.closed()).await? else { return Ok(()) };
            for event in self.messages(&batch).await? {
                if !self.send(event).await? {
                    return Ok(());
                }
            }
            self.cursor.advance(batch.to);
        }
    }

    /// The last messages up to the event with this number. Numbers have gaps, and not every event is one of a service:
    /// reads on from the beginning if the newest numbers are too few.
    async fn last_events(&mut self, count: usize, end: u64) -> Result<Vec<Event>, Status> {
        let near = end.saturating_sub(4 * count as u64);
        let mut last: VecDeque<Event> = VecDeque::new();
        for from in [near, 0] {
            self.shown_after = EventPosition::after(from);
            self.states = ServiceStates::default();
            self.cursor.advance(from.saturating_sub(WARM_UP));
            last.clear();
            // No event may have the last numbers: they jump at a boot.
            while self.cursor.position() < end
                && let Some(mut batch) = self.cursor.next_committed().await?
            {
                if self.sender.is_closed() {
                    return Ok(Vec::new());
                }
                batch.events.retain(|event| event.seq() <= end);
                for event in self.messages(&batch).await? {
                    last.push_back(event);
                    if last.len() > count {
                        last.pop_front();
                    }
                }
                self.cursor.advance(batch.to.min(end));
            }
            if last.len() == count || from == 0 {
                break;
            }
        }
        self.cursor.advance(end);
        Ok(last.into())
    }

    /// The messages of the events that are selected.
    async fn messages(&mut self, batch: &EventBatch) -> Result<Vec<Event>, Status> {
        let mut changes = Vec::new();
        for event in &batch.events {
            let seq = event.seq();
            let event = event.event();
            let Some(change) = self.states.translate(event) else { continue };
            if EventPosition::after(seq) > self.shown_after && self.actor.is_empty() {
                changes.push((seq, event, change));
            }
        }
        if changes.is_empty() {
            return Ok(Vec::new());
        }
        let pods = changes.iter().map(|(_, event, _)| event.id.clone()).collect();
        let ids = self.service_ids.read(&self.context, pods, batch.to, self.since).await?;
        let mut messages = Vec::new();
        for (seq, event, change) in changes {
            let pod = ids.get(&event.id).unwrap_or(&event.id);
            let service = app_of(event).map_or_else(|| pod.clone(), |app| format!("{pod}:{app}"));
            let message = match *pod == event.id {
                true => change.message,
                false => format!("{} pod={}", change.message, event.id),
            };
            for (number, action) in change.actions.into_iter().enumerate() {
                let position = EventPosition { seq, is_second: number > 0 };
                if position <= self.shown_after {
                    continue;
                }
                let (service, message, health) = (service.clone(), message.clone(), change.health.clone());
                let state = ServiceStateEvent { service, action: action.into(), message, health };
                // Talos omits the host that a type URL usually begins with.
                let type_url = "talos/runtime/machine.ServiceStateEvent".to_owned();
                let id = Xid::new(event.at, position).to_string();
                messages.push(Event {
                    id,
                    data: Some(Any { type_url, value: state.encode_to_vec() }),
                    ..Event::default()
                });
            }
        }
        Ok(messages)
    }

    /// `false` if the client has gone away.
    async fn send(&self, event: Event) -> Result<bool, Status> {
        tokio::select! {
            sent = self.sender.send(Ok(event)) => Ok(sent.is_ok()),
            () = self.context.drained() => Err(status::draining()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::Timestamp;

    fn tail(request: EventsRequest) -> Result<Tail, Status> {
        EventSelection::parse(request).map(|selection| selection.tail)
    }

    #[test]
    fn tails_are_counts_ids_or_seconds() {
        let empty = EventsRequest::default;
        assert_eq!(tail(empty()).unwrap(), Tail::None);
        assert_eq!(tail(EventsRequest { tail_events: -1, ..empty() }).unwrap(), Tail::All);
        assert_eq!(tail(EventsRequest { tail_events: 5000, ..empty() }).unwrap(), Tail::Count(MAX_TAIL));
        assert_eq!(tail(EventsRequest { tail_seconds: 5, ..empty() }).unwrap(), Tail::Seconds(5));
        let position = EventPosition { seq: 9, is_second: false };
        let tail_id = Xid::new(Timestamp(7), position).to_string();
        assert_eq!(tail(EventsRequest { tail_id: tail_id.clone(), ..empty() }).unwrap(), Tail::After(position));
        let both = tail(EventsRequest { tail_id, tail_events: 1, ..empty() }).unwrap_err();
        assert!(both.message().contains("can be specified at the same time"));
        let bad = tail(EventsRequest { tail_id: "x".into(), ..empty() }).unwrap_err();
        assert!(bad.message().starts_with("error parsing tail_id: "), "{bad}");
    }
}
