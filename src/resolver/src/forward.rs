//! Asking the servers of the host: one after the other, over UDP and, where an answer is cut, over TCP.
//!
//! Each question goes out of a socket of its own, connected to the server, from a port the kernel picks at random and
//! under a random identity; an answer counts only from that server, with that identity and that question (RFC 5452).
//! What the server says is handed on as it is.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::{Forward, HEADER};
use crate::upstream::Silent;

/// How long a server may take for an answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(2);
/// How long all of them may. Whoever asks does not wait longer either (`timeout` of resolv.conf(5): 5 s).
const ANSWERS: Duration = Duration::from_secs(6);
/// So many datagrams that are no answer are passed over; who sends more is guessing.
const STRAYS: usize = 16;
/// The biggest datagram that is read; asked for are less.
const MOST_READ: usize = 4096;

/// What a message is to a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// Not its answer.
    Stray,
    /// The server cannot or does not want to: the next one may.
    Unable,
    /// Its answer, with a part missing.
    Cut,
    /// Its answer.
    Answer,
}

/// Judges what came for a question; `question` is where it ends in what was asked.
pub(crate) fn judge(asked: &[u8], question: usize, came: &[u8]) -> Judgement {
    let (Some(header), Some(identity)) = (came.first_chunk::<HEADER>(), asked.get(..2)) else {
        return Judgement::Stray;
    };
    // The identity; that it is an answer, to a plain query.
    if header[..2] != *identity || header[2] & 0xf8 != 0x80 {
        return Judgement::Stray;
    }
    let unable = matches!(header[3] & 0xf, 1 | 2 | 4 | 5);
    match u16::from_be_bytes([header[4], header[5]]) {
        // What a server could not read it may not repeat.
        0 if unable => return Judgement::Unable,
        1 => {}
        _ => return Judgement::Stray,
    }
    // Names are the same in any case, types and classes are not.
    let name_end = question.saturating_sub(4);
    let same = |from: usize, to: usize| asked.get(from..to).zip(came.get(from..to));
    let name = same(HEADER, name_end).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
    if !name || same(name_end, question).is_none_or(|(a, b)| a != b) {
        return Judgement::Stray;
    }
    match (unable, header[2] & 0x02 != 0) {
        (true, _) => Judgement::Unable,
        (false, true) => Judgement::Cut,
        (false, false) => Judgement::Answer,
    }
}

/// The answer for the one who asked: of the first server that has one, else that there is none. None only when it
/// cannot be written down.
pub(crate) async fn ask(servers: &[SocketAddr], silent: &Mutex<Silent>, forward: &Forward) -> Option<Vec<u8>> {
    let asked = timeout(ANSWERS, ask_all(servers, silent, forward)).await;
    let mut answer = asked.ok().flatten().or_else(|| forward.failed())?;
    if answer.len() > forward.limit {
        answer = forward.truncated()?;
    }
    answer.get_mut(..2)?.copy_from_slice(&forward.id().to_be_bytes());
    // In the letters in which it was asked.
    let question = HEADER..forward.question;
    if let (Some(theirs), Some(ours)) = (answer.get_mut(question.clone()), forward.packet.get(question)) {
        theirs.copy_from_slice(ours);
    }
    Some(answer)
}

async fn ask_all(servers: &[SocketAddr], silent: &Mutex<Silent>, forward: &Forward) -> Option<Vec<u8>> {
    let order = silent.lock().unwrap_or_else(PoisonError::into_inner).order(servers, Instant::now());
    let mut unable = None;
    for server in order {
        let asked = ask_one(server, forward).await;
        let mut silent = silent.lock().unwrap_or_else(PoisonError::into_inner);
        match asked {
            Ok((Judgement::Unable, answer)) => {
                silent.clear(server);
                // Without its question it would be no answer to the one who asked.
                unable = repeats_question(&answer).then_some(answer).or(unable);
            }
            Ok((_, answer)) => {
                silent.clear(server);
                return Some(answer);
            }
            Err(_) => silent.note(server, Instant::now()),
        }
    }
    unable
}

/// Whether an answer that was judged has the question in it; one of a server that could not read it may have none.
fn repeats_question(answer: &[u8]) -> bool {
    answer.get(4..6).is_some_and(|count| count != [0, 0])
}

async fn ask_one(server: SocketAddr, forward: &Forward) -> io::Result<(Judgement, Vec<u8>)> {
    let mut asked = forward.packet.clone();
    if let Some(identity) = asked.get_mut(..2) {
        identity.copy_from_slice(&random()?);
    }
    let (judgement, answer) = timeout(ANSWER, by_udp(server, &asked, forward.question)).await??;
    if judgement != Judgement::Cut {
        return Ok((judgement, answer));
    }
    match timeout(ANSWER, by_tcp(server, &asked, forward.question)).await {
        Ok(Ok((Judgement::Answer | Judgement::Cut, whole))) if whole.len() <= forward.limit => {
            Ok((Judgement::Answer, whole))
        }
        // What was cut says so; and some who ask can use what is left of it.
        _ => Ok((judgement, answer)),
    }
}

async fn by_udp(server: SocketAddr, asked: &[u8], question: usize) -> io::Result<(Judgement, Vec<u8>)> {
    let any: SocketAddr =
        if server.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    socket.send(asked).await?;
    let mut buffer = vec![0; MOST_READ];
    for _ in 0..STRAYS {
        let length = socket.recv(&mut buffer).await?;
        let came = buffer.get(..length).unwrap_or_default();
        let judgement = judge(asked, question, came);
        if judgement != Judgement::Stray {
            buffer.truncate(length);
            return Ok((judgement, buffer));
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "too much came that is no answer"))
}

async fn by_tcp(server: SocketAddr, asked: &[u8], question: usize) -> io::Result<(Judgement, Vec<u8>)> {
    let mut stream = TcpStream::connect(server).await?;
    send(&mut stream, asked).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    match judge(asked, question, &answer) {
        Judgement::Stray => Err(io::Error::new(io::ErrorKind::InvalidData, "what came is no answer")),
        judgement => Ok((judgement, answer)),
    }
}

/// Writes a message as TCP has it, its length first (RFC 1035 section 4.2.2), in one piece.
pub(crate) async fn send(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let framed = [&length.to_be_bytes(), message].concat();
    stream.write_all(&framed).await
}

/// Two bytes nobody can guess.
fn random() -> io::Result<[u8; 2]> {
    let mut bytes = [0; 2];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    if filled == bytes.len() { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
#[path = "forward_tests.rs"]
mod tests;
