//! Exec, attach and port-forward of the Kubernetes CRI, by clients of SPDY and WebSocket that share no code with the
//! server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::thread;

use gantry_tests::api::Served;
use gantry_tests::cri::{self, Sandbox, call, failure, serve, serve_with_config};
use gantry_tests::streaming::{
    COMMAND_PROTOCOLS, SpdyClient, SpdyFrame, WebSocketClient, parts, request, request_spdy, request_websocket,
};
use gantry_tests::{Gantry, wait_for};
use serde_json::{Value, json};

/// A gantryd, and a sandbox with one container.
struct Node {
    g: Gantry,
    served: Served,
    sandbox: Sandbox,
    container: String,
}

impl Node {
    /// A container that runs this verb.
    #[track_caller]
    fn new(verb: &[&str]) -> Self {
        Self::with(&json!({}), verb)
    }

    /// A container with more fields in its configuration.
    #[track_caller]
    fn with(more: &Value, verb: &[&str]) -> Self {
        let g = Gantry::new();
        let (served, address) = serve(&g);
        let sandbox = Sandbox::run(&g, &address, "web");
        let container = add(&sandbox, more, verb);
        Self { g, served, sandbox, container }
    }

    /// The URL of an exec session.
    #[track_caller]
    fn exec(&self, verb: &[&str], channels: &[&str]) -> String {
        let command: Vec<&str> = ["/bin/app"].iter().chain(verb).copied().collect();
        url(&self.sandbox.address, "Exec", &with(&json!({ "container_id": self.container, "cmd": command }), channels))
    }

    /// The URL of an attach session.
    #[track_caller]
    fn attach(&self, channels: &[&str]) -> String {
        url(&self.sandbox.address, "Attach", &with(&json!({ "container_id": self.container }), channels))
    }

    /// A session to the ports of this sandbox.
    #[track_caller]
    fn forward(&self, sandbox: &Sandbox) -> SpdyClient {
        let request = json!({ "pod_sandbox_id": sandbox.id, "port": [80] });
        SpdyClient::upgrade(&url(&self.sandbox.address, "PortForward", &request), &["portforward.k8s.io"])
    }

    #[track_caller]
    fn end(self) {
        self.sandbox.remove();
        self.served.end();
    }
}

/// Creates and starts a container; returns its id.
#[track_caller]
fn add(sandbox: &Sandbox, more: &Value, verb: &[&str]) -> String {
    let id = sandbox.create_with(verb, more);
    sandbox.start(&id);
    id
}

/// Waits until a container has exited.
#[track_caller]
fn wait_exited(node: &Node, id: &str) {
    wait_for("the container to end", || {
        (cri::container(&node.sandbox.address, id)["state"] == "CONTAINER_EXITED").then_some(())
    });
}

/// The request with these channels.
fn with(request: &Value, channels: &[&str]) -> Value {
    let mut request = request.clone();
    for channel in channels {
        request[*channel] = json!(true);
    }
    request
}

#[track_caller]
fn url(address: &str, method: &str, request: &Value) -> String {
    let reply = call(address, method, request);
    reply["url"].as_str().unwrap_or_else(|| panic!("no URL: {reply}")).to_owned()
}

const SUCCESS: &str = r#"{"status":"Success"}"#;

/// The exit code of a status.
fn exit_code(status: &str) -> Option<String> {
    let status: Value = serde_json::from_str(status).ok()?;
    let cause = &status["details"]["causes"][0];
    (status["status"] == "Failure" && status["reason"] == "NonZeroExitCode" && cause["reason"] == "ExitCode")
        .then(|| cause["message"].as_str().unwrap_or_default().to_owned())
}

/// Runs a command over SPDY without stdin; its output and its status.
#[track_caller]
fn run(url: &str) -> (String, String, String) {
    let mut client = SpdyClient::upgrade(url, COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdout", "stderr"]);
    assert!(client.finish(), "GOAWAY ends the session");
    assert!(client.has_ended(streams["stdout"]) && client.has_ended(streams["stderr"]));
    assert!(client.was_reset(streams["error"]));
    (client.text(streams["stdout"]), client.text(streams["stderr"]), client.text(streams["error"]))
}

#[test]
fn a_command_has_its_output_and_exit_code() {
    let user = json!({
        // The value is bytes, which JSON has in base64: "1".
        "envs": [{ "key": "A", "value": "MQ==" }],
        "linux": { "security_context": { "run_as_user": { "value": "1000" } } },
    });
    let node = Node::with(&user, &["sleep", "forever"]);
    let output = ["stdout", "stderr"];
    let hello = run(&node.exec(&["no-newline", "hello"], &output));
    assert_eq!(hello, ("hello".into(), String::new(), SUCCESS.into()));
    let (stdout, stderr, status) =
        run(&node.exec(&["seq", "print", "out", "--", "eprint", "err", "--", "exit", "3"], &output));
    assert_eq!((stdout.as_str(), stderr.as_str(), exit_code(&status)), ("out\n", "err\n", Some("3".into())));
    assert_eq!(exit_code(&run(&node.exec(&["raise", "SIGTERM"], &output)).2).as_deref(), Some("143"));
    let (environment, _, _) = run(&node.exec(&["seq", "env", "--", "ids"], &output));
    assert!(environment.contains("A=1\n") && environment.contains("Uid: 1000 1000 1000 1000"), "{environment}");
    let request = json!({ "container_id": node.container, "cmd": ["/bin/none"], "stdout": true, "stderr": true });
    let (_, _, missing) = run(&url(&node.sandbox.address, "Exec", &request));
    assert!(missing.contains("InternalError") && missing.contains("/bin/none"), "{missing}");
    node.end();
}

#[test]
fn a_command_reads_stdin_until_it_ends() {
    let node = Node::new(&["sleep", "forever"]);
    let mut client =
        SpdyClient::upgrade(&node.exec(&["echo-stdin"], &["stdin", "stdout", "stderr"]), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdin", "stdout", "stderr"]);
    client.data(streams["stdin"], b"abc\n", false);
    assert_eq!(client.wait_text(streams["stdout"], "abc\n"), "abc\n");
    let big = vec![b'y'; 1 << 20];
    let writer = client.stream().try_clone().unwrap_or_else(|error| panic!("{error}"));
    let stdin = streams["stdin"];
    let sending = thread::spawn({
        let big = big.clone();
        move || {
            let mut writer = writer;
            let head = [stdin.to_be_bytes(), u32::try_from(big.len()).unwrap_or(0).to_be_bytes()].concat();
            writer
                .write_all(&[&head[..], &big].concat())
                .and_then(|()| writer.write_all(&[stdin.to_be_bytes(), (1u32 << 24).to_be_bytes()].concat()))
        }
    });
    assert!(client.finish());
    sending.join().unwrap_or_else(|_| panic!("the sender panicked")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(client.bytes(streams["stdout"]).len(), 4 + big.len());
    assert_eq!(client.text(streams["error"]), SUCCESS);
    node.end();
}

/// The client neither sends a size nor closes stdin: the end of the program ends the session.
#[test]
fn a_terminal_ends_with_its_program() {
    let node = Node::new(&["sleep", "forever"]);
    let channels = ["tty", "stdin", "stdout"];
    let types = ["error", "stdin", "stdout", "resize"];
    let mut client = SpdyClient::upgrade(&node.exec(&["seq", "tty", "--", "exit", "4"], &channels), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&types);
    assert!(client.finish());
    assert_eq!(client.text(streams["stdout"]), "tty 0=true 1=true 2=true\r\nsize 24x80\r\n");
    assert_eq!(exit_code(&client.text(streams["error"])).as_deref(), Some("4"));

    let mut client = SpdyClient::upgrade(&node.exec(&["tty", "watch"], &channels), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&types);
    let output = streams["stdout"];
    client.wait_text(output, "size 24x80\r\n");
    client.data(streams["resize"], b"{\"Width\":100,\"Height\":30}\n", false);
    client.wait_text(output, "size 30x100\r\n");
    // Interrupt: a character of the terminal.
    client.data(streams["stdin"], b"\x03", false);
    assert!(client.finish());
    assert_eq!(exit_code(&client.text(streams["error"])).as_deref(), Some("130"));
    node.end();
}

#[test]
fn a_program_ends_with_its_client() {
    let node = Node::new(&["sleep", "forever"]);
    let start = |verb: &[&str]| {
        let mut client = SpdyClient::upgrade(&node.exec(verb, &["stdin", "stdout", "stderr"]), COMMAND_PROTOCOLS);
        let streams = client.open_channels(&["error", "stdin", "stdout", "stderr"]);
        client.wait_text(streams["stdout"], "ready");
        (client, streams["stdin"])
    };
    let processes = || self::run(&node.exec(&["pids"], &["stdout", "stderr"])).0.lines().count();
    let before = processes();
    // One that waits, and one that does not read what its client sends.
    let (waiting, _) = start(&["seq", "print", "ready", "--", "echo-stdin"]);
    let (mut full, stdin) = start(&["seq", "print", "ready", "--", "sleep", "forever"]);
    full.data(stdin, &[b'z'; 100_000], false);
    assert_eq!(processes(), before + 2);
    waiting.close();
    full.close();
    wait_for("the programs to end", || (processes() == before).then_some(()));
    node.end();
}

#[test]
fn orphans_do_not_hold_the_session() {
    let node = Node::new(&["sleep", "forever"]);
    let (stdout, _, status) =
        run(&node.exec(&["seq", "fork-orphans", "2", "--", "print", "done"], &["stdout", "stderr"]));
    assert!(stdout.contains("done\n"), "{stdout}");
    assert_eq!(status, SUCCESS);
    node.end();
}

#[test]
fn a_slow_client_costs_no_memory() {
    const BYTES: usize = 100_000_000;
    /// The limit of the server's growth, in KiB.
    const MAX_GROWTH_KIB: u64 = 16 << 10;
    let node = Node::new(&["sleep", "forever"]);
    let mut client =
        SpdyClient::upgrade(&node.exec(&["flood", &BYTES.to_string()], &["stdout", "stderr"]), COMMAND_PROTOCOLS);
    let before = node.served.rss_kib();
    let streams = client.open_channels(&["error", "stdout", "stderr"]);
    // Another client is served meanwhile.
    assert_eq!(run(&node.exec(&["print", "other"], &["stdout", "stderr"])).0, "other\n");
    for step in 1..=20 {
        client.read_until("a part", |client| client.bytes(streams["stdout"]).len() >= step * BYTES / 20);
        let now = node.served.rss_kib();
        assert!(now < before + MAX_GROWTH_KIB, "gantryd grew from {before} to {now} KiB");
    }
    assert!(client.finish());
    let bytes = client.bytes(streams["stdout"]);
    assert_eq!((bytes.len(), bytes.iter().filter(|byte| **byte == b'\n').count()), (BYTES, BYTES / 80));
    assert_eq!(client.text(streams["error"]), SUCCESS);
    node.end();
}

#[test]
fn old_protocols_have_the_text_of_an_error() {
    let node = Node::new(&["sleep", "forever"]);
    for protocol in ["v3.channel.k8s.io", "v2.channel.k8s.io", "channel.k8s.io"] {
        for (code, expected) in [("0", ""), ("3", "exit code 3")] {
            let mut client = SpdyClient::upgrade(&node.exec(&["exit", code], &["stdout"]), &[protocol]);
            let streams = client.open_channels(&["error", "stdout"]);
            assert!(client.finish());
            assert!(client.text(streams["error"]).ends_with(expected), "{protocol} {code}");
        }
    }
    node.end();
}

#[test]
fn commands_run_over_websocket() {
    let node = Node::new(&["sleep", "forever"]);
    let verb = ["seq", "echo-stdin", "--", "eprint", "err", "--", "exit", "3"];
    let mut client = WebSocketClient::upgrade(&node.exec(&verb, &["stdin", "stdout", "stderr"]), "v5.channel.k8s.io");
    client.send(0, b"abc\n");
    client.frame(0x89, b"alive?");
    // A message in two frames.
    client.frame(0x02, b"\x00de");
    client.frame(0x80, b"f\n");
    // Closes stdin.
    client.send(255, &[0]);
    let (channels, code) = client.finish();
    let text = |channel: u8| channels.get(&channel).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_eq!((text(1).as_deref(), text(2).as_deref(), code), (Some("abc\ndef\n"), Some("err\n"), Some(1000)));
    assert_eq!(exit_code(&text(3).unwrap_or_default()).as_deref(), Some("3"));

    let mut client =
        WebSocketClient::upgrade(&node.exec(&["tty", "watch"], &["stdin", "stdout", "tty"]), "v4.channel.k8s.io");
    client.wait_text(1, "size 24x80");
    client.send(4, b"{\"Width\":100,\"Height\":30}");
    client.wait_text(1, "size 30x100");
    client.send(0, b"\x03");
    let (channels, _) = client.finish();
    assert_eq!(exit_code(&String::from_utf8_lossy(&channels[&3])).as_deref(), Some("130"));

    let url = node.exec(&["no-newline", "hello"], &["stdout"]);
    let mut client = WebSocketClient::upgrade(&url, "v4.base64.channel.k8s.io");
    let (channels, _) = client.finish();
    assert_eq!(channels[&b'1'], b"aGVsbG8=");
    node.end();
}

#[test]
fn tokens_are_valid_once() {
    let node = Node::new(&["sleep", "forever"]);
    let url = node.exec(&["true"], &["stdout", "stderr"]);
    let (host, path) = parts(&url);
    assert!(host.starts_with("127.0.0.1:") && path.starts_with("/exec/") && path.len() == 6 + 32, "{url}");
    // Another kind of session, then the right one, then again.
    assert_eq!(request_spdy(&url.replace("/exec/", "/attach/"), COMMAND_PROTOCOLS).code(), 404);
    assert_eq!(run(&url).2, SUCCESS);
    assert_eq!(request_spdy(&url, COMMAND_PROTOCOLS).code(), 404);
    assert_eq!(request_spdy(&format!("http://{host}/exec/{:032}", 0), COMMAND_PROTOCOLS).code(), 404);
    assert_eq!(request_spdy(&format!("http://{host}/"), COMMAND_PROTOCOLS).code(), 404);
    // A request that cannot be upgraded uses its token, too.
    let new = || node.exec(&["true"], &["stdout", "stderr"]);
    assert_eq!(request(&new(), "GET", &[]).code(), 400);
    assert_eq!(request_spdy(&new(), &[]).code(), 400);
    assert_eq!(request(&new(), "PUT", &[]).code(), 405);
    let refused = request_spdy(&new(), &["v9.channel.k8s.io"]);
    assert_eq!(refused.code(), 403);
    assert!(refused.head.contains("X-Accepted-Stream-Protocol-Versions: v4.channel.k8s.io\r\n"), "{}", refused.head);
    assert_eq!(request_websocket(&new(), "v9.channel.k8s.io").code(), 403);
    assert_eq!(request_websocket(&new(), "").code(), 400);
    node.end();
}

#[test]
fn the_address_of_sessions_is_configured() {
    let g = Gantry::new();
    let serve_with = |setting: &str| {
        let text = format!("gc-interval = '1h'\n{setting}[network]\ndefault = 'none'\nsandbox-network = 'none'\n");
        serve_with_config(&g, &text)
    };
    let (served, address) = serve_with("cri-stream-listen = '127.0.0.2:0'\n");
    let sandbox = Sandbox::run(&g, &address, "web");
    let container = add(&sandbox, &json!({}), &["sleep", "forever"]);
    let request = json!({ "container_id": container, "cmd": ["/bin/app", "no-newline", "hello"], "stdout": true });
    let configured = url(&address, "Exec", &request);
    assert!(parts(&configured).0.starts_with("127.0.0.2:"), "{configured}");
    let mut client = SpdyClient::upgrade(&configured, COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdout"]);
    assert!(client.finish());
    assert_eq!(client.text(streams["stdout"]), "hello");
    served.end();
    let (served, address) = serve_with("cri-stream-listen = 'none'\n");
    let (code, text) = failure(&address, "Exec", &request);
    assert!(code == "UNAVAILABLE" && text.contains("cri-stream-listen"), "{code} {text}");
    sandbox.remove();
    served.end();
}

#[test]
fn a_restart_of_gantryd_ends_only_tokens() {
    let node = Node::new(&["sleep", "forever"]);
    let old = node.exec(&["true"], &["stdout", "stderr"]);
    let Node { g, served, sandbox, container } = node;
    served.kill();
    let (served, _) = serve(&g);
    let node = Node { g, served, sandbox, container };
    let new = node.exec(&["true"], &["stdout", "stderr"]);
    let moved = format!("http://{}{}", parts(&new).0, parts(&old).1);
    assert_eq!(request_spdy(&moved, COMMAND_PROTOCOLS).code(), 404);
    assert_eq!(run(&new).2, SUCCESS);
    node.end();
}

#[test]
fn invalid_requests_are_refused() {
    let node = Node::new(&["sleep", "forever"]);
    let exec = json!({ "container_id": node.container, "cmd": ["true"] });
    let code = |method: &str, request: &Value| failure(&node.sandbox.address, method, request).0;
    assert_eq!(code("Exec", &exec), "INVALID_ARGUMENT");
    assert_eq!(code("Exec", &with(&exec, &["tty", "stdout", "stderr"])), "INVALID_ARGUMENT");
    assert_eq!(code("Exec", &with(&json!({ "container_id": node.container }), &["stdout"])), "INVALID_ARGUMENT");
    assert_eq!(code("Attach", &json!({ "container_id": node.container })), "INVALID_ARGUMENT");
    let unknown = "6733c088-a507-4694-aabf-ec79c0a8ac9a";
    let zeros = "0".repeat(64);
    for id in [unknown, &zeros] {
        assert_eq!(code("Exec", &with(&json!({ "container_id": id, "cmd": ["true"] }), &["stdout"])), "NOT_FOUND");
        assert_eq!(code("Attach", &with(&json!({ "container_id": id }), &["stdout"])), "NOT_FOUND");
        assert_eq!(code("PortForward", &json!({ "pod_sandbox_id": id })), "NOT_FOUND");
    }
    assert_eq!(code("PortForward", &json!({ "pod_sandbox_id": node.sandbox.id, "port": [0] })), "INVALID_ARGUMENT");
    let ended = add(&node.sandbox, &json!({}), &["true"]);
    wait_exited(&node, &ended);
    let request = with(&json!({ "container_id": ended, "cmd": ["true"] }), &["stdout"]);
    assert_eq!(code("Exec", &request), "FAILED_PRECONDITION");
    node.end();
}

/// Attaches with stdin and output.
#[track_caller]
fn attach(node: &Node) -> (SpdyClient, u32, u32, u32) {
    let mut client = SpdyClient::upgrade(&node.attach(&["stdin", "stdout", "stderr"]), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdin", "stdout", "stderr"]);
    (client, streams["stdin"], streams["stdout"], streams["error"])
}

#[test]
fn stdin_stays_open_for_the_next_client() {
    let node = Node::with(&json!({ "stdin": true }), &["echo-stdin"]);
    // A container whose output no client of the first one sees.
    let noisy = add(&node.sandbox, &json!({}), &["lines", "forever", "20", "1000"]);
    for text in ["one\n", "two\n"] {
        let (mut client, stdin, stdout, _) = attach(&node);
        client.data(stdin, text.as_bytes(), true);
        client.wait_text(stdout, text);
        assert_eq!(client.text(stdout), text, "only from now on, only of this container");
        client.close();
    }
    // Two at a time have the same output. A client whose input is answered is attached.
    let ((mut first, stdin, one, _), (mut second, other_stdin, two, _)) = (attach(&node), attach(&node));
    second.data(other_stdin, b"attached\n", false);
    second.wait_text(two, "attached\n");
    first.data(stdin, b"both\n", false);
    first.wait_text(one, "both\n");
    second.wait_text(two, "both\n");
    // The end of the container ends the sessions.
    call(&node.sandbox.address, "StopContainer", &json!({ "container_id": node.container, "timeout": 30 }));
    assert!(first.finish() && second.finish());
    assert!(first.has_ended(one));
    let request = with(&json!({ "container_id": noisy }), &["stdout"]);
    let mut client = SpdyClient::upgrade(&url(&node.sandbox.address, "Attach", &request), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdout"]);
    client.read_until("some lines", |client| client.bytes(streams["stdout"]).len() > 1000);
    client.close();
    node.end();
}

#[test]
fn stdin_once_ends_with_the_first_client() {
    let node = Node::with(&json!({ "stdin": true, "stdin_once": true }), &["echo-stdin"]);
    let (mut client, stdin, stdout, error) = attach(&node);
    client.data(stdin, b"hello\n", true);
    assert!(client.finish());
    assert_eq!((client.text(stdout).as_str(), client.text(error).as_str()), ("hello\n", SUCCESS));
    wait_exited(&node, &node.container);
    node.end();
}

#[test]
fn containers_are_attached_to_over_websocket() {
    let node = Node::with(&json!({ "stdin": true, "stdin_once": true }), &["echo-stdin"]);
    let mut client = WebSocketClient::upgrade(&node.attach(&["stdin", "stdout", "stderr"]), "v5.channel.k8s.io");
    client.send(0, b"hello\n");
    client.wait_text(1, "hello\n");
    // Closes stdin, which ends the container and with it the session.
    client.send(255, &[0]);
    let (channels, code) = client.finish();
    assert_eq!((channels.get(&3).map(Vec::as_slice), code), (Some(SUCCESS.as_bytes()), Some(1000)));
    wait_exited(&node, &node.container);
    node.end();
}

#[test]
fn a_terminal_is_attached_to_and_resized() {
    let node = Node::with(&json!({ "stdin": true, "tty": true }), &["tty", "watch"]);
    let mut client = SpdyClient::upgrade(&node.attach(&["stdin", "stdout", "tty"]), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdin", "stdout", "resize"]);
    client.data(streams["resize"], b"{\"Width\":91,\"Height\":31}\n", false);
    client.wait_text(streams["stdout"], "size 31x91\r\n");
    client.data(streams["stdin"], b"\x03", false);
    assert!(client.finish());
    assert_eq!(client.text(streams["error"]), SUCCESS);
    node.end();
}

/// A client that reads nothing delays its container, and no other.
#[test]
fn a_slow_attached_client_delays_only_its_container() {
    let node = Node::new(&["newlines"]);
    let mut slow = SpdyClient::upgrade(&node.attach(&["stdout"]), COMMAND_PROTOCOLS);
    let _streams = slow.open_channels(&["error", "stdout"]);
    let other = add(&node.sandbox, &json!({ "stdin": true }), &["echo-stdin"]);
    let request = with(&json!({ "container_id": other }), &["stdin", "stdout"]);
    let mut client = SpdyClient::upgrade(&url(&node.sandbox.address, "Attach", &request), COMMAND_PROTOCOLS);
    let streams = client.open_channels(&["error", "stdin", "stdout"]);
    client.data(streams["stdin"], b"still here\n", false);
    client.wait_text(streams["stdout"], "still here\n");
    let before = node.served.rss_kib();
    assert_eq!(run(&node.exec(&["print", "x"], &["stdout", "stderr"])).0, "x\n");
    assert!(node.served.rss_kib() < before + (8 << 10));
    slow.close();
    client.close();
    node.end();
}

/// Opens the pair of streams of a connection.
#[track_caller]
fn forward(client: &mut SpdyClient, port: &str, request: &str) -> (u32, u32) {
    let error = client.open(&[("streamtype", "error"), ("port", port), ("requestid", request)]);
    client.data(error, b"", true);
    let data = client.open(&[("requestid", request), ("port", port), ("streamtype", "data")]);
    (error, data)
}

const GET: &[u8] = b"GET / HTTP/1.0\r\n\r\n";

#[test]
fn ports_of_a_pod_are_forwarded() {
    let node = Node::new(&["serve-http", "8080"]);
    node.g.wait_log(&node.sandbox.id, "listening");
    let mut client = node.forward(&node.sandbox);
    for number in ["0", "1", "2"] {
        let (error, data) = forward(&mut client, "8080", number);
        client.data(data, GET, false);
        client.read_until("both streams ended", |client| client.has_ended(data) && client.has_ended(error));
        assert!(client.text(data).contains("hello"), "{}", client.text(data));
        assert_eq!(client.text(error), "", "a text ends the session of a client");
    }
    let (error, data) = forward(&mut client, "8081", "3");
    client.read_until("the port was refused", |client| client.was_reset(error));
    assert!(client.has_ended(data), "clients read the text only after the end of the data");
    let text = client.text(error);
    assert!(text.contains("error forwarding port 8081") && text.contains("127.0.0.1:8081"), "{text}");
    // The session goes on.
    let (_, data) = forward(&mut client, "8080", "4");
    client.data(data, GET, true);
    client.read_until("the page came", |client| client.has_ended(data));
    assert!(client.text(data).contains("hello"));
    client.close();
    node.end();
}

/// A sandbox in the host's network, and a session to its ports.
#[track_caller]
fn host_session(node: &Node) -> (Sandbox, SpdyClient) {
    let network = json!({ "linux": { "security_context": { "namespace_options": { "network": "NODE" } } } });
    let sandbox = Sandbox::run_with(&node.g, &node.sandbox.address, "host", &network);
    let client = node.forward(&sandbox);
    (sandbox, client)
}

/// A server of the host on any free port.
#[track_caller]
fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap_or_else(|error| panic!("{error}"));
    let port = listener.local_addr().map(|address| address.port().to_string()).unwrap_or_default();
    (listener, port)
}

#[test]
fn ports_in_the_hosts_network_are_forwarded() {
    let node = Node::new(&["sleep", "forever"]);
    let (host, mut client) = host_session(&node);
    let (listener, port) = listen();
    // All connections are open at the same time; the last is answered first.
    let server = thread::spawn(move || {
        let streams = (0..3).map(|_| Ok(listener.accept()?.0)).collect::<std::io::Result<Vec<_>>>()?;
        for stream in streams.into_iter().rev() {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line)?;
            (&stream).write_all(format!("you said {line}").as_bytes())?;
        }
        Ok::<_, std::io::Error>(())
    });
    let pairs: Vec<(u32, u32)> = ["a", "b", "c"].iter().map(|request| forward(&mut client, &port, request)).collect();
    for (_, data) in &pairs {
        client.data(*data, format!("{data}\n").as_bytes(), false);
    }
    for (error, data) in pairs.into_iter().rev() {
        client.read_until("the answer came", |client| client.has_ended(data));
        assert_eq!((client.text(data), client.text(error)), (format!("you said {data}\n"), String::new()));
    }
    server.join().unwrap_or_else(|_| panic!("the server panicked")).unwrap_or_else(|error| panic!("{error}"));
    client.close();
    host.remove();
    node.end();
}

/// After the client resets the data stream, it waits for the end of the error stream.
#[test]
fn a_reset_of_a_client_ends_its_connection() {
    let node = Node::new(&["sleep", "forever"]);
    let (host, mut client) = host_session(&node);
    let (listener, port) = listen();
    let server = thread::spawn(move || {
        let mut stream = listener.accept()?.0;
        stream.write_all(b"hello")?;
        stream.read(&mut [0])
    });
    let (error, data) = forward(&mut client, &port, "0");
    client.wait_text(data, "hello");
    // RST_STREAM: the stream is no longer needed.
    client.control(3, &[data.to_be_bytes(), 5u32.to_be_bytes()].concat());
    client.read_until("the error stream ended", |client| client.has_ended(error));
    assert_eq!(client.text(error), "");
    let read = server.join().unwrap_or_else(|_| panic!("the server panicked"));
    assert_eq!(read.unwrap_or_else(|error| panic!("{error}")), 0, "the server's connection ended");
    client.close();
    host.remove();
    node.end();
}

/// SPDY in the messages of a WebSocket.
#[test]
fn ports_are_forwarded_over_websocket() {
    let node = Node::new(&["serve-http", "8080"]);
    node.g.wait_log(&node.sandbox.id, "listening");
    let url = url(&node.sandbox.address, "PortForward", &json!({ "pod_sandbox_id": node.sandbox.id }));
    let mut client = WebSocketClient::upgrade(&url, "SPDY/3.1+portforward.k8s.io");
    let stream = |id: u32, block: &[u8]| {
        let body = [&id.to_be_bytes()[..], &[0; 6], block].concat();
        let length = u32::try_from(body.len()).unwrap_or(0);
        [&[0x80, 3, 0, 1][..], &length.to_be_bytes(), &body].concat()
    };
    let pair = |kind: &str| {
        let mut plain = 3u32.to_be_bytes().to_vec();
        for text in ["streamtype", kind, "port", "8080", "requestid", "0"] {
            plain.extend(u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
            plain.extend(text.as_bytes());
        }
        let length = u16::try_from(plain.len()).unwrap_or(0);
        [&[0][..], &length.to_le_bytes(), &(!length).to_le_bytes(), &plain].concat()
    };
    let error = stream(1, &[&[0x78, 0xf9, 0xe3, 0xc6, 0xa7, 0xc2][..], &pair("error")].concat());
    let data = [&[0, 0, 0, 3, 0, 0, 0][..], &[u8::try_from(GET.len()).unwrap_or(0)], GET].concat();
    // Frames and messages need not have the same borders.
    let all = [error, stream(3, &pair("data")), data].concat();
    for piece in all.chunks(50) {
        client.frame(0x82, piece);
    }
    let mut received = Vec::new();
    // The page, then the ends of both streams.
    let ends = [[0, 0, 0, 3, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0, 0, 0]].concat();
    while !received.ends_with(&ends) {
        match client.next_frame() {
            Some((2, payload)) => received.extend(payload),
            other => panic!("no page but {other:?}"),
        }
    }
    assert!(String::from_utf8_lossy(&received).contains("hello"));
    node.end();
}

/// A server that breaks the connection is no error of the session.
#[test]
fn a_reset_of_a_server_has_no_text() {
    let node = Node::new(&["sleep", "forever"]);
    let (host, mut client) = host_session(&node);
    let (listener, port) = listen();
    // Closing with unread bytes resets the connection.
    let server = thread::spawn(move || listener.accept()?.0.read_exact(&mut [0]));
    let (error, data) = forward(&mut client, &port, "0");
    client.data(data, &[b'x'; 1000], false);
    server.join().unwrap_or_else(|_| panic!("the server panicked")).unwrap_or_else(|error| panic!("{error}"));
    client.read_until("the connection ended", |client| client.has_ended(data) && client.has_ended(error));
    // What the client sends now is discarded.
    client.data(data, &[b'x'; 1_000_000], false);
    client.control(6, &7u32.to_be_bytes());
    wait_for("the answer to a ping", || matches!(client.frame(), Some(SpdyFrame::Control(6, _))).then_some(()));
    assert_eq!(client.text(error), "");
    client.close();
    host.remove();
    node.end();
}

/// What `crictl` sent to containerd is answered as containerd did, stream by stream.
#[test]
fn recorded_clients_are_served() {
    let node = Node::new(&["sleep", "forever"]);
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/api/testdata/spdy");
    let read = |name: &str| std::fs::read(format!("{dir}/{name}")).unwrap_or_else(|error| panic!("{name}: {error}"));
    let exit3 = ["seq", "print", "out", "--", "eprint", "err", "--", "exit", "3"];
    for (name, verb, channels) in [
        ("exec_plain", &["no-newline", "hello"][..], &["stdout", "stderr"][..]),
        ("exec_exit3", &exit3, &["stdout", "stderr"]),
        ("exec_stdin", &["echo-stdin"], &["stdin", "stdout", "stderr"]),
    ] {
        let url = node.exec(verb, channels);
        let sent = read(&format!("{name}.c2s.bin"));
        let head = sent.windows(2).position(|pair| pair == b"\r\n").unwrap_or(0);
        let mut stream = gantry_tests::streaming::connect(&url);
        let request = [format!("POST {} HTTP/1.1", parts(&url).1).as_bytes(), &sent[head..]].concat();
        stream.write_all(&request).unwrap_or_else(|error| panic!("{error}"));
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap_or_else(|error| panic!("{error}"));
        let recorded = read(&format!("{name}.s2c.bin"));
        assert_eq!(by_stream(&answer), by_stream(&recorded), "{name}");
    }
    node.end();
}

/// The frames of each stream in order: data joined, the text of a failure left out; and the head without its date.
fn by_stream(answer: &[u8]) -> std::collections::BTreeMap<u32, Vec<String>> {
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(0) + 4;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let lines: Vec<String> = head.lines().filter(|line| !line.starts_with("Date:")).map(str::to_owned).collect();
    let mut streams = std::collections::BTreeMap::from([(0, lines)]);
    let mut rest = &answer[end..];
    while let Some((head, tail)) = rest.split_first_chunk::<8>() {
        let length = usize::from(head[5]) << 16 | usize::from(head[6]) << 8 | usize::from(head[7]);
        let (body, tail) = tail.split_at(length.min(tail.len()));
        rest = tail;
        let first = u32::from_be_bytes([head[0], head[1], head[2], head[3]]);
        let (stream, text) = match first >> 31 {
            0 => (first, String::from_utf8_lossy(body).into_owned() + if head[4] == 1 { "<end>" } else { "" }),
            _ => (body.first_chunk().map_or(0, |id| u32::from_be_bytes(*id)), format!("{first:x} {body:x?}")),
        };
        let text = if text.contains("ExitCode") { text.split(r#""reason""#).skip(1).collect() } else { text };
        streams.entry(stream).or_default().push(text);
    }
    streams
}
