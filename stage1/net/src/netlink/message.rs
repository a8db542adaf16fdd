//! Netlink messages as bytes: a builder and a parser, for rtnetlink and nfnetlink alike.
//!
//! The format is the one of netlink(7): a message is a header of 16 bytes (`nlmsghdr`), a fixed part that depends on its
//! type, and attributes (`nlattr`: length, type, payload). Everything starts at a multiple of four bytes and is in the
//! host's byte order, unless an attribute is defined as big-endian (those of nftables are, and addresses and ports).
//!
//! The parser takes bytes from the kernel, and is written as if they came from an enemy: a level of attributes is
//! checked as a whole before any of it is handed out, lengths are compared before they are used, nothing panics.

use super::error::Malformed;

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

    /// An attribute without a payload: its presence is its meaning.
    pub(crate) fn flag(&mut self, kind: u16) -> &mut Self {
        self.bytes(kind, &[])
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

    /// Two bytes, big-endian.
    pub(crate) fn be16(&mut self, kind: u16, value: u16) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Four bytes, big-endian.
    pub(crate) fn be32(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Eight bytes, big-endian.
    pub(crate) fn be64(&mut self, kind: u16, value: u64) -> &mut Self {
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

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A message that came in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`: the number of the request it answers.
    pub(crate) number: u32,
    /// What follows the header.
    pub(crate) payload: &'a [u8],
}

/// Takes the first message off a datagram and moves on; None at its end.
pub(crate) fn next_message<'a>(datagram: &mut &'a [u8]) -> Result<Option<Message<'a>>, Malformed> {
    let bytes = *datagram;
    if bytes.is_empty() {
        return Ok(None);
    }
    let short = Malformed("a message ends in its header");
    let length = u32_at(bytes, 0).ok_or(short)? as usize;
    let kind = u16_at(bytes, 4).ok_or(short)?;
    let flags = u16_at(bytes, 6).ok_or(short)?;
    let number = u32_at(bytes, 8).ok_or(short)?;
    let payload = bytes.get(HEADER..length).ok_or(Malformed("a message's length is not that of its datagram"))?;
    // The last message's padding may be missing.
    *datagram = bytes.get(align(length)..).unwrap_or_default();
    Ok(Some(Message { kind, flags, number, payload }))
}

impl<'a> Message<'a> {
    /// The fixed part of so many bytes, and the attributes behind it.
    pub(crate) fn split(&self, fixed: usize) -> Result<(&'a [u8], Attributes<'a>), Malformed> {
        let head = self.payload.get(..fixed).ok_or(Malformed("a message ends in its fixed part"))?;
        let rest = self.payload.get(align(fixed)..).unwrap_or_default();
        Ok((head, Attributes::parse(rest)?))
    }

    /// As an acknowledgement: of [`NLMSG_ERROR`], and of [`NLMSG_DONE`], which has one when a dump failed.
    pub(crate) fn ack(&self) -> Result<Ack<'a>, Malformed> {
        let Some(code) = u32_at(self.payload, 0) else {
            // An old kernel's NLMSG_DONE may be bare.
            let bare = self.kind == NLMSG_DONE && self.payload.is_empty();
            return if bare { Ok(Ack::default()) } else { Err(Malformed("an acknowledgement without its code")) };
        };
        let code = code.cast_signed();
        if code > 0 && self.kind == NLMSG_ERROR {
            return Err(Malformed("an acknowledgement with a positive code"));
        }
        let mut ack = Ack { errno: if code < 0 { code.saturating_neg() } else { 0 }, ..Ack::default() };
        if self.flags & F_ACK_TLVS == 0 {
            return Ok(ack);
        }
        let quoted = match self.kind {
            NLMSG_DONE => 0,
            _ if self.flags & F_CAPPED != 0 => HEADER,
            _ => u32_at(self.payload, 4).ok_or(Malformed("an acknowledgement without the request's header"))? as usize,
        };
        let start = 4usize.saturating_add(quoted.saturating_add(3) & !3);
        let rest = self.payload.get(start..).ok_or(Malformed("an acknowledgement shorter than its request"))?;
        for attribute in Attributes::parse(rest)?.iter() {
            match attribute.kind {
                NLMSGERR_ATTR_MSG => ack.text = attribute.text(),
                NLMSGERR_ATTR_OFFS => ack.offset = attribute.u32(),
                _ => {}
            }
        }
        Ok(ack)
    }
}

/// What the kernel says of a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack<'a> {
    /// 0, or a positive error number.
    pub(crate) errno: i32,
    /// Its explanation (the extended acknowledgement); a warning when `errno` is 0.
    pub(crate) text: Option<&'a str>,
    /// Where in the request the trouble is, in bytes from its start.
    pub(crate) offset: Option<u32>,
}

/// One level of attributes, known to be well-formed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Checks this level.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            take(&mut rest).ok_or(Malformed("an attribute's length is not that of its surroundings"))?;
        }
        Ok(Self(bytes))
    }

    /// Each, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || take(&mut rest))
    }

    /// The last one of this type: the kernel too takes the last.
    pub(crate) fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.iter().filter(|attribute| attribute.kind == kind).last()
    }
}

fn take<'a>(rest: &mut &'a [u8]) -> Option<Attribute<'a>> {
    let bytes = *rest;
    let length = usize::from(u16_at(bytes, 0)?);
    let kind = u16_at(bytes, 2)? & TYPE_MASK;
    let payload = bytes.get(ATTRIBUTE..length)?;
    *rest = bytes.get(align(length)..).unwrap_or_default();
    Some(Attribute { kind, payload })
}

/// One attribute. A reader of a width gives None when the payload is shorter than that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    /// Its type, without the two marks.
    pub(crate) kind: u16,
    /// What it holds.
    pub(crate) payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    fn array<const N: usize>(&self) -> Option<[u8; N]> {
        self.payload.first_chunk().copied()
    }

    /// One byte.
    pub(crate) fn u8(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// Two bytes, in the host's order.
    pub(crate) fn u16(&self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Four bytes, in the host's order.
    pub(crate) fn u32(&self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Four bytes with a sign, in the host's order.
    pub(crate) fn i32(&self) -> Option<i32> {
        self.array().map(i32::from_ne_bytes)
    }

    /// Eight bytes, in the host's order.
    pub(crate) fn u64(&self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Two bytes, big-endian.
    pub(crate) fn be16(&self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Four bytes, big-endian.
    pub(crate) fn be32(&self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Eight bytes, big-endian.
    pub(crate) fn be64(&self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A text up to its NUL or its end; None if it is not UTF-8.
    pub(crate) fn text(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|byte| *byte == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(self.payload.get(..end)?).ok()
    }

    /// The attributes within.
    pub(crate) fn nested(&self) -> Result<Attributes<'a>, Malformed> {
        Attributes::parse(self.payload)
    }
}

#[cfg(test)]
mod tests;
