//! Sockets of nfnetlink that are used again.
//!
//! When one is closed, the kernel first clears up after every transaction in that network namespace (`nft_rcv_nl_event`), which
//! waits for a grace period of RCU: 7 ms and more, where the transaction itself takes a tenth of one. So who is in a
//! hurry keeps his for the next use. The end of the process closes it, and waits: whose end is waited for takes them out
//! before ([`take`]) and has another process close them.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use super::channel::socket;
use super::error::Result;
use crate::error::Attempt;
use crate::namespace::Namespace;

/// So many are kept: mostly there is one.
const MAX_SOCKETS: usize = 32;

/// The device and inode number of a network namespace, and a socket of it.
type Kept = ((u64, u64), OwnedFd);

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

/// All that are kept. They are the caller's to close.
pub fn drain() -> Vec<OwnedFd> {
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    all.drain(..).map(|(_, socket)| socket).collect()
}

/// Does something over a socket of the network namespace the thread is in, which nobody else uses meanwhile.
///
/// # Errors
/// Those of `work`; when the kernel gives no socket.
pub fn with_socket<T>(work: impl FnOnce(OwnedFd) -> Result<T>) -> Result<T> {
    let stat = rustix::fs::fstat(Namespace::own()?).attempt(|| "look at the network namespace")?;
    let here = (stat.st_dev, stat.st_ino);
    let kept = {
        let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().position(|(of, _)| *of == here);
        found.map(|index| all.swap_remove(index).1)
    };
    let kept = kept.map_or_else(socket, Ok)?;
    let done = work(rustix::io::fcntl_dupfd_cloexec(&kept, 3).attempt(|| "use a socket of nftables")?);
    // After a failure an answer may still come, that the next one would take for his.
    if done.is_ok() {
        let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < MAX_SOCKETS {
            all.push((here, kept));
        }
    }
    done
}
