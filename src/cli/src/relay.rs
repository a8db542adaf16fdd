//! Copies bytes between the caller's standard streams and those of a process in a pod, in one poll loop.
//!
//! A process in a pod inherits no descriptor of the caller but `/dev/null`. Through `/proc/self/fd` it could open a
//! file, terminal or pipe again with other access rights: read what others write into the caller's standard output, or
//! write into its standard input. It could make a shared description non-blocking. A socket belongs to the host's
//! network namespace, which ioctls on it show and, with CAP_NET_ADMIN, change.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gantry_host::file_id::FileId;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::terminal::{self, DetachFilter, DetachKeys};

const CHUNK: usize = 64 << 10;

/// The most that is spliced at once: a pipe that its owner enlarged holds this much.
const SPLICE: usize = 1 << 20;

/// The time for a program to take what was typed before the detach keys. One that reads nothing does not hold the
/// caller for longer.
const FLUSH_TIMEOUT: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };

/// Whether this is the null device, which alone a process in a pod may inherit.
fn is_null(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let stat = fstat(fd)?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    Ok(is_device && (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == (1, 3))
}

fn is_pipe(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}

/// Whether both are one pipe, terminal or socket. One file may be open with two positions.
fn is_same_stream(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> io::Result<bool> {
    let (one, other) = (fstat(one)?, fstat(other)?);
    let is_file = FileType::from_raw_mode(one.st_mode) == FileType::RegularFile;
    Ok(!is_file && FileId::from(&one) == FileId::from(&other))
}

/// Copies bytes in one direction.
pub(crate) struct Flow {
    from: Option<OwnedFd>,
    to: Option<OwnedFd>,
    /// Bytes that were read but not written yet.
    pending: Vec<u8>,
    keys: Option<DetachFilter>,
    to_app: bool,
    /// Whether `to` is a terminal, whose input does not end when `to` is closed.
    to_terminal: bool,
    /// The byte passed on last.
    last: Option<u8>,
    /// Whether both are pipes, between which the kernel moves the bytes, never blocking.
    is_spliced: bool,
    /// Whether `to` was full at the last attempt to splice.
    is_full: bool,
    /// The number of bytes taken from `from`.
    taken: usize,
}

impl Flow {
    /// From the app to the caller.
    pub(crate) fn out(from: OwnedFd, to: OwnedFd) -> Self {
        Self {
            is_spliced: is_pipe(&from) && is_pipe(&to),
            from: Some(from),
            to: Some(to),
            pending: Vec::new(),
            keys: None,
            to_app: false,
            to_terminal: false,
            last: None,
            is_full: false,
            taken: 0,
        }
    }

    /// From the caller to a pipe of the app.
    pub(crate) fn input(from: OwnedFd, to: OwnedFd) -> Self {
        Self { to_app: true, ..Self::out(from, to) }
    }

    /// From the caller to a terminal of the app. With `keys`, the caller can detach by typing them.
    pub(crate) fn typed(from: OwnedFd, to: OwnedFd, keys: Option<DetachKeys>) -> Self {
        Self { keys: keys.map(DetachFilter::new), to_terminal: true, is_spliced: false, ..Self::input(from, to) }
    }

    /// The descriptor and event to wait for; `None` after the end.
    fn waits(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        if self.pending.is_empty() && !self.is_full {
            self.from.as_ref().map(|fd| (fd.as_fd(), PollFlags::IN))
        } else {
            self.to.as_ref().map(|fd| (fd.as_fd(), PollFlags::OUT))
        }
    }

    /// The pipe whose reader may leave while nothing is there to be passed on.
    fn watched_sink(&self) -> Option<BorrowedFd<'_>> {
        self.to.as_ref().filter(|_| self.is_spliced && !self.is_full).map(AsFd::as_fd)
    }

    /// Reads or writes once. Returns whether the caller detaches.
    fn advance(&mut self) -> io::Result<bool> {
        match (self.is_spliced, self.pending.is_empty()) {
            (true, _) => self.splice().map(|()| false),
            (false, true) => self.read(),
            (false, false) => self.write().map(|()| false),
        }
    }

    fn splice(&mut self) -> io::Result<()> {
        let (Some(from), Some(to)) = (&self.from, &self.to) else { return Ok(()) };
        match splice(from, None, to, None, SPLICE, SpliceFlags::NONBLOCK) {
            Ok(0) => self.close(),
            Ok(count) => {
                self.taken = self.taken.saturating_add(count);
                self.is_full = false;
            }
            // The end that was waited for is ready, so it is the other one that is not.
            Err(Errno::AGAIN) => self.is_full = !self.is_full,
            Err(Errno::INTR) => {}
            Err(Errno::PIPE) => self.close(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Ends the flow. To the program whose output it is, this is SIGPIPE; to the one that reads, the end of its input.
    fn close(&mut self) {
        self.pending.clear();
        self.from = None;
        self.to = None;
        self.is_full = false;
    }

    fn read(&mut self) -> io::Result<bool> {
        let Some(from) = &self.from else { return Ok(false) };
        let mut chunk = vec![0; CHUNK];
        match rustix::io::read(from, &mut chunk) {
            Ok(0) => self.end(),
            Err(error) if is_hangup(error, from) => self.end(),
            Ok(count) => {
                chunk.truncate(count);
                self.taken = self.taken.saturating_add(count);
                let (passed, detach) = match &mut self.keys {
                    Some(keys) => keys.pass(&chunk),
                    None => (chunk, false),
                };
                self.last = passed.last().copied().or(self.last);
                self.pending = passed;
                return Ok(detach);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(false)
    }

    fn write(&mut self) -> io::Result<()> {
        let Some(to) = &self.to else {
            self.pending.clear();
            return Ok(());
        };
        match rustix::io::write(to, &self.pending) {
            Ok(count) => {
                self.pending.drain(..count);
                if self.from.is_none() && self.pending.is_empty() {
                    self.to = None;
                }
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) if is_hangup(error, to) => self.close(),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// The source has ended. Pending bytes are still written before the end is passed on.
    fn end(&mut self) {
        self.from = None;
        if self.to_terminal {
            self.pending.extend_from_slice(terminal::end_of_input(self.last));
        }
        if self.pending.is_empty() {
            self.to = None;
        }
    }

    /// Writes the pending bytes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.pending.is_empty()
            && let Some(to) = &self.to
        {
            let mut fds = [PollFd::from_borrowed_fd(to.as_fd(), PollFlags::OUT)];
            match poll(&mut fds, Some(&FLUSH_TIMEOUT)) {
                Ok(0) => break,
                Ok(_) => self.write()?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Copies what can be read at once. The process has exited, but its children may keep the other end open, and write
    /// to it for ever: only writes to the caller are waited for, and no more is read than can be there at the exit.
    fn drain(&mut self) -> io::Result<()> {
        let most = self.taken.saturating_add(self.from.as_ref().map_or(0, available));
        while let Some((fd, flags)) = self.waits() {
            let reads = flags == PollFlags::IN;
            if reads && self.taken >= most {
                break;
            }
            let mut fds = [PollFd::from_borrowed_fd(fd, flags)];
            match poll(&mut fds, reads.then_some(&NOW)) {
                Ok(0) => break,
                Ok(_) => {
                    self.advance()?;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Whether an error says that the other end has gone: of a pipe or a socket; or of a terminal, whose other side no
/// process has open, or which hung up. EIO of a file is an error of its disk.
fn is_hangup(error: Errno, fd: &OwnedFd) -> bool {
    match error {
        Errno::PIPE | Errno::CONNRESET => true,
        Errno::IO => fstat(fd).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice),
        _ => false,
    }
}

/// The most that can be read now. Of a terminal the kernel tells only a part, but it holds less than [`CHUNK`].
fn available(fd: &OwnedFd) -> usize {
    let told = rustix::io::ioctl_fionread(fd).unwrap_or(0);
    usize::try_from(told).unwrap_or(usize::MAX).max(CHUNK)
}

const NOW: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };

/// Standard streams for a process in a pod, and the flows between them and the caller's.
pub(crate) struct Interposed {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    pub(crate) flows: Vec<Flow>,
}

/// Creates standard streams: pipes, but where the caller's is the null device, that. Standard input is the null device
/// unless `stdin` is set. Standard output and standard error are one pipe if the caller's are one stream, so that their
/// bytes stay in order.
///
/// # Errors
/// No file descriptors are left.
pub(crate) fn interpose(stdin: bool) -> io::Result<Interposed> {
    let mut flows = Vec::new();
    let input = if stdin { inward(rustix::stdio::stdin(), &mut flows)? } else { null(OFlags::RDONLY)? };
    let stdout = outward(rustix::stdio::stdout(), &mut flows)?;
    let stderr = match is_same_stream(rustix::stdio::stdout(), rustix::stdio::stderr())? {
        true => stdout.try_clone()?,
        false => outward(rustix::stdio::stderr(), &mut flows)?,
    };
    Ok(Interposed { stdin: input, stdout, stderr, flows })
}

/// Opens `/dev/null`.
///
/// # Errors
/// No file descriptors are left.
pub(crate) fn null(flags: OFlags) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", flags | OFlags::CLOEXEC, Mode::empty())?)
}

fn inward(ours: BorrowedFd<'_>, flows: &mut Vec<Flow>) -> io::Result<OwnedFd> {
    if is_null(ours)? {
        return ours.try_clone_to_owned();
    }
    let (theirs, sink) = pipe_with(PipeFlags::CLOEXEC)?;
    // A full pipe must not block the flows in the other direction.
    ioctl_fionbio(&sink, true)?;
    flows.push(Flow::input(ours.try_clone_to_owned()?, sink));
    Ok(theirs)
}

fn outward(ours: BorrowedFd<'_>, flows: &mut Vec<Flow>) -> io::Result<OwnedFd> {
    if is_null(ours)? {
        return ours.try_clone_to_owned();
    }
    let (source, theirs) = pipe_with(PipeFlags::CLOEXEC)?;
    flows.push(Flow::out(source, ours.try_clone_to_owned()?));
    Ok(theirs)
}

/// The event that ended [`relay`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RelayEvent {
    /// `end` became readable. All output available by then has been copied.
    Ended,
    /// The caller typed the detach keys. What was typed before them has been passed on.
    Detached,
    /// `other` became readable.
    OtherReady,
}

/// Copies bytes until `end` or `other` is readable or the caller detaches.
///
/// # Errors
/// A descriptor failed; its pending bytes are lost.
pub(crate) fn relay(flows: &mut [Flow], end: BorrowedFd<'_>, other: Option<BorrowedFd<'_>>) -> io::Result<RelayEvent> {
    loop {
        let mut fds = vec![PollFd::from_borrowed_fd(end, PollFlags::IN)];
        let mut whose = vec![None];
        if let Some(other) = other {
            fds.push(PollFd::from_borrowed_fd(other, PollFlags::IN));
            whose.push(None);
        }
        let first_flow = fds.len();
        for (i, flow) in flows.iter().enumerate() {
            if let Some((fd, flags)) = flow.waits() {
                fds.push(PollFd::from_borrowed_fd(fd, flags));
                whose.push(Some((i, false)));
            }
            if let Some(sink) = flow.watched_sink() {
                fds.push(PollFd::from_borrowed_fd(sink, PollFlags::empty()));
                whose.push(Some((i, true)));
            }
        }
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (flow, _) in whose.into_iter().zip(&ready).filter(|(_, ready)| **ready) {
            match flow {
                Some((flow, true)) => flows[flow].close(),
                Some((flow, false)) if flows[flow].advance()? => {
                    flows[flow].flush()?;
                    return Ok(RelayEvent::Detached);
                }
                Some((_, false)) | None => {}
            }
        }
        if ready[0] {
            flows.iter_mut().filter(|flow| !flow.to_app).try_for_each(Flow::drain)?;
            return Ok(RelayEvent::Ended);
        }
        if first_flow > 1 && ready[1] {
            return Ok(RelayEvent::OtherReady);
        }
    }
}

/// Whether a short write would not block now.
pub(crate) fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&NOW)).is_ok_and(|ready| ready > 0)
}

/// Standard output without a buffer, written by [`write_all`]: std's stops at a full pipe that is non-blocking.
pub(crate) struct Stdout;

impl io::Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        write_all(rustix::stdio::stdout(), bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all of `bytes` to standard output or standard error, as [`write_all`]; without std's buffer, which would hold
/// back pieces without a newline.
///
/// # Errors
/// Those of [`write_all`].
pub(crate) fn write_output(stderr: bool, bytes: &[u8]) -> io::Result<()> {
    let to: BorrowedFd<'_> = if stderr { rustix::stdio::stderr() } else { rustix::stdio::stdout() };
    write_all(to, bytes)
}

/// Writes all of `bytes`. Waits if another process that shares the descriptor has made it non-blocking.
///
/// # Errors
/// The reader is gone, or the descriptor failed.
pub(crate) fn write_all(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
                match poll(&mut fds, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read as _, Seek as _, Write as _};

    #[test]
    fn only_the_null_device_is_passed() {
        let (pipe, _) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let directory = std::fs::File::open("/").unwrap();
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert!(is_null(null(OFlags::RDONLY).unwrap().as_fd()).unwrap());
        for refused in [file.as_fd(), directory.as_fd(), zero.as_fd(), socket.as_fd(), pipe.as_fd()] {
            assert!(!is_null(refused).unwrap());
        }
    }

    #[test]
    fn a_slow_reader_gets_every_byte() {
        let (source, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (reader, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (end, ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let bytes: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let sent = bytes.clone();
        let program = std::thread::spawn(move || {
            std::fs::File::from(theirs.try_clone().unwrap()).write_all(&sent).unwrap();
            drop(ender);
            // Stays open, as with a child left behind.
            theirs
        });
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            std::fs::File::from(reader).read_to_end(&mut got).unwrap();
            got
        });
        let mut flows = [Flow::out(source, sink)];
        assert!(flows[0].is_spliced);
        assert_eq!(relay(&mut flows, end.as_fd(), None).unwrap(), RelayEvent::Ended);
        drop(flows);
        assert_eq!(reader.join().unwrap(), bytes);
        drop(program.join().unwrap());
    }

    /// A process's memory, whose first page is not mapped, plays a failing disk.
    #[test]
    fn errors_of_a_disk_are_no_end() {
        let disk = || OwnedFd::from(std::fs::File::options().read(true).write(true).open("/proc/self/mem").unwrap());
        let (end, _ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (source, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        write_all(theirs.as_fd(), b"output").unwrap();
        let (_reader, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        for flow in [Flow::out(source, disk()), Flow::input(disk(), sink)] {
            let error = relay(&mut [flow], end.as_fd(), None).unwrap_err();
            assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
        }
    }

    #[test]
    fn a_reader_that_leaves_ends_the_output() {
        let (source, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (reader, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (end, ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let program = std::thread::spawn(move || {
            // Reports an error when no process can read the pipe any more, without a write.
            let mut fds = [PollFd::from_borrowed_fd(theirs.as_fd(), PollFlags::empty())];
            poll(&mut fds, None).unwrap();
            drop(ender);
            fds[0].revents().contains(PollFlags::ERR)
        });
        drop(reader);
        let mut flows = [Flow::out(source, sink)];
        assert_eq!(relay(&mut flows, end.as_fd(), None).unwrap(), RelayEvent::Ended);
        assert!(program.join().unwrap());
    }

    #[test]
    fn output_before_the_end_is_relayed() {
        let (source, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (end, ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut copy = tempfile::tempfile().unwrap();
        let mut flows = [Flow::out(source, copy.try_clone().unwrap().into())];
        let bytes: Vec<u8> = (0..50_000u32).map(|i| i as u8).collect();
        std::fs::File::from(theirs.try_clone().unwrap()).write_all(&bytes).unwrap();
        // `theirs` stays open, as with a child left behind, and still the relay returns.
        drop(ender);
        assert_eq!(relay(&mut flows, end.as_fd(), None).unwrap(), RelayEvent::Ended);
        let mut got = Vec::new();
        copy.rewind().unwrap();
        copy.read_to_end(&mut got).unwrap();
        assert_eq!(got, bytes);
        drop(theirs);
    }

    /// Writes until the reading end closes.
    fn flood(output: OwnedFd) -> std::thread::JoinHandle<()> {
        let mut output = std::fs::File::from(output);
        std::thread::spawn(move || while output.write_all(&[b'y'; 4096]).is_ok() {})
    }

    #[test]
    fn a_child_left_behind_cannot_delay_the_end() {
        let (source, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (end, ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(ender);
        let child = flood(theirs);
        let mut flows = [Flow::out(source, null(OFlags::WRONLY).unwrap())];
        assert_eq!(relay(&mut flows, end.as_fd(), None).unwrap(), RelayEvent::Ended);
        drop(flows);
        child.join().unwrap();
    }

    #[test]
    fn children_cannot_delay_the_end_of_splicing() {
        let (source, theirs) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (reader, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (end, ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        drop(ender);
        let child = flood(theirs);
        let reader = std::thread::spawn(move || io::copy(&mut std::fs::File::from(reader), &mut io::sink()).unwrap());
        let mut flows = [Flow::out(source, sink)];
        assert_eq!(relay(&mut flows, end.as_fd(), None).unwrap(), RelayEvent::Ended);
        drop(flows);
        child.join().unwrap();
        reader.join().unwrap();
    }

    #[test]
    fn a_nonblocking_output_gets_every_byte() {
        let (source, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        ioctl_fionbio(&sink, true).unwrap();
        let writer = std::thread::spawn(move || write_all(sink.as_fd(), &vec![b'z'; 300_000]).unwrap());
        let mut got = Vec::new();
        std::fs::File::from(source).read_to_end(&mut got).unwrap();
        writer.join().unwrap();
        assert_eq!(got.len(), 300_000);
    }

    /// What the program gets when the caller types this at once, and how the relay ends.
    fn typed(text: &[u8], keys: Option<DetachKeys>) -> (Vec<u8>, RelayEvent) {
        let (source, typist) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        std::fs::File::from(typist).write_all(text).unwrap();
        let (program, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        ioctl_fionbio(&sink, true).unwrap();
        let (end, ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let program = std::thread::spawn(move || {
            let mut got = Vec::new();
            std::fs::File::from(program).read_to_end(&mut got).unwrap();
            drop(ender);
            got
        });
        let mut flows = [Flow::typed(source, sink, keys)];
        let event = relay(&mut flows, end.as_fd(), None).unwrap();
        drop(flows);
        (program.join().unwrap(), event)
    }

    #[test]
    fn input_before_detach_keys_is_passed_on() {
        let (got, event) = typed(b"first line\n\x10\x11more", Some(DetachKeys::default()));
        assert_eq!((got.as_slice(), event), (&b"first line\n"[..], RelayEvent::Detached));
    }

    #[test]
    fn the_end_of_terminal_input_is_typed() {
        for (text, want) in [(&b""[..], &b"\x04"[..]), (b"line\n", b"line\n\x04"), (b"part", b"part\x04\x04")] {
            let (got, event) = typed(text, None);
            assert_eq!((got.as_slice(), event), (want, RelayEvent::Ended), "{text:?}");
        }
    }

    #[test]
    fn output_flows_while_input_is_blocked() {
        let mut input = tempfile::tempfile().unwrap();
        input.write_all(&vec![b'x'; 300_000]).unwrap();
        input.rewind().unwrap();
        let (app_in, sink) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        ioctl_fionbio(&sink, true).unwrap();
        let (source, app_out) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let (end, ender) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let app = std::thread::spawn(move || {
            // Writes more than a pipe holds before it reads anything: a blocking relay would deadlock.
            std::fs::File::from(app_out).write_all(&vec![b'y'; 300_000]).unwrap();
            let mut read = Vec::new();
            std::fs::File::from(app_in).read_to_end(&mut read).unwrap();
            drop(ender);
            read.len()
        });
        let mut copy = tempfile::tempfile().unwrap();
        let mut flows = [Flow::input(input.into(), sink), Flow::out(source, copy.try_clone().unwrap().into())];
        assert_eq!(relay(&mut flows, end.as_fd(), None).unwrap(), RelayEvent::Ended);
        assert_eq!(app.join().unwrap(), 300_000);
        assert_eq!(copy.seek(io::SeekFrom::End(0)).unwrap(), 300_000);
    }
}
