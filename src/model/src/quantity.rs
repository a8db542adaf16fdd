//! Parsing of quantities: memory, CPU, durations and sizes.

use std::time::Duration;

use thiserror::Error;

/// A text is not the amount it should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("'{}' is not {what}: expected {expected}", crate::id::shown(.text))]
pub struct QuantityError {
    /// The input.
    pub text: String,
    /// What is expected.
    pub what: &'static str,
    /// How it is written.
    pub expected: &'static str,
}

impl crate::Kind for QuantityError {
    fn kind(&self) -> crate::ErrorKind {
        crate::ErrorKind::Invalid
    }
}

/// Bytes: a number with an optional suffix (`k M G T` powers of 1000, `Ki Mi Gi Ti` powers of 1024), as Kubernetes
/// writes quantities. With a suffix, the number may have up to nine decimals; a part of a byte is dropped.
///
/// # Errors
/// [`QuantityError`] when the text is anything else, or does not fit 64 bits.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    const SUFFIXES: [(&str, u64); 9] = [
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("k", 1_000),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let refuse = || QuantityError {
        text: text.to_owned(),
        what: "an amount of memory",
        expected: "a whole number of bytes, or a number with k, M, G, Ki, Mi or Gi, such as 64Mi or 1.5Gi",
    };
    let with_suffix = |(suffix, factor): &(&str, u64)| Some((text.strip_suffix(suffix)?, *factor));
    let amount = match SUFFIXES.iter().find_map(with_suffix) {
        Some((number, factor)) => scaled(number, factor),
        None => digits(text),
    };
    amount.ok_or_else(refuse)
}

/// A decimal number of at most nine decimals, multiplied and rounded down. None if it is rounded down to zero: zero is
/// no limit.
fn scaled(number: &str, factor: u64) -> Option<u64> {
    let (whole, decimals) = match number.split_once('.') {
        Some(("", decimals)) => ("0", decimals),
        Some(parts) => parts,
        None => (number, "0"),
    };
    let whole = digits(whole)?;
    let digit_count = u32::try_from(decimals.len()).ok().filter(|count| *count <= 9)?;
    let part = u128::from(digits(decimals)?) * u128::from(factor) / 10u128.pow(digit_count);
    let product = u64::try_from(u128::from(whole) * u128::from(factor) + part).ok()?;
    let is_zero = number.bytes().all(|digit| matches!(digit, b'0' | b'.'));
    (product > 0 || is_zero).then_some(product)
}

/// Bytes as the command line takes them: a number with an optional suffix in any case, as in docker: `b`, or
/// `k m g t p` for powers of 1024, alone or followed by `b`, `i` or `ib`. As in [`bytes`], a number with a suffix may
/// have decimals.
///
/// # Errors
/// [`QuantityError`] when the text is anything else, or does not fit 64 bits.
pub fn memory(text: &str) -> Result<u64, QuantityError> {
    let (number, suffix) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()));
    let amount = match suffix {
        "" | "b" | "B" => digits(number),
        _ => binary_factor(suffix).and_then(|factor| scaled(number, factor)),
    };
    amount.ok_or_else(|| QuantityError {
        text: text.to_owned(),
        what: "an amount of memory",
        expected: "a whole number of bytes, or a number with k, m, g, t or p, such as 64m, 64MiB or 1.5g",
    })
}

/// The power of 1024 that a suffix stands for.
fn binary_factor(suffix: &str) -> Option<u64> {
    let (unit, rest) = suffix.split_at_checked(1)?;
    if !["", "b", "i", "ib"].iter().any(|known| rest.eq_ignore_ascii_case(known)) {
        return None;
    }
    match unit.as_bytes() {
        b"k" | b"K" => Some(1 << 10),
        b"m" | b"M" => Some(1 << 20),
        b"g" | b"G" => Some(1 << 30),
        b"t" | b"T" => Some(1 << 40),
        b"p" | b"P" => Some(1 << 50),
        _ => None,
    }
}

/// Cpu in thousandths of a core: `500m`, `2`, `0.5`, `.5`. At most nine decimals, as in docker; digits after the third
/// are ignored.
///
/// # Errors
/// [`QuantityError`] when the text is anything else, less than a thousandth, or more than a million cores.
pub fn millicpu(text: &str) -> Result<u64, QuantityError> {
    cpu_limit(text)?.ok_or_else(|| no_cpu(text))
}

/// As [`millicpu`]; 0 is no limit.
///
/// # Errors
/// [`QuantityError`] when the text is anything else.
pub fn cpu_limit(text: &str) -> Result<Option<u64>, QuantityError> {
    let milli = match text.strip_suffix('m') {
        Some(milli) => digits(milli),
        None => scaled(text, 1000),
    };
    match milli {
        Some(milli @ 0..=1_000_000_000) => Ok(Some(milli).filter(|milli| *milli > 0)),
        Some(_) | None => Err(no_cpu(text)),
    }
}

fn no_cpu(text: &str) -> QuantityError {
    QuantityError {
        text: text.to_owned(),
        what: "an amount of cpu",
        expected: "cores such as 2 or 0.5, or thousandths of a core such as 500m",
    }
}

/// Milliseconds, as contracts and rows have them; at most [`u64::MAX`].
#[must_use]
pub fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A duration as Go and systemd write it: one or more of `d h m s ms us µs ns`, such as `1h30m` or `1m30.5s`; a bare
/// `0` too. Each part is at most 584 years.
///
/// # Errors
/// [`QuantityError`] when the text is anything else.
pub fn duration(text: &str) -> Result<Duration, QuantityError> {
    let refuse =
        || QuantityError { text: text.to_owned(), what: "a duration", expected: "such as 90s, 30m, 24h or 1h30m" };
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let is_of_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_of_number(c)).ok_or_else(refuse)?;
        let unit_end = rest[end..].find(is_of_number).map_or(rest.len(), |n| end + n);
        let nanoseconds: u64 = match &rest[end..unit_end] {
            "ns" => 1,
            // The micro sign and the Greek letter, as in Go.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(refuse()),
        };
        let part = scaled(&rest[..end], nanoseconds).map(Duration::from_nanos).ok_or_else(refuse)?;
        total = total.checked_add(part).ok_or_else(refuse)?;
        rest = &rest[unit_end..];
    }
    if text.is_empty() { Err(refuse()) } else { Ok(total) }
}

/// Digits only: no sign, no space, which `u64::from_str` would let through.
fn digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|c| c.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_sizes_are_parsed() {
        for (text, want) in [
            ("4096", 4096),
            ("64Mi", 64 << 20),
            ("50M", 50_000_000),
            ("1.5Gi", 3 << 29),
            (".25k", 250),
            ("1.1Ki", 1126),
        ] {
            assert_eq!(bytes(text).ok(), Some(want), "{text}");
        }
        let bad = [
            "",
            "Mi",
            "-1",
            "+1",
            "1.5",
            "1.Gi",
            ".Gi",
            "1.1.1Gi",
            "1 Mi",
            "99999999999999999999",
            "16777216Ti",
            "1.0000000000k",
            "0.0004k",
        ];
        for bad in bad {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn units_of_the_command_line_are_binary() {
        for suffix in ["m", "M", "mb", "MB", "mB", "Mb", "mi", "Mi", "mib", "MiB", "MIB"] {
            assert_eq!(memory(&format!("64{suffix}")).ok(), Some(64 << 20), "{suffix}");
        }
        for (text, want) in [
            ("0", 0),
            ("4096", 4096),
            ("4096b", 4096),
            ("512k", 512 << 10),
            ("1.5G", 3 << 29),
            ("1TiB", 1 << 40),
            ("2P", 1 << 51),
        ] {
            assert_eq!(memory(text).ok(), Some(want), "{text}");
        }
        for bad in
            ["", "m", "b", "1.5", "1.5b", "-1m", "+1m", "64 m", "64bb", "64x", "64mx", "64mbi", "16384p", "é", "6é"]
        {
            assert!(memory(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn cpu_amounts_are_parsed() {
        for (text, want) in
            [("500m", 500), ("2", 2000), ("0.5", 500), (".5", 500), ("1.25", 1250), ("0.001", 1), ("0.0625", 62)]
        {
            assert_eq!(millicpu(text).ok(), Some(want), "{text}");
        }
        for bad in ["", "m", "0", "0m", "-1", "1.", ".", "1.2345678901", "0.0009", "1.5m", "1e3"] {
            assert!(millicpu(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_are_parsed() {
        for (text, want) in [("0", 0), ("90s", 90_000), ("1h30m", 5_400_000), ("250ms", 250), ("2d", 172_800_000)] {
            assert_eq!(duration(text).ok(), Some(Duration::from_millis(want)), "{text}");
        }
        for (text, want) in
            [("1m30.5s", 90_500_000_000), (".5ms", 500_000), ("3us", 3_000), ("3\u{b5}s", 3_000), ("7ns", 7)]
        {
            assert_eq!(duration(text).ok(), Some(Duration::from_nanos(want)), "{text}");
        }
        for bad in ["", "5", "s", "1x", "1h30", "-1s", "1.s", "1..5s", "0.5ns", "99999999999999999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn parsers_never_panic(text: String) {
            let _ = (bytes(&text), memory(&text), millicpu(&text), duration(&text));
        }
    }
}
