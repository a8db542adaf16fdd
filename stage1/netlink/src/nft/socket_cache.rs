//! A cache of nfnetlink sockets, which avoids the RCU wait on close.
//!
//! When an nfnetlink socket is closed, the kernel first finishes the pending cleanup of every transaction in its
//! network namespace (`nft_rcv_nl_event`), which waits for an RCU grace period: 7 ms and more, ten times the
//! transaction itself. Exit closes the sockets too. A process whose exit is waited for removes them with [`drain`]
//! and lets another process close them.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use super::channel::socket;
use super::error::Result;
use crate::error::Attempt;
use crate::namespace::Namespace;

/// The most cached sockets; usually there is one.
const MAX_SOCKETS: usize = 32;

/// The device and inode number of a network namespace, and a socket in it.
type CachedSocket = ((u64, u64), OwnedFd);

static SOCKETS: Mutex<Vec<CachedSocket>> = Mutex::new(Vec::new());

/// Removes all sockets from the cache. The caller closes them.
pub fn drain() -> Vec<OwnedFd> {
    let mut all = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
    all.drain(..).map(|(_, socket)| socket).collect()
}

/// Runs `work` with a socket in the calling thread's network namespace, from the cache or new. No other caller uses the
/// socket during the call.
///
/// # Errors
/// The errors of `work`; if no socket can be opened.
pub fn with_socket<T>(work: impl FnOnce(OwnedFd) -> Result<T>) -> Result<T> {
    let stat = rustix::fs::fstat(Namespace::own()?).attempt(|| "identify the network namespace")?;
    let here = (stat.st_dev, stat.st_ino);
    let kept = {
        let mut all = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().position(|(of, _)| *of == here);
        found.map(|index| all.swap_remove(index).1)
    };
    let kept = kept.map_or_else(socket, Ok)?;
    let done = work(rustix::io::fcntl_dupfd_cloexec(&kept, 3).attempt(|| "duplicate an nfnetlink socket")?);
    // After an error a late reply may still arrive, which the next user would take for its own.
    if done.is_ok() {
        let mut all = SOCKETS.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_SOCKETS {
            all.push((here, kept));
        }
    }
    done
}
