//! Calendar events in the syntax of systemd.time(7), section "Calendar events": `Mon..Fri 09:00`, `*-*-01 00:00:00`,
//! `*:0/15`, `*-*~01`, `daily`, each optionally followed by a time zone.
//!
//! An event is translated to the fields of a cron pattern, whose next time `croner` finds. Seconds are whole, and of
//! the days counted from the end of the month only the last one (`~01`) is supported. Without a time zone, times are of
//! the host's. A time that is skipped when the clocks go forward becomes the end of the gap; of a time that occurs
//! twice when they go back, the first one counts.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use gantry_model::Timestamp;
use gantry_model::id::shown;
use jiff::tz::TimeZone;

/// The shorthands of systemd, and the events that they stand for.
const SHORTHANDS: [(&str, &str); 11] = [
    ("minutely", "*-*-* *:*:00"),
    ("hourly", "*-*-* *:00:00"),
    ("daily", "*-*-* 00:00:00"),
    ("weekly", "Mon *-*-* 00:00:00"),
    ("monthly", "*-*-01 00:00:00"),
    ("quarterly", "*-01,04,07,10-01 00:00:00"),
    ("semiannually", "*-01,07-01 00:00:00"),
    ("semi-annually", "*-01,07-01 00:00:00"),
    ("bi-annually", "*-01,07-01 00:00:00"),
    ("yearly", "*-01-01 00:00:00"),
    ("annually", "*-01-01 00:00:00"),
];
const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
/// The years that an event may name.
const YEARS: (u16, u16) = (1970, 2199);

/// A calendar event.
#[derive(Debug, Clone)]
pub(super) struct CalendarEvent {
    cron: Cron,
    /// `None`: the host's.
    zone: Option<TimeZone>,
}

impl CalendarEvent {
    /// Parses an event.
    ///
    /// # Errors
    /// A message.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let invalid = || {
            format!(
                "'{}' is not a calendar event: expected one such as daily, 'Mon..Fri 09:00', '*-*-01 00:00:00' or \
                 '03:00 Europe/Berlin'",
                shown(text)
            )
        };
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let zone = words.last().and_then(|word| time_zone(word));
        words.truncate(words.len() - usize::from(zone.is_some()));
        let pattern = match words[..] {
            [word] => SHORTHANDS.iter().find(|(short, _)| short.eq_ignore_ascii_case(word)),
            _ => None,
        };
        let pattern = match pattern {
            Some((_, long)) => cron_pattern(long.split_whitespace()),
            None => cron_pattern(words.into_iter()),
        };
        let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Required).dom_and_dow(true).build();
        let cron = parser.parse(&pattern.ok_or_else(invalid)?).map_err(|_| invalid())?;
        Ok(Self { cron, zone })
    }

    /// The first event after a time; `None`: there is none.
    pub(super) fn next_event(&self, after: Timestamp) -> Option<Timestamp> {
        self.next_in(after, self.zone.clone().unwrap_or_else(TimeZone::system))
    }

    fn next_in(&self, after: Timestamp, zone: TimeZone) -> Option<Timestamp> {
        let after = jiff::Timestamp::from_nanosecond(after.0.into()).ok()?.to_zoned(zone);
        // The only failure is that the search finds nothing.
        let next = self.cron.find_next_occurrence(&after, false).ok()?;
        i64::try_from(next.timestamp().as_nanosecond()).ok().map(Timestamp)
    }
}

/// The time zone of a word: `UTC`, or a name of the zone database.
fn time_zone(word: &str) -> Option<TimeZone> {
    let is_name = word.starts_with(|c: char| c.is_ascii_uppercase()) && parse_weekdays(word).is_none();
    match word {
        "UTC" => Some(TimeZone::UTC),
        _ if is_name => TimeZone::get(word).ok(),
        _ => None,
    }
}

/// The fields of cron for an event: second, minute, hour, day, month, weekday, year.
fn cron_pattern<'a>(words: impl Iterator<Item = &'a str>) -> Option<String> {
    let mut words = words.peekable();
    let weekdays = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
    let date = words.next_if(|word| word.contains('-'));
    let time = words.next_if(|word| word.contains(':'));
    if words.next().is_some() || (weekdays, date, time) == (None, None, None) {
        return None;
    }
    let weekdays = weekdays.map_or_else(|| Some("*".to_owned()), parse_weekdays)?;
    let (date, is_last_day) = match date.unwrap_or("*-*-*").split_once('~') {
        Some((months, "1" | "01")) => (format!("{months}-*"), true),
        Some(_) => return None,
        None => (date.unwrap_or("*-*-*").to_owned(), false),
    };
    let (years, months, days) = match date.split('-').collect::<Vec<_>>()[..] {
        [years, months, days] => (years, months, days),
        [months, days] => ("*", months, days),
        _ => return None,
    };
    let (hours, minutes, seconds) = match time.unwrap_or("00:00:00").split(':').collect::<Vec<_>>()[..] {
        [hours, minutes, seconds] => (hours, minutes, seconds),
        [hours, minutes] => (hours, minutes, "0"),
        _ => return None,
    };
    let fields = [
        parse_values(seconds, (0, 59))?,
        parse_values(minutes, (0, 59))?,
        parse_values(hours, (0, 23))?,
        if is_last_day { "L".to_owned() } else { parse_values(days, (1, 31))? },
        parse_values(months, (1, 12))?,
        weekdays,
        parse_values(years, YEARS)?,
    ];
    Some(fields.join(" "))
}

/// Parses `*`, `5`, `1..5`, `0/15`, `*/2`, or several with commas. The result lists each value, because cron counts
/// steps in another way.
fn parse_values(text: &str, (min, max): (u16, u16)) -> Option<String> {
    let number = |text: &str| {
        let digits = (1..=4).contains(&text.len()) && text.bytes().all(|digit| digit.is_ascii_digit());
        text.parse::<u16>().ok().filter(|value| digits && (min..=max).contains(value))
    };
    if text == "*" {
        return Some(text.to_owned());
    }
    let mut values = Vec::new();
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(step.parse::<u16>().ok().filter(|step| *step > 0)?)),
            None => (part, None),
        };
        let (first, last) = match range.split_once("..") {
            Some((first, last)) => (number(first)?, number(last)?),
            None if range == "*" => (min, max),
            None => {
                let first = number(range)?;
                (first, if step.is_some() { max } else { first })
            }
        };
        if first > last {
            return None;
        }
        values.extend((first..=last).step_by(usize::from(step.unwrap_or(1))).map(|value| value.to_string()));
    }
    Some(values.join(","))
}

/// Parses `Mon`, `Mon..Fri`, `Sat,Sun`, also with names in full. The result has cron's numbers, from Monday, 1, to
/// Sunday, 7.
fn parse_weekdays(text: &str) -> Option<String> {
    let day = |text: &str| {
        let text = text.to_ascii_lowercase();
        let is_named = |name: &&str| **name == text || (text.len() == 3 && name.starts_with(&text));
        WEEKDAYS.iter().position(is_named).map(|at| at + 1)
    };
    let mut days = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        if first > last {
            return None;
        }
        days.extend((first..=last).map(|day| day.to_string()));
    }
    Some(days.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn next(event: &str, after: &str, zone: &TimeZone) -> Option<String> {
        let after: jiff::Timestamp = after.parse().unwrap();
        let after = Timestamp(after.as_nanosecond().try_into().unwrap());
        let event = CalendarEvent::parse(event).unwrap();
        let next = event.next_in(after, event.zone.clone().unwrap_or_else(|| zone.clone()))?;
        Some(jiff::Timestamp::from_nanosecond(next.0.into()).unwrap().to_string())
    }

    #[test]
    fn the_next_event_is_found() {
        for (event, after, want) in [
            ("daily", "2026-11-23T11:00:00Z", "2026-11-24T00:00:00Z"),
            ("hourly", "2026-11-23T11:00:00Z", "2026-11-23T12:00:00Z"),
            ("minutely", "2026-11-23T11:00:00.5Z", "2026-11-23T11:01:00Z"),
            ("weekly", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z"),
            ("quarterly", "2026-11-23T00:00:00Z", "2027-01-01T00:00:00Z"),
            ("Mon..Fri 09:00", "2026-11-27T09:00:00Z", "2026-11-30T09:00:00Z"),
            ("Sat,sunday 10:30:15", "2026-11-23T00:00:00Z", "2026-11-28T10:30:15Z"),
            ("*-*-01 00:00:00", "2026-11-23T00:00:00Z", "2026-12-01T00:00:00Z"),
            ("*-02-29", "2026-11-23T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("Mon *-02-29", "2096-03-01T00:00:00Z", "2112-02-29T00:00:00Z"),
            ("*:0/15", "2026-11-23T11:15:00Z", "2026-11-23T11:30:00Z"),
            ("*:*:0/10 UTC", "2026-11-23T11:15:51Z", "2026-11-23T11:16:00Z"),
            ("*-*~01 12:00", "2026-11-23T11:15:51Z", "2026-11-30T12:00:00Z"),
            ("*-02~1", "2027-11-23T11:15:51Z", "2028-02-29T00:00:00Z"),
            ("2027..2030/2-1-1", "2027-01-01T00:00:00Z", "2029-01-01T00:00:00Z"),
            ("12-24 8..10/2:05", "2026-11-23T11:15:51Z", "2026-12-24T08:05:00Z"),
        ] {
            assert_eq!(next(event, after, &TimeZone::UTC).as_deref(), Some(want), "{event} after {after}");
        }
        for never in ["*-02-30", "2020-01-01"] {
            assert_eq!(next(never, "2026-11-23T00:00:00Z", &TimeZone::UTC), None, "{never}");
        }
    }

    #[test]
    fn skipped_times_move_and_doubled_times_count_once() {
        let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        // From 02:00 to 03:00 there is no local time.
        assert_eq!(next("02:30", "2026-03-28T12:00:00Z", &berlin).as_deref(), Some("2026-03-29T01:00:00Z"));
        assert_eq!(next("02:30", "2026-03-29T01:00:00Z", &berlin).as_deref(), Some("2026-03-30T00:30:00Z"));
        // 02:00 to 03:00 occurs twice.
        assert_eq!(next("02:30", "2026-10-24T12:00:00Z", &berlin).as_deref(), Some("2026-10-25T00:30:00Z"));
        assert_eq!(next("02:30", "2026-10-25T00:30:00Z", &berlin).as_deref(), Some("2026-10-26T01:30:00Z"));
        assert_eq!(next("02:30", "2026-10-25T01:10:00Z", &berlin).as_deref(), Some("2026-10-26T01:30:00Z"));
    }

    #[test]
    fn invalid_events_are_refused() {
        for bad in [
            "",
            "UTC",
            "soon",
            "Mon..",
            "Fri..Mon",
            "25:00",
            "*:60",
            "*-13-01",
            "*-00-01",
            "1-2-3-4",
            "*:*:*:*",
            "*/0:00",
            "00:00 Mon",
            "*-*~2",
            "00:00 Europe/Nowhere",
            "5..1:00",
            "daily daily",
            "*:00:00.5",
            "+1:00",
        ] {
            assert!(CalendarEvent::parse(bad).is_err(), "{bad}");
        }
    }

    /// Whether an instant in UTC matches values that the test has chosen itself.
    fn matches(at: Timestamp, hours: u16, minute_step: u16) -> bool {
        let seconds = at.0 / 1_000_000_000;
        let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
        hour == i64::from(hours) && minute % i64::from(minute_step) == 0 && second == 0
    }

    proptest! {
        #[test]
        fn events_are_the_first_that_match(hour in 0_u16..24, step in 1_u16..60, after in 0_i64..4_000_000_000) {
            let event = CalendarEvent::parse(&format!("{hour}:0/{step} UTC")).unwrap();
            let after = Timestamp(after * 1_000_000_000);
            let next = event.next_event(after).unwrap();
            prop_assert!(matches(next, hour, step));
            let minute = 60 * 1_000_000_000;
            let first = after.0 - after.0.rem_euclid(minute) + minute;
            let found = (0..2 * 24 * 60).map(|n| Timestamp(first + n * minute)).find(|at| matches(*at, hour, step));
            prop_assert_eq!(found, Some(next));
        }

        #[test]
        fn events_come_after_the_time(text in "[*0-9:/.,MonFri -]{0,20}", after in 0_i64..4_000_000_000) {
            let after = Timestamp(after * 1_000_000_000);
            if let Ok(event) = CalendarEvent::parse(&text) {
                prop_assert!(event.next_in(after, TimeZone::UTC).is_none_or(|at| at > after));
            }
        }
    }
}
