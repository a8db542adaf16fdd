//! Failures that are mistakes of clients although their codes say otherwise.
//!
//! Some texts of the Talos node API come with INTERNAL or UNKNOWN, and tonic's decoder answers INTERNAL to a message
//! that it cannot decode. They are no failures of gantryd, so its log has no warnings about them.

use std::sync::Arc;

use tonic::codegen::http;
use tonic::{Code, Status};

/// How the messages of tonic's decoder begin.
const DECODER_MESSAGES: [&str; 4] = [
    "failed to decode Protobuf message",
    "protocol error: received message",
    "Missing request message",
    "Unexpected EOF",
];
/// How tonic's message about a request that is too large begins.
const TOO_LARGE: &str = "Error, decoded message length too large";

/// Marks a status as the client's fault.
#[derive(Debug, thiserror::Error)]
#[error("the client's fault")]
pub(crate) struct ClientFault;

impl ClientFault {
    /// Marks this status.
    pub(crate) fn mark(mut status: Status) -> Status {
        status.set_source(Arc::new(Self));
        status
    }

    /// Whether this response has a status that was marked, or is the decoder's.
    pub(crate) fn is_in<B>(response: &http::Response<B>) -> bool {
        response.extensions().get::<Status>().is_some_and(|status| {
            let is_marked = std::error::Error::source(status).is_some_and(|source| source.is::<Self>());
            is_marked || DECODER_MESSAGES.iter().any(|begin| status.message().starts_with(begin))
        })
    }
}

/// Corrects the status for a request that is larger than the limit. tonic answers `OUT_OF_RANGE`; that means something
/// else in gRPC, and clients know `RESOURCE_EXHAUSTED` from other servers.
pub(crate) fn correct_code<B: Default>(response: http::Response<B>) -> http::Response<B> {
    match response.extensions().get::<Status>() {
        Some(status) if status.code() == Code::OutOfRange && status.message().starts_with(TOO_LARGE) => {
            Status::resource_exhausted(status.message().trim_start_matches("Error, ")).into_http()
        }
        _ => response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: Status) -> http::Response<()> {
        status.into_http()
    }

    #[test]
    fn marked_statuses_are_faults_of_clients() {
        assert!(ClientFault::is_in(&response(ClientFault::mark(Status::internal("invalid target a:1")))));
        assert!(ClientFault::is_in(&response(Status::internal("failed to decode Protobuf message: x"))));
        assert!(!ClientFault::is_in(&response(Status::internal("the database is damaged"))));
        assert!(!ClientFault::is_in(&http::Response::new(())));
    }

    #[test]
    fn oversized_requests_exhaust_a_resource() {
        let message = format!("{TOO_LARGE}: found 2 bytes, the limit is: 1 bytes");
        let corrected = correct_code(response(Status::out_of_range(message)));
        let status = corrected.extensions().get::<Status>().unwrap();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "decoded message length too large: found 2 bytes, the limit is: 1 bytes");
        let other = correct_code(response(Status::out_of_range("x")));
        assert_eq!(other.extensions().get::<Status>().unwrap().code(), Code::OutOfRange);
    }
}
