//! Answers a call that exceeds its deadline with DEADLINE_EXCEEDED.
//!
//! tonic has its own timer for `grpc-timeout` around all services, but it answers CANCELLED. Clients take CANCELLED for
//! their own cancellation and do not retry. The timer of this module starts before tonic's, is slightly shorter, and is
//! polled first, so its answer is the one that is sent.

use std::convert::Infallible;
use std::time::Duration;

use tonic::Status;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;

/// The header in which a client says how long it waits.
const TIMEOUT_HEADER: &str = "grpc-timeout";
/// Maximum time by which the answer precedes the client's deadline, so that it arrives in time.
const MAX_MARGIN: Duration = Duration::from_millis(1);

/// A service that answers before the client's deadline.
#[derive(Clone)]
pub(crate) struct Deadline<S>(pub(crate) S);

impl<S, B> Service<http::Request<B>> for Deadline<S>
where
    S: Service<http::Request<B>, Response = http::Response<tonic::body::Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = BoxFuture<S::Response, Infallible>;

    fn poll_ready(&mut self, cx: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let timeout = request.headers().get(TIMEOUT_HEADER).and_then(|value| parse(value.to_str().ok()?));
        // Start the timer here and not in the future: tonic starts its own when this returns.
        let timer = timeout.map(|timeout| tokio::time::sleep(timeout - (timeout / 16).min(MAX_MARGIN)));
        let answer = self.0.call(request);
        Box::pin(async move {
            let Some(timer) = timer else { return answer.await };
            tokio::select! {
                biased;
                answer = answer => answer,
                () = timer => Ok(Status::deadline_exceeded("the deadline of this call has passed").into_http()),
            }
        })
    }
}

impl<S: NamedService> NamedService for Deadline<S> {
    const NAME: &'static str = S::NAME;
}

/// The value of the header (gRPC over HTTP/2, "Requests"): up to eight digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(value * 3600)),
        "M" => Some(Duration::from_secs(value * 60)),
        "S" => Some(Duration::from_secs(value)),
        "m" => Some(Duration::from_millis(value)),
        "u" => Some(Duration::from_micros(value)),
        "n" => Some(Duration::from_nanos(value)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn timeout_headers_are_parsed() {
        let rows = [
            ("1H", Some(Duration::from_secs(3600))),
            ("2M", Some(Duration::from_secs(120))),
            ("3S", Some(Duration::from_secs(3))),
            ("99999999m", Some(Duration::from_millis(99_999_999))),
            ("5u", Some(Duration::from_micros(5))),
            ("0n", Some(Duration::ZERO)),
            ("100000000m", None),
            ("m", None),
            ("", None),
            ("-1m", None),
            ("1", None),
            ("1x", None),
            ("1ü", None),
        ];
        for (text, want) in rows {
            assert_eq!(parse(text), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn parser_never_panics(text: String) {
            let _ = parse(&text);
        }
    }
}
