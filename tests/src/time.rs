//! Time stamps as commands print them and as APIs represent them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

/// The nanoseconds since 1970 of a UTC time stamp such as `2026-11-20T15:59:12.696205869Z`.
///
/// # Panics
/// When the time stamp is invalid.
#[must_use]
#[track_caller]
pub fn nanos(text: &str) -> i64 {
    let text = text.replace(' ', "T");
    let parsed: Result<jiff::Timestamp, _> = format!("{}Z", text.trim_end_matches('Z')).parse();
    match parsed.map(|time| i64::try_from(time.as_nanosecond())) {
        Ok(Ok(nanos)) => nanos,
        _ => panic!("'{text}' is not a time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_parsed() {
        for (text, want) in [
            ("1970-01-01T00:00:00.000000000Z", 0),
            ("1970-01-01T00:00:01.5Z", 1_500_000_000),
            ("2000-02-29 12:00:00.000000001", 951_825_600_000_000_001),
            ("2026-11-20T15:59:12.696205869Z", 1_795_190_352_696_205_869),
        ] {
            assert_eq!(nanos(text), want, "{text}");
        }
    }
}
