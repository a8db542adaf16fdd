//! Netlink messages as bytes: a builder and a parser, for rtnetlink and nfnetlink alike.
//!
//! The format is the one of netlink(7): a message is a header of 16 bytes (`nlmsghdr`), a fixed part that depends on its
//! type, and attributes (`nlattr`: length, type, payload). Everything starts at a multiple of four bytes and is in the
//! host's byte order, unless an attribute is defined as big-endian (those of nftables are, and addresses and ports).
//!
//! The parser (`read`) takes bytes from the kernel, and is written as if they came from an enemy: a level of attributes is
//! checked as a whole before any of it is handed out, lengths are compared before they are used, nothing panics.

use super::error::Malformed;

mod read;

pub(crate) use read::{Ack, Attribute, Attributes, Message, next_message};
use read::{u16_at, u32_at};

/// Length of `nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Length of `nlattr`.
const ATTRIBUTE: usize = 4;
/// A request; set by [`Batch::push`] on every message.
pub(crate) const F_REQUEST: u16 = 0x1;
/// Ask for an acknowledgement.
pub(crate) const F_ACK: u16 = 0x4;
/// The answer to a dump is inconsistent: the tables changed meanwhile.
pub(crate) const F_DUMP_INTR: u16 = 0x10;
/// Of a "get": all of them (`NLM_F_ROOT | NLM_F_MATCH`).
pub(crate) const F_DUMP: u16 = 0x300;
/// Of a "new": replace what exists.
pub(crate) const F_REPLACE: u16 = 0x100;
/// Of a "new": fail if it exists.
pub(crate) const F_EXCL: u16 = 0x200;
/// Of a "new": make it if it does not exist.
pub(crate) const F_CREATE: u16 = 0x400;
/// Of a "new": put it behind the others.
pub(crate) const F_APPEND: u16 = 0x800;
/// Of an acknowledgement: the request is not quoted behind its header.
const F_CAPPED: u16 = 0x100;
/// Of an acknowledgement: attributes with an explanation follow.
const F_ACK_TLVS: u16 = 0x200;

/// Message type: an acknowledgement, or a failure.
pub(crate) const NLMSG_ERROR: u16 = 2;
/// Message type: the end of a dump.
pub(crate) const NLMSG_DONE: u16 = 3;

/// The two high bits of an attribute's type: "it holds attributes" and "big-endian".
const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGERR_ATTR_OFFS: u16 = 2;

/// The next multiple of four.
const fn align(length: usize) -> usize {
    (length + 3) & !3
}

/// One or more messages under construction, sent with one system call.
///
/// A payload that does not fit its length field makes the batch unusable: [`Batch::finish`] says so. No call in between fails,
/// so that requests can be written down as plain lists.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    count: u32,
    too_long: bool,
}

impl Batch {
    /// Without messages.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a message: its type, flags (F_REQUEST is added), the fixed part of its type, and its attributes.
    pub(crate) fn push(&mut self, kind: u16, flags: u16, fixed: &[u8], attributes: impl FnOnce(&mut Self)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&(flags | F_REQUEST).to_ne_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        self.raw(fixed);
        attributes(self);
        let length = u32::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        self.patch(start, &length.to_ne_bytes());
        self.count += 1;
    }

    /// Bytes without an attribute around them, filled up to a multiple of four.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// An attribute of these bytes.
    pub(crate) fn bytes(&mut self, kind: u16, payload: &[u8]) -> &mut Self {
        let start = self.open(kind);
        self.bytes.extend_from_slice(payload);
        self.close(start);
        self
    }

    /// One byte.
    pub(crate) fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    /// Two bytes, in the host's order.
    pub(crate) fn u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Four bytes, in the host's order.
    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Four bytes with a sign, in the host's order.
    pub(crate) fn i32(&mut self, kind: u16, value: i32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Eight bytes, in the host's order.
    pub(crate) fn u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Four bytes, big-endian.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// A text, with the NUL the kernel wants behind it. One that holds a NUL ends there.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let start = self.open(kind);
        self.bytes.extend(value.bytes().take_while(|byte| *byte != 0));
        self.bytes.push(0);
        self.close(start);
        self
    }

    /// Attributes within an attribute.
    pub(crate) fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) -> &mut Self {
        self.nested_behind(kind | NESTED, &[], inner)
    }

    /// As [`Self::nested`], behind a fixed part (the peer of a veth has one), and without the mark that says "nested".
    pub(crate) fn nested_behind(&mut self, kind: u16, fixed: &[u8], inner: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.open(kind);
        self.raw(fixed);
        inner(self);
        self.close(start);
        self
    }

    /// How many messages are in it.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The bytes to send, each message numbered: the first one `first`, and so on. With the flags of `last` added to the
    /// last one.
    pub(crate) fn finish(mut self, first: u32, last: u16) -> Result<Vec<u8>, Malformed> {
        if self.too_long {
            return Err(Malformed("an attribute is too long for its length field"));
        }
        let (mut at, mut number) = (0, first);
        while at < self.bytes.len() {
            let length = u32_at(&self.bytes, at).ok_or(Malformed("a message without a header"))? as usize;
            self.patch(at + 8, &number.to_ne_bytes());
            number = number.wrapping_add(1);
            if at + length >= self.bytes.len() {
                let flags = u16_at(&self.bytes, at + 6).unwrap_or_default() | last;
                self.patch(at + 6, &flags.to_ne_bytes());
            }
            at += align(length.max(HEADER));
        }
        Ok(self.bytes)
    }

    fn open(&mut self, kind: u16) -> usize {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        start
    }

    fn close(&mut self, start: usize) {
        let length = u16::try_from(self.bytes.len() - start).unwrap_or_else(|_| {
            self.too_long = true;
            0
        });
        self.patch(start, &length.to_ne_bytes());
        self.pad();
    }

    fn patch(&mut self, at: usize, value: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }
}

#[cfg(test)]
mod tests;
