//! Pipes and terminals of programs, for tasks.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::dir_watch::watch_fd;

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
        rustix::io::ioctl_fionbio(&fd, true)?;
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
pub(super) fn watch<T: AsFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<Watched<T>>> {
    watch_fd(Watched(descriptor), interest)
}

/// The end of a pipe that a program reads from, and the writing one; the null device if none is wanted.
///
/// # Errors
/// The kernel's error.
pub(super) fn to_program_or_null(is_wanted: bool) -> io::Result<(OwnedFd, Option<AsyncPipe>)> {
    if !is_wanted {
        return Ok((null()?, None));
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((reader, Some(AsyncPipe::new(writer)?)))
}

/// The end of a pipe that a program writes to, and the reading one; the null device if none is wanted.
///
/// # Errors
/// The kernel's error.
pub(super) fn from_program_or_null(is_wanted: bool) -> io::Result<(OwnedFd, Option<AsyncPipe>)> {
    if !is_wanted {
        return Ok((null()?, None));
    }
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    Ok((writer, Some(AsyncPipe::new(reader)?)))
}

fn null() -> io::Result<OwnedFd> {
    Ok(std::fs::File::options().read(true).write(true).open("/dev/null")?.into())
}
