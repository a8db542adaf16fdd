//! The sockets: one UDP and one TCP socket for each gateway address, opened and closed as gateways come and go.
//!
//! An address that does not exist yet or is in use by another server is retried every second while the others are
//! served. Only clients in the networks of an address get a reply, so the resolver cannot be used to reflect traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::forward;
use crate::limits::{Limits, Permit, PermitKind};
use crate::message::{ForwardedQuery, MAX_QUERY, PodQuery, QueryAction, Transport};
use crate::names::Gateways;
use crate::upstream::UnresponsiveServers;
use crate::{Note, NoteSink};

/// Interval of attempts to listen on an address.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a failed receive or accept.
const ERROR_BACKOFF: Duration = Duration::from_millis(100);
/// Timeout of waiting for a query on a connection, and of sending a reply.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum duration of a connection (RFC 7766 section 6.2.3 leaves it to the server). Connections count against a limit
/// of their own, so that idle ones do not block queries.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// Backlog of the listening socket.
const BACKLOG: u32 = 128;

/// The state that the server works from; replaced as a whole when it changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ResolverState {
    /// The names by gateway address and client.
    pub(crate) gateways: Arc<Gateways>,
    /// The name servers of the host.
    pub(crate) servers: Vec<SocketAddr>,
}

/// Shared by the tasks of all sockets.
pub(crate) struct Shared {
    state: watch::Receiver<Arc<ResolverState>>,
    ending: watch::Receiver<bool>,
    port: u16,
    notify: NoteSink,
    limits: Limits,
    silent: Mutex<UnresponsiveServers>,
    turn: AtomicUsize,
}

impl Shared {
    /// Creates a server on `port` of the gateways in `state`, until `ending` becomes true or is dropped.
    pub(crate) fn new(
        state: watch::Receiver<Arc<ResolverState>>,
        ending: watch::Receiver<bool>,
        port: u16,
        notify: NoteSink,
    ) -> Arc<Self> {
        let (limits, silent, turn) = (Limits::default(), Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { state, ending, port, notify, limits, silent, turn })
    }

    /// Serves until the end; operations in flight are then finished.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut state, mut ending) = (self.state.clone(), self.ending.clone());
        let mut open: BTreeMap<IpAddr, JoinSet<()>> = BTreeMap::new();
        let mut said = BTreeSet::new();
        loop {
            let wanted = Arc::clone(&state.borrow_and_update().gateways);
            // Dropping a set closes its sockets and cancels its tasks.
            open.retain(|address, _| wanted.contains(*address));
            said.retain(|address| wanted.contains(*address));
            for address in wanted.addresses() {
                if !open.contains_key(&address)
                    && let Some(sockets) = self.open(address, &mut said)
                {
                    open.insert(address, sockets);
                }
            }
            let missing = wanted.addresses().any(|address| !open.contains_key(&address));
            tokio::select! {
                changed = state.changed() => if changed.is_err() { break },
                () = sleep(BIND_RETRY_INTERVAL), if missing => {}
                _ = ending.wait_for(|ending| *ending) => break,
            }
        }
        for sockets in open.values_mut() {
            while sockets.join_next().await.is_some() {}
        }
    }

    /// Opens both sockets of an address and starts to serve them. A failure is reported once per address.
    fn open(self: &Arc<Self>, address: IpAddr, said: &mut BTreeSet<IpAddr>) -> Option<JoinSet<()>> {
        match listen(SocketAddr::new(address, self.port)) {
            Ok((udp, tcp)) => {
                said.remove(&address);
                (self.notify)(&Note::Listening(address));
                let mut sockets = JoinSet::new();
                sockets.spawn(Arc::clone(self).datagrams(Arc::new(udp), address));
                sockets.spawn(Arc::clone(self).connections(tcp, address));
                Some(sockets)
            }
            // The bridge does not exist yet, or the gateway is another host.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => None,
            Err(error) => {
                if said.insert(address) {
                    let taken = error.kind() == io::ErrorKind::AddrInUse;
                    (self.notify)(&if taken { Note::Taken(address) } else { Note::Refused(address, error) });
                }
                None
            }
        }
    }

    async fn ended(&self) {
        // An error means that the sender is gone, which also ends the server.
        drop(self.ending.clone().wait_for(|ending| *ending).await);
    }

    /// Decides how to handle a query from `client` received on address `at`.
    fn decide(&self, at: IpAddr, client: IpAddr, packet: &[u8], transport: Transport) -> QueryAction {
        let state = Arc::clone(&self.state.borrow());
        let Some(names) = state.gateways.names_for(at, client) else {
            return QueryAction::Drop;
        };
        if !self.limits.admits_query(names.key(), Instant::now()) {
            return QueryAction::Drop;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        // A source address of this resolver is this host, possibly a local server that forwards to the resolver.
        let forward = !state.gateways.contains(client);
        PodQuery { packet, transport, names, forward, turn }.decide()
    }

    /// The pod that the limits count a client as; `None`: it is in none of the networks of this address.
    fn pod_key(&self, at: IpAddr, client: IpAddr) -> Option<IpAddr> {
        let state = self.state.borrow();
        state.gateways.names_for(at, client).map(|names| names.key())
    }

    /// Forwards a query to the servers of the host, never to ourselves.
    async fn forward(&self, forward: &ForwardedQuery) -> Option<Vec<u8>> {
        let state = Arc::clone(&self.state.borrow());
        let others = state.servers.iter().filter(|server| !state.gateways.contains(server.ip()));
        let servers: Vec<SocketAddr> = others.copied().collect();
        forward::forward_query(&servers, &self.silent, forward).await
    }

    async fn datagrams(self: Arc<Self>, socket: Arc<UdpSocket>, at: IpAddr) {
        let mut under_way = JoinSet::new();
        // One byte more than allowed, to detect oversized queries.
        let mut buffer = [0; MAX_QUERY + 1];
        loop {
            let received = tokio::select! {
                received = socket.recv_from(&mut buffer) => received,
                () = self.ended() => break,
            };
            while under_way.try_join_next().is_some() {}
            let Ok((length, from)) = received else {
                sleep(ERROR_BACKOFF).await;
                continue;
            };
            let packet = buffer.get(..length).unwrap_or_default();
            match self.decide(at, from.ip(), packet, Transport::Udp) {
                QueryAction::Drop => {}
                // A full send buffer drops the reply; the client retries.
                QueryAction::Reply(reply) => drop(socket.try_send_to(&reply, from)),
                QueryAction::Forward(forward) => {
                    let client = self.pod_key(at, from.ip()).unwrap_or(from.ip());
                    let permit = self.limits.try_acquire(PermitKind::Forward, client, Instant::now());
                    let Some(permit) = permit else { continue };
                    let (shared, socket) = (Arc::clone(&self), Arc::clone(&socket));
                    under_way.spawn(async move {
                        let _permit = permit;
                        if let Some(answer) = shared.forward(&forward).await {
                            drop(socket.send_to(&answer, from).await);
                        }
                    });
                }
            }
        }
        while under_way.join_next().await.is_some() {}
    }

    async fn connections(self: Arc<Self>, listener: TcpListener, at: IpAddr) {
        let mut under_way = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = self.ended() => break,
            };
            while under_way.try_join_next().is_some() {}
            let Ok((stream, from)) = accepted else {
                sleep(ERROR_BACKOFF).await;
                continue;
            };
            let Some(client) = self.pod_key(at, from.ip()) else { continue };
            if let Some(permit) = self.limits.try_acquire(PermitKind::Connection, client, Instant::now()) {
                under_way.spawn(Arc::clone(&self).connection(stream, at, from.ip(), permit));
            }
        }
        drop(listener);
        while under_way.join_next().await.is_some() {}
    }

    async fn connection(self: Arc<Self>, mut stream: TcpStream, at: IpAddr, client: IpAddr, _permit: Permit) {
        let served = async {
            while let Some(packet) = self.read_query(&mut stream).await {
                let reply = match self.decide(at, client, &packet, Transport::Tcp) {
                    QueryAction::Drop => return,
                    QueryAction::Reply(reply) => Some(reply),
                    QueryAction::Forward(forward) => {
                        let pod = self.pod_key(at, client).unwrap_or(client);
                        let permit = self.limits.try_acquire(PermitKind::Forward, pod, Instant::now());
                        let Some(_permit) = permit else { return };
                        self.forward(&forward).await
                    }
                };
                let Some(reply) = reply else { return };
                if !matches!(timeout(IDLE_TIMEOUT, forward::send(&mut stream, &reply)).await, Ok(Ok(()))) {
                    return;
                }
            }
        };
        // A client that is cut off reconnects.
        let _timed_out = timeout(CONNECTION_TIMEOUT, served).await;
    }

    /// Reads the next query of a connection; `None` at its end, on timeout and for an oversized query.
    async fn read_query(&self, stream: &mut TcpStream) -> Option<Vec<u8>> {
        let read = async {
            let length = usize::from(stream.read_u16().await?);
            if length > MAX_QUERY {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut packet = vec![0; length];
            stream.read_exact(&mut packet).await?;
            Ok::<_, io::Error>(packet)
        };
        tokio::select! {
            read = timeout(IDLE_TIMEOUT, read) => read.ok()?.ok(),
            () = self.ended() => None,
        }
    }
}

/// Binds both sockets of an address.
fn listen(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let udp = std::net::UdpSocket::bind(address)?;
    udp.set_nonblocking(true)?;
    let tcp = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Allows binding despite connections in TIME_WAIT, but not beside another listener.
    tcp.set_reuseaddr(true)?;
    tcp.bind(address)?;
    Ok((UdpSocket::from_std(udp)?, tcp.listen(BACKLOG)?))
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
