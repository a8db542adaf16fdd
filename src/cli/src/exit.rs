//! Exit codes: the one place that knows them.
//!
//! | code | means |
//! |---|---|
//! | the app's | `run`, `run-prepared`, `exec`, `attach`: that of the first app that failed, or of the process |
//! | 0 | done |
//! | 1 | there is no such pod, app, image or network (of `run`, `exec`, `attach` and the like: 125); `doctor`: something is wrong |
//! | 125 | gantry itself failed, or the command line makes no sense |
//! | 126 | the command of the app exists and cannot be executed |
//! | 127 | the command of the app does not exist in the image |
//! | 128 + n | signal n ended it; 141 (SIGPIPE): nobody reads our output |

use gantry_model::ErrorKind;

/// Done.
pub(crate) const OK: u8 = 0;
/// What was asked about does not exist, or `doctor` found something.
pub(crate) const NO: u8 = 1;
/// gantry itself failed.
pub(crate) const FAILED: u8 = 125;
/// Nobody reads our standard output: as if SIGPIPE had ended us.
pub(crate) const BROKEN_PIPE: u8 = 128 + 13;

/// Whether a command asks about something, so that its absence is an answer, or needs it to do something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asking {
    /// `status`, `rm`, `stop`, `logs` …: absence is code 1.
    Existence,
    /// `run`, `exec` …: absence is a failure.
    Action,
}

/// The code of a failure.
pub(crate) fn of_failure(kind: ErrorKind, asking: Asking) -> u8 {
    match kind {
        ErrorKind::CommandNotExecutable => 126,
        ErrorKind::CommandNotFound => 127,
        ErrorKind::NotFound => match asking {
            Asking::Existence => NO,
            Asking::Action => FAILED,
        },
        ErrorKind::AlreadyExists
        | ErrorKind::Invalid
        | ErrorKind::Refused
        | ErrorKind::Busy
        | ErrorKind::Unavailable
        | ErrorKind::Denied
        | ErrorKind::Exhausted
        | ErrorKind::Damaged
        | ErrorKind::TimedOut
        | ErrorKind::Internal => FAILED,
    }
}

/// The code of something that has run: its own, kept within a byte.
pub(crate) fn of_app(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(FAILED)
}

/// The code for a process that signal `signal` asked to end.
pub(crate) fn of_signal(signal: i32) -> u8 {
    of_app(signal.saturating_add(128))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        let rows = [
            (ErrorKind::CommandNotFound, 127, 127),
            (ErrorKind::CommandNotExecutable, 126, 126),
            (ErrorKind::NotFound, 1, 125),
            (ErrorKind::Invalid, 125, 125),
            (ErrorKind::Refused, 125, 125),
            (ErrorKind::Internal, 125, 125),
        ];
        for (kind, existence, action) in rows {
            assert_eq!(of_failure(kind, Asking::Existence), existence, "{kind:?}");
            assert_eq!(of_failure(kind, Asking::Action), action, "{kind:?}");
        }
        assert_eq!([of_app(0), of_app(255), of_app(256), of_app(-1)], [0, 255, 125, 125]);
        assert_eq!([of_signal(2), of_signal(15), of_signal(i32::MAX)], [130, 143, 125]);
    }
}
