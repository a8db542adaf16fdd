//! A client that measures gantryd's API, for `bench/run`: one task, one line of JSON on standard output.
//!
//! ```text
//! api-load calls ADDRESS ROUNDS POD             each unary call ROUNDS times, one after the other: nanoseconds of each
//! api-load rate ADDRESS ROUNDS SECONDS CONNECTIONS CALLS PODS PID  InspectPod, CALLS in flight on each connection
//! api-load beside ADDRESS ROUNDS LISTS          GetInfo ROUNDS times, alone, then while LISTS clients list all pods
//! api-load events ADDRESS LISTENERS EVENTS      LISTENERS streams; `ready`, then how EVENTS events came to each
//! api-load logs ADDRESS POD SINCE               GetLogs of all from second SINCE on (0: all) to the end
//! api-load machine ADDRESS ROUNDS               Talos' Containers and Stats, ROUNDS times: nanoseconds of each
//! api-load machine-logs ADDRESS ID              Talos' Logs of all to the end
//! api-load machine-events ADDRESS EVENTS        a stream of Talos' Events; `ready`, then the latency of EVENTS events
//! api-load machine-streams ADDRESS ID COUNT     COUNT streams of Logs and Events, each dropped after its first message
//! api-load cri ADDRESS ROUNDS IMAGE             sandboxes and containers of the CRI from creation to removal
//! api-load cri-fill ADDRESS PODS EACH IMAGE [start]  PODS sandboxes with EACH containers
//! api-load cri-lists ADDRESS ROUNDS             ListContainers and ListPodSandbox of all
//! api-load cri-poll ADDRESS SECONDS             a kubelet's calls to an idle node
//! api-load cri-clear ADDRESS                    stops and removes all sandboxes
//! api-load exec ADDRESS COUNT COMMAND           Aurae's Exec of COMMAND, COUNT at once: nanoseconds until the last reply
//! ```
//!
//! Messages of streams are not decoded, but looked through where they lie: a thousand listeners share this machine with
//! the server that is measured.

mod cri;
mod node;
mod rate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use gantry_proto::rkt::v1alpha::public_api_client::PublicApiClient;
use gantry_proto::rkt::v1alpha::{
    GetInfoRequest, GetLogsRequest, InspectPodRequest, ListPodsRequest, ListenEventsRequest, PodFilter, PodState,
};
use prost::bytes::Bytes;
use serde_json::{Value, json};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

/// Streams of one connection; the server allows a few more.
const STREAMS: usize = 200;
/// The timeout of a measurement of events.
const TIMEOUT: Duration = Duration::from_secs(300);

/// `ListPodsResponse`, `ListenEventsResponse` and `GetLogsResponse` alike: their only field, each element as encoded in
/// the message.
#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Elements {
    #[prost(bytes = "bytes", repeated, tag = "1")]
    list: Vec<Bytes>,
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let result = runtime.block_on(async {
        match words[..] {
            ["calls", address, rounds, pod] => calls(address, rounds.parse()?, pod).await,
            ["rate", address, rounds, seconds, connections, calls, pods, server] => {
                let (rounds, seconds) = (rounds.parse()?, seconds.parse()?);
                let (connections, in_flight) = (connections.parse()?, calls.parse()?);
                let (pods, server) = (pods.parse()?, server.parse()?);
                rate::measure(address, rate::Load { rounds, seconds, connections, in_flight, pods, server }).await
            }
            ["beside", address, rounds, lists] => beside(address, rounds.parse()?, lists.parse()?).await,
            ["events", address, listeners, events] => listen(address, listeners.parse()?, events.parse()?).await,
            ["logs", address, pod, since] => logs(address, pod, since.parse()?).await,
            ["machine", address, rounds] => node::unary_calls(address, rounds.parse()?).await,
            ["machine-logs", address, id] => node::read_log(address, id).await,
            ["machine-events", address, events] => node::listen(address, events.parse()?).await,
            ["machine-streams", address, id, count] => node::drop_streams(address, id, count.parse()?).await,
            ["cri", address, rounds, image] => cri::lives(address, rounds.parse()?, image).await,
            ["cri-fill", address, pods, each, image, ref rest @ ..] => {
                cri::fill(address, pods.parse()?, each.parse()?, image, rest == ["start"]).await
            }
            ["cri-lists", address, rounds] => cri::lists(address, rounds.parse()?).await,
            ["cri-poll", address, seconds] => cri::poll(address, seconds.parse()?).await,
            ["cri-clear", address] => cri::clear(address).await,
            ["exec", address, count, command] => node::exec(address, count.parse()?, command).await,
            _ => bail!("usage: api-load calls|rate|beside|events|logs|machine…|cri…|exec ADDRESS …"),
        }
    })?;
    println!("{result}");
    Ok(())
}

async fn connect(address: &str) -> Result<Channel> {
    let uri = address.strip_prefix("tcp:").map_or_else(|| address.to_owned(), |rest| format!("http://{rest}"));
    Endpoint::from_shared(uri)?.connect().await.with_context(|| format!("cannot connect to {address}"))
}

/// The duration of each call in nanoseconds, by name; the first two of each are not counted.
async fn calls(address: &str, rounds: usize, pod: &str) -> Result<Value> {
    const WARM: usize = 2;
    let mut client = PublicApiClient::new(connect(address).await?).max_decoding_message_size(usize::MAX);
    let prepared = PodFilter { states: vec![PodState::Prepared.into()], ..PodFilter::default() };
    let all = |filters: Vec<PodFilter>, detail| ListPodsRequest { filters, detail };
    let lists =
        [("all", all(Vec::new(), false)), ("by state", all(vec![prepared], false)), ("detail", all(Vec::new(), true))];
    let (mut times, mut counts) = (json!({}), json!({}));
    for (name, request) in lists {
        let mut taken = Vec::with_capacity(rounds);
        for _ in 0..WARM + rounds {
            let begin = Instant::now();
            let answer = client.list_pods(request.clone()).await?;
            taken.push(nanos(begin.elapsed()));
            counts[name] = answer.into_inner().pods.len().into();
        }
        times[name] = taken[WARM..].into();
    }
    let mut taken = Vec::with_capacity(rounds);
    for _ in 0..WARM + rounds {
        let begin = Instant::now();
        client.inspect_pod(InspectPodRequest { id: pod.to_owned() }).await?;
        taken.push(nanos(begin.elapsed()));
    }
    times["inspect"] = taken[WARM..].into();
    Ok(json!({ "ns": times, "pods": counts }))
}

/// The duration of each GetInfo in nanoseconds: alone, and while clients on connections of their own list all pods with
/// detail, one list after the other.
async fn beside(address: &str, rounds: usize, lists: usize) -> Result<Value> {
    let mut client = PublicApiClient::new(connect(address).await?);
    let alone = get_infos(&mut client, rounds).await?;
    let listed = Arc::new(AtomicU64::new(0));
    let mut listers = tokio::task::JoinSet::new();
    for _ in 0..lists {
        listers.spawn(list_forever(connect(address).await?, Arc::clone(&listed)));
    }
    let beside = get_infos(&mut client, rounds).await?;
    if let Some(ended) = listers.try_join_next() {
        ended??;
    }
    Ok(json!({ "alone": alone, "beside": beside, "lists": listed.load(Ordering::Relaxed) }))
}

/// The durations of calls, with pauses: a call may come at any moment of a list.
async fn get_infos(client: &mut PublicApiClient<Channel>, rounds: usize) -> Result<Vec<u64>> {
    const CALL_INTERVAL: Duration = Duration::from_millis(3);
    let mut taken = Vec::with_capacity(rounds);
    let mut interval = tokio::time::interval(CALL_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for _ in 0..rounds {
        interval.tick().await;
        let begin = Instant::now();
        client.get_info(GetInfoRequest {}).await?;
        taken.push(nanos(begin.elapsed()));
    }
    Ok(taken)
}

/// Lists all pods with detail until a list fails; the pods are not decoded.
async fn list_forever(channel: Channel, listed: Arc<AtomicU64>) -> Result<()> {
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(usize::MAX);
    loop {
        client.ready().await?;
        let codec: ProstCodec<ListPodsRequest, Elements> = ProstCodec::default();
        let path = PathAndQuery::from_static("/v1alpha.PublicAPI/ListPods");
        let all = ListPodsRequest { filters: Vec::new(), detail: true };
        let _pods = client.unary(Request::new(all), path, codec).await?;
        listed.fetch_add(1, Ordering::Relaxed);
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A stream of a method.
async fn stream<T, U>(channel: &Channel, method: &'static str, request: T) -> Result<Streaming<U>>
where
    T: prost::Message + Default + 'static,
    U: prost::Message + Default + 'static,
{
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await?;
    let codec: ProstCodec<T, U> = ProstCodec::default();
    let path = PathAndQuery::from_static(method);
    Ok(client.server_streaming(Request::new(request), path, codec).await?.into_inner())
}

/// The totals of all listeners.
#[derive(Default)]
struct Counts {
    received: AtomicU64,
    lost: AtomicU64,
    twice: AtomicU64,
}

/// Runs many listeners at once; reports the events' latency in nanoseconds, and missing and duplicate events.
async fn listen(address: &str, listeners: usize, events: u64) -> Result<Value> {
    let counts = Arc::new(Counts::default());
    let mut channel = connect(address).await?;
    let mut tasks = Vec::with_capacity(listeners);
    for i in 0..listeners {
        if i > 0 && i % STREAMS == 0 {
            channel = connect(address).await?;
        }
        let method = "/v1alpha.PublicAPI/ListenEvents";
        let stream = stream(&channel, method, ListenEventsRequest { filter: None }).await?;
        tasks.push(tokio::spawn(count_events(stream, events, Arc::clone(&counts))));
    }
    println!("ready");
    let mut late = Vec::new();
    for task in tasks {
        late.extend(tokio::time::timeout(TIMEOUT, task).await.context("events are missing for minutes")???);
    }
    let [p50, p99, most] = percentiles(late);
    Ok(json!({
        "received": counts.received.load(Ordering::Relaxed),
        "lost": counts.lost.load(Ordering::Relaxed),
        "twice": counts.twice.load(Ordering::Relaxed),
        "p50_ns": p50, "p99_ns": p99, "most_ns": most,
    }))
}

/// The median, the 99th percentile and the maximum of latencies in nanoseconds.
fn percentiles(mut late: Vec<u32>) -> [Option<u32>; 3] {
    late.sort_unstable();
    [0.5, 0.99, 1.0].map(|of| late.get(((late.len().saturating_sub(1)) as f64 * of).round() as usize).copied())
}

/// One listener: from the first event until its number has grown by `events`.
async fn count_events(mut stream: Streaming<Elements>, events: u64, counts: Arc<Counts>) -> Result<Vec<u32>> {
    let mut late = Vec::with_capacity(usize::try_from(events)?);
    let (mut last, mut end) = (None, u64::MAX);
    while last.is_none_or(|last| last < end) {
        let message = stream.message().await?.context("the server ended the stream")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
        for event in &message.list {
            let number: u64 = fact(event, b"sequence")?;
            let sent: u128 = fact(event, b"sent_ns")?;
            match last {
                None => end = number + events - 1,
                Some(last) if number <= last => {
                    counts.twice.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Some(last) => {
                    counts.lost.fetch_add(number - last - 1, Ordering::Relaxed);
                }
            }
            last = Some(number);
            counts.received.fetch_add(1, Ordering::Relaxed);
            // Latencies above four seconds count as four seconds.
            late.push(u32::try_from(now.saturating_sub(sent)).unwrap_or(u32::MAX));
        }
    }
    Ok(late)
}

/// The value of a key in an encoded event: the key is followed by the tag of `value`, its length and its text.
fn fact<T: std::str::FromStr>(event: &[u8], key: &[u8]) -> Result<T> {
    let named = || {
        let at = event.windows(key.len()).position(|window| window == key)? + key.len();
        let length = usize::from(*event.get(at + 1)?);
        std::str::from_utf8(event.get(at + 2..at + 2 + length)?).ok()?.parse().ok()
    };
    named().with_context(|| format!("an event without {}", String::from_utf8_lossy(key)))
}

/// Reads a log to its end.
async fn logs(address: &str, pod: &str, since: i64) -> Result<Value> {
    let channel = connect(address).await?;
    let request = GetLogsRequest { pod_id: pod.to_owned(), since_time: since, ..GetLogsRequest::default() };
    let begin = Instant::now();
    let mut stream: Streaming<Elements> = stream(&channel, "/v1alpha.PublicAPI/GetLogs", request).await?;
    let (mut lines, mut bytes, mut messages, mut first) = (0, 0, 0_u64, None);
    while let Some(message) = stream.message().await? {
        first.get_or_insert_with(|| nanos(begin.elapsed()));
        messages += 1;
        lines += message.list.len();
        bytes += message.list.iter().map(Bytes::len).sum::<usize>();
    }
    let ns = nanos(begin.elapsed());
    Ok(json!({ "ns": ns, "first_ns": first, "lines": lines, "bytes": bytes, "messages": messages }))
}
