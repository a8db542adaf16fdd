//! Escapes text for output: names, paths and labels come from images and users, and could contain terminal escape
//! sequences.

use std::borrow::Cow;

/// The text with control characters (also of the C1 range), line separators and bidirectional controls escaped.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|c| (b' '..0x7f).contains(&c)) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) { out.extend(c.escape_unicode()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn terminal_control_sequences_are_escaped() {
        for (input, want) in [
            ("plain text", "plain text"),
            ("überall 🚀", "überall 🚀"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("a\nb\tc\0", "a\\u{a}b\\u{9}c\\u{0}"),
            ("\u{202e}gpj.exe", "\\u{202e}gpj.exe"),
            ("\u{9b}31m", "\\u{9b}31m"),
        ] {
            assert_eq!(super::text(input), want);
        }
    }

    proptest! {
        #[test]
        fn escaped_text_has_no_control_characters(input: String) {
            prop_assert!(!super::text(&input).chars().any(super::is_control));
        }
    }
}
