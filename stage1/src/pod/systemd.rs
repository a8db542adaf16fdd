//! The pod's transient scope under systemd: one method call over D-Bus, on systemd's private socket.
//!
//! ```text
//! supervisor  StartTransientUnit("gantry-UUID.scope", "fail", PIDs=[supervisor], Slice=…, Delegate=yes …)
//! systemd     replies with the job, makes the scope's cgroup, and moves the supervisor there
//! supervisor  reads /proc/self/cgroup until it is there
//! ```
//!
//! The private socket needs no Hello and no bus daemon (systemd also serves it before D-Bus runs and after it ended),
//! and accepts root alone. The scope ends with its last process, and systemd forgets it then, also after a failure
//! (`CollectMode=`). A kill before the move leaves nothing: systemd refuses a scope of no process.
//!
//! Specification: D-Bus, "Message Protocol" and "Authentication Protocol"; org.freedesktop.systemd1(5).

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use gantry_model::ErrorKind;
use gantry_model::cgroup::scope_name;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

use crate::failure::{Attempt, Result, failure};

/// systemd's own socket.
const PRIVATE_SOCKET: &str = "/run/systemd/private";
/// The service that stops all pods at the shutdown of the host (`packaging`).
const POD_SHUTDOWN_UNIT: &str = "gantry-pods.service";
/// The timeout of starting a scope. systemd may be busy with other jobs, as at boot.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The interval of looking for the move, and of repeating a call while a former scope of the pod ends.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The maximum length of a received message, in bytes. Signals about all units arrive beside the reply.
const MAX_MESSAGE: usize = 1 << 20;
/// The maximum length of a line of the authentication, in bytes.
const MAX_LINE: usize = 512;
/// The error of a unit that exists already.
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";

/// Message types.
const METHOD_CALL: u8 = 1;
const METHOD_RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Codes of header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// Starts the scope of a pod in a slice, with this process in it, and waits until the process is in `cgroup`, the path
/// of the scope's cgroup below the hierarchy's root.
pub(crate) fn start_scope(slice: &str, pod: &str, cgroup: &str) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    let name = scope_name(pod);
    let call = StartScope { name: &name, pod, slice, process: std::process::id() };
    let reply = call.send(Path::new(PRIVATE_SOCKET), deadline);
    match reply.attempt(|| format!("cannot start the scope {name} by {PRIVATE_SOCKET}"))? {
        Reply::Return => {}
        Reply::Error { name: error, message } => {
            let why = format!("systemd does not start the scope {name}: {message} ({error})");
            return Err(failure(ErrorKind::Refused, why));
        }
    }
    loop {
        let own = std::fs::read_to_string("/proc/self/cgroup").attempt(|| "cannot read /proc/self/cgroup")?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::/"));
        if path == Some(cgroup) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let path = path.unwrap_or_default();
            let why = format!(
                "systemd has not moved the supervisor to /{cgroup} in {START_TIMEOUT:?}; it is in /{path}: see \
                 'systemctl status {name}'"
            );
            return Err(failure(ErrorKind::Unavailable, why));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// The call that starts a scope.
struct StartScope<'a> {
    name: &'a str,
    pod: &'a str,
    slice: &'a str,
    process: u32,
}

impl StartScope<'_> {
    /// Sends it, again while a former scope of the pod ends, and returns the reply.
    fn send(&self, socket: &Path, deadline: Instant) -> io::Result<Reply> {
        let mut connection = Connection::open(socket, deadline)?;
        let mut serial = 1;
        loop {
            connection.send(&self.to_message(serial))?;
            match connection.receive_reply(serial)? {
                Reply::Error { name, .. } if name == UNIT_EXISTS && Instant::now() < deadline => {
                    std::thread::sleep(POLL_INTERVAL);
                    serial += 1;
                }
                reply => return Ok(reply),
            }
        }
    }

    fn to_message(&self, serial: u32) -> Vec<u8> {
        let mut body = Marshaller::default();
        body.string(self.name);
        // Fails if a job for the unit is queued.
        body.string("fail");
        let properties = body.begin_array(8);
        body.property("Description", "s", |value| value.string(&format!("gantry pod {}", self.pod)));
        body.property("Slice", "s", |value| value.string(self.slice));
        body.property("PIDs", "au", |value| {
            let processes = value.begin_array(4);
            value.u32(self.process);
            value.end_array(processes);
        });
        body.property("Delegate", "b", |value| value.u32(1));
        body.property("CollectMode", "s", |value| value.string("inactive-or-failed"));
        // Only the pod's own limits count, not DefaultTasksMax=.
        body.property("TasksMax", "t", |value| value.u64(u64::MAX));
        // At the shutdown of the host, systemd stops this unit first, which stops the pod in order.
        body.property("Before", "as", |value| {
            let units = value.begin_array(4);
            value.string(POD_SHUTDOWN_UNIT);
            value.end_array(units);
        });
        body.end_array(properties);
        let auxiliary_units = body.begin_array(8);
        body.end_array(auxiliary_units);
        let mut message = Marshaller::default();
        message.bytes.extend([b'l', METHOD_CALL, 0, 1]);
        message.u32(u32::try_from(body.bytes.len()).unwrap_or(u32::MAX));
        message.u32(serial);
        let fields = message.begin_array(8);
        message.field(PATH, "o", |value| value.string("/org/freedesktop/systemd1"));
        message.field(MEMBER, "s", |value| value.string("StartTransientUnit"));
        message.field(INTERFACE, "s", |value| value.string("org.freedesktop.systemd1.Manager"));
        message.field(DESTINATION, "s", |value| value.string("org.freedesktop.systemd1"));
        message.field(SIGNATURE, "g", |value| value.signature("ssa(sv)a(sa(sv))"));
        message.end_array(fields);
        message.align(8);
        message.bytes.extend(body.bytes);
        message.bytes
    }
}

/// A message that is written, little-endian. Offsets for the alignment count from the begin of the message or of its
/// body, which is aligned to 8 bytes.
#[derive(Default)]
struct Marshaller {
    bytes: Vec<u8>,
}

/// An array whose length is not written yet.
struct OpenArray {
    length_at: usize,
    begin: usize,
}

impl Marshaller {
    fn align(&mut self, to: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.bytes.extend(value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.align(8);
        self.bytes.extend(value.to_le_bytes());
    }

    /// A string, or an object path.
    fn string(&mut self, text: &str) {
        self.u32(u32::try_from(text.len()).unwrap_or(u32::MAX));
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.bytes.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
    }

    /// The padding before the first element is there also if there is none, and does not count to the length.
    fn begin_array(&mut self, alignment: usize) -> OpenArray {
        self.u32(0);
        let length_at = self.bytes.len() - 4;
        self.align(alignment);
        OpenArray { length_at, begin: self.bytes.len() }
    }

    fn end_array(&mut self, array: OpenArray) {
        let length = u32::try_from(self.bytes.len() - array.begin).unwrap_or(u32::MAX);
        if let Some(place) = self.bytes.get_mut(array.length_at..array.length_at + 4) {
            place.copy_from_slice(&length.to_le_bytes());
        }
    }

    /// A property, type `(sv)`.
    fn property(&mut self, name: &str, signature: &str, write: impl FnOnce(&mut Self)) {
        self.align(8);
        self.string(name);
        self.signature(signature);
        write(self);
    }

    /// A header field, type `(yv)`.
    fn field(&mut self, code: u8, signature: &str, write: impl FnOnce(&mut Self)) {
        self.align(8);
        self.bytes.push(code);
        self.signature(signature);
        write(self);
    }
}

/// The reply to a method call.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    /// Success.
    Return,
    /// Failure.
    Error {
        /// The name of the error, with dots.
        name: String,
        /// The text for people; empty if there is none.
        message: String,
    },
}

/// An authenticated connection.
struct Connection {
    stream: UnixStream,
    deadline: Instant,
}

impl Connection {
    fn open(path: &Path, deadline: Instant) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // It bounds connecting too, while systemd accepts none.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(remaining_time(deadline)?))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let mut connection = Self { stream: UnixStream::from(socket), deadline };
        // The user id in digits, each as the hexadecimal number of its character.
        let user = rustix::process::geteuid().as_raw().to_string();
        let user: String = user.bytes().map(|digit| format!("{digit:02x}")).collect();
        connection.send(format!("\0AUTH EXTERNAL {user}\r\n").as_bytes())?;
        let line = connection.receive_line()?;
        if !line.starts_with("OK ") {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("authentication failed: {line:?}")));
        }
        connection.send(b"BEGIN\r\n")?;
        Ok(connection)
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(remaining_time(self.deadline)?))?;
        self.stream.write_all(bytes)
    }

    /// Fills the buffer before the deadline, also if the peer sends slowly.
    fn receive(&mut self, mut buffer: &mut [u8]) -> io::Result<()> {
        while !buffer.is_empty() {
            self.stream.set_read_timeout(Some(remaining_time(self.deadline)?))?;
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed")),
                Ok(count) => buffer = buffer.split_at_mut(count).1,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The timeout; the next attempt finds the deadline passed.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn receive_line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            if line.len() == MAX_LINE {
                return Err(invalid("a line of the authentication is too long"));
            }
            let mut byte = [0];
            self.receive(&mut byte)?;
            line.extend(byte);
        }
        Ok(String::from_utf8_lossy(line.trim_ascii_end()).into_owned())
    }

    /// Receives the reply to a call, and skips signals.
    fn receive_reply(&mut self, serial: u32) -> io::Result<Reply> {
        loop {
            let mut fixed = [0; 16];
            self.receive(&mut fixed)?;
            let mut header = Unmarshaller { bytes: &fixed, next: 0 };
            let prefix = (header.byte(), header.byte(), header.byte(), header.byte());
            let lengths = (header.u32(), header.u32(), header.u32());
            let ((Some(b'l'), Some(kind), Some(_), Some(1)), (Some(body), Some(_), Some(fields))) = (prefix, lengths)
            else {
                return Err(invalid("a message is not of D-Bus version 1, little-endian"));
            };
            let (body, fields) = (body as usize, fields as usize);
            if body > MAX_MESSAGE || fields > MAX_MESSAGE {
                return Err(invalid("a message is too long"));
            }
            let mut rest = vec![0; fields.next_multiple_of(8) + body];
            self.receive(&mut rest)?;
            let (header, body) = rest.split_at(fields.next_multiple_of(8));
            let header = header.get(..fields).unwrap_or_default();
            let header = ReplyHeader::parse(header).ok_or_else(|| invalid("a message has a malformed header"))?;
            if header.reply_serial != Some(serial) {
                continue;
            }
            match kind {
                METHOD_RETURN => return Ok(Reply::Return),
                ERROR => {
                    let mut body = Unmarshaller { bytes: body, next: 0 };
                    let message = if header.has_text { body.string() } else { None };
                    let message = message.unwrap_or_default().to_owned();
                    return Ok(Reply::Error { name: header.error_name.unwrap_or_default().to_owned(), message });
                }
                _ => return Err(invalid("a reply is neither a return nor an error")),
            }
        }
    }
}

/// The time until the deadline.
fn remaining_time(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timed_out = || io::Error::new(io::ErrorKind::TimedOut, "no reply in time");
    // A socket timeout of zero means none.
    (!left.is_zero()).then_some(left).ok_or_else(timed_out)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// The header fields of a reply.
#[derive(Debug, Default, PartialEq, Eq)]
struct ReplyHeader<'a> {
    reply_serial: Option<u32>,
    error_name: Option<&'a str>,
    /// Whether the body begins with a string.
    has_text: bool,
}

impl<'a> ReplyHeader<'a> {
    /// `None`: it is malformed.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Unmarshaller { bytes, next: 0 };
        let mut header = Self::default();
        while fields.next < bytes.len() {
            fields.align(8);
            let code = fields.byte()?;
            match (code, fields.signature()?) {
                (REPLY_SERIAL, "u") => header.reply_serial = Some(fields.u32()?),
                (ERROR_NAME, "s") => header.error_name = Some(fields.string()?),
                (SIGNATURE, "g") => header.has_text = fields.signature()?.starts_with('s'),
                (_, "s" | "o") => drop(fields.string()?),
                (_, "g") => drop(fields.signature()?),
                (_, "u") => drop(fields.u32()?),
                _ => return None,
            }
        }
        Some(header)
    }
}

/// A message that is read. Each method returns `None` where the bytes end too early, or are malformed.
struct Unmarshaller<'a> {
    bytes: &'a [u8],
    next: usize,
}

impl<'a> Unmarshaller<'a> {
    fn align(&mut self, to: usize) {
        self.next = self.next.next_multiple_of(to);
    }

    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let end = self.next.checked_add(length)?;
        let slice = self.bytes.get(self.next..end)?;
        self.next = end;
        Some(slice)
    }

    fn byte(&mut self) -> Option<u8> {
        self.slice(1)?.first().copied()
    }

    fn u32(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.slice(4)?.try_into().ok()?))
    }

    fn string(&mut self) -> Option<&'a str> {
        let length = self.u32()?;
        self.text(length as usize)
    }

    fn signature(&mut self) -> Option<&'a str> {
        let length = self.byte()?;
        self.text(length.into())
    }

    /// A text and the NUL after it.
    fn text(&mut self, length: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.slice(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    use proptest::prelude::*;

    use super::*;

    const POD: &str = "6733c088-a507-4694-aabf-ec79c0a8ac9a";
    const TIMEOUT: Duration = Duration::from_secs(60);
    /// A signal, as systemd sends it to each peer of its private socket.
    const SIGNAL: u8 = 4;

    /// A bus that authenticates one peer, replies to each call with the next of these messages, and returns the calls.
    struct FakeBus {
        dir: tempfile::TempDir,
        thread: JoinHandle<Vec<Vec<u8>>>,
    }

    impl FakeBus {
        fn start(replies: Vec<Vec<u8>>) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let listener = UnixListener::bind(dir.path().join("private")).unwrap();
            let thread = std::thread::spawn(move || {
                let (mut peer, _) = listener.accept().unwrap();
                peer.set_read_timeout(Some(TIMEOUT)).unwrap();
                let user = rustix::process::geteuid().as_raw().to_string();
                let user: String = user.bytes().map(|digit| format!("3{}", char::from(digit))).collect();
                let expect = |peer: &mut UnixStream, text: &str| {
                    let mut bytes = vec![0; text.len()];
                    peer.read_exact(&mut bytes).unwrap();
                    assert_eq!(String::from_utf8(bytes).unwrap(), text);
                };
                expect(&mut peer, &format!("\0AUTH EXTERNAL {user}\r\n"));
                peer.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n").unwrap();
                expect(&mut peer, "BEGIN\r\n");
                let receive_call = |reply: Vec<u8>| {
                    let mut call = vec![0; 16];
                    peer.read_exact(&mut call).unwrap();
                    let length = |at: usize| u32::from_le_bytes(call[at..at + 4].try_into().unwrap()) as usize;
                    let mut rest = vec![0; length(12).next_multiple_of(8) + length(4)];
                    peer.read_exact(&mut rest).unwrap();
                    // In two parts, as a stream may deliver it.
                    let (first, second) = reply.split_at(reply.len() / 2);
                    peer.write_all(first).unwrap();
                    peer.write_all(second).unwrap();
                    [call, rest].concat()
                };
                replies.into_iter().map(receive_call).collect()
            });
            Self { dir, thread }
        }

        /// Starts a scope on it; returns the reply and the calls that arrived.
        fn call(self, timeout: Duration) -> (io::Result<Reply>, Vec<Vec<u8>>) {
            let call = StartScope { name: &scope_name(POD), pod: POD, slice: "gantry.slice", process: 4711 };
            let reply = call.send(&self.dir.path().join("private"), Instant::now() + timeout);
            (reply, self.thread.join().unwrap())
        }
    }

    fn message(kind: u8, reply_serial: u32, error: Option<(&str, &str)>) -> Vec<u8> {
        let mut body = Marshaller::default();
        let mut message = Marshaller::default();
        if let Some((_, text)) = error {
            body.string(text);
        }
        message.bytes.extend([b'l', kind, 1, 1]);
        message.u32(u32::try_from(body.bytes.len()).unwrap());
        message.u32(77);
        let fields = message.begin_array(8);
        message.field(REPLY_SERIAL, "u", |value| value.u32(reply_serial));
        if let Some((name, _)) = error {
            message.field(ERROR_NAME, "s", |value| value.string(name));
            message.field(SIGNATURE, "g", |value| value.signature("s"));
        }
        message.end_array(fields);
        message.align(8);
        [message.bytes, body.bytes].concat()
    }

    /// The bytes that `busctl call` of systemd 252 sends for the same call, but for its serial number.
    const CALL: &[&[u8]] = &[
        b"l\x01\0\x01`\x01\0\0\x01\0\0\0\xb6\0\0\0",
        b"\x01\x01o\0\x19\0\0\0/org/freedesktop/systemd1\0\0\0\0\0\0\0",
        b"\x03\x01s\0\x12\0\0\0StartTransientUnit\0\0\0\0\0\0",
        b"\x02\x01s\0 \0\0\0org.freedesktop.systemd1.Manager\0\0\0\0\0\0\0\0",
        b"\x06\x01s\0\x18\0\0\0org.freedesktop.systemd1\0\0\0\0\0\0\0\0",
        b"\x08\x01g\0\x10ssa(sv)a(sa(sv))\0\0\0",
        b"1\0\0\0gantry-6733c088-a507-4694-aabf-ec79c0a8ac9a.scope\0\0\0",
        b"\x04\0\0\0fail\0\0\0\0",
        b"\x14\x01\0\0\x0b\0\0\0Description\0\x01s\0\0",
        b"/\0\0\0gantry pod 6733c088-a507-4694-aabf-ec79c0a8ac9a\0",
        b"\x05\0\0\0Slice\0\x01s\0\0\0\0\x0c\0\0\0gantry.slice\0\0\0\0\0\0\0\0",
        b"\x04\0\0\0PIDs\0\x02au\0\0\0\0\x04\0\0\0g\x12\0\0",
        b"\x08\0\0\0Delegate\0\x01b\0\x01\0\0\0\0\0\0\0",
        b"\x0b\0\0\0CollectMode\0\x01s\0\0\x12\0\0\0inactive-or-failed\0\0\0\0\0\0",
        b"\x08\0\0\0TasksMax\0\x01t\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x06\0\0\0Before\0\x02as\0\0\x18\0\0\0\x13\0\0\0gantry-pods.service\0\0\0\0\0",
    ];

    #[test]
    fn scopes_are_requested_in_one_call() {
        let (reply, calls) = FakeBus::start(vec![message(METHOD_RETURN, 1, None)]).call(TIMEOUT);
        assert_eq!(reply.unwrap(), Reply::Return);
        assert_eq!(calls[0].escape_ascii().to_string(), CALL.concat().escape_ascii().to_string());
    }

    #[test]
    fn signals_and_other_replies_are_skipped() {
        let replies = [message(SIGNAL, 0, None), message(METHOD_RETURN, 7, None), message(METHOD_RETURN, 1, None)];
        assert_eq!(FakeBus::start(vec![replies.concat()]).call(TIMEOUT).0.unwrap(), Reply::Return);
    }

    #[test]
    fn errors_have_name_and_text() {
        let denied = ("org.freedesktop.DBus.Error.AccessDenied", "Permission denied");
        let (reply, _) = FakeBus::start(vec![message(ERROR, 1, Some(denied))]).call(TIMEOUT);
        assert_eq!(reply.unwrap(), Reply::Error { name: denied.0.into(), message: denied.1.into() });
    }

    #[test]
    fn a_lingering_scope_is_waited_for() {
        let exists = |serial| message(ERROR, serial, Some((UNIT_EXISTS, "Unit already exists.")));
        let bus = FakeBus::start(vec![exists(1), exists(2), message(METHOD_RETURN, 3, None)]);
        let (reply, calls) = bus.call(TIMEOUT);
        assert_eq!(reply.unwrap(), Reply::Return);
        assert_eq!(calls.iter().map(|call| call[8]).collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[test]
    fn malformed_replies_are_refused() {
        let long = [&b"l\x02\0\x01"[..], &u32::MAX.to_le_bytes(), &[1, 0, 0, 0], &[0; 4]].concat();
        let big_endian = [&b"B\x02\0\x01"[..], &[0; 12]].concat();
        let truncated_field = [&b"l\x02\0\x01\0\0\0\0\x01\0\0\0\x04\0\0\0"[..], b"\x05\x01u\0\0\0\0\0"].concat();
        for reply in [long, big_endian, truncated_field] {
            let (reply, _) = FakeBus::start(vec![reply]).call(TIMEOUT);
            assert_eq!(reply.unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
        let (reply, _) = FakeBus::start(vec![b"l\x02\0\x01\0".to_vec()]).call(TIMEOUT);
        assert_eq!(reply.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_silent_bus_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("private");
        let _silent = UnixListener::bind(&path).unwrap();
        let result = Connection::open(&path, Instant::now() + Duration::from_millis(50));
        assert_eq!(result.err().map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
        let missing = Connection::open(&dir.path().join("none"), Instant::now() + TIMEOUT);
        assert_eq!(missing.err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
    }

    proptest! {
        #[test]
        fn header_parser_never_panics(bytes: Vec<u8>) {
            let _parsed = ReplyHeader::parse(&bytes);
        }
    }
}
