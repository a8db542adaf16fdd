//! Reads DER (ITU-T X.690), as far as certificates need it.

/// SEQUENCE.
pub(super) const SEQUENCE: u8 = 0x30;
/// SET.
pub(super) const SET: u8 = 0x31;
/// OBJECT IDENTIFIER.
pub(super) const OBJECT_IDENTIFIER: u8 = 0x06;

/// The elements of a constructed value, in order.
#[derive(Debug, Clone, Copy)]
pub(super) struct DerReader<'a>(&'a [u8]);

impl<'a> DerReader<'a> {
    /// The elements of these bytes.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The tag and the contents of the next element. `None`: there is none, or it is not DER.
    pub(super) fn read_element(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
            }
            // The indefinite form, which DER forbids, or an element of more than 4 GiB.
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, contents))
    }

    /// The contents of the next element, which must have this tag.
    pub(super) fn read_tagged(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.read_element().filter(|(found, _)| *found == tag).map(|(_, contents)| contents)
    }

    /// The elements of the next one, which must have this tag.
    pub(super) fn enter(&mut self, tag: u8) -> Option<Self> {
        self.read_tagged(tag).map(Self)
    }

    /// The bytes that are not read.
    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }

    /// The tag of the next element.
    pub(super) fn next_tag(self) -> Option<u8> {
        self.0.first().copied()
    }
}
