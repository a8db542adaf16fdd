//! Requests particular to nfnetlink: transactions, and several queries at once. The socket is that of
//! [`crate::channel`].

use std::os::fd::OwnedFd;

use netlink_sys::constants::NETLINK_NETFILTER;
use rustix::io::Errno;

use crate::channel::{self, Channel, Refusal};
use crate::error::{Attempt, Error as NetlinkError, Malformed};
use crate::message::{Batch, F_DUMP, Message, NLMSG_ERROR, next_message};

use super::error::{Error, Result};
use super::wire::{self, Label, Transaction};

/// Opens an nfnetlink socket in the calling thread's network namespace, to which it stays bound.
///
/// # Errors
/// If socket() fails.
pub fn socket() -> Result<OwnedFd> {
    Ok(channel::open(NETLINK_NETFILTER, false)?)
}

/// The reply to a query.
pub(super) enum Reply<'a> {
    Message(Message<'a>),
    Failure(Errno),
}

/// Why a transaction failed.
pub(super) struct Failure {
    pub(super) error: NetlinkError,
    /// The first rejected message, if the kernel rejected one.
    pub(super) label: Option<Label>,
}

impl From<NetlinkError> for Failure {
    fn from(error: NetlinkError) -> Self {
        Self { error, label: None }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error.into()
    }
}

impl Channel {
    /// Commits a transaction. The kernel replies after it applied all of it, or nothing.
    pub(super) fn transact(&mut self, transaction: Transaction<'_>, what: &str) -> std::result::Result<(), Failure> {
        let (batch, mut labels) = transaction.finish();
        let first = self.send(batch, 0, what)?;
        let deadline = self.deadline();
        let mut failure = None;
        let mut answered = false;
        loop {
            // The kernel queues all replies before the first can be read. The first error causes the others.
            let mut rest = match self.try_receive(what)? {
                Some(datagram) => datagram,
                None if answered => return failure.map_or(Ok(()), Err),
                None => self.receive(deadline, what)?,
            };
            while let Some(message) = next_message(&mut rest).attempt(|| what)? {
                if message.kind != NLMSG_ERROR {
                    continue;
                }
                answered = true;
                // The message that begins the transaction has the sequence number before its messages.
                let at = message.number.wrapping_sub(first).wrapping_sub(1);
                let refusal = Refusal::from_ack(at, message.ack().attempt(|| what)?);
                if let (None, Some(refusal)) = (&failure, refusal) {
                    let at = at as usize;
                    let label = (at < labels.len()).then(|| labels.swap_remove(at));
                    let error = refusal.error(label.as_ref().map_or(what, |label| label.what.as_str()));
                    failure = Some(Failure { error, label });
                }
            }
        }
    }

    /// Sends queries with one reply each.
    pub(super) fn query(
        &mut self,
        batch: Batch,
        what: &str,
        mut each: impl FnMut(Reply<'_>) -> Result<()>,
    ) -> Result<()> {
        let count = batch.count();
        let first = self.send(batch, 0, what)?;
        let deadline = self.deadline();
        let mut missing = count;
        while missing > 0 {
            let mut rest = self.receive(deadline, what)?;
            while let Some(message) = next_message(&mut rest).attempt(|| what)? {
                if message.number.wrapping_sub(first) >= count {
                    continue;
                }
                missing = missing.saturating_sub(1);
                if message.kind != NLMSG_ERROR {
                    each(Reply::Message(message))?;
                    continue;
                }
                let refusal = Refusal::from_ack(0, message.ack().attempt(|| what)?);
                let refusal = refusal.ok_or(Malformed("an acknowledgement in place of a reply"));
                each(Reply::Failure(refusal.attempt(|| what)?.errno))?;
            }
        }
        Ok(())
    }

    /// Sends a dump request for a family by its number (`NFPROTO_*`). False if a change interrupted the dump.
    pub(super) fn list(
        &mut self,
        kind: u16,
        family: u8,
        what: &str,
        attributes: impl FnOnce(&mut Batch),
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<bool> {
        let mut batch = Batch::new();
        wire::write_query(&mut batch, kind, F_DUMP, family, attributes);
        self.dump_once(batch, what, &mut each)
    }
}
