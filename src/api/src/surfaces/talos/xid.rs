//! Ids of events: xids (github.com/rs/xid), which sort by time. 12 bytes: seconds since 1970, then the number of the
//! event, both big-endian; as text, 20 characters of base32hex in lower case (RFC 4648, section 7).
//!
//! The time of events never decreases, so ids sort by number.

use gantry_engine::model::Timestamp;

const DIGITS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
/// Bytes of an id.
const BYTES: usize = 12;
/// Characters of an id.
const LENGTH: usize = 20;

/// The id of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Xid([u8; BYTES]);

impl Xid {
    /// The id of the event with this time and number.
    pub(super) fn new(at: Timestamp, seq: u64) -> Self {
        let seconds = u32::try_from(at.seconds().max(0)).unwrap_or(u32::MAX);
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&seconds.to_be_bytes());
        bytes[4..].copy_from_slice(&seq.to_be_bytes());
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

    /// The number of the event.
    pub(super) fn seq(self) -> u64 {
        let mut seq = [0; 8];
        seq.copy_from_slice(&self.0[4..]);
        u64::from_be_bytes(seq)
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
        fn texts_are_parsed_back_and_sort(one in (0..=u32::MAX, any::<u64>()), other in (0..=u32::MAX, any::<u64>())) {
            let id = |(seconds, seq): (u32, u64)| Xid::new(Timestamp(i64::from(seconds) * 1_000_000_000), seq);
            let (a, b) = (id(one), id(other));
            prop_assert_eq!(Xid::parse(&a.to_string()), Some(a));
            prop_assert_eq!(a.seq(), one.1);
            prop_assert_eq!(a.cmp(&b), one.cmp(&other));
            prop_assert_eq!(a.to_string().cmp(&b.to_string()), a.cmp(&b));
        }

        #[test]
        fn parser_never_panics(text: String) {
            let _parsed = Xid::parse(&text);
        }
    }
}
