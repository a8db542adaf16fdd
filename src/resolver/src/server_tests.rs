//! Tests of the server on loopback addresses; the tests themselves run the servers of the host.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener as StdListener, TcpStream as StdStream, UdpSocket as StdUdp};
use std::sync::atomic::AtomicU32;
use std::sync::mpsc;
use std::thread;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record, RecordType};

use super::*;
use crate::fixtures::{DB, WEB, ip, network, pod, query, texts};
use crate::limits::MAX_PERMITS_PER_POD;
use crate::names::gateways;

/// Timeout of a test for an event that must happen.
const DEADLINE: Duration = Duration::from_secs(20);
/// The address of the pods of all tests.
const POD: &str = "127.66.0.2";

/// A resolver on a loopback address and port of its own.
struct Server {
    address: SocketAddr,
    state: watch::Sender<Arc<ResolverState>>,
    ending: watch::Sender<bool>,
    notes: mpsc::Receiver<String>,
    thread: thread::JoinHandle<()>,
}

/// The names on this address: `web`, a pod of the subnet 127.66.0.0/24, among any others.
fn names(address: IpAddr) -> Arc<Gateways> {
    // No gateway can be a loopback address: computed for another one, then moved.
    let pods = [pod(WEB, "web", &[], vec![network("n", &[&format!("{POD}/24 via 10.0.0.1")])])];
    Arc::new(gateways(&pods).moved_to(address))
}

impl Server {
    /// Starts a server; [`Self::listening`] waits until it listens.
    fn start_at(address: SocketAddr, servers: &[SocketAddr]) -> Self {
        let state = ResolverState { gateways: names(address.ip()), servers: servers.to_vec() };
        let (state, their_facts) = watch::channel(Arc::new(state));
        let (ending, is_ending) = watch::channel(false);
        let (say, notes) = mpsc::channel();
        let notify: NoteSink = Arc::new(move |note| drop(say.send(note.to_string())));
        let shared = Shared::new(their_facts, is_ending, address.port(), notify);
        let thread = thread::spawn(move || {
            tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(shared.run());
        });
        Self { address, state, ending, notes, thread }
    }

    fn start(servers: &[SocketAddr]) -> Self {
        let server = Self::start_at(free_address(), servers);
        server.wait_listening();
        server
    }

    fn note(&self) -> String {
        self.notes.recv_timeout(DEADLINE).unwrap()
    }

    fn wait_listening(&self) {
        assert_eq!(self.note(), format!("resolving host names and app names of pods on {}", self.address.ip()));
    }

    /// Asks as a pod does.
    fn ask(&self, message: &Message) -> Message {
        let client = client(POD);
        client.send_to(&message.to_vec().unwrap(), self.address).unwrap();
        receive(&client)
    }

    fn ask_by_tcp(&self, message: &Message) -> Message {
        let mut stream = self.connect();
        write(&mut stream, &message.to_vec().unwrap());
        Message::from_vec(&read(&mut stream).unwrap()).unwrap()
    }

    /// A connection from a pod's subnet: 127.0.0.1 is in none.
    fn connect(&self) -> StdStream {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind((ip(POD), 0).into()).unwrap();
            socket.connect(self.address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    fn end(self) {
        self.ending.send(true).unwrap();
        self.thread.join().unwrap();
    }
}

/// An address of our own, with a port that is free for both.
fn free_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed) + 1;
    let [.., a, b] = (std::process::id() * 16 + n).to_be_bytes();
    let address = IpAddr::from([127, 70, a, b]);
    let port = StdUdp::bind((address, 0)).unwrap().local_addr().unwrap().port();
    SocketAddr::new(address, port)
}

/// Looks until it is so.
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::yield_now();
    }
}

fn client(address: &str) -> StdUdp {
    let socket = StdUdp::bind((ip(address), 0)).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

fn receive(client: &StdUdp) -> Message {
    let mut buffer = [0; 65535];
    let length = client.recv(&mut buffer).unwrap();
    Message::from_vec(&buffer[..length]).unwrap()
}

fn write(stream: &mut StdStream, message: &[u8]) {
    let framed = [&(message.len() as u16).to_be_bytes(), message].concat();
    stream.write_all(&framed).unwrap();
}

fn read(stream: &mut StdStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 2];
    stream.read_exact(&mut length)?;
    let mut message = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut message)?;
    Ok(message)
}

/// The reply of a server of the host, with this number of addresses and this code.
fn answer(asked: &[u8], addresses: u8, code: ResponseCode) -> Vec<u8> {
    let asked = Message::from_vec(asked).unwrap();
    let mut reply = Message::response(asked.metadata.id, asked.metadata.op_code);
    reply.metadata.response_code = code;
    reply.add_queries(asked.queries.iter().cloned());
    let name = asked.queries[0].name();
    let records = (0..addresses).map(|n| Record::from_rdata(name.clone(), 60, RData::A(A([192, 0, 2, n].into()))));
    reply.add_answers(records);
    reply.to_vec().unwrap()
}

/// A server of the host over UDP, which sends the given replies for each query.
fn upstream(answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let socket = StdUdp::bind(free_address()).unwrap();
    let address = socket.local_addr().unwrap();
    serve_udp(socket, address, answers)
}

fn serve_udp(
    socket: StdUdp,
    address: SocketAddr,
    answers: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static,
) -> (SocketAddr, mpsc::Receiver<Vec<u8>>) {
    let (told, heard) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if told.send(buffer[..length].to_vec()).is_err() {
                return;
            }
            for answer in answers(&buffer[..length]) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    (address, heard)
}

fn example_query() -> Message {
    query("Example.com.", RecordType::A, None)
}

#[test]
fn names_are_served_within_the_network() {
    let server = Server::start(&[]);
    let asked = query("web.", RecordType::A, None);
    assert_eq!(texts(&server.ask(&asked)), [POD]);
    assert_eq!(texts(&server.ask_by_tcp(&asked)), [POD]);
    // A client of another network: it gets no reply, which the reply to the next query proves.
    let stranger = client("127.99.0.1");
    stranger.send_to(&asked.to_vec().unwrap(), server.address).unwrap();
    assert_eq!(texts(&server.ask(&asked)), [POD]);
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.recv(&mut [0; 512]).is_err());
    let mut stream = StdStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    assert_eq!(stream.read(&mut [0; 2]).unwrap_or(0), 0, "it is hung up on");
    server.end();
}

#[test]
fn names_follow_changes_of_pods() {
    let server = Server::start(&[]);
    let asked = query("web.gantry.internal.", RecordType::A, None);
    assert_eq!(texts(&server.ask(&asked)), [POD]);
    let other = pod(DB, "db", &[], vec![network("n", &[&format!("{POD}/24 via 10.0.0.1")])]);
    let gateways = gateways(&[other]).moved_to(server.address.ip());
    server.state.send_replace(Arc::new(ResolverState { gateways: Arc::new(gateways), servers: Vec::new() }));
    assert_eq!(server.ask(&asked).metadata.response_code, ResponseCode::NXDomain);
    // The last pod has ended: the sockets are closed.
    server.state.send_replace(Arc::default());
    wait_until("the sockets are closed", || StdUdp::bind(server.address).is_ok());
    server.state.send_replace(Arc::new(ResolverState { gateways: names(server.address.ip()), servers: Vec::new() }));
    server.wait_listening();
    assert_eq!(texts(&server.ask(&asked)), [POD]);
    server.end();
}

#[test]
fn other_names_are_forwarded_upstream() {
    let (address, heard) = upstream(|asked| vec![answer(asked, 2, ResponseCode::NoError)]);
    let server = Server::start(&[address]);
    let reply = server.ask(&example_query());
    assert_eq!((reply.metadata.id, texts(&reply)), (0x1234, vec!["192.0.2.0".to_owned(), "192.0.2.1".to_owned()]));
    assert_eq!(reply.queries, example_query().queries);
    assert_eq!(texts(&server.ask_by_tcp(&example_query())).len(), 2);
    let asked: Vec<Vec<u8>> = (0..2).map(|_| heard.recv_timeout(DEADLINE).unwrap()).collect();
    let same = example_query().to_vec().unwrap()[2..].to_vec();
    assert_eq!([&asked[0][2..], &asked[1][2..]], [&same, &same]);
    server.end();
}

#[test]
fn mismatched_replies_are_ignored() {
    let (address, _heard) = upstream(|asked| {
        let good = answer(asked, 1, ResponseCode::NoError);
        let mut other_id = answer(asked, 2, ResponseCode::NoError);
        other_id[0] ^= 0xff;
        let mut other_name = answer(asked, 3, ResponseCode::NoError);
        other_name[14] = b'z';
        vec![Vec::new(), asked.to_vec(), other_id, other_name, good]
    });
    let server = Server::start(&[address]);
    assert_eq!(texts(&server.ask(&example_query())), ["192.0.2.0"]);
    server.end();
}

#[test]
fn truncated_replies_are_retried_over_tcp() {
    // Both ports at once: the address belongs to this test.
    let address = free_address();
    let listener = StdListener::bind(address).unwrap();
    let (address, _heard) = serve_udp(StdUdp::bind(address).unwrap(), address, |asked| {
        let mut cut = answer(asked, 1, ResponseCode::NoError);
        cut[2] |= 2;
        vec![cut]
    });
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let asked = read(&mut stream).unwrap();
            write(&mut stream, &answer(&asked, 60, ResponseCode::NoError));
        }
    });
    let server = Server::start(&[address]);
    let whole = server.ask_by_tcp(&example_query());
    assert_eq!((texts(&whole).len(), whole.metadata.truncation), (60, false));
    let sized = server.ask(&query("example.com.", RecordType::A, Some(1232)));
    assert_eq!((texts(&sized).len(), sized.metadata.truncation), (60, false), "over UDP, if it fits");
    let small = server.ask(&example_query());
    assert_eq!((texts(&small).len(), small.metadata.truncation), (1, true), "and what there was of it, if not");
    server.end();
}

#[test]
fn failing_servers_are_skipped() {
    let (silent, heard) = upstream(|_| Vec::new());
    let (unable, _heard) = upstream(|asked| vec![answer(asked, 0, ResponseCode::ServFail)]);
    // No socket listens on this port.
    let closed = free_address();
    let (good, _also_heard) = upstream(|asked| vec![answer(asked, 1, ResponseCode::NoError)]);
    let server = Server::start(&[silent, unable, closed, good]);
    assert_eq!(texts(&server.ask(&example_query())), ["192.0.2.0"]);
    heard.recv_timeout(DEADLINE).unwrap();
    // From now on the silent server is queried last.
    assert_eq!(texts(&server.ask(&example_query())), ["192.0.2.0"]);
    assert!(heard.try_recv().is_err());
    server.end();
}

#[test]
fn failure_of_all_servers_is_reported() {
    let (refuses, _heard) = upstream(|asked| vec![answer(asked, 0, ResponseCode::Refused)]);
    let (mute, _also_heard) = upstream(|asked| vec![[&asked[..2], &[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 0]].concat()]);
    // A server that sends long replies and repeats no question.
    let header: &[u8] = &[0x80, 1, 0, 0, 0, 0, 0, 0, 0, 1];
    let (odd, _heard_too) = upstream(move |asked| vec![[&asked[..2], header, &[0; 60]].concat()]);
    for (servers, code) in [
        (vec![], ResponseCode::ServFail),
        (vec![free_address()], ResponseCode::ServFail),
        (vec![mute], ResponseCode::ServFail),
        (vec![odd], ResponseCode::ServFail),
        (vec![refuses, mute], ResponseCode::Refused),
    ] {
        let server = Server::start(&servers);
        let reply = server.ask(&example_query());
        assert_eq!((reply.metadata.response_code, reply.metadata.id), (code, 0x1234), "{servers:?}");
        assert_eq!(reply.queries, example_query().queries);
        server.end();
    }
}

#[test]
fn the_resolver_never_queries_itself() {
    let address = free_address();
    // As a host does that has the resolver's address in its resolv.conf.
    let server = Server::start_at(address, &[address]);
    server.wait_listening();
    assert_eq!(server.ask(&example_query()).metadata.response_code, ResponseCode::ServFail);
    server.end();
}

#[test]
fn a_flooding_pod_does_not_starve_others() {
    // It answers the last query only; all others stay in flight.
    let (address, heard) = upstream(|asked| match Message::from_vec(asked) {
        Ok(message) if message.queries[0].name().to_string() == "last.example." => {
            vec![answer(asked, 1, ResponseCode::NoError)]
        }
        _ => Vec::new(),
    });
    let server = Server::start(&[address]);
    let flood = client("127.66.0.66");
    let packet = example_query().to_vec().unwrap();
    for _ in 0..MAX_PERMITS_PER_POD * 2 {
        flood.send_to(&packet, server.address).unwrap();
    }
    for _ in 0..MAX_PERMITS_PER_POD {
        heard.recv_timeout(DEADLINE).unwrap();
    }
    // The server handles the rest of the flood before this query.
    let last = server.ask(&query("last.example.", RecordType::A, None));
    assert_eq!(texts(&last).len(), 1);
    assert_eq!(Message::from_vec(&heard.recv_timeout(DEADLINE).unwrap()).unwrap().queries, last.queries);
    assert_eq!(texts(&server.ask(&query("web.", RecordType::A, None))), [POD]);
    server.end();
}

#[test]
fn connections_are_limited_per_pod() {
    let server = Server::start(&[]);
    let asked = query("web.", RecordType::A, None).to_vec().unwrap();
    let mut held: Vec<StdStream> = (0..MAX_PERMITS_PER_POD)
        .map(|_| {
            let mut stream = server.connect();
            write(&mut stream, &asked);
            read(&mut stream).unwrap();
            stream
        })
        .collect();
    let mut excess = server.connect();
    assert!(read(&mut excess).is_err(), "a connection beyond the limit is closed");
    // A connection carries several queries; an oversized one or a reply closes it.
    for _ in 0..3 {
        write(&mut held[0], &asked);
        assert!(read(&mut held[0]).is_ok());
    }
    write(&mut held[0], &vec![0; MAX_QUERY + 1]);
    assert!(read(&mut held[0]).is_err());
    let mut reply = asked.clone();
    reply[2] |= 0x80;
    write(&mut held[1], &reply);
    assert!(read(&mut held[1]).is_err());
    drop(held);
    // Room again, once the server has seen it.
    wait_until("there is room for a connection", || {
        let mut stream = server.connect();
        write(&mut stream, &asked);
        read(&mut stream).is_ok()
    });
    server.end();
}

#[test]
fn idle_connections_leave_room_for_forwarded_queries() {
    let (address, _heard) = upstream(|asked| vec![answer(asked, 1, ResponseCode::NoError)]);
    let server = Server::start(&[address]);
    // The reply shows that the server has accepted the connection; then it is idle.
    let connect = |_| {
        let mut stream = server.connect();
        write(&mut stream, &query("web.", RecordType::A, None).to_vec().unwrap());
        read(&mut stream).unwrap();
        stream
    };
    let mut idle: Vec<StdStream> = (0..MAX_PERMITS_PER_POD).map(connect).collect();
    assert_eq!(texts(&server.ask(&example_query())).len(), 1);
    let last = idle.last_mut().unwrap();
    write(last, &example_query().to_vec().unwrap());
    assert_eq!(texts(&Message::from_vec(&read(last).unwrap()).unwrap()).len(), 1);
    server.end();
}

#[test]
fn addresses_of_other_servers_are_not_taken() {
    for udp in [true, false] {
        let address = free_address();
        let (other, one_more) = (udp.then(|| StdUdp::bind(address).unwrap()), !udp);
        let another = one_more.then(|| StdListener::bind(address).unwrap());
        let server = Server::start_at(address, &[]);
        assert!(server.note().contains("another server listens"), "{udp}");
        drop((other, another));
        // Reported once, and retried.
        server.wait_listening();
        server.end();
    }
}

#[test]
fn missing_addresses_are_bound_once_they_appear() {
    // An address for documentation, which no host has.
    let server = Server::start_at("192.0.2.77:5353".parse().unwrap(), &[]);
    let there = free_address();
    let gateways = names(ip("192.0.2.77")).with_another(there.ip());
    server.state.send_replace(Arc::new(ResolverState { gateways: Arc::new(gateways), servers: Vec::new() }));
    assert_eq!(server.note(), format!("resolving host names and app names of pods on {}", there.ip()));
    server.end();
}

#[test]
fn queries_in_flight_finish_at_shutdown() {
    let (go, wait) = mpsc::channel::<()>();
    let (address, heard) = upstream(move |asked| {
        wait.recv_timeout(DEADLINE).unwrap();
        vec![answer(asked, 1, ResponseCode::NoError)]
    });
    let server = Server::start(&[address]);
    let client = client(POD);
    client.send_to(&example_query().to_vec().unwrap(), server.address).unwrap();
    heard.recv_timeout(DEADLINE).unwrap();
    let Server { ending, thread, state, .. } = server;
    ending.send(true).unwrap();
    go.send(()).unwrap();
    assert_eq!(texts(&receive(&client)).len(), 1);
    thread.join().unwrap();
    drop(state);
}
