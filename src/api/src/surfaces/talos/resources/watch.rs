//! Watch: all resources, then their changes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::Observer;
use gantry_proto::talos::resource::{EventType, WatchRequest, WatchResponse};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use super::{ResourceKind, ResourceRow, rows};
use crate::bridge::Weight;
use crate::context::Context;
use crate::quota::QuotaPermit;
use crate::request::check_text;
use crate::status;

/// Messages that wait for a client.
const QUEUE: usize = 16;
/// Minimum time between two reads of the store.
const MIN_INTERVAL: Duration = Duration::from_millis(100);

/// The resources that a request selects.
#[derive(Debug, Clone)]
pub(in super::super) struct WatchSelection {
    kinds: Vec<ResourceKind>,
    /// Only the resource with this id, or the pod that has this name first; empty: all.
    id: String,
}

impl WatchSelection {
    /// Reads the request. Without a type, pods, apps and images are watched.
    ///
    /// # Errors
    /// `NOT_FOUND` with Talos' texts, and `INVALID_ARGUMENT` if an id has no type.
    pub(in super::super) fn parse(request: WatchRequest) -> Result<Self, Status> {
        let WatchRequest { namespace, r#type, id } = request;
        check_text("id", &id)?;
        if !r#type.is_empty() {
            return Ok(Self { kinds: vec![ResourceKind::parse(&namespace, &r#type)?], id });
        }
        if !namespace.is_empty() || !id.is_empty() {
            return Err(Status::invalid_argument("type: it is missing"));
        }
        Ok(Self { kinds: vec![ResourceKind::Pod, ResourceKind::App, ResourceKind::Image], id })
    }

    fn read(&self, observer: &Observer) -> Result<Vec<ResourceRow>, Status> {
        if let ([kind], false) = (&self.kinds[..], self.id.is_empty()) {
            return Ok(rows::find(observer, *kind, &self.id)?.into_iter().collect());
        }
        let mut all = Vec::new();
        for kind in &self.kinds {
            all.extend(rows::read(observer, *kind)?);
        }
        Ok(all)
    }
}

/// Starts the stream.
pub(in super::super) fn watch(
    context: &Arc<Context>,
    permits: [QuotaPermit; 2],
    selection: WatchSelection,
) -> ReceiverStream<Result<WatchResponse, Status>> {
    let commits = context.hub.commits();
    let (sender, receiver) = mpsc::channel(QUEUE);
    let watcher = Watcher { context: Arc::clone(context), commits, sender, selection, sent: HashMap::new() };
    let task = async move {
        let _permits = permits;
        let sender = watcher.sender.clone();
        if let Err(status) = watcher.run().await {
            let _client_may_have_gone = sender.send(Err(status)).await;
        }
    };
    tokio::spawn(task.in_current_span());
    ReceiverStream::new(receiver)
}

/// The key of a resource.
type ResourceKey = (ResourceKind, String);

struct Watcher {
    context: Arc<Context>,
    /// Changes that have no event, such as a new name, count too.
    commits: watch::Receiver<u64>,
    sender: mpsc::Sender<Result<WatchResponse, Status>>,
    selection: WatchSelection,
    /// The resources that were sent, with hashes of their contents.
    sent: HashMap<ResourceKey, u64>,
}

impl Watcher {
    async fn run(mut self) -> Result<(), Status> {
        loop {
            let read_at = Instant::now();
            // Before the read: no later change is missed.
            self.commits.borrow_and_update();
            let selection = self.selection.clone();
            let read = move |observer: &Observer| selection.read(observer);
            let rows = self.context.reader.call_for_stream(Weight::Heavy, read).await?;
            if let ([row], false) = (&rows[..], self.selection.id.is_empty()) {
                // Another name does not end the watch of a pod.
                self.selection.id.clone_from(&row.id);
            }
            for change in difference(&mut self.sent, rows) {
                if !self.send(change).await? {
                    return Ok(());
                }
            }
            tokio::time::sleep_until(read_at + MIN_INTERVAL).await;
            tokio::select! {
                // An error means that the hub has ended, and with it the server.
                _ = self.commits.changed() => {}
                () = self.sender.closed() => return Ok(()),
                () = self.context.drained() => return Err(status::draining()),
            }
        }
    }

    /// `false` if the client has gone away.
    async fn send(&self, change: WatchResponse) -> Result<bool, Status> {
        tokio::select! {
            sent = self.sender.send(Ok(change)) => Ok(sent.is_ok()),
            () = self.context.drained() => Err(status::draining()),
        }
    }
}

/// The changes from the resources that were sent to these.
fn difference(sent: &mut HashMap<ResourceKey, u64>, rows: Vec<ResourceRow>) -> Vec<WatchResponse> {
    let mut gone = std::mem::take(sent);
    let mut changes = Vec::new();
    for row in rows {
        let key = (row.kind, row.id.clone());
        let mut hasher = DefaultHasher::new();
        row.spec.hash(&mut hasher);
        let hash = hasher.finish();
        let earlier = gone.remove(&key);
        sent.insert(key, hash);
        match earlier {
            None => changes.push(change(EventType::Created, row)),
            Some(earlier) if earlier != hash => changes.push(change(EventType::Updated, row)),
            Some(_) => {}
        }
    }
    let mut gone: Vec<ResourceKey> = gone.into_keys().collect();
    gone.sort();
    let deleted = gone.into_iter().map(|(kind, id)| {
        change(EventType::Deleted, ResourceRow { kind, id, version: String::new(), spec: Vec::new() })
    });
    changes.extend(deleted);
    changes
}

fn change(event_type: EventType, row: ResourceRow) -> WatchResponse {
    WatchResponse { metadata: None, event_type: event_type.into(), resource: Some(row.into_wire()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_differences() {
        let row = |id: &str, spec: &str| ResourceRow {
            kind: ResourceKind::Pod,
            id: id.to_owned(),
            version: "1".to_owned(),
            spec: spec.as_bytes().to_vec(),
        };
        let mut sent = HashMap::new();
        let mut changes = |rows: &[ResourceRow]| -> Vec<(EventType, String)> {
            let changes = difference(&mut sent, rows.to_vec()).into_iter();
            let id = |change: &WatchResponse| change.resource.clone()?.metadata.map(|metadata| metadata.id);
            changes.map(|change| (change.event_type(), id(&change).unwrap_or_default())).collect()
        };
        let created = |id: &str| (EventType::Created, id.to_owned());
        assert_eq!(changes(&[row("a", "1"), row("b", "1")]), [created("a"), created("b")]);
        assert_eq!(changes(&[row("a", "1"), row("b", "1")]), []);
        let later = changes(&[row("a", "2"), row("c", "1")]);
        assert_eq!(later, [(EventType::Updated, "a".to_owned()), created("c"), (EventType::Deleted, "b".to_owned())]);
    }

    #[test]
    fn an_id_needs_a_type() {
        let request =
            |id: &str, kind: &str| WatchRequest { id: id.into(), r#type: kind.into(), ..WatchRequest::default() };
        assert_eq!(WatchSelection::parse(request("", "")).unwrap().kinds.len(), 3);
        assert_eq!(WatchSelection::parse(request("x", "pod")).unwrap().kinds, [ResourceKind::Pod]);
        assert!(WatchSelection::parse(request("x", "")).is_err());
    }
}
