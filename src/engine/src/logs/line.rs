//! One line of a log file in the CRI format: `TIME STREAM TAG TEXT`, TIME in RFC 3339 with nanoseconds, STREAM
//! `stdout` or `stderr`, TAG `F` (whole line, or its last piece) or `P` (a piece; more follows).
//! (Kubernetes, `kubelet-cri-logging`.) Parsed by hand: a log of a gigabyte is read at the speed of the disk.

use gantry_model::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

/// The length of a head that the supervisor writes: time, stream, tag, and the blanks after them.
const HEAD: usize = 40;
/// The part of a time down to the second.
const SECOND: usize = 19;

/// A parsed line, borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogLine<'a> {
    pub(crate) at: Timestamp,
    pub(crate) stderr: bool,
    pub(crate) partial: bool,
    /// Whether another piece of the same line follows (tag `P`).
    pub(crate) piece: bool,
    pub(crate) text: &'a [u8],
}

/// Parses many lines. Lines in the exact format of the supervisor take the fast path, which caches the second of the
/// previous line: most lines have the same.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    second: Option<([u8; SECOND], i64)>,
}

impl Parser {
    /// As [`parse`].
    pub(crate) fn parse<'a>(&mut self, line: &'a [u8]) -> Option<LogLine<'a>> {
        self.fixed(line).or_else(|| parse(line))
    }

    /// `2016-10-06T00:17:09.669794202Z stdout F text`, and nothing else.
    fn fixed<'a>(&mut self, line: &'a [u8]) -> Option<LogLine<'a>> {
        let (head, text) = line.split_first_chunk::<HEAD>()?;
        if head[SECOND] != b'.' || head[29] != b'Z' || head[30] != b' ' || head[37] != b' ' || head[39] != b' ' {
            return None;
        }
        let stderr = match &head[31..37] {
            b"stdout" => false,
            b"stderr" => true,
            _ => return None,
        };
        let piece = match head[38] {
            b'F' => false,
            b'P' => true,
            _ => return None,
        };
        let nanos = number(&head[SECOND + 1..29])?;
        let second = head.first_chunk::<SECOND>()?;
        let begin = match &self.second {
            Some((known, begin)) if known == second => *begin,
            _ => {
                let begin = seconds(second)?.checked_mul(1_000_000_000)?;
                self.second = Some((*second, begin));
                begin
            }
        };
        Some(LogLine { at: Timestamp(begin.checked_add(nanos)?), stderr, partial: piece, piece, text })
    }
}

/// The line without its newline; `None` when it is not in the format.
pub(crate) fn parse(line: &[u8]) -> Option<LogLine<'_>> {
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
    Some(LogLine { at: time(at)?, stderr, partial, piece, text })
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
    let (second, rest) = text.split_first_chunk::<SECOND>()?;
    let (nanos, rest) = fraction(rest)?;
    let seconds = seconds(second)? - offset(rest)?;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos).map(Timestamp)
}

/// `2016-10-06T00:17:09`, in seconds since 1970. Called once for each second of a log, not for each line.
fn seconds(stamp: &[u8; SECOND]) -> Option<i64> {
    let fits = stamp[4] == b'-' && stamp[7] == b'-' && stamp[10] == b'T' && stamp[13] == b':' && stamp[16] == b':';
    if !fits {
        return None;
    }
    let (year, month, day) = (number(&stamp[..4])?, number(&stamp[5..7])?, number(&stamp[8..10])?);
    let (hour, minute, second) = (number(&stamp[11..13])?, number(&stamp[14..16])?, number(&stamp[17..19])?);
    // A leap second is written as second 60, which the calendar does not have.
    if second > 60 {
        return None;
    }
    let [month, day, hour, minute] = [month, day, hour, minute].map(|number| i8::try_from(number).unwrap_or(-1));
    let start = DateTime::new(i16::try_from(year).ok()?, month, day, hour, minute, 0, 0).ok()?;
    Some(Offset::UTC.to_timestamp(start).ok()?.as_second() + second)
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timestamps_are_parsed() {
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
    fn lines_are_parsed() {
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

    #[test]
    fn fast_and_full_parsers_agree() {
        let mut parser = Parser::default();
        let good = "2016-10-06T00:17:09.669794202Z stdout F text";
        let with = |at: usize, with: u8| {
            let mut line = good.as_bytes().to_vec();
            line[at] = with;
            line
        };
        let mut lines: Vec<Vec<u8>> = [
            good,
            "2016-10-06T00:17:09.669794203Z stderr P piece",
            "2016-10-06T00:17:10.000000000Z stdout F ",
            "2016-10-06T00:17:10.000000000Z stdout F",
            "2016-10-06T00:17:10.000000000Z stdout F:noeol x",
            "2016-10-06T00:17:09.66Z stdout F short fraction",
            "9999-10-06T00:17:09.669794202Z stdout F beyond the clock",
        ]
        .map(|line| line.as_bytes().to_vec())
        .into();
        for place in 0..HEAD {
            lines.extend([b'0', b' ', b'Z', 0, 0xff].map(|byte| with(place, byte)));
        }
        lines.push(vec![0; 80]);
        for line in lines {
            assert_eq!(parser.parse(&line), parse(&line), "{}", String::from_utf8_lossy(&line));
            assert_eq!(Parser::default().parse(&line), parse(&line), "{}", String::from_utf8_lossy(&line));
        }
    }

    proptest! {
        #[test]
        fn parsers_never_panic(bytes: Vec<u8>) {
            let _ = (Parser::default().parse(&bytes), parse(&bytes), time(&bytes), time_of(&bytes));
        }

        /// Every time that a supervisor can write is parsed to the same time.
        #[test]
        fn timestamps_round_trip(nanos in 0i64..) {
            let text = Timestamp(nanos).rfc3339();
            prop_assert_eq!(time(text.as_bytes()), Some(Timestamp(nanos)));
        }
    }
}
