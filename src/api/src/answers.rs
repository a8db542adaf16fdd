//! Big answers that nobody has taken yet. The answer to a list is one message, which waits in memory until its caller
//! reads it; so only a few of them are made for one connection at a time, and all of them together are bounded.
//!
//! What is held goes with the answer: from the method in the response's extensions, then in the body, which the server
//! drops when it was taken or the call is over.

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

use crate::peer::Peer;

/// How many lists are answered for one connection at a time; further ones wait.
const EACH: usize = 4;
/// An answer goes to its connection in parts of so many bytes.
const PART: usize = 64 << 10;
/// All answers to clients over TCP together, in KiB, and as much to users over unix sockets. Those to root are bounded by
/// [`EACH`] alone.
const ALL: usize = 1 << 19;

/// The lists of one connection, and its client.
#[derive(Debug, Clone)]
pub(crate) struct OfConnection {
    turns: Arc<Semaphore>,
    peer: Peer,
}

impl OfConnection {
    pub(crate) fn new(peer: Peer) -> Self {
        Self { turns: Arc::new(Semaphore::new(EACH)), peer }
    }

    pub(crate) fn peer(&self) -> Peer {
        self.peer
    }
}

/// All answers that were not taken yet.
pub(crate) struct Answers {
    network: Arc<Semaphore>,
    users: Arc<Semaphore>,
}

impl Default for Answers {
    fn default() -> Self {
        let room = || Arc::new(Semaphore::new(ALL));
        Self { network: room(), users: room() }
    }
}

/// What an answer holds until it was taken.
#[derive(Debug, Clone)]
struct Held {
    _turn: Option<Arc<OwnedSemaphorePermit>>,
    _room: Option<Arc<OwnedSemaphorePermit>>,
}

/// The right to have a list answered.
pub(crate) struct Turn {
    peer: Peer,
    permit: Option<Arc<OwnedSemaphorePermit>>,
}

impl Turn {
    /// None is needed: the answer is that to one thing.
    pub(crate) fn free(peer: Peer) -> Self {
        Self { peer, permit: None }
    }

    /// Waits for it. What was asked is to be looked at first: a request that makes no sense is not kept waiting.
    pub(crate) async fn of(extensions: &Extensions) -> Self {
        let Some(OfConnection { turns, peer }) = extensions.get() else { return Self::free(Peer::Network) };
        // Fails when they are closed, which nobody does.
        Self { peer: *peer, permit: Arc::clone(turns).acquire_owned().await.ok().map(Arc::new) }
    }
}

impl Answers {
    /// An answer of so many bytes, which holds its turn and its room until it was taken.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED when there is no room.
    pub(crate) fn hold<T>(&self, turn: Turn, answer: T, bytes: usize) -> Result<Response<T>, Status> {
        let size = u32::try_from(bytes >> 10).unwrap_or(u32::MAX).saturating_add(1);
        let room = match turn.peer {
            Peer::Root => None,
            Peer::Network => Some(&self.network),
            Peer::User { .. } => Some(&self.users),
        };
        let room = room.map(|room| Arc::clone(room).try_acquire_many_owned(size)).transpose();
        let room = room.map_err(|_| Status::resource_exhausted("too many answers wait to be read: try again later"))?;
        let mut response = Response::new(answer);
        response.extensions_mut().insert(Held { _turn: turn.permit, _room: room.map(Arc::new) });
        Ok(response)
    }
}

/// A service whose answers keep what they hold.
#[derive(Clone)]
pub(crate) struct Holding<S>(pub(crate) S);

type Answer = http::Response<tonic::body::Body>;

impl<S, B> Service<http::Request<B>> for Holding<S>
where
    S: Service<http::Request<B>, Response = Answer, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Answer;
    type Error = Infallible;
    type Future = BoxFuture<Answer, Infallible>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let answer = self.0.call(request);
        Box::pin(async move {
            let mut answer = answer.await?;
            Ok(match answer.extensions_mut().remove::<Held>() {
                Some(held) => {
                    answer.map(|body| tonic::body::Body::new(HeldBody { body, rest: Bytes::new(), _held: held }))
                }
                None => answer,
            })
        })
    }
}

impl<S: NamedService> NamedService for Holding<S> {
    const NAME: &'static str = S::NAME;
}

/// A body that is given out in parts: what was given out is the connection's, which keeps all of it in memory as soon as
/// its caller takes any. So no more than a part is there without being counted.
struct HeldBody {
    body: tonic::body::Body,
    /// What was taken from the body and not given out.
    rest: Bytes,
    _held: Held,
}

impl Body for HeldBody {
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
        let part = self.rest.len().min(PART);
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
    fn there_is_room_again_when_an_answer_was_taken() {
        let answers = Answers::default();
        let most = (ALL - 1) << 10;
        let hold = |peer, bytes| answers.hold(Turn::free(peer), (), bytes);
        let held = hold(Peer::Network, most);
        assert!(held.is_ok());
        assert_eq!(hold(Peer::Network, 0).map(drop).unwrap_err().code(), tonic::Code::ResourceExhausted);
        assert!(hold(Peer::Root, most).is_ok() && hold(Peer::User { uid: 1, member: false }, most).is_ok());
        drop(held);
        assert!(hold(Peer::Network, 0).is_ok());
    }

    /// A body that is there as a whole.
    struct Frames(std::collections::VecDeque<Frame<Bytes>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            Poll::Ready(self.0.pop_front().map(Ok))
        }
    }

    #[test]
    fn an_answer_is_given_out_in_parts() {
        let bytes = Bytes::from((0..3 * PART + 5).map(|n| (n % 251) as u8).collect::<Vec<_>>());
        let answers = Answers::default();
        let held = answers
            .hold(Turn::free(Peer::Network), (), bytes.len())
            .unwrap()
            .extensions_mut()
            .remove::<Held>()
            .unwrap();
        let frames = [Frame::data(bytes.clone()), Frame::trailers(http::HeaderMap::new())];
        let body = tonic::body::Body::new(Frames(frames.into()));
        let mut body = HeldBody { body, rest: Bytes::new(), _held: held };
        let (mut cx, mut seen, mut parts) = (Context::from_waker(std::task::Waker::noop()), Vec::new(), 0);
        loop {
            let Poll::Ready(frame) = Pin::new(&mut body).poll_frame(&mut cx) else { panic!("all of it is there") };
            match frame.unwrap().unwrap().into_data() {
                Ok(data) => {
                    assert!(data.len() <= PART);
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
    fn a_connection_has_so_many_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut request = Extensions::default();
        request.insert(OfConnection::new(Peer::Root));
        let turns: Vec<Turn> = (0..EACH).map(|_| runtime.block_on(Turn::of(&request))).collect();
        let mut next = std::pin::pin!(Turn::of(&request));
        let mut waker = Context::from_waker(std::task::Waker::noop());
        assert!(next.as_mut().poll(&mut waker).is_pending());
        drop(turns);
        assert!(next.as_mut().poll(&mut waker).is_ready());
    }
}
