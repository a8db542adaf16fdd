//! Log lines as people read them: what apps wrote, to our standard output and standard error.

use std::io::{self, Write as _};

use gantry_engine::{LineRef, LogSink};
use gantry_model::AppName;

use crate::relay;

/// So much is written at once, where that much is there.
const CHUNK: usize = 64 << 10;

/// Writes log lines to standard output and standard error as the apps wrote them.
///
/// What is there at once is written at once; nothing is held back while more is waited for.
pub(crate) struct Printer {
    prefixed: bool,
    timestamps: bool,
    /// Whose unfinished line stands on standard output and on standard error.
    open: [Option<AppName>; 2],
    /// Not written yet, and where it goes.
    held: Vec<u8>,
    stderr: bool,
}

impl Printer {
    /// With several apps every line begins with the name of its own.
    pub(crate) fn new(prefixed: bool) -> Self {
        Self { prefixed, timestamps: false, open: [None, None], held: Vec::new(), stderr: false }
    }

    /// The same, with the time before every line.
    pub(crate) fn with_timestamps(self, timestamps: bool) -> Self {
        Self { timestamps, ..self }
    }

    /// Adds one line, or a piece of one, to what is held.
    fn compose(&mut self, line: LineRef<'_>) {
        let open = &mut self.open[usize::from(line.stderr)];
        let goes_on = open.as_ref() == Some(line.app);
        if !goes_on {
            if open.is_some() {
                self.held.push(b'\n');
            }
            if self.prefixed {
                self.held.push(b'[');
                self.held.extend_from_slice(line.app.as_str().as_bytes());
                self.held.extend_from_slice(b"] ");
            }
            if self.timestamps {
                self.held.extend_from_slice(line.at.rfc3339().as_bytes());
                self.held.push(b' ');
            }
        }
        self.held.extend_from_slice(line.text);
        if !line.partial {
            self.held.push(b'\n');
            *open = None;
        } else if !goes_on {
            *open = Some(line.app.clone());
        }
    }
}

impl LogSink for Printer {
    fn line(&mut self, line: LineRef<'_>) -> io::Result<()> {
        if line.stderr != self.stderr {
            // In the order in which they were written, where both go to one place.
            self.flush()?;
            self.stderr = line.stderr;
        }
        self.compose(line);
        if self.held.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = if self.stderr {
            io::stderr().write_all(&self.held)
        } else {
            // Not through `Stdout`, which would hold back pieces without a newline.
            relay::write_all(rustix::stdio::stdout(), &self.held)
        };
        self.held.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(mut printer: Printer, lines: &[(&str, &str, bool)]) -> String {
        for (app, text, partial) in lines {
            let (app, text) = (&app.parse().unwrap(), text.as_bytes());
            let at = gantry_model::Timestamp(0);
            printer.compose(LineRef { app, at, stderr: false, piece: *partial, partial: *partial, text });
        }
        String::from_utf8(printer.held).unwrap()
    }

    #[test]
    fn one_apps_bytes_are_as_it_wrote_them() {
        let lines = [("a", "x", false), ("a", "piece ", true), ("a", "rest", false), ("a", "$ ", true)];
        assert_eq!(printed(Printer::new(false), &lines), "x\npiece rest\n$ ");
        let time = "1970-01-01T00:00:00.000000000Z";
        let want = format!("{time} x\n{time} piece rest\n{time} $ ");
        assert_eq!(printed(Printer::new(false).with_timestamps(true), &lines), want);
    }

    #[test]
    fn with_several_apps_no_line_is_mistaken_for_anothers() {
        let lines = [("a", "x", true), ("a", "y", true), ("b", "z", false), ("a", "w", false), ("b", "", false)];
        assert_eq!(printed(Printer::new(true), &lines), "[a] xy\n[b] z\n[a] w\n[b] \n");
    }
}
