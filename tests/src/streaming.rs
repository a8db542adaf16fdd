//! Clients of the CRI's streaming server, over SPDY/3.1 and WebSocket. They share no code with it.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};

use crate::wait::DEADLINE;

/// The protocols that current clients offer for exec and attach over SPDY.
pub const COMMAND_PROTOCOLS: &[&str] = &["v5.channel.k8s.io", "v4.channel.k8s.io", "channel.k8s.io"];

const FIN: u8 = 1;

/// A response's head, and the connection.
#[derive(Debug)]
pub struct Upgraded {
    /// Status line and headers.
    pub head: String,
    /// After them.
    pub stream: TcpStream,
}

impl Upgraded {
    /// The status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
    }
}

/// Connects to a URL's server.
#[track_caller]
#[must_use]
pub fn connect(url: &str) -> TcpStream {
    let (address, _) = parts(url);
    let stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"));
    let set = stream.set_read_timeout(Some(DEADLINE)).and_then(|()| stream.set_write_timeout(Some(DEADLINE)));
    set.unwrap_or_else(|error| panic!("cannot set timeouts: {error}"));
    stream
}

/// The address and the path of a URL.
#[track_caller]
#[must_use]
pub fn parts(url: &str) -> (&str, String) {
    let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("not an absolute URL: {url}"));
    let (address, path) = rest.split_once('/').unwrap_or_else(|| panic!("no path: {url}"));
    (address, format!("/{path}"))
}

/// Sends a request and reads the head of the response.
#[track_caller]
#[must_use]
pub fn request(url: &str, method: &str, headers: &[(&str, &str)]) -> Upgraded {
    let (address, path) = parts(url);
    let mut stream = connect(url);
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    send(&mut stream, format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\n{lines}\r\n").as_bytes());
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            other => panic!("no response but {other:?} after {:?}", String::from_utf8_lossy(&head)),
        }
    }
    Upgraded { head: String::from_utf8_lossy(&head).into_owned(), stream }
}

#[track_caller]
fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap_or_else(|error| panic!("cannot send: {error}"));
}

/// Demands SPDY with these protocols.
#[track_caller]
#[must_use]
pub fn request_spdy(url: &str, protocols: &[&str]) -> Upgraded {
    let mut headers = vec![("Connection", "Upgrade"), ("Upgrade", "SPDY/3.1"), ("Content-Length", "0")];
    headers.extend(protocols.iter().map(|protocol| ("X-Stream-Protocol-Version", *protocol)));
    request(url, "POST", &headers)
}

/// A frame of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SpdyFrame {
    /// Type and body of a control frame.
    Control(u16, Vec<u8>),
    /// Stream, bytes, and whether they are the last.
    Data(u32, Vec<u8>, bool),
}

/// A client that speaks SPDY/3.1.
#[derive(Debug)]
pub struct SpdyClient {
    stream: TcpStream,
    next: u32,
    has_headers: bool,
    received: BTreeMap<u32, Vec<u8>>,
    ended: Vec<u32>,
    reset: Vec<u32>,
    has_goaway: bool,
}

impl SpdyClient {
    /// Upgrades the connection of a URL.
    #[track_caller]
    #[must_use]
    pub fn upgrade(url: &str, protocols: &[&str]) -> Self {
        let upgraded = request_spdy(url, protocols);
        assert_eq!(upgraded.code(), 101, "{}", upgraded.head);
        Self {
            stream: upgraded.stream,
            next: 1,
            has_headers: false,
            received: BTreeMap::new(),
            ended: Vec::new(),
            reset: Vec::new(),
            has_goaway: false,
        }
    }

    /// Opens the streams of an exec or attach session and returns their numbers by type.
    #[track_caller]
    pub fn open_channels(&mut self, types: &[&'static str]) -> BTreeMap<&'static str, u32> {
        types.iter().map(|kind| (*kind, self.open(&[("streamtype", kind)]))).collect()
    }

    /// Opens a stream and waits for the reply.
    #[track_caller]
    pub fn open(&mut self, headers: &[(&str, &str)]) -> u32 {
        let stream = self.open_only(headers);
        loop {
            match self.frame() {
                Some(SpdyFrame::Control(2, body)) if body[..4] == stream.to_be_bytes() => return stream,
                Some(SpdyFrame::Control(3, body)) if body[..4] == stream.to_be_bytes() => {
                    panic!("stream {stream} was refused")
                }
                Some(frame) => self.note(frame),
                None => panic!("the connection ended before stream {stream} was accepted"),
            }
        }
    }

    /// Opens a stream.
    #[track_caller]
    pub fn open_only(&mut self, headers: &[(&str, &str)]) -> u32 {
        let stream = self.next;
        self.next += 2;
        let block = self.block(headers);
        self.control(1, &[&stream.to_be_bytes()[..], &[0; 6], &block].concat());
        stream
    }

    /// A header block in a stored block of zlib.
    fn block(&mut self, headers: &[(&str, &str)]) -> Vec<u8> {
        let mut plain = u32::try_from(headers.len()).unwrap_or(0).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let mut block = Vec::new();
        if !self.has_headers {
            self.has_headers = true;
            // A zlib stream with the dictionary of SPDY/3.
            block.extend([0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2]);
        }
        let length = u16::try_from(plain.len()).unwrap_or(u16::MAX);
        block.push(0);
        block.extend(length.to_le_bytes());
        block.extend((!length).to_le_bytes());
        block.extend(plain);
        block
    }

    /// Sends a control frame.
    #[track_caller]
    pub fn control(&mut self, kind: u16, body: &[u8]) {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let head = [&[0x80, 3][..], &kind.to_be_bytes(), &length.to_be_bytes()].concat();
        self.raw(&[&head[..], body].concat());
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn raw(&mut self, bytes: &[u8]) {
        send(&mut self.stream, bytes);
    }

    /// Sends bytes on a stream.
    #[track_caller]
    pub fn data(&mut self, stream: u32, bytes: &[u8], fin: bool) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let head = [stream.to_be_bytes(), (u32::from(u8::from(fin) * FIN) << 24 | length).to_be_bytes()].concat();
        self.raw(&[&head[..], bytes].concat());
    }

    /// The next frame; `None` at the end of the connection.
    #[track_caller]
    pub fn frame(&mut self) -> Option<SpdyFrame> {
        let mut head = [0; 8];
        match self.stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing came within {DEADLINE:?}"),
            Err(_) => return None,
        }
        let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).ok()?;
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        Some(match first >> 31 {
            0 => SpdyFrame::Data(first, body, head[4] & FIN != 0),
            _ => SpdyFrame::Control(u16::from_be_bytes([head[2], head[3]]), body),
        })
    }

    fn note(&mut self, frame: SpdyFrame) {
        let number = |body: &[u8]| body.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
        match frame {
            SpdyFrame::Data(stream, bytes, fin) => {
                self.received.entry(stream).or_default().extend(bytes);
                self.ended.extend(fin.then_some(stream));
            }
            SpdyFrame::Control(3, body) => self.reset.push(number(&body)),
            SpdyFrame::Control(7, _) => self.has_goaway = true,
            SpdyFrame::Control(..) => {}
        }
    }

    /// Reads frames until this holds.
    #[track_caller]
    pub fn read_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            match self.frame() {
                Some(frame) => self.note(frame),
                None => panic!("the connection ended before {what}; received {:?}", self.texts()),
            }
        }
    }

    /// Reads frames until a stream has received this text; returns all it has received.
    #[track_caller]
    pub fn wait_text(&mut self, stream: u32, text: &str) -> String {
        self.read_until(&format!("'{text}' came on stream {stream}"), |client| client.text(stream).contains(text));
        self.text(stream)
    }

    /// Reads to the end of the connection; whether GOAWAY came before it.
    #[track_caller]
    pub fn finish(&mut self) -> bool {
        while let Some(frame) = self.frame() {
            self.note(frame);
        }
        self.has_goaway
    }

    /// What a stream has received.
    #[must_use]
    pub fn text(&self, stream: u32) -> String {
        String::from_utf8_lossy(self.bytes(stream)).into_owned()
    }

    /// What a stream has received.
    #[must_use]
    pub fn bytes(&self, stream: u32) -> &[u8] {
        self.received.get(&stream).map_or(&[], Vec::as_slice)
    }

    /// Whether the server has ended its half of a stream.
    #[must_use]
    pub fn has_ended(&self, stream: u32) -> bool {
        self.ended.contains(&stream)
    }

    /// Whether the server has reset a stream.
    #[must_use]
    pub fn was_reset(&self, stream: u32) -> bool {
        self.reset.contains(&stream)
    }

    fn texts(&self) -> BTreeMap<u32, String> {
        self.received.keys().map(|stream| (*stream, self.text(*stream))).collect()
    }

    /// The connection.
    #[must_use]
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Closes the connection.
    pub fn close(self) {
        // It may be closed already.
        let _closed = self.stream.shutdown(Shutdown::Both);
    }
}

/// A client that speaks WebSocket.
#[derive(Debug)]
pub struct WebSocketClient {
    stream: TcpStream,
}

impl WebSocketClient {
    /// Upgrades the connection of a URL.
    #[track_caller]
    #[must_use]
    pub fn upgrade(url: &str, protocol: &str) -> Self {
        let upgraded = request_websocket(url, protocol);
        assert_eq!(upgraded.code(), 101, "{}", upgraded.head);
        let head = upgraded.head.to_lowercase();
        assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        assert!(head.contains(&format!("sec-websocket-protocol: {}", protocol.to_lowercase())), "{head}");
        Self { stream: upgraded.stream }
    }

    /// Sends a masked frame.
    #[track_caller]
    pub fn frame(&mut self, first: u8, payload: &[u8]) {
        let mask = [1, 2, 3, 4];
        let mut frame = vec![first];
        match u16::try_from(payload.len()) {
            Ok(length @ 0..=125) => frame.push(0x80 | u8::try_from(length).unwrap_or(0)),
            Ok(length) => {
                frame.push(0x80 | 126);
                frame.extend(length.to_be_bytes());
            }
            Err(_) => {
                frame.push(0x80 | 127);
                frame.extend((payload.len() as u64).to_be_bytes());
            }
        }
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        send(&mut self.stream, &frame);
    }

    /// Sends a binary message on a channel.
    #[track_caller]
    pub fn send(&mut self, channel: u8, bytes: &[u8]) {
        self.frame(0x82, &[&[channel], bytes].concat());
    }

    /// The next frame: opcode and payload; `None` at the end of the connection.
    #[track_caller]
    pub fn next_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        let mut head = [0; 2];
        match self.stream.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing came within {DEADLINE:?}"),
            Err(_) => return None,
        }
        let mut extended = vec![0; [0, 2, 8][usize::from(head[1] >= 126) + usize::from(head[1] >= 127)]];
        self.stream.read_exact(&mut extended).ok()?;
        let length = match extended.is_empty() {
            true => usize::from(head[1]),
            false => extended.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
        };
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).ok()?;
        Some((head[0] & 0x0f, payload))
    }

    /// The bytes of each channel until the server closes the connection, and the code it closes with.
    #[track_caller]
    pub fn finish(&mut self) -> (BTreeMap<u8, Vec<u8>>, Option<u16>) {
        let mut channels: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
        while let Some((opcode, payload)) = self.next_frame() {
            match (opcode, payload.split_first()) {
                (8, _) => return (channels, payload.first_chunk().map(|code| u16::from_be_bytes(*code))),
                (1 | 2, Some((channel, bytes))) => channels.entry(*channel).or_default().extend(bytes),
                _ => {}
            }
        }
        (channels, None)
    }

    /// Reads messages until a channel has received this text.
    #[track_caller]
    pub fn wait_text(&mut self, channel: u8, text: &str) -> String {
        let mut received = Vec::new();
        while !String::from_utf8_lossy(&received).contains(text) {
            match self.next_frame() {
                Some((1 | 2, payload)) if payload.first() == Some(&channel) => received.extend(&payload[1..]),
                Some(_) => {}
                None => {
                    panic!("the connection ended before '{text}'; received {:?}", String::from_utf8_lossy(&received))
                }
            }
        }
        String::from_utf8_lossy(&received).into_owned()
    }
}

/// Demands a WebSocket with this protocol.
#[track_caller]
#[must_use]
pub fn request_websocket(url: &str, protocol: &str) -> Upgraded {
    let mut headers = vec![
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    if !protocol.is_empty() {
        headers.push(("Sec-WebSocket-Protocol", protocol));
    }
    request(url, "GET", &headers)
}
