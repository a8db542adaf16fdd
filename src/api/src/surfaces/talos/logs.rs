//! Logs: the output of an app across rotation and restarts, as bytes that are cut at the ends of lines.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use gantry_engine::{LineRef, LogQuery, LogReader, Observer};
use gantry_model::query::EventQuery;
use gantry_model::{ErrorKind, Kind as _, Phase, PodId, Timestamp};
use gantry_proto::talos::common::Data;
use gantry_proto::talos::machine::LogsRequest;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tracing::Instrument as _;

use super::daemon_logs;
use super::names::{self, Namespace};
use crate::bridge::Weight;
use crate::context::Context;
use crate::daemon_log_stream::{DaemonLogSelection, stream_daemon_log};
use crate::events::EventCursor;
use crate::logs::{LogEncoder, stream_logs};
use crate::quota::QuotaPermit;
use crate::request::check_text;
use crate::status;

/// A message of this many bytes is complete. With one more line it stays far below 4 MiB, the limit of old clients.
const MAX_MESSAGE: usize = 256 << 10;

/// The logs that a request selects.
pub(super) struct LogSelection {
    namespace: Namespace,
    id: String,
    query: LogQuery,
    with_prefix: bool,
}

impl LogSelection {
    /// Reads the request. A negative number of lines means all, and 0 none but those that follow.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with Talos' texts.
    pub(super) fn parse(request: LogsRequest, now: Timestamp) -> Result<Self, Status> {
        let LogsRequest { namespace, id, driver, follow, tail_lines } = request;
        let (namespace, _) = Namespace::parse(&namespace, driver)?;
        check_text("id", &id)?;
        let mut query = LogQuery { follow, ..LogQuery::default() };
        match usize::try_from(tail_lines) {
            Ok(0) => query.since = Some(now),
            Ok(lines) => query.tail_total = Some(lines),
            Err(_) => {}
        }
        // A kubelet's readers know the format of the files.
        let with_prefix = namespace.is_kubernetes();
        Ok(Self { namespace, id, query, with_prefix })
    }

    /// The lines of gantryd that are selected; `None`: those of a pod or an app.
    ///
    /// # Errors
    /// `NOT_FOUND` with Talos' text for another id in the namespace `system`.
    fn daemon(&self) -> Result<Option<DaemonLogSelection>, Status> {
        if self.namespace != Namespace::System {
            return Ok(None);
        }
        if self.id != names::DAEMON {
            let id = gantry_model::id::shown(&self.id);
            return Err(Status::not_found(format!("log \"{id}\" was not registered")));
        }
        // No line before the request is selected by its time.
        let tail = if self.query.since.is_some() { Some(0) } else { self.query.tail_total };
        Ok(Some(DaemonLogSelection { tail, follow: self.query.follow }))
    }

    /// Finds the pod, and sets the app of the query.
    fn resolve(self, observer: &Observer) -> Result<(PodId, LogQuery), Status> {
        let Self { namespace, id, mut query, .. } = self;
        let selection = names::find(observer, &namespace, &id)?;
        query.apps = selection.app.map(|app| app.name).into_iter().collect();
        Ok((selection.pod, query))
    }
}

/// Starts the stream.
///
/// # Errors
/// `NOT_FOUND` if there is no such log, and the error of reading the logs.
pub(super) async fn stream(
    context: &Arc<Context>,
    permit: QuotaPermit,
    selection: LogSelection,
) -> Result<ReceiverStream<Result<Data, Status>>, Status> {
    if let Some(selection) = selection.daemon()? {
        return Ok(stream_daemon_log(context, permit, selection, daemon_logs::encode));
    }
    let (follow, with_prefix) = (selection.query.follow, selection.with_prefix);
    let (pod, query) = context.reader.call_for_stream(Weight::Heavy, |observer| selection.resolve(observer)).await?;
    if follow {
        return LogFollower::new(context, pod, query, with_prefix).start(permit).await;
    }
    let encoder = DataEncoder { with_prefix, ..DataEncoder::default() };
    stream_logs(context, permit, follow, encoder, move |observer| open(observer, pod, &query)).await
}

fn open(observer: &Observer, pod: PodId, query: &LogQuery) -> Result<LogReader, Status> {
    observer.open_logs(pod, query).map_err(|error| status::from_error(&error))
}

/// Follows the logs of a pod through its ends and its later starts, until it is removed. As in Talos, the stream does
/// not end with a container.
struct LogFollower {
    context: Arc<Context>,
    pod: PodId,
    query: LogQuery,
    with_prefix: bool,
    /// The time of the last line that was read, in nanoseconds since 1970.
    last: Arc<AtomicI64>,
    /// When the pod was started before its logs were opened.
    started: Option<Timestamp>,
}

impl LogFollower {
    fn new(context: &Arc<Context>, pod: PodId, query: LogQuery, with_prefix: bool) -> Self {
        Self { context: Arc::clone(context), pod, query, with_prefix, last: Arc::default(), started: None }
    }

    /// Starts the stream.
    ///
    /// # Errors
    /// The logs cannot be read.
    async fn start(mut self, permit: QuotaPermit) -> Result<ReceiverStream<Result<Data, Status>>, Status> {
        let mut lines = self.open().await?;
        let (sender, receiver) = mpsc::channel(1);
        let task = async move {
            let _permit = permit;
            loop {
                loop {
                    let message = tokio::select! {
                        message = lines.next() => message,
                        () = sender.closed() => return,
                    };
                    let Some(message) = message else { break };
                    let is_over = message.is_err();
                    if sender.send(message).await.is_err() || is_over {
                        return;
                    }
                }
                let opened = match self.wait_for_start(&sender).await {
                    Ok(true) => {
                        self.query.tail_total = None;
                        self.open().await
                    }
                    Ok(false) => return,
                    Err(status) => Err(status),
                };
                match opened {
                    Ok(opened) => lines = opened,
                    // It was removed in the meantime.
                    Err(status) if status.code() == Code::NotFound => return,
                    Err(status) => {
                        let _client_may_have_gone = sender.send(Err(status)).await;
                        return;
                    }
                }
            }
        };
        tokio::spawn(task.in_current_span());
        Ok(ReceiverStream::new(receiver))
    }

    /// Opens the logs after the last line.
    async fn open(&mut self) -> Result<ReceiverStream<Result<Data, Status>>, Status> {
        self.started = self.read_start().await?.unwrap_or_default();
        let last = self.last.load(Ordering::Relaxed);
        if last > 0 {
            self.query.since = Some(Timestamp(last.saturating_add(1)));
        }
        let (pod, query) = (self.pod, self.query.clone());
        let encoder =
            DataEncoder { with_prefix: self.with_prefix, last: Arc::clone(&self.last), ..DataEncoder::default() };
        stream_logs(&self.context, (), true, encoder, move |observer| open(observer, pod, &query)).await
    }

    /// When the pod was started last; `None`: it was removed.
    async fn read_start(&self) -> Result<Option<Option<Timestamp>>, Status> {
        let pod = self.pod;
        let read = move |observer: &Observer| match observer.pod(&pod.into()) {
            Ok(view) if matches!(view.row.phase, Phase::Garbage { .. }) => Ok(None),
            Ok(view) => Ok(Some(view.row.phase.started_at())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(status::from_error(&error)),
        };
        self.context.reader.call_for_stream(Weight::Light, read).await
    }

    /// Waits until the pod was started after its logs were opened. `false`: it was removed, or the client has gone.
    async fn wait_for_start(&self, sender: &mpsc::Sender<Result<Data, Status>>) -> Result<bool, Status> {
        // Before the first read: no later event is missed.
        let mut cursor = EventCursor::start(&self.context, EventQuery::default()).await?;
        let pod = self.pod.to_string();
        loop {
            match self.read_start().await? {
                None => return Ok(false),
                Some(started) if started != self.started => return Ok(true),
                Some(_) => {}
            }
            loop {
                let Some(batch) = cursor.next(sender.closed()).await? else { return Ok(false) };
                cursor.advance(batch.to);
                if batch.events.iter().any(|event| event.event().id == pod) {
                    break;
                }
            }
        }
    }
}

/// Collects lines in messages.
#[derive(Debug, Default)]
struct DataEncoder {
    /// Whether each line gets its time, stream and tag, as in the file.
    with_prefix: bool,
    /// The time of the last line, in nanoseconds since 1970.
    last: Arc<AtomicI64>,
    bytes: Vec<u8>,
    done: Vec<Data>,
}

impl DataEncoder {
    fn end_message(&mut self) {
        if !self.bytes.is_empty() {
            self.done.push(Data { metadata: None, bytes: std::mem::take(&mut self.bytes) });
        }
    }
}

impl LogEncoder for DataEncoder {
    type Message = Data;

    fn add(&mut self, line: LineRef<'_>) {
        self.last.fetch_max(line.at.0, Ordering::Relaxed);
        if self.with_prefix {
            let stream = if line.stderr { "stderr" } else { "stdout" };
            let tag = if line.piece { "P" } else { "F" };
            self.bytes.extend_from_slice(format!("{} {stream} {tag} ", line.at.rfc3339()).as_bytes());
        }
        self.bytes.extend_from_slice(line.text);
        if self.with_prefix || !line.piece {
            self.bytes.push(b'\n');
        }
        if self.bytes.len() >= MAX_MESSAGE {
            self.end_message();
        }
    }

    fn finish(&mut self) {}

    fn take_messages(&mut self) -> Vec<Data> {
        self.end_message();
        std::mem::take(&mut self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_model::AppName;

    #[test]
    fn messages_end_with_lines() {
        let app: AppName = "a".parse().unwrap();
        let line = |text, piece| LineRef { app: &app, at: Timestamp(0), stderr: true, piece, partial: piece, text };
        let mut encoder = DataEncoder::default();
        for _ in 0..3 {
            encoder.add(line(&[b'x'; 100 << 10], false));
        }
        encoder.add(line(b"y", true));
        let messages = encoder.take_messages();
        assert_eq!(messages.iter().map(|message| message.bytes.len()).collect::<Vec<_>>(), [3 * ((100 << 10) + 1), 1]);
        assert_eq!(encoder.take_messages(), []);
        let mut encoder = DataEncoder { with_prefix: true, ..DataEncoder::default() };
        encoder.add(line(b"y", true));
        assert!(encoder.take_messages()[0].bytes.ends_with(b" stderr P y\n"));
    }

    #[test]
    fn lines_are_counted_as_in_talos() {
        let request = |tail_lines| LogsRequest {
            namespace: "taloscontainers".into(),
            id: "x".into(),
            tail_lines,
            ..LogsRequest::default()
        };
        let query = |tail| LogSelection::parse(request(tail), Timestamp(5)).unwrap().query;
        assert_eq!((query(-1).tail_total, query(-1).since), (None, None));
        assert_eq!((query(0).tail_total, query(0).since), (None, Some(Timestamp(5))));
        assert_eq!((query(10).tail_total, query(10).since), (Some(10), None));
    }
}
