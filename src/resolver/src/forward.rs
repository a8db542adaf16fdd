//! Forwarding to the servers of the host: one after the other, over UDP and, if the reply is truncated, over TCP.
//!
//! Each query uses its own connected socket, with a source port that the kernel picks at random and a random ID. A
//! reply counts only from that server, with that ID and that question (RFC 5452). It is passed on unchanged.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::{ForwardedQuery, HEADER};
use crate::upstream::UnresponsiveServers;

/// Timeout of one server.
pub(crate) const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of all servers together. Clients do not wait longer either (`timeout` of resolv.conf(5): 5 s).
const TOTAL_TIMEOUT: Duration = Duration::from_secs(6);
/// Maximum number of unrelated datagrams that are skipped; more suggest that an attacker guesses.
const MAX_UNRELATED: usize = 16;
/// Maximum length of a datagram read; requests advertise a smaller size.
const MAX_DATAGRAM_READ: usize = 4096;

/// The relation of a received message to the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    /// No reply to the query.
    Unrelated,
    /// The server cannot or will not answer; the next one may.
    Failure,
    /// A truncated reply.
    Truncated,
    /// A complete reply.
    Answer,
}

/// Classifies a message received for the query `asked`, whose question ends at `question`.
pub(crate) fn classify_reply(asked: &[u8], question: usize, came: &[u8]) -> ReplyKind {
    let (Some(header), Some(identity)) = (came.first_chunk::<HEADER>(), asked.get(..2)) else {
        return ReplyKind::Unrelated;
    };
    // The ID must match, QR be set and the opcode be QUERY.
    if header[..2] != *identity || header[2] & 0xf8 != 0x80 {
        return ReplyKind::Unrelated;
    }
    let unable = matches!(header[3] & 0xf, 1 | 2 | 4 | 5);
    match u16::from_be_bytes([header[4], header[5]]) {
        // A server that cannot parse the query need not repeat the question.
        0 if unable => return ReplyKind::Failure,
        1 => {}
        _ => return ReplyKind::Unrelated,
    }
    // Names compare without regard to case, types and classes do not.
    let name_end = question.saturating_sub(4);
    let same = |from: usize, to: usize| asked.get(from..to).zip(came.get(from..to));
    let name = same(HEADER, name_end).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
    if !name || same(name_end, question).is_none_or(|(a, b)| a != b) {
        return ReplyKind::Unrelated;
    }
    match (unable, header[2] & 0x02 != 0) {
        (true, _) => ReplyKind::Failure,
        (false, true) => ReplyKind::Truncated,
        (false, false) => ReplyKind::Answer,
    }
}

/// Returns the reply for the client: of the first server that has one, else SERVFAIL. `None` only if that cannot be
/// encoded.
pub(crate) async fn forward_query(
    servers: &[SocketAddr],
    unresponsive: &Mutex<UnresponsiveServers>,
    forward: &ForwardedQuery,
) -> Option<Vec<u8>> {
    let asked = timeout(TOTAL_TIMEOUT, query_servers(servers, unresponsive, forward)).await;
    let mut answer = asked.ok().flatten().or_else(|| forward.failed())?;
    if answer.len() > forward.limit {
        answer = forward.truncated()?;
    }
    answer.get_mut(..2)?.copy_from_slice(&forward.id().to_be_bytes());
    // The question is repeated in the client's letter case.
    let question = HEADER..forward.question;
    if let (Some(theirs), Some(ours)) = (answer.get_mut(question.clone()), forward.packet.get(question)) {
        theirs.copy_from_slice(ours);
    }
    Some(answer)
}

async fn query_servers(
    servers: &[SocketAddr],
    unresponsive: &Mutex<UnresponsiveServers>,
    forward: &ForwardedQuery,
) -> Option<Vec<u8>> {
    let order = unresponsive.lock().unwrap_or_else(PoisonError::into_inner).order(servers, Instant::now());
    let mut unable = None;
    for server in order {
        let asked = query_server(server, forward).await;
        let mut unresponsive = unresponsive.lock().unwrap_or_else(PoisonError::into_inner);
        match asked {
            Ok((ReplyKind::Failure, answer)) => {
                unresponsive.remove(server);
                // The client would reject a reply without its question.
                unable = has_question(&answer).then_some(answer).or(unable);
            }
            Ok((_, answer)) => {
                unresponsive.remove(server);
                return Some(answer);
            }
            Err(_) => unresponsive.insert(server, Instant::now()),
        }
    }
    unable
}

/// Whether a classified reply repeats the question.
fn has_question(answer: &[u8]) -> bool {
    answer.get(4..6).is_some_and(|count| count != [0, 0])
}

async fn query_server(server: SocketAddr, forward: &ForwardedQuery) -> io::Result<(ReplyKind, Vec<u8>)> {
    let mut asked = forward.packet.clone();
    if let Some(identity) = asked.get_mut(..2) {
        identity.copy_from_slice(&gantry_host::random::bytes::<2>()?);
    }
    let (judgement, answer) = timeout(SERVER_TIMEOUT, query_over_udp(server, &asked, forward.question)).await??;
    if judgement != ReplyKind::Truncated {
        return Ok((judgement, answer));
    }
    match timeout(SERVER_TIMEOUT, query_over_tcp(server, &asked, forward.question)).await {
        Ok(Ok((ReplyKind::Answer | ReplyKind::Truncated, whole))) if whole.len() <= forward.limit => {
            Ok((ReplyKind::Answer, whole))
        }
        // The truncated reply is marked as such, and some clients can use it.
        _ => Ok((judgement, answer)),
    }
}

async fn query_over_udp(server: SocketAddr, asked: &[u8], question: usize) -> io::Result<(ReplyKind, Vec<u8>)> {
    let any: SocketAddr =
        if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(asked).await?;
    let mut buffer = vec![0; MAX_DATAGRAM_READ];
    for _ in 0..MAX_UNRELATED {
        let length = socket.recv(&mut buffer).await?;
        let came = buffer.get(..length).unwrap_or_default();
        let judgement = classify_reply(asked, question, came);
        if judgement != ReplyKind::Unrelated {
            buffer.truncate(length);
            return Ok((judgement, buffer));
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the server sent too many unrelated datagrams"))
}

async fn query_over_tcp(server: SocketAddr, asked: &[u8], question: usize) -> io::Result<(ReplyKind, Vec<u8>)> {
    let mut stream = TcpStream::connect(server).await?;
    send(&mut stream, asked).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    match classify_reply(asked, question, &answer) {
        ReplyKind::Unrelated => Err(io::Error::new(io::ErrorKind::InvalidData, "the server sent an unrelated message")),
        judgement => Ok((judgement, answer)),
    }
}

/// Writes a message with the length prefix of TCP (RFC 1035 section 4.2.2) in one piece.
pub(crate) async fn send(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let framed = [&length.to_be_bytes(), message].concat();
    stream.write_all(&framed).await
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
