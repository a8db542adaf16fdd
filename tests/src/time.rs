//! Times, as commands print them and as APIs have them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_nanos()).unwrap_or(i64::MAX)
}

/// The nanoseconds since 1970 of a time in UTC such as `2026-11-20T15:59:12.696205869Z`.
///
/// # Panics
/// When it is none.
#[must_use]
#[track_caller]
pub fn nanos(text: &str) -> i64 {
    let numbers = |text: &str, by: char| text.split(by).map(str::parse).collect::<Result<Vec<i64>, _>>();
    let parsed = || {
        let (date, rest) = text.split_once(['T', ' '])?;
        let (time, fraction) = rest.trim_end_matches('Z').split_once('.')?;
        let (date, time) = (numbers(date, '-').ok()?, numbers(time, ':').ok()?);
        let ([year, month, day], [hour, minute, second]) = (*date.first_chunk()?, *time.first_chunk()?);
        let days = days(year, month, day);
        Some(
            (((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000_000
                + format!("{fraction:0<9}").parse::<i64>().ok()?,
        )
    };
    parsed().unwrap_or_else(|| panic!("'{text}' is not a time"))
}

/// The day since 1970: years are counted from March, so that the leap day is a year's last (Howard Hinnant's way).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
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
