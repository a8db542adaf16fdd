//! Parses messages. Nothing here panics, whatever the bytes.

use super::{
    ATTRIBUTE, F_ACK_TLVS, F_CAPPED, HEADER, NLMSG_DONE, NLMSG_ERROR, NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS, TYPE_MASK,
    align,
};
use crate::error::Malformed;

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// A received message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    /// `nlmsg_type`.
    pub(crate) kind: u16,
    /// `nlmsg_flags`.
    pub(crate) flags: u16,
    /// `nlmsg_seq`: the sequence number of the request.
    pub(crate) number: u32,
    /// The bytes after the header.
    pub(crate) payload: &'a [u8],
}

/// Removes the first message from a datagram; None at the end.
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
    // The last message may lack its padding.
    *datagram = bytes.get(align(length)..).unwrap_or_default();
    Ok(Some(Message { kind, flags, number, payload }))
}

impl<'a> Message<'a> {
    /// Splits the payload into a fixed part of `fixed` bytes and the attributes after it.
    pub(crate) fn split(&self, fixed: usize) -> Result<(&'a [u8], Attributes<'a>), Malformed> {
        let head = self.payload.get(..fixed).ok_or(Malformed("a message ends in its fixed part"))?;
        let rest = self.payload.get(align(fixed)..).unwrap_or_default();
        Ok((head, Attributes::parse(rest)?))
    }

    /// Parses an [`NLMSG_ERROR`], or an [`NLMSG_DONE`], which carries an error if the dump failed.
    pub(crate) fn ack(&self) -> Result<Ack<'a>, Malformed> {
        let Some(code) = u32_at(self.payload, 0) else {
            // Old kernels send NLMSG_DONE without a payload.
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

/// The kernel's acknowledgement of a request.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack<'a> {
    /// 0, or a positive error number.
    pub(crate) errno: i32,
    /// The text of the extended acknowledgement; a warning if `errno` is 0.
    pub(crate) text: Option<&'a str>,
    /// The offset of the offending attribute in the request, in bytes.
    pub(crate) offset: Option<u32>,
}

/// One level of attributes, validated.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Validates one level.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut rest = bytes;
        while !rest.is_empty() {
            next_attribute(&mut rest).ok_or(Malformed("an attribute's length is not that of its surroundings"))?;
        }
        Ok(Self(bytes))
    }

    /// The attributes in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Attribute<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || next_attribute(&mut rest))
    }

    /// The last attribute of this type, as the kernel does (`nla_parse`).
    pub(crate) fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.iter().filter(|attribute| attribute.kind == kind).last()
    }
}

fn next_attribute<'a>(rest: &mut &'a [u8]) -> Option<Attribute<'a>> {
    let bytes = *rest;
    let length = usize::from(u16_at(bytes, 0)?);
    let kind = u16_at(bytes, 2)? & TYPE_MASK;
    let payload = bytes.get(ATTRIBUTE..length)?;
    *rest = bytes.get(align(length)..).unwrap_or_default();
    Some(Attribute { kind, payload })
}

/// One attribute. The accessors return None if the payload is too short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    /// The type, without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
    pub(crate) kind: u16,
    /// The payload.
    pub(crate) payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    fn array<const N: usize>(&self) -> Option<[u8; N]> {
        self.payload.first_chunk().copied()
    }

    /// The first byte.
    pub(crate) fn u8(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// Two bytes in host byte order.
    pub(crate) fn u16(&self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    /// Four bytes in host byte order.
    pub(crate) fn u32(&self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    /// Four bytes, signed, in host byte order.
    pub(crate) fn i32(&self) -> Option<i32> {
        self.array().map(i32::from_ne_bytes)
    }

    /// Eight bytes in host byte order.
    pub(crate) fn u64(&self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    /// Four bytes, big-endian.
    pub(crate) fn be32(&self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// A string up to its NUL or the end of the payload; None if it is not UTF-8.
    pub(crate) fn text(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|byte| *byte == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(self.payload.get(..end)?).ok()
    }

    /// The nested attributes.
    pub(crate) fn nested(&self) -> Result<Attributes<'a>, Malformed> {
        Attributes::parse(self.payload)
    }
}
