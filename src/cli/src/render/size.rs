//! Bytes for people.

/// `123B`, `1.5MiB`: powers of 1024 with one decimal.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "";
    for name in UNITS {
        tenths = (tenths + 512) / 1024;
        unit = name;
        if tenths < 10_240 {
            break;
        }
    }
    format!("{}.{}{unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_formatted() {
        for (bytes, want) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.0KiB"),
            (1536, "1.5KiB"),
            (10 << 20, "10.0MiB"),
            (1 << 40, "1.0TiB"),
            (u64::MAX, "16.0EiB"),
        ] {
            assert_eq!(super::human(bytes), want);
        }
    }
}
