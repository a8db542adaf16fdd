//! The line of a key in a JSON text: a parsed value does not know where it stood.

/// One step from a value to a part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// A key of an object.
    Key(String),
    /// An element of a list.
    Index(usize),
}

/// A path as people write it: `plugins[0].ipam.type`.
pub(crate) fn shown(path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) => {
                if !out.is_empty() {
                    out.push('.');
                }
                out.push_str(gantry_model::id::shown(key).as_ref());
            }
            Step::Index(index) => out.push_str(&format!("[{index}]")),
        }
    }
    out
}

/// The line, from 1, of the value at the path, or of the last part of it that exists. The text must be valid JSON; of
/// another the answer is some line. Never panics, and takes time in proportion to the text.
pub(crate) fn line_of(text: &str, path: &[Step]) -> usize {
    let mut scan = Scan { text: text.as_bytes(), at: 0 };
    scan.space();
    let mut found = scan.at;
    for step in path {
        if !scan.enter(step) {
            break;
        }
        found = scan.at;
    }
    let before = text.as_bytes().get(..found).unwrap_or_default();
    1 + before.iter().filter(|&&b| b == b'\n').count()
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_whitespace() || b == b',' || b == b':') {
            self.at += 1;
        }
    }

    /// From the beginning of a value to the beginning of a part of it.
    fn enter(&mut self, step: &Step) -> bool {
        let open = self.peek();
        self.at += 1;
        match (step, open) {
            (Step::Key(key), Some(b'{')) => {
                let mut found = None;
                loop {
                    self.space();
                    let from = self.at;
                    if self.peek() != Some(b'"') {
                        break;
                    }
                    self.string();
                    let name = self.text.get(from..self.at).unwrap_or_default();
                    self.space();
                    if serde_json::from_slice::<String>(name).is_ok_and(|name| &name == key) {
                        // The last of several is the one that counts.
                        found = Some(self.at);
                    }
                    self.skip();
                }
                self.at = found.unwrap_or(self.at);
                found.is_some()
            }
            (Step::Index(index), Some(b'[')) => {
                self.space();
                for _ in 0..*index {
                    self.skip();
                    self.space();
                }
                !matches!(self.peek(), Some(b']') | None)
            }
            _ => false,
        }
    }

    fn string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.peek() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return;
            }
        }
    }

    /// Past a whole value.
    fn skip(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.string();
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    if depth == 0 {
                        return;
                    }
                    depth -= 1;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' => {
                    if depth == 0 {
                        return;
                    }
                    self.at += 1;
                    continue;
                }
                _ => {
                    self.at += 1;
                    if depth == 0 {
                        continue;
                    }
                }
            }
            if depth == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(name: &str) -> Step {
        Step::Key(name.into())
    }

    #[test]
    fn lines() {
        let text = "{\n \"a\": [1,\n {\"b\\\"]}\": 2},\n  {\"c\":\n [true,\n\"x\"]}],\n\"d\": -1.5e3,\n\"e\":null}";
        assert_eq!(line_of(text, &[]), 1);
        assert_eq!(line_of(text, &[key("a")]), 2);
        assert_eq!(line_of(text, &[key("a"), Step::Index(1)]), 3);
        assert_eq!(line_of(text, &[key("a"), Step::Index(1), key("b\"]}")]), 3);
        assert_eq!(line_of(text, &[key("a"), Step::Index(2), key("c"), Step::Index(1)]), 6);
        assert_eq!(line_of(text, &[key("d")]), 7);
        assert_eq!(line_of(text, &[key("e")]), 8);
        assert_eq!(line_of(text, &[key("missing")]), 1);
        assert_eq!(shown(&[key("a"), Step::Index(2), key("c")]), "a[2].c");
    }

    proptest! {
        #[test]
        fn never_panics(text in "[\\[\\]{}\",:\\\\a1 \n]{0,60}", keys in proptest::collection::vec("[a1]", 0..4), index in 0usize..3) {
            let mut path: Vec<Step> = keys.into_iter().map(Step::Key).collect();
            path.push(Step::Index(index));
            let _ = line_of(&text, &path);
        }
    }
}
