//! Limits the memory of large responses. The response to a list is one message, which stays in memory until its client
//! reads it; so a connection gets few of them at a time, and all of them together are bounded.
//!
//! The permits travel with the response: from the method in the response's extensions, then in the body, which the
//! server drops when the client has read it or the call is over.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::NamedService;
use tonic::{Extensions, Response, Status};

use crate::peer::{Caller, ConnectionInfo, Peer};

/// Maximum lists of one connection that are made or read at a time; further ones wait.
const MAX_LISTS_PER_CONNECTION: usize = 4;
/// Maximum bytes of a response that are passed to its connection at a time.
const MAX_PART: usize = 64 << 10;
/// Maximum KiB of all responses to TCP clients, and as much to users over unix sockets. Those to root are limited by
/// [`MAX_LISTS_PER_CONNECTION`] alone.
const MAX_UNREAD_KIB: usize = 1 << 19;

impl ConnectionInfo {
    /// A connection of this client, without any list.
    pub(crate) fn new(caller: Caller) -> Self {
        let Caller { peer, certificate } = caller;
        Self { peer, certificate, lists: Arc::new(Semaphore::new(MAX_LISTS_PER_CONNECTION)) }
    }
}

/// The memory that responses may take until their clients have read them.
pub(crate) struct ResponseBudget {
    network: Arc<Semaphore>,
    users: Arc<Semaphore>,
}

impl Default for ResponseBudget {
    fn default() -> Self {
        let budget = || Arc::new(Semaphore::new(MAX_UNREAD_KIB));
        Self { network: budget(), users: budget() }
    }
}

/// The permits of a response.
#[derive(Debug, Clone)]
struct Permits {
    _list: Option<Arc<OwnedSemaphorePermit>>,
    _memory: Option<Arc<OwnedSemaphorePermit>>,
}

/// The permission to make the response to a list.
pub(crate) struct ListPermit {
    peer: Peer,
    permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl ListPermit {
    /// For a response that is no list.
    pub(crate) fn not_needed(peer: Peer) -> Self {
        Self { peer, permit: None }
    }

    /// Waits for a permit of the connection. Validate the request first, so that an invalid one does not wait.
    pub(crate) async fn acquire(extensions: &Extensions) -> Self {
        let Some(ConnectionInfo { lists, peer, .. }) = extensions.get() else { return Self::not_needed(Peer::Network) };
        // Fails only if the semaphore is closed, which does not happen.
        Self { peer: *peer, permit: Arc::clone(lists).acquire_owned().await.ok().map(Arc::new) }
    }
}

impl ResponseBudget {
    /// A response of this many bytes, which holds its permits until the client has read it.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the budget is used up.
    pub(crate) fn hold<T>(&self, list: ListPermit, message: T, bytes: usize) -> Result<Response<T>, Status> {
        let size = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1);
        let budget = match list.peer {
            Peer::Root => None,
            Peer::Network => Some(&self.network),
            Peer::Certificate { .. } | Peer::User { .. } => Some(&self.users),
        };
        let memory = budget.map(|budget| Arc::clone(budget).try_acquire_many_owned(size)).transpose();
        let memory =
            memory.map_err(|_| Status::resource_exhausted("too many answers wait to be read: try again later"))?;
        let mut response = Response::new(message);
        response.extensions_mut().insert(Permits { _list: list.permit, _memory: memory.map(Arc::new) });
        Ok(response)
    }
}

/// A service whose responses hold their permits until they are read.
#[derive(Clone)]
pub(crate) struct HoldPermits<S>(pub(crate) S);

type HttpResponse = http::Response<tonic::body::Body>;

impl<S, B> Service<http::Request<B>> for HoldPermits<S>
where
    S: Service<http::Request<B>, Response = HttpResponse, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = BoxFuture<HttpResponse, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let response = self.0.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            Ok(match response.extensions_mut().remove::<Permits>() {
                Some(permits) => response
                    .map(|body| tonic::body::Body::new(PartsBody { body, rest: Bytes::new(), _permits: permits })),
                None => response,
            })
        })
    }
}

impl<S: NamedService> NamedService for HoldPermits<S> {
    const NAME: &'static str = S::NAME;
}

/// A body that passes on [`MAX_PART`] bytes at a time. The connection keeps in memory what it was passed, without a
/// permit; so this is at most one part.
struct PartsBody {
    body: tonic::body::Body,
    /// Bytes that were read from the body and not passed on.
    rest: Bytes,
    _permits: Permits,
}

impl Body for PartsBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)).transpose()?.map(Frame::into_data) {
                Some(Ok(data)) => self.rest = data,
                Some(Err(trailers)) => return Poll::Ready(Some(Ok(trailers))),
                None => return Poll::Ready(None),
            }
        }
        let part = self.rest.len().min(MAX_PART);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(part)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (body, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_a_response_returns_its_budget() {
        let answers = ResponseBudget::default();
        let most = (MAX_UNREAD_KIB - 1) << 10;
        let hold = |peer, bytes| answers.hold(ListPermit::not_needed(peer), (), bytes);
        let held = hold(Peer::Network, most);
        assert!(held.is_ok());
        assert_eq!(hold(Peer::Network, 0).map(drop).unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert!(hold(Peer::Root, most).is_ok() && hold(Peer::User { uid: 1, member: false }, most).is_ok());
        drop(held);
        assert!(hold(Peer::Network, 0).is_ok());
    }

    /// A body whose frames are all ready.
    struct Frames(std::collections::VecDeque<Frame<Bytes>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    #[test]
    fn large_responses_are_split() {
        let bytes = Bytes::from((0..3 * MAX_PART + 5).map(|n| (n % 251) as u8).collect::<Vec<_>>());
        let answers = ResponseBudget::default();
        let held = answers
            .hold(ListPermit::not_needed(Peer::Network), (), bytes.len())
            .unwrap()
            .extensions_mut()
            .remove::<Permits>()
            .unwrap();
        let frames = [Frame::data(bytes.clone()), Frame::trailers(http::HeaderMap::new())];
        let body = tonic::body::Body::new(Frames(frames.into()));
        let mut body = PartsBody { body, rest: Bytes::new(), _permits: held };
        let (mut cx, mut seen, mut parts) = (Context::from_waker(std::task::Waker::noop()), Vec::new(), 0);
        loop {
            let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) else { panic!("no frame is ready") };
            match frame.unwrap().unwrap().into_data() {
                Ok(data) => {
                    assert!(data.len() <= MAX_PART);
                    seen.extend_from_slice(&data);
                    parts += 1;
                }
                Err(frame) => break assert!(frame.is_trailers()),
            }
        }
        assert_eq!((seen.len(), parts, body.size_hint().lower()), (bytes.len(), 4, 0));
        assert!(seen == bytes);
    }

    #[test]
    fn lists_are_limited_per_connection() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut request = Extensions::default();
        request.insert(ConnectionInfo::new(Peer::Root.into()));
        let permits: Vec<ListPermit> =
            (0..MAX_LISTS_PER_CONNECTION).map(|_| runtime.block_on(ListPermit::acquire(&request))).collect();
        let mut next = std::pin::pin!(ListPermit::acquire(&request));
        let mut waker = Context::from_waker(std::task::Waker::noop());
        assert!(next.as_mut().poll(&mut waker).is_pending());
        drop(permits);
        assert!(next.as_mut().poll(&mut waker).is_ready());
    }
}
