//! Writes the Prometheus text exposition format 0.0.4
//! (<https://prometheus.io/docs/instrumenting/exposition_formats>).

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

impl MetricValue {
    fn push_to(self, text: &mut String) {
        match self {
            Self::Count(count) => push_number(text, count, 1),
            Self::Nanoseconds(ns) => {
                push_number(text, ns / 1_000_000_000, 1);
                text.push('.');
                push_number(text, ns % 1_000_000_000, 9);
            }
        }
    }
}

/// Appends a number of at least `digits` digits, 20 at most, with leading zeros. A scrape of many pods writes a hundred
/// thousand numbers; the formatter of the standard library takes twice the instructions.
fn push_number(text: &mut String, mut number: u64, digits: usize) {
    let mut buffer = [b'0'; 20];
    let mut begin = buffer.len();
    for digit in buffer.iter_mut().rev() {
        if number == 0 {
            break;
        }
        *digit = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        begin -= 1;
    }
    let written = buffer.get(begin.min(buffer.len().saturating_sub(digits))..).unwrap_or_default();
    text.push_str(std::str::from_utf8(written).unwrap_or_default());
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
        let mut rest = value;
        while let Some(at) = rest.find(['\\', '"', '\n']) {
            let (plain, special) = rest.split_at(at);
            self.0.push_str(plain);
            self.0.push_str(match special.as_bytes().first() {
                Some(b'\\') => "\\\\",
                Some(b'"') => "\\\"",
                _ => "\\n",
            });
            rest = special.get(1..).unwrap_or_default();
        }
        self.0.push_str(rest);
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
        if std::mem::take(is_empty) {
            for part in ["# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind.name(), "\n"] {
                text.push_str(part);
            }
        }
        text.push_str(name);
        text.push_str(suffix);
        if !labels.0.is_empty() {
            text.push('{');
            text.push_str(&labels.0);
            text.push('}');
        }
        text.push(' ');
        value.push_to(text);
        if let Some(at) = at {
            text.push_str(if at < 0 { " -" } else { " " });
            push_number(text, at.unsigned_abs(), 1);
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_standard_library_does() {
        for number in [0, 1, 9, 10, 999_999_999, 1_000_000_000, u64::MAX] {
            for digits in [1, 9] {
                let mut text = String::new();
                push_number(&mut text, number, digits);
                assert_eq!(text, format!("{number:0digits$}"));
            }
        }
    }

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
