//! The thread that follows the rows of running pods and the host's resolv.conf, and publishes the state for the server.
//!
//! The rows are read again after an event about the start or end of a pod, or about an app that was added or removed,
//! and periodically in case an event is missed.
//! While reading fails, the last state stays in use.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gantry_engine::{CommitWatcher, Observer, Options, now};
use gantry_model::EventKind;
use gantry_model::error::messages;
use gantry_model::query::{EventQuery, PodFilter};
use tokio::sync::watch;

use crate::names::{Gateways, Pod, gateways};
use crate::server::ResolverState;
use crate::upstream::HostFile;
use crate::{Config, Note, NoteSink};
use gantry_model::PhaseName;

/// Interval of checks for a replaced database or a changed resolv.conf, neither of which wakes the thread.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Minimum interval between two reads of the rows, however many pods start.
const MIN_READ_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum interval between two reads of the rows.
const MAX_READ_INTERVAL: Duration = Duration::from_secs(30);
/// Number of events read at a time.
const PAGE: usize = 512;

/// The sources that are followed, and the receiver of the state.
pub(crate) struct Follower {
    options: Options,
    commits: CommitWatcher,
    host: HostFile,
    notify: NoteSink,
    state: watch::Sender<Arc<ResolverState>>,
    /// The last failure of reading the rows and the file. A failure is reported when its text changes.
    trouble: [Option<String>; 2],
}

impl Follower {
    /// Creates a follower; nothing is read yet.
    pub(crate) fn new(config: Config, notify: NoteSink, state: watch::Sender<Arc<ResolverState>>) -> Self {
        let Config { options, commits, resolv_conf } = config;
        Self { options, commits, host: HostFile::new(&resolv_conf), notify, state, trouble: [None, None] }
    }

    /// Follows until `ended` is set. Failures are retried.
    pub(crate) fn run(mut self, ended: &AtomicBool) {
        while !ended.load(Ordering::Relaxed) {
            self.read_host_servers();
            match self.follow(ended) {
                Ok(()) => {}
                Err(error) => {
                    self.report_once(0, &format!("cannot read the rows of pods: {}", messages(&error).join(": ")));
                    std::thread::sleep(POLL_INTERVAL);
                }
            }
        }
    }

    /// Follows the rows until the database must be reopened.
    fn follow(&mut self, ended: &AtomicBool) -> io::Result<()> {
        let observer = Observer::open(self.options.clone()).map_err(io::Error::other)?;
        // Watched before reading, so that no commit is missed.
        let mut commits = self.commits.subscribe()?;
        let mut cursor = observer.events_start(&EventQuery::default(), now()).map_err(io::Error::other)?;
        while !ended.load(Ordering::Relaxed) {
            self.publish_gateways(&observer)?;
            self.trouble[0] = None;
            let read = Instant::now();
            loop {
                commits.wait(POLL_INTERVAL)?;
                if ended.load(Ordering::Relaxed) || !observer.is_current() {
                    return Ok(());
                }
                self.read_host_servers();
                if has_relevant_events(&observer, &mut cursor)? || read.elapsed() >= MAX_READ_INTERVAL {
                    break;
                }
            }
            std::thread::sleep(MIN_READ_INTERVAL.saturating_sub(read.elapsed()));
        }
        Ok(())
    }

    fn publish_gateways(&self, observer: &Observer) -> io::Result<()> {
        let running = PodFilter { phases: vec![PhaseName::Running], ..PodFilter::default() };
        let views = observer.pods(&[running]).map_err(io::Error::other)?;
        let pods =
            views.iter().filter_map(|view| Pod::from_row(&view.row).transpose()).collect::<io::Result<Vec<_>>>()?;
        self.publish(Some(gateways(&pods)), None);
        Ok(())
    }

    fn read_host_servers(&mut self) {
        match self.host.news() {
            Ok(None) => {}
            Ok(Some(servers)) => {
                self.trouble[1] = None;
                self.publish(None, Some(servers));
            }
            Err(error) => self.report_once(1, &format!("cannot read the servers of this host: {error}")),
        }
    }

    /// Publishes what has changed.
    fn publish(&self, gateways: Option<Gateways>, servers: Option<Vec<SocketAddr>>) {
        self.state.send_if_modified(|state| {
            let gateways = gateways.filter(|gateways| *gateways != *state.gateways);
            let servers = servers.filter(|servers| *servers != state.servers);
            if gateways.is_none() && servers.is_none() {
                return false;
            }
            let gateways = gateways.map_or_else(|| Arc::clone(&state.gateways), Arc::new);
            *state = Arc::new(ResolverState { gateways, servers: servers.unwrap_or_else(|| state.servers.clone()) });
            true
        });
    }

    /// Reports a failure, unless it equals the last one of the same source.
    fn report_once(&mut self, about: usize, text: &str) {
        if let Some(last) = self.trouble.get_mut(about)
            && last.as_deref() != Some(text)
        {
            *last = Some(text.to_owned());
            (self.notify)(&Note::Trouble(text.to_owned()));
        }
    }
}

/// Whether an event after the cursor affects names. Advances the cursor.
fn has_relevant_events(observer: &Observer, cursor: &mut u64) -> io::Result<bool> {
    let mut news = false;
    loop {
        let page = observer.events_after(*cursor, PAGE).map_err(io::Error::other)?;
        let end = page.cursor.max(page.trimmed.unwrap_or(0));
        news |= page.trimmed.is_some() || page.events.iter().any(|event| changes_names(event.event.kind));
        if end <= *cursor {
            return Ok(news);
        }
        *cursor = end;
    }
}

/// Whether events of this kind change names: apps of a pod are names too.
fn changes_names(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::PodStarted
            | EventKind::PodExited
            | EventKind::PodGarbageCollected
            | EventKind::AppCreated
            | EventKind::AppRemoved
    )
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
