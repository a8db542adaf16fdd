//! Prints the output of a pod's apps to standard output and standard error while they write it.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use gantry_engine::{Chunk, LineRef, LogSink as _, OutputError, OutputStream};
use gantry_model::AppName;

use crate::failure::{Failure, output};
use crate::printer::Printer;
use crate::relay;

/// With several apps, a line longer than this is printed in parts.
const MAX_LINE: usize = 16 << 10;

/// Prints the output until every app has ended. `Some`: the rest of the output was lost.
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

/// The output of a single app, unchanged.
fn copy(chunk: Chunk<'_>) -> io::Result<()> {
    let to: BorrowedFd<'_> = if chunk.stderr { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
    relay::write_all(to, chunk.bytes)
}

/// The output of several apps, in whole lines with the app's name.
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

    /// The apps have ended: print the incomplete last lines.
    fn finish(&mut self) -> io::Result<()> {
        for ((app, stderr), text) in std::mem::take(&mut self.unfinished) {
            self.print(app, stderr, &text, true)?;
        }
        self.printer.flush()
    }

    fn print(&mut self, app: usize, stderr: bool, text: &[u8], partial: bool) -> io::Result<()> {
        // An app index outside the pod means that the stream is corrupt.
        let Some(app) = self.apps.get(app) else { return Err(io::ErrorKind::InvalidData.into()) };
        self.printer.line(LineRef { app, at: gantry_model::Timestamp(0), stderr, piece: partial, partial, text })
    }
}
