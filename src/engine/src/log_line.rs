//! One line of a log file in the CRI format: `TIME STREAM TAG TEXT`, TIME in RFC 3339 with nanoseconds, STREAM
//! `stdout` or `stderr`, TAG `F` (whole line, or its last piece) or `P` (a piece; more follows).
//! (Kubernetes, `kubelet-cri-logging`.) Parsed by hand: a log of a gigabyte is read at the speed of the disk.

use gantry_model::{AppName, Timestamp};

/// A line, or a piece of one, that an app wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// Which app.
    pub app: AppName,
    /// When the supervisor read it.
    pub at: Timestamp,
    /// Whether it came from stderr.
    pub stderr: bool,
    /// Whether the line goes on in the next one of the same stream, or ended without a newline.
    pub partial: bool,
    /// The bytes as written, without the newline.
    pub text: Vec<u8>,
}

/// A parsed line, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parsed<'a> {
    pub(crate) at: Timestamp,
    pub(crate) stderr: bool,
    pub(crate) partial: bool,
    /// Whether this is a piece that another one of the same line follows (tag `P`).
    pub(crate) piece: bool,
    pub(crate) text: &'a [u8],
}

/// The line without its newline; `None` when it is not in the format.
pub(crate) fn parse(line: &[u8]) -> Option<Parsed<'_>> {
    let (at, rest) = word(line)?;
    let (stream, rest) = word(rest)?;
    let (tag, text) = word(rest).unwrap_or((rest, &[]));
    let stderr = match stream {
        b"stdout" => false,
        b"stderr" => true,
        _ => return None,
    };
    // Tags are separated by colons. The first is CRI's; `noeol` is the supervisor's: the app wrote no newline.
    let mut tags = tag.split(|&c| c == b':');
    let piece = match tags.next()? {
        b"F" => false,
        b"P" => true,
        _ => return None,
    };
    let partial = piece || tags.any(|tag| tag == b"noeol");
    Some(Parsed { at: time(at)?, stderr, partial, piece, text })
}

/// Only the time of a line.
pub(crate) fn time_of(line: &[u8]) -> Option<Timestamp> {
    time(word(line)?.0)
}

fn word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = line.iter().position(|&c| c == b' ')?;
    Some((&line[..at], &line[at + 1..]))
}

/// An RFC 3339 time: `2016-10-06T00:17:09.669794202Z`, or with an offset such as `+02:00`.
pub(crate) fn time(text: &[u8]) -> Option<Timestamp> {
    let (stamp, rest) = text.split_at_checked(19)?;
    let fits = stamp[4] == b'-' && stamp[7] == b'-' && stamp[10] == b'T' && stamp[13] == b':' && stamp[16] == b':';
    if !fits {
        return None;
    }
    let (year, month, day) = (number(&stamp[..4])?, number(&stamp[5..7])?, number(&stamp[8..10])?);
    let (hour, minute, second) = (number(&stamp[11..13])?, number(&stamp[14..16])?, number(&stamp[17..19])?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (nanos, rest) = fraction(rest)?;
    let offset = offset(rest)?;
    let seconds = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos).map(Timestamp)
}

fn number(digits: &[u8]) -> Option<i64> {
    let digit = |sum: i64, &c: &u8| c.is_ascii_digit().then(|| sum * 10 + i64::from(c - b'0'));
    digits.iter().try_fold(0, digit)
}

fn fraction(rest: &[u8]) -> Option<(i64, &[u8])> {
    let Some(digits) = rest.strip_prefix(b".") else { return Some((0, rest)) };
    let count = digits.iter().take_while(|c| c.is_ascii_digit()).count();
    if !(1..=9).contains(&count) {
        return None;
    }
    let scale = 10i64.pow(u32::try_from(9 - count).ok()?);
    Some((number(&digits[..count])? * scale, &digits[count..]))
}

/// Seconds east of UTC.
fn offset(rest: &[u8]) -> Option<i64> {
    match rest {
        b"Z" | b"z" => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let (hours, minutes) = (number(&[*h1, *h2])?, number(&[*m1, *m2])?);
            let seconds = hours * 3600 + minutes * 60;
            (hours <= 23 && minutes <= 59).then_some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => None,
    }
}

/// Days since 1970-01-01 in the Gregorian calendar. Years begin in March, so that leap days come last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times() {
        for (text, want) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("1970-01-01T00:00:00.5Z", Some(500_000_000)),
            ("2016-10-06T00:17:09.669794202Z", Some(1_475_713_029_669_794_202)),
            ("2016-10-06T02:17:09.669794202+02:00", Some(1_475_713_029_669_794_202)),
            ("2000-02-29T23:59:59Z", Some(951_868_799_000_000_000)),
            ("1969-12-31T23:59:59.999999999Z", Some(-1)),
            ("2016-10-06T00:17:09.Z", None),
            ("2016-10-06T00:17:09", None),
            ("2016-13-06T00:17:09Z", None),
            ("2016-10-06 00:17:09Z", None),
            ("9999-12-31T00:00:00Z", None),
            ("-016-10-06T00:17:09Z", None),
            ("", None),
        ] {
            assert_eq!(time(text.as_bytes()).map(|t| t.0), want, "{text}");
        }
    }

    #[test]
    fn lines() {
        let row = |line: &'static str| parse(line.as_bytes()).map(|p| (p.stderr, p.partial, p.text));
        assert_eq!(row("1970-01-01T00:00:00Z stdout F a b"), Some((false, false, &b"a b"[..])));
        assert_eq!(row("1970-01-01T00:00:00Z stderr P  x"), Some((true, true, &b" x"[..])));
        assert_eq!(row("1970-01-01T00:00:00Z stdout F "), Some((false, false, &b""[..])));
        assert_eq!(row("1970-01-01T00:00:00Z stdout F:new x"), Some((false, false, &b"x"[..])));
        for bad in
            ["", "x", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z stdin F x", "1970-01-01T00:00:00Z stdout Q x"]
        {
            assert_eq!(row(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(bytes: Vec<u8>) {
            let _ = (parse(&bytes), time(&bytes), time_of(&bytes));
        }

        /// Every day of the calendar has the number that follows its predecessor's.
        #[test]
        fn days_follow_each_other(day in 0i64..200_000) {
            let (mut year, mut rest) = (1970, day);
            let leap = |y: i64| y % 4 == 0 && (y % 100 != 0 || y % 400 == 0);
            while rest >= 365 + i64::from(leap(year)) {
                rest -= 365 + i64::from(leap(year));
                year += 1;
            }
            let lengths = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            let mut month = 0;
            while rest >= lengths[month] {
                rest -= lengths[month];
                month += 1;
            }
            prop_assert_eq!(days(year, month as i64 + 1, rest + 1), day);
        }
    }
}
