//! Running `gantry-stage1`: finding the program, spawning it without leaking locks, reading its replies.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use gantry_contract::Failure;
use gantry_model::ErrorKind;
use gantry_model::id::shown;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::Engine;
use crate::error::EngineError;
use crate::host::process::{self, Deadline};

/// Where the program finds others.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The time a process may take to end after its reply, or after SIGKILL.
pub(crate) const EXIT_TIMEOUT: Duration = Duration::from_secs(5);
/// In bytes.
const MAX_VERSION: usize = 4096;
/// The most characters of a message: enough for a whole chain of causes.
const MAX_MESSAGE: usize = 2000;
const BELOW_PREFIX: &str = "../libexec/gantry/gantry-stage1";
const LIBEXEC: &str = "/usr/libexec/gantry/gantry-stage1";

impl Engine {
    /// The program's path, or the paths at which it was looked for.
    pub(crate) fn stage1(&self) -> Result<PathBuf, Vec<PathBuf>> {
        if let Some(path) = &self.options.stage1 {
            return if path.is_file() { Ok(path.clone()) } else { Err(vec![path.clone()]) };
        }
        if let Some(path) = std::env::var_os("GANTRY_STAGE1").filter(|path| !path.is_empty()).map(PathBuf::from) {
            return if path.is_file() { Ok(path) } else { Err(vec![path]) };
        }
        let exe = std::env::current_exe().ok();
        let own = exe.as_deref().and_then(Path::parent);
        // Beside the program (a build), below its prefix (/usr/local), in the system's directory (a package).
        let places = own.into_iter().flat_map(|dir| [dir.join("gantry-stage1"), dir.join(BELOW_PREFIX)]);
        let places: Vec<PathBuf> = places.chain([PathBuf::from(LIBEXEC)]).collect();
        places.iter().find(|path| Path::is_file(path)).cloned().ok_or(places)
    }
}

/// `gantry-stage1`, about to be executed from a read-only mount of its own. The program insists on one
/// (CVE-2019-5736). If this process cannot make it, the program does, at the cost of a second execve.
pub(crate) struct Executable<'a> {
    path: &'a Path,
    mount: Option<OwnedFd>,
}

impl<'a> Executable<'a> {
    pub(crate) fn new(path: &'a Path) -> Self {
        // The interpreter of a script (a wrapper for debugging) would open it when the descriptor is closed already.
        Self { path, mount: is_elf(path).then(|| gantry_host::mounts::clone_read_only(path).ok()).flatten() }
    }

    /// A command that executes it, to be spawned while this value lives.
    pub(crate) fn command(&self) -> Command {
        match &self.mount {
            Some(mount) => {
                let mut command = Command::new(format!("/proc/self/fd/{}", mount.as_raw_fd()));
                // Its path on the host would be seen in the pod's PID 1.
                command.arg0("gantry-stage1");
                command
            }
            None => Command::new(self.path),
        }
    }

    /// Returns its mount. To be called after the program is executed.
    pub(crate) fn into_mount(self) -> Option<OwnedFd> {
        self.mount
    }
}

fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

/// The purpose of a run of `gantry-stage1`, as in "cannot start pod X": makes the errors of the run.
pub(crate) struct Attempt(pub(crate) String);

impl Attempt {
    fn error(&self, kind: ErrorKind, problem: &str) -> EngineError {
        EngineError::new(kind, format!("cannot {}: {problem}", self.0))
    }

    /// The program was not found.
    pub(crate) fn missing(&self, places: &[PathBuf]) -> EngineError {
        let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        let places = places.join(" or ");
        let problem = format!("there is no gantry-stage1 in {places}; install it there, or name it in $GANTRY_STAGE1");
        self.error(ErrorKind::Unavailable, &problem)
    }

    /// The system failed to do `what`.
    pub(crate) fn io(&self, what: &str, source: io::Error) -> EngineError {
        let kind = match ErrorKind::of_io(&source) {
            // The missing file is a part of gantry (or its interpreter), and must not look like a missing pod.
            ErrorKind::NotFound => ErrorKind::Unavailable,
            other => other,
        };
        self.error(kind, &format!("cannot {what}")).caused_by(source)
    }

    /// The program replied with a failure.
    pub(crate) fn failed(&self, failure: &Failure) -> EngineError {
        let app = failure.app.as_deref().map(|app| format!(", app '{}'", shown(app))).unwrap_or_default();
        let text = format!("cannot {}{app}: {}", self.0, printable(&failure.message));
        EngineError::new(failure.kind, text)
    }

    /// The program ended without a reply.
    pub(crate) fn silent(&self, stderr: &str) -> EngineError {
        let wrote = if stderr.is_empty() { String::new() } else { format!("; it wrote: {stderr}") };
        self.error(ErrorKind::Internal, &format!("gantry-stage1 ended without a reply{wrote}"))
    }

    /// The reply does not belong to this request.
    pub(crate) fn not_understood(&self, source: Option<serde_json::Error>) -> EngineError {
        let problem = "the reply of gantry-stage1 is not understood; are gantry and gantry-stage1 of the same version?";
        let error = self.error(ErrorKind::Internal, problem);
        match source {
            Some(source) => error.caused_by(source),
            None => error,
        }
    }

    /// The program was killed because it took too long.
    pub(crate) fn timed_out(&self, problem: &str) -> EngineError {
        self.error(ErrorKind::TimedOut, problem)
    }
}

/// Between clearing close-on-exec on a lock and setting it again, a program started by another thread would inherit the
/// lock and keep a dead pod looking alive. This crate starts every program under this mutex ([`spawn_exclusively`]); a
/// caller that starts others in the same process must not do so from other threads. The guarded section cannot panic
/// half-way: the flag is set again whatever spawn returns.
static SPAWNING: Mutex<()> = Mutex::new(());

/// Runs `spawn` while no lock of this process can be inherited.
pub(crate) fn spawn_exclusively<T>(spawn: impl FnOnce() -> T) -> T {
    let _spawning = SPAWNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    spawn()
}

/// Runs `spawn` while the programs it starts inherit these descriptors.
pub(crate) fn spawn_with<T>(fds: &[BorrowedFd<'_>], spawn: impl FnOnce() -> T) -> io::Result<T> {
    let _spawning = SPAWNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    fds.iter().try_for_each(|fd| fcntl_setfd(fd, FdFlags::empty()))?;
    let spawned = spawn();
    fds.iter().try_for_each(|fd| fcntl_setfd(fd, FdFlags::CLOEXEC))?;
    Ok(spawned)
}

/// The line of `gantry-stage1 version`: `gantry-stage1 VERSION contract N`.
pub(crate) fn version_of(program: &Path) -> io::Result<String> {
    let mut command = Command::new(program);
    command
        .arg("version")
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::piped());
    let mut child = spawn_exclusively(|| command.spawn())?;
    let Some(stdout) = child.stdout.take().map(OwnedFd::from) else {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe));
    };
    let line = read_line(&stdout, Deadline::after(EXIT_TIMEOUT), MAX_VERSION);
    if !matches!(line, Ok(Line::Ended)) {
        // The program has written its line, or never will.
        child.kill()?;
    }
    child.wait()?;
    match line? {
        Line::Whole(bytes) => Ok(printable(&String::from_utf8_lossy(&bytes))),
        Line::Ended | Line::Late => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
    }
}

/// The result of reading a line.
pub(crate) enum Line {
    /// The complete line, without its newline.
    Whole(Vec<u8>),
    /// The writer closed the pipe before the newline.
    Ended,
    /// The deadline passed.
    Late,
}

/// Reads one line of at most `max` bytes.
pub(crate) fn read_line(fd: &OwnedFd, deadline: Deadline, max: usize) -> io::Result<Line> {
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
        // Only the new block is searched: replies can be long.
        if let Some(end) = block[..read].iter().position(|&c| c == b'\n') {
            line.extend_from_slice(&block[..end]);
            return Ok(Line::Whole(line));
        }
        line.extend_from_slice(&block[..read]);
        if line.len() > max {
            return Err(io::Error::other(format!("it is longer than {max} bytes")));
        }
    }
}

/// Escapes control characters, since a message may quote an image, and limits the length.
pub(crate) fn printable(message: &str) -> String {
    let escaped = |c: char| if c.is_control() { c.escape_debug().collect() } else { vec![c] };
    message.chars().take(MAX_MESSAGE).flat_map(escaped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_line_is_read() {
        let (reading, writing) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&writing, b"{\"a\":1}\nrest").unwrap();
        let line = read_line(&reading, Deadline::after(Duration::from_secs(5)), MAX_VERSION).unwrap();
        assert!(matches!(line, Line::Whole(bytes) if bytes == b"{\"a\":1}"));
        drop(writing);
        assert!(matches!(
            read_line(&reading, Deadline::after(Duration::from_secs(5)), MAX_VERSION).unwrap(),
            Line::Ended
        ));
    }

    #[test]
    fn a_missing_reply_times_out() {
        let (reading, _writing) = rustix::pipe::pipe().unwrap();
        assert!(matches!(
            read_line(&reading, Deadline::after(Duration::from_millis(5)), MAX_VERSION).unwrap(),
            Line::Late
        ));
    }

    #[test]
    fn messages_are_escaped() {
        assert_eq!(printable("a\x1b[2J\nb"), "a\\u{1b}[2J\\nb");
        assert_eq!(printable(&"é".repeat(5000)).chars().count(), 2000);
    }
}
