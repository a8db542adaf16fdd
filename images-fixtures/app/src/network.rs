//! Network verbs. They handle one connection at a time, enough to test which pod reaches which. `serve-echo` and `ask`
//! support both families, the others IPv4.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, ipproto, sendmsg,
    sockopt,
};

use crate::output::put;
use crate::{Failure, OK, Outcome, number};

/// The limit for which one peer may block this program.
const TIMEOUT: Duration = Duration::from_secs(10);

fn bind(args: &[String]) -> Result<TcpListener, Failure> {
    let listener = TcpListener::bind(("0.0.0.0", number::<u16>(args, 0)?))?;
    // With port 0 the kernel chooses a port; this line reports it to the caller.
    put(format!("listening on {}\n", listener.local_addr()?.port()).as_bytes())?;
    Ok(listener)
}

/// Sends notifications (sd_notify(3)), with a barrier after the last one: until then, its sender is known.
pub(crate) fn notify(args: &[String]) -> Outcome {
    let path = std::env::var("NOTIFY_SOCKET").map_err(|_| Failure::Failed("NOTIFY_SOCKET is not set".to_owned()))?;
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    socket.connect(path)?;
    for text in args {
        socket.send(text.as_bytes())?;
    }
    let (reader, writer) = std::io::pipe()?;
    send_descriptor(socket.as_fd(), b"BARRIER=1", writer.as_fd())?;
    drop(writer);
    // The receiver closes its copy when it has read the message.
    let mut reader = reader;
    let _end_of_pipe = reader.read(&mut [0])?;
    Ok(OK)
}

/// Sends a descriptor with a message (`SCM_RIGHTS`).
pub(crate) fn send_descriptor(socket: BorrowedFd<'_>, text: &[u8], fd: BorrowedFd<'_>) -> std::io::Result<()> {
    let fds = [fd];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[std::io::IoSlice::new(text)], &mut ancillary, flags)?;
    Ok(())
}

/// A connection whose last close waits until its peer has read everything: a peer that never reads, for five minutes.
pub(crate) fn lingering_socket() -> std::io::Result<(TcpStream, TcpListener)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut socket = TcpStream::connect(listener.local_addr()?)?;
    sockopt::set_socket_linger(&socket, Some(Duration::from_secs(300)))?;
    socket.set_nonblocking(true)?;
    loop {
        match socket.write(&[0; 1 << 16]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    // A non-blocking one does not linger.
    socket.set_nonblocking(false)?;
    Ok((socket, listener))
}

pub(crate) fn serve_http(args: &[String]) -> Outcome {
    let listener = bind(args)?;
    loop {
        let (stream, _) = listener.accept()?;
        match answer(stream) {
            Ok(None) => {}
            Ok(Some(code)) => return Ok(code),
            // A failing client does not end the server.
            Err(error) => drop(put(format!("client: {error}\n").as_bytes())?),
        }
    }
}

/// Serves one request; returns the exit code if the request asked for one.
fn answer(mut stream: TcpStream) -> std::io::Result<Option<u8>> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut reader = BufReader::new((&stream).take(16_384));
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let path = request.split_whitespace().nth(1).unwrap_or("/");
    let code = path.strip_prefix("/exit/").and_then(|code| code.parse().ok());
    let body = format!("hello from gantry-fixture-app: {path}\n");
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len())?;
    Ok(code)
}

pub(crate) fn http_get(args: &[String]) -> Outcome {
    let host = args.first().ok_or(Failure::Usage)?;
    let port = number::<u16>(args, 1)?;
    let end = Instant::now() + TIMEOUT;
    let mut stream = loop {
        match TcpStream::connect((host.as_str(), port)) {
            Ok(stream) => break stream,
            // The server may not be listening yet.
            Err(_) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
            Err(error) => return Err(error.into()),
        }
    };
    stream.set_read_timeout(Some(TIMEOUT))?;
    let path = args.get(2).map_or("/", String::as_str);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer)?;
    put(&answer)
}

pub(crate) fn listen(args: &[String]) -> Outcome {
    let (mut stream, _) = bind(args)?.accept()?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new((&stream).take(16_384)).read_line(&mut line)?;
    put(format!("received {line}").as_bytes())?;
    stream.write_all(format!("received {line}").as_bytes())?;
    Ok(OK)
}

pub(crate) fn connect(args: &[String]) -> Outcome {
    let host = args.first().ok_or(Failure::Usage)?;
    let mut stream = TcpStream::connect((host.as_str(), number::<u16>(args, 1)?))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("{}\n", args.get(2).map_or("hello", String::as_str)).as_bytes())?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer)?;
    put(&answer)
}

pub(crate) fn serve_echo(args: &[String]) -> Outcome {
    let address = args.get(1).map_or(Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), |text| text.parse());
    let address = address.map_err(|_| Failure::Usage)?;
    let tcp = TcpListener::bind((address, number::<u16>(args, 0)?))?;
    let at = tcp.local_addr()?;
    let udp = UdpSocket::bind(at)?;
    let sctp = sctp_listener(at)?;
    put(format!("listening on {}\n", at.port()).as_bytes())?;
    if let Some(sctp) = sctp {
        std::thread::spawn(move || {
            if let Err(Failure::Failed(why)) = echo_lines(&sctp) {
                drop(put(format!("sctp: {why}\n").as_bytes()));
            }
        });
    }
    std::thread::spawn(move || {
        loop {
            let mut line = [0; 2048];
            // An error here is an ICMP message about an earlier reply.
            let Ok((length, peer)) = udp.recv_from(&mut line) else { continue };
            // A client that has gone meanwhile gets no reply.
            let _ = udp.send_to(&echo(peer, near(peer).unwrap_or(at), &line[..length]), peer);
        }
    });
    echo_lines(&tcp)
}

fn echo_lines(listener: &TcpListener) -> Outcome {
    loop {
        let (stream, peer) = listener.accept()?;
        // A failing client does not end the server.
        if let Err(error) = echo_line(&stream, peer) {
            put(format!("client: {error}\n").as_bytes())?;
        }
    }
}

fn echo_line(mut stream: &TcpStream, peer: SocketAddr) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = Vec::new();
    BufReader::new(stream.take(2048)).read_until(b'\n', &mut line)?;
    stream.write_all(&echo(peer, stream.local_addr()?, &line))
}

/// An SCTP socket, used like a TCP socket (one-to-one style, RFC 6458 section 4).
fn sctp_socket(to: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::SCTP))
}

/// An SCTP listener; `None` if the kernel has no SCTP.
fn sctp_listener(at: SocketAddr) -> std::io::Result<Option<TcpListener>> {
    let socket = match sctp_socket(at) {
        Err(Errno::PROTONOSUPPORT) => return Ok(None),
        socket => socket?,
    };
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, 16)?;
    Ok(Some(socket.into()))
}

fn sctp_connect(to: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let socket = sctp_socket(to)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket.into())
}

/// The local address from which datagrams to this peer are sent.
fn near(peer: SocketAddr) -> std::io::Result<SocketAddr> {
    let any = if peer.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    socket.local_addr()
}

/// The reply to a line. The destination address is the one with which the line arrived here.
fn echo(peer: SocketAddr, at: SocketAddr, line: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(line);
    format!("from {} to {} {}\n", peer.ip().to_canonical(), at.ip().to_canonical(), text.trim_end()).into_bytes()
}

pub(crate) fn ask(args: &[String]) -> Outcome {
    let [protocol, host, ..] = args else { return Err(Failure::Usage) };
    let port = number::<u16>(args, 2)?;
    let line = format!("{}\n", args.get(3).map_or("hello", String::as_str));
    let patience = if args.len() > 4 { Duration::from_secs(number(args, 4)?) } else { TIMEOUT };
    let from = if args.len() > 5 { number(args, 5)? } else { 0 };
    let to = (host.as_str(), port).to_socket_addrs()?.next();
    let to = to.ok_or_else(|| Failure::Failed(format!("{host} has no address")))?;
    match protocol.as_str() {
        "tcp" => ask_stream(TcpStream::connect_timeout(&to, patience)?, &line, patience),
        "sctp" => ask_stream(sctp_connect(to, patience)?, &line, patience),
        "udp" => ask_udp(to, &line, patience, from),
        _ => Err(Failure::Usage),
    }
}

fn ask_stream(mut stream: TcpStream, line: &str, patience: Duration) -> Outcome {
    stream.set_read_timeout(Some(patience))?;
    stream.write_all(line.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(1 << 20).read_to_end(&mut answer)?;
    put(&answer)
}

/// Repeats the request: a datagram may be lost.
fn ask_udp(to: SocketAddr, line: &str, patience: Duration, from: u16) -> Outcome {
    const AGAIN: Duration = Duration::from_millis(300);
    let any = if to.is_ipv4() { IpAddr::V4(Ipv4Addr::UNSPECIFIED) } else { IpAddr::V6(Ipv6Addr::UNSPECIFIED) };
    let socket = UdpSocket::bind((any, from))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(AGAIN))?;
    let end = Instant::now() + patience;
    let mut answer = [0; 2048];
    loop {
        socket.send(line.as_bytes())?;
        match socket.recv(&mut answer) {
            Ok(length) => return put(&answer[..length]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) && Instant::now() < end => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) fn resolve(args: &[String]) -> Outcome {
    let name = args.first().ok_or(Failure::Usage)?;
    let mut lines: Vec<String> = (name.as_str(), 0).to_socket_addrs()?.map(|at| format!("{}\n", at.ip())).collect();
    lines.sort();
    lines.dedup();
    put(lines.concat().as_bytes())
}
