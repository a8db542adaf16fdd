//! Signals by name and number (signal(7), x86 and arm).

use crate::id::shown;
use crate::spec::SpecError;

/// The names of the signals from 1 on, without SIG.
pub const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];
const RTMIN: u8 = 34;
const RTMAX: u8 = 64;

/// The number of a signal written as a number, or as a name with or without `SIG`; real-time ones as `RTMIN+n` and
/// `RTMAX-n`.
///
/// # Errors
/// [`SpecError`].
pub fn parse(text: &str) -> Result<u8, SpecError> {
    let upper = text.to_ascii_uppercase();
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit()).then(|| text.parse::<u8>().ok()).flatten();
    // Other names of signals (signal(7)).
    let name = match name {
        "POLL" => "IO",
        "CLD" => "CHLD",
        "IOT" => "ABRT",
        name => name,
    };
    let named = NAMES.iter().position(|known| *known == name).and_then(|at| u8::try_from(at + 1).ok());
    let offset = |prefix: &str| name.strip_prefix(prefix).and_then(digits);
    let number = named
        .or_else(|| (name == "RTMIN").then_some(RTMIN))
        .or_else(|| (name == "RTMAX").then_some(RTMAX))
        .or_else(|| offset("RTMIN+").and_then(|n| RTMIN.checked_add(n)))
        .or_else(|| offset("RTMAX-").and_then(|n| RTMAX.checked_sub(n)))
        .or_else(|| digits(text));
    number.filter(|n| (1..=RTMAX).contains(n)).ok_or_else(|| {
        SpecError::new(format!("'{}' is not a signal: expected a name such as SIGTERM, or 1 to 64", shown(text)))
    })
}

/// The name of a signal: `SIGKILL`, `SIGRTMIN+3`; a number that is no signal: the number.
#[must_use]
pub fn name(number: u8) -> String {
    match (number, number.checked_sub(1).and_then(|at| NAMES.get(usize::from(at)))) {
        (_, Some(name)) => format!("SIG{name}"),
        (RTMIN, None) => "SIGRTMIN".to_owned(),
        (RTMIN..=RTMAX, None) => format!("SIGRTMIN+{}", number - RTMIN),
        (_, None) => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_names_and_numbers_are_parsed() {
        for (text, want) in [("SIGTERM", 15), ("term", 15), ("9", 9), ("RTMIN+3", 37), ("SIGRTMAX-14", 50), ("64", 64)]
        {
            assert_eq!(parse(text), Ok(want), "{text}");
        }
        for bad in ["", "0", "65", "-9", "+9", "SIG", "SIG9", "TERMX", "RTMIN+99", "9 ", "é"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
