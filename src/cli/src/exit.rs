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

/// The exit code of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExitStatus(u8);

impl ExitStatus {
    /// Success.
    pub(crate) const OK: Self = Self(0);
    /// The object does not exist, or `doctor` found an error.
    pub(crate) const NOT_FOUND: Self = Self(1);
    /// gantry itself failed.
    pub(crate) const FAILED: Self = Self(125);
    /// Standard output was closed: the code of a process killed by SIGPIPE.
    pub(crate) const BROKEN_PIPE: Self = Self(128 + 13);

    /// That of a failure.
    pub(crate) fn of_failure(kind: ErrorKind, command: CommandKind) -> Self {
        match kind {
            ErrorKind::CommandNotExecutable => Self(126),
            ErrorKind::CommandNotFound => Self(127),
            ErrorKind::NotFound => match command {
                CommandKind::Query => Self::NOT_FOUND,
                CommandKind::Action => Self::FAILED,
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
            | ErrorKind::Internal => Self::FAILED,
        }
    }

    /// That of an app or process; 125 if its own does not fit into a byte.
    pub(crate) fn of_app(code: i32) -> Self {
        u8::try_from(code).map_or(Self::FAILED, Self)
    }

    /// That of a process which this signal killed.
    pub(crate) fn of_signal(signal: i32) -> Self {
        Self::of_app(signal.saturating_add(128))
    }

    /// The higher of both: the exit code of a command that acts on several objects.
    pub(crate) fn worst(self, other: Self) -> Self {
        Self(self.0.max(other.0))
    }
}

impl From<ExitStatus> for std::process::ExitCode {
    fn from(status: ExitStatus) -> Self {
        status.0.into()
    }
}

/// For [`std::process::exit`].
impl From<ExitStatus> for i32 {
    fn from(status: ExitStatus) -> Self {
        status.0.into()
    }
}

/// Decides the exit code when the pod, app, image or network of a command does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandKind {
    /// `status`, `inspect`, `rm`, `stop`, `logs` …: code 1.
    Query,
    /// `run`, `exec`, `attach` …: code 125, as for any failure of gantry, because the codes below are the app's or the
    /// program's.
    Action,
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
            assert_eq!(ExitStatus::of_failure(kind, CommandKind::Query), ExitStatus(existence), "{kind:?}");
            assert_eq!(ExitStatus::of_failure(kind, CommandKind::Action), ExitStatus(action), "{kind:?}");
        }
        assert_eq!([0, 255, 256, -1].map(ExitStatus::of_app), [0, 255, 125, 125].map(ExitStatus));
        assert_eq!([2, 15, i32::MAX].map(ExitStatus::of_signal), [130, 143, 125].map(ExitStatus));
        assert_eq!(ExitStatus::NOT_FOUND.worst(ExitStatus::OK), ExitStatus::NOT_FOUND);
    }
}
