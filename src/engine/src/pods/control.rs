//! The client of a supervisor's control socket: one request per connection, a deadline on every wait.
//!
//! The socket's path may be longer than `sun_path`, so it is reached through a descriptor of the pod directory.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gantry_contract::control::{MAX_LONG_REQUEST, MAX_MESSAGE, Reply, Request, Status};
use gantry_contract::files;
use gantry_host::file::in_memory;
use gantry_model::{ErrorKind, Kind, PodId};
use rustix::fs::{Mode, OFlags};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv, recvmsg, sendmsg,
    socket_with,
};
use thiserror::Error;

use crate::Engine;
use crate::host::process::{self, Deadline, StoppedProcess};
use crate::host::stage1::printable;
use crate::pods::stopped::{SLICE, SupervisorWait};

/// The timeout of a reply.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// The time that connecting may take in the functions called `begin_…`, whose callers share their threads with other
/// pods: longer than a supervisor is busy, and short if it has hung until its backlog is full.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A request to a supervisor failed.
#[derive(Debug, Error)]
pub enum ControlError {
    /// The socket cannot be connected.
    #[error("cannot reach the supervisor of pod {id}")]
    Connect {
        /// The pod.
        id: PodId,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No reply within the timeout.
    #[error("the supervisor of pod {id} does not reply within {seconds} s; 'gantry stop --force {id}' ends the pod")]
    Silent {
        /// The pod.
        id: PodId,
        /// The time it had, in whole seconds; at least 1.
        seconds: u64,
    },
    /// The supervisor is stopped, so that it does not reply. It executes a request that it was sent when it is
    /// continued.
    #[error(
        "the supervisor of pod {id}, process {}, does not reply: {process}; it may still execute the request",
        process.pid
    )]
    Stopped {
        /// The pod.
        id: PodId,
        /// The supervisor.
        process: StoppedProcess,
    },
    /// The supervisor closed the connection.
    #[error("the supervisor of pod {0} closed the connection without a reply; the pod may have ended")]
    Closed(PodId),
    /// The request is too long.
    #[error("the request to the supervisor of pod {id} is {bytes} bytes long; the limit is {MAX_LONG_REQUEST}")]
    TooLong {
        /// The pod.
        id: PodId,
        /// Its length.
        bytes: usize,
    },
    /// The reply is malformed.
    #[error("the reply of the supervisor of pod {id} is not understood: {why}")]
    Garbled {
        /// The pod.
        id: PodId,
        /// The cause.
        why: String,
    },
    /// The supervisor speaks a newer version of the protocol.
    #[error(
        "the supervisor of pod {id} speaks version {theirs} of the control protocol, and this gantry only up to {ours}: use the newer gantry"
    )]
    Version {
        /// The pod.
        id: PodId,
        /// Its version.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The supervisor replied that the request failed.
    #[error("{message}")]
    Failed {
        /// The kind of failure.
        kind: ErrorKind,
        /// The whole chain of causes.
        message: String,
    },
    /// The connection failed.
    #[error("cannot {attempt} the supervisor of pod {id}")]
    Io {
        /// The pod.
        id: PodId,
        /// The attempted operation.
        attempt: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl ControlError {
    /// No reply in this time, which is rounded to seconds; at least 1: "within 0 s" would say nothing.
    pub(super) fn silent(id: PodId, waited: Duration) -> Self {
        let seconds = waited.saturating_add(Duration::from_millis(500)).as_secs().max(1);
        Self::Silent { id, seconds }
    }
}

impl Kind for ControlError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Connect { source, .. } | Self::Io { source, .. } => match ErrorKind::of_io(source) {
                denied @ ErrorKind::Denied => denied,
                _ => ErrorKind::Unavailable,
            },
            Self::Silent { .. } | Self::Stopped { .. } | Self::Closed(_) => ErrorKind::Unavailable,
            Self::TooLong { .. } => ErrorKind::Invalid,
            Self::Garbled { .. } | Self::Version { .. } => ErrorKind::Internal,
            Self::Failed { kind, .. } => *kind,
        }
    }
}

/// A connection that carries one request.
#[derive(Debug)]
pub(crate) struct Connection {
    id: PodId,
    pod_dir: PathBuf,
    fd: OwnedFd,
    /// The time that sending may take.
    send_timeout: Duration,
    /// When it was made.
    since: Instant,
}

/// What a caller makes of the reply to its request.
type ReadReply<T> = Box<dyn FnOnce(Result<(Reply, Option<OwnedFd>), ControlError>) -> T + Send>;

/// A request that was sent to a supervisor, which may have hung: no thread waits for the reply.
pub struct SentRequest<T> {
    connection: Connection,
    deadline: Deadline,
    read: ReadReply<T>,
}

impl<T> std::fmt::Debug for SentRequest<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SentRequest").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl<T> SentRequest<T> {
    /// The time limit from the request to the reply.
    pub const TIMEOUT: Duration = REPLY_TIMEOUT;

    /// Waits for the reply, at most to the end of [`Self::TIMEOUT`] from the request.
    pub fn finish(self) -> T {
        (self.read)(self.connection.receive_until(self.deadline))
    }
}

impl<T> AsFd for SentRequest<T> {
    /// Readable when the reply has come: then [`SentRequest::finish`] does not block.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

impl Engine {
    /// Connects to the supervisor of a running pod.
    pub(crate) fn connect(&self, id: PodId) -> Result<Connection, ControlError> {
        self.connect_within(id, REPLY_TIMEOUT)
    }

    /// As [`Self::connect`], with another timeout for connecting and for sending.
    pub(crate) fn connect_within(&self, id: PodId, within: Duration) -> Result<Connection, ControlError> {
        let fail = |source: rustix::io::Errno| ControlError::Connect { id, source: source.into() };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pod_dir = self.pod_dir(id);
        let dir = rustix::fs::open(&pod_dir, flags, Mode::empty()).map_err(fail)?;
        let path = format!("/proc/self/fd/{}/{}", dir.as_raw_fd(), files::CONTROL);
        let address = SocketAddrUnix::new(path.as_str()).map_err(fail)?;
        let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(fail)?;
        // Bounds connecting to a full backlog, and sending to a full buffer, each time.
        set_socket_timeout(&fd, Timeout::Send, Some(within.min(SLICE))).map_err(fail)?;
        let mut wait = SupervisorWait::new(id, &pod_dir, Deadline::after(within), within);
        loop {
            match rustix::io::retry_on_intr(|| connect(&fd, &address)) {
                Ok(()) => break,
                Err(rustix::io::Errno::AGAIN) => wait.go_on()?,
                Err(errno) => return Err(fail(errno)),
            }
        }
        Ok(Connection { id, pod_dir, fd, send_timeout: within, since: Instant::now() })
    }

    /// Sends one request and reads one reply; a `Failed` reply is an error.
    pub(crate) fn ask(&self, id: PodId, request: &Request) -> Result<(Reply, Option<OwnedFd>), ControlError> {
        let connection = self.connect(id)?;
        connection.send(request, &[])?;
        connection.receive(REPLY_TIMEOUT)
    }

    /// Sends a request with descriptors to the supervisor of a running pod; connecting takes at most `within`. `read`
    /// makes the result of the reply.
    pub(crate) fn send_request<T>(
        &self,
        id: PodId,
        request: &Request,
        fds: &[BorrowedFd<'_>],
        within: Duration,
        read: impl FnOnce(Result<(Reply, Option<OwnedFd>), ControlError>) -> T + Send + 'static,
    ) -> Result<SentRequest<T>, ControlError> {
        let connection = self.connect_within(id, within)?;
        connection.send(request, fds)?;
        Ok(SentRequest { connection, deadline: Deadline::after(SentRequest::<T>::TIMEOUT), read: Box::new(read) })
    }

    /// The supervisor's status.
    pub(crate) fn supervisor_status(&self, id: PodId) -> Result<Status, ControlError> {
        status_of(id, self.ask(id, &Request::Status)?.0)
    }
}

fn status_of(id: PodId, answer: Reply) -> Result<Status, ControlError> {
    match answer {
        Reply::Status(status) if status.version > gantry_contract::VERSION => {
            Err(ControlError::Version { id, theirs: status.version, ours: gantry_contract::VERSION })
        }
        Reply::Status(status) => Ok(status),
        other => Err(unexpected(id, &other)),
    }
}

/// A reply that does not belong to the request.
pub(crate) fn unexpected(id: PodId, answer: &Reply) -> ControlError {
    let reply = match answer {
        Reply::Done => "done",
        Reply::Status(_) => "the status",
        Reply::Started { .. } => "the start of a program",
        Reply::Ended { .. } => "the end of a program",
        Reply::LimitsUpdated { .. } => "changed limits",
        Reply::AppStarted(_) => "the start of an app",
        Reply::Health(_) => "the health of an app",
        Reply::Failed(_) => "a failure",
    };
    ControlError::Garbled { id, why: format!("it does not belong to the request ({reply})") }
}

impl Connection {
    /// Sends the request, and descriptors with it.
    pub(crate) fn send(&self, request: &Request, fds: &[BorrowedFd<'_>]) -> Result<(), ControlError> {
        let id = self.id;
        let failed = |source| ControlError::Io { id, attempt: "write a request to", source };
        let mut bytes = serde_json::to_vec(request).map_err(|error| failed(error.into()))?;
        if bytes.len() > MAX_LONG_REQUEST {
            return Err(ControlError::TooLong { id, bytes: bytes.len() });
        }
        let mut long = None;
        if bytes.len() > MAX_MESSAGE {
            long = Some(in_memory("request", &bytes).map_err(failed)?);
            bytes = serde_json::to_vec(&Request::Long { bytes: bytes.len() }).map_err(|error| failed(error.into()))?;
        }
        let fds: Vec<BorrowedFd<'_>> = long.iter().map(AsFd::as_fd).chain(fds.iter().copied()).collect();
        let mut space = vec![MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(fds.len()))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            let source = io::Error::from(io::ErrorKind::InvalidInput);
            return Err(ControlError::Io { id, attempt: "pass descriptors to", source });
        }
        let message = [IoSlice::new(&bytes)];
        let within = self.send_timeout;
        let mut wait = SupervisorWait::new(id, &self.pod_dir, Deadline::after(within), within);
        loop {
            match rustix::io::retry_on_intr(|| sendmsg(&self.fd, &message, &mut control, SendFlags::NOSIGNAL)) {
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::AGAIN) => wait.go_on()?,
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(ControlError::Closed(id)),
                Err(errno) => return Err(ControlError::Io { id, attempt: "send a request to", source: errno.into() }),
            }
        }
    }

    /// The next reply, within the timeout; a `Failed` reply is an error.
    pub(crate) fn receive(&self, within: Duration) -> Result<(Reply, Option<OwnedFd>), ControlError> {
        self.receive_until(Deadline::after(within))
    }

    /// The reply to [`Request::Status`], before the deadline.
    pub(crate) fn receive_status(&self, deadline: Deadline) -> Result<Status, ControlError> {
        status_of(self.id, self.receive_until(deadline)?.0)
    }

    /// The next reply, without a deadline: a program may run for ever, also while its supervisor is stopped.
    pub(crate) fn receive_whenever(&self) -> Result<(Reply, Option<OwnedFd>), ControlError> {
        process::readable(&[self.fd.as_fd()], Deadline::NEVER).map_err(|source| self.unreadable(source))?;
        self.read_reply()
    }

    /// The next reply, before the deadline; a `Failed` reply is an error.
    pub(crate) fn receive_until(&self, deadline: Deadline) -> Result<(Reply, Option<OwnedFd>), ControlError> {
        // A caller that has waited by itself looks without a timeout.
        let timeout = Some(deadline.duration()).filter(|timeout| !timeout.is_zero());
        let limit = timeout.unwrap_or_else(|| self.since.elapsed());
        let mut wait = SupervisorWait::new(self.id, &self.pod_dir, deadline, limit);
        while process::readable(&[self.fd.as_fd()], wait.slice()).map_err(|source| self.unreadable(source))?.is_none() {
            wait.go_on()?;
        }
        self.read_reply()
    }

    fn unreadable(&self, source: io::Error) -> ControlError {
        ControlError::Io { id: self.id, attempt: "receive from", source }
    }

    /// The reply that has come; a `Failed` reply is an error.
    fn read_reply(&self) -> Result<(Reply, Option<OwnedFd>), ControlError> {
        let id = self.id;
        let failed = |errno| match errno {
            rustix::io::Errno::CONNRESET => ControlError::Closed(id),
            errno => self.unreadable(errno.into()),
        };
        // Most replies are short: zeroing 128 KiB costs more than asking for the length.
        let (_, length) = rustix::io::retry_on_intr(|| {
            recv(&self.fd, &mut [0u8; 0][..], RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT)
        })
        .map_err(failed)?;
        let mut bytes = vec![0u8; length.min(MAX_MESSAGE)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let got =
            rustix::io::retry_on_intr(|| recvmsg(&self.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags))
                .map_err(failed)?;
        // Every received descriptor is owned from here on, expected or not.
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<_>>()),
                _ => None,
            })
            .flatten()
            .collect();
        if got.bytes == 0 {
            return Err(ControlError::Closed(id));
        }
        if got.flags.contains(ReturnFlags::TRUNC) {
            return Err(ControlError::Garbled { id, why: "it is too long".to_owned() });
        }
        match serde_json::from_slice(&bytes[..got.bytes]) {
            Ok(Reply::Failed(failure)) => {
                Err(ControlError::Failed { kind: failure.kind, message: printable(&failure.message) })
            }
            Ok(answer) => Ok((answer, fds.into_iter().next())),
            Err(error) => Err(ControlError::Garbled { id, why: error.to_string() }),
        }
    }
}

impl AsFd for Connection {
    /// Readable when a reply has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_contract::Failure;
    use rustix::net::socketpair;

    fn pair() -> (Connection, OwnedFd) {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (id, since) = (PodId::from_random([1; 16]), Instant::now());
        (Connection { id, pod_dir: PathBuf::new(), fd: ours, send_timeout: REPLY_TIMEOUT, since }, theirs)
    }

    fn answer(to: &OwnedFd, answer: &Reply) {
        rustix::io::write(to, &serde_json::to_vec(answer).unwrap()).unwrap();
    }

    #[test]
    fn replies_and_rejections_are_decoded() {
        let (connection, theirs) = pair();
        answer(&theirs, &Reply::Started { pid: 7 });
        assert_eq!(connection.receive(REPLY_TIMEOUT).unwrap().0, Reply::Started { pid: 7 });
        let message = "no\x1b[2J such app".to_owned();
        answer(&theirs, &Reply::Failed(Failure { kind: ErrorKind::NotFound, message, app: None }));
        let error = connection.receive(REPLY_TIMEOUT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!error.to_string().contains('\x1b'));
        rustix::io::write(&theirs, b"nonsense").unwrap();
        assert!(matches!(connection.receive(REPLY_TIMEOUT), Err(ControlError::Garbled { .. })));
        drop(theirs);
        assert!(matches!(connection.receive(REPLY_TIMEOUT), Err(ControlError::Closed(_))));
    }

    #[test]
    fn a_missing_reply_times_out() {
        let (connection, _theirs) = pair();
        let error = connection.receive(Duration::from_millis(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains(" within 1 s;"), "{error}");
    }

    #[test]
    fn silence_is_reported_with_the_time_waited() {
        let (connection, _theirs) = pair();
        let since = connection.since.checked_sub(Duration::from_millis(15_020)).unwrap();
        let error = Connection { since, ..connection }.receive(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains(" within 15 s;"), "{error}");
        for (waited, want) in [(0, 1), (1_400, 1), (9_970, 10), (10_000, 10)] {
            let error = ControlError::silent(PodId::from_random([1; 16]), Duration::from_millis(waited));
            assert!(matches!(error, ControlError::Silent { seconds, .. } if seconds == want), "{waited}: {error}");
        }
    }

    #[test]
    fn descriptors_are_passed() {
        let (connection, theirs) = pair();
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        let (id, pod_dir, since) = (connection.id, PathBuf::new(), connection.since);
        let other = Connection { id, pod_dir, fd: theirs, send_timeout: REPLY_TIMEOUT, since };
        other.send(&Request::Status, &[writing.as_fd(), writing.as_fd(), writing.as_fd()]).unwrap();
        drop(writing);
        let mut bytes = vec![0; 100];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&connection.fd, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let got: Vec<OwnedFd> = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds.collect::<Vec<_>>()),
                _ => None,
            })
            .flatten()
            .collect();
        assert_eq!(got.len(), 3);
        rustix::io::write(&got[0], b"x").unwrap();
        assert_eq!(rustix::io::read(&reading, &mut [0u8; 4]).unwrap(), 1);
    }

    #[test]
    fn long_requests_are_passed_as_files() {
        let (connection, theirs) = pair();
        let request = Request::Attach { app: "x".repeat(MAX_MESSAGE), keep: false };
        connection.send(&request, &[]).unwrap();
        let mut message = [0; 100];
        let length = rustix::io::read(&theirs, &mut message).unwrap();
        let bytes = serde_json::to_vec(&request).unwrap().len();
        assert_eq!(serde_json::from_slice::<Request>(&message[..length]).unwrap(), Request::Long { bytes });
        let request = Request::Attach { app: "x".repeat(MAX_LONG_REQUEST), keep: false };
        assert_eq!(connection.send(&request, &[]).unwrap_err().kind(), ErrorKind::Invalid);
    }
}
