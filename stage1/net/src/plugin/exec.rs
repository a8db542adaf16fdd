//! Running one program to its end, which may not come, with what it prints, which may not end.

use std::ffi::OsString;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::error::START;
use super::{MAX_OUTPUT, MAX_STDERR};

/// How long a killed process may take to be gone; longer means that the kernel holds it.
const REAP: Duration = Duration::from_secs(5);

/// What a program did.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The beginning, as text fit for a message.
    pub(super) stderr: String,
}

/// Why there is no [`Ended`].
pub(super) enum Failure {
    System(&'static str, io::Error),
    TimedOut { stderr: String },
    TooMuch { stderr: String },
}

type Result<T> = std::result::Result<T, Failure>;

fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::System(doing, error.into())
}

/// Runs the program with these variables alone and `input` on its stdin, in a process group of its own.
pub(super) fn run(
    program: &Path,
    variables: &[(&'static str, OsString)],
    input: &[u8],
    limit: Duration,
) -> Result<Ended> {
    let deadline = Instant::now() + limit;
    let mut command = Command::new(program);
    command.env_clear().envs(variables.iter().map(|(name, value)| (name, value))).current_dir("/").process_group(0);
    command.stdin(memory(input).map_err(system(START))?);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(system(START))?;
    let outcome = follow(&mut child, deadline);
    if outcome.is_err() {
        // Not reaped yet, so the number is still its group's.
        kill_group(&child);
    }
    let status = reap(&mut child)?;
    let (stdout, stderr) = outcome?;
    Ok(Ended { status, stdout, stderr })
}

/// The input as a file without a name: nobody has to feed it, and a program that does not read it is no error.
fn memory(input: &[u8]) -> io::Result<Stdio> {
    let fd = rustix::fs::memfd_create("configuration", MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(fd);
    file.write_all(input)?;
    file.rewind()?;
    Ok(file.into())
}

/// A pipe of the program and what came out of it.
struct Pipe<R> {
    from: Option<R>,
    bytes: Vec<u8>,
    keep: usize,
    /// More came than is kept.
    over: bool,
}

impl<R: Read + AsFd> Pipe<R> {
    fn new(from: Option<R>, keep: usize) -> Result<Self> {
        if let Some(from) = &from {
            let flags = rustix::fs::fcntl_getfl(from).map_err(system("read from"))?;
            rustix::fs::fcntl_setfl(from, flags | OFlags::NONBLOCK).map_err(system("read from"))?;
        }
        Ok(Self { from, bytes: Vec::new(), keep, over: false })
    }

    /// Reads what is there now, at most some rounds of it, so that one who never stops writing cannot hold us.
    fn drain(&mut self) -> Result<()> {
        let mut buffer = [0u8; 16 * 1024];
        for _ in 0..128 {
            let Some(from) = &mut self.from else { return Ok(()) };
            match from.read(&mut buffer) {
                Ok(0) => self.from = None,
                Ok(count) => {
                    let room = self.keep - self.bytes.len();
                    self.over |= count > room;
                    self.bytes.extend(buffer.iter().take(count.min(room)));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::System("read from", error)),
            }
        }
        Ok(())
    }
}

/// Reads both pipes until the program ends; not until they close, which a child of it may put off.
fn follow(child: &mut Child, deadline: Instant) -> Result<(Vec<u8>, String)> {
    let pidfd = pidfd(child).map_err(system("wait for"))?;
    let mut out = Pipe::new(child.stdout.take(), MAX_OUTPUT)?;
    let mut err = Pipe::new(child.stderr.take(), MAX_STDERR)?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let ended = wait(&pidfd, &out, &err, left).map_err(system("wait for"))?;
        out.drain()?;
        err.drain()?;
        if out.over {
            return Err(Failure::TooMuch { stderr: text(&err.bytes) });
        }
        if ended {
            return Ok((out.bytes, text(&err.bytes)));
        }
        if left.is_zero() {
            return Err(Failure::TimedOut { stderr: text(&err.bytes) });
        }
    }
}

/// Waits for output or the end; `true`: the program has ended.
fn wait(pidfd: &OwnedFd, out: &Pipe<impl AsFd>, err: &Pipe<impl AsFd>, left: Duration) -> io::Result<bool> {
    let mut fds = vec![PollFd::new(pidfd, PollFlags::IN)];
    fds.extend(out.from.as_ref().map(|from| PollFd::new(from, PollFlags::IN)));
    fds.extend(err.from.as_ref().map(|from| PollFd::new(from, PollFlags::IN)));
    let left = Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
    match rustix::event::poll(&mut fds, Some(&left)) {
        Ok(_) => Ok(fds.first().is_some_and(|fd| !fd.revents().is_empty())),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn pidfd(child: &Child) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(Pid::from_child(child), PidfdFlags::empty())?)
}

fn kill_group(child: &Child) {
    // Fails only when everybody in it is gone.
    let _ = rustix::process::kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Takes the exit status of a program that has ended or was killed.
fn reap(child: &mut Child) -> Result<ExitStatus> {
    let deadline = Instant::now() + REAP;
    loop {
        if let Some(status) = child.try_wait().map_err(system("wait for"))? {
            return Ok(status);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let stuck = io::Error::new(io::ErrorKind::TimedOut, "killed, and stuck in the kernel");
            return Err(Failure::System("end", stuck));
        }
        let none = || Pipe { from: None::<OwnedFd>, bytes: Vec::new(), keep: 0, over: false };
        let fd = pidfd(child).map_err(system("wait for"))?;
        wait(&fd, &none(), &none(), left).map_err(system("wait for"))?;
    }
}

/// Bytes of others as one line of a message.
pub(super) fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim()
        .chars()
        .take(1024)
        .flat_map(|c| if c == '\n' { vec![' '] } else { c.escape_debug().collect() })
        .collect()
}
