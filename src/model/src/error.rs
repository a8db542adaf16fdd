//! The kinds of errors that callers distinguish.
//!
//! Every public error type of the workspace implements [`Kind`]. Kinds are mapped to exit codes in
//! `src/cli/src/exit.rs` and to gRPC status codes in `src/api/src/status.rs`.

/// The kind of a failure, as far as callers distinguish it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The pod, app, image or file named does not exist.
    NotFound,
    /// It exists already.
    AlreadyExists,
    /// The input is malformed or out of range; the same call can never succeed.
    Invalid,
    /// The thing is in a state in which this cannot be done.
    Refused,
    /// Another process holds it; retrying later may help.
    Busy,
    /// A peer (registry, disk, kernel feature) did not deliver; trying again later may help.
    Unavailable,
    /// The caller may not do this (not root, file permissions, a registry's 401 or 403).
    Denied,
    /// No space, memory or descriptors are left, or a limit was reached.
    Exhausted,
    /// Data on disk or from a peer is damaged (a digest or a check does not match).
    Damaged,
    /// The command of the app does not exist in its image (exit code 127).
    CommandNotFound,
    /// The command of the app exists and cannot be executed (exit code 126).
    CommandNotExecutable,
    /// A deadline passed.
    TimedOut,
    /// A bug or an unforeseen failure of the system.
    Internal,
}

/// The messages of an error and its causes, without repetitions: a transparent wrapper has the message of its cause.
#[must_use]
pub fn messages(error: &dyn std::error::Error) -> Vec<String> {
    let mut said = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        said.push(error.to_string());
        cause = error.source();
    }
    said.dedup();
    said
}

/// An error and its causes in one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    messages(error).join(": ")
}

/// Implemented by every public error of the workspace.
pub trait Kind {
    /// Which [`ErrorKind`] this failure is.
    fn kind(&self) -> ErrorKind;
}

impl ErrorKind {
    /// A stable lower-case word for scripts (`error` field of JSON output).
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not-found",
            Self::AlreadyExists => "already-exists",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Exhausted => "exhausted",
            Self::Damaged => "damaged",
            Self::CommandNotFound => "command-not-found",
            Self::CommandNotExecutable => "command-not-executable",
            Self::TimedOut => "timed-out",
            Self::Internal => "internal",
        }
    }

    /// The kind of an I/O error.
    #[must_use]
    pub fn of_io(error: &std::io::Error) -> Self {
        use std::io::ErrorKind as Io;
        match error.kind() {
            Io::NotFound => Self::NotFound,
            Io::AlreadyExists => Self::AlreadyExists,
            Io::PermissionDenied | Io::ReadOnlyFilesystem => Self::Denied,
            Io::StorageFull | Io::QuotaExceeded | Io::OutOfMemory | Io::FileTooLarge => Self::Exhausted,
            Io::TimedOut => Self::TimedOut,
            Io::InvalidData | Io::UnexpectedEof => Self::Damaged,
            Io::ConnectionRefused
            | Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::HostUnreachable
            | Io::NetworkUnreachable
            | Io::NotConnected
            | Io::BrokenPipe => Self::Unavailable,
            _ => Self::Internal,
        }
    }
}
