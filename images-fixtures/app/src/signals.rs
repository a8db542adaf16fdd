//! Verbs about signals and terminals. Signals are blocked and waited for, so no handler ever runs.

use crate::output::put;
use crate::{Failure, OK, Outcome, sys};

const NAMES: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("ABRT", 6),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CHLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("WINCH", 28),
    ("SYS", 31),
];

fn parse(text: &str) -> Option<i32> {
    let bare = text.strip_prefix("SIG").unwrap_or(text);
    let named = NAMES.iter().find(|(name, _)| *name == bare).map(|(_, number)| *number);
    named.or_else(|| bare.parse().ok().filter(|number| (1..=64).contains(number)))
}

fn name(signal: i32) -> String {
    NAMES
        .iter()
        .find(|(_, number)| *number == signal)
        .map_or(format!("signal {signal}"), |(name, _)| format!("SIG{name}"))
}

pub(crate) fn raise(args: &[String]) -> Outcome {
    let signal = args.first().and_then(|text| parse(text)).ok_or(Failure::Usage)?;
    if !matches!(signal, libc::SIGKILL | libc::SIGSTOP) {
        sys::default_action(signal)?;
    }
    let pid = i32::try_from(std::process::id()).map_err(|error| Failure::Failed(error.to_string()))?;
    sys::kill(pid, signal)?;
    // Reached only by PID 1 of a namespace, or for a signal whose default action is to ignore it.
    Err(Failure::Failed(format!("still alive after {}", name(signal))))
}

pub(crate) fn obey(args: &[String]) -> Outcome {
    let signal = args.first().and_then(|text| parse(text)).ok_or(Failure::Usage)?;
    let code = if args.len() > 1 { crate::number(args, 1)? } else { OK };
    let set = sys::block(&[signal])?;
    put(format!("obeying {}\n", name(signal)).as_bytes())?;
    let got = sys::next_signal(&set)?;
    put(format!("got {}\n", name(got)).as_bytes())?;
    Ok(code)
}

pub(crate) fn ignore(args: &[String]) -> Outcome {
    let signals: Option<Vec<i32>> = args.iter().map(|text| parse(text)).collect();
    let signals = signals.filter(|list| !list.is_empty()).ok_or(Failure::Usage)?;
    let set = sys::block(&signals)?;
    put(format!("ignoring {}\n", args.join(" ")).as_bytes())?;
    loop {
        let got = sys::next_signal(&set)?;
        put(format!("got {}\n", name(got)).as_bytes())?;
    }
}

pub(crate) fn tty(args: &[String]) -> Outcome {
    let watch = match args {
        [] => false,
        [word] if word == "watch" => true,
        _ => return Err(Failure::Usage),
    };
    // Blocked before the first size is read, so that no change in between is missed.
    let set = sys::block(&[libc::SIGWINCH])?;
    let terminals: Vec<String> = (0..3).map(|fd| format!("{fd}={}", sys::is_terminal(fd))).collect();
    put(format!("tty {}\n", terminals.join(" ")).as_bytes())?;
    loop {
        match sys::window_size(0) {
            Ok((rows, columns)) => put(format!("size {rows}x{columns}\n").as_bytes())?,
            Err(error) => put(format!("size none: {error}\n").as_bytes())?,
        };
        if !watch {
            return Ok(OK);
        }
        sys::next_signal(&set)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signal_names_are_parsed() {
        for (text, want) in
            [("SIGTERM", Some(15)), ("TERM", Some(15)), ("15", Some(15)), ("64", Some(64)), ("65", None)]
        {
            assert_eq!(parse(text), want, "{text}");
        }
        assert_eq!(name(9), "SIGKILL");
        assert_eq!(name(40), "signal 40");
    }
}
