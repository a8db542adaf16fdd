//! The socket that interfaces, addresses and routes are spoken about over.

use std::time::Duration;

use netlink_sys::constants::NETLINK_ROUTE;

use crate::channel::{self, Channel};
use crate::error::Result;
use crate::namespace::Namespace;

/// An rtnetlink(7) socket of one network namespace.
///
/// It stays in the namespace it was opened in, wherever the thread goes afterwards; so one socket for the host's and one for
/// the pod's is all that is needed. Like any socket it keeps its namespace alive, and it holds a buffer of 32 KiB: drop it when
/// the network is made.
///
/// After [`super::Error::TimedOut`] or [`super::Error::Lost`] it can be used on: an answer that still comes is passed over,
/// since its number is old.
pub struct Socket {
    channel: Channel,
}

impl Socket {
    /// A socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// When the kernel gives none (descriptors, memory).
    pub fn open() -> Result<Self> {
        // The kernel refuses what it would else ignore, and filters dumps: since 4.20.
        Ok(Self { channel: Channel::new(channel::open(NETLINK_ROUTE, true)?) })
    }

    /// A socket in another network namespace: the thread goes there, opens it and comes back. See [`Namespace::enter`] for what
    /// that needs and what happens when it cannot come back.
    ///
    /// # Errors
    /// As [`Self::open`]; when the namespace cannot be entered.
    pub fn open_in(namespace: &Namespace) -> Result<Self> {
        namespace.enter(Self::open)
    }

    /// How long to wait for the answer to one request; 5 s if never said.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.channel.set_timeout(timeout);
    }

    pub(crate) fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }
}
