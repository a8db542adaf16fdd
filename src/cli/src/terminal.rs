//! The caller's terminal: raw while an app has one, put back on every way out, and its size.
//!
//! A release build aborts on panic, so nothing is dropped then: the panic hook puts the terminal back. What SIGKILL
//! leaves raw, `reset` repairs; no program can do better.

use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{
    OptionalActions, OutputModes, Termios, Winsize, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};

/// How the terminal was, while it is changed, and on which standard descriptor it is.
static SAVED: Mutex<Option<(BorrowedFd<'static>, Termios)>> = Mutex::new(None);

/// The terminal passes on what an app's terminal has processed already; while this lives.
pub(crate) struct RawMode(());

impl RawMode {
    /// Makes standard input raw when it is a terminal; `None` when it is none. Keys reach the app as they are typed.
    ///
    /// # Errors
    /// The terminal refuses.
    pub(crate) fn enter() -> std::io::Result<Option<Self>> {
        let stdin = rustix::stdio::stdin();
        if !isatty(stdin) {
            return Ok(None);
        }
        Self::change(stdin, Termios::make_raw).map(Some)
    }

    /// Makes only the output of standard output raw, when it is a terminal: for an app that has a terminal and no
    /// input. Line ends come from the app's terminal complete. ctrl-c stays a signal to this program.
    ///
    /// # Errors
    /// The terminal refuses.
    pub(crate) fn enter_output() -> std::io::Result<Option<Self>> {
        let stdout = rustix::stdio::stdout();
        // A background job that changed its terminal would be stopped.
        let in_foreground = tcgetpgrp(stdout).is_ok_and(|group| group == rustix::process::getpgrp());
        if !in_foreground {
            return Ok(None);
        }
        Self::change(stdout, |mode| mode.output_modes.remove(OutputModes::OPOST)).map(Some)
    }

    fn change(terminal: BorrowedFd<'static>, change: impl FnOnce(&mut Termios)) -> std::io::Result<Self> {
        let saved = tcgetattr(terminal)?;
        let mut changed = saved.clone();
        change(&mut changed);
        *lock() = Some((terminal, saved));
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        // Not with a flush: what was typed ahead is meant for the app.
        tcsetattr(terminal, OptionalActions::Now, &changed)?;
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back as it was; nothing when it was not changed. For ways out that drop nothing.
pub(crate) fn restore() {
    if let Some((terminal, saved)) = lock().take() {
        // A terminal that has hung up needs no restoring, and there is nobody left to tell.
        let _ = tcsetattr(terminal, OptionalActions::Now, &saved);
    }
}

fn lock() -> MutexGuard<'static, Option<(BorrowedFd<'static>, Termios)>> {
    SAVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of the caller's terminal, on whichever of the three standard descriptors it is.
pub(crate) fn size() -> Option<Winsize> {
    let all: [BorrowedFd<'static>; 3] = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    all.into_iter().find_map(|fd| tcgetwinsize(fd).ok()).filter(|size| size.ws_row > 0 && size.ws_col > 0)
}

/// Whether a standard descriptor is a terminal, whose resizing sends SIGWINCH to this program.
pub(crate) fn is_any() -> bool {
    use std::io::IsTerminal as _;
    std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal()
}

/// Whether text written to this descriptor may be coloured: it is a terminal that knows colours, and `NO_COLOR` is not set
/// (<https://no-color.org>).
pub(crate) fn has_colors(fd: BorrowedFd<'_>) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    isatty(fd) && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether both descriptors are the same terminal.
pub(crate) fn is_same(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let device = |fd| rustix::fs::fstat(fd).ok().map(|stat| (stat.st_rdev, stat.st_ino));
    isatty(a) && isatty(b) && device(a) == device(b)
}

/// Gives `master` the size of the caller's terminal, when there is one.
pub(crate) fn resize(master: impl AsFd) {
    if let Some(size) = size() {
        // It fails when the app and its terminal are gone, which shows elsewhere.
        let _ = tcsetwinsize(master, size);
    }
}

/// The keys that leave a terminal without ending what runs in it, as docker and podman spell them: `ctrl-p,ctrl-q`.
/// Empty: there are none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

impl Default for DetachKeys {
    fn default() -> Self {
        Self(vec![0x10, 0x11])
    }
}

impl FromStr for DetachKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let key = |name: &str| match (name.as_bytes(), name.strip_prefix("ctrl-").map(str::as_bytes)) {
            (_, Some([letter @ (b'a'..=b'z' | b'A'..=b'Z' | b'@' | b'['..=b'_')])) => Ok(letter & 0x1f),
            ([single @ b'!'..=b'~'], _) => Ok(*single),
            _ => {
                let shown = gantry_model::id::shown(name);
                Err(format!("'{shown}' is not a key: expected one character, or ctrl- and a letter or one of @[\\]^_"))
            }
        };
        text.split(',').map(key).collect::<Result<_, _>>().map(Self)
    }
}

/// Looks for the detach keys in what is typed.
#[derive(Debug)]
pub(crate) struct DetachFilter {
    keys: DetachKeys,
    /// So many of the keys came last and are held back.
    held: usize,
}

impl DetachFilter {
    /// Looks for these.
    pub(crate) fn new(keys: DetachKeys) -> Self {
        Self { keys, held: 0 }
    }

    /// What of `typed` goes to the app, and whether the caller detaches after it.
    pub(crate) fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let keys = &self.keys.0;
        if keys.is_empty() {
            return (typed.to_vec(), false);
        }
        let mut passed = Vec::with_capacity(typed.len() + self.held);
        for &byte in typed {
            let candidate = [&keys[..self.held], &[byte]].concat();
            // The end of what came that may be the beginning of the keys stays held back.
            let rest = (0..=candidate.len()).find(|&at| keys.starts_with(&candidate[at..])).unwrap_or(candidate.len());
            passed.extend_from_slice(&candidate[..rest]);
            self.held = candidate.len() - rest;
            if self.held == keys.len() {
                self.held = 0;
                return (passed, true);
            }
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces typed, bytes passed on, and whether that led out.
    type Row<'a> = (&'a [&'a [u8]], &'a [u8], bool);

    fn typed(keys: &str, pieces: &[&[u8]]) -> (Vec<u8>, bool) {
        let mut filter = DetachFilter::new(keys.parse().unwrap());
        let mut got = Vec::new();
        let mut left = false;
        for piece in pieces {
            let (passed, detach) = filter.pass(piece);
            got.extend(passed);
            left |= detach;
        }
        (got, left)
    }

    #[test]
    fn detaching() {
        let default = "ctrl-p,ctrl-q";
        let rows: [(&str, Row<'_>); 11] = [
            (default, (&[b"abc"], b"abc", false)),
            (default, (&[b"a\x10\x11b"], b"a", true)),
            (default, (&[b"a\x10", b"\x11"], b"a", true)),
            (default, (&[b"a\x10", b"b"], b"a\x10b", false)),
            (default, (&[b"\x10\x10\x11"], b"\x10", true)),
            (default, (&[b"\x11"], b"\x11", false)),
            ("", (&[b"a\x10\x11b"], b"a\x10\x11b", false)),
            ("ctrl-@", (&[b"a\0"], b"a", true)),
            ("ctrl-],x", (&[b"\x1dy\x1dx"], b"\x1dy", true)),
            ("a,a,b", (&[b"aaab"], b"a", true)),
            ("a,b,a,c", (&[b"aba", b"bac"], b"ab", true)),
        ];
        for (keys, (pieces, want, out)) in rows {
            assert_eq!(typed(keys, pieces), (want.to_vec(), out), "{keys} {pieces:?}");
        }
        assert_eq!(default.parse(), Ok(DetachKeys::default()));
        for bad in ["CTRL", "ctrl-", "ctrl-pp", "ab", "ctrl-p,", "é", " "] {
            assert!(bad.parse::<DetachKeys>().is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_is_typed_is_passed_or_held(typed: Vec<u8>, keys in "[a-c](,[a-c]){0,3}") {
            let mut filter = DetachFilter::new(keys.parse().unwrap());
            let (passed, out) = filter.pass(&typed);
            if !out {
                let held = filter.keys.0[..filter.held].to_vec();
                proptest::prop_assert_eq!([passed, held].concat(), typed);
            }
        }
    }
}
