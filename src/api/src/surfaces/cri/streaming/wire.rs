//! The connection of a session after its upgrade: bytes, plain or in the binary messages of a WebSocket.
//!
//! Nothing is queued here: a write returns when the kernel has taken the bytes, so a slow client slows down what is
//! sent to it, and a session that does not read slows down its client. Only the unsent rest of frames whose writer was
//! dropped is kept, for the next writer.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::Instant;

use super::websocket::{CLOSE_PROTOCOL_ERROR, MessageReader, Opcode, WebSocketEvent, encode_close, encode_frame};

/// Bytes of a read.
const READ: usize = 32 << 10;
/// How often a session that does not read checks whether its client exists.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(1);
/// The time that a client has to close the connection after the server has.
const LINGER: Duration = Duration::from_secs(10);
/// Maximum bytes that are discarded meanwhile.
const MAX_LINGER: usize = 64 << 20;

/// The reading half of a connection.
#[derive(Debug)]
pub(super) struct WireReader {
    half: OwnedReadHalf,
    /// What arrived with the head of the request.
    early: Bytes,
    buffer: BytesMut,
    activity: Arc<Activity>,
}

/// The writing half of a connection. Frames of several tasks do not mix, also if a task is dropped while it writes.
#[derive(Debug)]
pub(super) struct WireWriter {
    output: tokio::sync::Mutex<Output>,
    activity: Arc<Activity>,
}

/// What the writers of a connection take turns with.
#[derive(Debug)]
struct Output {
    half: OwnedWriteHalf,
    /// What the kernel has not taken of the last frames. A writer that is dropped leaves it to the next one.
    rest: BytesMut,
}

/// The time of the last byte in either direction.
#[derive(Debug)]
pub(super) struct Activity(Mutex<Instant>);

impl Activity {
    fn touch(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns after no byte was transferred for this time.
    pub(super) async fn idle(&self, limit: Duration) {
        loop {
            let end = *self.0.lock().unwrap_or_else(PoisonError::into_inner) + limit;
            if end <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(end).await;
        }
    }
}

/// Splits a connection. `early` are bytes that were read already.
pub(super) fn split(stream: TcpStream, early: Bytes) -> (WireReader, Arc<WireWriter>, Arc<Activity>) {
    let activity = Arc::new(Activity(Mutex::new(Instant::now())));
    let (reader, writer) = stream.into_split();
    let reader = WireReader { half: reader, early, buffer: BytesMut::new(), activity: Arc::clone(&activity) };
    let output = Output { half: writer, rest: BytesMut::new() };
    let writer = WireWriter { output: tokio::sync::Mutex::new(output), activity: Arc::clone(&activity) };
    (reader, Arc::new(writer), activity)
}

impl WireReader {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The kernel's error: the client has gone.
    pub(super) async fn read(&mut self) -> io::Result<Option<Bytes>> {
        if !self.early.is_empty() {
            return Ok(Some(std::mem::take(&mut self.early)));
        }
        self.buffer.reserve(READ);
        let count = self.half.read_buf(&mut self.buffer).await?;
        self.activity.touch();
        Ok((count > 0).then(|| self.buffer.split().freeze()))
    }

    /// Returns when the client has closed its end of the connection, although bytes that it sent before are not read.
    pub(super) async fn gone(&self) {
        loop {
            tokio::time::sleep(PRESENCE_INTERVAL).await;
            let stream: &TcpStream = self.half.as_ref();
            let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            if poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
                return;
            }
        }
    }

    /// Discards what the client still sends until it closes the connection. Closing a connection with unread bytes
    /// resets it, and the client would lose the last bytes that were sent to it.
    pub(super) async fn linger(mut self) {
        let discard = async {
            let mut discarded = 0;
            while let Ok(Some(bytes)) = self.read().await {
                discarded += bytes.len();
                if discarded > MAX_LINGER {
                    return;
                }
            }
        };
        // After that, the client loses what it has not read.
        let _closed_or_late = tokio::time::timeout(LINGER, discard).await;
    }
}

impl Output {
    /// Writes the rest. If it is dropped meanwhile, `rest` is what the kernel has not taken.
    async fn flush(&mut self) -> io::Result<()> {
        self.half.write_all_buf(&mut self.rest).await
    }
}

impl WireWriter {
    /// Writes frames. If this future is dropped, none of them is sent, or the next write sends the rest.
    ///
    /// # Errors
    /// The kernel's error: the client has gone.
    pub(super) async fn write(&self, frames: &[u8]) -> io::Result<()> {
        let mut output = self.output.lock().await;
        // Before frames are added, so that the rest is never more than the frames of one writer.
        output.flush().await?;
        output.rest.extend_from_slice(frames);
        output.flush().await?;
        self.activity.touch();
        Ok(())
    }

    /// Ends this direction of the connection.
    ///
    /// # Errors
    /// The kernel's error: the client has gone.
    pub(super) async fn close(&self) -> io::Result<()> {
        let mut output = self.output.lock().await;
        output.flush().await?;
        output.half.shutdown().await
    }
}

/// A stream of bytes from the client.
#[derive(Debug)]
pub(super) enum ByteReader {
    /// The bytes of the connection.
    Plain(WireReader),
    /// The payload of the messages of a WebSocket.
    WebSocket { wire: WireReader, messages: MessageReader, writer: Arc<WireWriter> },
}

impl ByteReader {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The client has gone, or does not speak the protocol.
    pub(super) async fn read(&mut self) -> io::Result<Option<Bytes>> {
        let Self::WebSocket { wire, messages, writer } = self else {
            let Self::Plain(wire) = self else { return Ok(None) };
            return wire.read().await;
        };
        loop {
            match next_event(wire, messages, writer).await? {
                Some(WebSocketEvent::Piece { bytes, .. }) if !bytes.is_empty() => return Ok(Some(bytes)),
                Some(WebSocketEvent::Close) | None => return Ok(None),
                Some(_) => {}
            }
        }
    }

    /// The reading half of the connection.
    pub(super) fn wire(&self) -> &WireReader {
        match self {
            Self::Plain(wire) | Self::WebSocket { wire, .. } => wire,
        }
    }

    /// The reading half of the connection, which is not read as a protocol any more.
    pub(super) fn into_wire(self) -> WireReader {
        match self {
            Self::Plain(wire) | Self::WebSocket { wire, .. } => wire,
        }
    }
}

/// The next event of a WebSocket; pings are answered. `None` at the end.
///
/// # Errors
/// The client has gone, or violates the protocol.
pub(super) async fn next_event(
    wire: &mut WireReader,
    messages: &mut MessageReader,
    writer: &WireWriter,
) -> io::Result<Option<WebSocketEvent>> {
    loop {
        match messages.next() {
            Ok(Some(WebSocketEvent::Ping(payload))) => writer.write(&encode_frame(Opcode::Pong, &[&payload])).await?,
            Ok(Some(event)) => return Ok(Some(event)),
            Ok(None) => match wire.read().await? {
                Some(bytes) => messages.push(&bytes),
                None => return Ok(None),
            },
            Err(error) => {
                writer.write(&encode_close(CLOSE_PROTOCOL_ERROR)).await?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

/// Frames to the client.
#[derive(Debug, Clone)]
pub(super) struct FrameWriter {
    wire: Arc<WireWriter>,
    /// Whether each frame travels in a binary message.
    in_messages: bool,
}

impl FrameWriter {
    /// Writes to this connection.
    pub(super) fn new(wire: Arc<WireWriter>, in_messages: bool) -> Self {
        Self { wire, in_messages }
    }

    /// Writes whole frames.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn write(&self, frames: &[u8]) -> io::Result<()> {
        match self.in_messages {
            true => self.wire.write(&encode_frame(Opcode::Binary, &[frames])).await,
            false => self.wire.write(frames).await,
        }
    }

    /// Ends the connection.
    ///
    /// # Errors
    /// The client has gone.
    pub(super) async fn close(&self, code: u16) -> io::Result<()> {
        if self.in_messages {
            self.wire.write(&encode_close(code)).await?;
        }
        self.wire.close().await
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::net::TcpSocket;

    use super::super::websocket::CLOSE_NORMAL;
    use super::*;

    /// Runs a test, which must end.
    pub(in super::super) fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(gantry_tests::DEADLINE, test).await.expect("it ends") });
    }

    /// Both ends of a connection, the server's first, whose buffers hold only a few KiB for the client.
    pub(in super::super) async fn narrow_connection() -> (TcpStream, TcpStream) {
        const BUFFER: u32 = 4 << 10;
        let (listening, connecting) = (TcpSocket::new_v4().unwrap(), TcpSocket::new_v4().unwrap());
        listening.set_send_buffer_size(BUFFER).unwrap();
        connecting.set_recv_buffer_size(BUFFER).unwrap();
        listening.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = listening.listen(1).unwrap();
        let client = connecting.connect(listener.local_addr().unwrap()).await.unwrap();
        (listener.accept().await.unwrap().0, client)
    }

    #[test]
    fn a_dropped_write_leaves_frames_whole() {
        run(async {
            for in_messages in [false, true] {
                let (server, mut client) = narrow_connection().await;
                let (_reader, wire, _) = split(server, Bytes::new());
                let writer = FrameWriter::new(wire, in_messages);
                let (frame, mut byte) = (vec![b'x'; 1 << 20], [0]);
                tokio::select! {
                    biased;
                    written = writer.write(&frame) => panic!("the client has read nothing, but {written:?}"),
                    peeked = client.peek(&mut byte) => assert_eq!(peeked.unwrap(), 1),
                }
                let write = async {
                    writer.write(b"next").await.unwrap();
                    writer.close(CLOSE_NORMAL).await.unwrap();
                };
                let mut received = Vec::new();
                let ((), read) = tokio::join!(write, client.read_to_end(&mut received));
                let expected = match in_messages {
                    false => [&frame[..], b"next"].concat(),
                    true => {
                        let messages = [&frame[..], b"next"].map(|frame| encode_frame(Opcode::Binary, &[frame]));
                        [messages.concat(), encode_close(CLOSE_NORMAL)].concat()
                    }
                };
                assert_eq!(read.unwrap(), expected.len());
                assert!(received == expected, "in messages: {in_messages}");
            }
        });
    }
}
