//! Writes the Prometheus text exposition format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats>).

use std::fmt::{self, Display, Write as _};

use super::histogram::{BOUNDS, HistogramSnapshot};

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricType {
    /// It only rises, and falls to 0 with a new start of what it counts.
    Counter,
    /// It rises and falls.
    Gauge,
    /// A histogram.
    Histogram,
    /// A counter under a name of cAdvisor's without `_total`, which the format requires of counters.
    Untyped,
}

impl MetricType {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Untyped => "untyped",
        }
    }
}

/// The value of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MetricValue {
    /// A number.
    Count(u64),
    /// Nanoseconds, written in seconds.
    Nanoseconds(u64),
}

impl Display for MetricValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Count(count) => count.fmt(f),
            Self::Nanoseconds(ns) => write!(f, "{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000),
        }
    }
}

/// Labels as written between the braces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Labels(String);

impl Labels {
    /// Returns these labels and one more; the value is escaped.
    pub(super) fn with(&self, name: &str, value: &str) -> Self {
        let mut labels = self.clone();
        labels.push(name, value);
        labels
    }

    /// Adds a label; the value is escaped.
    pub(super) fn push(&mut self, name: &str, value: &str) {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        for character in value.chars() {
            match character {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other => self.0.push(other),
            }
        }
        self.0.push('"');
    }
}

/// The text of all metrics.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a metric: its samples follow.
    pub(super) fn family(&mut self, name: &'static str, kind: MetricType, help: &str) -> Family<'_> {
        Family { exposition: self, name, kind, help: help.to_owned(), is_empty: true }
    }

    /// The text.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

/// A metric while its samples are written. Without a sample, nothing is.
pub(super) struct Family<'a> {
    exposition: &'a mut Exposition,
    name: &'static str,
    kind: MetricType,
    help: String,
    is_empty: bool,
}

impl Family<'_> {
    /// Writes a sample.
    pub(super) fn sample(&mut self, labels: &Labels, value: MetricValue) {
        self.line("", labels, value, None);
    }

    /// Writes a sample that was taken at this time, in milliseconds since the epoch.
    pub(super) fn sample_at(&mut self, labels: &Labels, value: MetricValue, milliseconds: i64) {
        self.line("", labels, value, Some(milliseconds));
    }

    /// Writes the samples of a histogram.
    pub(super) fn histogram(&mut self, labels: &Labels, snapshot: &HistogramSnapshot) {
        for ((_, bound), count) in BOUNDS.iter().zip(snapshot.cumulative) {
            self.line("_bucket", &labels.with("le", bound), MetricValue::Count(count), None);
        }
        self.line("_bucket", &labels.with("le", "+Inf"), MetricValue::Count(snapshot.count), None);
        self.line("_sum", labels, MetricValue::Nanoseconds(snapshot.sum_ns), None);
        self.line("_count", labels, MetricValue::Count(snapshot.count), None);
    }

    fn line(&mut self, suffix: &str, labels: &Labels, value: MetricValue, at: Option<i64>) {
        let Self { exposition: Exposition { text }, name, kind, help, is_empty } = self;
        // Writing to a string does not fail.
        let _infallible = (|| {
            if std::mem::take(is_empty) {
                writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name())?;
            }
            match labels.0.as_str() {
                "" => write!(text, "{name}{suffix} {value}")?,
                labels => write!(text, "{name}{suffix}{{{labels}}} {value}")?,
            }
            match at {
                Some(at) => writeln!(text, " {at}"),
                None => writeln!(text),
            }
        })();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut exposition = Exposition::default();
        let mut family = exposition.family("a_total", MetricType::Counter, "Help.");
        let labels = Labels::default().with("x", "1\\\"\n").with("y", "ü");
        family.sample_at(&labels, MetricValue::Nanoseconds(1_000_000_020), 7);
        family.sample(&Labels::default(), MetricValue::Count(3));
        exposition.family("b", MetricType::Gauge, "No sample.");
        let want = "# HELP a_total Help.\n# TYPE a_total counter\n\
            a_total{x=\"1\\\\\\\"\\n\",y=\"ü\"} 1.000000020 7\na_total 3\n";
        assert_eq!(exposition.into_text(), want);
    }
}
