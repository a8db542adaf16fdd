//! The exit codes of all commands.
//!
//! | code | meaning |
//! |---|---|
//! | the app's | `run`, `run-prepared`, `attach`: that of the first app that failed; `exec`: that of its program |
//! | 0 | success; `attach`, `run`, `exec`: also after a detach by keys |
//! | 1 | no such pod, app, image or network, for commands that report on one or act on one that exists ([`CommandKind::Query`]); `doctor` found an error |
//! | 125 | gantry itself failed, or the command line is invalid; no such pod, app, image or network, for the other commands ([`CommandKind::Action`]: `run`, `prepare`, `run-prepared`, `exec`, `attach`, `fetch`, `load` …) |
//! | 126 | the command of the app exists but cannot be executed |
//! | 127 | the command of the app does not exist in the image |
//! | 128 + n | the app was killed by signal n; 141 (SIGPIPE): standard output was closed |

use gantry_model::ErrorKind;

/// Success.
pub(crate) const OK: u8 = 0;
/// The object does not exist, or `doctor` found an error.
pub(crate) const NOT_FOUND: u8 = 1;
/// gantry itself failed.
pub(crate) const FAILED: u8 = 125;
/// Standard output was closed: the code of a process killed by SIGPIPE.
pub(crate) const BROKEN_PIPE: u8 = 128 + 13;

/// Decides the exit code when the pod, app, image or network of a command does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// `status`, `inspect`, `rm`, `stop`, `logs` …: code 1.
    Query,
    /// `run`, `exec`, `attach` …: code 125, as for any failure of gantry, because the codes below are the app's or the
    /// program's.
    Action,
}

/// The exit code for a failure.
pub(crate) fn of_failure(kind: ErrorKind, command: CommandKind) -> u8 {
    match kind {
        ErrorKind::CommandNotExecutable => 126,
        ErrorKind::CommandNotFound => 127,
        ErrorKind::NotFound => match command {
            CommandKind::Query => NOT_FOUND,
            CommandKind::Action => FAILED,
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

/// The exit code for an app or process; 125 if its own does not fit into a byte.
pub(crate) fn of_app(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(FAILED)
}

/// The exit code after this signal.
pub(crate) fn of_signal(signal: i32) -> u8 {
    of_app(signal.saturating_add(128))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_follow_error_kinds() {
        let rows = [
            (ErrorKind::CommandNotFound, 127, 127),
            (ErrorKind::CommandNotExecutable, 126, 126),
            (ErrorKind::NotFound, 1, 125),
            (ErrorKind::Invalid, 125, 125),
            (ErrorKind::Refused, 125, 125),
            (ErrorKind::Internal, 125, 125),
        ];
        for (kind, existence, action) in rows {
            assert_eq!(of_failure(kind, CommandKind::Query), existence, "{kind:?}");
            assert_eq!(of_failure(kind, CommandKind::Action), action, "{kind:?}");
        }
        assert_eq!([of_app(0), of_app(255), of_app(256), of_app(-1)], [0, 255, 125, 125]);
        assert_eq!([of_signal(2), of_signal(15), of_signal(i32::MAX)], [130, 143, 125]);
    }
}
