//! Maps error kinds to gRPC status codes. The one place that knows both.

use std::error::Error;

use gantry_model::error::messages;
use gantry_model::{ErrorKind, Kind};
use tonic::{Code, Status};

/// Maximum bytes of a message. It travels escaped in a header, and clients accept a few KiB of headers.
const MAX_MESSAGE: usize = 1024;

/// The code of an error kind (gRPC, "Status codes and their use in gRPC").
pub(crate) fn code_of_kind(kind: ErrorKind) -> Code {
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

/// The status of an error, with the messages of its causes.
pub(crate) fn from_error<E: Error + Kind>(error: &E) -> Status {
    Status::new(code_of_kind(error.kind()), truncate(messages(error).join(": ")))
}

/// INVALID_ARGUMENT: a field of the request, and why its value is invalid.
pub(crate) fn invalid_field(field: &str, why: &str) -> Status {
    Status::invalid_argument(truncate(format!("{field}: {why}")))
}

/// UNAVAILABLE: ends streams and calls when the server drains.
pub(crate) fn draining() -> Status {
    Status::unavailable("gantryd is ending: ask again")
}

fn truncate(mut text: String) -> String {
    if text.len() > MAX_MESSAGE {
        text.truncate(text.floor_char_boundary(MAX_MESSAGE));
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
    fn status_messages_include_all_causes() {
        let status = from_error(&Outer(std::io::ErrorKind::NotFound.into()));
        assert_eq!((status.code(), status.message()), (Code::NotFound, "cannot read it: entity not found"));
    }

    #[test]
    fn long_messages_are_truncated() {
        let status = invalid_field("filters[0].ids", &"ü".repeat(1 << 20));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().len() < MAX_MESSAGE + 4 && status.message().ends_with("ü…"));
    }
}
