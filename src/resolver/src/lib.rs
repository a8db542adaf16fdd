//! The resolver of gantryd: on the gateway address of each network it answers for the names of the pods on that network,
//! and asks the servers of the host for all other names.
//!
//! May import `gantry_model` and `gantry_engine`. It only looks: rows through an [`gantry_engine::Observer`], the host's
//! resolv.conf, and what pods ask. Nothing depends on it: where it is not running, pods ask the servers of the host that
//! their resolv.conf names next.
//!
//! ```text
//! rows (a thread)      rows of running pods, resolv.conf -> Facts: which names where, which servers
//! server (a thread)    a UDP and a TCP socket for each address of the Facts; what came -> message -> answer or forward
//! ```
//!
//! Start reading at [`names`] (what is told to whom), then `message` (what is done with one query), `server` and
//! `forward`. What pods send is hostile: `limits` says how much of it is looked at.
//!
//! Nothing is kept of what servers answer: they have caches, and one of ours would be one more that can be poisoned.
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

use gantry_engine::Options;
use gantry_engine::model::{ErrorKind, Kind};
use thiserror::Error;
use tokio::sync::watch;

pub use crate::names::DOMAIN;
use crate::rows::Follower;
use crate::server::{Facts, Shared};

/// What is served.
#[derive(Debug, Clone)]
pub struct Config {
    /// The data directory whose pods are told of.
    pub options: Options,
    /// The host's resolv.conf. It is read again when it changes.
    pub resolv_conf: PathBuf,
}

/// Something an administrator may want to know.
#[derive(Debug)]
pub enum Note {
    /// Names are told on this address from now on.
    Listening(IpAddr),
    /// Another server has this address. It is left alone, and tried again in case it ends.
    Taken(IpAddr),
    /// The kernel does not let us listen there. It is tried again.
    Refused(IpAddr, io::Error),
    /// What is to be told cannot be read. The last that was read counts.
    Trouble(String),
}

impl Note {
    /// Whether something is not as it should be.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        !matches!(self, Self::Listening(_))
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listening(address) => write!(f, "resolving names of pods on {address}"),
            Self::Taken(address) => write!(
                f,
                "names of pods are not resolved on {address}: another server listens on its port {}",
                upstream::PORT
            ),
            Self::Refused(address, error) => {
                write!(f, "names of pods are not resolved on {address}: {error}; trying again")
            }
            Self::Trouble(text) => write!(f, "resolver: {text}; going on with what was read before"),
        }
    }
}

/// Whom notes are told. Called on the resolver's threads.
pub type Say = Arc<dyn Fn(&Note) + Send + Sync>;

/// The resolver cannot be started.
#[derive(Debug, Error)]
pub enum StartError {
    /// No threads, descriptors or memory left.
    #[error("cannot {attempt} of the resolver")]
    System {
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
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

/// A resolver that runs until it is drained or dropped.
#[derive(Debug)]
pub struct Running {
    ending: watch::Sender<bool>,
    ended: Arc<AtomicBool>,
    /// Hears of the end of the server's thread: the sender is dropped.
    over: mpsc::Receiver<()>,
}

/// Starts it. Which addresses it listens on comes from the rows, and changes with them; what keeps it from one is told
/// by `say` and keeps it from no other.
///
/// # Errors
/// [`StartError`].
pub fn start(config: Config, say: Say) -> Result<Running, StartError> {
    let (facts, their_facts) = watch::channel(Arc::new(Facts::default()));
    let (ending, is_ending) = watch::channel(false);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(StartError::system("make the event loop"))?;
    let server = Shared::new(their_facts, is_ending, upstream::PORT, Arc::clone(&say));
    let (still, over) = mpsc::channel();
    let ended = Arc::new(AtomicBool::new(false));
    let their_ended = Arc::clone(&ended);
    let follower = Follower::new(config.options, &config.resolv_conf, say, facts);
    std::thread::Builder::new()
        .name("names".to_owned())
        .spawn(move || follower.run(&their_ended))
        .map_err(StartError::system("start the thread that reads names"))?;
    // Before the second thread: without it the first one ends by itself.
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
    /// Ends: nothing new is taken, what is under way may finish within this time; what is not done by then ends with the
    /// process.
    pub fn drain(self, most: Duration) {
        // Fails when the server's thread is over.
        let _ = self.ending.send(true);
        // Told by the end of the other side, or by the time.
        let _ = self.over.recv_timeout(most);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.ending.send(true);
        // Seen within the time of one look.
        self.ended.store(true, Ordering::Relaxed);
    }
}
