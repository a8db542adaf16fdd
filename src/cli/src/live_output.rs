//! Prints the output of a pod's apps to standard output and standard error while they write it.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use gantry_engine::{Chunk, LineRef, LogSink as _, OutputError, OutputStream};
use gantry_model::AppName;

use crate::failure::{Failure, output};
use crate::printer::Printer;
use crate::relay;

/// With several apps, a line longer than this is printed in parts.
const MAX_LINE: usize = 16 << 10;

/// With several apps, the beginning of a line is printed when its end has not come after this time: it may be a prompt.
const PARTIAL_LINE_TIMEOUT: Duration = Duration::from_millis(200);

/// The names of a pod's apps by their numbers in its output.
pub(crate) struct AppNames<'a> {
    known: BTreeMap<usize, AppName>,
    /// Looks up an app that was added later, given those that are known.
    look_up: &'a LookUp<'a>,
}

type LookUp<'a> = dyn Fn(usize, &BTreeMap<usize, AppName>) -> Option<AppName> + 'a;

impl<'a> AppNames<'a> {
    pub(crate) fn new(known: BTreeMap<usize, AppName>, look_up: &'a LookUp<'a>) -> Self {
        Self { known, look_up }
    }

    /// The number of the app, if only one is known.
    fn only(&self) -> Option<usize> {
        self.known.keys().next().copied().filter(|_| self.known.len() == 1)
    }

    /// The name of an app. One that was removed before it was looked up is called by its number.
    fn find(&mut self, number: usize) -> Option<&AppName> {
        if !self.known.contains_key(&number) {
            let found = (self.look_up)(number, &self.known).or_else(|| AppName::sanitized(&format!("app-{number}")))?;
            self.known.insert(number, found);
        }
        self.known.get(&number)
    }
}

/// Prints the output until every app has ended. `Some`: the rest of the output was lost. With `has_terminal`, the only
/// app of a pod keeps the screen to itself: the output of apps that are added is in the logs only.
///
/// # Errors
/// It cannot be written.
pub(crate) fn show(
    stream: &mut OutputStream,
    apps: AppNames<'_>,
    has_terminal: bool,
) -> Result<Option<OutputError>, Failure> {
    match apps.only() {
        Some(only) => show_only(stream, apps, only, has_terminal),
        None => show_several(stream, Lines::new(apps, Printer::new(true))),
    }
}

/// Copies the output of the only app unchanged, until an app that was added writes something.
fn show_only(
    stream: &mut OutputStream,
    apps: AppNames<'_>,
    only: usize,
    has_terminal: bool,
) -> Result<Option<OutputError>, Failure> {
    // Whether the last line on standard output and on standard error has not ended.
    let mut open = [false; 2];
    loop {
        let chunk = match stream.next_chunk() {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        };
        if chunk.app == only {
            open[usize::from(chunk.stderr)] = !chunk.bytes.ends_with(b"\n");
            relay::write_output(chunk.stderr, chunk.bytes).map_err(output)?;
        } else if !has_terminal {
            let mut lines = Lines::new(apps, Printer::new(true));
            lines.resume(only, open);
            lines.add(chunk, Instant::now()).map_err(output)?;
            return show_several(stream, lines);
        }
    }
}

/// Prints the output of several apps in lines that begin with the app's name.
fn show_several(stream: &mut OutputStream, mut lines: Lines<'_>) -> Result<Option<OutputError>, Failure> {
    let lost = loop {
        lines.print_overdue(Instant::now()).map_err(output)?;
        if let Some(deadline) = lines.deadline() {
            match stream.wait_readable(deadline.saturating_duration_since(Instant::now())) {
                Ok(true) => {}
                Ok(false) => continue,
                Err(error) => break Some(error),
            }
        }
        match stream.next_chunk() {
            Ok(Some(chunk)) => lines.add(chunk, Instant::now()).map_err(output)?,
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    lines.finish().map_err(output)?;
    Ok(lost)
}

/// The beginning of a line whose end the app has not written yet.
struct UnfinishedLine {
    text: Vec<u8>,
    /// When the first byte of `text` came.
    since: Instant,
}

/// Joins the output of several apps to lines.
struct Lines<'a> {
    apps: AppNames<'a>,
    /// By app and by whether the line came from standard error.
    unfinished: BTreeMap<(usize, bool), UnfinishedLine>,
    printer: Printer,
}

impl<'a> Lines<'a> {
    fn new(apps: AppNames<'a>, printer: Printer) -> Self {
        Self { apps, unfinished: BTreeMap::new(), printer }
    }

    /// Notes which lines of an app, on standard output and on standard error, have been printed without their ends.
    fn resume(&mut self, app: usize, open: [bool; 2]) {
        let Some(app) = self.apps.find(app) else { return };
        for stderr in [false, true].into_iter().filter(|stderr| open[usize::from(*stderr)]) {
            self.printer.resume(app, stderr);
        }
    }

    fn add(&mut self, chunk: Chunk<'_>, now: Instant) -> io::Result<()> {
        let Chunk { app, stderr, bytes } = chunk;
        let mut line = self.unfinished.remove(&(app, stderr));
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match (piece.strip_suffix(b"\n"), line.take()) {
                (Some(text), None) => self.print(app, stderr, text, false)?,
                (Some(rest), Some(mut line)) => {
                    line.text.extend_from_slice(rest);
                    self.print(app, stderr, &line.text, false)?;
                }
                (None, unfinished) => {
                    let mut unfinished = unfinished.unwrap_or(UnfinishedLine { text: Vec::new(), since: now });
                    unfinished.text.extend_from_slice(piece);
                    line = Some(unfinished);
                }
            }
        }
        match line {
            Some(line) if line.text.len() > MAX_LINE => self.print(app, stderr, &line.text, true)?,
            Some(line) => {
                self.unfinished.insert((app, stderr), line);
            }
            None => {}
        }
        self.printer.flush()
    }

    /// When the first unfinished line is to be printed.
    fn deadline(&self) -> Option<Instant> {
        self.unfinished.values().map(|line| line.since + PARTIAL_LINE_TIMEOUT).min()
    }

    /// Prints the unfinished lines whose end has not come in time. The rest of such a line follows on the same line
    /// unless another app has written meanwhile.
    fn print_overdue(&mut self, now: Instant) -> io::Result<()> {
        self.print_unfinished(|line| line.since + PARTIAL_LINE_TIMEOUT <= now)
    }

    /// Prints the unfinished last lines of apps that have ended.
    fn finish(&mut self) -> io::Result<()> {
        self.print_unfinished(|_| true)
    }

    fn print_unfinished(&mut self, selected: impl Fn(&UnfinishedLine) -> bool) -> io::Result<()> {
        if !self.unfinished.values().any(&selected) {
            return Ok(());
        }
        let (printed, kept) = std::mem::take(&mut self.unfinished).into_iter().partition(|(_, line)| selected(line));
        self.unfinished = kept;
        let printed: BTreeMap<_, _> = printed;
        for ((app, stderr), line) in printed {
            self.print(app, stderr, &line.text, true)?;
        }
        self.printer.flush()
    }

    fn print(&mut self, app: usize, stderr: bool, text: &[u8], partial: bool) -> io::Result<()> {
        let Some(app) = self.apps.find(app) else { return Ok(()) };
        self.printer.line(LineRef { app, at: gantry_model::Timestamp(0), stderr, piece: partial, partial, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(apps: &[(usize, &str)]) -> BTreeMap<usize, AppName> {
        apps.iter().map(|(number, name)| (*number, name.parse().unwrap())).collect()
    }

    #[test]
    fn added_apps_are_looked_up_once() {
        let asked = std::cell::RefCell::new(Vec::new());
        let look_up = |number: usize, known: &BTreeMap<usize, AppName>| {
            asked.borrow_mut().push((number, known.len()));
            (number == 7).then(|| "late".parse().unwrap())
        };
        let mut lines = Lines::new(AppNames::new(names(&[(3, "a")]), &look_up), Printer::in_memory());
        assert_eq!(lines.apps.only(), Some(3));
        lines.resume(3, [true, false]);
        for (app, text) in [(7, "x\n"), (9, "y\n"), (3, "z\n"), (7, "x\n"), (9, "y\n")] {
            lines.add(Chunk { app, stderr: false, bytes: text.as_bytes() }, Instant::now()).unwrap();
        }
        assert_eq!(lines.printer.written(), "\n[late] x\n[app-9] y\n[a] z\n[late] x\n[app-9] y\n");
        drop(lines);
        assert_eq!(asked.into_inner(), [(7, 1), (9, 2)]);
    }

    #[test]
    fn unfinished_lines_are_printed_after_a_timeout() {
        let apps = AppNames::new(names(&[(0, "a"), (1, "b")]), &|_, _| None);
        let mut lines = Lines::new(apps, Printer::in_memory());
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let chunk = |app, text: &'static str| Chunk { app, stderr: false, bytes: text.as_bytes() };
        lines.add(chunk(0, "name"), at(0)).unwrap();
        lines.add(chunk(0, ": "), at(150)).unwrap();
        assert_eq!(lines.deadline(), Some(at(200)), "counted from the first byte");
        lines.print_overdue(at(199)).unwrap();
        assert_eq!(lines.printer.written(), "");
        lines.print_overdue(at(200)).unwrap();
        assert_eq!((lines.printer.written(), lines.deadline()), ("[a] name: ", None));
        lines.add(chunk(0, "x\ny"), at(300)).unwrap();
        lines.add(chunk(1, "1\n2"), at(300)).unwrap();
        assert_eq!(lines.printer.written(), "[a] name: x\n[b] 1\n");
        lines.print_overdue(at(500)).unwrap();
        lines.add(chunk(0, "z\n"), at(501)).unwrap();
        lines.finish().unwrap();
        assert_eq!(lines.printer.written(), "[a] name: x\n[b] 1\n[a] y\n[b] 2\n[a] z\n");
    }
}
