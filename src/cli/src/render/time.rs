//! Formats relative times, and parses the times of `--since` and `--until`.

use gantry_model::Timestamp;
use gantry_model::id::shown;

/// The time `then` relative to `now`: `5 seconds ago`, `in 3 minutes`.
pub(crate) fn relative(now: Timestamp, then: Timestamp) -> String {
    const UNITS: [(u64, &str); 6] = [
        (31_536_000, "year"),
        (2_592_000, "month"),
        (604_800, "week"),
        (86_400, "day"),
        (3600, "hour"),
        (60, "minute"),
    ];
    let (past, seconds) = match now.0 >= then.0 {
        true => (true, now.since(then).as_secs()),
        false => (false, then.since(now).as_secs()),
    };
    let (count, unit) = UNITS
        .iter()
        .find(|(length, _)| seconds >= *length)
        .map_or((seconds, "second"), |(length, unit)| (seconds / length, *unit));
    if count == 0 {
        return "just now".to_owned();
    }
    let plural = if count == 1 { "" } else { "s" };
    if past { format!("{count} {unit}{plural} ago") } else { format!("in {count} {unit}{plural}") }
}

/// Parses a time: RFC 3339, a local date, with or without a time of day, `@seconds[.fraction]` or plain seconds of the
/// epoch, or a duration before `now`.
pub(crate) fn parse(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    // First, since 0 is also a duration: as with docker, `--since=0` means from the beginning.
    if let Some(at) = seconds(text.strip_prefix('@').unwrap_or(text)) {
        return Ok(at);
    }
    if let Ok(ago) = gantry_model::quantity::duration(text) {
        return Ok(now.before(ago));
    }
    let at = text.parse().ok().or_else(|| local(text, jiff::tz::TimeZone::system()));
    let nanoseconds = at.and_then(|at: jiff::Timestamp| i64::try_from(at.as_nanosecond()).ok());
    nanoseconds.map(Timestamp).ok_or_else(|| {
        format!(
            "'{}' is not a time: expected a form such as 2026-11-20T14:00:00Z, 2026-11-20, 1763647200, or 10m for ten \
             minutes ago",
            shown(text)
        )
    })
}

/// The time of a clock in this time zone: `2026-11-20`, which is midnight, or `2026-11-20T14:00`.
fn local(text: &str, zone: jiff::tz::TimeZone) -> Option<jiff::Timestamp> {
    // Of a text with an offset or a zone of its own, jiff would ignore that.
    let has_known_form = text.bytes().all(|c| c.is_ascii_digit() || b"-T: .".contains(&c));
    let at: jiff::civil::DateTime = Some(text).filter(|_| has_known_form)?.parse().ok()?;
    Some(at.to_zoned(zone).ok()?.timestamp())
}

fn seconds(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanoseconds: i64 = format!("{fraction:0<9}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(nanoseconds).map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp(1_763_647_200_000_000_000);

    #[test]
    fn relative_times_are_formatted() {
        for (seconds_ago, want) in [
            (0, "just now"),
            (1, "1 second ago"),
            (59, "59 seconds ago"),
            (60, "1 minute ago"),
            (7199, "1 hour ago"),
            (86_400 * 2, "2 days ago"),
            (86_400 * 14, "2 weeks ago"),
            (86_400 * 400, "1 year ago"),
            (-90, "in 1 minute"),
        ] {
            assert_eq!(relative(NOW, Timestamp(NOW.0 - seconds_ago * 1_000_000_000)), want);
        }
    }

    #[test]
    fn times_are_parsed() {
        for (text, want) in [
            ("10m", NOW.0 - 600_000_000_000),
            ("1763647200", NOW.0),
            ("@1763647200.5", NOW.0 + 500_000_000),
            ("0", 0),
            ("0s", NOW.0),
            ("2025-11-20T14:00:00Z", NOW.0),
            ("2025-11-20T15:00:00+01:00", NOW.0),
        ] {
            assert_eq!(parse(text, NOW), Ok(Timestamp(want)), "{text}");
        }
        for bad in ["", "@", "yesterday", "1.2.3", "-5", "99999999999999999999", "9999-01-01T00:00:00Z", "1.0000000001"]
        {
            assert!(parse(bad, NOW).is_err(), "{bad}");
        }
    }

    #[test]
    fn local_times_are_parsed() {
        let zone = || jiff::tz::TimeZone::fixed(jiff::tz::offset(1));
        for text in ["2025-11-20T15:00", "2025-11-20T15:00:00", "2025-11-20 15:00:00.0"] {
            assert_eq!(local(text, zone()).map(|at| at.as_nanosecond()), Some(NOW.0.into()), "{text}");
        }
        let midnight = "2025-11-19T23:00:00Z".parse().ok();
        assert_eq!(local("2025-11-20", zone()), midnight);
        assert!(parse("2025-11-20", NOW).is_ok());
        for bad in
            ["2025-11", "2025-13-01", "2025-11-20T25:00", "2025-11-20T14:00:00-99:00", "2025-11-20[UTC]", "14:00"]
        {
            assert!(local(bad, zone()).is_none(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(text: String, now: i64, then: i64) {
            let _ = (parse(&text, Timestamp(now)), relative(Timestamp(now), Timestamp(then)));
        }

        #[test]
        fn formatted_times_can_be_parsed(at: i64) {
            prop_assert_eq!(parse(Timestamp(at).rfc3339().as_str(), NOW), Ok(Timestamp(at)));
        }
    }
}
