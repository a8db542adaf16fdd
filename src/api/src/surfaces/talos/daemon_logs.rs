//! Logs of gantryd, in the namespace `system`: its newest lines, then new ones.

use std::sync::Arc;

use gantry_proto::talos::common::Data;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use crate::context::Context;
use crate::daemon_log::{DaemonLog, DaemonLogSlice};
use crate::quota::QuotaPermit;
use crate::status;

/// Lines of a message.
const MAX_LINES: usize = 64;

/// The lines that a request selects.
#[derive(Debug, Clone, Copy)]
pub(super) struct DaemonLogSelection {
    /// The number of lines before the request; `None`: all.
    pub(super) tail: Option<usize>,
    /// Whether new lines follow.
    pub(super) follow: bool,
}

/// Starts the stream.
pub(super) fn stream(
    context: &Arc<Context>,
    permit: QuotaPermit,
    selection: DaemonLogSelection,
) -> ReceiverStream<Result<Data, Status>> {
    let (sender, receiver) = mpsc::channel(1);
    let context = Arc::clone(context);
    let task = async move {
        let _permit = permit;
        if let Err(status) = send_lines(&context, &sender, selection).await {
            let _client_may_have_gone = sender.send(Err(status)).await;
        }
    };
    // Its own events would be new lines.
    tokio::spawn(task.instrument(tracing::Span::none()));
    ReceiverStream::new(receiver)
}

async fn send_lines(
    context: &Context,
    sender: &mpsc::Sender<Result<Data, Status>>,
    selection: DaemonLogSelection,
) -> Result<(), Status> {
    let log: &DaemonLog = &context.config.daemon_log;
    let mut news = log.subscribe();
    let mut cursor = log.cursor_before(selection.tail.unwrap_or(usize::MAX));
    let end = *news.borrow_and_update();
    loop {
        let is_past_end = !selection.follow && cursor >= end;
        let slice = if is_past_end { DaemonLogSlice::default() } else { log.after(cursor, MAX_LINES) };
        if slice.lines.is_empty() {
            if !selection.follow {
                return Ok(());
            }
            tokio::select! {
                // The log lives as long as the server.
                _ = news.changed() => {}
                () = sender.closed() => return Ok(()),
                () = context.drained() => return Err(status::draining()),
            }
            continue;
        }
        cursor = slice.cursor;
        tokio::select! {
            sent = sender.send(Ok(message(&slice))) => if sent.is_err() { return Ok(()) },
            () = context.drained() => return Err(status::draining()),
        }
    }
}

/// The lines with their times, after the number of those that the client missed.
fn message(slice: &DaemonLogSlice) -> Data {
    let mut bytes = Vec::new();
    if slice.missed > 0 {
        let text = format!("warning: {} lines were dropped: the client reads too slowly\n", slice.missed);
        bytes.extend_from_slice(text.as_bytes());
    }
    for line in &slice.lines {
        // A line of JSON has its time.
        if !line.text.starts_with(b"{") {
            bytes.extend_from_slice(format!("{} ", line.at.rfc3339()).as_bytes());
        }
        bytes.extend_from_slice(&line.text);
        bytes.push(b'\n');
    }
    Data { metadata: None, bytes }
}
