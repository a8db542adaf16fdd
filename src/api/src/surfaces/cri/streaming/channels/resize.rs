//! The resize channel: a sequence of JSON objects, which may be cut anywhere.

use serde::Deserialize;

use super::super::pipe::TerminalSize;

/// Maximum bytes of an object.
const MAX_OBJECT: usize = 1024;

/// Kubernetes' `TerminalSize`.
#[derive(Debug, Deserialize)]
struct SizeObject {
    #[serde(rename = "Width", alias = "width", default)]
    width: u16,
    #[serde(rename = "Height", alias = "height", default)]
    height: u16,
}

/// Parses the channel.
#[derive(Debug, Default)]
pub(super) struct ResizeParser {
    /// The beginning of an object.
    pending: Vec<u8>,
    /// Whether something else than sizes came: the rest of the channel is ignored.
    is_broken: bool,
}

impl ResizeParser {
    /// Adds bytes; returns the last size that is complete now.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Option<TerminalSize> {
        let mut last = None;
        for piece in bytes.chunks(MAX_OBJECT) {
            if self.is_broken {
                break;
            }
            self.pending.extend_from_slice(piece);
            last = self.take_objects().or(last);
            self.is_broken |= self.pending.len() > 2 * MAX_OBJECT;
        }
        if self.is_broken {
            self.pending = Vec::new();
        }
        last
    }

    fn take_objects(&mut self) -> Option<TerminalSize> {
        let mut objects = serde_json::Deserializer::from_slice(&self.pending).into_iter::<SizeObject>();
        let mut last = None;
        for object in objects.by_ref() {
            match object {
                // A terminal without an area is none.
                Ok(SizeObject { width: 0, .. } | SizeObject { height: 0, .. }) => {}
                Ok(SizeObject { width, height }) => last = Some(TerminalSize { columns: width, rows: height }),
                Err(error) if error.is_eof() => break,
                Err(_) => {
                    self.is_broken = true;
                    break;
                }
            }
        }
        let end = objects.byte_offset();
        self.pending.drain(..end.min(self.pending.len()));
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_survive_any_split() {
        let text = b"{\"Width\":100,\"Height\":30}\n{\"width\":7,\"height\":8}\n{\"Width\":0,\"Height\":1}";
        for length in 1..text.len() {
            let mut parser = ResizeParser::default();
            let sizes: Vec<_> = text.chunks(length).filter_map(|piece| parser.add(piece)).collect();
            assert_eq!(sizes.last(), Some(&TerminalSize { columns: 7, rows: 8 }), "{length}");
        }
    }

    #[test]
    fn other_text_ends_the_channel() {
        let size = b"{\"Width\":1,\"Height\":2}";
        for text in [&b"sizes"[..], b"{\"Width\":-1}", b"{\"Width\":70000,\"Height\":1}", &[b' '; 4096], &[b'['; 9000]]
        {
            let mut parser = ResizeParser::default();
            let found = parser.add(text);
            assert!(found.is_none() && parser.pending.len() <= 2 * MAX_OBJECT);
            assert!(text[0] == b' ' || parser.add(size).is_none(), "{}", String::from_utf8_lossy(text));
        }
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(pieces: Vec<Vec<u8>>) {
            let mut parser = ResizeParser::default();
            for piece in pieces {
                let _size = parser.add(&piece);
                proptest::prop_assert!(parser.pending.len() <= 2 * MAX_OBJECT);
            }
        }
    }
}
