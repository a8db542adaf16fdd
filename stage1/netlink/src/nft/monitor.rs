//! Tells when somebody else changed our tables.
//!
//! The kernel tells the multicast group `NFNLGRP_NFTABLES` of every part that a transaction added or removed, and at its end
//! the name of the process that made it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::netlink::SocketAddrNetlink;

use crate::channel::Channel;
use crate::error::{Attempt, Error as NetlinkError};
use crate::message::{Message, next_message};

use super::error::Result;
use super::family::Family;
use super::table::check_name;
use super::wire::{FIXED, NFTA_GEN_PROC_NAME, NFTA_TABLE, message};

/// `1 << (NFNLGRP_NFTABLES - 1)`.
const GROUPS: u32 = 1 << 6;
/// Notifications the kernel keeps for us; beyond that it drops them and says so.
const RECEIVE_BUFFER: usize = 1 << 20;
/// So many of the notifications that are there at the deadline are still read: others may change other tables without end.
const MAX_LATE_NOTIFICATIONS: usize = 4096;
const WHAT: &str = "watch nftables";

/// What was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TablePart {
    /// Elements of a set or map.
    Elements,
    /// A rule.
    Rule,
    /// A set or map.
    Set,
    /// A chain.
    Chain,
    /// The table.
    Table,
    /// It cannot be said: so much was changed that the kernel dropped what it had to tell. Assume everything.
    Unknown,
}

/// A change of our tables by somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Whether something was removed, or may have been.
    pub removed: bool,
    /// The greatest part that was changed; of those that were removed, if any were.
    pub part: TablePart,
    /// The name of the process that did it (`comm`, up to 15 bytes), if the kernel told.
    pub by: Option<String>,
}

/// A subscription to changes of our tables.
pub struct Monitor {
    channel: Channel,
    reader: Reader,
}

/// Makes changes of what the kernel tells.
pub(super) struct Reader {
    table: String,
    ours: Vec<String>,
    /// Of the transaction that was told in part.
    pending: Option<(bool, TablePart)>,
}

impl Monitor {
    /// Begins to watch the tables `inet NAME` and `bridge NAME`, over a [`super::socket`] of its own. Changes by processes of these names are not told;
    /// a name is a process's `comm`, which the kernel cuts at 15 bytes. (Who can change nftables can take any name: this is no
    /// protection.)
    pub fn open(socket: OwnedFd, name: &str, ours: &[&str]) -> Result<Self> {
        check_name(name)?;
        // As much as the limits of the host allow, if not as much as wanted: what is lost is told as Unknown.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER).attempt(|| WHAT)?;
        }
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS)).attempt(|| WHAT)?;
        Ok(Self { channel: Channel::new(socket), reader: Reader::new(name, ours) })
    }

    /// Waits for a change by somebody else, so long at most; None if there was none.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Change>> {
        let deadline = Instant::now().checked_add(limit).unwrap_or_else(far);
        let mut late = 0;
        loop {
            match self.channel.received(WHAT) {
                Ok(Some(datagram)) => {
                    if let Some(change) = self.reader.take(datagram)? {
                        return Ok(Some(change));
                    }
                    late += usize::from(Instant::now() >= deadline);
                    if late > MAX_LATE_NOTIFICATIONS {
                        return Ok(None);
                    }
                    continue;
                }
                Ok(None) => {}
                Err(NetlinkError::Lost { .. }) => {
                    self.reader.pending = None;
                    return Ok(Some(Change { removed: true, part: TablePart::Unknown, by: None }));
                }
                Err(error) => return Err(error.into()),
            }
            if !self.channel.readable(deadline, WHAT)? {
                return Ok(None);
            }
        }
    }
}

impl Reader {
    pub(super) fn new(table: &str, ours: &[&str]) -> Self {
        let ours = ours.iter().map(|name| cut(name).to_owned()).collect();
        Self { table: table.to_owned(), ours, pending: None }
    }

    /// The greatest change a datagram tells of.
    pub(super) fn take(&mut self, mut datagram: &[u8]) -> Result<Option<Change>> {
        let mut greatest: Option<Change> = None;
        while let Some(message) = next_message(&mut datagram).attempt(|| WHAT)? {
            if message.kind == message::NEWGEN {
                let change = self.end(&message)?;
                greatest = match (greatest, change) {
                    (Some(one), Some(other)) if (one.removed, one.part) >= (other.removed, other.part) => Some(one),
                    (one, None) => one,
                    (_, other) => other,
                };
            } else if let Some(told) = self.read(&message)? {
                self.pending = self.pending.max(Some(told));
            }
        }
        Ok(greatest)
    }

    /// The end of a transaction: what it changed, if somebody else made it.
    fn end(&mut self, message: &Message<'_>) -> Result<Option<Change>> {
        let (_, attributes) = message.split(FIXED).attempt(|| WHAT)?;
        let Some((removed, part)) = self.pending.take() else { return Ok(None) };
        let by = attributes.get(NFTA_GEN_PROC_NAME).and_then(|name| name.text()).map(str::to_owned);
        if by.as_ref().is_some_and(|by| self.ours.contains(by)) {
            return Ok(None);
        }
        Ok(Some(Change { removed, part, by }))
    }

    /// Which part of our tables a message tells of, and whether it was removed.
    fn read(&self, message: &Message<'_>) -> Result<Option<(bool, TablePart)>> {
        let (removed, part) = match message.kind {
            message::NEWTABLE => (false, TablePart::Table),
            message::DELTABLE => (true, TablePart::Table),
            message::NEWCHAIN => (false, TablePart::Chain),
            message::DELCHAIN => (true, TablePart::Chain),
            message::NEWRULE => (false, TablePart::Rule),
            message::DELRULE => (true, TablePart::Rule),
            message::NEWSET => (false, TablePart::Set),
            message::DELSET => (true, TablePart::Set),
            message::NEWSETELEM => (false, TablePart::Elements),
            message::DELSETELEM => (true, TablePart::Elements),
            _ => return Ok(None),
        };
        let (fixed, attributes) = message.split(FIXED).attempt(|| WHAT)?;
        let table = attributes.get(NFTA_TABLE).and_then(|table| table.text());
        let family = Family::ALL.into_iter().any(|family| fixed.first() == Some(&family.number()));
        let ours = family && table == Some(&self.table);
        Ok(ours.then_some((removed, part)))
    }
}

impl AsFd for Monitor {
    /// To be polled together with others: readable when [`Monitor::wait`] may have something to tell.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// As the kernel keeps a process's name: 15 bytes of it.
fn cut(name: &str) -> &str {
    let end = (0..=name.len().min(15)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name.get(..end).unwrap_or_default()
}

/// As good as never.
fn far() -> Instant {
    Instant::now() + Duration::from_hours(24 * 365)
}
