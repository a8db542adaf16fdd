//! The sockets: opened where names are to be told, closed when the place is gone, and served meanwhile.
//!
//! An address may not be there yet, or be taken by another server; then it is tried again every second, and the rest is
//! served. Only who asks from within the networks of an address is answered: nobody can have us send something to
//! somebody else.

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
use crate::limits::{Limits, Ticket, Work};
use crate::message::{Asked, Forward, MOST_QUERY, Step, Transport};
use crate::names::Places;
use crate::upstream::Silent;
use crate::{Note, Say};

/// How often an address that cannot be listened on is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// How long it is waited after the kernel refused to give us what came.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a connection may be silent, and how long an answer may take to be taken.
const IDLE: Duration = Duration::from_secs(5);
/// How long a connection may last (RFC 7766 section 6.2.3 leaves it to the server).
const LIFE: Duration = Duration::from_secs(30);
/// Connections that wait to be accepted.
const BACKLOG: u32 = 128;

/// What the server goes by; replaced as a whole when it changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Where which names are told.
    pub(crate) places: Arc<Places>,
    /// The servers of the host.
    pub(crate) servers: Vec<SocketAddr>,
}

/// What all sockets work with.
pub(crate) struct Shared {
    facts: watch::Receiver<Arc<Facts>>,
    ending: watch::Receiver<bool>,
    port: u16,
    say: Say,
    limits: Limits,
    silent: Mutex<Silent>,
    turn: AtomicUsize,
}

impl Shared {
    /// A server on this port of the addresses that come by `facts`, until `ending` becomes true or is dropped.
    pub(crate) fn new(
        facts: watch::Receiver<Arc<Facts>>,
        ending: watch::Receiver<bool>,
        port: u16,
        say: Say,
    ) -> Arc<Self> {
        let (limits, silent, turn) = (Limits::default(), Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { facts, ending, port, say, limits, silent, turn })
    }

    /// Serves. What is under way at the end is finished.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut facts, mut ending) = (self.facts.clone(), self.ending.clone());
        let mut open: BTreeMap<IpAddr, JoinSet<()>> = BTreeMap::new();
        let mut said = BTreeSet::new();
        loop {
            let wanted = Arc::clone(&facts.borrow_and_update().places);
            // What is dropped is closed, with all that is under way.
            open.retain(|address, _| wanted.contains_key(address));
            said.retain(|address| wanted.contains_key(address));
            for &address in wanted.keys() {
                if !open.contains_key(&address)
                    && let Some(sockets) = self.open(address, &mut said)
                {
                    open.insert(address, sockets);
                }
            }
            let missing = open.len() < wanted.len();
            tokio::select! {
                changed = facts.changed() => if changed.is_err() { break },
                () = sleep(RETRY), if missing => {}
                _ = ending.wait_for(|ending| *ending) => break,
            }
        }
        for sockets in open.values_mut() {
            while sockets.join_next().await.is_some() {}
        }
    }

    /// Opens both sockets of an address and begins to serve them. What keeps us from it is said once.
    fn open(self: &Arc<Self>, address: IpAddr, said: &mut BTreeSet<IpAddr>) -> Option<JoinSet<()>> {
        match listen(SocketAddr::new(address, self.port)) {
            Ok((udp, tcp)) => {
                said.remove(&address);
                (self.say)(&Note::Listening(address));
                let mut sockets = JoinSet::new();
                sockets.spawn(Arc::clone(self).datagrams(Arc::new(udp), address));
                sockets.spawn(Arc::clone(self).connections(tcp, address));
                Some(sockets)
            }
            // The bridge is not there yet, or the gateway is another host.
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => None,
            Err(error) => {
                if said.insert(address) {
                    let taken = error.kind() == io::ErrorKind::AddrInUse;
                    (self.say)(&if taken { Note::Taken(address) } else { Note::Refused(address, error) });
                }
                None
            }
        }
    }

    async fn ended(&self) {
        // Fails when the one who could say so is gone.
        let _ = self.ending.clone().wait_for(|ending| *ending).await;
    }

    /// What is to be done with a query of this asker at this address.
    fn step(&self, at: IpAddr, asker: IpAddr, packet: &[u8], transport: Transport) -> Step {
        let facts = Arc::clone(&self.facts.borrow());
        let Some(zone) = facts.places.get(&at).and_then(|place| place.zone_for(asker)) else { return Step::Drop };
        if !self.limits.admit(asker, Instant::now()) {
            return Step::Drop;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        // Who has one of our addresses is this host: maybe a server of it that has us for a server.
        let forward = !facts.places.contains_key(&asker);
        Asked { packet, transport, zone, forward, turn }.step()
    }

    /// Whose share of what is under way a question from this address takes: the pod's.
    fn counted_as(&self, at: IpAddr, asker: IpAddr) -> IpAddr {
        let facts = self.facts.borrow();
        let zone = facts.places.get(&at).and_then(|place| place.zone_for(asker));
        zone.map_or(asker, |zone| zone.counted_as(asker))
    }

    /// Asks the servers of the host; never ourselves.
    async fn forward(&self, forward: &Forward) -> Option<Vec<u8>> {
        let facts = Arc::clone(&self.facts.borrow());
        let others = facts.servers.iter().filter(|server| !facts.places.contains_key(&server.ip()));
        let servers: Vec<SocketAddr> = others.copied().collect();
        forward::ask(&servers, &self.silent, forward).await
    }

    async fn datagrams(self: Arc<Self>, socket: Arc<UdpSocket>, at: IpAddr) {
        let mut under_way = JoinSet::new();
        // One more than may be: what is longer shows.
        let mut buffer = [0; MOST_QUERY + 1];
        loop {
            let received = tokio::select! {
                received = socket.recv_from(&mut buffer) => received,
                () = self.ended() => break,
            };
            while under_way.try_join_next().is_some() {}
            let Ok((length, from)) = received else {
                sleep(PAUSE).await;
                continue;
            };
            let packet = buffer.get(..length).unwrap_or_default();
            match self.step(at, from.ip(), packet, Transport::Udp) {
                Step::Drop => {}
                // What cannot be sent is lost, as datagrams are.
                Step::Reply(reply) => drop(socket.try_send_to(&reply, from)),
                Step::Forward(forward) => {
                    let asker = self.counted_as(at, from.ip());
                    let Some(ticket) = self.limits.begin(asker, Work::Forward, Instant::now()) else { continue };
                    let (shared, socket) = (Arc::clone(&self), Arc::clone(&socket));
                    under_way.spawn(async move {
                        let _ticket = ticket;
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
                sleep(PAUSE).await;
                continue;
            };
            let covered = self.facts.borrow().places.get(&at).is_some_and(|place| place.zone_for(from.ip()).is_some());
            if !covered {
                continue;
            }
            let asker = self.counted_as(at, from.ip());
            if let Some(ticket) = self.limits.begin(asker, Work::Connection, Instant::now()) {
                under_way.spawn(Arc::clone(&self).connection(stream, at, from.ip(), ticket));
            }
        }
        drop(listener);
        while under_way.join_next().await.is_some() {}
    }

    async fn connection(self: Arc<Self>, mut stream: TcpStream, at: IpAddr, asker: IpAddr, _ticket: Ticket) {
        let served = async {
            while let Some(packet) = self.query(&mut stream).await {
                let reply = match self.step(at, asker, &packet, Transport::Tcp) {
                    Step::Drop => return,
                    Step::Reply(reply) => Some(reply),
                    Step::Forward(forward) => {
                        let counted = self.counted_as(at, asker);
                        match self.limits.begin(counted, Work::Forward, Instant::now()) {
                            Some(_ticket) => self.forward(&forward).await,
                            None => return,
                        }
                    }
                };
                let Some(reply) = reply else { return };
                if !matches!(timeout(IDLE, forward::send(&mut stream, &reply)).await, Ok(Ok(()))) {
                    return;
                }
            }
        };
        // Whoever is cut off comes again.
        let _ = timeout(LIFE, served).await;
    }

    /// The next query of a connection; none when it is over, or not worth going on with.
    async fn query(&self, stream: &mut TcpStream) -> Option<Vec<u8>> {
        let read = async {
            let length = usize::from(stream.read_u16().await?);
            if length > MOST_QUERY {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut packet = vec![0; length];
            stream.read_exact(&mut packet).await?;
            Ok::<_, io::Error>(packet)
        };
        tokio::select! {
            read = timeout(IDLE, read) => read.ok()?.ok(),
            () = self.ended() => None,
        }
    }
}

/// Both sockets of an address, or none.
fn listen(address: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let udp = std::net::UdpSocket::bind(address)?;
    udp.set_nonblocking(true)?;
    let tcp = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // What is left of old connections does not keep us out; another server does.
    tcp.set_reuseaddr(true)?;
    tcp.bind(address)?;
    Ok((UdpSocket::from_std(udp)?, tcp.listen(BACKLOG)?))
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
