//! Connections of port-forward between sockets of this process. The client opens the streams of a recorded one.

use super::super::wire::split;
use super::super::wire::tests::{narrow_connection, run};
use super::*;

/// The streams of the recording's first connection.
const ERROR: u32 = 1;
const DATA: u32 = 3;

/// The frames of the recording that open them.
fn opening() -> &'static [u8] {
    let recorded = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/spdy/portforward.c2s.bin"));
    let find = |wanted: &[u8]| recorded.windows(wanted.len()).position(|window| window == wanted).unwrap();
    // After the head of HTTP, and before the request in a data frame.
    &recorded[find(b"\r\n\r\n") + 4..find(&[0, 0, 0, 3, 0, 0, 0, 79])]
}

/// The next frame of the session.
async fn frame(client: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; 8];
    client.read_exact(&mut frame).await.unwrap();
    let length = u32::from_be_bytes([0, frame[5], frame[6], frame[7]]) as usize;
    frame.resize(8 + length, 0);
    client.read_exact(&mut frame[8..]).await.unwrap();
    frame
}

/// Both ends of a connection to a server that has sent these bytes, the server's first.
async fn connection(first: &[u8]) -> (TcpStream, TcpStream) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    server.write_all(first).await.unwrap();
    let mut buffer = vec![0; first.len()];
    // All have arrived, so one read takes as many as it can.
    while !first.is_empty() && stream.peek(&mut buffer).await.unwrap() < first.len() {
        tokio::task::yield_now().await;
    }
    (server, stream)
}

/// A session with one connection: its client, and the server, which has sent these bytes.
async fn session(first: &[u8]) -> (TcpStream, TcpStream) {
    let (server, stream) = connection(first).await;
    let reached = Mutex::new(Some(stream));
    let connect = move |_port: u16| {
        let stream = reached.lock().unwrap().take();
        std::future::ready(stream.ok_or_else(|| "there is one connection".to_owned()))
    };
    let (ours, mut client) = narrow_connection().await;
    let (reader, writer, _) = split(ours, Bytes::new());
    let session = ForwardSession { pod: PodId::from_random([0; 16]) };
    // Ends with the runtime of the test.
    tokio::spawn(session.serve_with(connect, ByteReader::Plain(reader), FrameWriter::new(writer, false)));
    client.write_all(opening()).await.unwrap();
    for _ in [ERROR, DATA] {
        let reply = frame(&mut client).await;
        assert_eq!(reply[..4], [0x80, 3, 0, 2], "SYN_REPLY");
    }
    (client, server)
}

#[test]
fn the_end_of_a_server_ends_both_streams() {
    run(async {
        let (mut client, server) = session(b"bye").await;
        assert_eq!(frame(&mut client).await, encode_data(DATA, b"bye", false));
        drop(server);
        assert_eq!(frame(&mut client).await, encode_data(DATA, &[], true));
        assert_eq!(frame(&mut client).await, encode_data(ERROR, &[], true));
    });
}

#[test]
fn a_reset_ends_connection_and_error_stream() {
    run(async {
        let (mut client, mut server) = session(b"").await;
        client.write_all(&encode_rst_stream(DATA, RST_CANCEL)).await.unwrap();
        assert_eq!(frame(&mut client).await, encode_data(ERROR, &[], true));
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    });
}

/// A session that ends drops its connections before it aborts their tasks.
#[test]
fn a_lost_session_is_no_reset() {
    run(async {
        let (server, stream) = connection(b"bye").await;
        let (ours, mut client) = narrow_connection().await;
        let (_reader, writer, _) = split(ours, Bytes::new());
        let writer = FrameWriter::new(writer, false);
        let ((to_server, from_client), (reset, has_reset)) = (mpsc::channel(1), oneshot::channel());
        drop((server, to_server, reset));
        let connecting = async {
            tokio::task::yield_now().await;
            Ok::<_, String>(stream)
        };
        let pair = Pair { data: DATA, error: ERROR, pod: PodId::from_random([0; 16]), port: 1 };
        forward(connecting, pair, &writer, from_client, has_reset).await.unwrap();
        assert_eq!(frame(&mut client).await, encode_data(DATA, b"bye", false));
    });
}

#[test]
fn a_reset_error_stream_ends_connection_and_data() {
    run(async {
        let (mut client, mut server) = session(b"").await;
        client.write_all(&encode_rst_stream(ERROR, RST_CANCEL)).await.unwrap();
        assert_eq!(frame(&mut client).await, encode_data(DATA, &[], true));
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
    });
}

/// The client's buffers hold a part of a frame when it resets the stream.
#[test]
fn a_reset_leaves_frames_whole() {
    static FIRST: [u8; READ] = [b'x'; READ];
    run(async {
        let (mut client, mut server) = session(&FIRST).await;
        assert_eq!(client.peek(&mut [0]).await.unwrap(), 1);
        client.write_all(&encode_rst_stream(DATA, RST_CANCEL)).await.unwrap();
        // The client reads on after the reset has had its effect.
        assert_eq!(server.read(&mut [0]).await.unwrap(), 0);
        assert!(frame(&mut client).await == encode_data(DATA, &FIRST, false), "another frame is in it");
        assert_eq!(frame(&mut client).await, encode_data(ERROR, &[], true));
    });
}
