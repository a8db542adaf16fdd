//! Points in time, in nanoseconds since the Unix epoch.

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

    /// This time moved on by `by`; stays at the latest time there is.
    #[must_use]
    pub fn after(self, by: std::time::Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_nanos()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not after it (clocks go back).
    #[must_use]
    pub fn since(self, earlier: Self) -> std::time::Duration {
        std::time::Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// This time in UTC as RFC 3339 has it (section 5.6), with nine digits of the second.
    #[must_use]
    pub fn rfc3339(self) -> Rfc3339 {
        let mut text = *b"0000-00-00T00:00:00.000000000Z";
        let (year, month, day) = date(self.seconds().div_euclid(86_400));
        let time = self.seconds().rem_euclid(86_400);
        let parts = [(0..4, year), (5..7, month), (8..10, day), (11..13, time / 3600), (14..16, time / 60 % 60)];
        for (place, value) in parts.into_iter().chain([(17..19, time % 60), (20..29, self.subsec_nanos().into())]) {
            digits(&mut text[place], value);
        }
        Rfc3339(text)
    }
}

/// A time as text: `2026-11-20T14:00:00.000000001Z`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rfc3339([u8; 30]);

impl Rfc3339 {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Digits and separators only.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The text as bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Display for Rfc3339 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Year, month and day of a count of days since 1970-01-01. Years are counted from March, so that a leap day is the
/// last of its year; an era is 400 years, after which the calendar repeats.
fn date(days: i64) -> (i64, i64, i64) {
    const DAYS_BEFORE_EPOCH: i64 = 719_468;
    const ERA: i64 = 146_097;
    let (era, day) = ((days + DAYS_BEFORE_EPOCH).div_euclid(ERA), (days + DAYS_BEFORE_EPOCH).rem_euclid(ERA));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day_of_month)
}

fn digits(place: &mut [u8], value: i64) {
    // None of the values is negative, and divisions of unsigned numbers are faster.
    let mut value = value.unsigned_abs();
    for digit in place.iter_mut().rev() {
        *digit = b'0' + u8::try_from(value % 10).unwrap_or(0);
        value /= 10;
    }
}

impl From<std::time::SystemTime> for Timestamp {
    /// Conversion from a clock or a file's time. Times outside the range are clamped: before 1970 to 1970, too late
    /// ones to the maximum.
    fn from(time: std::time::SystemTime) -> Self {
        let since = time.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_formatted_as_rfc3339() {
        for (nanos, want) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_001, "2000-02-29T00:00:00.000000001Z"),
            (1_795_181_696_123_456_789, "2026-11-20T13:34:56.123456789Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
            (i64::MAX, "2262-04-11T23:47:16.854775807Z"),
            (i64::MIN, "1677-09-21T00:12:43.145224192Z"),
        ] {
            assert_eq!(Timestamp(nanos).rfc3339().as_str(), want);
        }
    }
}
