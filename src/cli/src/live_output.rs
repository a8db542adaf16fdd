//! Prints the output of a pod's apps to standard output and standard error while they write it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use gantry_engine::{Chunk, LineRef, LogSink as _, OutputError, OutputStream};
use gantry_model::AppName;

use crate::failure::{Failure, output};
use crate::printer::Printer;
use crate::relay;

/// A line of several apps' output is shown in pieces when it is longer than this.
const MAX_LINE: usize = 16 << 10;

/// Shows the output until every app has ended. `Some`: the rest of it was lost.
///
/// # Errors
/// It cannot be written.
pub(crate) fn show(mut stream: OutputStream, apps: &[AppName]) -> Result<Option<OutputError>, Failure> {
    let mut lines = Lines { apps, unfinished: BTreeMap::new(), printer: Printer::new(true) };
    let lost = loop {
        match stream.next_chunk() {
            Ok(Some(chunk)) => match apps {
                [_] => copy(chunk),
                _ => lines.take(chunk),
            }
            .map_err(output)?,
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    lines.finish().map_err(output)?;
    Ok(lost)
}

/// The output of an only app: as it is.
fn copy(chunk: Chunk<'_>) -> io::Result<()> {
    let to: BorrowedFd<'_> = if chunk.stderr { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
    relay::write_all(to, chunk.bytes)
}

/// Several apps' output: in whole lines that say whose they are.
struct Lines<'a> {
    apps: &'a [AppName],
    /// The beginnings of lines, by app and by whether they came from standard error.
    unfinished: BTreeMap<(usize, bool), Vec<u8>>,
    printer: Printer,
}

impl Lines<'_> {
    fn take(&mut self, chunk: Chunk<'_>) -> io::Result<()> {
        let Chunk { app, stderr, bytes } = chunk;
        let mut unfinished = self.unfinished.remove(&(app, stderr)).unwrap_or_default();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            match (piece.strip_suffix(b"\n"), unfinished.is_empty()) {
                (Some(line), true) => self.print(app, stderr, line, false)?,
                (Some(rest), false) => {
                    unfinished.extend_from_slice(rest);
                    self.print(app, stderr, &std::mem::take(&mut unfinished), false)?;
                }
                (None, _) => unfinished.extend_from_slice(piece),
            }
        }
        if unfinished.len() > MAX_LINE {
            self.print(app, stderr, &std::mem::take(&mut unfinished), true)?;
        }
        if !unfinished.is_empty() {
            self.unfinished.insert((app, stderr), unfinished);
        }
        self.printer.flush()
    }

    /// The apps have ended: what they wrote without a newline is all there will be.
    fn finish(&mut self) -> io::Result<()> {
        for ((app, stderr), text) in std::mem::take(&mut self.unfinished) {
            self.print(app, stderr, &text, true)?;
        }
        self.printer.flush()
    }

    fn print(&mut self, app: usize, stderr: bool, text: &[u8], partial: bool) -> io::Result<()> {
        // A supervisor that names an app the pod does not have cannot be believed in anything.
        let Some(app) = self.apps.get(app) else { return Err(io::ErrorKind::InvalidData.into()) };
        self.printer.line(LineRef { app, at: gantry_model::Timestamp(0), stderr, piece: partial, partial, text })
    }
}
