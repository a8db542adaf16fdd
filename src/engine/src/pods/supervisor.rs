//! Starting a supervisor and hearing its one word.
//!
//! Beside `gantry-stage1 network` ([`crate::host::network`]) the only process the engine ever starts. It gets the plan as stdin, a pipe for its word as stdout, a log file of the pod as stderr,
//! and the locked pod directory, which from then on is its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use gantry_contract::up::{Ready, Word};
use gantry_model::id::shown;
use gantry_model::{ErrorKind, Kind, PodId};
use gantry_store::PodLock;
use rustix::io::{FdFlags, fcntl_setfd};
use thiserror::Error;

use crate::error::kind_of_word;
use crate::host::process::{self, Deadline};
use crate::pods::output::{OutputStream, Show};
use crate::pods::pod_dir;
use crate::{Engine, PodError};

/// How long a supervisor may take until its pod runs.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a word may take from its first byte to its last.
const WHOLE_WITHIN: Duration = Duration::from_secs(5);
/// How long a process may take to go after SIGKILL.
const GONE_WITHIN: Duration = Duration::from_secs(5);
/// The longest word.
const MOST_WORD: usize = 1 << 20;
/// Where the supervisor's program finds others.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A supervisor could not be brought to run its pod.
#[derive(Debug, Error)]
pub enum SupervisorError {
    /// The program is not there.
    #[error(
        "cannot start pod {id}: there is no gantry-stage1 in {}; install it there, or name it in $GANTRY_STAGE1",
        .places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ")
    )]
    Missing {
        /// Which pod.
        id: PodId,
        /// Where it was looked for.
        places: Vec<PathBuf>,
    },
    /// It could not be executed.
    #[error("cannot start pod {id}: cannot execute {}", .program.display())]
    Spawn {
        /// Which pod.
        id: PodId,
        /// Which program.
        program: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// It said why not.
    #[error("cannot start pod {id}{}: {message}", .app.as_ref().map(|app| format!(", app '{app}'")).unwrap_or_default())]
    Failed {
        /// Which pod.
        id: PodId,
        /// Which app, where it is about one.
        app: Option<String>,
        /// What sort of failure.
        kind: ErrorKind,
        /// Why: the whole chain.
        message: String,
    },
    /// It ended without a word.
    #[error("cannot start pod {id}: its supervisor ended without a word{}", said(.stderr))]
    Silent {
        /// Which pod.
        id: PodId,
        /// The end of what it wrote to stderr.
        stderr: String,
    },
    /// It said something else.
    #[error(
        "cannot start pod {id}: what its supervisor said is not understood; are gantry and gantry-stage1 of one version?"
    )]
    Garbled {
        /// Which pod.
        id: PodId,
        /// Why not.
        #[source]
        source: serde_json::Error,
    },
    /// It took too long, and was killed.
    #[error("cannot start pod {id}: its supervisor was not ready within {seconds} s and was killed")]
    TimedOut {
        /// Which pod.
        id: PodId,
        /// How long it had.
        seconds: u64,
    },
    /// The system failed.
    #[error("cannot start pod {id}: cannot {attempt}")]
    Io {
        /// Which pod.
        id: PodId,
        /// What was attempted.
        attempt: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// The pod directory.
    #[error(transparent)]
    Pod(#[from] PodError),
}

impl Kind for SupervisorError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. } => ErrorKind::Unavailable,
            Self::Spawn { source, .. } | Self::Io { source, .. } => kind_of_own(source),
            Self::Failed { kind, .. } => *kind,
            Self::Silent { .. } | Self::Garbled { .. } => ErrorKind::Internal,
            Self::TimedOut { .. } => ErrorKind::TimedOut,
            Self::Pod(error) => error.kind(),
        }
    }
}

/// The kind of what the system says of our own programs and files.
pub(crate) fn kind_of_own(source: &io::Error) -> ErrorKind {
    match ErrorKind::of_io(source) {
        // What is missing is a part of gantry (or its interpreter), and must not look like a missing pod.
        ErrorKind::NotFound => ErrorKind::Unavailable,
        other => other,
    }
}

/// What a program wrote to stderr, as the end of a message.
pub(crate) fn said(stderr: &str) -> String {
    if stderr.is_empty() { String::new() } else { format!("; it wrote: {stderr}") }
}

/// A supervisor that was spawned and has not said its word.
pub(crate) struct Spawned {
    id: PodId,
    pub(crate) child: Child,
    pub(crate) pidfd: OwnedFd,
    word: OwnedFd,
    pub(crate) output: Option<OutputStream>,
}

/// Between clearing close-on-exec on a lock and setting it again, a program started by another thread would inherit
/// the lock and keep a dead pod looking alive. All that this crate starts is started under this mutex ([`alone`]); whoever
/// starts other programs in the same process must not do so from other threads.
/// The guarded section cannot panic half-way: the flag is set again whatever spawn returns.
static SPAWNING: Mutex<()> = Mutex::new(());

impl Engine {
    /// Starts the supervisor of a pod whose plan is written. The lock is its own from now on, so that it is alive as
    /// long as the lock is held; if we are killed right after, the pod runs and `reconcile` finds it.
    pub(crate) fn spawn(&self, id: PodId, dir: &Path, lock: PodLock, show: Show) -> Result<Spawned, SupervisorError> {
        let program = self.stage1().map_err(|places| SupervisorError::Missing { id, places })?;
        let plan = pod_dir::open_plan(dir)?;
        let log = pod_dir::open_supervisor_log(dir)?;
        let io = |attempt| move |source: io::Error| SupervisorError::Io { id, attempt, source };
        let (output, output_writer) = match show {
            Show::No => (None, None),
            Show::Output { .. } => {
                let (stream, writer) = OutputStream::new(id).map_err(io("make a pipe for its output"))?;
                (Some(stream), Some(writer))
            }
        };
        let mut command = Command::new(&program);
        command.arg("run").arg("--lock-fd").arg(lock.as_fd().as_raw_fd().to_string());
        if let Some(writer) = &output_writer {
            command.arg("--output-fd").arg(writer.as_raw_fd().to_string());
        }
        if let Show::Output { terminal_size: Some((rows, columns)) } = show {
            command.arg("--terminal-size").arg(format!("{rows}x{columns}"));
        }
        command
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/root")
            .current_dir("/")
            .process_group(0)
            .stdin(plan)
            .stdout(Stdio::piped())
            .stderr(log);
        let handed_over: Vec<BorrowedFd<'_>> =
            [lock.as_fd()].into_iter().chain(output_writer.iter().map(AsFd::as_fd)).collect();
        let mut child = inheriting(&handed_over, || command.spawn())
            .map_err(io("hand over the lock"))?
            .map_err(|source| SupervisorError::Spawn { id, program, source })?;
        // Our copies must go: the supervisor's death has to free the lock, and to end the output.
        drop(handed_over);
        drop((lock, output_writer));
        let (Some(word), Some(pidfd)) = (child.stdout.take(), process::open_pid(child.id())) else {
            let source = io::Error::last_os_error();
            let _ = child.kill();
            let _ = child.wait();
            return Err(io("watch the supervisor")(source));
        };
        Ok(Spawned { id, child, pidfd, word: word.into(), output })
    }

    /// Waits for the word. On failure the supervisor is gone when this returns; its cgroups are the caller's to remove.
    pub(crate) fn word(&self, spawned: &mut Spawned) -> Result<Ready, SupervisorError> {
        let word = self.hear(spawned);
        if word.is_err() {
            spawned.end();
        }
        word
    }

    fn hear(&self, spawned: &Spawned) -> Result<Ready, SupervisorError> {
        let id = spawned.id;
        let io = |source| SupervisorError::Io { id, attempt: "read the supervisor's word", source };
        let mut within = READY_WITHIN;
        let spoke = process::readable(&[spawned.word.as_fd()], Deadline::after(within)).map_err(io)?.is_some();
        if !spoke && self.has_network_record(id) {
            // Plugins have a limit of their own, and the supervisor tells which one did not keep it.
            within = within.saturating_add(self.plugins_limit());
        }
        let left = Deadline::after(within.saturating_sub(READY_WITHIN).max(WHOLE_WITHIN));
        match read_line(&spawned.word, left, MOST_WORD).map_err(io)? {
            Line::Late => Err(SupervisorError::TimedOut { id, seconds: within.as_secs() }),
            Line::Ended => Err(SupervisorError::Silent { id, stderr: self.supervisor_said(id) }),
            Line::Whole(bytes) => match serde_json::from_slice(&bytes) {
                Ok(Word::Ready(ready)) => Ok(ready),
                Ok(Word::Failed(failure)) => Err(SupervisorError::Failed {
                    id,
                    app: failure.app.as_deref().map(shown),
                    kind: kind_of_word(&failure.kind),
                    message: printable(&failure.message),
                }),
                Err(source) => Err(SupervisorError::Garbled { id, source }),
            },
        }
    }
}

impl Spawned {
    pub(crate) fn into_parts(self) -> (PodId, Child, OwnedFd, Option<OutputStream>) {
        (self.id, self.child, self.pidfd, self.output)
    }

    /// Makes sure that it is gone, and reaps it. One that failed is ending by itself; SIGKILL only makes that sure.
    pub(crate) fn end(&mut self) {
        let short = Deadline::after(Duration::from_millis(500));
        if !matches!(process::readable(&[self.pidfd.as_fd()], short), Ok(Some(_))) {
            let _ = process::kill(&self.pidfd);
        }
        if matches!(process::readable(&[self.pidfd.as_fd()], Deadline::after(GONE_WITHIN)), Ok(Some(_))) {
            let _ = self.child.wait();
        }
    }
}

/// What a supervisor's program says of itself: `gantry-stage1 VERSION contract N`.
pub(crate) fn version_of(program: &Path) -> io::Result<String> {
    let mut command = Command::new(program);
    command
        .arg("version")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = alone(|| command.spawn())?;
    let Some(stdout) = child.stdout.take().map(OwnedFd::from) else {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe));
    };
    let line = read_line(&stdout, Deadline::after(GONE_WITHIN), MOST_WORD);
    if !matches!(line, Ok(Line::Ended)) {
        // It has said its line, or never will.
        child.kill()?;
    }
    child.wait()?;
    match line? {
        Line::Whole(bytes) => Ok(printable(&String::from_utf8_lossy(&bytes))),
        Line::Ended | Line::Late => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
    }
}

/// Runs `spawn` while no lock of this process can be inherited.
pub(crate) fn alone<T>(spawn: impl FnOnce() -> T) -> T {
    let _alone = SPAWNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    spawn()
}

/// Runs `spawn` while these descriptors are inherited by what it starts.
fn inheriting<T>(fds: &[BorrowedFd<'_>], spawn: impl FnOnce() -> T) -> io::Result<T> {
    let _alone = SPAWNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    fds.iter().try_for_each(|fd| fcntl_setfd(fd, FdFlags::empty()))?;
    let made = spawn();
    fds.iter().try_for_each(|fd| fcntl_setfd(fd, FdFlags::CLOEXEC))?;
    Ok(made)
}

/// What was read of a line.
pub(crate) enum Line {
    /// All of it, without its newline.
    Whole(Vec<u8>),
    /// Its writer went before its end.
    Ended,
    /// It did not come in time.
    Late,
}

/// Reads one line of at most `most` bytes.
pub(crate) fn read_line(fd: &OwnedFd, deadline: Deadline, most: usize) -> io::Result<Line> {
    let mut line = Vec::new();
    let mut block = [0u8; 16 * 1024];
    loop {
        if process::readable(&[fd.as_fd()], deadline)?.is_none() {
            return Ok(Line::Late);
        }
        let read = rustix::io::retry_on_intr(|| rustix::io::read(fd, &mut block))?;
        if read == 0 {
            return Ok(Line::Ended);
        }
        // Only what is new is looked through: answers can be long.
        if let Some(end) = block[..read].iter().position(|&c| c == b'\n') {
            line.extend_from_slice(&block[..end]);
            return Ok(Line::Whole(line));
        }
        line.extend_from_slice(&block[..read]);
        if line.len() > most {
            return Err(io::Error::other(format!("it is longer than {most} bytes")));
        }
    }
}

/// A supervisor's message may quote an image: escaped, and cut at a length that keeps whole chains.
pub(crate) fn printable(message: &str) -> String {
    message.chars().take(2000).flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_is_read_and_no_more() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writing, b"{\"a\":1}\nrest").unwrap();
        let line = read_line(&reading, Deadline::after(Duration::from_secs(5)), MOST_WORD).unwrap();
        assert!(matches!(line, Line::Whole(bytes) if bytes == b"{\"a\":1}"));
        drop(writing);
        assert!(matches!(
            read_line(&reading, Deadline::after(Duration::from_secs(5)), MOST_WORD).unwrap(),
            Line::Ended
        ));
    }

    #[test]
    fn silence_has_a_deadline() {
        let (reading, _writing) = rustix::pipe::pipe().unwrap();
        assert!(matches!(
            read_line(&reading, Deadline::after(Duration::from_millis(5)), MOST_WORD).unwrap(),
            Line::Late
        ));
    }

    #[test]
    fn messages_are_escaped() {
        assert_eq!(printable("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(printable(&"é".repeat(5000)).chars().count(), 2000);
    }
}
