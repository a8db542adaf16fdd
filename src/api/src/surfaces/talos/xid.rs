//! Ids of events: xids (github.com/rs/xid), which sort by time. 12 bytes: seconds since 1970, then the position of the
//! message, both big-endian; as text, 20 characters of base32hex in lower case (RFC 4648, section 7).
//!
//! The time of events never decreases, so ids sort by position.

use gantry_model::Timestamp;

const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// Bytes of an id.
const BYTES: usize = 12;
/// Characters of an id.
const LENGTH: usize = 20;

/// The position of a message in the history: an event makes up to two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventPosition {
    /// The number of the event, less than 2⁶³ as all integers of SQLite.
    pub(super) seq: u64,
    /// Whether it is the second message of the event.
    pub(super) is_second: bool,
}

impl EventPosition {
    /// The position after all messages of this event and of earlier ones.
    pub(super) fn after(seq: u64) -> Self {
        Self { seq, is_second: true }
    }
}

/// The id of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Xid([u8; BYTES]);

impl Xid {
    /// The id of the message at this position, whose event has this time.
    pub(super) fn new(at: Timestamp, position: EventPosition) -> Self {
        let number = position.seq << 1 | u64::from(position.is_second);
        let seconds = u32::try_from(at.seconds().max(0)).unwrap_or(u32::MAX);
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&seconds.to_be_bytes());
        bytes[4..].copy_from_slice(&number.to_be_bytes());
        Self(bytes)
    }

    /// Parses the text of an id; `None`: it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() != LENGTH {
            return None;
        }
        let mut bits: u128 = 0;
        for digit in text.bytes() {
            let value = DIGITS.iter().position(|known| *known == digit)?;
            bits = bits << 5 | value as u128;
        }
        // 100 bits: the last four are padding.
        let bytes = (bits >> 4).to_be_bytes();
        let mut id = [0; BYTES];
        id.copy_from_slice(&bytes[16 - BYTES..]);
        Some(Self(id))
    }

    /// The position of the message.
    pub(super) fn position(self) -> EventPosition {
        let mut number = [0; 8];
        number.copy_from_slice(&self.0[4..]);
        let number = u64::from_be_bytes(number);
        EventPosition { seq: number >> 1, is_second: number & 1 == 1 }
    }
}

impl std::fmt::Display for Xid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = [0; 16];
        bytes[16 - BYTES..].copy_from_slice(&self.0);
        let bits = u128::from_be_bytes(bytes) << 4;
        for place in (0..LENGTH).rev() {
            let digit = DIGITS[(bits >> (5 * place) & 31) as usize];
            write!(f, "{}", char::from(digit))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_follow_rs_xid() {
        // The example of github.com/rs/xid.
        let id = Xid::parse("9m4e2mr0ui3e8a215n4g").unwrap();
        assert_eq!(id.0, [0x4d, 0x88, 0xe1, 0x5b, 0x60, 0xf4, 0x86, 0xe4, 0x28, 0x41, 0x2d, 0xc9]);
        assert_eq!(id.to_string(), "9m4e2mr0ui3e8a215n4g");
        for bad in ["", "9m4e2mr0ui3e8a215n4", "9m4e2mr0ui3e8a215n4g0", "zzzzzzzzzzzzzzzzzzzz", "9M4E2MR0UI3E8A215N4G"]
        {
            assert_eq!(Xid::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn texts_are_parsed_back_and_sort(
            one in (0..=u32::MAX, 0..1u64 << 63, any::<bool>()),
            other in (0..=u32::MAX, 0..1u64 << 63, any::<bool>()),
        ) {
            let id = |(seconds, seq, is_second): (u32, u64, bool)| {
                Xid::new(Timestamp(i64::from(seconds) * 1_000_000_000), EventPosition { seq, is_second })
            };
            let (a, b) = (id(one), id(other));
            prop_assert_eq!(Xid::parse(&a.to_string()), Some(a));
            prop_assert_eq!(a.position(), EventPosition { seq: one.1, is_second: one.2 });
            prop_assert_eq!(a.cmp(&b), one.cmp(&other));
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
        }

        // The last digit has four bits of padding.
        #[test]
        fn any_digits_are_an_id(text in "[0-9a-v]{20}") {
            let id = Xid::parse(&text).unwrap();
            let printed = id.to_string();
            prop_assert_eq!(&printed[..LENGTH - 1], &text[..LENGTH - 1]);
            prop_assert_eq!(Xid::parse(&printed), Some(id));
        }

        #[test]
        fn parser_never_panics(text: String) {
            let _parsed = Xid::parse(&text);
        }
    }
}
