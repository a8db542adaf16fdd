//! Reports changes of gantry's tables by other programs.
//!
//! The kernel notifies the multicast group `NFNLGRP_NFTABLES` of every object that a transaction adds or removes, and
//! then of the name of the process that committed it.

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
/// The receive buffer in bytes. When it is full, the kernel drops notifications and reports ENOBUFS.
const RECEIVE_BUFFER: usize = 1 << 20;
/// The most notifications read after the deadline: other programs may change other tables endlessly.
const MAX_LATE_NOTIFICATIONS: usize = 4096;
const WHAT: &str = "watch nftables";

/// The kind of object that was changed.
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
    /// Unknown: the kernel dropped notifications. Assume that everything changed.
    Unknown,
}

/// A change of gantry's tables by another program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Whether something was removed, or may have been.
    pub removed: bool,
    /// The highest-ranking object that was removed, or else changed.
    pub part: TablePart,
    /// The name of the process that committed it (`comm`, up to 15 bytes), if the kernel reported it.
    pub by: Option<String>,
}

/// A subscription to changes of gantry's tables.
pub struct Monitor {
    channel: Channel,
    reader: Reader,
}

/// Turns notifications into changes.
pub(super) struct Reader {
    table: String,
    ours: Vec<String>,
    /// The change of a transaction whose end has not been reported yet.
    pending: Option<(bool, TablePart)>,
}

impl Monitor {
    /// Subscribes to the tables `inet NAME` and `bridge NAME`, over a [`super::socket`] of its own. Ignores changes
    /// by processes with the names `ours` (`comm`, which the kernel cuts at 15 bytes). Any process that can change
    /// nftables can take any name, so this is no protection.
    ///
    /// # Errors
    /// If the name is invalid or the kernel rejects the subscription.
    pub fn open(socket: OwnedFd, name: &str, ours: &[&str]) -> Result<Self> {
        check_name(name)?;
        // Without CAP_NET_ADMIN the host's limit applies. Lost notifications are reported as Unknown.
        if rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER).is_err() {
            rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER).attempt(|| WHAT)?;
        }
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS)).attempt(|| WHAT)?;
        Ok(Self { channel: Channel::new(socket), reader: Reader::new(name, ours) })
    }

    /// Waits for a change by another program, at most `limit`; None on timeout.
    ///
    /// # Errors
    /// If the socket fails or a notification is malformed.
    pub fn wait(&mut self, limit: Duration) -> Result<Option<Change>> {
        let deadline = Instant::now().checked_add(limit).unwrap_or_else(far_future);
        let mut late = 0;
        loop {
            match self.channel.try_receive(WHAT) {
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
        let ours = ours.iter().map(|name| truncate_comm(name).to_owned()).collect();
        Self { table: table.to_owned(), ours, pending: None }
    }

    /// The highest-ranking change in a datagram.
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

    /// Ends a transaction and returns its change, if another program committed it.
    fn end(&mut self, message: &Message<'_>) -> Result<Option<Change>> {
        let (_, attributes) = message.split(FIXED).attempt(|| WHAT)?;
        let Some((removed, part)) = self.pending.take() else { return Ok(None) };
        let by = attributes.get(NFTA_GEN_PROC_NAME).and_then(|name| name.text()).map(str::to_owned);
        if by.as_ref().is_some_and(|by| self.ours.contains(by)) {
            return Ok(None);
        }
        Ok(Some(Change { removed, part, by }))
    }

    /// The object of gantry's tables in a notification, and whether it was removed.
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
    /// For poll(): readable when [`Monitor::wait`] may have a change.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

/// Cuts a process name at 15 bytes, as the kernel does.
fn truncate_comm(name: &str) -> &str {
    let end = (0..=name.len().min(15)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name.get(..end).unwrap_or_default()
}

/// A deadline that never passes.
fn far_future() -> Instant {
    Instant::now() + Duration::from_hours(24 * 365)
}
