//! Logs: the output of an app across rotation and restarts, as bytes that are cut at the ends of lines.

use std::sync::Arc;

use gantry_engine::model::Timestamp;
use gantry_engine::{LineRef, LogQuery, LogReader, Observer};
use gantry_proto::talos::common::Data;
use gantry_proto::talos::machine::LogsRequest;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::daemon_logs::{self, DaemonLogSelection};
use super::names::{self, Namespace};
use crate::context::Context;
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
    /// INVALID_ARGUMENT with Talos' texts.
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
        let with_prefix = namespace == Namespace::Kubernetes;
        Ok(Self { namespace, id, query, with_prefix })
    }

    /// The lines of gantryd that are selected; `None`: those of a pod or an app.
    ///
    /// # Errors
    /// NOT_FOUND with Talos' text: another id in the namespace `system`.
    fn daemon(&self) -> Result<Option<DaemonLogSelection>, Status> {
        if self.namespace != Namespace::System {
            return Ok(None);
        }
        if self.id != names::DAEMON {
            let id = gantry_engine::model::id::shown(&self.id);
            return Err(Status::not_found(format!("log \"{id}\" was not registered")));
        }
        // No line before the request is selected by its time.
        let tail = if self.query.since.is_some() { Some(0) } else { self.query.tail_total };
        Ok(Some(DaemonLogSelection { tail, follow: self.query.follow }))
    }

    fn open(self, observer: &Observer) -> Result<LogReader, Status> {
        let Self { namespace, id, mut query, .. } = self;
        let selection = names::find(observer, &namespace, &id)?;
        query.apps = selection.app.map(|app| app.name).into_iter().collect();
        observer.open_logs(selection.pod, &query).map_err(|error| status::from_error(&error))
    }
}

/// Starts the stream.
///
/// # Errors
/// NOT_FOUND, or the logs cannot be read.
pub(super) async fn stream(
    context: &Arc<Context>,
    permit: QuotaPermit,
    selection: LogSelection,
) -> Result<ReceiverStream<Result<Data, Status>>, Status> {
    if let Some(selection) = selection.daemon()? {
        return Ok(daemon_logs::stream(context, permit, selection));
    }
    let follow = selection.query.follow;
    let encoder = DataEncoder { with_prefix: selection.with_prefix, ..DataEncoder::default() };
    stream_logs(context, permit, follow, encoder, |observer| selection.open(observer)).await
}

/// Collects lines in messages.
#[derive(Debug, Default)]
struct DataEncoder {
    /// Whether each line gets its time, stream and tag, as in the file.
    with_prefix: bool,
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
    use gantry_engine::model::AppName;

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
