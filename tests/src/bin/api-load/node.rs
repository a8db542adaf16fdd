//! The Talos node API, and Aurae's Exec.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use gantry_proto::aurae::runtime::{Executable, ExecutableStatus};
use gantry_proto::talos::common::{ContainerDriver, Data};
use gantry_proto::talos::machine::{
    ContainersRequest, ContainersResponse, Event, EventsRequest, LogsRequest, ServiceStateEvent, StatsRequest,
    StatsResponse,
};
use prost::Message as _;
use serde_json::{Value, json};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use crate::{connect, nanos, percentiles, stream};

/// The namespace of pods that are created without another.
const NAMESPACE: &str = "taloscontainers";
const LOGS: &str = "/machine.MachineService/Logs";
const EVENTS: &str = "/machine.MachineService/Events";
/// The time that gantryd has for one message of a stream.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One call.
pub(crate) async fn unary<T, U>(channel: &Channel, method: &'static str, request: T) -> Result<U>
where
    T: prost::Message + Default + 'static,
    U: prost::Message + Default + 'static,
{
    let mut client = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
    client.ready().await?;
    let codec: ProstCodec<T, U> = ProstCodec::default();
    Ok(client.unary(Request::new(request), PathAndQuery::from_static(method), codec).await?.into_inner())
}

fn containers() -> ContainersRequest {
    ContainersRequest { namespace: NAMESPACE.into(), driver: ContainerDriver::Containerd.into() }
}

fn stats() -> StatsRequest {
    StatsRequest { namespace: NAMESPACE.into(), driver: ContainerDriver::Containerd.into() }
}

/// The durations of Containers and Stats in nanoseconds, and the number of rows; the first two are not counted.
pub(crate) async fn unary_calls(address: &str, rounds: usize) -> Result<Value> {
    const WARM: usize = 2;
    let channel = connect(address).await?;
    let (mut containers_ns, mut stats_ns, mut rows) = (Vec::new(), Vec::new(), [0, 0]);
    for round in 0..WARM + rounds {
        let begin = Instant::now();
        let reply: ContainersResponse = unary(&channel, "/machine.MachineService/Containers", containers()).await?;
        let first = nanos(begin.elapsed());
        let begin = Instant::now();
        let other: StatsResponse = unary(&channel, "/machine.MachineService/Stats", stats()).await?;
        if round >= WARM {
            containers_ns.push(first);
            stats_ns.push(nanos(begin.elapsed()));
        }
        rows = [
            reply.messages.iter().map(|message| message.containers.len()).sum::<usize>(),
            other.messages.iter().map(|message| message.stats.len()).sum::<usize>(),
        ];
    }
    Ok(json!({ "ns": { "Containers": containers_ns, "Stats": stats_ns }, "rows": rows }))
}

/// A request for the log of an app; `tail`: its last lines, -1 for all.
fn log(id: &str, follow: bool, tail: i32) -> LogsRequest {
    LogsRequest {
        namespace: NAMESPACE.into(),
        id: id.into(),
        driver: ContainerDriver::Containerd.into(),
        follow,
        tail_lines: tail,
    }
}

/// Reads a log to its end.
pub(crate) async fn read_log(address: &str, id: &str) -> Result<Value> {
    let channel = connect(address).await?;
    let begin = Instant::now();
    let mut stream: Streaming<Data> = stream(&channel, LOGS, log(id, false, -1)).await?;
    let (mut bytes, mut lines, mut messages) = (0, 0, 0_u64);
    while let Some(message) = stream.message().await? {
        messages += 1;
        bytes += message.bytes.len();
        lines += message.bytes.iter().filter(|byte| **byte == b'\n').count();
    }
    Ok(json!({ "ns": nanos(begin.elapsed()), "bytes": bytes, "lines": lines, "messages": messages }))
}

/// Latencies of events in nanoseconds, and events that came twice. The producer writes the time of each event into its
/// data.
pub(crate) async fn listen(address: &str, events: usize) -> Result<Value> {
    let channel = connect(address).await?;
    let mut stream: Streaming<Event> = stream(&channel, EVENTS, EventsRequest::default()).await?;
    let hello = tokio::time::timeout(TIMEOUT, stream.message()).await??;
    ensure!(hello.is_some(), "the stream of events ended at once");
    println!("ready");
    let mut late = Vec::with_capacity(events);
    let (mut twice, mut last) = (0_u64, 0);
    while late.len() < events {
        let message = tokio::time::timeout(TIMEOUT, stream.message()).await.context("events are missing")??;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        let data = message.and_then(|event| event.data).context("an event without data")?;
        let message = ServiceStateEvent::decode(&data.value[..])?.message;
        // Ends of commands that ran before are events too.
        let Some(sent) = message.split(' ').find_map(|fact| fact.strip_prefix("sent_ns=")) else { continue };
        let sent: u128 = sent.parse()?;
        twice += u64::from(sent <= last);
        last = sent;
        late.push(u32::try_from(now.saturating_sub(sent)).unwrap_or(u32::MAX));
    }
    let received = late.len();
    let [p50, p99, most] = percentiles(late);
    Ok(json!({ "received": received, "twice": twice, "p50_ns": p50, "p99_ns": p99, "most_ns": most }))
}

/// Opens streams one after the other, half of them following a log, half of them events; each is dropped after its
/// first message, while the server still has more to come.
pub(crate) async fn drop_streams(address: &str, id: &str, count: usize) -> Result<Value> {
    let channel = connect(address).await?;
    let begin = Instant::now();
    for number in 0..count {
        let is_open = if number % 2 == 0 {
            let mut stream: Streaming<Data> = stream(&channel, LOGS, log(id, true, 1)).await?;
            tokio::time::timeout(TIMEOUT, stream.message()).await??.is_some()
        } else {
            let mut stream: Streaming<Event> = stream(&channel, EVENTS, EventsRequest::default()).await?;
            tokio::time::timeout(TIMEOUT, stream.message()).await??.is_some()
        };
        ensure!(is_open, "stream {number} ended at once");
    }
    Ok(json!({ "ns": nanos(begin.elapsed()), "streams": count }))
}

/// Runs a command many times at once, each by a call of its own.
pub(crate) async fn exec(address: &str, count: usize, command: &str) -> Result<Value> {
    let channel = connect(address).await?;
    let begin = Instant::now();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (channel, command) = (channel.clone(), command.to_owned());
        let request = Executable { command, ..Executable::default() };
        calls.spawn(async move { unary::<_, ExecutableStatus>(&channel, "/runtime.Runtime/Exec", request).await });
    }
    while let Some(reply) = calls.join_next().await {
        let reply = reply??;
        ensure!(reply.exit_code == "exit status: 0", "the command ended with {reply:?}");
    }
    Ok(json!({ "ns": nanos(begin.elapsed()) }))
}
