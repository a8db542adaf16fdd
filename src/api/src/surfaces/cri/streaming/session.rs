//! The limits of all sessions, and how they end.

use std::future::Future;
use std::io;
use std::time::Duration;

use thiserror::Error;

use super::channels::ChannelError;
use super::spdy::SpdyError;

/// The time that a client has to open the streams of a session.
pub(super) const CREATION_LIMIT: Duration = Duration::from_secs(30);
/// The time after which a session without traffic ends.
pub(super) const IDLE_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);

/// A session ended before it was complete.
#[derive(Debug, Error)]
pub(super) enum SessionError {
    /// The client has closed the connection.
    #[error("the client closed the connection")]
    ClientGone,
    /// The connection failed.
    #[error("the connection failed")]
    Connection(#[from] io::Error),
    /// The client violates the protocol of the channels.
    #[error(transparent)]
    Channels(#[from] ChannelError),
    /// The client violates SPDY.
    #[error(transparent)]
    Spdy(#[from] SpdyError),
    /// The client has not opened its streams in time.
    #[error("the client has not opened the streams of the session within {} s", CREATION_LIMIT.as_secs())]
    CreationLimit,
    /// No byte was transferred for too long.
    #[error("no byte was transferred for {} h", IDLE_LIMIT.as_secs() / 3600)]
    Idle,
    /// gantryd ends.
    #[error("gantryd is ending")]
    Draining,
}

/// Opens the channels within [`CREATION_LIMIT`].
pub(super) async fn within_creation_limit<T>(
    opening: impl Future<Output = Result<T, ChannelError>>,
) -> Result<T, SessionError> {
    match tokio::time::timeout(CREATION_LIMIT, opening).await {
        Ok(opened) => Ok(opened?),
        Err(_) => Err(SessionError::CreationLimit),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::time::{Instant, advance, pause, resume};

    use super::super::channels::{ChannelConnection, RequestedChannels, open};
    use super::super::negotiation::{CommandProtocol, Upgrade};
    use super::super::wire::split;
    use super::*;

    /// Runs a test with both ends of a connection, the server's first, and a clock that moves when all tasks wait.
    fn run<F: Future<Output = ()>>(test: impl FnOnce(TcpStream, TcpStream) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let server = listener.accept().await.unwrap().0;
            pause();
            test(server, client).await;
        });
    }

    #[test]
    fn streams_are_opened_in_a_limited_time() {
        run(async |server, _client| {
            let (reader, writer, _) = split(server, Bytes::new());
            let protocol = CommandProtocol::all(Upgrade::Spdy)[0];
            let connection = ChannelConnection { reader, writer, upgrade: Upgrade::Spdy, protocol };
            let requested = RequestedChannels { stdin: false, stdout: true, stderr: true, tty: false };
            let began = Instant::now();
            let opened = within_creation_limit(open(connection, requested)).await;
            assert!(matches!(opened, Err(SessionError::CreationLimit)));
            assert!(began.elapsed() >= CREATION_LIMIT);
        });
    }

    #[test]
    fn traffic_in_either_direction_postpones_the_idle_limit() {
        run(async |server, mut client| {
            let (mut reader, writer, activity) = split(server, Bytes::new());
            let almost = IDLE_LIMIT - Duration::from_secs(3600);
            let began = Instant::now();
            let idle = tokio::spawn({
                let activity = Arc::clone(&activity);
                async move { activity.idle(IDLE_LIMIT).await }
            });
            advance(almost).await;
            // A clock that moves by itself would not wait for the kernel to deliver the bytes.
            resume();
            client.write_all(b"in").await.unwrap();
            assert_eq!(reader.read().await.unwrap().as_deref(), Some(&b"in"[..]));
            pause();
            assert!(!idle.is_finished());
            advance(almost).await;
            writer.write(b"out").await.unwrap();
            assert!(!idle.is_finished());
            idle.await.unwrap();
            assert!(began.elapsed() >= 2 * almost + IDLE_LIMIT);
        });
    }
}
