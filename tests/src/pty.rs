//! Runs a command on its own pseudo-terminal, like an interactive user.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::wait::{DEADLINE, wait_for, within};

/// The interval at which the reader checks its stop flag.
const TICK: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// The command runs below a shell that leads the session. The terminal therefore outlives the command: none of its
/// output is lost with the session, and the test can check the terminal's final settings. The last line reports the
/// command's exit status.
const SHELL: &str = r#"trap : INT QUIT
before=$(stty -g)
"$@"
code=$?
test "$before" = "$(stty -g)" && kept=kept || kept=changed
stty sane
printf '\n[exit %s, terminal %s]\n' "$code" "$kept"
read -r _"#;

/// A command in a session of its own, whose controlling terminal is a pty; the test holds the master.
#[derive(Debug)]
pub struct Terminal {
    /// The shell.
    child: Child,
    master: Option<Arc<OwnedFd>>,
    output: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

/// How a command on a terminal ended.
#[derive(Debug)]
pub struct TerminalOutput {
    /// The exit code as a shell shows it.
    pub code: i32,
    /// All output, with the echo of typed input.
    pub bytes: Vec<u8>,
    /// The output as text.
    pub output: String,
    /// Whether the command restored the terminal's settings.
    pub is_restored: bool,
}

impl Terminal {
    /// Starts a command on a terminal of 24 rows and 80 columns, and reads its output from the start.
    ///
    /// # Panics
    /// Without a free pty, or without util-linux's `setsid`.
    #[must_use]
    #[track_caller]
    pub fn start(command: &Command) -> Self {
        let mut made = Self::start_unread(command);
        made.read();
        made
    }

    /// Like [`Self::start`], but reads no output until [`Self::read`].
    ///
    /// # Panics
    /// As [`Self::start`].
    #[must_use]
    #[track_caller]
    pub fn start_unread(command: &Command) -> Self {
        let (master, slave) = match open() {
            Ok(ends) => ends,
            Err(error) => panic!("cannot make a terminal: {error}"),
        };
        // The parent may ignore signals, and children inherit ignored signals.
        let mut wrapped = Command::new("setsid");
        wrapped.args(["--ctty", "env", "--default-signal", "sh", "-c", SHELL, "sh"]);
        wrapped.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            wrapped.current_dir(dir);
        }
        let end = || slave.try_clone().map(Stdio::from);
        let child = end().and_then(|stdin| wrapped.stdin(stdin).stdout(end()?).stderr(end()?).spawn());
        match child {
            Ok(child) => Self {
                child,
                master: Some(Arc::new(master)),
                output: Arc::default(),
                reader: None,
                stop: Arc::default(),
            },
            Err(error) => panic!("cannot start {wrapped:?}: {error}"),
        }
    }

    /// Starts reading the command's output.
    #[track_caller]
    pub fn read(&mut self) {
        assert!(self.reader.is_none(), "it is read already");
        let master = Arc::clone(self.master());
        let (output, stop) = (Arc::clone(&self.output), Arc::clone(&self.stop));
        self.reader = Some(std::thread::spawn(move || {
            let mut buffer = [0; 65_536];
            while !stop.load(Ordering::SeqCst) {
                if !matches!(poll(&mut [PollFd::new(&master, PollFlags::IN)], Some(&TICK)), Ok(1)) {
                    continue;
                }
                match rustix::io::read(&master, &mut buffer) {
                    Ok(count @ 1..) => {
                        output.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
                    }
                    // The session has ended.
                    Ok(0) | Err(_) => return,
                }
            }
        }));
    }

    /// The command's process id, while it runs.
    #[must_use]
    #[track_caller]
    pub fn pid(&self) -> u32 {
        let shell = self.child.id();
        let children = format!("/proc/{shell}/task/{shell}/children");
        wait_for("the command to be started", || {
            let pids = std::fs::read_to_string(&children).ok()?;
            // The shell's own helper processes run before and after the command.
            pids.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                !["sh", "stty"].contains(&name.trim())
            })
        })
    }

    /// The output so far.
    #[must_use]
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.bytes()).into_owned()
    }

    /// The output so far, byte for byte.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until the output contains a text, and returns all of it.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        match within(DEADLINE, || Some(self.output()).filter(|output| output.contains(text))) {
            Some(output) => output,
            None => panic!("'{text}' never came: {:?}", self.output()),
        }
    }

    /// Types a text.
    #[track_caller]
    pub fn type_in(&self, text: &str) {
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            match rustix::io::write(self.master(), bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) => panic!("cannot type: {error}"),
            }
        }
    }

    /// Waits until the command has put the terminal into raw mode: earlier input is edited and echoed as a line.
    #[track_caller]
    pub fn wait_raw(&self) {
        wait_for("the terminal to be raw", || {
            // tcgetattr on a pty's master returns the settings of the terminal itself.
            let mode = tcgetattr(self.master()).ok()?;
            (!mode.local_modes.contains(LocalModes::ICANON)).then_some(())
        });
    }

    /// Changes the size of the window.
    #[track_caller]
    pub fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = tcsetwinsize(self.master(), size) {
            panic!("cannot change the size of the terminal: {error}");
        }
    }

    /// Closes the master: the terminal hangs up.
    pub fn hang_up(&mut self) {
        self.stop_reading();
        self.master = None;
    }

    /// Sends a signal to the command.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        if let Some(Err(error)) = pid.map(|pid| kill_process(pid, signal)) {
            panic!("cannot signal the command: {error}");
        }
    }

    /// Waits for the command's end.
    #[track_caller]
    pub fn wait(mut self) -> TerminalOutput {
        let text = self.wait_for("\n[exit ");
        let text = if text.trim_end().ends_with(']') { text } else { self.wait_for("]\r\n") };
        let last = text.rfind("\n[exit ").unwrap_or(0);
        let code = text[last + 7..].split(',').next().and_then(|code| code.parse().ok());
        let is_restored = text[last..].contains("terminal kept");
        self.hang_up();
        let _ = self.child.wait();
        let mut bytes = self.bytes();
        let end = bytes.windows(7).rposition(|window| window == b"\n[exit ").unwrap_or(bytes.len());
        bytes.truncate(end);
        if bytes.last() == Some(&b'\r') {
            bytes.pop();
        }
        match code {
            Some(code) => {
                TerminalOutput { code, output: String::from_utf8_lossy(&bytes).into_owned(), bytes, is_restored }
            }
            None => panic!("no exit code in {text:?}"),
        }
    }

    fn master(&self) -> &Arc<OwnedFd> {
        match &self.master {
            Some(master) => master,
            None => panic!("the terminal has hung up"),
        }
    }

    fn stop_reading(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(reader) = self.reader.take() {
            // The thread does not panic.
            let _ = reader.join();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.hang_up();
        // Both fail only if the process has exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    let name = ptsname(&master, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let slave = rustix::fs::open(name, flags, Mode::empty())?;
    tcsetwinsize(&master, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 })?;
    Ok((master, slave))
}
