//! The JSON format: one object per event, in one line.

use std::fmt;

use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{Format, FormatEvent, FormatFields, Json, Writer};
use tracing_subscriber::registry::LookupSpan;

use crate::write_priority;

/// The library's format, below a priority where the journal reads it.
pub(crate) struct JsonFormat {
    format: Format<Json>,
    journal: bool,
}

impl JsonFormat {
    /// `journal`: whether lines begin with a priority.
    pub(crate) fn new(journal: bool) -> Self {
        Self { format: tracing_subscriber::fmt::format().json().flatten_event(true), journal }
    }
}

impl<S, N> FormatEvent<S, N> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        if self.journal {
            write_priority(&mut writer, *event.metadata().level())?;
        }
        self.format.format_event(context, writer, event)
    }
}
