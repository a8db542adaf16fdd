//! The caller's terminal: raw while an app has one, put back on every way out, and its size.
//!
//! A release build aborts on panic, so nothing is dropped then: the panic hook puts the terminal back. What SIGKILL
//! leaves raw, `reset` repairs; no program can do better.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::termios::{OptionalActions, Termios, Winsize, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};

/// How the terminal was, while it is raw.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Standard input is a raw terminal while this lives.
pub(crate) struct RawMode(());

impl RawMode {
    /// Makes standard input raw when it is a terminal; `None` when it is none.
    ///
    /// # Errors
    /// The terminal refuses.
    pub(crate) fn enter() -> std::io::Result<Option<Self>> {
        let stdin = rustix::stdio::stdin();
        if !isatty(stdin) {
            return Ok(None);
        }
        let saved = tcgetattr(stdin)?;
        let mut raw = saved.clone();
        raw.make_raw();
        *lock() = Some(saved);
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
        // Not with a flush: what was typed ahead is meant for the app.
        tcsetattr(stdin, OptionalActions::Now, &raw)?;
        Ok(Some(Self(())))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

/// Puts the terminal back as it was; nothing when it is not raw. For ways out that drop nothing.
pub(crate) fn restore() {
    if let Some(saved) = lock().take() {
        // A terminal that has hung up needs no restoring, and there is nobody left to tell.
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, &saved);
    }
}

fn lock() -> MutexGuard<'static, Option<Termios>> {
    SAVED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of the caller's terminal, on whichever of the three standard descriptors it is.
pub(crate) fn size() -> Option<Winsize> {
    let all: [BorrowedFd<'static>; 3] = [rustix::stdio::stdin(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    all.into_iter().find_map(|fd| tcgetwinsize(fd).ok()).filter(|size| size.ws_row > 0 && size.ws_col > 0)
}

/// Gives `master` the size of the caller's terminal, when there is one.
pub(crate) fn resize(master: impl AsFd) {
    if let Some(size) = size() {
        // It fails when the app and its terminal are gone, which shows elsewhere.
        let _ = tcsetwinsize(master, size);
    }
}

/// docker's and podman's way out of a terminal without ending what runs in it: ctrl-p ctrl-q.
#[derive(Debug, Default)]
pub(crate) struct DetachKeys {
    /// ctrl-p came last and is held back.
    held: bool,
}

const CTRL_P: u8 = 0x10;
const CTRL_Q: u8 = 0x11;

impl DetachKeys {
    /// What of `typed` goes to the app, and whether the caller wants out after it.
    pub(crate) fn pass(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            match (self.held, byte) {
                (true, CTRL_Q) => return (passed, true),
                (true, CTRL_P) => passed.push(CTRL_P),
                (true, _) => {
                    passed.extend([CTRL_P, byte]);
                    self.held = false;
                }
                (false, CTRL_P) => self.held = true,
                (false, _) => passed.push(byte),
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

    #[test]
    fn the_way_out() {
        let rows: [Row<'_>; 6] = [
            (&[b"abc"], b"abc", false),
            (&[b"a\x10\x11b"], b"a", true),
            (&[b"a\x10", b"\x11"], b"a", true),
            (&[b"a\x10", b"b"], b"a\x10b", false),
            (&[b"\x10\x10\x11"], b"\x10", true),
            (&[b"\x11"], b"\x11", false),
        ];
        for (pieces, want, out) in rows {
            let mut keys = DetachKeys::default();
            let mut got = Vec::new();
            let mut left = false;
            for piece in pieces {
                let (passed, detach) = keys.pass(piece);
                got.extend(passed);
                left |= detach;
            }
            assert_eq!((got.as_slice(), left), (want, out), "{pieces:?}");
        }
    }
}
