//! The kinds of errors that callers distinguish.
//!
//! Every public error type of the workspace implements [`Kind`]. Kinds are mapped to exit codes in
//! `src/cli/src/exit.rs` and to gRPC status codes in `src/api/src/status.rs`.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The kind of a failure, as far as callers distinguish it. Its serialized form is its word ([`Self::as_str`]); an
/// unknown one is read as [`Self::Internal`].
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

/// The messages of an error and its causes. The message of a cause that an error before it includes is left out: a
/// transparent wrapper has the message of its cause, and other crates' errors often quote theirs.
#[must_use]
pub fn messages(error: &dyn std::error::Error) -> Vec<String> {
    let mut messages = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !messages.iter().any(|earlier| earlier.contains(&message)) {
            messages.push(message);
        }
        cause = error.source();
    }
    messages
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
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::NotFound,
        Self::AlreadyExists,
        Self::Invalid,
        Self::Refused,
        Self::Busy,
        Self::Unavailable,
        Self::Denied,
        Self::Exhausted,
        Self::Damaged,
        Self::CommandNotFound,
        Self::CommandNotExecutable,
        Self::TimedOut,
        Self::Internal,
    ];

    /// The kind with this word ([`Self::as_str`]); [`Self::Internal`] for an unknown one, such as another version's.
    #[must_use]
    pub fn from_word(word: &str) -> Self {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word).unwrap_or(Self::Internal)
    }

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

    /// As [`Self::of_io`], for a file that the caller has named: if it does not exist, the request is invalid.
    /// [`Self::NotFound`] says that a pod, app or image does not exist.
    #[must_use]
    pub fn of_named_file(error: &std::io::Error) -> Self {
        match Self::of_io(error) {
            Self::NotFound => Self::Invalid,
            kind => kind,
        }
    }
}

impl Serialize for ErrorKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ErrorKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|word| Self::from_word(&word))
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fmt;

    use super::{ErrorKind, chain, messages};

    #[derive(Debug)]
    struct TestError(&'static str, Option<Box<TestError>>);

    impl fmt::Display for TestError {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }
    }

    impl Error for TestError {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|error| error as _)
        }
    }

    fn error(texts: &[&'static str]) -> TestError {
        let (first, causes) = texts.split_first().unwrap();
        TestError(first, (!causes.is_empty()).then(|| Box::new(error(causes))))
    }

    #[test]
    fn a_chain_repeats_no_cause() {
        let cases: [(&[&str], &str); 5] = [
            (&["cannot open it"], "cannot open it"),
            (&["cannot open it", "not found"], "cannot open it: not found"),
            (&["it broke", "it broke", "no space"], "it broke: no space"),
            (
                &["cannot fetch: timed out (110)", "timed out", "poll failed"],
                "cannot fetch: timed out (110): poll failed",
            ),
            (&["a: b: c", "b: c", "c", "d"], "a: b: c: d"),
        ];
        for (texts, want) in cases {
            assert_eq!(chain(&error(texts)), want);
        }
        assert_eq!(messages(&error(&["a", "b", "a"])), ["a", "b"]);
    }

    #[test]
    fn kinds_are_found_by_their_words() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_word(kind.as_str()), kind);
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{}\"", kind.as_str()));
            assert_eq!(serde_json::from_str::<ErrorKind>(&json).unwrap(), kind);
        }
        assert_eq!(ErrorKind::from_word("from-the-future"), ErrorKind::Internal);
        assert_eq!(serde_json::from_str::<ErrorKind>("\"from-the-future\"").unwrap(), ErrorKind::Internal);
    }
}
