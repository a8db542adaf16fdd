//! Prints log lines as the apps wrote them: their standard output to ours, their standard error to ours.

use std::io;

use gantry_engine::{LineRef, LogSink};
use gantry_model::AppName;

use crate::{relay, terminal};

/// Lines are collected up to this size, then written at once.
const CHUNK: usize = 64 << 10;

/// The foreground colours of prefixes (ECMA-48, select graphic rendition): cyan, yellow, green, magenta, blue, red.
const COLORS: [&str; 6] = ["36", "33", "32", "35", "34", "31"];

/// Writes log lines to standard output and standard error. [`LogSink::flush`] writes what was collected, so no line is
/// held back while the caller waits for more.
pub(crate) struct Printer {
    prefixed: bool,
    timestamps: bool,
    /// Whether prefixes on standard output and on standard error are coloured.
    colored: [bool; 2],
    /// Whether standard output and standard error are the same terminal, where they share the current line.
    shared: bool,
    /// The apps seen so far: each has the colour of its index.
    apps: Vec<AppName>,
    /// The app, and its stream, whose unfinished line is the last one on standard output and on standard error.
    open: [Option<(AppName, bool)>; 2],
    /// Lines not written yet; they go to standard error if `stderr` is set.
    held: Vec<u8>,
    stderr: bool,
    #[cfg(test)]
    memory: Option<Vec<u8>>,
}

impl Printer {
    /// A printer for lines of several apps (`prefixed`: each line begins with the app's name) or of one.
    pub(crate) fn new(prefixed: bool) -> Self {
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        Self {
            prefixed,
            timestamps: false,
            colored: [stdout, stderr].map(|fd| prefixed && terminal::has_colors(fd)),
            shared: prefixed && terminal::is_same(stdout, stderr),
            apps: Vec::new(),
            open: [None, None],
            held: Vec::new(),
            stderr: false,
            #[cfg(test)]
            memory: None,
        }
    }

    /// The same, with the time before every line.
    pub(crate) fn with_timestamps(self, timestamps: bool) -> Self {
        Self { timestamps, ..self }
    }

    /// Notes that the last line of an app was printed without its end, by other means.
    pub(crate) fn resume(&mut self, app: &AppName, stderr: bool) {
        self.open[usize::from(stderr && !self.shared)] = Some((app.clone(), stderr));
    }

    /// Collects one line or part of a line.
    fn compose(&mut self, line: LineRef<'_>) {
        let slot = usize::from(line.stderr && !self.shared);
        let continues = self.open[slot].as_ref().is_some_and(|(app, stderr)| app == line.app && *stderr == line.stderr);
        if !continues {
            if self.open[slot].is_some() {
                self.held.push(b'\n');
            }
            if self.prefixed {
                self.prefix(line.app, line.stderr);
            }
            if self.timestamps {
                self.held.extend_from_slice(line.at.rfc3339().as_bytes());
                self.held.push(b' ');
            }
        }
        self.held.extend_from_slice(line.text);
        if !line.partial {
            self.held.push(b'\n');
            self.open[slot] = None;
        } else if !continues {
            self.open[slot] = Some((line.app.clone(), line.stderr));
        }
    }

    fn prefix(&mut self, app: &AppName, stderr: bool) {
        let colored = self.colored[usize::from(stderr)];
        if colored {
            let index = self.apps.iter().position(|known| known == app).unwrap_or_else(|| {
                self.apps.push(app.clone());
                self.apps.len() - 1
            });
            self.held.extend_from_slice(format!("\x1b[{}m", COLORS[index % COLORS.len()]).as_bytes());
        }
        self.held.push(b'[');
        self.held.extend_from_slice(app.as_str().as_bytes());
        self.held.push(b']');
        if colored {
            self.held.extend_from_slice(b"\x1b[0m");
        }
        self.held.push(b' ');
    }

    fn write_held(&mut self) -> io::Result<()> {
        #[cfg(test)]
        if let Some(memory) = &mut self.memory {
            memory.extend_from_slice(&self.held);
            return Ok(());
        }
        relay::write_output(self.stderr, &self.held)
    }
}

impl LogSink for Printer {
    fn line(&mut self, line: LineRef<'_>) -> io::Result<()> {
        if line.stderr != self.stderr {
            // Keeps the order of the lines if both streams go to the same place.
            self.flush()?;
            self.stderr = line.stderr;
        }
        self.compose(line);
        if self.held.len() >= CHUNK { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.write_held();
        self.held.clear();
        written
    }
}

#[cfg(test)]
impl Printer {
    /// A printer with prefixes that keeps what it prints.
    pub(crate) fn in_memory() -> Self {
        Self { memory: Some(Vec::new()), colored: [false; 2], shared: false, ..Self::new(true) }
    }

    pub(crate) fn written(&self) -> &str {
        std::str::from_utf8(self.memory.as_deref().unwrap_or_default()).unwrap()
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
    fn the_bytes_of_a_single_app_are_unchanged() {
        let lines = [("a", "x", false), ("a", "piece ", true), ("a", "rest", false), ("a", "$ ", true)];
        assert_eq!(printed(Printer::new(false), &lines), "x\npiece rest\n$ ");
        let time = "1970-01-01T00:00:00.000000000Z";
        let want = format!("{time} x\n{time} piece rest\n{time} $ ");
        assert_eq!(printed(Printer::new(false).with_timestamps(true), &lines), want);
    }

    #[test]
    fn lines_of_several_apps_are_kept_apart() {
        let lines = [("a", "x", true), ("a", "y", true), ("b", "z", false), ("a", "w", false), ("b", "", false)];
        assert_eq!(printed(Printer::in_memory(), &lines), "[a] xy\n[b] z\n[a] w\n[b] \n");
    }

    #[test]
    fn prefixes_have_a_colour_for_each_app() {
        let lines = [("a", "x", false), ("b", "y", false), ("a", "z", false)];
        let colored = Printer { colored: [true, false], ..Printer::in_memory() };
        let want = "\x1b[36m[a]\x1b[0m x\n\x1b[33m[b]\x1b[0m y\n\x1b[36m[a]\x1b[0m z\n";
        assert_eq!(printed(colored, &lines), want);
    }

    #[test]
    fn both_streams_share_the_line_of_a_terminal() {
        let app = "a".parse().unwrap();
        for (shared, want) in [(true, "[a] x\n[a] y\n"), (false, "[a] x[a] y\n")] {
            let mut printer = Printer { shared, ..Printer::in_memory() };
            for (stderr, partial, text) in [(false, true, b"x"), (true, false, b"y")] {
                let at = gantry_model::Timestamp(0);
                printer.line(LineRef { app: &app, at, stderr, piece: partial, partial, text }).unwrap();
            }
            printer.flush().unwrap();
            assert_eq!(printer.written(), want);
        }
    }
}
