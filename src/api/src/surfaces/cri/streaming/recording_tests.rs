//! Replays recorded sessions (`testdata/spdy`) byte for byte: what the client sent is read from a socket, and what the
//! server writes is compared with the recording.

use gantry_model::PodId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::channels::{
    ChannelConnection, ChannelReader, ChannelWriter, ClientInput, OutputChannel, RequestedChannels, open,
};
use super::exit_status::ExitStatus;
use super::forward::ForwardSession;
use super::negotiation::{CommandProtocol, Upgrade};
use super::pipe::TerminalSize;
use super::spdy::{SpdyEvent, SpdyReader, encode_data};
use super::wire::tests::run;
use super::wire::{ByteReader, FrameWriter, split};

macro_rules! recording {
    ($name:literal) => {
        (
            &include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/spdy/", $name, ".c2s.bin"))[..],
            &include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/spdy/", $name, ".s2c.bin"))[..],
        )
    };
}

/// The bytes after the HTTP head.
fn after_head(bytes: &'static [u8]) -> &'static [u8] {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    &bytes[end + 4..]
}

/// A connection whose client has sent these bytes, and the client's end of it.
async fn connection(from_client: &'static [u8]) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    client.write_all(after_head(from_client)).await.unwrap();
    (listener.accept().await.unwrap().0, client)
}

/// Compares what the server wrote with the recording.
async fn compare(mut client: TcpStream, recorded: &'static [u8]) {
    client.shutdown().await.unwrap();
    let mut written = Vec::new();
    client.read_to_end(&mut written).await.unwrap();
    let recorded = after_head(recorded);
    assert!(written == recorded, "\nwritten  {}\nrecorded {}", written.escape_ascii(), recorded.escape_ascii());
}

async fn channels(server: TcpStream, requested: RequestedChannels) -> (ChannelReader, ChannelWriter) {
    let (reader, writer, _) = split(server, bytes::Bytes::new());
    let protocol = CommandProtocol::all(Upgrade::Spdy)[0];
    open(ChannelConnection { reader, writer, upgrade: Upgrade::Spdy, protocol }, requested).await.unwrap()
}

const OUTPUT: RequestedChannels = RequestedChannels { stdin: false, stdout: true, stderr: true, tty: false };

#[test]
fn a_command_without_input() {
    let (sent, recorded) = recording!("exec_plain");
    run(async {
        let (server, client) = connection(sent).await;
        let (_reader, writer) = channels(server, OUTPUT).await;
        writer.output(OutputChannel::Stdout, b"hello").await.unwrap();
        writer.end_output(OutputChannel::Stdout).await.unwrap();
        writer.end_output(OutputChannel::Stderr).await.unwrap();
        writer.finish(&ExitStatus::success()).await.unwrap();
        compare(client, recorded).await;
    });
}

#[test]
fn a_command_that_fails() {
    let (sent, recorded) = recording!("exec_exit3");
    run(async {
        let (server, client) = connection(sent).await;
        let (_reader, writer) = channels(server, OUTPUT).await;
        for (channel, bytes) in [(OutputChannel::Stdout, b"out\n"), (OutputChannel::Stderr, b"err\n")] {
            writer.output(channel, bytes).await.unwrap();
            writer.end_output(channel).await.unwrap();
        }
        let command = ["sh", "-c", "echo out; echo err >&2; exit 3"].map(str::to_owned);
        writer.finish(&ExitStatus::exited(&command, 3)).await.unwrap();
        compare(client, recorded).await;
    });
}

#[test]
fn a_command_with_input() {
    let (sent, recorded) = recording!("exec_stdin");
    run(async {
        let (server, client) = connection(sent).await;
        let (mut reader, writer) = channels(server, RequestedChannels { stdin: true, ..OUTPUT }).await;
        let input = [reader.next().await.unwrap(), reader.next().await.unwrap()];
        assert_eq!(input, [Some(ClientInput::Stdin("abc\n".into())), Some(ClientInput::StdinEnd)]);
        writer.output(OutputChannel::Stdout, b"abc\n").await.unwrap();
        writer.end_output(OutputChannel::Stderr).await.unwrap();
        writer.end_output(OutputChannel::Stdout).await.unwrap();
        writer.finish(&ExitStatus::success()).await.unwrap();
        compare(client, recorded).await;
    });
}

#[test]
fn a_command_with_a_terminal() {
    let (sent, recorded) = recording!("exec_tty");
    run(async {
        let (server, client) = connection(sent).await;
        let requested = RequestedChannels { stdin: true, stdout: true, stderr: false, tty: true };
        let (mut reader, writer) = channels(server, requested).await;
        let input = [reader.next().await.unwrap(), reader.next().await.unwrap()];
        let size = TerminalSize { columns: 100, rows: 30 };
        assert_eq!(input, [Some(ClientInput::Resize(size)), Some(ClientInput::Stdin("\0".into()))]);
        for bytes in ["^@", "30 100\r\nbye\r\n"] {
            writer.output(OutputChannel::Stdout, bytes.as_bytes()).await.unwrap();
        }
        writer.end_output(OutputChannel::Stdout).await.unwrap();
        writer.finish(&ExitStatus::success()).await.unwrap();
        compare(client, recorded).await;
    });
}

/// The payload of a data frame of a recording.
fn payload(recorded: &'static [u8], stream: u8) -> &'static [u8] {
    let head = |window: &[u8]| window[..5] == [0, 0, 0, stream, 0] && window[5..8] != [0; 3];
    let start = recorded.windows(8).position(head).unwrap() + 8;
    let length = usize::from(recorded[start - 2]) << 8 | usize::from(recorded[start - 1]);
    &recorded[start..start + length]
}

/// Replays the streams of port-forward. `answer` returns the frames that the server sends after data of the client.
async fn forward(sent: &'static [u8], recorded: &'static [u8], answer: impl Fn(u32) -> Vec<u8>) {
    let (server, client) = connection(sent).await;
    let (reader, writer, _) = split(server, bytes::Bytes::new());
    let writer = FrameWriter::new(writer, false);
    let mut reader = SpdyReader::new(ByteReader::Plain(reader), writer.clone(), 8);
    let mut client = Some(client);
    let mut kinds = Vec::new();
    loop {
        match reader.next().await.unwrap() {
            Some(SpdyEvent::Open { stream, headers }) => {
                let text = |name| headers.get(name).unwrap_or_default().to_owned();
                kinds.push((stream, text("streamtype"), text("port"), text("requestid")));
            }
            Some(SpdyEvent::Data { stream, bytes }) => {
                assert!(bytes.starts_with(b"GET / HTTP/1.1\r\n"));
                writer.write(&answer(stream)).await.unwrap();
                if kinds.len() == 4 {
                    // The last bytes of the server; the client closes the connection.
                    if let Some(client) = client.take() {
                        writer.close(0).await.unwrap();
                        compare(client, recorded).await;
                    }
                }
            }
            Some(SpdyEvent::End { .. } | SpdyEvent::Reset { .. }) => {}
            None => break,
        }
    }
    for (at, (stream, kind, port, request)) in kinds.into_iter().enumerate() {
        assert_eq!((stream as usize, kind.as_str()), (2 * at + 1, ["error", "data"][at % 2]));
        assert_eq!((port.len(), request), (2, (at / 2).to_string()));
    }
}

#[test]
fn a_forwarded_port() {
    let (sent, recorded) = recording!("portforward");
    run(forward(sent, recorded, |stream| encode_data(stream, payload(recorded, stream as u8), false)));
}

/// The frames of the recording, but with gantry's text.
#[test]
fn a_refused_port() {
    let (sent, recorded) = recording!("portforward_refused");
    let session = ForwardSession { pod: PodId::from_random([0; 16]) };
    let text = format!("error forwarding port 81 to pod {}: refused", session.pod);
    let (recorded, recorded_text) = (after_head(recorded), payload(recorded, 1));
    let begin = recorded.windows(recorded_text.len()).position(|window| window == recorded_text).unwrap();
    let (before, after) = (&recorded[..begin - 8], &recorded[begin + recorded_text.len()..]);
    let expected = [before, &encode_data(1, text.as_bytes(), false), after].concat();
    // The client's reset follows the frames of the server.
    let reset = sent.windows(4).position(|window| window == [0x80, 3, 0, 3]).unwrap();
    run(async {
        let (server, mut client) = connection(&sent[..reset]).await;
        let (reader, writer, _) = split(server, bytes::Bytes::new());
        let connect = |port: u16| {
            assert_eq!(port, 81);
            std::future::ready(Err("refused".to_owned()))
        };
        let writer = FrameWriter::new(writer, false);
        let serving = tokio::spawn(session.serve_with(connect, ByteReader::Plain(reader), writer));
        let mut written = vec![0; expected.len()];
        client.read_exact(&mut written).await.unwrap();
        assert!(written == expected, "\nwritten  {}\nexpected {}", written.escape_ascii(), expected.escape_ascii());
        client.write_all(&sent[reset..]).await.unwrap();
        client.shutdown().await.unwrap();
        serving.await.unwrap().unwrap();
    });
}
