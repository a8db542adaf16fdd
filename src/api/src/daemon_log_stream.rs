//! Streams of gantryd's own log: the newest lines, then new ones.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use crate::context::Context;
use crate::daemon_log::{DaemonLog, DaemonLogSlice};
use crate::quota::QuotaPermit;
use crate::status;

/// Lines that are read at a time.
const MAX_LINES: usize = 64;

/// The lines that a request selects.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DaemonLogSelection {
    /// The number of lines before the request; `None`: all.
    pub(crate) tail: Option<usize>,
    /// Whether new lines follow.
    pub(crate) follow: bool,
}

/// Starts a stream. `encode` makes messages of lines, after the number of those that the client missed; the permit is
/// held until the stream ends.
pub(crate) fn stream_daemon_log<M: Send + 'static>(
    context: &Arc<Context>,
    permit: QuotaPermit,
    selection: DaemonLogSelection,
    encode: fn(&DaemonLogSlice) -> Vec<M>,
) -> ReceiverStream<Result<M, Status>> {
    let (sender, receiver) = mpsc::channel(1);
    let context = Arc::clone(context);
    let task = async move {
        let _permit = permit;
        if let Err(status) = send_lines(&context, &sender, selection, encode).await {
            let _client_may_have_gone = sender.send(Err(status)).await;
        }
    };
    // Its own events would be new lines.
    tokio::spawn(task.instrument(tracing::Span::none()));
    ReceiverStream::new(receiver)
}

async fn send_lines<M>(
    context: &Context,
    sender: &mpsc::Sender<Result<M, Status>>,
    selection: DaemonLogSelection,
    encode: fn(&DaemonLogSlice) -> Vec<M>,
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
        for message in encode(&slice) {
            tokio::select! {
                sent = sender.send(Ok(message)) => if sent.is_err() { return Ok(()) },
                () = context.drained() => return Err(status::draining()),
            }
        }
    }
}
