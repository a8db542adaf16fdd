//! Netlink messages as bytes: a builder and a parser, shared by rtnetlink and nfnetlink.
//!
//! The format is that of netlink(7): a message is a header of 16 bytes (`nlmsghdr`), a fixed part that depends on the
//! message type, and attributes (`nlattr`: length, type, payload). Every part is aligned to four bytes and in host byte
//! order, except attributes defined as big-endian (those of nftables, and addresses and ports).
//!
//! The parser (`read`) treats the kernel's bytes as untrusted: it validates a level of attributes before it returns
//! any of them, checks lengths before use, and never panics. It reads the attributes that gantry uses and skips all
//! others, so an attribute that a newer kernel adds or extends cannot make an interface of another program
//! unreadable.

use crate::error::Malformed;

mod read;

pub(crate) use read::{Ack, Attribute, Attributes, Message, next_message};
use read::{u16_at, u32_at};

/// Length of `nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Length of `nlattr`.
const ATTRIBUTE: usize = 4;
/// `NLM_F_REQUEST`; set by [`Batch::push`] on every message.
pub(crate) const F_REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: request an acknowledgement.
pub(crate) const F_ACK: u16 = 0x4;
/// `NLM_F_DUMP_INTR`: the tables changed during the dump, which may be inconsistent.
pub(crate) const F_DUMP_INTR: u16 = 0x10;
/// `NLM_F_DUMP` (`NLM_F_ROOT | NLM_F_MATCH`): return all objects.
pub(crate) const F_DUMP: u16 = 0x300;
/// `NLM_F_REPLACE`: replace an existing object.
pub(crate) const F_REPLACE: u16 = 0x100;
/// `NLM_F_EXCL`: fail if the object exists.
pub(crate) const F_EXCL: u16 = 0x200;
/// `NLM_F_CREATE`: create the object if it does not exist.
pub(crate) const F_CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: add the object after the others.
pub(crate) const F_APPEND: u16 = 0x800;
/// `NLM_F_CAPPED`: the acknowledgement quotes only the request's header.
const F_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: the acknowledgement carries attributes (the extended acknowledgement).
const F_ACK_TLVS: u16 = 0x200;

/// Message type: an acknowledgement or an error.
pub(crate) const NLMSG_ERROR: u16 = 2;
/// Message type: the end of a dump.
pub(crate) const NLMSG_DONE: u16 = 3;

/// `NLA_F_NESTED`; with `NLA_F_NET_BYTEORDER` one of the two high bits of an attribute's type.
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
/// A payload that does not fit into its length field makes the batch unusable: [`Batch::finish`] returns the error.
/// No other call fails, so a request is a plain list of calls.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    count: u32,
    too_long: bool,
}

impl Batch {
    /// An empty batch.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds a message of a type, with flags (besides `F_REQUEST`), the fixed part of the type, and attributes.
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

    /// Adds bytes without an attribute header, padded to a multiple of four.
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend_from_slice(bytes);
        self.pad();
        self
    }

    /// Adds an attribute with this payload.
    pub(crate) fn bytes(&mut self, kind: u16, payload: &[u8]) -> &mut Self {
        let start = self.open(kind);
        self.bytes.extend_from_slice(payload);
        self.close(start);
        self
    }

    /// Adds an attribute of one byte.
    pub(crate) fn u8(&mut self, kind: u16, value: u8) -> &mut Self {
        self.bytes(kind, &[value])
    }

    /// Adds an attribute of two bytes in host byte order.
    pub(crate) fn u16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute of four bytes in host byte order.
    pub(crate) fn u32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute of four bytes, signed, in host byte order.
    pub(crate) fn i32(&mut self, kind: u16, value: i32) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute of eight bytes in host byte order.
    pub(crate) fn u64(&mut self, kind: u16, value: u64) -> &mut Self {
        self.bytes(kind, &value.to_ne_bytes())
    }

    /// Adds an attribute of four bytes, big-endian.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Adds a NUL-terminated string, cut at its first NUL.
    pub(crate) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        let start = self.open(kind);
        self.bytes.extend(value.bytes().take_while(|byte| *byte != 0));
        self.bytes.push(0);
        self.close(start);
        self
    }

    /// Adds an attribute that contains attributes.
    pub(crate) fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut Self)) -> &mut Self {
        self.nested_behind(kind | NESTED, &[], inner)
    }

    /// As [`Self::nested`], after a fixed part (VETH_INFO_PEER has one), and without `NLA_F_NESTED`.
    pub(crate) fn nested_behind(&mut self, kind: u16, fixed: &[u8], inner: impl FnOnce(&mut Self)) -> &mut Self {
        let start = self.open(kind);
        self.raw(fixed);
        inner(self);
        self.close(start);
        self
    }

    /// The number of messages.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The bytes to send, with sequence numbers from `first` on, and with the flags `last` added to the last message.
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
