//! Clients of the CRI's streaming server that violate its protocols, or hold what they can: others are served as
//! before, and gantryd's memory stays bounded.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use gantry_tests::api::Served;
use gantry_tests::cri::{Sandbox, call, failure, serve};
use gantry_tests::python::run_script;
use gantry_tests::streaming::{
    COMMAND_PROTOCOLS, SpdyClient, SpdyFrame, WebSocketClient, connect, parts, request_spdy,
};
use gantry_tests::{Gantry, wait_for};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// The limit of the server's growth, in KiB.
const MAX_GROWTH_KIB: u64 = 32 << 10;

/// A gantryd, and a sandbox with a container.
struct Node {
    served: Served,
    sandbox: Sandbox,
    container: String,
    g: Gantry,
}

impl Node {
    #[track_caller]
    fn new() -> Self {
        let g = Gantry::new();
        let (served, address) = serve(&g);
        let sandbox = Sandbox::run(&g, &address, "web");
        let container = sandbox.launch(&["sleep", "forever"]);
        Self { served, sandbox, container, g }
    }

    fn request(&self, verb: &[&str]) -> Value {
        let command: Vec<&str> = ["/bin/app"].iter().chain(verb).copied().collect();
        json!({ "container_id": self.container, "cmd": command, "stdin": true, "stdout": true })
    }

    #[track_caller]
    fn exec(&self, verb: &[&str]) -> String {
        call(&self.sandbox.address, "Exec", &self.request(verb))["url"].as_str().unwrap_or_default().to_owned()
    }

    #[track_caller]
    fn forward(&self) -> String {
        let request = json!({ "pod_sandbox_id": self.sandbox.id });
        call(&self.sandbox.address, "PortForward", &request)["url"].as_str().unwrap_or_default().to_owned()
    }

    /// A client that follows the protocol is served.
    #[track_caller]
    fn check(&self) {
        let mut client = SpdyClient::upgrade(&self.exec(&["no-newline", "hello"]), COMMAND_PROTOCOLS);
        let streams = client.open_channels(&["error", "stdin", "stdout"]);
        assert!(client.finish());
        assert_eq!(client.text(streams["stdout"]), "hello");
    }

    #[track_caller]
    fn end(self) {
        self.sandbox.remove();
        self.served.end();
    }
}

/// Reads until the server closes the connection. It may do so before it has read everything.
fn wait_closed(mut stream: &TcpStream) {
    let mut buffer = [0; 4096];
    while matches!(stream.read(&mut buffer), Ok(1..)) {}
}

#[test]
fn tokens_are_limited() {
    let node = Node::new();
    let request = json!({ "pod_sandbox_id": node.sandbox.id });
    let url = node.forward();
    // One client makes the calls: a thousand.
    let method = "runtime.v1.RuntimeService/PortForward";
    let line = ["--parallel", "999", &node.sandbox.address, method, &request.to_string()];
    assert_eq!(run_script("node_client.py", &line).ok().stdout.lines().count(), 999);
    let (code, text) = failure(&node.sandbox.address, "PortForward", &request);
    assert_eq!(code, "RESOURCE_EXHAUSTED", "{text}");
    assert_eq!(request_spdy(&url, &["portforward.k8s.io"]).code(), 101);
    node.check();
    node.end();
}

/// More connections than the server keeps, each with half a request.
#[test]
fn slow_requests_do_not_block_others() {
    let node = Node::new();
    let url = node.exec(&["true"]);
    let before = node.served.rss_kib();
    let slow: Vec<TcpStream> = (0..600)
        .map(|_| {
            let mut stream = connect(&url);
            stream.write_all(b"GET /exec/").unwrap_or_else(|error| panic!("{error}"));
            stream
        })
        .collect();
    node.check();
    assert!(node.served.rss_kib() < before + MAX_GROWTH_KIB);
    // The oldest were closed to serve the others.
    wait_closed(&slow[0]);
    let mut large = connect(&url);
    let line = [&b"GET / HTTP/1.1\r\nX: "[..], &vec![b'x'; 1 << 20]].concat();
    let _closed_before_it_was_read = large.write_all(&line);
    wait_closed(&large);
    assert_eq!(request_spdy(&url, COMMAND_PROTOCOLS).code(), 101, "the token is still valid");
    node.end();
}

#[test]
fn violations_of_spdy_end_their_connection_only() {
    let node = Node::new();
    let before = node.served.rss_kib();
    let head = |kind: u16, length: u32| [&[0x80, 3][..], &kind.to_be_bytes(), &length.to_be_bytes()].concat();
    let bomb = {
        // A stored block that claims more than it has; and a header block with a length of 4 GiB.
        let plain = [&1u32.to_be_bytes()[..], &u32::MAX.to_be_bytes()].concat();
        let length = u16::try_from(plain.len()).unwrap_or(0);
        let block =
            [&[0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2, 0][..], &length.to_le_bytes(), &(!length).to_le_bytes(), &plain];
        let body = [&1u32.to_be_bytes()[..], &[0; 6], &block.concat()].concat();
        [head(1, u32::try_from(body.len()).unwrap_or(0)), body].concat()
    };
    for bytes in [
        b"this is not SPDY at all, but 16 bytes and more".repeat(1000),
        [0x80, 2, 0, 1, 0, 0, 0, 0].to_vec(),
        head(1, 0xff_ffff),
        head(1, 0),
        bomb,
        // Data for a stream that is not open.
        [0, 0, 0, 9, 0, 0, 0, 1, b'x'].to_vec(),
    ] {
        let mut client = SpdyClient::upgrade(&node.exec(&["true"]), COMMAND_PROTOCOLS);
        client.raw(&bytes);
        client.finish();
    }
    // Streams that were not requested, twice the same, an even number.
    for kinds in [["stderr", "error"], ["stdout", "stdout"], ["nonsense", "error"]] {
        let mut client = SpdyClient::upgrade(&node.exec(&["true"]), COMMAND_PROTOCOLS);
        for kind in kinds {
            client.open_only(&[("streamtype", kind)]);
        }
        client.finish();
    }
    // Half a frame, and then nothing: it holds only itself.
    let mut half = SpdyClient::upgrade(&node.exec(&["true"]), COMMAND_PROTOCOLS);
    half.raw(&[0x80, 3, 0]);
    node.check();
    half.close();
    assert!(node.served.rss_kib() < before + MAX_GROWTH_KIB);
    node.end();
}

#[test]
fn streams_of_a_session_are_limited() {
    const STREAMS: u32 = 5000;
    let node = Node::new();
    let before = node.served.rss_kib();
    let mut client = SpdyClient::upgrade(&node.forward(), &["portforward.k8s.io"]);
    let (mut accepted, mut refused) = (0, 0);
    for number in 0..STREAMS {
        client.open_only(&[("streamtype", "error"), ("port", "80"), ("requestid", &number.to_string())]);
        match client.frame() {
            Some(SpdyFrame::Control(2, _)) => accepted += 1,
            Some(SpdyFrame::Control(3, _)) => refused += 1,
            other => panic!("neither accepted nor refused: {other:?}"),
        }
    }
    assert!(accepted < 1000 && accepted + refused == STREAMS, "{accepted} accepted");
    // Pings are answered, unless their number is even.
    client.control(6, &8u32.to_be_bytes());
    client.control(6, &7u32.to_be_bytes());
    assert_eq!(client.frame(), Some(SpdyFrame::Control(6, 7u32.to_be_bytes().to_vec())));
    client.control(4, &[0; 12]);
    client.control(9, &[0; 8]);
    client.control(99, &[0; 8]);
    node.check();
    assert!(node.served.rss_kib() < before + MAX_GROWTH_KIB);
    client.close();
    node.end();
}

/// A client that sends what its program does not read is slowed down.
#[test]
fn input_that_is_not_read_costs_no_memory() {
    let node = Node::new();
    let before = node.served.rss_kib();
    let mut client = SpdyClient::upgrade(&node.exec(&["sleep", "forever"]), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdin", "stdout"]);
    let mut stream = client.stream().try_clone().unwrap_or_else(|error| panic!("{error}"));
    stream.set_nonblocking(true).unwrap_or_else(|error| panic!("{error}"));
    // One frame of 16 MB; the kernel's buffers take a part.
    let head = [streams["stdin"].to_be_bytes(), 0xff_ffffu32.to_be_bytes()].concat();
    stream.write_all(&head).unwrap_or_else(|error| panic!("{error}"));
    let (chunk, mut sent) = (vec![b'x'; 64 << 10], 0);
    while let Ok(count) = stream.write(&chunk) {
        sent += count;
        assert!(sent < 16_000_000, "everything was taken");
    }
    node.check();
    assert!(node.served.rss_kib() < before + MAX_GROWTH_KIB);
    client.close();
    node.end();
}

#[test]
fn violations_of_websocket_end_their_connection_only() {
    let node = Node::new();
    let open = || WebSocketClient::upgrade(&node.exec(&["sleep", "forever"]), "v5.channel.k8s.io");
    // A reserved opcode, a fragmented ping, a continuation of nothing.
    for (first, payload) in [(0x83, &b"x"[..]), (0x09, b"x"), (0x80, b"x"), (0xc2, b"x")] {
        let mut client = open();
        client.frame(first, payload);
        assert_eq!(client.finish().1, Some(1002));
    }
    // A message of a channel that is not streamed.
    let mut client = open();
    client.send(4, &vec![b' '; 2 << 20]);
    assert_eq!(client.finish().1, Some(1009));
    // Channels that do not exist are ignored.
    let mut client = WebSocketClient::upgrade(&node.exec(&["echo-stdin"]), "v5.channel.k8s.io");
    for channel in [1, 2, 3, 9, 254] {
        client.send(channel, b"nothing");
    }
    client.send(255, &[7]);
    client.send(255, &[0]);
    let (channels, code) = client.finish();
    assert_eq!((channels.get(&1).map_or(0, Vec::len), code), (0, Some(1000)));
    node.check();
    node.end();
}

/// A path of any length and form is answered.
#[test]
fn odd_paths_are_not_found() {
    let node = Node::new();
    let url = node.exec(&["true"]);
    let host = parts(&url).0;
    for path in ["exec", "exec/", "exec//", "%00", "exec/../exec/x", &"x".repeat(4000), "attach/é"] {
        let answer = gantry_tests::streaming::request(&format!("http://{host}/{path}"), "GET", &[]);
        assert!(matches!(answer.code(), 400 | 404), "{path}: {}", answer.head);
    }
    node.check();
    node.end();
}

/// The sockets that a process has open.
fn count_sockets(pid: u32) -> usize {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

#[test]
fn clients_of_hung_pods_delay_no_others() {
    // More than the threads of the engine for such sessions.
    const CLIENTS: usize = 8;
    let mut node = Node::new();
    let gantryd = node.served.daemon().pid();
    let other = Sandbox::run(&node.g, &node.sandbox.address, "other");
    let echo = other.create_with(&["echo-stdin"], &json!({ "stdin": true }));
    other.start(&echo);
    let attach = |container: &str| {
        let request = json!({ "container_id": container, "stdin": true, "stdout": true });
        let url = call(&node.sandbox.address, "Attach", &request)["url"].as_str().unwrap_or_default().to_owned();
        let mut client = SpdyClient::upgrade(&url, COMMAND_PROTOCOLS);
        let streams = client.open_channels(&["error", "stdin", "stdout"]);
        (client, streams)
    };
    let supervisor = Pid::from_raw(i32::try_from(node.g.supervisor(&node.sandbox.id)).unwrap()).unwrap();
    let before = count_sockets(gantryd);
    kill_process(supervisor, Signal::STOP).unwrap();
    let waiting: Vec<_> = (0..CLIENTS).map(|_| attach(&node.container)).collect();
    // Each client has one socket, and two descriptors of its connection to the supervisor.
    let all_wait = || count_sockets(gantryd) >= before + 3 * CLIENTS - 2;
    wait_for("all clients", || all_wait().then_some(()));
    let (mut client, streams) = attach(&echo);
    client.data(streams["stdin"], b"here\n", false);
    client.wait_text(streams["stdout"], "here\n");
    assert!(all_wait(), "the client of the other pod was delayed");
    client.close();
    kill_process(supervisor, Signal::CONT).unwrap();
    waiting.into_iter().for_each(|(client, _)| client.close());
    other.remove();
    node.check();
    node.end();
}
