//! Lines as they reach standard error.

use std::io::Write;
use std::sync::{Arc, Mutex};

use super::*;

/// A writer that stores its input and counts the writes.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<String>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().push(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The writes of these events.
fn logged(filter: &str, format: LogFormat, journal: bool, emit: impl FnOnce()) -> Vec<String> {
    let sink = Sink::default();
    let writer = sink.clone();
    let subscriber = subscriber_to(move || writer.clone(), filter.parse().unwrap(), format, journal);
    tracing::subscriber::with_default(subscriber, emit);
    sink.0.lock().unwrap().clone()
}

#[test]
fn text_events_are_one_line_and_one_write() {
    let lines = logged("info", LogFormat::Text, false, || {
        tracing::info!("pod ü runs");
        tracing::error!("a\nb\u{1b}[31m\u{202e}");
        tracing::warn!(pod = "x", attempt = 2, "cannot reconcile");
        tracing::debug!("no");
    });
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[0], "info: pod ü runs\n");
    assert_eq!(lines[2], "warning: cannot reconcile pod=\"x\" attempt=2\n");
    assert!(lines[1].starts_with("error: a\\u{a}b\\"), "{lines:?}");
    assert!(!lines[1].trim_end().contains(|c: char| c.is_control() || c == '\u{202e}'), "{lines:?}");
}

#[test]
fn spans_add_only_missing_fields() {
    let lines = logged("info", LogFormat::Text, false, || {
        let _pod = tracing::info_span!("pod", pod = %"1b9c").entered();
        tracing::info!("pod 1b9c runs");
        let _request = tracing::info_span!("request", method = %"ListPods", peer = %"uid 0").entered();
        tracing::info!("slow");
    });
    assert_eq!(lines, ["info: pod 1b9c runs\n", "info: slow pod=1b9c method=ListPods peer=uid 0\n"]);
}

#[test]
fn json_lines_carry_fields_and_spans() {
    let lines = logged("info", LogFormat::Json, false, || {
        let _pod = tracing::info_span!("pod", pod = %"1b9c").entered();
        tracing::warn!(attempt = 2, "two\nlines");
    });
    assert_eq!(lines.len(), 1);
    let line: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["message"], "two\nlines");
    assert_eq!(line["attempt"], 2);
    assert_eq!(line["span"]["pod"], "1b9c");
    assert!(line["timestamp"].as_str().is_some_and(|at| at.ends_with('Z')), "{line}");
}

#[test]
fn the_journal_gets_priorities() {
    for format in [LogFormat::Text, LogFormat::Json] {
        let lines = logged("trace", format, true, || {
            tracing::error!("x");
            tracing::warn!("x");
            tracing::info!("x");
            tracing::debug!("x");
        });
        let priorities: Vec<&str> = lines.iter().map(|line| &line[..3]).collect();
        assert_eq!(priorities, ["<3>", "<4>", "<6>", "<7>"]);
    }
}

#[test]
fn filters_select_levels_and_modules() {
    let emit = || {
        tracing::info!(target: "gantry_api::hub", "api");
        tracing::info!(target: "gantryd", "daemon");
    };
    for (filter, want) in [("off", 0), ("warning", 0), ("INFO", 2), ("warn,gantry_api=info", 1), ("gantryd=trace", 1)] {
        assert_eq!(logged(filter, LogFormat::Text, false, emit).len(), want, "{filter}");
    }
    for text in ["", "loud", "=info", "gantryd=loud", "info,,"] {
        assert!(text.parse::<Filter>().is_err(), "{text}");
    }
}
