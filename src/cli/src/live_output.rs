//! Prints the output of a pod's apps to standard output and standard error while they write it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;
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

/// Prints the output until every app has ended. `Some`: the rest of the output was lost.
///
/// # Errors
/// It cannot be written.
pub(crate) fn show(stream: &mut OutputStream, apps: &[AppName]) -> Result<Option<OutputError>, Failure> {
    match apps {
        [_] => show_one(stream),
        _ => show_several(stream, apps),
    }
}

/// Copies the output of a single app unchanged.
fn show_one(stream: &mut OutputStream) -> Result<Option<OutputError>, Failure> {
    loop {
        match stream.next_chunk() {
            Ok(Some(chunk)) => copy(chunk).map_err(output)?,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        }
    }
}

fn copy(chunk: Chunk<'_>) -> io::Result<()> {
    let to: BorrowedFd<'_> = if chunk.stderr { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
    relay::write_all(to, chunk.bytes)
}

/// Prints the output of several apps in lines that begin with the app's name.
fn show_several(stream: &mut OutputStream, apps: &[AppName]) -> Result<Option<OutputError>, Failure> {
    let mut lines = Lines { apps, unfinished: BTreeMap::new(), printer: Printer::new(true) };
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
    apps: &'a [AppName],
    /// By app and by whether the line came from standard error.
    unfinished: BTreeMap<(usize, bool), UnfinishedLine>,
    printer: Printer,
}

impl Lines<'_> {
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
        // An app index outside the pod means that the stream is corrupt.
        let Some(app) = self.apps.get(app) else { return Err(io::ErrorKind::InvalidData.into()) };
        self.printer.line(LineRef { app, at: gantry_model::Timestamp(0), stderr, piece: partial, partial, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_lines_are_printed_after_a_timeout() {
        let apps: Vec<AppName> = ["a", "b"].map(|name| name.parse().unwrap()).into();
        let mut lines = Lines { apps: &apps, unfinished: BTreeMap::new(), printer: Printer::in_memory() };
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
