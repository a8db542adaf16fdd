//! Events: the history of pods and apps as `ServiceStateEvent`s, then new ones. A pod is the service `UUID`, an app
//! `UUID:APP`.
//!
//! The first message has no data: newer clients wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::model::id::shown;
use gantry_engine::model::query::EventQuery;
use gantry_engine::model::{EventKind, NewEvent};
use gantry_engine::now;
use gantry_proto::talos::machine::service_state_event::Action;
use gantry_proto::talos::machine::{Event, EventsRequest, ServiceHealth, ServiceStateEvent};
use prost::Message as _;
use prost_types::Any;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use super::xid::Xid;
use crate::context::Context;
use crate::events::EventCursor;
use crate::hub::HubEvent;
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
    /// Those after a number.
    After(u64),
    /// Those of the last seconds.
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
    /// INVALID_ARGUMENT: an invalid id, or more than one tail.
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
            Tail::After(Xid::parse(&tail_id).ok_or_else(invalid)?.seq())
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
    let subscriber = Subscriber { context: Arc::clone(context), cursor, sender, actor: selection.actor };
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
    cursor: EventCursor,
    sender: mpsc::Sender<Result<Event, Status>>,
    /// Only events that a request with this id caused; no event has one yet.
    actor: String,
}

impl Subscriber {
    async fn run(mut self, tail: Tail) -> Result<(), Status> {
        let start = self.cursor.position();
        let hello = Event {
            id: Xid::new(now(), start).to_string(),
            data: Some(Any::default()),
            actor_id: self.actor.clone(),
            ..Event::default()
        };
        if !self.send(hello).await? {
            return Ok(());
        }
        match tail {
            Tail::None | Tail::Seconds(_) => {}
            Tail::All => self.cursor.advance(0),
            Tail::After(seq) => self.cursor.advance(seq.min(start)),
            Tail::Count(count) => {
                let last = self.last_events(count, start).await?;
                for event in last {
                    if !self.send(event).await? {
                        return Ok(());
                    }
                }
                self.cursor.advance(self.cursor.position().max(start));
            }
        }
        loop {
            let Some(batch) = self.cursor.next(self.sender.closed()).await? else { return Ok(()) };
            for event in batch.events.iter().filter_map(|event| self.message(event)) {
                if !self.send(event).await? {
                    return Ok(());
                }
            }
            self.cursor.advance(batch.to);
        }
    }

    /// The last events up to this number. Numbers have gaps, and not every event is one of a service: reads on from
    /// the beginning if the newest numbers are too few.
    async fn last_events(&mut self, count: usize, end: u64) -> Result<Vec<Event>, Status> {
        let near = end.saturating_sub(4 * count as u64);
        let mut last: VecDeque<Event> = VecDeque::new();
        for from in [near, 0] {
            self.cursor.advance(from);
            last.clear();
            while self.cursor.position() < end {
                let Some(batch) = self.cursor.next(self.sender.closed()).await? else { return Ok(Vec::new()) };
                let events = batch.events.iter().filter(|event| event.event.seq <= end);
                for event in events.filter_map(|event| self.message(event)) {
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
        Ok(last.into())
    }

    /// The message of an event; `None`: it is not one of a service, or not selected.
    fn message(&self, event: &HubEvent) -> Option<Event> {
        if !self.actor.is_empty() {
            return None;
        }
        let state = service_state(&event.event.event)?;
        // Talos omits the host that a type URL usually begins with.
        let type_url = "talos/runtime/machine.ServiceStateEvent".to_owned();
        let id = Xid::new(event.event.event.at, event.event.seq).to_string();
        Some(Event { id, data: Some(Any { type_url, value: state.encode_to_vec() }), ..Event::default() })
    }

    /// `false` if the client has gone away.
    async fn send(&self, event: Event) -> Result<bool, Status> {
        tokio::select! {
            sent = self.sender.send(Ok(event)) => Ok(sent.is_ok()),
            () = self.context.drained() => Err(status::draining()),
        }
    }
}

/// The event of a service; `None` for events of images and of calls.
pub(super) fn service_state(event: &NewEvent) -> Option<ServiceStateEvent> {
    let succeeded = event.data.get("exit_code").is_none_or(|code| code == "0");
    let ended = if succeeded { Action::Finished } else { Action::Failed };
    let action = match event.kind {
        EventKind::PodPrepared => Action::Preparing,
        EventKind::PodPrepareAborted | EventKind::PodStartFailed => Action::Failed,
        EventKind::PodStarted
        | EventKind::AppStarted
        | EventKind::AppReady
        | EventKind::PodResumed
        | EventKind::AppResumed
        | EventKind::AppHealthStarting
        | EventKind::AppHealthy
        | EventKind::AppUnhealthy
        | EventKind::AppOom => Action::Running,
        EventKind::PodExited | EventKind::AppExited => ended,
        EventKind::AppCreated => Action::Initialized,
        EventKind::PodPaused | EventKind::AppPaused => Action::Waiting,
        EventKind::PodGarbageCollected | EventKind::AppRemoved => Action::Skipped,
        EventKind::ImageImported | EventKind::ImageRemoved | EventKind::NodeCalled => return None,
    };
    let is_app = event.name != event.id;
    let service = if is_app { format!("{}:{}", event.id, event.name) } else { event.id.clone() };
    let facts: Vec<String> = event.data.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let message = format!("{} {}", event.kind.as_str(), facts.join(" ")).trim_end().to_owned();
    Some(ServiceStateEvent { service, action: action.into(), message, health: health(event.kind) })
}

/// The health that an event reports.
fn health(kind: EventKind) -> Option<ServiceHealth> {
    let (unknown, healthy) = match kind {
        EventKind::AppHealthStarting => (true, false),
        EventKind::AppHealthy => (false, true),
        EventKind::AppUnhealthy => (false, false),
        // It reports another change.
        _ => return None,
    };
    Some(ServiceHealth { unknown, healthy, ..ServiceHealth::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_engine::model::Timestamp;
    use std::collections::BTreeMap;

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
        let tail_id = Xid::new(Timestamp(7), 9).to_string();
        assert_eq!(tail(EventsRequest { tail_id: tail_id.clone(), ..empty() }).unwrap(), Tail::After(9));
        let both = tail(EventsRequest { tail_id, tail_events: 1, ..empty() }).unwrap_err();
        assert!(both.message().contains("can be specified at the same time"));
        let bad = tail(EventsRequest { tail_id: "x".into(), ..empty() }).unwrap_err();
        assert!(bad.message().starts_with("error parsing tail_id: "), "{bad}");
    }

    #[test]
    fn ends_are_finished_or_failed() {
        let event = |kind, name: &str, code: &str| NewEvent {
            kind,
            at: Timestamp(0),
            id: "p".into(),
            name: name.into(),
            data: BTreeMap::from([("exit_code".to_owned(), code.to_owned())]),
        };
        let state = |event: NewEvent| service_state(&event).map(|state| (state.service.clone(), state.action()));
        assert_eq!(state(event(EventKind::AppExited, "a", "0")), Some(("p:a".into(), Action::Finished)));
        assert_eq!(state(event(EventKind::PodExited, "p", "3")), Some(("p".into(), Action::Failed)));
        assert_eq!(state(event(EventKind::ImageRemoved, "x", "0")), None);
        let message = service_state(&event(EventKind::AppExited, "a", "3")).unwrap().message;
        assert_eq!(message, "app-exited exit_code=3");
    }
}
