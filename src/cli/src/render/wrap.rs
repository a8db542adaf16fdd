//! Wraps text to a width.

/// Maximum width of help, even on a wider terminal.
const MAX_WIDTH: usize = 100;
/// Minimum width of help, so that words fit.
const MIN_WIDTH: usize = 40;

/// The width of help: that of the terminal, within the limits.
pub(crate) fn help_width() -> usize {
    crate::terminal::size().map_or(MAX_WIDTH, |size| usize::from(size.ws_col).clamp(MIN_WIDTH, MAX_WIDTH))
}

/// Appends a paragraph, each line indented. A word longer than a line stays whole.
pub(crate) fn push(text: &mut String, paragraph: &str, indent: usize, width: usize) {
    let mut column = 0;
    for word in paragraph.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > width {
            text.push('\n');
            column = 0;
        }
        if column == 0 {
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    #[test]
    fn paragraphs() {
        let mut text = String::new();
        super::push(&mut text, "one two three  fourteencharacters x", 2, 12);
        assert_eq!(text, "  one two\n  three\n  fourteencharacters\n  x\n");
    }
}
