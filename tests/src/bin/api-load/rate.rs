//! How many InspectPod calls gantryd answers a second, and the CPU time that a call costs either side.
//!
//! This client shares the processors with the server, so it speaks HTTP/2 itself: the headers of a request are encoded
//! once, the calls that a read completes are followed by as many in one write, and of a response only the headers of
//! frames and the pod's id are read. A response without the requested pod ends the measurement.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gantry_proto::rkt::v1alpha::ListPodsRequest;
use gantry_proto::rkt::v1alpha::public_api_client::PublicApiClient;
use serde_json::{Value, json};

/// The time before the first round.
const WARM_UP: Duration = Duration::from_millis(1500);
/// Clock ticks of /proc/PID/stat in a second.
const TICKS: f64 = 100.0;
/// Characters of a pod's id.
const ID: usize = 36;

/// Types and flags of frames (RFC 9113 section 6), and the length of a frame's header.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_HEADER: usize = 9;
/// The window of each stream, and that of the connection, which is renewed when half of it is used.
const WINDOW: u32 = 1 << 30;

/// The calls of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) rounds: usize,
    /// Seconds of a round.
    pub(crate) seconds: f64,
    pub(crate) connections: usize,
    /// Calls in flight per connection.
    pub(crate) in_flight: usize,
    /// The number of pods that the calls ask for in turn.
    pub(crate) pods: usize,
    /// The process of gantryd.
    pub(crate) server: u32,
}

/// The counters at one moment.
struct Sample {
    at: Instant,
    calls: u64,
    server_cpu: f64,
    client_cpu: f64,
}

/// Of each round: calls a second, and microseconds of CPU time per call of the server and of this client.
pub(crate) async fn measure(address: &str, load: Load) -> Result<Value> {
    let mut client = PublicApiClient::new(super::connect(address).await?).max_decoding_message_size(usize::MAX);
    let listed = client.list_pods(ListPodsRequest { filters: Vec::new(), detail: false }).await?.into_inner().pods;
    let ids: Vec<String> = listed.into_iter().map(|pod| pod.id).take(load.pods).collect();
    ensure!(!ids.is_empty() && ids.iter().all(|id| id.len() == ID), "there are no pods");
    drop(client);
    let connections: Vec<_> = (0..load.connections).map(|_| Connection::open(address)).collect::<Result<_>>()?;
    let (is_over, calls) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let samples = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (number, mut connection) in connections.into_iter().enumerate() {
            // Connections begin at different pods.
            let mut ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            let first = number * ids.len() / load.connections;
            ids.rotate_left(first);
            threads.push(scope.spawn(move || {
                let result = connection.call_until(is_over, &ids, load.in_flight, calls);
                // The other connections need not go on.
                is_over.store(true, Ordering::Relaxed);
                result
            }));
        }
        std::thread::sleep(WARM_UP);
        let mut samples = vec![Sample::take(calls, load.server)];
        while samples.len() <= load.rounds && !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs_f64(load.seconds));
            samples.push(Sample::take(calls, load.server));
        }
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| anyhow::anyhow!("a connection panicked"))??;
        }
        samples.into_iter().collect::<Result<Vec<_>>>()
    })?;
    Ok(rounds(&samples))
}

fn rounds(samples: &[Sample]) -> Value {
    let figures = |figure: fn(&Sample, &Sample) -> f64| -> Vec<f64> {
        samples.windows(2).filter_map(|pair| Some(figure(pair.first()?, pair.get(1)?))).collect()
    };
    json!({
        "per_second": figures(|from, to| (to.calls - from.calls) as f64 / (to.at - from.at).as_secs_f64()),
        "server_us": figures(|from, to| 1e6 * (to.server_cpu - from.server_cpu) / (to.calls - from.calls) as f64),
        "client_us": figures(|from, to| 1e6 * (to.client_cpu - from.client_cpu) / (to.calls - from.calls) as f64),
    })
}

impl Sample {
    fn take(calls: &AtomicU64, server: u32) -> Result<Self> {
        let (server_cpu, client_cpu) = (cpu_seconds(server)?, cpu_seconds(std::process::id())?);
        Ok(Self { at: Instant::now(), calls: calls.load(Ordering::Relaxed), server_cpu, client_cpu })
    }
}

/// The CPU time that a process has used.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in parentheses, may contain anything.
    let fields: Vec<&str> = text.rsplit_once(')').context("no stat")?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).context("no stat")?.parse::<f64>().context("no stat");
    Ok((ticks(11)? + ticks(12)?) / TICKS)
}

trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

/// A connection that only calls InspectPod.
struct Connection {
    socket: Box<dyn Socket>,
    /// To be written at once.
    out: Vec<u8>,
    next_stream: u32,
    /// The places in the list of ids, by stream, of calls without a response.
    waiting: HashMap<u32, Call>,
    /// Bytes of the connection's window that are used.
    used: u32,
}

/// A call without a complete response.
struct Call {
    id: usize,
    has_message: bool,
}

impl Connection {
    fn open(address: &str) -> Result<Self> {
        let opened = || -> std::io::Result<Box<dyn Socket>> {
            if let Some(path) = address.strip_prefix("unix:") {
                return Ok(Box::new(UnixStream::connect(path)?));
            }
            let stream = TcpStream::connect(address.trim_start_matches("tcp:"))?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        };
        let socket = opened().with_context(|| format!("cannot connect to {address}"))?;
        let mut out = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        // SETTINGS_ENABLE_PUSH: 0, SETTINGS_INITIAL_WINDOW_SIZE.
        let settings = [&[0, 2, 0, 0, 0, 0, 0, 4][..], &WINDOW.to_be_bytes()].concat();
        frame(&mut out, SETTINGS, 0, 0, &settings);
        frame(&mut out, WINDOW_UPDATE, 0, 0, &WINDOW.to_be_bytes());
        Ok(Self { socket, out, next_stream: 1, waiting: HashMap::new(), used: 0 })
    }

    /// Keeps so many calls in flight, for these pods in turn, and counts the answered ones.
    fn call_until(&mut self, is_over: &AtomicBool, ids: &[&str], in_flight: usize, calls: &AtomicU64) -> Result<()> {
        let mut pods = (0..ids.len()).cycle();
        // Before the server's settings arrive, a client may open a hundred streams.
        self.call_next(&mut pods, ids, in_flight);
        let mut buffer = vec![0; 256 << 10];
        let mut filled = 0;
        while !is_over.load(Ordering::Relaxed) {
            self.socket.write_all(&self.out)?;
            self.out.clear();
            let read = self.socket.read(buffer.get_mut(filled..).context("a frame is too long")?)?;
            ensure!(read > 0, "the server closed the connection");
            filled += read;
            let (seen, answered) = self.read_frames(buffer.get(..filled).unwrap_or_default(), ids)?;
            buffer.copy_within(seen..filled, 0);
            filled -= seen;
            calls.fetch_add(answered as u64, Ordering::Relaxed);
            self.call_next(&mut pods, ids, answered);
        }
        Ok(())
    }

    /// Writes the requests of some calls.
    fn call_next(&mut self, pods: &mut impl Iterator<Item = usize>, ids: &[&str], count: usize) {
        for pod in pods.take(count) {
            let stream = self.next_stream;
            self.next_stream += 2;
            // The first request enters four headers into the server's dynamic table (RFC 7541), which the others use.
            let block = if stream == 1 { first_headers() } else { vec![0x83, 0x86, 0xc1, 0xc0, 0xbf, 0xbe] };
            frame(&mut self.out, HEADERS, END_HEADERS, stream, &block);
            // A message of gRPC, not compressed, with its length; field 1 is the id.
            let head = [0, 0, 0, 0, ID as u8 + 2, 0x0a, ID as u8];
            frame(&mut self.out, DATA, END_STREAM, stream, &[&head[..], ids[pod].as_bytes()].concat());
            self.waiting.insert(stream, Call { id: pod, has_message: false });
        }
    }

    /// Reads the complete frames; returns their length and the number of calls that they completed.
    fn read_frames(&mut self, bytes: &[u8], ids: &[&str]) -> Result<(usize, usize)> {
        let (mut seen, mut answered) = (0, 0);
        while let Some(&[a, b, c, kind, flags, s0, s1, s2, s3]) = bytes.get(seen..).and_then(|rest| rest.first_chunk())
        {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
            let Some(payload) = bytes.get(seen + FRAME_HEADER..seen + FRAME_HEADER + length) else { break };
            seen += FRAME_HEADER + length;
            match kind {
                DATA => self.read_data(stream, payload, ids)?,
                HEADERS if flags & END_STREAM != 0 => {
                    // A failed call has no message.
                    let call = self.waiting.remove(&stream).context("a response without a call")?;
                    ensure!(call.has_message, "a call failed");
                    answered += 1;
                }
                SETTINGS if flags & ACK == 0 => frame(&mut self.out, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => frame(&mut self.out, PING, ACK, 0, payload),
                HEADERS | SETTINGS | PING | WINDOW_UPDATE => {}
                other => bail!("a frame of type {other}: {}", String::from_utf8_lossy(payload)),
            }
        }
        Ok((seen, answered))
    }

    fn read_data(&mut self, stream: u32, payload: &[u8], ids: &[&str]) -> Result<()> {
        self.used += payload.len() as u32;
        if self.used > WINDOW / 2 {
            frame(&mut self.out, WINDOW_UPDATE, 0, 0, &self.used.to_be_bytes());
            self.used = 0;
        }
        let call = self.waiting.get_mut(&stream).context("a response without a call")?;
        if !call.has_message && !payload.is_empty() {
            let id = ids.get(call.id).context("no such pod")?;
            // The head of the message, then the pod, whose first field is its id.
            let head = payload.get(..12 + ID).unwrap_or(payload);
            ensure!(head.windows(ID).any(|text| text == id.as_bytes()), "a response without the pod {id}");
            call.has_message = true;
        }
        Ok(())
    }
}

/// The headers of a request: POST and http are in the static table, the others are added to the dynamic one.
fn first_headers() -> Vec<u8> {
    let mut block = vec![0x83, 0x86];
    let mut add = |name: &[u8], value: &str| {
        block.extend_from_slice(name);
        block.push(value.len() as u8);
        block.extend_from_slice(value.as_bytes());
    };
    add(&[0x44], "/v1alpha.PublicAPI/InspectPod");
    add(&[0x41], "localhost");
    add(&[0x5f], "application/grpc");
    add(b"\x40\x02te", "trailers");
    block
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    out.extend_from_slice(&length);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}
