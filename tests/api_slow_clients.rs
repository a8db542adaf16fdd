//! Clients of the Talos node API that do not read, or read a byte a second: other clients are served as before, and
//! gantryd's memory stays bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gantry_proto::talos::common::Data;
use gantry_proto::talos::machine::{
    Event, EventsRequest, LogsRequest, ReadRequest, ServiceStateEvent, VersionResponse,
};
use gantry_tests::api::Served;
use gantry_tests::tls_client::{self, ClientFiles, ReadRate};
use gantry_tests::{Gantry, pod_id, wait_for};
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

const VERSION: &str = "/machine.MachineService/Version";
const EVENTS: &str = "/machine.MachineService/Events";
const LOGS: &str = "/machine.MachineService/Logs";
const READ: &str = "/machine.MachineService/Read";
/// Certificates of clients that read. Each may read four files at a time, and all certificates sixteen.
const CERTIFICATES: usize = 14;
/// Clients of each of these certificates.
const CLIENTS_PER_CERTIFICATE: usize = 7;
/// The time limit of what a client that reads waits for, on a busy host.
const SOON: Duration = Duration::from_secs(20);
/// Bytes that a client that reads has not acknowledged yet, at most, while the server has nothing more to send.
const MAX_IN_FLIGHT: u64 = 1024;
/// The limit of the server's growth, in KiB.
const MAX_GROWTH_KIB: u64 = 96 << 10;

/// A gantryd that serves the Talos node API over TCP, and certificates of administrators.
struct Node<'a> {
    g: &'a Gantry,
    served: Served,
    address: String,
    runtime: Runtime,
}

impl<'a> Node<'a> {
    #[track_caller]
    fn serve(g: &'a Gantry) -> Self {
        let dir = g.scratch();
        let pki =
            |args: &[&str]| g.run(&[&["pki", args[0], "--pki-dir", &dir.display().to_string()], &args[1..]].concat());
        pki(&["init"]).succeeded();
        pki(&["server"]).succeeded();
        let readers = (0..CERTIFICATES).map(|number| format!("reader{number}"));
        for name in readers.chain(["stuck".to_owned(), "slow".to_owned()]) {
            pki(&["client", &name, "--role=os:admin"]).succeeded();
        }
        let text = format!(
            "gc-interval = '1h'\n[machine-tls]\nca = '{0}/ca.crt'\ncertificate = '{0}/server.crt'\nkey = '{0}/server.key'\n",
            dir.display()
        );
        let config = g.write("gantryd.toml", &text);
        let served = g.serve(&["--config", &config, "--machine-listen", "127.0.0.1:0"]);
        let address = served.addresses().iter().find_map(|one| one.strip_prefix("tcp:").map(str::to_owned));
        let address = address.unwrap_or_else(|| panic!("no TCP address: {:?}", served.addresses()));
        let runtime = Runtime::new().unwrap_or_else(|error| panic!("no runtime: {error}"));
        Self { g, served, address, runtime }
    }

    /// A client with the certificate of this name.
    #[track_caller]
    fn connect(&self, name: &str, rate: ReadRate) -> Channel {
        let _inside = self.runtime.enter();
        let [authority, certificate, key] =
            ["ca.crt".to_owned(), format!("{name}.crt"), format!("{name}.key")].map(|name| self.g.scratch().join(name));
        let files = ClientFiles { authority: &authority, certificate: &certificate, key: &key };
        tls_client::connect_with_rate(&self.address, files, rate)
    }

    /// The clients that read, each with a connection. The clients of one certificate are not neighbours.
    #[track_caller]
    fn readers(&self) -> Vec<Channel> {
        let clients = (0..CERTIFICATES * CLIENTS_PER_CERTIFICATE).map(|number| number % CERTIFICATES);
        let clients: Vec<Channel> =
            clients.map(|number| self.connect(&format!("reader{number}"), ReadRate::Unlimited)).collect();
        self.in_parallel("Version", &clients, |channel| async move {
            let version: VersionResponse = tls_client::call(channel, VERSION, ()).await?;
            assert_eq!(version.messages.len(), 1);
            Ok(())
        });
        clients
    }

    /// Does the same with each client, all at once; returns the results and the time that all took together.
    #[track_caller]
    fn in_parallel<C, T, F>(&self, what: &str, clients: &[C], action: impl Fn(C) -> F) -> (Vec<T>, Duration)
    where
        C: Clone,
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let begin = Instant::now();
        let _inside = self.runtime.enter();
        let tasks: Vec<JoinHandle<_>> = clients
            .iter()
            .map(|client| self.runtime.spawn(tokio::time::timeout(SOON, action(client.clone()))))
            .collect();
        let results = tasks.into_iter().map(|task| match self.runtime.block_on(task) {
            Ok(Ok(Ok(result))) => result,
            Ok(Ok(Err(status))) => panic!("{what}: {status}"),
            Ok(Err(_)) => panic!("{what}: a client waited {SOON:?}"),
            Err(error) => panic!("{what}: {error}"),
        });
        let results = results.collect();
        (results, begin.elapsed())
    }

    /// Two clients that call this method, of which one reads nothing and one a byte a second. Returns when the server
    /// has data that it cannot send to them.
    #[track_caller]
    fn stall<Q: Message + Clone + 'static>(&self, path: &'static str, request: &Q) -> [JoinHandle<()>; 2] {
        let before = self.blocked_clients();
        let tasks = [("stuck", ReadRate::Nothing), ("slow", ReadRate::BytePerSecond)].map(|(name, rate)| {
            let (channel, request) = (self.connect(name, rate), request.clone());
            self.runtime.spawn(async move {
                let stream = tls_client::open_stream::<Q, Data>(channel, path, request).await;
                // The headers of the reply are behind the data that the client does not read.
                let _ended_by_the_server = stream.map(drop);
            })
        });
        wait_for("data that cannot be sent", || {
            (self.blocked_clients().difference(&before).count() == tasks.len()).then_some(())
        });
        tasks
    }

    /// The server's established connections: their clients, and the bytes that these have not acknowledged
    /// (proc_pid_net(5)).
    fn connections(&self) -> BTreeMap<String, u64> {
        let port: u16 = self.address.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).unwrap_or_default();
        let server = format!(":{port:04X}");
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
        let connection = |line: &str| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            let (local, client, state) = (fields.next()?, fields.next()?, fields.next()?);
            let (unsent, _) = fields.next()?.split_once(':')?;
            let unsent = u64::from_str_radix(unsent, 16).ok()?;
            (local.ends_with(&server) && state == "01").then(|| (client.to_owned(), unsent))
        };
        table.lines().filter_map(connection).collect()
    }

    /// The clients whose receive buffers are full.
    fn blocked_clients(&self) -> BTreeSet<String> {
        let connections = self.connections().into_iter();
        connections.filter(|(_, unsent)| *unsent > MAX_IN_FLIGHT).map(|(client, _)| client).collect()
    }
}

/// Reads a stream until a message satisfies the condition. Fails if the stream ends before.
async fn read_until<M>(stream: &mut Streaming<M>, mut is_last: impl FnMut(M) -> bool) -> Result<(), Status> {
    while let Some(message) = stream.message().await? {
        if is_last(message) {
            return Ok(());
        }
    }
    Err(Status::out_of_range("the stream has ended"))
}

/// Reads a file from a client; returns the number of its bytes.
async fn read_file(channel: Channel, path: String) -> Result<usize, Status> {
    let mut stream = tls_client::open_stream::<_, Data>(channel, READ, ReadRequest { path }).await?;
    let mut count = 0;
    while let Some(data) = stream.message().await? {
        count += data.bytes.len();
    }
    Ok(count)
}

/// Follows the logs of a pod, from these last lines on; -1: from the first line on.
fn follow_logs(pod: &str, tail_lines: i32) -> LogsRequest {
    LogsRequest {
        namespace: "taloscontainers".into(),
        id: pod.to_owned(),
        follow: true,
        tail_lines,
        ..LogsRequest::default()
    }
}

fn write_file(path: &Path, bytes: u64) -> String {
    let made = std::fs::File::create(path).and_then(|file| file.set_len(bytes));
    made.unwrap_or_else(|error| panic!("cannot make {}: {error}", path.display()));
    path.display().to_string()
}

#[test]
fn clients_that_do_not_read_delay_no_other() {
    let g = Gantry::new();
    let node = Node::serve(&g);
    let readers = node.readers();
    let (large, small) =
        (write_file(&g.scratch().join("large"), 256 << 20), write_file(&g.scratch().join("small"), 1 << 20));
    // Rounds, because of the limits of files that are read at a time.
    let read_all = || -> Duration {
        let rounds = readers.chunks(CERTIFICATES).map(|clients| {
            let (counts, time) = node.in_parallel("Read", clients, |channel| read_file(channel, small.clone()));
            assert!(counts.iter().all(|count| *count == 1 << 20), "{counts:?}");
            time
        });
        rounds.sum()
    };
    let alone = read_all();
    let before = node.served.rss_kib();

    let mut stalled = Vec::from(node.stall(READ, &ReadRequest { path: large }));
    let beside = read_all();
    println!("98 clients read 1 MiB each: {alone:?} alone, {beside:?} beside the others");
    assert!(beside < 4 * alone + Duration::from_secs(10), "{alone:?}, then {beside:?}");

    // The output of an app: much of it, and some more on demand.
    let go = g.scratch().join("go");
    let script = format!("seq 1 600000; until [ -e {} ]; do sleep 0.05; done; seq 1 1000; sleep 600", go.display());
    let pod = pod_id(&g.run(&["run", "-d", "--stage1=host", "--", "sh", "-c", &script]).ok());
    g.wait_log(&pod, "\n600000\n");
    stalled.extend(node.stall(LOGS, &follow_logs(&pod, -1)));
    let (streams, _) = node.in_parallel("Logs", &readers, |channel| {
        let request = follow_logs(&pod, 1);
        async move {
            let mut stream = tls_client::open_stream::<_, Data>(channel, LOGS, request).await?;
            read_until(&mut stream, |data: Data| data.bytes == b"600000\n").await?;
            Ok(Arc::new(Mutex::new(stream)))
        }
    });
    assert!(std::fs::write(&go, "").is_ok());
    let (texts, time) = node.in_parallel("Logs that follow", &streams, |stream| async move {
        let mut text = Vec::new();
        read_until(&mut *stream.lock().await, |data: Data| {
            text.extend_from_slice(&data.bytes);
            text.ends_with(b"\n1000\n")
        })
        .await?;
        Ok(text)
    });
    println!("98 clients follow 1000 lines: {time:?}");
    let lines: String = (1..=1000).map(|line| format!("{line}\n")).collect();
    assert!(texts.iter().all(|text| text == lines.as_bytes()), "{:?}", texts.iter().map(Vec::len).collect::<Vec<_>>());
    drop(streams);

    // Events of some pods, more than the clients that do not read can receive, and then of one more.
    for _ in 0..20 {
        g.run(&["run", "--rm", "--stage1=host", "--", "true"]).succeeded();
    }
    stalled.extend(node.stall(EVENTS, &EventsRequest { tail_events: -1, ..EventsRequest::default() }));
    let (streams, _) = node.in_parallel("Events", &readers, |channel| async move {
        let mut stream = tls_client::open_stream::<_, Event>(channel, EVENTS, EventsRequest::default()).await?;
        read_until(&mut stream, |_first: Event| true).await?;
        Ok(Arc::new(Mutex::new(stream)))
    });
    let pod_with_events = g.spawn(&["run", "--rm", "--stage1=host", "--", "true"]);
    let (_, time) = node.in_parallel("Events of a pod", &streams, |stream| async move {
        read_until(&mut *stream.lock().await, |event: Event| {
            let data = event.data.unwrap_or_default();
            let state = ServiceStateEvent::decode(&data.value[..]).unwrap_or_default();
            state.message.starts_with("pod-exited")
        })
        .await
    });
    pod_with_events.wait().succeeded();
    println!("98 clients receive the events of a pod, with its run: {time:?}");
    drop(streams);

    let grown = node.served.rss_kib().saturating_sub(before);
    println!("{grown} KiB more");
    assert!(grown < MAX_GROWTH_KIB, "{grown} KiB more");
    // HTTP/2 keep-alive ends the connections of the six.
    drop(readers);
    wait_for("the connections to be closed", || node.connections().is_empty().then_some(()));
    stalled.iter().for_each(JoinHandle::abort);
    g.run(&["stop", &pod]).succeeded();
    node.served.end();
    g.remove_all();
}
