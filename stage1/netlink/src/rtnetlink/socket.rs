//! The rtnetlink socket for requests about interfaces, addresses and routes.

use std::time::Duration;

use netlink_sys::constants::NETLINK_ROUTE;

use crate::channel::{self, Channel};
use crate::error::Result;
use crate::namespace::Namespace;

/// An rtnetlink(7) socket of one network namespace.
///
/// The socket stays bound to the namespace it was opened in, wherever the thread moves afterwards: attaching a pod
/// needs one socket for the host and one for the pod. It keeps its namespace alive and holds a buffer of 32 KiB, so
/// drop it after use.
///
/// The socket remains usable after a timeout and after [`crate::Error::Lost`]: late replies are recognized
/// by their sequence number and skipped.
pub struct Socket {
    channel: Channel,
}

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// If socket() fails.
    pub fn open() -> Result<Self> {
        // NETLINK_GET_STRICT_CHK (Linux 4.20): the kernel rejects attributes it would otherwise ignore, and filters
        // dumps.
        Ok(Self { channel: Channel::new(channel::open(NETLINK_ROUTE, true)?) })
    }

    /// Opens a socket in another network namespace, by [`Namespace::enter`].
    ///
    /// # Errors
    /// As [`Self::open`]; if the namespace cannot be entered.
    pub fn open_in(namespace: &Namespace) -> Result<Self> {
        namespace.enter(Self::open)
    }

    /// Sets the timeout of each reply; the default is 5 s.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.channel.set_timeout(timeout);
    }

    pub(crate) fn channel(&mut self) -> &mut Channel {
        &mut self.channel
    }
}
