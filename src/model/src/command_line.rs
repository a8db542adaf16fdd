//! Command lines as systemd's `ExecStart=` has them (systemd.service(5), "COMMAND LINES"): words between white space,
//! quotes, and C escapes. No shell is involved.
//!
//! Not taken from systemd: specifiers (`%i`), prefixes of the program (`-/bin/x`) and several commands (`;`) are
//! refused by name, and `$VAR` is a word like any other. POSIX splitters (crate `shlex`) differ in their escapes.

use std::fmt::Write as _;
use std::iter::Peekable;
use std::str::Chars;

use crate::spec::SpecError;

/// The maximum length of a command line, in bytes. The kernel accepts no longer argument.
pub const MAX_COMMAND_LINE: usize = 128 << 10;
/// The prefixes of a program that systemd knows.
const PREFIXES: [char; 6] = ['@', '-', ':', '+', '!', '|'];

/// Splits a command line into the program and its arguments.
///
/// # Errors
/// [`SpecError`]: it is empty or too long, a quote is not closed, an escape is unknown, or it has something that is
/// refused.
pub fn split_command(line: &str) -> Result<Vec<String>, SpecError> {
    if line.len() > MAX_COMMAND_LINE {
        return Err(SpecError::new(format!("the command is longer than {MAX_COMMAND_LINE} bytes")));
    }
    let mut splitter = Splitter { rest: line.trim_start().chars().peekable(), words: Vec::new() };
    if let Some(prefix) = splitter.rest.peek().filter(|first| PREFIXES.contains(first)) {
        return Err(SpecError::new(format!("the prefix '{prefix}' of the program is not supported")));
    }
    while splitter.skip_white_space() {
        let word = splitter.word()?;
        splitter.words.push(word);
    }
    match splitter.words.first() {
        None => Err(SpecError::new("the command is empty")),
        Some(program) if program.is_empty() => Err(SpecError::new("the program of the command is empty")),
        Some(_) => Ok(splitter.words),
    }
}

struct Splitter<'a> {
    rest: Peekable<Chars<'a>>,
    words: Vec<String>,
}

/// The white space between words.
fn is_separator(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

impl Splitter<'_> {
    /// Whether another word follows.
    fn skip_white_space(&mut self) -> bool {
        while self.rest.next_if(|c| is_separator(*c)).is_some() {}
        self.rest.peek().is_some()
    }

    fn word(&mut self) -> Result<String, SpecError> {
        let mut word = String::new();
        // A bare ';' separates commands; a quoted or escaped one does not.
        let mut is_bare = true;
        let mut quote = None;
        while let Some(c) = self.rest.next_if(|c| quote.is_some() || !is_separator(*c)) {
            match c {
                '\0' => return Err(SpecError::new("the command has a NUL character")),
                _ if quote == Some(c) => quote = None,
                '"' | '\'' if quote.is_none() => {
                    is_bare = false;
                    quote = Some(c);
                }
                '\\' => {
                    is_bare = false;
                    word.push(self.escape()?);
                }
                '%' => {
                    self.percent()?;
                    word.push('%');
                }
                c => word.push(c),
            }
        }
        match quote {
            Some(quote) => Err(SpecError::new(format!("the quote {quote} is not closed"))),
            None if is_bare && word == ";" => {
                Err(SpecError::new("the command has a ';' between words: write it as '\\;', or give one command only"))
            }
            None => Ok(word),
        }
    }

    /// The second half of `%%`.
    fn percent(&mut self) -> Result<(), SpecError> {
        match self.rest.next() {
            Some('%') => Ok(()),
            Some(c) if !c.is_control() => {
                Err(SpecError::new(format!("the specifier '%{c}' is not supported: write a percent sign as '%%'")))
            }
            _ => Err(SpecError::new("a percent sign is written as '%%'")),
        }
    }

    /// The character of an escape, after the backslash.
    fn escape(&mut self) -> Result<char, SpecError> {
        let Some(c) = self.rest.next() else { return Err(SpecError::new("the command ends with a backslash")) };
        Ok(match c {
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            's' => ' ',
            '\\' | '"' | '\'' | ';' => c,
            'x' => self.numeric(c, 2, 16, 0)?,
            'u' => self.numeric(c, 4, 16, 0)?,
            'U' => self.numeric(c, 8, 16, 0)?,
            '0'..='7' => self.numeric(c, 2, 8, c.to_digit(8).unwrap_or_default())?,
            c if !c.is_control() => return Err(SpecError::new(format!("the escape '\\{c}' is unknown"))),
            _ => return Err(SpecError::new("a backslash precedes a control character")),
        })
    }

    /// A character by its number, of which this many digits follow.
    fn numeric(&mut self, escape: char, digits: usize, radix: u32, first: u32) -> Result<char, SpecError> {
        let invalid = |why: &str| SpecError::new(format!("the escape '\\{escape}…' {why}"));
        let mut number = first;
        for _ in 0..digits {
            let digit = self.rest.next().and_then(|c| c.to_digit(radix));
            let digit = digit.ok_or_else(|| invalid(&format!("needs {digits} digits of base {radix}")))?;
            number = number.checked_mul(radix).and_then(|n| n.checked_add(digit)).unwrap_or(u32::MAX);
        }
        // A byte of \x and of an octal number is no character beyond ASCII.
        let is_byte = !matches!(escape, 'u' | 'U');
        if is_byte && number > 0x7f {
            return Err(invalid("is beyond ASCII: write the character itself or '\\u…'"));
        }
        char::from_u32(number).filter(|c| *c != '\0').ok_or_else(|| invalid("is no character"))
    }
}

/// The command line of these words: [`split_command`] gives them back.
#[must_use]
pub fn quote_command(words: &[String]) -> String {
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        quote_word(word, &mut line);
    }
    line
}

fn quote_word(word: &str, line: &mut String) {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '/' | '=' | ',' | '$' | '{' | '}');
    let is_plain_inside = |c: char| is_plain(c) || PREFIXES.contains(&c);
    if word.starts_with(is_plain) && word.chars().all(is_plain_inside)
        || !line.is_empty() && !word.is_empty() && word.chars().all(is_plain_inside)
    {
        line.push_str(word);
        return;
    }
    line.push('"');
    for c in word.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            '%' => line.push_str("%%"),
            '\n' => line.push_str("\\n"),
            '\t' => line.push_str("\\t"),
            c if c.is_ascii_control() => {
                // Writing to a string does not fail.
                let _infallible = write!(line, "\\x{:02x}", u32::from(c));
            }
            c => line.push(c),
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn words_are_split_as_by_systemd() {
        let rows: [(&str, &[&str]); 13] = [
            ("echo hi", &["echo", "hi"]),
            ("  echo \t hi\n there ", &["echo", "hi", "there"]),
            ("echo echo hi", &["echo", "echo", "hi"]),
            ("echo 'Hello World!'", &["echo", "Hello World!"]),
            (r#"echo "a b"c '' """#, &["echo", "a bc", "", ""]),
            (r#"echo "it's" 'say "x"'"#, &["echo", "it's", "say \"x\""]),
            (r"echo a\sb \x41\101 \u00fc \\ \' \;", &["echo", "a b", "AA", "ü", "\\", "'", ";"]),
            (r"echo 'a\tb'", &["echo", "a\tb"]),
            ("echo 100%% $HOME ${X} a;b ';'", &["echo", "100%", "$HOME", "${X}", "a;b", ";"]),
            ("/bin/x -v +1 @y", &["/bin/x", "-v", "+1", "@y"]),
            ("'-x' y", &["-x", "y"]),
            ("ü ö", &["ü", "ö"]),
            ("x # y", &["x", "#", "y"]),
        ];
        for (line, words) in rows {
            assert_eq!(
                split_command(line).as_deref().ok(),
                Some(&words.iter().map(ToString::to_string).collect::<Vec<_>>()[..]),
                "{line}"
            );
        }
    }

    #[test]
    fn unsupported_parts_are_refused_by_name() {
        let rows = [
            ("", "empty"),
            (" \t", "empty"),
            ("'' x", "program of the command is empty"),
            ("echo 'a", "quote ' is not closed"),
            ("echo \"a", "quote \" is not closed"),
            ("echo %i", "'%i'"),
            ("echo %", "'%%'"),
            ("-/bin/x", "prefix '-'"),
            ("!!x", "prefix '!'"),
            ("a ; b", "';'"),
            (r"echo \q", r"'\q'"),
            (r"echo \", "backslash"),
            (r"echo \x4", "2 digits"),
            (r"echo \xff", "beyond ASCII"),
            (r"echo \x00", "no character"),
            (r"echo \ud800", "no character"),
            ("echo a\0b", "NUL"),
        ];
        for (line, part) in rows {
            let error = split_command(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line:?}: {error}");
        }
        assert!(split_command(&"x".repeat(MAX_COMMAND_LINE + 1)).is_err());
    }

    proptest! {
        #[test]
        fn quoted_words_are_split_again(words in proptest::collection::vec("[^\0]{0,8}", 1..6)) {
            prop_assume!(!words[0].is_empty());
            let line = quote_command(&words);
            prop_assert_eq!(split_command(&line).map_err(|error| error.to_string()), Ok(words));
        }

        #[test]
        fn splitting_never_panics(line: String, odd in "[\\\\%'\"; x0-9uU@-]{0,24}") {
            let _ = (split_command(&line), split_command(&odd));
        }
    }
}
