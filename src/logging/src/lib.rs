//! What the three programs share of logging: the filter (`--log-level`, `GANTRY_LOG`), the two formats
//! (`--log-format`), and the priorities of the systemd journal. Events and spans are [`tracing`]'s own.
//!
//! Imports nothing of the workspace. Libraries emit events with `tracing` and never import this crate; a program calls
//! [`init`] once, before it starts threads.
//!
//! Levels: `error`, an operation failed and is not retried, or needs an administrator; `warning`, an operation failed
//! and is retried or left out; `info`, a change of state that an operator follows; `debug`, decisions; `trace`,
//! everything. The function that handles a failure logs it; functions that return the failure do not.
#![forbid(unsafe_code)]

mod filter;
mod json;
mod repeated_failure;
mod text;

use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;
use tracing::Level;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{Layer as _, fmt as subscriber};

pub use crate::filter::{FILTER_VARIABLE, Filter, FilterError, level_names};
use crate::json::JsonFormat;
pub use crate::repeated_failure::RepeatedFailure;
use crate::text::TextFormat;

/// The format of log lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `info: message field=value`.
    #[default]
    Text,
    /// One JSON object per line: `timestamp`, `level`, `target`, `message`, the event's fields, `span` and `spans`.
    Json,
}

/// The text names no log format.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected 'text' or 'json'")]
pub struct LogFormatError;

impl FromStr for LogFormat {
    type Err = LogFormatError;

    fn from_str(text: &str) -> Result<Self, LogFormatError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(LogFormatError),
        }
    }
}

/// Sends the events of all threads to standard error from now on, each as one line in one write. Lines begin with a
/// priority (sd-daemon(3)) if standard error is the systemd journal. Later calls have no effect.
pub fn init(filter: Filter, format: LogFormat) {
    install(std::io::stderr, filter, format);
}

/// Like [`init`], and passes each line to `copy`, too, which must not log and must not wait.
pub fn init_with_copy(filter: Filter, format: LogFormat, copy: impl Fn(&[u8]) + Send + Sync + 'static) {
    let copy: Arc<LineCopy> = Arc::new(copy);
    install(move || CopyingWriter { copy: Arc::clone(&copy) }, filter, format);
}

fn install<W>(writer: W, filter: Filter, format: LogFormat)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let subscriber = subscriber_to(writer, filter, format, stderr_is_journal());
    // Fails if a subscriber is installed already: the first one stays.
    let _first_one_stays = tracing::subscriber::set_global_default(subscriber);
}

/// Receives lines.
type LineCopy = dyn Fn(&[u8]) + Send + Sync;

/// Passes each line to `copy`, then writes it to standard error.
struct CopyingWriter {
    copy: Arc<LineCopy>,
}

impl io::Write for CopyingWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        // Standard error may be closed or full.
        (self.copy)(line);
        io::stderr().write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Logs panics as errors, with the format of other events, instead of printing them.
pub fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        tracing::error!(thread = thread.name().unwrap_or("unnamed"), "{panic}");
    }));
}

fn subscriber_to<W>(writer: W, filter: Filter, format: LogFormat, journal: bool) -> impl tracing::Subscriber
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // The default of the library prints failures to standard error, which is what has just failed.
    let layer = subscriber::layer().with_ansi(false).log_internal_errors(false).with_writer(writer);
    let layer = match format {
        LogFormat::Text => layer.event_format(TextFormat { journal }).boxed(),
        LogFormat::Json => layer.fmt_fields(JsonFields::new()).event_format(JsonFormat::new(journal)).boxed(),
    };
    tracing_subscriber::registry().with(layer.with_filter(filter.into_targets()))
}

/// Whether standard error is the journal's socket: systemd sets `JOURNAL_STREAM` to its device and inode, and a shell
/// that redirects standard error keeps the variable.
fn stderr_is_journal() -> bool {
    let Some(stream) = std::env::var_os("JOURNAL_STREAM") else { return false };
    rustix::fs::fstat(rustix::stdio::stderr())
        .is_ok_and(|stat| format!("{}:{}", stat.st_dev, stat.st_ino).as_bytes() == stream.as_bytes())
}

/// The priority of a level in the journal (syslog(3), sd-daemon(3)).
fn write_priority(writer: &mut dyn fmt::Write, level: Level) -> fmt::Result {
    let priority = match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    };
    write!(writer, "<{priority}>")
}

#[cfg(test)]
mod tests;
