//! Runs one program with a timeout and a limit of its output.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use gantry_host::file::in_memory;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use super::error::START;
use super::{MAX_OUTPUT, MAX_STDERR};

/// How long a killed process may take to end, unless it is stuck in the kernel.
const REAP_TIMEOUT: Duration = Duration::from_secs(5);

/// The output of a program that has ended.
pub(super) struct Output {
    pub(super) status: ExitStatus,
    pub(super) stdout: Vec<u8>,
    /// The beginning, as text for a message.
    pub(super) stderr: String,
}

/// Why a program has no [`Output`].
pub(super) enum Failure {
    System(&'static str, io::Error),
    TimedOut { stderr: String },
    TooMuch { stderr: String },
}

type Result<T> = std::result::Result<T, Failure>;

fn system<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Failure {
    move |error| Failure::System(doing, error.into())
}

/// Runs the program in a process group of its own, with only these variables, and with `input` on stdin.
pub(super) fn run(
    program: &Path,
    variables: &[(&'static str, OsString)],
    input: &[u8],
    limit: Duration,
) -> Result<Output> {
    let deadline = Instant::now() + limit;
    let mut command = Command::new(program);
    command.env_clear().envs(variables.iter().map(|(name, value)| (name, value))).current_dir("/").process_group(0);
    command.stdin(in_memory("configuration", input).map_err(system(START))?);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(system(START))?;
    let outcome = read_until_end(&mut child, deadline);
    if outcome.is_err() {
        // It is not reaped yet, so its process group id cannot have been reused.
        kill_group(&child);
    }
    let status = reap(&mut child)?;
    let (stdout, stderr) = outcome?;
    Ok(Output { status, stdout, stderr })
}

/// A pipe from the program, and its data.
struct Pipe<R> {
    from: Option<R>,
    bytes: Vec<u8>,
    keep: usize,
    /// There was more data than `keep` bytes.
    over: bool,
}

impl<R: Read + AsFd> Pipe<R> {
    fn new(from: Option<R>, keep: usize) -> Result<Self> {
        if let Some(from) = &from {
            rustix::io::ioctl_fionbio(from, true).map_err(system("read from"))?;
        }
        Ok(Self { from, bytes: Vec::new(), keep, over: false })
    }

    /// Reads the available data. The number of reads is limited, because the program may never stop writing.
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

/// Reads both pipes until the program ends, and not until they close, because a child may keep them open.
fn read_until_end(child: &mut Child, deadline: Instant) -> Result<(Vec<u8>, String)> {
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

/// Waits for output or the end of the program; `true`: it has ended.
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
    // Fails only if the process group is empty.
    let _may_be_empty = rustix::process::kill_process_group(Pid::from_child(child), Signal::KILL);
}

/// Reaps a program that has ended or was killed.
fn reap(child: &mut Child) -> Result<ExitStatus> {
    let deadline = Instant::now() + REAP_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().map_err(system("wait for"))? {
            return Ok(status);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let stuck = io::Error::new(io::ErrorKind::TimedOut, "it was killed, but is stuck in the kernel");
            return Err(Failure::System("end", stuck));
        }
        let none = || Pipe { from: None::<OwnedFd>, bytes: Vec::new(), keep: 0, over: false };
        let fd = pidfd(child).map_err(system("wait for"))?;
        wait(&fd, &none(), &none(), left).map_err(system("wait for"))?;
    }
}

/// Output of a program as one line of a message.
pub(super) fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim()
        .chars()
        .take(1024)
        .flat_map(|c| if c == '\n' { vec![' '] } else { c.escape_debug().collect() })
        .collect()
}
