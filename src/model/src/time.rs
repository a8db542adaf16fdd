//! Points in time, as nanoseconds of the Unix epoch. Where time comes from is the caller's business.

/// A wall-clock time: nanoseconds since 1970-01-01T00:00:00Z (enough until the year 2262).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// Whole seconds since the epoch.
    #[must_use]
    pub fn seconds(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// The nanoseconds within the second, 0 to 999 999 999.
    #[must_use]
    pub fn subsec_nanos(self) -> u32 {
        u32::try_from(self.0.rem_euclid(1_000_000_000)).unwrap_or(0)
    }

    /// This time moved back by `by`; stays at the earliest time there is.
    #[must_use]
    pub fn before(self, by: std::time::Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not after it (clocks go back).
    #[must_use]
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}
