//! The thread that follows the rows of running pods and the host's resolv.conf, and tells the server what came of it.
//!
//! A row is read again when an event says that a pod began or ended to run, and now and then anyway: what an event does
//! not tell, time does. While the rows cannot be read the last ones count.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gantry_engine::model::error::messages;
use gantry_engine::model::query::{EventQuery, PodFilter};
use gantry_engine::model::{Event, EventKind};
use gantry_engine::{Commits, Observer, Options, now};
use tokio::sync::watch;

use crate::names::{Places, Pod, places};
use crate::server::Facts;
use crate::upstream::HostFile;
use crate::{Note, Say};

/// How long it is slept at most: a database or a resolv.conf that was replaced wakes nobody.
const LOOK: Duration = Duration::from_millis(500);
/// At least this long between two readings of the rows, however many pods start.
const BREATH: Duration = Duration::from_millis(50);
/// At most this long between them.
const NET: Duration = Duration::from_secs(30);
/// How many events are read at a time.
const PAGE: usize = 512;

/// What is followed, and who is told.
pub(crate) struct Follower {
    options: Options,
    host: HostFile,
    say: Say,
    facts: watch::Sender<Arc<Facts>>,
    /// What went wrong the last time: the rows, the file. It is said when it changes.
    trouble: [Option<String>; 2],
}

impl Follower {
    /// Nothing is read yet.
    pub(crate) fn new(options: Options, resolv_conf: &Path, say: Say, facts: watch::Sender<Arc<Facts>>) -> Self {
        Self { options, host: HostFile::new(resolv_conf), say, facts, trouble: [None, None] }
    }

    /// Follows until it is to end. What fails is tried again.
    pub(crate) fn run(mut self, ended: &AtomicBool) {
        while !ended.load(Ordering::Relaxed) {
            self.look_at_host();
            match self.follow(ended) {
                Ok(()) => {}
                Err(error) => {
                    self.complain(0, &format!("cannot read the rows of pods: {}", messages(&error).join(": ")));
                    std::thread::sleep(LOOK);
                }
            }
        }
    }

    /// Follows the rows until the database has to be opened again.
    fn follow(&mut self, ended: &AtomicBool) -> io::Result<()> {
        let observer = Observer::open(self.options.clone()).map_err(io::Error::other)?;
        // Watched first, then read: what is committed in between wakes.
        let mut commits = Commits::watch(&observer)?;
        let mut cursor = observer.events_start(&EventQuery::default(), now()).map_err(io::Error::other)?;
        while !ended.load(Ordering::Relaxed) {
            self.tell_places(&observer)?;
            self.trouble[0] = None;
            let read = Instant::now();
            loop {
                commits.wait(LOOK)?;
                if ended.load(Ordering::Relaxed) || !observer.is_current() {
                    return Ok(());
                }
                self.look_at_host();
                if any_news(&observer, &mut cursor)? || read.elapsed() >= NET {
                    break;
                }
            }
            std::thread::sleep(BREATH.saturating_sub(read.elapsed()));
        }
        Ok(())
    }

    fn tell_places(&self, observer: &Observer) -> io::Result<()> {
        let running = PodFilter { phases: vec!["running"], ..PodFilter::default() };
        let views = observer.pods(&[running]).map_err(io::Error::other)?;
        let pods = views.iter().filter_map(|view| Pod::of(&view.row).transpose()).collect::<io::Result<Vec<_>>>()?;
        self.tell(Some(places(&pods)), None);
        Ok(())
    }

    fn look_at_host(&mut self) {
        match self.host.news() {
            Ok(None) => {}
            Ok(Some(servers)) => {
                self.trouble[1] = None;
                self.tell(None, Some(servers));
            }
            Err(error) => self.complain(1, &format!("cannot read the servers of this host: {error}")),
        }
    }

    /// Replaces what has changed.
    fn tell(&self, places: Option<Places>, servers: Option<Vec<SocketAddr>>) {
        self.facts.send_if_modified(|facts| {
            let places = places.filter(|places| *places != *facts.places);
            let servers = servers.filter(|servers| *servers != facts.servers);
            if places.is_none() && servers.is_none() {
                return false;
            }
            let places = places.map_or_else(|| Arc::clone(&facts.places), Arc::new);
            *facts = Arc::new(Facts { places, servers: servers.unwrap_or_else(|| facts.servers.clone()) });
            true
        });
    }

    /// Says it, unless it is what was said the last time.
    fn complain(&mut self, about: usize, text: &str) {
        if let Some(last) = self.trouble.get_mut(about)
            && last.as_deref() != Some(text)
        {
            *last = Some(text.to_owned());
            (self.say)(&Note::Trouble(text.to_owned()));
        }
    }
}

/// Whether something happened since the cursor that changes which names there are; the cursor goes on.
fn any_news(observer: &Observer, cursor: &mut u64) -> io::Result<bool> {
    let mut news = false;
    loop {
        let page = observer.events_after(*cursor, PAGE).map_err(io::Error::other)?;
        let end = page.cursor.max(page.trimmed.unwrap_or(0));
        news |= page.trimmed.is_some() || page.events.iter().any(is_news);
        if end <= *cursor {
            return Ok(news);
        }
        *cursor = end;
    }
}

fn is_news(event: &Event) -> bool {
    matches!(event.event.kind, EventKind::PodStarted | EventKind::PodExited | EventKind::PodGarbageCollected)
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
