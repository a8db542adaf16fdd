//! Streams of log lines: pieces of logs, read on the bridge's threads while the piece before is sent.
//!
//! Pieces are small at first, so that the first line arrives soon, and grow as the client takes them. A piece is read
//! when the connection has taken the one before; so a client that does not read costs the piece that its connection
//! holds and one more, both still small. A stream that follows sleeps until a log directory changes or the pod's
//! supervisor ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use gantry_engine::{LineRef, LogReader, Observer, Pulled};
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tracing::Instrument as _;

use crate::bridge::Weight;
use crate::context::Context;
use crate::dir_watch::{DirSubscription, readable};
use crate::status;

/// Bytes read at a time: the first piece.
const FIRST_PIECE: usize = 32 << 10;
/// Bytes read at a time: the largest piece.
const MAX_PIECE: usize = 256 << 10;
/// A piece has at most this part of the bytes that were taken before: connections take far more than they hold.
const GROWTH: usize = 8;
/// Poll interval for a pod that was not started yet, and for the end of a process.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum time between two reads of such a pod or process, however many events there are.
const MIN_INTERVAL: Duration = Duration::from_millis(20);

/// How a surface encodes log lines.
pub(crate) trait LogEncoder: Send + 'static {
    /// A message of the stream.
    type Message: Send + 'static;

    /// Adds a line, or a piece of one.
    fn add(&mut self, line: LineRef<'_>);

    /// Ends all unfinished lines: no more pieces follow.
    fn finish(&mut self);

    /// Takes the messages that are complete; unfinished lines stay.
    fn take_messages(&mut self) -> Vec<Self::Message>;
}

/// A reader and the messages it has read. Moves to the bridge's threads and back.
struct Reading<E: LogEncoder> {
    reader: LogReader,
    encoder: E,
    messages: Vec<E::Message>,
    pulled: Pulled,
}

impl<E: LogEncoder> Reading<E> {
    fn pull(mut self, observer: &Observer, limit: usize) -> Result<Self, Status> {
        let encoder = &mut self.encoder;
        let pulled = observer.pull_logs(&mut self.reader, limit, &mut |line| encoder.add(line));
        self.pulled = pulled.map_err(|error| status::from_error(&error))?;
        if self.pulled == Pulled::End {
            self.encoder.finish();
        }
        self.messages = self.encoder.take_messages();
        Ok(self)
    }
}

/// Starts a stream of logs. `open` opens the reader on a thread of the bridge; the permit is held until the stream
/// ends.
///
/// # Errors
/// The errors of `open`.
pub(crate) async fn stream_logs<E: LogEncoder>(
    context: &Arc<Context>,
    permit: impl Send + 'static,
    follow: bool,
    encoder: E,
    open: impl FnOnce(&Observer) -> Result<LogReader, Status> + Send + 'static,
) -> Result<ReceiverStream<Result<E::Message, Status>>, Status> {
    let reader = context.reader.call_for_stream(Weight::Heavy, open).await?;
    let reading = Reading { reader, encoder, messages: Vec::new(), pulled: Pulled::More };
    let (sender, receiver) = mpsc::channel(1);
    let (news, context) = (context.hub.news(), Arc::clone(context));
    let mut stream = LogStream { news, context, follow, wake_sources: None, subscribed_just_now: false, sender };
    let task = async move {
        let _permit = permit;
        if let Err(status) = stream.run(reading).await {
            let _client_may_have_gone = stream.sender.send(Err(status)).await;
        }
    };
    tokio::spawn(task.in_current_span());
    Ok(ReceiverStream::new(receiver))
}

/// One stream.
struct LogStream<M> {
    context: Arc<Context>,
    news: watch::Receiver<u64>,
    follow: bool,
    wake_sources: Option<WakeSources>,
    /// Whether the wake sources are newer than the last read.
    subscribed_just_now: bool,
    sender: mpsc::Sender<Result<M, Status>>,
}

/// The events that wake a stream that follows.
struct WakeSources {
    dirs: DirSubscription,
    /// The changes of the reader's directories when they were subscribed to.
    changes: u64,
    supervisor: Option<AsyncFd<OwnedFd>>,
}

impl<M: Send + 'static> LogStream<M> {
    async fn run<E: LogEncoder<Message = M>>(&mut self, mut reading: Reading<E>) -> Result<(), Status> {
        let mut taken: usize = 0;
        loop {
            if !self.wait_for_room().await? {
                return Ok(());
            }
            let piece = (taken / GROWTH).clamp(FIRST_PIECE, MAX_PIECE);
            // Before the read, so that an event in between counts as a change.
            self.news.borrow_and_update();
            let pull =
                self.context.reader.call_for_stream(Weight::Heavy, move |observer| reading.pull(observer, piece));
            reading = pull.await?;
            for message in std::mem::take(&mut reading.messages) {
                if !self.send(message).await? {
                    return Ok(());
                }
                taken = taken.saturating_add(piece);
            }
            match reading.pulled {
                Pulled::End => return Ok(()),
                Pulled::More => {}
                Pulled::Drained | Pulled::Waiting => match self.wait(reading).await? {
                    Some(same) => (reading, taken) = (same, 0),
                    None => return Ok(()),
                },
            }
        }
    }

    /// Waits until the connection has taken the last message. `false` if the client has gone away.
    async fn wait_for_room(&self) -> Result<bool, Status> {
        tokio::select! {
            room = self.sender.reserve() => Ok(room.is_ok()),
            () = self.context.drained(), if self.follow => Err(status::draining()),
        }
    }

    /// `false` if the client has gone away.
    async fn send(&self, message: M) -> Result<bool, Status> {
        tokio::select! {
            sent = self.sender.send(Ok(message)) => Ok(sent.is_ok()),
            () = self.context.drained(), if self.follow => Err(status::draining()),
        }
    }

    /// Waits until there may be more lines; `None` if the client has gone away.
    async fn wait<E: LogEncoder>(&mut self, reading: Reading<E>) -> Result<Option<Reading<E>>, Status> {
        let not_started = reading.pulled == Pulled::Waiting;
        let dirs = reading.reader.dirs();
        let changes = reading.reader.dir_changes();
        let covers = |sources: &WakeSources| sources.changes == changes && sources.dirs.covers(&dirs);
        let is_subscribed = self.wake_sources.as_ref().is_some_and(covers);
        if !not_started && !self.subscribed_just_now && !is_subscribed {
            // Read once more, to find the changes before the subscription.
            self.subscribed_just_now = true;
            return self.subscribe(reading).await.map(Some);
        }
        self.subscribed_just_now = false;
        let awaits_event = not_started || reading.reader.ends_with_process();
        // Without a descriptor for it, nothing announces the end of the supervisor.
        let is_polled = awaits_event || self.wake_sources.as_ref().is_none_or(|sources| sources.supervisor.is_none());
        let timeout = is_polled.then_some(POLL_INTERVAL).into_iter().chain(reading.reader.wait_at_most()).min();
        let sources = self.wake_sources.as_mut().filter(|_| !not_started);
        tokio::select! {
            // An error means that the hub has ended, and with it the server.
            _ = self.news.changed(), if awaits_event => tokio::time::sleep(MIN_INTERVAL).await,
            () = changed(sources), if !not_started => {}
            () = tokio::time::sleep(timeout.unwrap_or_default()), if timeout.is_some() => {}
            () = self.sender.closed() => return Ok(None),
            () = self.context.drained() => return Err(status::draining()),
        }
        Ok(Some(reading))
    }

    async fn subscribe<E: LogEncoder>(&mut self, reading: Reading<E>) -> Result<Reading<E>, Status> {
        let call = self.context.reader.call_for_stream(Weight::Light, move |observer| {
            let supervisor = observer.supervisor_of(&reading.reader);
            Ok((reading, supervisor))
        });
        let (reading, supervisor) = call.await?;
        let failed = |error| Status::unavailable(format!("cannot watch the pod's supervisor: {error}"));
        let supervisor = supervisor.map(readable).transpose().map_err(failed)?;
        // The assignment drops the old subscription after the new one exists, so shared watches are not removed in
        // between.
        let dirs = self.context.dir_watch.subscribe(reading.reader.dirs());
        self.wake_sources = Some(WakeSources { dirs, changes: reading.reader.dir_changes(), supervisor });
        Ok(reading)
    }
}

/// Returns when a directory changed, or, once, when the supervisor has ended.
async fn changed(sources: Option<&mut WakeSources>) {
    let Some(WakeSources { dirs, supervisor, changes: _ }) = sources else { return };
    tokio::select! {
        () = dirs.changed() => {}
        () = ended(supervisor.as_ref()) => *supervisor = None,
    }
}

/// Returns when the supervisor has ended; never without one.
async fn ended(supervisor: Option<&AsyncFd<OwnedFd>>) {
    match supervisor {
        // A pidfd stays readable; an error means that the runtime ends.
        Some(fd) => drop(fd.readable().await),
        None => std::future::pending().await,
    }
}
