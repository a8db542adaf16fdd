//! The text format: `level: message field=value`, one line per event.

use std::fmt;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

use crate::write_priority;

/// See the module. Without time: the journal and other log collectors add it.
pub(crate) struct TextFormat {
    /// Whether lines begin with a priority.
    pub(crate) journal: bool,
}

impl<S, N> FormatEvent<S, N> for TextFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let level = *event.metadata().level();
        if self.journal {
            write_priority(&mut writer, level)?;
        }
        let mut line = String::new();
        context.format_fields(Writer::new(&mut line), event)?;
        for span in context.event_scope().into_iter().flat_map(tracing_subscriber::registry::Scope::from_root) {
            let extensions = span.extensions();
            let Some(fields) = extensions.get::<FormattedFields<N>>() else { continue };
            // `pod=ID` says nothing new if the message names the pod.
            let is_repeated = fields.split_once('=').is_some_and(|(_, value)| line.contains(value));
            if !fields.is_empty() && !is_repeated {
                line.push(' ');
                line.push_str(fields);
            }
        }
        write!(writer, "{}: ", level_name(level))?;
        write_escaped(&mut writer, &line)?;
        writer.write_char('\n')
    }
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

/// Names and messages come from images and users: no text may begin a line of its own or control a terminal.
fn write_escaped(writer: &mut Writer<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        let is_invisible =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if c.is_control() || is_invisible { write!(writer, "{}", c.escape_unicode())? } else { writer.write_char(c)? }
    }
    Ok(())
}
