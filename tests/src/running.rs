//! A command that runs in the background of a test.

use std::io::{Read, Write as _};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::output::Out;
use crate::wait::{DEADLINE, let_pass, wait_for, within};

/// A command in the background. Dropping it before its end kills it.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Stream,
    stderr: Stream,
    begin: Instant,
    command: String,
    ended: bool,
}

/// The output of a pipe so far, and the thread that reads it.
#[derive(Debug)]
struct Stream {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Stream {
    fn read(mut from: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            // A pipe without writers reads as end of file; reading has no other failure.
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                into.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..n]);
            }
        });
        Self { bytes, reader }
    }

    fn so_far(&self) -> Vec<u8> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Running {
    /// Starts a command. `stdin` selects a pipe as standard input; otherwise it is empty.
    #[track_caller]
    pub(crate) fn start(command: &mut Command, stdin: bool) -> Self {
        Self::start_with(command, if stdin { Stdio::piped() } else { Stdio::null() })
    }

    /// Starts a command with this as standard input.
    #[track_caller]
    pub(crate) fn start_with(command: &mut Command, stdin: Stdio) -> Self {
        let text = format!("{command:?}");
        let begin = Instant::now();
        let mut child = match command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
            Ok(child) => child,
            Err(error) => panic!("cannot start {text}: {error}"),
        };
        let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
            unreachable!("both were asked for as pipes")
        };
        let stdin = child.stdin.take();
        let (stdout, stderr) = (Stream::read(stdout), Stream::read(stderr));
        Self { child, stdin, stdout, stderr, begin, command: text, ended: false }
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    /// Waits until standard output contains a text, and returns all of it.
    #[track_caller]
    pub fn wait_for_stdout(&mut self, text: &str) -> String {
        let found = within(DEADLINE, || {
            let now = self.stdout();
            let over = !now.contains(text) && matches!(self.child.try_wait(), Ok(Some(_)));
            (now.contains(text) || over).then(|| self.stdout())
        });
        match found {
            Some(now) if now.contains(text) => now,
            _ => panic!("'{text}' never came from {}", self.describe()),
        }
    }

    /// The standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// Waits until standard error contains a text, and returns all of it.
    #[track_caller]
    pub fn wait_for_stderr(&mut self, text: &str) -> String {
        let found = within(DEADLINE, || {
            let over = matches!(self.child.try_wait(), Ok(Some(_))) && self.stderr.reader.is_finished();
            let now = self.stderr();
            (now.contains(text) || over).then_some(now)
        });
        match found {
            Some(now) if now.contains(text) => now,
            _ => panic!("'{text}' never came on the standard error of {}", self.describe()),
        }
    }

    /// Writes to the standard input.
    #[track_caller]
    pub fn write(&mut self, text: &str) {
        let Some(stdin) = &mut self.stdin else { panic!("{} was started without stdin", self.command) };
        if let Err(error) = stdin.write_all(text.as_bytes()).and_then(|()| stdin.flush()) {
            panic!("cannot write to {}: {error}", self.command);
        }
    }

    /// Closes the standard input.
    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Sends a signal. SIGSTOP has taken effect when this returns.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        assert!(!self.ended, "{} has ended", self.command);
        // The child has not been waited for, so its process id cannot be reused.
        if let Err(error) = kill_process(Pid::from_child(&self.child), signal) {
            panic!("cannot signal {}: {error}", self.command);
        }
        if signal == Signal::STOP {
            wait_for("every thread to stop", || is_stopped(self.child.id()).then_some(()));
        }
    }

    /// Kills the command this long after its start, if it still runs then.
    #[track_caller]
    pub fn kill_after(self, time: Duration) {
        let_pass(time.saturating_sub(self.begin.elapsed()));
        self.signal(Signal::KILL);
        let _killed_or_ended = self.wait();
    }

    /// Terminates the command with SIGTERM; it must exit with code 0.
    #[track_caller]
    pub fn terminate(self) -> Out {
        self.signal(Signal::TERM);
        self.wait().ok()
    }

    /// Whether the command has exited.
    pub fn has_ended(&mut self) -> bool {
        self.ended = self.ended || matches!(self.child.try_wait(), Ok(Some(_)));
        self.ended
    }

    /// Waits for the command's end.
    #[track_caller]
    pub fn wait(self) -> Out {
        self.wait_within(DEADLINE)
    }

    /// Waits for the command's end; on timeout, kills it and fails the test.
    #[track_caller]
    pub fn wait_within(mut self, time: Duration) -> Out {
        let status: Option<ExitStatus> = within(time, || self.child.try_wait().ok().flatten());
        let Some(status) = status else { panic!("still running after {time:?}: {}", self.describe()) };
        self.ended = true;
        let duration = self.begin.elapsed();
        // The pipes are open only if the command left a process behind.
        wait_for(&format!("all processes to close the output of {}", self.command), || {
            (self.stdout.reader.is_finished() && self.stderr.reader.is_finished()).then_some(())
        });
        let (stdout, stderr) = (self.stdout.so_far(), self.stderr.so_far());
        Out::new(self.command.clone(), status, stdout, &stderr, duration)
    }

    fn describe(&self) -> String {
        let stderr = self.stderr.so_far();
        format!("`{}`\n--- stdout\n{}\n--- stderr\n{}", self.command, self.stdout(), String::from_utf8_lossy(&stderr))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            // Both fail only if the process has exited already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Whether all threads of the process are stopped: each one stops by itself (`state` of proc_pid_stat(5)).
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut stats = threads.map(|thread| std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default());
    stats.all(|stat| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T')))
}
