//! Keys, from the bytes that a terminal sends in raw mode.

/// The longest sequence of bytes that is one key.
const MAX_SEQUENCE: usize = 8;

/// A key of the live view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TopKey {
    /// A character.
    Character(char),
    /// Ctrl and a letter, in lower case.
    Control(char),
    /// The arrow up.
    Up,
    /// The arrow down.
    Down,
    /// Page up, or the arrow left.
    PageUp,
    /// Page down, or the arrow right.
    PageDown,
    /// Home.
    Home,
    /// End.
    End,
}

/// Splits input into keys. The bytes of one key may arrive in several reads.
#[derive(Debug, Default)]
pub(super) struct KeyReader {
    pending: Vec<u8>,
}

impl KeyReader {
    /// The keys in these bytes and the pending ones. Bytes of no key are skipped.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Vec<TopKey> {
        let mut keys = Vec::new();
        for &byte in bytes {
            self.pending.push(byte);
            match parse(&self.pending) {
                Parsed::Incomplete if self.pending.len() < MAX_SEQUENCE => continue,
                Parsed::Incomplete | Parsed::Unknown => {}
                Parsed::Key(key) => keys.push(key),
            }
            self.pending.clear();
        }
        keys
    }
}

enum Parsed {
    Key(TopKey),
    Incomplete,
    Unknown,
}

/// The sequences are those of xterm: `ESC [` or, in the keypad's application mode, `ESC O`.
fn parse(bytes: &[u8]) -> Parsed {
    match bytes {
        [0x1b] | [0x1b, b'[' | b'O'] | [0x1b, b'[', b'0'..=b'9' | b';'] => Parsed::Incomplete,
        [0x1b, b'[' | b'O', b'A'] => Parsed::Key(TopKey::Up),
        [0x1b, b'[' | b'O', b'B'] => Parsed::Key(TopKey::Down),
        [0x1b, b'[' | b'O', b'C'] | [0x1b, b'[', b'6', b'~'] => Parsed::Key(TopKey::PageDown),
        [0x1b, b'[' | b'O', b'D'] | [0x1b, b'[', b'5', b'~'] => Parsed::Key(TopKey::PageUp),
        [0x1b, b'[' | b'O', b'H'] | [0x1b, b'[', b'1' | b'7', b'~'] => Parsed::Key(TopKey::Home),
        [0x1b, b'[' | b'O', b'F'] | [0x1b, b'[', b'4' | b'8', b'~'] => Parsed::Key(TopKey::End),
        // Parameters of other sequences, up to their final byte.
        [0x1b, b'[', .., b'0'..=b'9' | b';'] => Parsed::Incomplete,
        // Escape, then another key.
        [0x1b, byte] if byte.is_ascii_graphic() => Parsed::Key(TopKey::Character(char::from(*byte))),
        [b'\r'] => Parsed::Key(TopKey::Character('\n')),
        [byte @ 1..=26] => Parsed::Key(TopKey::Control(char::from(byte - 1 + b'a'))),
        [byte @ b' '..=b'~'] => Parsed::Key(TopKey::Character(char::from(*byte))),
        _ => Parsed::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_parsed_across_reads() {
        let mut reader = KeyReader::default();
        let keys = [&b"q\x1b"[..], b"[", b"B\x1b[5~\x1bOA\x1b[1;5Cx\x03\r"].map(|bytes| reader.read(bytes)).concat();
        let want = [
            TopKey::Character('q'),
            TopKey::Down,
            TopKey::PageUp,
            TopKey::Up,
            TopKey::Character('x'),
            TopKey::Control('c'),
            TopKey::Character('\n'),
        ];
        assert_eq!(keys, want);
        assert_eq!(reader.read(b"\xff\x00"), []);
    }
}
