//! What gantryd says: plain lines on standard error, with their level first. Whoever runs it adds the time.

use std::io::Write as _;

/// Something was done.
pub(crate) fn info(text: &str) {
    write("info", text);
}

/// Something could not be done and will be tried again.
pub(crate) fn warning(text: &str) {
    write("warning", text);
}

/// Something could not be done.
pub(crate) fn error(text: &str) {
    write("error", text);
}

/// One system call per line, so that the lines of two threads do not mix. Failing has nowhere to be said.
fn write(level: &str, text: &str) {
    let _ = std::io::stderr().write_all(line(level, text).as_bytes());
}

/// The line, whatever is in the text: names and messages come from images and users.
fn line(level: &str, text: &str) -> String {
    let mut line = format!("{level}: ");
    for c in text.chars() {
        let hidden =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if c.is_control() || hidden { line.extend(c.escape_unicode()) } else { line.push(c) }
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_and_commands_no_terminal() {
        assert_eq!(line("info", "pod ü runs"), "info: pod ü runs\n");
        assert_eq!(line("error", "a\nb\u{1b}[31m\u{202e}"), "error: a\\u{a}b\\u{1b}[31m\\u{202e}\n");
    }
}
