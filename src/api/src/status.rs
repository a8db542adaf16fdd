//! From our kinds of errors to gRPC's codes. The one place that knows both.

use std::error::Error;

use gantry_engine::model::error::messages;
use gantry_engine::model::{ErrorKind, Kind};
use tonic::{Code, Status};

/// A message travels in a header, escaped; clients take a few KiB of headers.
const MOST_MESSAGE: usize = 1024;

/// The code of a kind of failure (gRPC's "status codes and their use").
pub(crate) fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::AlreadyExists => Code::AlreadyExists,
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Refused | ErrorKind::CommandNotFound | ErrorKind::CommandNotExecutable => Code::FailedPrecondition,
        ErrorKind::Busy | ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Denied => Code::PermissionDenied,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Damaged => Code::DataLoss,
        ErrorKind::TimedOut => Code::DeadlineExceeded,
        ErrorKind::Internal => Code::Internal,
    }
}

/// A failure as the caller sees it: what was attempted on what, and why it failed.
pub(crate) fn of<E: Error + Kind>(error: &E) -> Status {
    Status::new(code(error.kind()), cut(messages(error).join(": ")))
}

/// The caller's mistake: which field, and what is wrong with it.
pub(crate) fn invalid(field: &str, why: &str) -> Status {
    Status::invalid_argument(cut(format!("{field}: {why}")))
}

/// For whoever still listens when the server ends.
pub(crate) fn ending() -> Status {
    Status::unavailable("gantryd is ending: ask again")
}

fn cut(mut text: String) -> String {
    if text.len() > MOST_MESSAGE {
        let end = (0..=MOST_MESSAGE).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read it")]
    struct Outer(#[source] std::io::Error);

    impl Kind for Outer {
        fn kind(&self) -> ErrorKind {
            ErrorKind::of_io(&self.0)
        }
    }

    #[test]
    fn a_failure_is_told_with_its_causes() {
        let status = of(&Outer(std::io::ErrorKind::NotFound.into()));
        assert_eq!((status.code(), status.message()), (Code::NotFound, "cannot read it: entity not found"));
    }

    #[test]
    fn messages_are_short() {
        let status = invalid("filters[0].ids", &"ü".repeat(1 << 20));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().len() < MOST_MESSAGE + 4 && status.message().ends_with("ü…"));
    }
}
