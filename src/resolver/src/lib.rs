//! The DNS resolver of gantryd: on the gateway address of each network it resolves the names of the pods on the
//! client's networks, and forwards all other queries to the name servers of the host.
//!
//! What it may import: ARCHITECTURE.md, Layers (checked by tests/tidy). It is read-only: rows through a
//! [`gantry_engine::Observer`] and the host's resolv.conf. Nothing depends on it: while it is not running, pods fall
//! back to the servers of the host, which their resolv.conf lists next.
//!
//! ```text
//! rows (a thread)      rows of running pods, resolv.conf -> ResolverState: zones by gateway, servers of the host
//! server (a thread)    a UDP and a TCP socket for each gateway; query -> message -> reply or forward
//! ```
//!
//! Start reading at [`names`] (which names a client sees), then `message` (handling of one query), `server` and
//! `forward`. Queries of pods are hostile input: `limits` bounds their number.
//!
//! Replies of servers are not cached: the servers have caches, and another one could be poisoned.
#![forbid(unsafe_code)]

#[cfg(test)]
#[path = "fixtures_tests.rs"]
mod fixtures;
mod forward;
mod limits;
mod message;
mod names;
mod rows;
mod server;
mod upstream;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use gantry_engine::{CommitWatcher, Options};
use gantry_model::{ErrorKind, Kind};
use thiserror::Error;
use tokio::sync::watch;

pub use crate::names::DOMAIN;
use crate::rows::Follower;
use crate::server::{ResolverState, Shared};

/// Configuration of the resolver.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data directory of the pods.
    pub options: Options,
    /// Watches the commits to that directory.
    pub commits: CommitWatcher,
    /// The host's resolv.conf, read again when it changes.
    pub resolv_conf: PathBuf,
}

/// An event for the log.
#[derive(Debug)]
pub enum Note {
    /// The resolver now listens on this address.
    Listening(IpAddr),
    /// Another server listens on this address. The resolver retries.
    Taken(IpAddr),
    /// Listening on this address failed. The resolver retries.
    Refused(IpAddr, io::Error),
    /// The rows or resolv.conf cannot be read. The last state stays in use.
    Trouble(String),
}

impl Note {
    /// Whether the event is a warning.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        !matches!(self, Self::Listening(_))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(address) => write!(f, "resolving host names and app names of pods on {address}"),
            Self::Taken(address) => write!(
                f,
                "host names and app names of pods are not resolved on {address}: another server listens on its port {}",
                upstream::PORT
            ),
            Self::Refused(address, error) => {
                write!(f, "host names and app names of pods are not resolved on {address}: {error}; trying again")
            }
            Self::Trouble(text) => write!(f, "resolver: {text}; the last state stays in use"),
        }
    }
}

/// Receives notes on the resolver's threads.
pub type NoteSink = Arc<dyn Fn(&Note) + Send + Sync>;

/// Starting the resolver failed.
#[derive(Debug, Error)]
pub enum StartError {
    /// The system refused a thread, descriptor or memory.
    #[error("cannot {attempt} of the resolver")]
    System {
        /// The failed step.
        attempt: &'static str,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

impl StartError {
    fn system(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { attempt, source }
    }
}

impl Kind for StartError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::System { source, .. } => ErrorKind::of_io(source),
        }
    }
}

/// A running resolver. Dropping it ends it.
#[derive(Debug)]
pub struct Running {
    ending: watch::Sender<bool>,
    ended: Arc<AtomicBool>,
    /// Disconnected when the server's thread has ended.
    over: mpsc::Receiver<()>,
}

/// Starts the resolver. The addresses it listens on follow the rows. Failures on one address go to `notify` and do not
/// affect the others.
///
/// # Errors
/// [`StartError`].
pub fn start(config: Config, notify: NoteSink) -> Result<Running, StartError> {
    let (state, published_state) = watch::channel(Arc::new(ResolverState::default()));
    let (ending, is_ending) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::system("make the event loop"))?;
    let server = Shared::new(published_state, is_ending, upstream::PORT, Arc::clone(&notify));
    let (still, over) = mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let their_ended = Arc::clone(&ended);
    let follower = Follower::new(config, notify, state);
    std::thread::Builder::new()
        .name("names".to_owned())
        .spawn(move || follower.run(&their_ended))
        .map_err(StartError::system("start the thread that reads names"))?;
    // Made before the second thread starts: if that fails, dropping it ends the first.
    let running = Running { ending, ended, over };
    std::thread::Builder::new()
        .name("resolver".to_owned())
        .spawn(move || {
            runtime.block_on(server.run());
            drop(still);
        })
        .map_err(StartError::system("start the thread that answers"))?;
    Ok(running)
}

impl Running {
    /// Ends the resolver: no new queries are accepted, and those in flight may finish within `timeout`.
    pub fn drain(self, timeout: Duration) {
        // An error means that the server's thread has ended already.
        let _already_ended = self.ending.send(true);
        // Either result is fine: the thread has ended, or the time is up.
        let _ended_or_timed_out = self.over.recv_timeout(timeout);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _already_ended = self.ending.send(true);
        // Noticed within one poll interval.
        self.ended.store(true, Ordering::Relaxed);
    }
}
