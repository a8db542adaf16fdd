//! Quantities as Kubernetes writes them (`k8s.io/apimachinery/pkg/api/resource`), as whole numbers.

/// The longest quantity. Kubernetes writes 18 digits, a point and a suffix at most.
const MAX_TEXT: usize = 64;

/// Reads a quantity, rounded up; `None`: it is malformed, negative, or does not fit 64 bits.
///
/// The grammar: digits with an optional point, then a suffix of powers of 1024 (`Ki` to `Ei`), of powers of 1000 (`n`,
/// `u`, `m`, none, `k` to `E`), or an exponent of ten (`e3`, `E3`).
pub(super) fn parse_quantity(text: &str) -> Option<u64> {
    if text.len() > MAX_TEXT {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = u32::try_from(fraction.len()).ok()?;
    let (multiplier, divisor) = factors(suffix)?;
    let numerator = digits.checked_mul(multiplier)?;
    let denominator = divisor.checked_mul(10_u128.checked_pow(scale)?)?;
    u64::try_from(numerator.div_ceil(denominator)).ok()
}

/// The factor of a suffix, as a fraction.
fn factors(suffix: &str) -> Option<(u128, u128)> {
    const BINARY: [&str; 6] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    const DECIMAL: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
    const SMALL: [&str; 3] = ["m", "u", "n"];
    let position = |names: &[&str]| names.iter().position(|name| *name == suffix).and_then(|at| u32::try_from(at).ok());
    if let Some(at) = position(&BINARY) {
        return Some((1 << (10 * (at + 1)), 1));
    }
    if let Some(at) = position(&DECIMAL) {
        return Some((1000_u128.pow(at), 1));
    }
    if let Some(at) = position(&SMALL) {
        return Some((1, 1000_u128.pow(at + 1)));
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs())?;
    Some(if exponent < 0 { (1, power) } else { (power, 1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_whole_numbers() {
        for (text, value) in [
            ("0", 0),
            ("10M", 10_000_000),
            ("1Ki", 1024),
            ("1.5Gi", 3 << 29),
            ("+5k", 5000),
            (".5k", 500),
            ("1500m", 2),
            ("1n", 1),
            ("2e3", 2000),
            ("2E", 2_000_000_000_000_000_000),
            ("5e-1", 1),
        ] {
            assert_eq!(parse_quantity(text), Some(value), "{text}");
        }
        for bad in ["", ".", "-1", "1.2.3", "M", "1 M", "1kk", "1e", "100E", "1e40", "0x1", &"1".repeat(65)] {
            assert_eq!(parse_quantity(bad), None, "{bad}");
        }
    }
}
