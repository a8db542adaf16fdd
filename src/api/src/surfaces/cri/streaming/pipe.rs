//! Pipes and terminals of programs, for tasks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An end of a pipe, or the master of a terminal.
#[derive(Debug)]
pub(super) struct AsyncPipe(AsyncFd<Watched<OwnedFd>>);

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TerminalSize {
    /// Characters of a line.
    pub(super) columns: u16,
    /// Lines.
    pub(super) rows: u16,
}

impl AsyncPipe {
    /// Makes the descriptor non-blocking and watches it.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self(watch(fd, Interest::READABLE | Interest::WRITABLE)?))
    }

    /// Reads some bytes; 0 at the end.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.async_io(Interest::READABLE, |fd| Ok(rustix::io::read(&fd.0, &mut *buffer)?)).await;
        match read {
            // The master of a terminal that no process has open.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => Ok(0),
            other => other,
        }
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// The kernel's error: no process reads any more.
    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let count = self.0.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(&fd.0, bytes)?)).await?;
            bytes = bytes.get(count..).unwrap_or_default();
        }
        Ok(())
    }

    /// Changes the size of the terminal; its programs receive SIGWINCH. Other files have no size.
    ///
    /// # Errors
    /// The kernel's error.
    pub(super) fn resize(&self, size: TerminalSize) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        match tcsetwinsize(&self.0.get_ref().0, size) {
            Ok(()) | Err(rustix::io::Errno::NOTTY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A descriptor that tasks wait for.
#[derive(Debug)]
pub(super) struct Watched<T>(pub(super) T);

impl<T: AsFd> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// Watches a descriptor.
///
/// # Errors
/// The kernel's error.
#[expect(deprecated, reason = "its unsafe successor demands an open descriptor, which AsFd promises")]
pub(super) fn watch<T: AsFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<Watched<T>>> {
    AsyncFd::with_interest(Watched(descriptor), interest)
}

/// A pipe that a program reads from: its end and the writing one.
///
/// # Errors
/// The kernel's error.
pub(super) fn to_program() -> io::Result<(OwnedFd, AsyncPipe)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((reader, AsyncPipe::new(writer)?))
}

/// A pipe that a program writes to: its end and the reading one.
///
/// # Errors
/// The kernel's error.
pub(super) fn from_program() -> io::Result<(OwnedFd, AsyncPipe)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((writer, AsyncPipe::new(reader)?))
}

/// The null device.
///
/// # Errors
/// The kernel's error.
pub(super) fn null() -> io::Result<OwnedFd> {
    Ok(std::fs::File::options().read(true).write(true).open("/dev/null")?.into())
}
