//! The caller's terminal: its size, its colours, raw mode and the alternate screen, which are undone whenever the
//! process exits.
//!
//! A release build aborts on panic without running destructors, so a panic hook restores the terminal. After SIGKILL it
//! stays raw; reset(1) restores it.

use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{
    OptionalActions, OutputModes, Termios, Winsize, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetwinsize,
};

use crate::exit::ExitStatus;
use crate::relay;
use crate::signals::{ENDING, Signals};

/// The original mode of the terminal while it is changed, and its standard descriptor.
type SavedMode = Option<(BorrowedFd<'static>, Termios)>;

static SAVED: Mutex<SavedMode> = Mutex::new(None);

/// The terminal is raw while this value exists: the terminal of the app processes its input and output.
pub(crate) struct RawMode(());

impl RawMode {
    /// Makes standard input raw, so that keys reach the app unprocessed. `None`: it is not a terminal.
    ///
    /// # Errors
    /// The mode cannot be changed.
    pub(crate) fn enter() -> std::io::Result<Option<Self>> {
        let stdin = rustix::stdio::stdin();
        if !isatty(stdin) {
            return Ok(None);
        }
        Self::change(stdin, Termios::make_raw).map(Some)
    }

    /// Makes only the output of standard output raw, for an app with a terminal but no input: its terminal has already
    /// converted line ends. ctrl-c still sends SIGINT to this process. `None`: it is not a terminal in the foreground.
    ///
    /// # Errors
    /// The mode cannot be changed.
    pub(crate) fn enter_output() -> std::io::Result<Option<Self>> {
        let stdout = rustix::stdio::stdout();
        // The kernel stops a background job that changes its terminal (SIGTTOU).
        let in_foreground = tcgetpgrp(stdout).is_ok_and(|group| group == rustix::process::getpgrp());
        if !in_foreground {
            return Ok(None);
        }
        Self::change(stdout, |mode| mode.output_modes.remove(OutputModes::OPOST)).map(Some)
    }

    fn change(terminal: BorrowedFd<'static>, change: impl FnOnce(&mut Termios)) -> std::io::Result<Self> {
        let original = tcgetattr(terminal)?;
        let mut changed = original.clone();
        change(&mut changed);
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        // Locked until the mode is changed: a thread that restores it meanwhile would find it unchanged. The panic hook
        // takes this lock, so nothing that may panic runs below.
        let mut saved = lock();
        // Without a flush: input typed ahead is for the app.
        tcsetattr(terminal, OptionalActions::Now, &changed)?;
        *saved = Some((terminal, original));
        Ok(Self(()))
    }
}

/// The alternate screen in raw mode, without a cursor, while this value exists.
pub(crate) struct FullScreen {
    _mode: RawMode,
}

/// Whether the alternate screen is shown.
static IN_FULL_SCREEN: AtomicBool = AtomicBool::new(false);
/// Saves the cursor and shows the alternate screen, then hides the cursor (xterm's private modes 1049 and 25).
const ENTER_SCREEN: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[2J";
/// Shows the cursor and the normal screen.
const LEAVE_SCREEN: &[u8] = b"\x1b[?25h\x1b[?1049l";

impl FullScreen {
    /// Shows the alternate screen; raw mode, so that keys arrive at once. `None`: standard input is not a terminal.
    ///
    /// # Errors
    /// The mode cannot be changed, or the terminal cannot be written to.
    pub(crate) fn enter() -> std::io::Result<Option<Self>> {
        let Some(mode) = RawMode::enter()? else { return Ok(None) };
        IN_FULL_SCREEN.store(true, Ordering::SeqCst);
        relay::write_all(rustix::stdio::stdout(), ENTER_SCREEN)?;
        Ok(Some(Self { _mode: mode }))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if its mode was changed. For exits that run no destructors.
pub(crate) fn restore() {
    restore_saved(&mut lock());
}

/// Restores the terminal and exits. No other thread changes its mode in between.
pub(crate) fn restore_and_exit(status: ExitStatus) -> ! {
    // Locked until the exit.
    let mut saved = lock();
    restore_saved(&mut saved);
    std::process::exit(status.into())
}

fn restore_saved(saved: &mut SavedMode) {
    if IN_FULL_SCREEN.swap(false, Ordering::SeqCst) {
        // Not through the buffer of std, whose lock a panicking thread may hold.
        let _hung_up = rustix::io::write(rustix::stdio::stdout(), LEAVE_SCREEN);
    }
    if let Some((terminal, original)) = saved.take() {
        // This fails only if the terminal has hung up, and then there is nothing to restore.
        let _hung_up = tcsetattr(terminal, OptionalActions::Now, &original);
    }
}

/// From now on, a signal that ends this process restores the terminal first. A thread handles it, so that it takes
/// effect also while another one blocks in a write.
///
/// # Errors
/// No file descriptors or threads are left.
pub(crate) fn restore_at_signals() -> std::io::Result<()> {
    let mut signals = Signals::catch(ENDING)?;
    let wait = move || {
        let signal = signals.wait().first().copied().unwrap_or_default();
        restore_and_exit(ExitStatus::of_signal(signal));
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(wait).map(drop)
}

fn lock() -> MutexGuard<'static, SavedMode> {
    SAVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of the caller's terminal: of the first standard descriptor that is one.
pub(crate) fn size() -> Option<Winsize> {
    let all: [BorrowedFd<'static>; 3] = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    all.into_iter().find_map(|fd| tcgetwinsize(fd).ok()).filter(|size| size.ws_row > 0 && size.ws_col > 0)
}

/// Rows and columns of the caller's terminal.
pub(crate) fn rows_and_columns() -> Option<(u16, u16)> {
    size().map(|size| (size.ws_row, size.ws_col))
}

/// Whether any standard descriptor is a terminal. Resizing it sends SIGWINCH to this process.
pub(crate) fn is_any() -> bool {
    use std::io::IsTerminal as _;
    std::io::stdin().is_terminal() || std::io::stdout().is_terminal() || std::io::stderr().is_terminal()
}

/// Whether text written to this descriptor may be coloured: it is a terminal that knows colours, and `NO_COLOR` is not
/// set (<https://no-color.org>).
pub(crate) fn has_colors(fd: BorrowedFd<'_>) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    isatty(fd) && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether both descriptors are the same terminal.
pub(crate) fn is_same(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let device = |fd| rustix::fs::fstat(fd).ok().map(|stat| (stat.st_rdev, stat.st_ino));
    isatty(a) && isatty(b) && device(a) == device(b)
}

/// Sets the size of `master` to that of the caller's terminal, if there is one.
pub(crate) fn resize(master: impl AsFd) {
    if let Some(size) = size() {
        // This fails only if the app has exited and closed its terminal.
        let _app_is_gone = tcsetwinsize(master, size);
    }
}

/// Ends the input of a terminal in canonical mode, or passes on a line that has begun (termios(3), VEOF).
const CTRL_D: u8 = 0x04;

/// The bytes that end the input of a terminal after the byte typed last. Closing a terminal's descriptor does not end
/// its input; ctrl-d at the beginning of a line does.
pub(crate) fn end_of_input(last: Option<u8>) -> &'static [u8] {
    match last {
        None | Some(b'\n' | b'\r' | CTRL_D) => &[CTRL_D],
        Some(_) => &[CTRL_D, CTRL_D],
    }
}

/// The key sequence to detach from a terminal, in the syntax of docker and podman: `ctrl-p,ctrl-q`. Empty: none.
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

/// Finds the detach keys in typed input.
#[derive(Debug)]
pub(crate) struct DetachFilter {
    keys: DetachKeys,
    /// The number of detach keys matched so far; they are held back.
    held: usize,
}

impl DetachFilter {
    pub(crate) fn new(keys: DetachKeys) -> Self {
        Self { keys, held: 0 }
    }

    /// Returns the part of `typed` that goes to the app, and whether the caller detaches after it.
    pub(crate) fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let keys = &self.keys.0;
        if keys.is_empty() {
            return (typed.to_vec(), false);
        }
        let mut passed = Vec::with_capacity(typed.len() + self.held);
        for &byte in typed {
            let candidate = [&keys[..self.held], &[byte]].concat();
            // The longest end of the input that is a prefix of the keys is held back.
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
    fn detach_keys_are_recognized() {
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
        fn typed_bytes_are_passed_or_withheld(typed: Vec<u8>, keys in "[a-c](,[a-c]){0,3}") {
            let mut filter = DetachFilter::new(keys.parse().unwrap());
            let (passed, out) = filter.pass(&typed);
            if !out {
                let held = filter.keys.0[..filter.held].to_vec();
                proptest::prop_assert_eq!([passed, held].concat(), typed);
            }
        }
    }
}
