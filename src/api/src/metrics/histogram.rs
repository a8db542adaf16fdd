//! A histogram of durations.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds of the buckets in microseconds, and as written in the label `le` in seconds.
pub(super) const BOUNDS: [(u64, &str); 14] = [
    (500, "0.0005"),
    (1_000, "0.001"),
    (2_500, "0.0025"),
    (5_000, "0.005"),
    (10_000, "0.01"),
    (25_000, "0.025"),
    (50_000, "0.05"),
    (100_000, "0.1"),
    (250_000, "0.25"),
    (500_000, "0.5"),
    (1_000_000, "1"),
    (2_500_000, "2.5"),
    (10_000_000, "10"),
    (60_000_000, "60"),
];

/// Counts durations by size.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    /// The durations of each bucket; the last one has those above all bounds.
    buckets: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

/// The counts of a histogram.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HistogramSnapshot {
    /// The number of durations up to each bound.
    pub(super) cumulative: [u64; BOUNDS.len()],
    /// The number of all durations.
    pub(super) count: u64,
    /// Their sum, in nanoseconds.
    pub(super) sum_ns: u64,
}

impl Histogram {
    /// Counts a duration.
    pub(super) fn record(&self, duration: Duration) {
        let at = BOUNDS.iter().position(|(bound, _)| duration <= Duration::from_micros(*bound));
        if let Some(bucket) = self.buckets.get(at.unwrap_or(BOUNDS.len())) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Reads the counts. The count is the sum of the buckets, so that both agree while durations are recorded.
    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        let mut count = 0;
        let totals = self.buckets.each_ref().map(|bucket| {
            count += bucket.load(Ordering::Relaxed);
            count
        });
        let cumulative = std::array::from_fn(|at| totals.get(at).copied().unwrap_or(count));
        HistogramSnapshot { cumulative, count, sum_ns: self.sum_ns.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative() {
        let histogram = Histogram::default();
        for microseconds in [1, 500, 501, 3_000_000, 61_000_000] {
            histogram.record(Duration::from_micros(microseconds));
        }
        let snapshot = histogram.snapshot();
        assert_eq!((snapshot.cumulative[0], snapshot.cumulative[1], snapshot.cumulative[11]), (2, 3, 3));
        assert_eq!((snapshot.cumulative[13], snapshot.count), (4, 5));
        assert_eq!(snapshot.sum_ns, 64_001_002_000);
        for (bound, label) in BOUNDS {
            assert_eq!(label.parse::<f64>().unwrap() * 1e6, bound as f64, "{label}");
        }
    }
}
