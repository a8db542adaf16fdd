//! What is said to nfnetlink only: transactions, and several questions at once. The socket is [`crate::rtnetlink`]'s.

use std::os::fd::OwnedFd;

use netlink_sys::constants::NETLINK_NETFILTER;
use rustix::io::Errno;

use crate::channel::{self, Channel, Refusal};
use crate::error::{Attempt, Error as NetlinkError, Malformed};
use crate::message::{Batch, F_DUMP, Message, NLMSG_ERROR, next_message};

use super::error::{Error, Result};
use super::family::Family;
use super::wire::{self, Label, Transaction};

/// Opens a socket to the nftables of the network namespace this thread is in. It stays with that one, wherever the thread goes.
pub fn socket() -> Result<OwnedFd> {
    Ok(channel::open(NETLINK_NETFILTER, false)?)
}

/// What became of a question.
pub(super) enum Reply<'a> {
    Message(Message<'a>),
    Failure(Errno),
}

/// Why a transaction was not made.
pub(super) struct Failure {
    pub(super) error: NetlinkError,
    /// What its first message that was refused attempted, if it was one of those.
    pub(super) of: Option<Label>,
}

impl From<NetlinkError> for Failure {
    fn from(error: NetlinkError) -> Self {
        Self { error, of: None }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error.into()
    }
}

impl Channel {
    /// Makes a transaction. The kernel answers when all of it is made, or none.
    pub(super) fn transact(&mut self, transaction: Transaction<'_>, what: &str) -> std::result::Result<(), Failure> {
        let (batch, mut labels) = transaction.finish();
        let first = self.send(batch, 0, what)?;
        let deadline = self.deadline();
        let mut failure = None;
        let mut answered = false;
        loop {
            // Every answer is there once the first is. The first failure is the cause of others.
            let mut rest = match self.received(what)? {
                Some(datagram) => datagram,
                None if answered => return failure.map_or(Ok(()), Err),
                None => self.receive(deadline, what)?,
            };
            while let Some(message) = next_message(&mut rest).attempt(|| what)? {
                if message.kind != NLMSG_ERROR {
                    continue;
                }
                answered = true;
                // The number of the transaction's begin is one before those of its messages.
                let at = message.number.wrapping_sub(first).wrapping_sub(1);
                let refusal = Refusal::from_ack(at, message.ack().attempt(|| what)?);
                if let (None, Some(refusal)) = (&failure, refusal) {
                    let at = at as usize;
                    let of = (at < labels.len()).then(|| labels.swap_remove(at));
                    let error = refusal.error(of.as_ref().map_or(what, |label| label.what.as_str()));
                    failure = Some(Failure { error, of });
                }
            }
        }
    }

    /// Asks questions of which each has one answer.
    pub(super) fn ask(
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
                let refusal = refusal.ok_or(Malformed("an acknowledgement in the place of an answer"));
                each(Reply::Failure(refusal.attempt(|| what)?.errno))?;
            }
        }
        Ok(())
    }

    /// Asks for a list. False if it changed while it was read.
    pub(super) fn list(
        &mut self,
        kind: u16,
        family: Family,
        what: &str,
        attributes: impl FnOnce(&mut Batch),
        mut each: impl FnMut(&Message<'_>) -> Result<()>,
    ) -> Result<bool> {
        let mut batch = Batch::new();
        wire::question(&mut batch, kind, F_DUMP, family, attributes);
        self.dump_once(batch, what, &mut each)
    }
}
