//! Reads the live output of a running pod's apps for a foreground (frames of [`gantry_contract::output`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gantry_contract::control::{AppStatus, Reply, Request};
use gantry_contract::output::{HEADER_LEN, Header, Kind as Frame};
use gantry_model::systemd::MAX_NOTIFICATION;
use gantry_model::{AppName, ErrorKind, Kind, PodId};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;
use thiserror::Error;

use crate::Engine;
use crate::error::need_root;
use crate::pods::control::{CONNECT_TIMEOUT, ControlError, REPLY_TIMEOUT, SentRequest, unexpected};
use crate::pods::exec::{ExecError, running};

/// The requested size of the pipe. The kernel may grant less.
const PIPE_SIZE: usize = 256 << 10;

/// Whether the caller that starts a pod prints the apps' output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Show {
    /// The output goes to the logs only.
    No,
    /// `Running::output` has the output from the first byte.
    Output {
        /// The size of the caller's terminal, if there is one: rows and columns.
        terminal_size: Option<(u16, u16)>,
    },
}

/// The output ended too early.
#[derive(Debug, Error)]
pub enum OutputError {
    /// The supervisor ended before it had written everything, or gave up on a reader that stopped reading.
    #[error("output of pod {0} was lost: its supervisor ended before all of it was read")]
    Cut(PodId),
    /// The stream is malformed.
    #[error("the output of pod {0} is not understood; are gantry and gantry-stage1 of the same version?")]
    Garbled(PodId),
    /// Reading failed.
    #[error("cannot read the output of pod {id}")]
    Io {
        /// The pod.
        id: PodId,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl Kind for OutputError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Cut(_) => ErrorKind::Unavailable,
            Self::Garbled(_) => ErrorKind::Internal,
            Self::Io { source, .. } => ErrorKind::of_io(source),
        }
    }
}

/// Some bytes of an app's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The app's number in the pod ([`Engine::output_apps`]).
    pub app: usize,
    /// Whether they are from standard error.
    pub stderr: bool,
    /// The bytes. Lines and characters may be cut anywhere.
    pub bytes: &'a [u8],
}

/// The output of all apps of a pod, or of one. While it is not read, apps that write block.
#[derive(Debug)]
pub struct OutputStream {
    id: PodId,
    pipe: OwnedFd,
    buffer: Vec<u8>,
    /// The part of the buffer that was read but not returned yet.
    filled: std::ops::Range<usize>,
    /// The current frame, and how many of its bytes have not been returned yet.
    frame: Option<(Header, usize)>,
    notifications: NotificationHandler,
}

impl AsFd for OutputStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

type HandleNotification = dyn FnMut(Notification<'_>) + Send;

/// Called with the notifications of apps.
#[derive(Default)]
struct NotificationHandler(Option<Box<HandleNotification>>);

impl std::fmt::Debug for NotificationHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("NotificationHandler").field(&self.0.is_some()).finish()
    }
}

/// A notification of an app (sd_notify(3)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notification<'a> {
    /// The app's number in the pod ([`Engine::output_apps`]).
    pub app: usize,
    /// `NAME=VALUE` lines with names that the supervisor knows.
    pub text: &'a str,
}

impl OutputStream {
    /// A stream, and the descriptor that the supervisor writes it to.
    pub(crate) fn new(id: PodId) -> io::Result<(Self, OwnedFd)> {
        let (pipe, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Fewer switches between the processes; a user at the limit for pipes gets a smaller one.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, PIPE_SIZE);
        Ok((
            Self {
                id,
                pipe,
                buffer: vec![0; 64 << 10],
                filled: 0..0,
                frame: None,
                notifications: NotificationHandler::default(),
            },
            writer,
        ))
    }

    /// Passes the notifications of apps to `handle`, while the output is read. They are discarded otherwise.
    pub fn on_notification(&mut self, handle: impl FnMut(Notification<'_>) + Send + 'static) {
        self.notifications.0 = Some(Box::new(handle));
    }

    /// Makes [`Self::next_chunk`] fail with an error of the kind `WouldBlock` when no more is available; it can be
    /// called again when the descriptor ([`AsFd`]) is readable.
    ///
    /// # Errors
    /// [`OutputError::Io`].
    pub fn set_nonblocking(&self) -> Result<(), OutputError> {
        rustix::io::ioctl_fionbio(&self.pipe, true)
            .map_err(|errno| OutputError::Io { id: self.id, source: errno.into() })
    }

    /// The next bytes, if any are available. `None`: every app has ended and all output was read.
    ///
    /// # Errors
    /// [`OutputError`].
    pub fn next_chunk(&mut self) -> Result<Option<Chunk<'_>>, OutputError> {
        loop {
            match self.frame {
                Some((Header { kind: Frame::End, .. }, _)) => return Ok(None),
                Some((header @ Header { kind: Frame::Notification, .. }, left)) if left > 0 => {
                    self.read_notification(header, left)?;
                }
                Some((header, left)) if left > 0 => {
                    if self.filled.is_empty() {
                        self.fill()?;
                    }
                    let count = left.min(self.filled.len());
                    let start = self.filled.start;
                    self.filled.start += count;
                    self.frame = Some((header, left - count));
                    let bytes = &self.buffer[start..start + count];
                    let (app, stderr) = (header.app.into(), header.kind == Frame::Stderr);
                    return Ok(Some(Chunk { app, stderr, bytes }));
                }
                _ => {
                    while self.filled.len() < HEADER_LEN {
                        self.fill()?;
                    }
                    let head = self.buffer[self.filled.clone()].first_chunk().and_then(|head| Header::decode(*head));
                    let header = head.ok_or(OutputError::Garbled(self.id))?;
                    self.filled.start += HEADER_LEN;
                    self.frame = Some((header, usize::try_from(header.len).unwrap_or(usize::MAX)));
                }
            }
        }
    }

    /// Waits for more output, for `timeout` at most. Returns whether [`Self::next_chunk`] has something to return:
    /// output, the end of the stream, or an error.
    ///
    /// # Errors
    /// [`OutputError::Io`].
    pub fn wait_readable(&self, timeout: Duration) -> Result<bool, OutputError> {
        if !self.filled.is_empty() || matches!(self.frame, Some((Header { kind: Frame::End, .. }, _))) {
            return Ok(true);
        }
        let mut fds = [PollFd::new(&self.pipe, PollFlags::IN)];
        // `None` waits without a limit: the timeout does not fit into a Timespec.
        let timeout = Timespec::try_from(timeout).ok();
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(errno) => Err(OutputError::Io { id: self.id, source: errno.into() }),
        }
    }

    /// Reads a whole notification and passes it on. Its bytes are never returned as output.
    fn read_notification(&mut self, header: Header, length: usize) -> Result<(), OutputError> {
        if length > MAX_NOTIFICATION {
            return Err(OutputError::Garbled(self.id));
        }
        while self.filled.len() < length {
            self.fill()?;
        }
        let start = self.filled.start;
        self.filled.start += length;
        self.frame = None;
        if let (Some(handle), Ok(text)) =
            (&mut self.notifications.0, std::str::from_utf8(&self.buffer[start..start + length]))
        {
            handle(Notification { app: header.app.into(), text });
        }
        Ok(())
    }

    /// Appends more data from the pipe to the buffer.
    fn fill(&mut self) -> Result<(), OutputError> {
        let id = self.id;
        self.buffer.copy_within(self.filled.clone(), 0);
        self.filled = 0..self.filled.len();
        let read = rustix::io::retry_on_intr(|| rustix::io::read(&self.pipe, &mut self.buffer[self.filled.end..]));
        match read {
            Ok(0) => Err(OutputError::Cut(id)),
            Ok(count) => {
                self.filled.end += count;
                Ok(())
            }
            Err(errno) => Err(OutputError::Io { id, source: errno.into() }),
        }
    }
}

impl Engine {
    /// Subscribes to the output of a running pod's apps from now on. `None`: the supervisor is too old to send it; read
    /// the logs instead.
    ///
    /// # Errors
    /// [`ExecError`].
    pub fn output(&self, id: PodId) -> Result<Option<OutputStream>, ExecError> {
        match self.subscribe(id, &Request::Output, REPLY_TIMEOUT)?.finish() {
            Ok(stream) => Ok(Some(stream)),
            // Older supervisors answer unknown requests with this error.
            Err(ExecError::Control(ControlError::Failed { kind: ErrorKind::Invalid, .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Subscribes to the output of one app from now to its exit.
    ///
    /// # Errors
    /// [`ExecError`], also when the app does not run.
    pub fn app_output(&self, id: PodId, app: &AppName) -> Result<OutputStream, ExecError> {
        self.subscribe(id, &Request::AppOutput { app: app.to_string() }, REPLY_TIMEOUT)?.finish()
    }

    /// As [`Self::app_output`], without waiting for the reply.
    ///
    /// # Errors
    /// [`ExecError`]
    pub fn begin_app_output(
        &self,
        id: PodId,
        app: &AppName,
    ) -> Result<SentRequest<Result<OutputStream, ExecError>>, ExecError> {
        self.subscribe(id, &Request::AppOutput { app: app.to_string() }, CONNECT_TIMEOUT)
    }

    /// The apps of a running pod by their numbers in its output. The apps that a pod was started with are numbered by
    /// their places in its manifest; each app that is added gets a number that no other app of the pod has had. `None`:
    /// the supervisor is too old to number added apps.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn output_apps(&self, id: PodId) -> Result<Option<BTreeMap<usize, AppName>>, ControlError> {
        let numbered = |app: AppStatus| Some((app.number.into(), app.app.parse().ok()?));
        Ok(self.supervisor_status(id)?.apps.map(|apps| apps.into_iter().filter_map(numbered).collect()))
    }

    fn subscribe(
        &self,
        id: PodId,
        request: &Request,
        connect_timeout: Duration,
    ) -> Result<SentRequest<Result<OutputStream, ExecError>>, ExecError> {
        need_root("attach to a pod")?;
        running(self.reconcile_pod(id)?)?;
        let (stream, writer) = OutputStream::new(id).map_err(|source| ControlError::Io {
            id,
            attempt: "make a pipe for the output to",
            source,
        })?;
        let read = move |reply: Result<(Reply, _), ControlError>| match reply?.0 {
            Reply::Done => Ok(stream),
            other => Err(unexpected(id, &other).into()),
        };
        Ok(self.send_request(id, request, &[writer.as_fd()], connect_timeout, read)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream() -> (OutputStream, std::fs::File) {
        let (stream, writer) = OutputStream::new(PodId::from_random([7; 16])).unwrap();
        (stream, writer.into())
    }

    fn frame(kind: Frame, app: u16, payload: &[u8]) -> Vec<u8> {
        let header = Header { kind, app, len: payload.len() as u32 };
        [&header.encode()[..], payload].concat()
    }

    /// App, whether it is standard error, and one chunk of its output.
    type Part = (usize, bool, Vec<u8>);

    /// The received output, and how it ended.
    fn read(stream: &mut OutputStream) -> (Vec<Part>, Result<(), OutputError>) {
        let mut all: Vec<Part> = Vec::new();
        loop {
            match stream.next_chunk() {
                Ok(None) => return (all, Ok(())),
                Err(error) => return (all, Err(error)),
                Ok(Some(Chunk { app, stderr, bytes })) => match all.last_mut() {
                    Some(last) if (last.0, last.1) == (app, stderr) => last.2.extend_from_slice(bytes),
                    _ => all.push((app, stderr, bytes.to_vec())),
                },
            }
        }
    }

    #[test]
    fn split_frames_are_reassembled() {
        let big: Vec<u8> = (0..60_000u32).map(|i| (i / 3) as u8).collect();
        let all = [
            frame(Frame::Stdout, 0, b"one\n"),
            frame(Frame::Stderr, 0, b""),
            frame(Frame::Stderr, 2, &big),
            frame(Frame::End, 0, b""),
        ]
        .concat();
        for size in [1, 7, 8, 9, 4096, all.len()] {
            let (mut stream, mut writer) = stream();
            let (bytes, want) = (all.clone(), vec![(0, false, b"one\n".to_vec()), (2, true, big.clone())]);
            let writing = std::thread::spawn(move || {
                for piece in bytes.chunks(size) {
                    io::Write::write_all(&mut writer, piece).unwrap();
                }
            });
            let (got, end) = read(&mut stream);
            writing.join().unwrap();
            assert!(got == want && end.is_ok(), "pieces of {size}");
        }
    }

    #[test]
    fn a_stream_without_end_frame_is_truncated() {
        let whole = frame(Frame::Stdout, 0, b"some");
        for kept in [0, 3, HEADER_LEN, HEADER_LEN + 2, whole.len()] {
            let (mut stream, mut writer) = stream();
            io::Write::write_all(&mut writer, &whole[..kept]).unwrap();
            drop(writer);
            let (got, end) = read(&mut stream);
            let text: Vec<u8> = got.into_iter().flat_map(|(_, _, bytes)| bytes).collect();
            assert_eq!(text, whole[..kept].get(HEADER_LEN..).unwrap_or_default());
            assert!(matches!(end, Err(OutputError::Cut(_))), "{kept}: {end:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn parser_never_panics(bytes: Vec<u8>) {
            let (mut stream, mut writer) = stream();
            io::Write::write_all(&mut writer, &bytes).unwrap();
            drop(writer);
            let (got, _) = read(&mut stream);
            proptest::prop_assert!(got.iter().map(|(_, _, bytes)| bytes.len()).sum::<usize>() <= bytes.len());
        }
    }
}
