//! Hostile requests to the Talos node API: any bytes, ids, paths and xids have a readable status, and harm no other
//! client.

use std::time::Duration;

use gantry_proto::talos::machine::VersionResponse;
use gantry_tests::Gantry;
use gantry_tests::python::repository;
use gantry_tests::talos::{failure, serve};
use gantry_tests::tls_client;
use prost::bytes::{Buf as _, BufMut as _};
use serde_json::json;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Requests of each method.
const REQUESTS: u64 = 40;
/// The time after which a client drops a stream that has no message.
const FIRST_MESSAGE: Duration = Duration::from_millis(200);
/// A method that asks another host.
const REMOTE: &str = "time.TimeService/TimeCheck";
/// Methods of later releases. ImagePull, another one, asks other hosts, too.
const LATER: [&str; 2] = ["machine.MachineService/ImageList", "machine.MachineService/LogsContainers"];

/// Sends bytes as a message, whatever they are, and does not decode replies.
#[derive(Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, bytes: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&bytes);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        from.advance(from.remaining());
        Ok(Some(()))
    }
}

/// Calls a method; of a stream, reads the first message.
async fn call(channel: Channel, path: PathAndQuery, message: Vec<u8>) -> Result<(), Status> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let mut stream = client.server_streaming(Request::new(message), path, RawCodec).await?.into_inner();
    tokio::time::timeout(FIRST_MESSAGE, stream.message()).await.map_or(Ok(()), |first| first.map(|_| ()))
}

/// Numbers that look random and are the same in each run (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }

    fn pick<'a>(&mut self, texts: &'a [String]) -> &'a str {
        &texts[usize::try_from(self.below(texts.len() as u64)).unwrap_or(0)]
    }

    /// Any bytes, or fields with hostile values.
    fn message(&mut self, texts: &[String]) -> Vec<u8> {
        let mut bytes = Vec::new();
        if self.below(4) == 0 {
            return (0..self.below(64)).map(|_| self.below(256).to_le_bytes()[0]).collect();
        }
        for _ in 0..self.below(5) {
            let field = (self.below(8) + 1) << 3;
            if self.below(3) == 0 {
                prost::encoding::encode_varint(field, &mut bytes);
                let value = [0, 1, 2, 7, 1 << 31, u64::MAX][usize::try_from(self.below(6)).unwrap_or(0)];
                prost::encoding::encode_varint(value, &mut bytes);
            } else {
                let text = self.pick(texts);
                prost::encoding::encode_varint(field | 2, &mut bytes);
                prost::encoding::encode_varint(text.len() as u64, &mut bytes);
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        bytes
    }
}

/// Texts that ids, paths and xids are not, and some that they are.
fn hostile_texts() -> Vec<String> {
    let fixed = [
        "",
        ":",
        "a:b:c",
        "/",
        "//../../etc/passwd",
        "%",
        "*",
        "\u{0}",
        "\u{1b}[2J\n",
        "\u{202e}\u{feff}",
        "k8s.io",
        "system",
        "taloscontainers",
        "gantryd",
        "shop/web-1:a",
        "9m4e2mr0ui3e8a215n4g",
        "vvvvvvvvvvvvvvvvvvvv",
        "00000000000000000000",
        "00000000-0000-4000-8000-000000000000",
        "/proc/self/mem",
        "/proc/kcore",
        "/dev/zero",
        "/dev/full/x",
    ];
    let long = ["a".repeat(5000), "/a".repeat(5000), "v".repeat(1 << 20)];
    fixed.map(str::to_owned).into_iter().chain(long).collect()
}

/// The methods of both contracts and later ones.
#[track_caller]
fn methods() -> Vec<String> {
    let table = |name: &str| {
        let path = repository().join("proto/talos").join(name);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("no {}: {error}", path.display()))
    };
    let rows = table("v0.6.tsv") + &table("v0.9.tsv");
    let mut methods: Vec<String> = rows
        .lines()
        .filter_map(|row| {
            let mut columns = row.split('\t');
            (columns.next()? == "rpc").then_some(())?;
            Some(format!("{}/{}", columns.next()?, columns.next()?))
        })
        .chain(LATER.map(str::to_owned))
        .filter(|method| method != REMOTE)
        .collect();
    methods.sort();
    methods.dedup();
    methods
}

#[test]
fn any_request_has_a_readable_status() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let pod = g.detached(&[], &["print", "the end"]);
    g.wait_state(&pod, "exited");
    let runtime = tokio::runtime::Runtime::new().unwrap_or_else(|error| panic!("no runtime: {error}"));
    let _inside = runtime.enter();
    let endpoint = Endpoint::from_shared(address.clone()).unwrap_or_else(|error| panic!("{address}: {error}"));
    let before = served.rss_kib();
    let tasks = methods().into_iter().enumerate().map(|(seed, method)| {
        let channel = endpoint.connect_lazy();
        runtime.spawn(async move {
            let path = PathAndQuery::try_from(format!("/{method}"));
            let path = path.unwrap_or_else(|error| panic!("{method}: {error}"));
            let (texts, mut numbers) = (hostile_texts(), Numbers(seed as u64));
            for _ in 0..REQUESTS {
                let message = numbers.message(&texts);
                let shown = String::from_utf8_lossy(&message[..message.len().min(80)]).into_owned();
                let Err(status) = call(channel.clone(), path.clone(), message).await else { continue };
                let text = status.message();
                assert_ne!(status.code(), Code::Unavailable, "{method} {shown:?}: {text}");
                assert!(text.len() < 2000, "{method} {shown:?}: {} bytes", text.len());
                assert!(!text.chars().any(char::is_control), "{method} {shown:?}: {text:?}");
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    assert_eq!(tasks.len(), 60);
    for task in tasks {
        runtime.block_on(task).unwrap_or_else(|error| panic!("{error}"));
    }
    let version: Result<VersionResponse, Status> =
        runtime.block_on(tls_client::call(endpoint.connect_lazy(), "/machine.MachineService/Version", ()));
    assert_eq!(version.map(|reply| reply.messages.len()).ok(), Some(1));
    let grown = served.rss_kib().saturating_sub(before);
    assert!(grown < 96 << 10, "{grown} KiB more");
    served.end();
    g.remove_all();
}

#[test]
fn hostile_names_are_refused() {
    let g = Gantry::new();
    let (served, address) = serve(&g);
    let long = "a".repeat(5000);
    let not_found = |id: &str| format!("container \"{id}\" not found");
    for (method, field, value, code, text) in [
        ("Restart", "id", "zzz", "NOT_FOUND", not_found("zzz")),
        ("Restart", "id", "../../etc", "NOT_FOUND", not_found("../../etc")),
        ("Logs", "id", "a:b:c", "NOT_FOUND", not_found("a:b:c")),
        ("Logs", "id", ":", "NOT_FOUND", not_found(":")),
        ("Logs", "id", &long, "INVALID_ARGUMENT", "id".to_owned()),
        ("Stats", "namespace", &long, "INVALID_ARGUMENT", "namespace".to_owned()),
        ("Read", "path", &long, "INVALID_ARGUMENT", "path".to_owned()),
        ("List", "root", "/etc/passwd/x", "INVALID_ARGUMENT", "lstat /etc/passwd/x: not a directory".to_owned()),
        ("Copy", "root_path", "etc", "INVALID_ARGUMENT", "path is not absolute etc".to_owned()),
        ("Read", "path", "/dev/zero", "FAILED_PRECONDITION", "path must be a regular file".to_owned()),
        ("Events", "tail_id", "vvvv", "INVALID_ARGUMENT", "error parsing tail_id: ".to_owned()),
        ("ServiceStop", "id", "../x", "NOT_FOUND", "service \"../x\" not defined".to_owned()),
    ] {
        let mut request = json!({});
        if ["Restart", "Logs", "Stats"].contains(&method) {
            request["namespace"] = "taloscontainers".into();
        }
        request[field] = value.into();
        let (found, details) = failure(&address, &format!("machine.MachineService/{method}"), &request);
        assert_eq!(found, code, "{method}: {details}");
        assert!(details.contains(&text) && details.len() < 2000, "{method}: {details}");
    }
    served.end();
}
