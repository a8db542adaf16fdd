//! GetLogs: pieces of logs, read on the bridge's threads while the piece before is on its way.
//!
//! The first piece is small, so that the first line comes soon and one who does not read costs little; the more a
//! client has taken, the bigger they get. Who follows sleeps until a log directory changes or the pod's supervisor ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use gantry_engine::model::AppName;
use gantry_engine::model::id::shown;
use gantry_engine::{LogQuery, LogReader, LogsError, Observer, Pulled};
use gantry_proto::encoded::Encoded;
use gantry_proto::rkt::v1alpha::GetLogsRequest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::events::times;
use super::filters::check_text;
use super::lines::Lines;
use super::pods;
use crate::bridge::Weight;
use crate::peer::Peer;
use crate::places::Places;
use crate::server::Shared;
use crate::status::{self, invalid};
use crate::watch::{Subscription, readable};

/// Bytes that are read at a time: at first, and at most.
const PIECE: (usize, usize) = (32 << 10, 256 << 10);
/// A pod that was not started yet is looked at so often, whatever is heard of it.
const LOOK: Duration = Duration::from_secs(1);
/// And not more often than so, however much is heard of others.
const BREATH: Duration = Duration::from_millis(20);

/// What is asked for.
pub(super) struct Wanted {
    pod: String,
    app: String,
    query: LogQuery,
}

impl Wanted {
    /// Takes the request apart.
    ///
    /// # Errors
    /// INVALID_ARGUMENT, with the field.
    pub(super) fn of(request: GetLogsRequest) -> Result<Self, Status> {
        let GetLogsRequest { pod_id, app_name, lines, follow, since_time, until_time } = request;
        check_text("pod_id", &pod_id)?;
        check_text("app_name", &app_name)?;
        let (since, until) = times("since_time", since_time, "until_time", until_time)?;
        let lines = usize::try_from(lines).map_err(|_| invalid("lines", "a number of lines is not less than 0"))?;
        let tail_total = Some(lines).filter(|lines| *lines > 0);
        let query = LogQuery { since, until, tail_total, follow, ..LogQuery::default() };
        Ok(Self { pod: pod_id, app: app_name, query })
    }

    /// Opens the logs.
    fn open(self, observer: &Observer) -> Result<Reading, Status> {
        let Self { pod, app, mut query } = self;
        let view = pods::resolve(observer, &pod)?;
        if !app.is_empty() {
            // What cannot be a name is none of the pod's.
            let none = || Status::not_found(format!("pod {} has no app '{}'", view.row.id, shown(&app)));
            query.apps = vec![app.parse::<AppName>().map_err(|_| none())?];
        }
        let reader = observer.open_logs(view.row.id, &query).map_err(failed)?;
        Ok(Reading { reader, lines: Lines::new(), messages: Vec::new(), pulled: Pulled::More })
    }
}

fn failed(error: LogsError) -> Status {
    status::of(&error)
}

/// A reader, and what it has read. It goes to the bridge's threads and comes back.
struct Reading {
    reader: LogReader,
    lines: Lines,
    messages: Vec<Vec<u8>>,
    pulled: Pulled,
}

impl Reading {
    fn pull(mut self, observer: &Observer, most: usize) -> Result<Self, Status> {
        let lines = &mut self.lines;
        let pulled = observer.pull_logs(&mut self.reader, most, &mut |line| lines.add(line));
        self.pulled = pulled.map_err(failed)?;
        if self.pulled == Pulled::End {
            self.lines.finish_all();
        }
        self.messages = self.lines.take();
        Ok(self)
    }
}

/// Begins to read.
///
/// # Errors
/// No such pod or app, no place left, or the logs cannot be read.
pub(super) async fn read(
    shared: &Arc<Shared>,
    readers: &Places,
    peer: Peer,
    wanted: Wanted,
) -> Result<ReceiverStream<Result<Encoded, Status>>, Status> {
    let place = readers.take(peer)?;
    let follow = wanted.query.follow;
    let reading = shared.bridge.ask_for_stream(Weight::Heavy, move |observer| wanted.open(observer)).await?;
    let (sender, receiver) = mpsc::channel(1);
    let mut stream =
        Stream { news: shared.hub.news(), shared: Arc::clone(shared), follow, waits: None, fresh: false, sender };
    tokio::spawn(async move {
        let _place = place;
        if let Err(status) = stream.run(reading).await {
            // Fails when it has gone away.
            let _ = stream.sender.send(Err(status)).await;
        }
    });
    Ok(ReceiverStream::new(receiver))
}

/// One who reads.
struct Stream {
    shared: Arc<Shared>,
    news: watch::Receiver<u64>,
    follow: bool,
    waits: Option<Waits>,
    /// Whether those were made a moment ago.
    fresh: bool,
    sender: mpsc::Sender<Result<Encoded, Status>>,
}

/// What wakes one who follows.
struct Waits {
    dirs: Subscription,
    supervisor: Option<AsyncFd<OwnedFd>>,
}

impl Stream {
    async fn run(&mut self, mut reading: Reading) -> Result<(), Status> {
        let mut piece = PIECE.0;
        loop {
            // Before it is looked: what comes in between shows as a change.
            self.news.borrow_and_update();
            let pull = self.shared.bridge.ask_for_stream(Weight::Heavy, move |observer| reading.pull(observer, piece));
            reading = pull.await?;
            for message in std::mem::take(&mut reading.messages) {
                if !self.send(message).await? {
                    return Ok(());
                }
                piece = (piece * 2).min(PIECE.1);
            }
            match reading.pulled {
                Pulled::End => return Ok(()),
                Pulled::More => {}
                Pulled::Dry | Pulled::Waiting => match self.wait(reading).await? {
                    Some(same) => reading = same,
                    None => return Ok(()),
                },
            }
        }
    }

    /// False when nobody reads any more.
    async fn send(&self, message: Vec<u8>) -> Result<bool, Status> {
        tokio::select! {
            sent = self.sender.send(Ok(Encoded(Bytes::from(message)))) => Ok(sent.is_ok()),
            () = self.shared.ended(), if self.follow => Err(status::ending()),
        }
    }

    /// Waits until there may be more; `None` when nobody reads any more.
    async fn wait(&mut self, reading: Reading) -> Result<Option<Reading>, Status> {
        let waiting = reading.pulled == Pulled::Waiting;
        let dirs = reading.reader.dirs();
        if !waiting && !self.fresh && !self.waits.as_ref().is_some_and(|waits| waits.dirs.covers(&dirs)) {
            // What changed before they were watched is found by looking once more.
            self.fresh = true;
            return self.begin_to_watch(reading).await.map(Some);
        }
        self.fresh = false;
        let most = if waiting { Some(LOOK) } else { None };
        let most = most.into_iter().chain(reading.reader.wait_at_most()).min();
        let waits = self.waits.as_mut().filter(|_| !waiting);
        tokio::select! {
            // Fails with the hub, at the end of all.
            _ = self.news.changed(), if waiting => tokio::time::sleep(BREATH).await,
            () = changed(waits), if !waiting => {}
            () = tokio::time::sleep(most.unwrap_or_default()), if most.is_some() => {}
            () = self.sender.closed() => return Ok(None),
            () = self.shared.ended() => return Err(status::ending()),
        }
        Ok(Some(reading))
    }

    async fn begin_to_watch(&mut self, reading: Reading) -> Result<Reading, Status> {
        let ask = self.shared.bridge.ask_for_stream(Weight::Light, move |observer| {
            let supervisor = observer.supervisor_of(&reading.reader);
            Ok((reading, supervisor))
        });
        let (reading, supervisor) = ask.await?;
        let failed = |error| Status::unavailable(format!("cannot watch the pod's supervisor: {error}"));
        let supervisor = supervisor.map(readable).transpose().map_err(failed)?;
        // The old one first goes when the new one is there, so that what both watch is not let go of in between.
        self.waits = Some(Waits { dirs: self.shared.watch.subscribe(reading.reader.dirs()), supervisor });
        Ok(reading)
    }
}

/// Returns when something changed, or the supervisor has ended: that once.
async fn changed(waits: Option<&mut Waits>) {
    let Some(Waits { dirs, supervisor }) = waits else { return };
    tokio::select! {
        () = dirs.changed() => {}
        () = ended(supervisor.as_ref()) => *supervisor = None,
    }
}

/// Returns when the supervisor has ended; never where none is known.
async fn ended(supervisor: Option<&AsyncFd<OwnedFd>>) {
    match supervisor {
        // It stays readable, and fails when the runtime ends.
        Some(fd) => drop(fd.readable().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "logs_tests.rs"]
mod tests;
